"""What a step launches, judged by its price: kernels, launch shapes, pageable copies and waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from decode_steps import LAYERS, RARE, USUAL, StepKind, eager, extra_kernel, other_attention, trial
from hand_made import codes
from nsys_builder import ExportBuilder
from rank_traces import CUSTOM, REDUCE, STEP_NS, Work, add_rank, engine

from perfgate.calls.call_checks import judge_launches
from perfgate.judge.outcome import Finding
from perfgate.trace.decode_step import DecodeSteps
from perfgate.trace.rank_steps import summarise_ranks

TEN_US = 10e-6
"""What the tests ignore; each kernel of the made-up step takes 1 us."""


def held(base: DecodeSteps, head: DecodeSteps, ignorable_s: float = TEN_US) -> Finding:
    """What is found where one trial a side was traced."""
    return judge_launches(ignorable_s, {"base": [[base]], "head": [[head]]})


def shaped(lm_head: str, ns: int = 1000, steps: DecodeSteps | None = None) -> DecodeSteps:
    """Steps whose kernels have one shape, and whose last gemm has another one and takes another time."""
    own = steps or trial(USUAL)
    last = next(n for n, key in enumerate(own.keys) if key.place == "lm-head")
    return own.model_copy(
        update={
            "key_shapes": tuple(
                {lm_head if n == last else "132x1x1/256x1x1": launches} for n, launches in enumerate(own.key_launches)
            ),
            "key_ns": tuple(
                ns * launches if n == last else spent
                for n, (launches, spent) in enumerate(zip(own.key_launches, own.key_ns, strict=True))
            ),
        }
    )


def test_more_kernels_are_blocked_at_their_price() -> None:
    """A kernel more in each layer costs what the head's trace says that it takes."""
    found = held(trial(USUAL), trial(extra_kernel(USUAL)))

    (reason,) = found.reasons
    assert (found.verdict, reason.code) == ("regressed", "work-added")
    assert reason.text.startswith(f"+{LAYERS}.00 us a step by the traced time of its kernels: one more ")
    assert "(more than the 10.00 us that are ignorable)" in reason.text


def test_what_costs_less_than_is_ignorable_is_told() -> None:
    """The same change within the margin is a caution, with the diff."""
    found = held(trial(USUAL), trial(extra_kernel(USUAL)), ignorable_s=50e-6)

    assert (found.verdict, codes(found.cautions)) == ("pass", ["work-changed"])
    assert "(within the 50.00 us that are ignorable)" in found.cautions[0].text


@pytest.mark.parametrize(("ns", "verdict"), [(30_000, "regressed"), (2_000, "pass")])
def test_other_launch_shapes_are_seen(ns: int, verdict: str) -> None:
    """The same kernels on more rows show in nothing but their grids; the price is what these launches take more."""
    found = held(shaped("250x1x1/384x1x1"), shaped("256x1x1/384x1x1", ns))

    (note,) = (*found.reasons, *found.cautions)
    assert found.verdict == verdict
    assert (
        f"+{ns / 1000 - 1:.2f} us a step by the traced time of its kernels: other launch shapes of gemm lm-head"
        in note.text
    )
    assert "~ gemm lm-head nvjet_sm90_256x8: 250x1x1/384x1x1 -> 256x1x1/384x1x1" in note.text


def test_a_grid_that_follows_the_context_is_no_change() -> None:
    """Shapes that do not repeat in every step differ only where the builds have none in common."""
    steps, turned = trial(USUAL), list(shaped("1x1x1/32x1x1").key_shapes)
    last = next(n for n, key in enumerate(steps.keys) if key.place == "lm-head")

    def with_last(shapes: dict[str, int]) -> DecodeSteps:
        return steps.model_copy(update={"key_shapes": tuple(shapes if n == last else s for n, s in enumerate(turned))})

    base, overlapping, other = (
        with_last({"8x1x1": 97, "9x1x1": 3}),
        with_last({"8x1x1": 90, "9x1x1": 10}),
        {"7x1x1": 100},
    )
    assert held(base, overlapping) == Finding("pass")
    assert codes(held(base, with_last(other)).cautions) == ["work-changed"]


def test_a_pageable_copy_blocks_whatever_it_costs() -> None:
    """It makes the host wait, which no kernel's time shows."""
    found = held(trial(USUAL), trial(replace(USUAL, copies={**USUAL.copies, "d2h-pageable": 1})))

    assert (found.verdict, codes(found.reasons)) == ("regressed", ["work-added"])
    assert "a pageable host copy (d2h) in each step (and pageable copies make the host wait)" in found.reasons[0].text


@pytest.mark.parametrize(("waits", "verdict"), [(200, "regressed"), (150, "pass")])
def test_a_wait_in_each_step_blocks(waits: int, verdict: str) -> None:
    """How often a step waits may vary; one more in each of them does not come by chance."""
    base, head = (trial(USUAL).model_copy(update={"waits": count}) for count in (100, waits))

    found = held(base, head)

    assert found.verdict == verdict
    assert [reason.text.partition(": ")[2] for reason in found.reasons] == [
        "the host waits for the device 1 times more in a step (and a wait is in each step, which no price says)"
    ] * (verdict == "regressed")


def test_kernels_that_leave_the_graph_are_told() -> None:
    """They cost the host, which its calls say."""
    found = held(trial(USUAL), trial(eager(USUAL)))

    assert (found.verdict, codes(found.cautions)) == ("pass", ["work-changed"])
    assert "no kernel comes from a CUDA graph any more" in found.cautions[0].text


def test_without_a_traced_side_nothing_is_judged() -> None:
    """Steps of one side alone have nothing to be held against."""
    alone = judge_launches(TEN_US, {"head": [[trial(USUAL)]]})

    assert (alone.verdict, codes(alone.reasons)) == ("not-comparable", ["no-profile"])
    assert judge_launches(TEN_US, {"base": [[trial(USUAL)]], "head": []}) == Finding()


def some(kind: StepKind, other: StepKind, share: float) -> DecodeSteps:
    """A thousand steps, of which a share is of another kind."""
    return trial(replace(kind, steps=round(1000 * (1 - share))), replace(other, steps=round(1000 * share)))


def test_what_some_steps_launch_is_priced_by_their_share() -> None:
    """The most frequent step is the base's own; two fifths of the head's run a kernel more in each layer."""
    found = held(trial(USUAL), some(USUAL, extra_kernel(USUAL), 0.4))

    (reason,) = found.reasons
    assert reason.text.startswith(f"+{0.4 * LAYERS:.2f} us a step")
    assert "some steps launch more or less" in reason.text
    assert "launches a step (+12.80 us)" in reason.text


@pytest.mark.parametrize(
    ("base", "head", "verdict"), [(0.0, 0.4, "regressed"), (0.51, 0.49, "pass"), (0.49, 0.51, "pass")]
)
def test_pageable_copies_of_some_steps(base: float, head: float, verdict: str) -> None:
    """New ones block; how often a step copies may vary."""
    copying = replace(USUAL, copies={**USUAL.copies, "d2h-pageable": 1})

    before, after = (some(USUAL, copying, share) if share else trial(USUAL) for share in (base, head))

    found = held(before, after)

    assert found.verdict == verdict


def slower(factor: float, kind: StepKind = USUAL) -> DecodeSteps:
    """Steps whose every kernel takes so many times as long."""
    steps = trial(kind)
    return steps.model_copy(update={"key_ns": tuple(round(factor * ns) for ns in steps.key_ns)})


def called(steps: DecodeSteps, **roles: str) -> DecodeSteps:
    """The same with other roles of kernels: by role, or by name."""
    own = {key: roles.get(key.name.replace("nvjet_", ""), roles.get(key.role, key.role)) for key in steps.keys}
    return steps.model_copy(update={"keys": tuple(key.model_copy(update={"role": own[key]}) for key in steps.keys)})


TWO_ROLES = trial(USUAL).model_copy(update={"keys": tuple(
    key.model_copy(update={"role": "router", "name": "nvjet_sm90_256x8"}) if key.name == "nvjet_sm90_64x8" else key
    for key in trial(USUAL).keys
)})  # fmt: skip
WAITING = trial(USUAL).model_copy(update={"waits": 100})
OFTEN = trial(USUAL, replace(RARE, steps=14))
ALIKE = {
    "steps of one build, however their times differ": (trial(USUAL), slower(2)),
    "a rare step, where the KV cache grows, in 7 steps of 100 or in 14": (trial(), OFTEN),
    "the same, the other way round": (OFTEN, trial()),
    "a role that a later version knows": (trial(USUAL), called(trial(USUAL), activation="moe")),
    "waits that records of before did not keep": (trial(USUAL), WAITING),
    "waits that the later record did not keep": (WAITING, trial(USUAL)),
    "a name with two roles, by a scenario's own rule": (TWO_ROLES, TWO_ROLES),
}


@pytest.mark.parametrize(("base", "head"), ALIKE.values(), ids=ALIKE)
def test_what_is_alike_passes_without_a_word(base: DecodeSteps, head: DecodeSteps) -> None:
    """Nothing is told where nothing differs but by chance, by the card or by what was not kept."""
    assert held(base, head) == Finding("pass")


def of_two_ranks(more: Sequence[Sequence[Work]] = ((), ()), waiting: Sequence[int] = ()) -> list[DecodeSteps]:
    """Eight steps of each of two ranks; each may have more kernels, and the hosts of some wait for the device."""
    builder = ExportBuilder()
    for rank, own in enumerate(more):
        add_rank(builder, rank, {step: [("nvjet_sm90_64x8", 1000, 20_000), *own] for step in range(8)})
        for step in range(8) if rank in waiting else ():
            builder.call("cudaStreamSynchronize_v3020", step * STEP_NS + 50, step * STEP_NS + 60, pid=100 + rank)
    _, ranks = summarise_ranks([builder.read()], 2)
    return [rank.decode for rank in ranks]


def on_ranks(head: Sequence[DecodeSteps]) -> Finding:
    """What is found of an engine of two ranks."""
    return judge_launches(TEN_US, {"base": [of_two_ranks()], "head": [head]})


def test_a_wait_on_one_rank_of_two_is_one_in_each_step() -> None:
    """All ranks wait for the one whose host does: it is no half of a wait."""
    found = on_ranks(of_two_ranks(waiting=[1]))

    assert (found.verdict, codes(found.reasons)) == ("regressed", ["work-added"])
    assert "and a wait is in each step, which no price says; rank 1 of 2)" in found.reasons[0].text


@pytest.mark.parametrize("ranks", [(0,), (1,), (0, 1)])
def test_a_kernel_more_costs_what_it_takes_on_one_rank(ranks: tuple[int, ...]) -> None:
    """Whether one rank runs it or each, a step is longer by it once."""
    added = ("void add_kernel<float>(float*)", 30_000, 12_000)

    found = on_ranks(of_two_ranks([[added] if rank in ranks else [] for rank in range(2)]))

    (reason,) = found.reasons
    assert reason.text.startswith("+12.00 us a step by the traced time of its kernels: one more ")
    assert reason.text.partition("\n")[0].endswith(f"; rank {ranks[0]} of 2)")


def skewed(slow: int, reduce: str = CUSTOM, skew_ns: int = 12_000, transfer_ns: int = 2000) -> list[DecodeSteps]:
    """An engine of two ranks, of which the other one waits for the slow one in each of four collectives a step."""
    _, (first, second) = engine(reduce, transfer_ns, skew_ns)
    return [second.decode, first.decode] if slow == 0 else [first.decode, second.decode]


def with_gemms(steps: DecodeSteps, shape: str) -> DecodeSteps:
    """The steps with a shape of their gemms."""
    roles = zip(steps.keys, steps.key_launches, strict=True)
    shapes = tuple({shape if key.role == "gemm" else "1x1x1": launches} for key, launches in roles)
    return steps.model_copy(update={"key_shapes": shapes})


MORE = replace(USUAL, launches=(*USUAL.launches, USUAL.launches[-2]))
PRICED = {
    "another backend whose kernels take as long": ([[trial(USUAL)]], [[trial(other_attention(USUAL))]], "pass", 0.0),
    "the same on a slower card": ([[trial(USUAL)]], [[slower(1.03, other_attention(USUAL))]], "pass", 0.0),
    "every kernel twice as long, and another backend": (
        [[trial(USUAL)]], [[slower(2, other_attention(USUAL))]], "regressed", None),
    "fewer kernels": ([[trial(extra_kernel(USUAL))]], [[trial(USUAL)]], "pass", -float(LAYERS)),
    "a step of one in a hundred that becomes usual": (
        [[some(USUAL, extra_kernel(USUAL), 0.01)]], [[trial(extra_kernel(USUAL))]], "regressed", 0.99 * LAYERS),
    "a kernel that one step in sixteen runs and the base never": (
        [[some(USUAL, USUAL, 0.0625)]], [[some(USUAL, extra_kernel(USUAL), 0.0625)]], "pass", 0.062 * LAYERS),
    "other shapes beside one launch more": (
        [[shaped("250x1x1/384x1x1")]], [[shaped("256x1x1/384x1x1", 160_000, trial(MORE))]], "regressed", 319.0),
    "another all-reduce as long, and the other rank slow": ([skewed(1)], [skewed(0, REDUCE)], "pass", 0.0),
    "ranks that are slow in turns over trials": ([skewed(1)], [skewed(0, REDUCE), skewed(1, REDUCE)], "pass", 0.0),
    "a collective that takes longer on the rank that waits for nobody": (
        [skewed(1)], [skewed(0, REDUCE, transfer_ns=5000)], "regressed", 12.0),
    "ranks that wait less beside gemms of other shapes": (
        *([[with_gemms(rank, shape) for rank in skewed(1, skew_ns=ns)]] for shape, ns in (("8x1", 12_000), ("9x1", 0))),
        "pass", 0.0),
}  # fmt: skip


@pytest.mark.parametrize(("base", "head", "verdict", "cost_us"), PRICED.values(), ids=PRICED)
def test_what_differs_is_priced(
    base: Sequence[Sequence[DecodeSteps]], head: Sequence[Sequence[DecodeSteps]], verdict: str, cost_us: float | None
) -> None:
    """By the time of the kernels that differ alone, whatever cards, hours and waits of ranks were like."""
    found = judge_launches(TEN_US, {"base": base, "head": head})

    (note,) = (*found.reasons, *found.cautions)
    assert (found.verdict, note.code) == (verdict, "work-added" if verdict == "regressed" else "work-changed")
    assert cost_us is None or note.text.startswith(f"{cost_us:+.2f} us a step")


def test_engines_of_another_number_of_ranks_are_not_comparable() -> None:
    """A profile of one rank holds nothing of two."""
    found = judge_launches(TEN_US, {"base": [of_two_ranks()[:1]], "head": [of_two_ranks()]})

    assert (found.verdict, codes(found.reasons)) == ("not-comparable", ["no-profile"])
