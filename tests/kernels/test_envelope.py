"""The envelope: learnt from an A/A, left by every planted change, each with a diff that names its cause."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from decode_steps import (
    ADD,
    LAYERS,
    RARE,
    USUAL,
    Launch,
    StepKind,
    eager,
    extra_kernel,
    other_attention,
    pageable_copy,
    trial,
)
from hand_made import codes
from hypothesis import given
from hypothesis import strategies as st

from perfgate.errors import NotComparableError
from perfgate.judge.outcome import Finding
from perfgate.kernels.envelope import check, judge_envelope, learn, union
from perfgate.scenario.expected_kernels import Expectation
from perfgate.trace.decode_step import DecodeSteps, summarise
from perfgate.trace.difference import difference
from perfgate.trace.trace_file import read_trace

CAPTURE = Path(__file__).parents[1] / "fixtures" / "h200-llama-8b-decode.sqlite.gz"
Change = Callable[[StepKind], StepKind]


def changed(change: Change) -> DecodeSteps:
    """A trial of a build that changes every step."""
    return trial(change(USUAL), change(RARE))


def judged(head: DecodeSteps, base: DecodeSteps | None = None) -> Finding:
    """What the envelope of the unchanged build says."""
    return judge_envelope(learn([trial(), trial()]), {"base": [base or trial()], "head": [head]})


def declared(**step: object) -> Expectation:
    """A block of these words."""
    return Expectation.model_validate({"per_decode_step": step}, by_name=False, by_alias=True)


def test_an_unchanged_build_is_inside() -> None:
    """What an A/A learns, the next A/A passes, and says nothing about it."""
    outcome = judged(trial())
    assert (outcome.verdict, outcome.reasons, outcome.cautions) == ("pass", (), ())


def uncaptured(kind: StepKind) -> StepKind:
    """A batch that no graph was captured for: no graph, and gemms of another shape."""
    swapped = [replace(one, name=one.name.replace("nvjet_sm90_64x8", "nvjet_sm90_64x16")) for one in kind.launches]
    return eager(kind.with_launches(swapped))


PLANTS: tuple[tuple[Change, str, str], ...] = (
    (
        eager,
        "no kernel comes from a CUDA graph any more: eager mode, or a batch size that is not captured",
        "< 352 kernels left the CUDA graph: gemm 128, attention 64, norm 64, activation 32, kv-write 32, rope 32",
    ),
    (
        uncaptured,
        (
            "no kernel comes from a CUDA graph any more: eager mode, or a batch size that is not captured; gemm "
            "runs other kernels: nvjet_sm90_64x8, nvjet_sm90_64x8_splitK -> nvjet_sm90_64x16, nvjet_sm90_64x16_splitK"
        ),
        "~ gemm (qkv) nvjet_sm90_64x8 -> nvjet_sm90_64x16: 1 a layer, 32 a step",
    ),
    (
        other_attention,
        (
            "attention runs other kernels: "
            "FlashAttnFwdSm90, FlashAttnFwdCombine -> BatchDecodeWithPagedKVCacheKernel, MergeStatesKernel"
        ),
        "~ attention FlashAttnFwdSm90 -> BatchDecodeWithPagedKVCacheKernel: 1 a layer, 32 a step",
    ),
    (
        extra_kernel,
        "one more elementwise kernel a layer (32)",
        "+ elementwise vectorized_elementwise_kernel<4,CUDAFunctor_add<float>>: 1 a layer, 32 a step",
    ),
    (pageable_copy, "a pageable host copy (h2d) in each step", "+ copy h2d-pageable: 0 -> 1"),
)


@pytest.mark.parametrize(("plant", "headline", "line"), PLANTS)
def test_a_plant_leaves_the_envelope_and_is_named(plant: Change, headline: str, line: str) -> None:
    """Each planted change blocks, all steps are counted, and the headline says what it is."""
    outcome = judged(changed(plant))
    assert outcome.verdict == "regressed"
    assert codes(outcome.reasons) == ["outside-envelope"]
    first, *lines = outcome.reasons[0].text.splitlines()
    assert first.startswith("head: 107 of 107 steps (100 of them: ")
    assert first.endswith(f": {headline}")
    assert line in lines
    assert len(lines) < 10, "a change in every layer is one line"


def test_rare_steps_count_too() -> None:
    """A change that only every sixteenth step shows blocks, and is compared with the steps that it came from."""
    outcome = judged(trial(USUAL, pageable_copy(RARE)))
    assert outcome.verdict == "regressed"
    assert outcome.reasons[0].text == (
        "head: 7 of 107 steps (h2d-pageable copies 1, not 0): a pageable host copy (h2d) in each step\n"
        "+ copy h2d-pageable: 0 -> 1"
    )


def test_a_base_outside_makes_the_envelope_stale() -> None:
    """The head is not blamed for an envelope that does not fit the base, whether or not it leaves it too."""
    for head in (trial(), changed(eager)):
        outcome = judged(head, changed(eager))
        assert outcome.verdict == "not-comparable"
        assert codes(outcome.reasons) == ["envelope-stale"]
        assert outcome.reasons[0].text == "base: 107 of 107 steps (100 of them: outside graphs 356, not 4)"


def test_no_trial_is_no_pass() -> None:
    """A side without traced trials is not measured."""
    outcome = judge_envelope(learn([trial()]), {"base": [trial()], "head": []})
    assert (outcome.verdict, codes(outcome.reasons)) == ("not-measured", ["evidence-missing"])


def test_other_kernels_inside_the_envelope_are_a_caution() -> None:
    """Where patterns are counted loosely, steps that differ all the same are shown."""
    block = declared(patterns=[{"launches": 356}, {"launches": 357}])
    outcome = judge_envelope(block, {"base": [trial()], "head": [changed(other_attention)]})
    assert outcome.verdict == "pass"
    assert codes(outcome.cautions) == ["other-kernels"]
    assert outcome.cautions[0].text.startswith("attention runs other kernels: FlashAttnFwdSm90")


def test_names_alone_are_an_envelope() -> None:
    """Without patterns the names declared are checked all the same, in steps of any number of kernels."""
    names = learn([trial()]).per_decode_step.names
    block = declared(names=names)

    assert judge_envelope(block, {"base": [trial()], "head": [changed(extra_kernel)]}).verdict == "pass"
    outcome = judge_envelope(block, {"base": [trial()], "head": [changed(other_attention)]})
    assert (outcome.verdict, codes(outcome.reasons)) == ("regressed", ["outside-envelope"])


@pytest.mark.parametrize(
    ("pattern", "mismatch"),
    [
        ({"launches": 356}, ()),
        ({"launches": 355}, ("kernels 356, not 355",)),
        ({"launches": 356, "roles": {"attention": 64}}, ()),
        ({"launches": 356, "roles": {"attention": 65, "moe": 0}}, ("attention 64, not 65",)),
        ({"launches": 356, "outside_graphs": 0}, ("outside graphs 4, not 0",)),
        ({"launches": 356, "copies": {"h2d": 2, "d2h": 2}}, ()),
        ({"launches": 356, "copies": {"h2d": 2}}, ("d2h copies 2, not 0",)),
    ],
)
def test_a_pattern_checks_what_it_names(pattern: dict[str, object], mismatch: tuple[str, ...]) -> None:
    """Launches, roles named, kernels outside graphs and all copies are exact; what is not named is not checked."""
    outside, _ = check(declared(patterns=[pattern]), trial(USUAL))
    assert [one.mismatches for one in outside] == ([mismatch] if mismatch else [])


def test_shares_are_cautions() -> None:
    """A pattern too frequent, too few kernels from graphs and too much unlisted time do not block."""
    odd = USUAL.with_launches([*USUAL.launches[:-1], Launch("unlisted", "wholly_new", graph=False)])
    block = Expectation.model_validate(
        {
            "per_decode_step": {
                "patterns": [{"launches": 356}, {"launches": 357, "share": "<= 5%"}],
                "graph_coverage": ">= 99%",
            },
            "unlisted": {"time_share": "<= 0%"},
        }
    )
    outside, cautions = check(block, trial(odd, RARE))
    assert not outside
    assert [(note.code, note.text) for note in cautions] == [
        ("envelope-shares", "steps of 357 kernels: 6.54 % of 107 steps, declared <= 5%"),
        ("envelope-shares", "CUDA graphs launch 98.9 % of kernels, declared >= 99%"),
        ("envelope-shares", "kernels without a role take 0.262 % of kernel time, declared <= 0%"),
    ]


def test_learning_keeps_what_is_the_users() -> None:
    """How trials are traced and own roles stay; the shares observed get room; names that agree make one pattern."""
    own = Expectation.model_validate({"traced": {"iterations": 3}, "roles": {"mine": {"match": "x"}}})
    renamed = trial(USUAL.with_launches([replace(one, name=f"{one.name}_b") if one.role == "gemm" else one
                                         for one in USUAL.launches]), RARE)  # fmt: skip
    learnt = learn([trial(), renamed], own)
    assert (learnt.traced.iterations, list(learnt.roles)) == (3, ["mine"])
    assert [(one.launches, str(one.share or "")) for one in learnt.per_decode_step.patterns] == [
        (356, ""), (357, "<= 14%")
    ]  # fmt: skip
    assert learnt.per_decode_step.names == {"attention": ("FlashAttnFwdCombine", "FlashAttnFwdSm90")}
    assert str(learnt.per_decode_step.graph_coverage) == ">= 98%"
    assert str(learnt.unlisted and learnt.unlisted.time_share) == "<= 1%"


def test_two_builds_are_no_aa() -> None:
    """Trials that run other steps teach nothing; the error shows the diff from the earlier one to the later one."""
    with pytest.raises(NotComparableError) as caught:
        learn([trial(), trial(), changed(extra_kernel)])
    assert caught.value.text.splitlines() == [
        "trials 0 and 2 do not run the same steps, so this is not an A/A run: one more elementwise kernel a layer (32)",
        "    + elementwise vectorized_elementwise_kernel<4,CUDAFunctor_add<float>>: 1 a layer, 32 a step",
    ]


def test_a_step_too_rare_to_be_in_every_trial_is_learnt() -> None:
    """One odd step of 300 need not be in a trial of 100; missing in 1000 it is no chance."""
    odd = replace(pageable_copy(USUAL), steps=1)
    learnt = learn([trial(USUAL), trial(replace(USUAL, steps=299), odd)])
    assert [str(one.share or "") for one in learnt.per_decode_step.patterns] == ["", "<= 1%"]
    with pytest.raises(NotComparableError):
        learn([trial(replace(USUAL, steps=2000)), trial(replace(USUAL, steps=299), odd)])


def test_cells_of_a_matrix_share_a_block() -> None:
    """United, the blocks of two cells let each of them pass, and keep what both agree on."""
    one, other = trial(), changed(eager)
    block = union([learn([one]), learn([other])])
    for steps in (one, other):
        assert check(block, steps) == ([], [])
    assert len(block.per_decode_step.patterns) == 4
    assert block.per_decode_step.graph_coverage is None
    assert union([learn([one]), learn([one])]) == learn([one])


def test_the_capture_fits_what_it_teaches() -> None:
    """The envelope of the H200 capture: two patterns, 95 % from the graph, nothing unlisted."""
    steps = summarise(read_trace(CAPTURE))
    learnt = learn([steps])
    assert [(one.launches, one.outside_graphs, str(one.share or "")) for one in learnt.per_decode_step.patterns] == [
        (438, 19, ""), (439, 20, "<= 13%")
    ]  # fmt: skip
    assert str(learnt.per_decode_step.graph_coverage) == ">= 95%"
    assert check(learnt, steps) == ([], [])


RENAMED = "UPDATE StringIds SET value = 'void flashinfer::{}<1>(int)' WHERE value LIKE '%{}%'"
PLANTED: dict[str, tuple[tuple[str, ...], str]] = {
    "eager": (
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET graphNodeId = NULL",),
        "no kernel comes from a CUDA graph any more: eager mode, or a batch size that is not captured",
    ),
    "attention": (
        (RENAMED.format("BatchDecodeKernel", "FlashAttnFwdSm90"), RENAMED.format("MergeKernel", "FlashAttnFwdCombine")),
        "attention runs other kernels: FlashAttnFwdSm90, FlashAttnFwdCombine -> BatchDecodeKernel, MergeKernel",
    ),
    "extra": (
        (
            f"INSERT INTO StringIds VALUES (99999, 'void {ADD}(int)')",  # noqa: S608 (our own words)
            (
                "CREATE TEMP TABLE extra AS SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE demangledName IN "
                "(SELECT id FROM StringIds WHERE value LIKE '%FlashAttnFwdCombine%')"
            ),
            'UPDATE extra SET start = "end", "end" = "end" + 1, demangledName = 99999, shortName = 99999',
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT * FROM extra",
        ),
        "one more elementwise kernel a layer (32)",
    ),
}


@pytest.mark.parametrize("plant", PLANTED)
def test_a_plant_in_the_capture_leaves_its_envelope(plant: str, tmp_path: Path) -> None:
    """The rows of the H200 capture, changed as such a head would have written them, are caught in every step."""
    edits, headline = PLANTED[plant]
    file = tmp_path / "head.sqlite"
    file.write_bytes(gzip.decompress(CAPTURE.read_bytes()))
    connection = sqlite3.connect(file)
    for edit in edits:
        connection.execute(edit)
    connection.commit()
    connection.close()
    base, head = summarise(read_trace(CAPTURE)), summarise(read_trace(file))

    outcome = judge_envelope(learn([base]), {"base": [base], "head": [head]})

    assert outcome.verdict == "regressed"
    first = outcome.reasons[0].text.partition("\n")[0]
    assert first.startswith("head: 127 of 127 steps (119 of them: ")
    assert first.endswith(f": {headline}")


def test_a_kernel_in_every_fourth_layer_is_counted_a_step() -> None:
    """What does not divide by the layers is said a step."""
    found = difference(trial(), changed(lambda kind: extra_kernel(kind, 4)))
    assert found.headline == "8 more elementwise kernels a step"
    assert found.layers == LAYERS


def test_fewer_and_more_of_a_known_kernel() -> None:
    """A kernel that both steps run shows its numbers; fused kernels show as fewer."""
    twice = USUAL.with_launches([*USUAL.launches, *[one for one in USUAL.launches if one.role == "norm"]])
    assert difference(trial(USUAL), trial(twice)).lines == [
        "+ norm fused_add_rms_norm_kernel: 2 a layer, 64 a step more (64 -> 128)"
    ]
    assert difference(trial(twice), trial(USUAL)).headline == "2 fewer norm kernels a layer (64)"
    without = USUAL.with_launches([one for one in USUAL.launches if one.role != "rope"])
    assert difference(trial(USUAL), trial(without)).lines == ["- rope rotary_embedding_kernel: 1 a layer, 32 a step"]


def test_kernels_at_another_place_are_no_change() -> None:
    """Places are guessed from the neighbours: where they are not found, the same kernels are the same step."""
    placeless = USUAL.with_launches([replace(one, place="") for one in USUAL.launches])
    found = difference(trial(USUAL), trial(placeless))
    assert not found
    assert found.headline == "both steps run the same kernels"


def test_other_template_arguments_are_shown_where_they_differ() -> None:
    """Two kernels of one name are told apart by what differs in their arguments."""
    name = "cutlass::device_kernel<flash::FlashAttnFwdSm90<cute::C<{}>>>"
    one, other = (trial(StepKind((Launch("attention", name.format(size)),))) for size in (128, 256))
    found = difference(one, other)
    assert found.headline == "attention runs FlashAttnFwdSm90 with other template arguments"
    assert found.lines == [
        (
            "~ attention FlashAttnFwdSm90 with other template arguments: "
            ":FlashAttnFwdSm90<cute::C<128>>> -> :FlashAttnFwdSm90<cute::C<256>>>: 1 a step"
        )
    ]


LAUNCHES = st.lists(
    st.builds(
        Launch,
        role=st.sampled_from(["gemm", "norm", "attention", "kv-write"]),
        name=st.sampled_from(["a", "b", "c"]),
        place=st.sampled_from(["", "qkv", "out"]),
        graph=st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@given(LAUNCHES, LAUNCHES)
def test_a_diff_accounts_for_every_launch(base: list[Launch], head: list[Launch]) -> None:
    """The changes add up to the difference in launches, of the whole step and of each role; both ways alike."""
    one, other = (trial(StepKind(tuple(launches))) for launches in (base, head))
    found, back = difference(one, other), difference(other, one)
    for role in ("gemm", "norm", "attention", "kv-write"):
        grown = sum(change.head_launches - change.base_launches for change in found.kernels if change.role == role)
        assert grown == sum(x.role == role for x in head) - sum(x.role == role for x in base)
    assert found.left_graph == back.joined_graph
    assert bool(found) == bool(back)
    assert found.headline
    assert len(found.lines) >= len(found.kernels)
    assert not difference(one, one)
