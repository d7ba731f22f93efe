"""Gates on what traced trials show, beside those on timed ones: looks of their own, one family, one verdict."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from decode_steps import decode, traces
from hand_made import BASE, STEP_S, cell, codes, gate, judged, record, spread, trial, trials
from scipy import stats as scipy_stats

from perfgate.judge.cell_verdict import compare_sides
from perfgate.judge.evidence import RecordSide
from perfgate.judge.outcome import CellOutcome, GateOutcome
from perfgate.machine.telemetry import GpuTelemetry, Spread
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Failure, Kind, Trial
from perfgate.record.run_record import Record
from perfgate.scenario.expected_kernels import Expectation
from perfgate.scenario.plan import BETA, Cell, Plan
from perfgate.stats.sequential import EARLY_SCHEDULE, Schedule
from perfgate.trace.decode_step import STEADY, DecodeSteps

ATTENTION = "kernel_time_per_step[attention]"


def kernels(attention: float = 1.0, work_ns: int = 2_300_000) -> DecodeSteps:
    """Steps whose attention takes so many times 1 ms, and whose host has 4.8 ms to work or to spare."""
    ran = [("gemm", "nvjet", 4_000_000), ("attention", "flash", round(attention * 1e6))]
    return decode(ran, slack_ns=4_800_000 - work_ns, work_ns=work_ns)


def traced(slowdowns: Sequence[float], works_ns: Sequence[int] = ()) -> tuple[Trial, ...]:
    """Traced pairs whose attention differs by these log ratios, and whose heads' hosts work that long."""
    works = works_ns or [2_300_000] * len(slowdowns)
    heads = [kernels(math.exp(d), work) for d, work in zip(slowdowns, works, strict=True)]
    return traces([kernels()] * len(slowdowns), heads, first=100)


def traced_cell(metric: str = "kernel_time_per_step", looks: Sequence[int] = (4, 6, 8, 12)) -> Cell:
    """A cell with a timed gate and one on attention."""
    role = {} if metric.startswith("host_") else {"role": "attention"}
    gates = [gate(), gate(metric, "1%", "5%", **role)]
    block = Expectation.model_validate({"traced": {"looks": list(looks)}})
    return cell(gates=gates).model_copy(update={"kernels": block})


def outcome(taken: Sequence[Trial], measured: Cell | None = None) -> tuple[CellOutcome, GateOutcome, GateOutcome]:
    """The cell with its timed and its traced gate."""
    (found,) = judged(taken, measured or traced_cell()).cells
    timed_gate, traced_gate = found.gates
    return found, timed_gate, traced_gate


SAME = spread(0.0, 0.0002, 4)
"""Timed pairs of an unchanged build, which pass at the first look."""


@pytest.mark.parametrize(
    ("metric", "slowdowns", "verdict"),
    [
        ("kernel_time_per_step", spread(0.06, 0.002, 6), "regressed"),
        ("kernel_time_per_step", spread(0.06, 0.002, 4), "inconclusive"),  # no look blocks before six pairs
        ("kernel_time_per_step", spread(0.0, 0.002, 4), "pass"),
        ("kernel_time_per_step", spread(-0.05, 0.002, 4), "improved"),
        ("kernel_throughput", spread(0.06, 0.002, 6), "regressed"),
        ("kernel_throughput", spread(0.0, 0.002, 4), "pass"),
        ("kernel_throughput", spread(-0.05, 0.002, 4), "improved"),
    ],
)
def test_a_role_is_gated_like_a_time(metric: str, slowdowns: Sequence[float], verdict: str) -> None:
    """The rule is that of timed gates, over traced pairs; the gate is called by its role and knows its kind."""
    found, timed_gate, attention = outcome([*trials(SAME), *traced(slowdowns)], traced_cell(metric))

    assert (attention.metric, attention.kind, attention.verdict) == (f"{metric}[attention]", "traced", verdict)
    assert (timed_gate.kind, timed_gate.verdict) == ("timed", "pass")
    assert attention.pairs == found.traced_pairs == len(slowdowns)
    assert found.pairs == 4


@pytest.mark.parametrize(
    ("timed_pairs", "traced_pairs", "looks"),
    [
        (spread(0.0, 0.05, 6), [], (8, 4)),
        (spread(0.0, 0.05, 12), spread(0.0, 0.3, 4), (None, 6)),
        (SAME, [], (None, 4)),
        (SAME, spread(0.0, 0.3, 7), (None, 8)),
        (SAME, spread(0.0, 0.3, 12), (None, None)),
        (SAME, spread(0.0, 0.002, 4), (None, None)),
        (spread(0.0, 0.05, 6), spread(0.0, 0.002, 4), (8, None)),
        (spread(0.0, 0.05, 6), spread(0.06, 0.002, 6), (None, None)),  # a regression of either kind ends it
        (spread(0.01, 0.0002, 6), spread(0.0, 0.3, 4), (None, None)),
    ],
)
def test_each_kind_has_looks_of_its_own(
    timed_pairs: Sequence[float], traced_pairs: Sequence[float], looks: tuple[int | None, int | None]
) -> None:
    """Timed and traced pairs are sequences apart: what one still needs does not depend on how far the other is."""
    found, _, _ = outcome([*trials(timed_pairs), *traced(traced_pairs)])

    assert (found.next_look, found.next_traced_look) == looks


def test_looks_of_traced_pairs_are_those_of_the_block() -> None:
    """A cell that declares its looks at traced pairs is looked at there; a further look is added to them alone."""
    measured = traced_cell(looks=(4, 6))
    taken = [*trials(SAME), *traced(spread(0.0, 0.3, 6))]

    assert outcome(taken, measured)[0].next_traced_look is None
    extended = record(measured, taken, further_traced_looks=(10,))
    assert extended.schedule("traced") == Schedule((4, 6), (0.0, 0.16), (0.16, 0.16)).further((10,))
    assert extended.schedule("timed") == EARLY_SCHEDULE
    assert judged(taken, measured, further_traced_looks=(10,)).cells[0].next_traced_look == 10


def test_traced_pairs_feed_no_timed_gate() -> None:
    """A profiler slows its trial down: its iterations, however slow, change nothing that timed trials decide."""
    alone = judged(trials(SAME), cell()).cells[0]
    slow = [one.model_copy(update={"iterations": trial(0, 0, "head", 9 * STEP_S).iterations}) for one in traced(SAME)]

    found = judged([*trials(SAME), *slow], cell()).cells[0]

    assert found.gates == alone.gates
    # Two metrics more share the probability that an interval is wrong.
    both = ([row.model_dump(exclude={"change_low", "change_high"}) for row in one.ungated] for one in (found, alone))
    with_traces, without = both
    assert [row for row in with_traces if not row["metric"].startswith("host_")] == without


def test_dropped_traced_pairs_are_told_apart() -> None:
    """A failed traced trial drops its pair and is told as one; timed pairs of the same number stay."""
    failed = trial(200, 0, "head", kind="traced", failure=Failure(code="engine-failed", text="died"))

    found, _, _ = outcome([*trials(SAME), failed])

    assert (found.pairs, found.traced_pairs) == (4, 0)
    assert [note.text for note in found.cautions] == ["1 traced dropped: engine-failed: died (head, trial 200)"]


def test_one_family_for_both_kinds() -> None:
    """Holm's family is every gate of the run, of whatever kind."""
    _, timed_gate, attention = outcome([*trials(SAME), *traced(spread(0.0, 0.002, 4))])

    assert timed_gate.block_level == attention.block_level == pytest.approx(0.01 / 2)


def test_a_role_that_a_side_does_not_run() -> None:
    """A role without kernels on one side has no time to compare: that is no pass, and the reason names the side."""
    fused = decode([("gemm", "nvjet", 4_000_000)])

    _, _, gone = outcome([*trials(SAME), *traces([kernels()] * 4, [fused] * 4)])
    _, _, new = outcome([*trials(SAME), *traces([fused, *[kernels()] * 3], [kernels()] * 4)])
    _, _, never = outcome([*trials(SAME), *traces([fused] * 4, [fused] * 4)])

    said = "no kernel of role attention runs on"
    assert [(one.verdict, *[(note.code, note.text) for note in one.reasons]) for one in (gone, new, never)] == [
        ("not-measured", ("metric-unusable", f"{said} head in 4 of 4 traced trials")),
        ("not-measured", ("metric-unusable", f"{said} base in 1 of 4 traced trials")),
        ("not-measured", ("metric-missing", f"4 of 4 pairs carry no {ATTENTION}")),
    ]


def test_an_envelope_that_was_left_ends_the_search() -> None:
    """Once the head or the base is outside the envelope, an undecided gate asks for no further traced pair."""
    block = Expectation.model_validate({"per_decode_step": {"patterns": [{"launches": 2}]}})
    measured = traced_cell().model_copy(update={"kernels": block})
    more = decode([("gemm", "nvjet", 4_000_000), ("attention", "flash", 1_000_000), ("copy", "fill", 2000)])
    slowdowns = spread(0.0, 0.3, 4)

    inside, left, stale = (
        outcome([*trials(SAME), *traces(base, head)], measured)[0]
        for base, head in (
            ([kernels()] * 4, [kernels(math.exp(d)) for d in slowdowns]),
            ([kernels(math.exp(d)) for d in slowdowns], [more] * 4),
            ([more] * 4, [kernels(math.exp(d)) for d in slowdowns]),
        )
    )

    assert [one.gates[1].verdict for one in (inside, left, stale)] == ["inconclusive"] * 3
    assert [one.next_traced_look for one in (inside, left, stale)] == [6, None, None]
    assert [(one.verdict, *codes(one.reasons)) for one in (left, stale)] == [
        ("regressed", "outside-envelope"),
        ("not-comparable", "envelope-stale"),
    ]


@pytest.mark.slow
def test_alpha_and_power_of_a_kernel_gate() -> None:
    """Of 100 seeded A/A runs none blocks attention; of 100 at must_catch at most beta pass (99 % binomial bound)."""
    rng = np.random.default_rng(5)
    verdicts: dict[float, list[str]] = {0.0: [], 0.05: []}
    for truth, found in verdicts.items():
        for _ in range(100):
            d = rng.normal(math.log1p(truth), 0.005, 12).tolist()
            pairs = next(
                (n for n in (4, 6, 8) if outcome([*trials(SAME), *traced(d[:n])])[0].next_traced_look is None), 12
            )
            found.append(outcome([*trials(SAME), *traced(d[:pairs])])[2].verdict)

    assert set(verdicts[0.0]) <= {"pass", "improved"}
    assert verdicts[0.05].count("regressed") >= 90
    passed = verdicts[0.05].count("pass") + verdicts[0.05].count("improved")
    assert scipy_stats.binomtest(passed, 100, BETA, alternative="greater").pvalue > 0.01


# --- clocks


def at(sm_mhz: int) -> tuple[GpuTelemetry, ...]:
    """One GPU at this clock."""
    clock = Spread(low=sm_mhz, median=sm_mhz, high=sm_mhz)
    return (GpuTelemetry(gpu="GPU-1", samples=9, aligned=True, sm_mhz=clock, decode_sm_mhz=sm_mhz),)


@pytest.mark.parametrize("kind", ["timed", "traced"])
def test_clocks_of_each_kind(kind: Kind) -> None:
    """Sides that ran a kind of trial at different clocks spoil the gates of that kind alone."""
    taken = [
        one.model_copy(update={"telemetry": at(1500 if (one.kind, one.subject) == (kind, "head") else 1980)})
        for one in (*trials(SAME), *traced(spread(0.0, 0.002, 4)))
    ]

    found, timed_gate, attention = outcome(taken)

    spoilt, other = (timed_gate, attention) if kind == "timed" else (attention, timed_gate)
    assert (spoilt.verdict, other.verdict) == ("not-comparable", "pass")
    assert codes(found.reasons) == ["clocks-differ"]


def test_clocks_that_wander_are_no_difference_of_the_sides() -> None:
    """Clocks that nobody locks, and whose medians differ by chance, leave a gate to the spread of its pairs."""
    clocks = {"base": (1965, 1890, 1965, 1980), "head": (1905, 1965, 1935, 1890)}
    taken = [
        one.model_copy(update={"telemetry": at(clocks[one.subject][one.pair or 0])})
        for one in trials(spread(0.0, 0.0002, 4))
    ]

    (found,) = judged(taken).cells

    assert (found.gpus["base"].sm_mhz, found.gpus["head"].sm_mhz) == (1965, 1905)
    assert (found.verdict, codes(found.reasons)) == ("pass", [])


def test_a_clock_of_zero_is_a_difference() -> None:
    """A driver that reads 0 MHz on one side tells of other clocks, not of clocks that wander."""
    taken = [
        one.model_copy(update={"telemetry": at(0 if one.subject == "head" else 1980)})
        for one in trials(spread(0.0, 0.0002, 4))
    ]

    (found,) = judged(taken).cells

    assert (found.verdict, codes(found.reasons)) == ("not-comparable", ["clocks-differ"])


def test_clocks_count_beside_a_gate_without_data() -> None:
    """A gate that lost its metric does not let another one block at different clocks."""
    measured = cell(gates=[gate(), gate("energy_per_token")])
    taken = [
        one.model_copy(update={"telemetry": at(1500 if one.subject == "head" else 1980)})
        for one in trials(spread(0.3, 0.0002, 6))
    ]

    (found,) = judged(taken, measured).cells

    assert [one.verdict for one in found.gates] == ["not-comparable", "not-measured"]
    assert (found.verdict, codes(found.reasons)) == ("not-measured", ["clocks-differ"])


def test_a_higher_clock_excuses_no_slowdown() -> None:
    """A head that is slower at the higher clock is blocked, with a caution; only times and rates are judged so."""
    measured = cell(gates=[gate(), gate("energy_per_token")])
    taken = [
        one.model_copy(update={"telemetry": at(1980 if one.subject == "head" else 1500)})
        for one in trials(spread(0.3, 0.0002, 6))
    ]

    (found,) = judged(taken, measured).cells

    assert [one.verdict for one in found.gates] == ["regressed", "not-measured"]
    assert (codes(found.reasons), "clocks-differ" in codes(found.cautions)) == ([], True)


def test_a_lower_clock_of_the_head_excuses_no_slowdown_where_orders_were_drawn() -> None:
    """In pairs of drawn order the head's clock is its own doing: what is open goes on, what is slower is blocked."""

    def at_look(effect: float, pairs: int) -> CellOutcome:
        taken = [
            one.model_copy(update={"telemetry": at(1770 if one.subject == "head" else 1980)})
            for one in trials(spread(effect, 0.0002, pairs))
        ]
        return judged(taken, orders="coins").cells[0]

    first, second, same = at_look(0.3, 4), at_look(0.3, 6), at_look(0.0, 4)

    assert (first.verdict, first.next_look, codes(first.cautions)[-1]) == ("inconclusive", 6, "clocks-differ")
    assert (second.verdict, codes(second.reasons), codes(second.cautions)[-1]) == ("regressed", [], "clocks-differ")
    assert (same.verdict, codes(same.reasons)) == ("not-comparable", ["clocks-differ"])


# --- the host's slack


def host_outcome(
    head_us: Sequence[float], metric: str = "kernel_time_per_step", held: Sequence[str] = STEADY
) -> CellOutcome:
    """A cell whose attention is the same, and whose heads' hosts work so many microseconds a step; the bases 2,300."""
    pairs = traced(spread(0.0, 0.002, len(head_us)), [round(us * 1e3) for us in head_us])
    pairs = tuple(changed(one, held=tuple(held)) for one in pairs)
    return outcome([*trials(SAME), *pairs], traced_cell(metric))[0]


def changed(one: Trial, **changes: object) -> Trial:
    """A traced trial with other figures."""
    return one.model_copy(update={"decode": one.decode.model_copy(update=changes)})


def lost(found: CellOutcome) -> list[str]:
    """What the caution says, if it is there."""
    return [note.text for note in found.cautions if note.code == "host-slack-lost"]


@pytest.mark.parametrize(
    ("head_us", "said"),
    [
        ([2350 + x for x in (0, 9, -7, 4)], "base 2.300 ms, head 2.352 ms: the host works 51.50 us a step longer"),
        ([2315 + x for x in (0, 9, -7, 4)], ""),  # 15 us are not worth a word
        ([2350 + x for x in (0, 90, -70, 40)], ""),  # chance
        ([2250 + x for x in (0, 9, -7, 4)], ""),  # less work than before
        ([2700], "base 2.300 ms, head 2.700 ms: the host works 400.0 us a step longer"),
        ([2600], ""),  # without a spread, what engines of one build may differ by is no loss
        ([2900, 2500], "base 2.300 ms, head 2.700 ms: the host works 400.0 us a step longer"),
    ],
)
def test_lost_slack(head_us: Sequence[float], said: str) -> None:
    """Work of the host that no step shows yet is a caution, once it exceeds 20 us and the spread of engines held."""
    pairs = f"{len(head_us)} traced pair{'s' * (len(head_us) > 1)}"
    rest = f", so much less of 2.500 ms to spare ({pairs}), which no step shows yet"

    assert lost(host_outcome(head_us)) == ([f"{said}{rest}"] if said else [])


def test_lost_slack_on_a_cpu_whose_speed_varies() -> None:
    """Work that is longer because the CPU was slower shows in launching calls too, and is none that the head added."""
    speeds = (1.00, 1.09, 1.03, 1.12, 0.99, 1.07, 1.10, 1.01)
    noise = (3, -4, 6, -5, 2, -6, 4, -1)

    def taken(added_us: float) -> list[Trial]:
        pairs = traced(spread(0.0, 0.002, 4))
        work = [round((2300 * speed + (added_us if n % 2 else 0) + noise[n]) * 1e3) for n, speed in enumerate(speeds)]
        return [changed(one, held=STEADY, work_ns=(ns,) * 8, call_ns=(round(500_000 * speed),) * 8)
                for one, ns, speed in zip(pairs, work, speeds, strict=True)]  # fmt: skip

    same, more = (lost(outcome([*trials(SAME), *taken(us)])[0]) for us in (0.0, 50.0))

    assert not same
    assert len(more) == 1


@pytest.mark.parametrize("held", [(), ("hashes", "cores 4,5,6,7"), ("addresses",)])
def test_one_pair_of_workers_that_were_not_held(held: Sequence[str]) -> None:
    """Engines of one build differ by a tenth there, so that one pair must show much more."""
    (said,) = lost(host_outcome([3300], held=held))

    assert said.startswith("base 2.300 ms, head 3.300 ms: the host works 1.000 ms a step longer")
    assert not lost(host_outcome([3100], held=held))
    assert lost(host_outcome([2350 + x for x in (0, 9, -7, 4)], held=held))  # the pairs tell their own spread


def test_slack_used_up() -> None:
    """Where the device waits for the host the caution says so, and the metric shows both sides without a ratio."""
    found = host_outcome([5600, 5610, 5590, 5605])

    (said,) = lost(found)
    assert said.endswith("so much less of 2.500 ms to spare (4 traced pairs), and the device now waits for it")
    (row,) = (row for row in found.ungated if row.metric == "host_slack_per_step")
    assert row.base == pytest.approx(2.5e-3)
    assert row.head == pytest.approx(-801.25e-6)
    assert row.change is None


@pytest.mark.parametrize("work_ns", [(), (2_300_000,) * 8])
def test_slack_used_up_without_more_work(work_ns: Sequence[int]) -> None:
    """A head for which the device waits is named too where the host works no longer, or its work is not known."""
    base, head = (changed(one, work_ns=work_ns) for one in traced([0.0], [5_600_000]))

    (said,) = lost(outcome([*trials(SAME), base, head])[0])

    assert said == "base 2.500 ms to spare, head -800.0 us (1 traced pair): the device now waits for the host"


def test_a_gate_on_slack_that_is_used_up() -> None:
    """A slack without a ratio is not measured for a reason of its own; one that only shrinks is judged."""
    used_up, shrunk = (host_outcome(us, "host_slack_per_step").gates[1] for us in ([4801] * 4, [3600, 3610, 3590] * 2))

    assert (used_up.verdict, codes(used_up.reasons)) == ("not-measured", ["metric-unusable"])
    assert (shrunk.verdict, shrunk.reasons) == ("regressed", ())


def test_a_gate_on_the_hosts_work() -> None:
    """The host's work can be gated like any time."""
    same, more = (host_outcome(us, "host_work_per_step").gates[1] for us in ([2301, 2299] * 3, [2500, 2510, 2490] * 2))

    assert (same.verdict, more.verdict) == ("pass", "regressed")


# --- the rest of the outcome


def test_ungated_slack() -> None:
    """Slack and work are shown where there are traces, from them alone; without traces there is none."""
    with_traces = judged([*trials(SAME), *traced(SAME)], cell()).cells[0]
    without = judged(trials(SAME), cell()).cells[0]

    (row,) = (row for row in with_traces.ungated if row.metric == "host_slack_per_step")
    assert row.base == pytest.approx(2.5e-3)
    assert row.change == 0.0
    assert not [row.metric for row in without.ungated if row.metric.startswith("host_")]


def test_attribution_of_a_cell() -> None:
    """With traces a cell says where the step's difference comes from, beside the one measured without a tracer."""
    found = judged([*trials([0.01] * 4), *traced([math.log(1.05)] * 4)], cell()).cells[0]

    assert found.attribution.parts[0].name == "attention"
    assert found.attribution.difference_s == pytest.approx(50e-6)
    assert found.attribution.measured_s == pytest.approx(STEP_S * math.expm1(0.01), rel=1e-3)
    assert found.attribution.pairs == 4
    assert judged(trials(SAME), cell()).cells[0].attribution is None


def test_cautions_of_traces() -> None:
    """What a profiler says of a trace is said once, with how many traces say it."""
    spoilt = kernels().model_copy(update={"cautions": (("trace-damaged", "1 flush"), ("trace-damaged", "x"))})
    taken = traces([kernels(), spoilt], [kernels(), spoilt])

    found = judged([*trials(SAME), *taken], cell()).cells[0]

    assert [(note.code, note.text) for note in found.cautions] == [
        ("trace-damaged", "in 2 of 4 traces, the first: 1 flush"),
        ("trace-damaged", "in 2 of 4 traces, the first: x"),
    ]


@pytest.mark.parametrize("side", ["base", "head"])
def test_timed_and_traced_trials_of_two_builds(side: Side) -> None:
    """A side whose traced trials ran another version than its timed ones is a mixture of two builds."""
    other = {"versions": {"vllm": "2.0"}}
    taken = [one.model_copy(update=other if one.subject == side else {}) for one in traced(SAME)]

    found, _, _ = outcome([*trials(SAME), *taken])

    assert [note.text for note in found.cautions if note.code == "subject-changed"] == [f"{side}: vllm 1.0, then 2.0"]


def one_sided(steps: Sequence[DecodeSteps]) -> Record:
    """A one-sided record with timed and traced trials."""
    timed = [trial(n, n, "base") for n in range(6)]
    more = [trial(10 + n, n, "base", kind="traced", decode=one) for n, one in enumerate(steps)]
    return record(traced_cell(), [*timed, *more], subjects={"base": BASE})


def test_compare_reads_each_gate_from_its_kind() -> None:
    """Unpaired, too, a gate on kernels is judged from traced trials and one on time from timed ones."""
    base, head = (one_sided([kernels(x * y) for y in (1.0, 1.001, 0.999, 1.0, 1.0, 1.001)]) for x in (1.0, 1.1))

    found = compare_sides(RecordSide(base, "base"), RecordSide(head, "base"), Plan(cells=(traced_cell(),), seed=0))

    assert [one.verdict for one in found.gates] == ["pass", "regressed"]
    none = compare_sides(
        RecordSide(base, "base"), RecordSide(one_sided([]), "base"), Plan(cells=(traced_cell(),), seed=0)
    )
    assert none.gates[1].reasons[0].text == "a side has no valid traced trial"
    fused = one_sided([decode([("gemm", "nvjet", 4_000_000)])] * 6)
    gone = compare_sides(RecordSide(base, "base"), RecordSide(fused, "base"), Plan(cells=(traced_cell(),), seed=0))
    assert codes(gone.gates[1].reasons) == ["metric-unusable"]


def test_pairs_by_kind() -> None:
    """Pairs, drops and valid trials are counted for each kind apart, whatever numbers the pairs have."""
    kinds: tuple[Kind, ...] = ("timed", "traced")
    taken = record(traced_cell(), [*trials(SAME), *traced(SAME[:2])])

    assert [taken.measured(kind) for kind in kinds] == [4, 2]
    assert [len(taken.judged_trials("head", kind)) for kind in kinds] == [4, 2]
    assert {t.kind for t in itertools.chain(*taken.pairs("traced"))} == {"traced"}
    assert {t.kind for t in itertools.chain(*taken.pairs())} == {"timed"}
