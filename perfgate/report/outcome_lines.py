"""What every renderer shows of an outcome, as plain strings: rows, notes, the closing sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from perfgate.errors import Verdict
from perfgate.judge.cell_facts import GpuOutcome, MetRequests
from perfgate.judge.outcome import WORST_FIRST, CellOutcome, GateOutcome, MetricOutcome, Outcome
from perfgate.metrics.catalogue import needs_floor
from perfgate.metrics.kinds import TRIAL_KINDS
from perfgate.metrics.roofline_bound import Floor
from perfgate.metrics.sides import SIDES
from perfgate.metrics.trial import KINDS
from perfgate.report.document import NoteLine
from perfgate.stats.rates import rate_bounds
from perfgate.units import bounded_percent, format_value, percent, plural, signed_percent

CONFIDENCE = 0.95
"""Of the interval of a share of requests, both ends together."""
HEADINGS = ("metric", "base", "head", "change", "interval", "margins", "detectable", "verdict")
DECIDED = "Nothing: the cell is decided by what regressed, and takes no more pairs."
"""The remedy of an undecided gate beside one that regressed."""

WORSE, BETTER, SAME, CHANCE, UNJUDGED = "worse", "better", "same", "the same but for chance", "different, not judged"
"""What is known of a head by a metric that no gate judges."""
_VERBS = {
    "": ("", ""),
    WORSE: ("worse is ", "worse are "),
    BETTER: ("better is ", "better are "),
    UNJUDGED: ("differs, not judged: ", "differ, not judged: "),
}
MOST_IN_FULL = 2
"""Metrics that no gate judges whose values are in their line; of more the changes alone."""


def gate_row(gate: GateOutcome) -> tuple[str, ...]:
    """One row under :data:`HEADINGS`; the mark ``!`` says that notes follow."""
    mark = " !" if gate.cautions or gate.reasons else ""
    margins = f"{percent(gate.ignorable)} / {percent(gate.must_catch)}"
    detectable = detectable_of(gate) or "-"
    verdict = loudly(gate.verdict)
    verdict += f" ({gate.would_be})" if gate.would_be else ""
    if gate.verdict in ("pass", "improved") and gate.passed_at not in (None, gate.pairs):
        verdict += f" (at {gate.passed_at} pairs)"
    decimals = _decimals(gate)
    sides = (_value(gate.base, gate), _value(gate.head, gate), signed_percent(gate.change, decimals))
    return (gate_name(gate), *sides, _interval(gate, decimals), margins, detectable, verdict + mark)


def in_brief(gate: GateOutcome) -> str:
    """What one gate found in two words."""
    return " ".join(filter(None, (figures(gate), loudly(gate.verdict))))


def loudly(verdict: Verdict) -> str:
    """A verdict, in capitals where it blocks."""
    return verdict.upper() if verdict == "regressed" else verdict


def gate_name(gate: GateOutcome) -> str:
    """The metric, and the state of the machine in which it was compared."""
    return f"{gate.metric}, {gate.state} {'states' if gate.state == 'both' else 'state'}" if gate.state else gate.metric


def states_line(cell: CellOutcome) -> str:
    """Which states the machine had and what was done about them, in one line; empty where it had one."""
    seen = cell.states
    if seen is None:
        return ""
    slow = [f"{seen.slow[side]} of {seen.trials[side]} restarts of {side}" for side in SIDES]
    common = " and ".join(f"{plural(pairs, 'pair')} in the {state} one" for state, pairs in seen.common.items())
    told = {"probe": "told by the probe", "steps": "told by the steps' own times"}[seen.told_by]
    share = (
        f"being slow more often blocks from {plural(seen.blocks_from, 'one-way pair')} on" if seen.blocks_from else ""
    )
    costs = f"it costs {percent(seen.at_most)} at most, less than must_catch" if seen.everywhere else ""
    facts = (f"two states {percent(seen.gap)} apart, {told}", f"{' and '.join(slow)} slow",
             f"compared within states, {common}", share, costs)  # fmt: skip
    return "; ".join(filter(None, facts))


def detectable_of(gate: GateOutcome) -> str:
    """The slowdown that a gate blocks as often as promised, with its pairs where it is not these; empty where none."""
    if gate.detectable is None:
        return ""
    at = f" at {gate.detectable_at} pairs" if gate.detectable_at else ""
    return bounded_percent(gate.detectable, gate.must_catch) + at


def ordered_gates(cell: CellOutcome) -> list[GateOutcome]:
    """Gates with the ones that need reading first; among equals the scenario's order."""
    return sorted(cell.gates, key=urgency)


def urgency(gate: GateOutcome) -> int:
    """0 for what blocks; what passed or is advice comes last, all of it alike."""
    verdicts = list(WORST_FIRST)
    return min(verdicts.index(gate.verdict), verdicts.index("advisory"))


def where(gate: GateOutcome) -> tuple[str, int]:
    """``file:line`` of its limits; what has another form, like ``--gate ...``, is not a place in a file."""
    file, _, line = gate.where.rpartition(":")
    return (file, int(line)) if file and line.isascii() and line.isdigit() and len(line) < 8 else ("", 0)  # noqa: PLR2004


def ungated_line(cell: CellOutcome) -> str:
    """The other metrics in one line, by which way they moved: measured, shown, never judged by a gate.

    Worse or better is what its interval says; a difference without one is shown as that. What chance explains, and what
    is the same, is counted; utilisations are beside the floor.
    """
    rows = _others(cell)
    named = [row for row in rows if _way(row) not in (CHANCE, SAME)]
    parts = []
    for way, verbs in _VERBS.items():
        told = [_in_full(row) if len(named) <= MOST_IN_FULL else f"{row.metric} {figures(row)}"
                for row in named if _way(row) == way]  # fmt: skip
        parts += [verbs[len(told) != 1] + ", ".join(told)] if told else []
    for way, words in ((CHANCE, "by no more than chance"), (SAME, "the same")):
        if count := sum(_way(row) == way for row in rows):
            verb = ("differs " if count == 1 else "differ ") if way == CHANCE else ""
            parts.append(f"{plural(count, 'metric')} {verb}{words}")
    return "; ".join(parts)


def ungated_rows(cell: CellOutcome) -> list[tuple[str, ...]]:
    """The same metrics as a table, what is worse first; empty where there are none."""
    ways = (WORSE, BETTER, UNJUDGED, CHANCE, SAME, "")
    rows = [(row.metric, _value(row.base, row), _value(row.head, row), signed_percent(row.change),
             _bounds(row) or "-", _way(row))
            for row in sorted(_others(cell), key=lambda row: ways.index(_way(row)))]  # fmt: skip
    return [("metric", "base", "head", "change", "interval", "head is"), *rows] if rows else []


def _others(cell: CellOutcome) -> list[MetricOutcome]:
    return [row for row in cell.ungated if not needs_floor(row.metric)]


def _way(row: MetricOutcome) -> str:
    """What is known of the head: worse, better, or not that; empty where a side has no value."""
    if row.base is None or row.head is None:
        return ""
    values, changes = [_value(row.base, row), _value(row.head, row)], [signed_percent(0.0), signed_percent(row.change)]
    if len({*(values if row.change is None else changes)}) == 1:
        return SAME
    if row.change_low is None or row.change_high is None:
        return UNJUDGED
    if row.change_low <= 0 <= row.change_high:
        return CHANCE
    return WORSE if (row.change_low > 0) == (row.better == "lower") else BETTER


def _in_full(row: MetricOutcome) -> str:
    change = ", ".join(filter(None, (signed_percent(row.change), _bounds(row)))) if row.change is not None else ""
    return f"{row.metric} {_both(row)}{change and f' ({change})'}"


def _bounds(row: MetricOutcome) -> str:
    """The interval of a change; empty where there is none."""
    if row.change_low is None or row.change_high is None:
        return ""
    return f"{signed_percent(row.change_low)} to {signed_percent(row.change_high)}"


def floor_line(cell: CellOutcome) -> str:
    """The least time of a decode step and how near the steps came to it, in one line; empty where it is unknown."""
    rows = [row for row in cell.ungated if needs_floor(row.metric)]
    first = next(iter(cell.floors.values()), None)
    if first is not None and all(floor == first for floor in cell.floors.values()):
        return ", ".join([_floor(first), *(f"{row.metric} {_both(row)}" for row in rows)])
    sides = (
        ", ".join([f"{side} {_floor(floor)}", *(f"{row.metric} {_value(getattr(row, side), row)}" for row in rows)])
        for side, floor in cell.floors.items()
    )
    return "; ".join(sides)


def met_line(cell: CellOutcome) -> str:
    """The share of requests that met each objective, in one line; judged is the goodput of restarts."""
    rows = {
        name: " and ".join(f"of {row.requests} requests of the {side} {_met(row)}" for side, row in sides.items())
        for name, sides in cell.met.items()
    }
    lines = "; ".join(f"{name}: {row}" for name, row in rows.items())
    return f"{lines}, if requests were independent, which they are not" if lines else ""


def _met(row: MetRequests) -> str:
    low, high = rate_bounds(row.met, row.requests, 1 - (1 - CONFIDENCE) / 2)
    share, *ends = (f"{value * 100:.1f} %" for value in (row.met / row.requests, low, high))
    return f"{share} met it ({' to '.join(ends)})"


def _floor(floor: Floor) -> str:
    return f"{format_value(floor.floor_s, 's')} by {floor.bound}"


def figures(row: MetricOutcome) -> str:
    """The change where there is one; both sides where they have no ratio; one where there is only one."""
    return signed_percent(row.change) if row.change is not None else _both(row)


def _both(row: MetricOutcome) -> str:
    return " to ".join(_value(value, row) for value in (row.base, row.head) if value is not None)


def gpu_line(cell: CellOutcome) -> str:
    """What the GPUs did, in one line; empty where engines ran on the CPU."""
    return "; ".join(f"{side} {_gpu(gpu)}" for side, gpu in cell.gpus.items())


def _gpu(gpu: GpuOutcome) -> str:
    ranged = f" ({gpu.sm_low_mhz} to {gpu.sm_high_mhz})" if gpu.sm_low_mhz < gpu.sm_high_mhz else ""
    facts = [f"SM {gpu.sm_mhz} MHz{ranged}"]
    facts += [f"memory {gpu.memory_mhz} MHz"] if gpu.memory_mhz is not None else []
    facts += [f"{gpu.power_w:.0f} W"] if gpu.power_w is not None else []
    facts += [f"up to {gpu.temperature_c} C"] if gpu.temperature_c is not None else []
    return ", ".join([*facts, *gpu.events])


def baseline_line(cell: CellOutcome) -> str:
    """What the head was held against, and how many nightly visits more would halve what it can detect, in one line."""
    held = cell.baseline
    if held is None:
        return ""
    between = " to ".join(dict.fromkeys((held.first_utc[:10], held.last_utc[:10])))
    facts = f"{plural(held.visits, 'visit')} of {held.machine_class}, {between}, digest {held.digest[:12]}"
    facts += f"; ratios to the anchor {held.anchor}" if held.anchor else ""
    reach = [
        f"{gate.metric} {_halving(gate)}" for gate in cell.gates if gate.visits and gate.visits.visit_sd is not None
    ]
    return f"{facts}; to halve what is detectable: {', '.join(reach)}" if reach else facts


def _halving(gate: GateOutcome) -> str:
    known = gate.visits
    if known is None or known.least_detectable is None:
        return "unknown"
    if known.visits_to_halve is None:
        return f"no number of visits (at best {percent(known.least_detectable)})"
    return f"{plural(known.visits_to_halve, 'nightly visit')} more"


def notes(cell: CellOutcome) -> Iterator[NoteLine]:
    """Every reason and caution of a cell, each with its remedy; a cell that is decided takes no more pairs."""
    decided = not any(cell.undecided_in(kind) for kind in KINDS)
    for gate in ordered_gates(cell):
        for note in gate.reasons:
            line = NoteLine.of("reason", gate_name(gate), note)
            yield replace(line, remedy=DECIDED) if decided and note.code in ("undecided", "slower-apart") else line
    yield from (NoteLine.of("reason", cell.name, note) for note in cell.reasons)
    for gate in ordered_gates(cell):
        yield from (NoteLine.of("caution", gate_name(gate), note) for note in gate.cautions)
    yield from (NoteLine.of("caution", cell.name, note) for note in cell.cautions)


def run_notes(outcome: Outcome) -> list[NoteLine]:
    """Reasons that concern the run as a whole, whose name is told elsewhere: of a comparison it is two paths."""
    return [NoteLine.of("reason", "", note) for note in outcome.reasons]


def cell_heading(cell: CellOutcome) -> str:
    """The cell with what its figures rest on."""
    facts = [plural(cell.pairs, "pair")] if cell.pairs else []
    facts += [f"against a baseline of {plural(cell.baseline.visits, 'visit')}"] if cell.baseline else []
    facts += [f"looked again, which spent up to {percent(cell.spent)} of alpha and beta"] if cell.spent else []
    facts += [f"{pairs} {name}" for name, kind in TRIAL_KINDS.items() if kind.checks and (pairs := cell.pairs_of(name))]
    unpaired = max((gate.pairs for gate in cell.gates), default=0) if not facts else 0
    if unpaired:
        facts.append(f"at least {unpaired} trials a side, unpaired")
    versions = {side: values.get("vllm", "") for side, values in cell.versions.items() if values.get("vllm")}
    if len(set(versions.values())) == 1:
        facts.append(f"vllm {next(iter(versions.values()))}")
    elif versions:
        facts.append(", ".join(f"{side} vllm {version}" for side, version in versions.items()))
    if len(set(cell.built_from.values())) == 1 and len(cell.built_from) > 1:
        facts.append(f"both sides built from {cell.built_from['base']}")
    else:
        facts += [f"{side} built from {revision}" for side, revision in cell.built_from.items()]
    for kind in KINDS:
        if (due := cell.next_look_at(kind)) is not None:
            facts.append(f"next look at {due} {'' if kind == 'timed' else f'{kind} '}pairs")
    return f"{cell.name}: {', '.join(facts)}" if facts else cell.name


def _decimals(gate: GateOutcome) -> int:
    """One more than the ignorable margin needs, so that a bound beside it can be told from it."""
    return max(2, 1 - math.floor(math.log10(gate.ignorable * 100))) if gate.ignorable > 0 else 3


def _value(value: float | None, row: MetricOutcome) -> str:
    return "-" if value is None else format_value(value, row.unit)


def _interval(gate: GateOutcome, decimals: int) -> str:
    """From the bound that blocks to the bound that passes; a look without blocking power leaves its end open."""
    low, high = gate.change_low, gate.change_high
    if low is None and high is None:
        return "-"
    if low is None:
        return f"below {signed_percent(high, decimals)}"
    if high is None:
        return f"above {signed_percent(low, decimals)}"
    return f"{signed_percent(low, decimals)} to {signed_percent(high, decimals)}"
