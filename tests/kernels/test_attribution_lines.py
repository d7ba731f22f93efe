"""Where a difference in decode steps comes from: the parts add up, and what replaced each other is one part."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from decode_steps import Kernel, decode
from hypothesis import given
from hypothesis import strategies as st

from perfgate.kernels.causes import attribution_section, attribution_sentence, of_the_step, why_in_words
from perfgate.trace.attribution import BETWEEN, COPIES, Attribution, Part, attribute
from perfgate.trace.decode_step import DecodeSteps, KernelKey, Pattern, summarise
from perfgate.trace.idle_gaps import GAPS
from perfgate.trace.nsys import read_nsys

FIXTURES = Path(__file__).parents[1] / "fixtures"

NORM, QUANT, GEMM = ("norm", "rms_norm", 3_000), ("quantize", "scaled_quant", 2_000), ("gemm", "nvjet", 40_000)
ROPE, ADD = ("rope", "rotary", 1_500), ("elementwise", "add", 1_400)
LAST = ("norm", "final_norm", 2_500)
LAYERS = 32


def model(*layer: Kernel) -> list[Kernel]:
    """A step of equal layers and what follows them."""
    return [*layer * LAYERS, LAST]


def split(base: list[Kernel], head: list[Kernel], measured_s: float | None = None) -> Attribution:
    """One pair of traces that run these kernels."""
    found = attribute([(decode(base), decode(head))], measured_s)
    assert found is not None
    return found


def changed(found: Attribution) -> dict[str, int]:
    """Nanoseconds a step by part, for those that changed."""
    ns = {part.name: round(part.difference_s * 1e9) for part in found.parts}
    return {name: difference for name, difference in ns.items() if difference}


COLUMNS = st.integers(0, 10_000_000)


@st.composite
def any_decode(draw: st.DrawFn) -> DecodeSteps:
    """Decode steps whose columns are whatever a trace may hold: overlap, copies outside kernels, unknown lengths."""
    count = draw(st.integers(1, 12))

    def column() -> tuple[int, ...]:
        return tuple(draw(st.lists(COLUMNS, min_size=count, max_size=count)))

    roles = draw(st.lists(st.sampled_from(["gemm", "norm", "rope", "quantize"]), min_size=1, unique=True))
    kernels = tuple(draw(st.lists(st.integers(0, len(roles) - 1), min_size=1, max_size=6)))
    names = draw(st.lists(st.sampled_from("ab"), min_size=len(roles), max_size=len(roles)))
    return DecodeSteps(
        source="any",
        keys=tuple(KernelKey(role=role, name=name) for role, name in zip(roles, names, strict=True)),
        patterns=(Pattern(steps=count, kernels=kernels),),
        step_ns=tuple(draw(st.lists(st.none() | COLUMNS, min_size=count, max_size=count))),
        span_ns=column(),
        busy_ns=column(),
        kernel_ns=column(),
        slack_ns=tuple(draw(st.lists(st.none() | st.integers(-(10**7), 10**7), min_size=count, max_size=count))),
        work_ns=column(),
        call_ns=column(),
        gap_ns={gap: column() for gap in GAPS},
        role_ns={role: column() for role in roles},
        key_launches=tuple(0 for _ in roles),
        key_ns=tuple(0 for _ in roles),
    )


@given(pairs=st.lists(st.tuples(any_decode(), any_decode()), max_size=4), measured_s=st.none() | st.floats(-1, 1))
def test_parts_add_up(pairs: list[tuple[DecodeSteps, DecodeSteps]], measured_s: float | None) -> None:
    """The parts add up to both steps and to their difference, and with the residual to what was measured."""
    found = attribute(pairs, measured_s)

    whole = [pair for pair in pairs if all(any(ns is not None for ns in side.step_ns) for side in pair)]
    assert (found is None) == (not whole)
    if found is None:
        return
    assert found.pairs == len(whole)
    assert sum(part.base_s for part in found.parts) == pytest.approx(found.base_s, abs=1e-12)
    assert sum(part.head_s for part in found.parts) == pytest.approx(found.head_s, abs=1e-12)
    assert sum(part.difference_s for part in found.parts) == pytest.approx(found.difference_s, abs=1e-12)
    if measured_s is not None:
        assert found.residual_s == pytest.approx(measured_s - found.difference_s, abs=1e-12)
    assert len({part.name for part in found.parts}) == len(found.parts)
    assert all(part.base_s >= 0 and part.head_s >= 0 for part in found.parts if part.kind == "idle")


def test_an_extra_kernel_a_layer() -> None:
    """It is its role's part, with how often it is launched; the traced difference may miss a little of the measured."""
    found = split(model(NORM, GEMM), model(NORM, ADD, GEMM), measured_s=47e-6)

    assert changed(found) == {"elementwise": 32 * 1_400}
    first = found.parts[0]
    assert (first.name, first.base_launches, first.head_launches) == ("elementwise", 0, 32)
    assert found.difference_s == pytest.approx(44.8e-6)
    assert found.residual_s == pytest.approx(2.2e-6)


def test_the_same_step_has_no_difference() -> None:
    """An unchanged step is split in the same parts, all of them zero, and no role is taken for another."""
    found = split(model(NORM, QUANT, GEMM), model(NORM, QUANT, GEMM))

    assert changed(found) == {}
    assert [part.name for part in found.parts if part.kind == "kernels"] == ["norm", "quantize", "gemm"]


FUSED = ("norm", "rms_norm_quant", 3_600)


@pytest.mark.parametrize(
    ("base", "head", "parts"),
    [
        # a rename within a role
        ([NORM, GEMM], [("norm", "rms_norm_v2", 3_000), GEMM], {}),
        # a rename that another rule matches
        ([ROPE, GEMM], [("elementwise", "triton_poi_rope", 1_500), GEMM], {}),
        # a fusion into the kernel before, of the same role
        ([NORM, QUANT, GEMM], [FUSED, GEMM], {"fused: norm+quantize": 32 * (3_600 - 5_000)}),
        # a fusion that gives the kernel a third role
        ([NORM, QUANT, GEMM], [("communication", "allreduce_norm_quant", 5_000), GEMM], {}),
        # a fusion into the kernel after
        ([ADD, NORM, GEMM], [("norm", "fused_add_rms_norm", 3_500), GEMM], {"fused: elementwise+norm": -32 * 900}),
        # a split, within a role and over two
        ([GEMM, LAST], [("gemm", "nvjet_splitk", 30_000), ("gemm", "nvjet_part", 10_000), LAST], {}),
        ([FUSED, GEMM], [NORM, QUANT, GEMM], {"split: norm+quantize": 32 * (5_000 - 3_600)}),
        # a kernel that only goes, and one that only comes elsewhere: neither replaced the other
        ([NORM, QUANT, GEMM], [NORM, GEMM, ADD], {"quantize": -32 * 2_000, "elementwise": 32 * 1_400}),
        # a fusion beside a kernel that is new
        ([ROPE, NORM, QUANT, GEMM], [ROPE, ADD, FUSED, GEMM],
         {"elementwise": 32 * 1_400, "fused: norm+quantize": 32 * (3_600 - 5_000)}),
        # a fusion beside a gemm that has another name: the gemm stays itself
        ([ROPE, NORM, QUANT, GEMM], [ROPE, FUSED, ("gemm", "nvjet_fp8", 20_000)],
         {"gemm": -32 * 20_000, "fused: norm+quantize": 32 * (3_600 - 5_000)}),
    ],
)  # fmt: skip
def test_what_replaced_what_nets_out(base: list[Kernel], head: list[Kernel], parts: dict[str, int]) -> None:
    """A rename, a fusion and a split leave what they gained or cost, in one part, and nothing else."""
    assert changed(split(model(*base), model(*head))) == parts


def test_a_renamed_role_says_so() -> None:
    """Where one kernel of another role stands in a kernel's place, the part names both and the launches are equal."""
    found = split(model(ROPE, GEMM), model(("elementwise", "triton_poi_rope", 1_700), GEMM))

    part = next(part for part in found.parts if "+" in part.name)
    assert part.name == "renamed: elementwise+rope"
    assert (part.base_launches, part.head_launches) == (32, 32)
    assert part.difference_s == pytest.approx(32 * 200e-9)


def test_another_step_altogether_links_nothing() -> None:
    """Where hardly a kernel is the same, nothing says what replaced what, and every role stands for itself."""
    other = [(role, f"{name}_other", ns) for role, name, ns in model(NORM, QUANT, GEMM)]

    found = split(model(NORM, QUANT, GEMM), other[::-1])

    assert not [part.name for part in found.parts if "+" in part.name]


def part_of(found: Attribution, name: str) -> Part:
    """The part of that name."""
    (part,) = (part for part in found.parts if part.name == name)
    return part


@pytest.mark.parametrize(
    ("slack_ns", "host_ns"),
    [((4_000_000, 3_950_000), 0), ((4_000_000, -800_000), 850_000), ((-10_000, -860_000), 850_000)],
)
def test_the_host_answers_for_idle_time_once_its_slack_is_used_up(slack_ns: tuple[int, int], host_ns: int) -> None:
    """Idle time outside graphs is the host's where the device waited for it; while it is ahead, none is."""
    gaps = {"graph": 100_000, "launch": 20_000, "nothing": 5_000}
    base = decode(model(GEMM), slack_ns=slack_ns[0], between=5_000, **gaps)
    head = decode(model(GEMM), slack_ns=slack_ns[1], between=805_000, **gaps | {"graph": 101_000, "launch": 70_000})

    found = attribute([(base, head)])

    assert found is not None
    assert found.host_s == pytest.approx(host_ns * 1e-9)
    assert (found.base_slack_s, found.head_slack_s) == pytest.approx(tuple(ns * 1e-9 for ns in slack_ns))
    assert part_of(found, BETWEEN).difference_s == pytest.approx(800e-6)
    assert part_of(found, "idle (launch)").difference_s == pytest.approx(50e-6)
    assert part_of(found, "idle (graph)").difference_s == pytest.approx(1e-6)


@pytest.mark.parametrize(
    ("measured_us", "launch_us", "misled"),
    [
        (45, (0, 0), False),  # the trace tells it
        (45, (30, 0), True),  # the profiler made the base's host late by two thirds of it
        (45, (10, 0), False),  # by less than half
        (80, (300, 0), True),  # own work tells more than half
        (100, (300, 0), False),  # or less
        (20, (300, 0), False),  # or more than twice as much
        (-45, (30, 0), False),  # or the opposite
        (0, (300, 0), False),  # untraced steps do not differ
        (345, (0, 0), False),  # what is missing is nowhere in the trace
        (345, (0, 300), False),  # the head's host is late in both
        (100, (0, 300), False),  # and in the trace by much more
    ],
)
def test_a_host_that_the_profiler_makes_late_misleads(
    measured_us: int, launch_us: tuple[int, int], *, misled: bool
) -> None:
    """Where traced steps contradict untraced ones, and the device's own work does not, that is what changed."""
    base, head = (
        decode(model(*kernels), launch=1000 * late)
        for kernels, late in zip(((NORM, GEMM), (NORM, ADD, GEMM)), launch_us, strict=True)
    )
    found = attribute([(base, head)], measured_us * 1e-6)
    assert found is not None
    assert found.device_s == pytest.approx(44.8e-6)
    assert found.waits_s == pytest.approx(tuple(late * 1e-6 for late in launch_us))
    assert found.misled == misled
    assert found.told_s == pytest.approx(measured_us * 1e-6 if misled else found.difference_s)
    shares = {row[-1] for row in attribution_section(found).rows[1:] if row[0] == "traced step"}
    assert shares == ({"-"} if misled else {"100 %"})
    told = [attribution_sentence(found), of_the_step(found), why_in_words(found)]
    assert [" untraced step" in one or "Why: a decode step" in one for one in told] == [misled] * 3
    assert ["idle outside graphs for" in one for one in told] == [misled] * 3


def test_a_late_host_is_told_beside_what_the_device_does() -> None:
    """Where the traces mislead and the head's host is late in them, its share is told as well."""
    base, head = decode(model(NORM, GEMM), graph=2_000), decode(model(NORM, ADD, GEMM), slack_ns=-1, launch=100_000)
    found = attribute([(base, head)], 80e-6)
    assert found is not None
    assert found.misled
    told = (
        "+80.0 us an untraced step, +42.8 us of it on the device: elementwise +44.8 us (32 launches more)"
        "; the device of head waited for the host, whose share is +100.0 us"
    )
    assert attribution_sentence(found, grown=True) == f"{told}."
    idle = "the device is idle outside graphs for 0 us on base and 100.0 us on head"
    assert attribution_sentence(found) == f"{told}; traced, {idle}, so that a step differs by +142.8 us."
    assert "waited for the host, whose share is +100.0 us" in why_in_words(found)


@pytest.mark.parametrize(
    ("slack_ns", "launch_us", "graph_us", "told"),
    [
        ((4_000, -1), (0, 100), (0, 0), True),  # only the head's was late
        ((-1, -1), (0, 100), (0, 0), True),  # the head's by more
        ((-1, 4_000), (100, 0), (0, 0), False),  # the base's
        ((-1, 4_000), (0, 100), (0, 0), False),  # the base's, and the head's device waited for something else
        ((-1, -1), (100, 0), (0, 0), False),  # the head's by less
        ((-1, -1), (50, 50), (0, 100), False),  # by as much, and the device waited within graphs
        ((-1, -1), (50, 51), (0, 0), False),  # by a part of the step that does not matter
    ],
)
def test_a_late_host_is_a_cause_where_it_made_steps_longer(
    slack_ns: tuple[int, int], launch_us: tuple[int, int], graph_us: tuple[int, int], *, told: bool
) -> None:
    """What the base waited for, or both sides did, did not make the head slower."""
    base, head = (
        decode(model(*kernels), slack_ns=slack, launch=1000 * launch, graph=1000 * graph)
        for kernels, slack, launch, graph in zip(
            ((NORM, GEMM), (NORM, ADD, GEMM)), slack_ns, launch_us, graph_us, strict=True
        )
    )
    found = attribute([(base, head)])
    assert found is not None
    assert ("waited for the host" in attribution_sentence(found, grown=True)) == told
    differs_by_host = min(slack_ns) <= 0 and launch_us[0] != launch_us[1]
    assert ("waited for the host" in attribution_sentence(found)) == differs_by_host
    assert ("waiting for the host" in why_in_words(found)) == told
    grown = {"idle": "the device is idle", "idle (graph)": "gaps within CUDA graphs"}
    differs = {"idle": launch_us[1] - launch_us[0], "idle (graph)": graph_us[1] - graph_us[0]}
    if found.told_s > 0:
        assert {name: grown[name] in why_in_words(found) for name in grown} == {n: us > 10 for n, us in differs.items()}
    for name, us in differs.items():
        assert (f"{name} {us:+.1f} us" in attribution_sentence(found)) == (abs(us) > 10)


def test_a_late_host_that_cost_nothing_is_not_told_where_traces_mislead() -> None:
    """The head's device waited for its host as long as the base's."""
    base, head = decode(model(NORM, GEMM), launch=9_000), decode(model(NORM, ADD, GEMM), slack_ns=-1, launch=9_000)
    found = attribute([(base, head)], 80e-6)
    assert found is not None
    late = found.model_copy(update={"residual_s": 60e-6})
    assert (late.misled, late.head_late, late.host_s) == (True, True, 0)
    assert "waited for the host" not in attribution_sentence(late) + attribution_sentence(late, grown=True)
    assert "waited for the host" not in why_in_words(late)


def test_a_shorter_step_is_no_reason() -> None:
    """Where untraced steps got shorter no sentence says why they got longer, whatever the traces show."""
    base, head = decode(model(NORM, ADD, GEMM)), decode(model(NORM, GEMM), launch=400_000)
    found = attribute([(base, head)], -45e-6)
    assert found is not None
    assert found.misled
    assert found.difference_s > 0
    assert why_in_words(found).startswith("The decode step does not show why: -45.0 us an untraced step, -44.8 us of")


def test_copies_are_a_part() -> None:
    """What keeps the device busy without a kernel is no role's and no idle time."""
    found = attribute([(decode(model(GEMM), copies=1_000), decode(model(GEMM), copies=9_000))])

    assert found is not None
    assert changed(found) == {COPIES: 8_000}
    assert part_of(found, COPIES).kind == "busy"


def test_disturbed_steps_do_not_enter() -> None:
    """A step ten times as long, like the last one of an iteration, moves no part."""
    quiet = decode(model(GEMM), steps=9)
    loud = quiet.model_copy(update={"step_ns": (*quiet.step_ns[:3], 10 * quiet.span_ns[0], *quiet.step_ns[4:])})

    assert attribute([(quiet, loud)]) == attribute([(quiet, quiet)])


def test_a_real_capture(tmp_path: Path) -> None:
    """Two halves of an H200's decode steps differ by a few microseconds of 5.3 ms, and the host has 2 ms to spare."""
    file = tmp_path / "capture.sqlite"
    file.write_bytes(gzip.decompress((FIXTURES / "h200-llama-8b-decode.sqlite.gz").read_bytes()))
    steps = summarise(read_nsys(file))
    one, other = (every_other(steps, first) for first in (0, 1))

    found = attribute([(one, other)], measured_s=0.0)

    assert found is not None
    assert found.base_s == pytest.approx(5.284e-3, rel=1e-3)
    assert abs(found.difference_s) < 5e-6
    assert sum(part.difference_s for part in found.parts) == pytest.approx(found.difference_s, abs=1e-12)
    assert found.head_slack_s == pytest.approx(2.01e-3, rel=0.01)
    assert found.host_s == 0.0
    launches = {part.name: part.base_launches for part in found.parts if part.kind == "kernels"}
    assert sum(count or 0 for count in launches.values()) == 438
    assert launches["gemm"] == 129


def every_other(steps: DecodeSteps, first: int) -> DecodeSteps:
    """Half of the steps, as if they were a trial of their own."""
    columns = ("step_ns", "span_ns", "busy_ns", "kernel_ns", "slack_ns", "call_ns")
    half: dict[str, object] = {name: getattr(steps, name)[first::2] for name in columns}
    half |= {name: {k: v[first::2] for k, v in getattr(steps, name).items()} for name in ("gap_ns", "role_ns")}
    return steps.model_copy(update=half)


def test_spread_of_pairs() -> None:
    """A part carries the standard deviation of the pairs' differences; one pair has none."""
    base = decode(model(GEMM))
    heads = [decode([(role, name, ns + extra) for role, name, ns in model(GEMM)]) for extra in (0, 10, 20)]

    found = attribute([(base, head) for head in heads])

    assert found is not None
    gemm = part_of(found, "gemm")
    assert (gemm.difference_s, gemm.pair_sd_s) == pytest.approx((320e-9, 320e-9))
    assert all(part.pair_sd_s is None for part in split(model(GEMM), model(GEMM)).parts)
