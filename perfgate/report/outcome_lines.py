"""What every renderer shows of an outcome, as plain strings: rows, notes, the closing sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from perfgate.errors import Verdict
from perfgate.judge.cell_facts import GpuOutcome, MetRequests
from perfgate.judge.outcome import WORST_FIRST, CellOutcome, GateOutcome, MetricOutcome, Outcome
from perfgate.metrics.catalogue import needs_floor
from perfgate.metrics.kinds import TRIAL_KINDS
from perfgate.metrics.roofline_bound import Floor
from perfgate.metrics.sides import SIDES
from perfgate.metrics.trial import KINDS
from perfgate.models import Note
from perfgate.report.document import NoteLine
from perfgate.stats.rates import rate_bounds
from perfgate.units import bounded_percent, format_value, percent, plural, signed_percent

CONFIDENCE = 0.95  # of the interval of a share of requests, both ends together
DECIDED = "Nothing: the cell is decided by what regressed, and takes no more pairs."
"""The remedy of an undecided gate beside one that regressed."""

WORSE, BETTER, UNJUDGED, CHANCE, SAME = WAYS = (
    "worse", "better", "different, not judged", "the same but for chance", "the same",
)  # fmt: skip
"""What is known of a head by a metric that no gate judges, what needs reading first."""
MOST_IN_FULL = 2  # metrics that no gate judges whose values are in their line; of more the changes alone


class GateRow(NamedTuple):
    """A gate in the table of gates; behind the verdict the mark ``!`` says that notes follow."""

    metric: str
    base: str
    head: str
    change: str
    interval: str
    margins: str
    detectable: str
    verdict: str


HEADINGS = GateRow._fields


def gate_row(gate: GateOutcome) -> GateRow:
    """The figures of a gate in words."""
    mark = " !" if gate.cautions or gate.reasons else ""
    margins = f"{percent(gate.ignorable)} / {percent(gate.must_catch)}"
    detectable = detectable_of(gate) or "-"
    verdict = loudly(gate.verdict)
    verdict += f" ({gate.would_be})" if gate.would_be else ""
    if gate.verdict in ("pass", "improved") and gate.passed_at not in (None, gate.pairs):
        verdict += f" (at {gate.passed_at} pairs)"
    decimals = _decimals(gate)
    sides = (_value(gate.base, gate), _value(gate.head, gate), signed_percent(gate.change, decimals))
    return GateRow(gate_name(gate), *sides, _interval(gate, decimals), margins, detectable, verdict + mark)


def gate_sentence(gate: GateOutcome) -> str:
    """The same in a sentence, without its name and its verdict."""
    row = gate_row(gate)
    if gate.change is None:
        values = f"{row.base} to {row.head}" if None not in (gate.base, gate.head) else "no values"
        return "; ".join(map(first_line, gate.reasons)) or values
    sure = "no interval yet" if row.interval == "-" else f"interval {row.interval}"
    limits = f"ignorable is {percent(gate.ignorable)}, {percent(gate.must_catch)} must be caught"
    seen = f" in {plural(gate.pairs, 'pair')}" if gate.pairs else ""
    seen = f" against {plural(gate.visits.visits, 'visit')}" if gate.visits else seen
    return f"{row.base} to {row.head}, {row.change} ({sure}){seen}; {limits}"


def in_brief(gate: GateOutcome) -> str:
    """What one gate found in two words."""
    return " ".join(filter(None, (figures(gate), loudly(gate.verdict))))


def loudly(verdict: Verdict) -> str:
    """A verdict, in capitals where it blocks."""
    return verdict.upper() if verdict == "regressed" else verdict


def gate_name(gate: GateOutcome) -> str:
    """The metric, and the state of the machine in which it was compared."""
    return f"{gate.metric}, {_state(gate)}" if gate.state else gate.metric


def _state(gate: GateOutcome) -> str:
    return f"{gate.state} {'states' if gate.state == 'both' else 'state'}"


def states_line(cell: CellOutcome) -> str:
    """Which states the machine had and what was done about them, in one line; empty where it had one."""
    seen = cell.states
    if seen is None:
        return ""
    slow = [f"{seen.slow[side]} of {seen.trials[side]} restarts of {side}" for side in SIDES]
    common = " and ".join(f"{plural(pairs, 'pair')} in the {state} one" for state, pairs in seen.common.items())
    source = {"probe": "told by the probe", "steps": "told by the steps' own times"}[seen.told_by]
    share = (
        f"being slow more often blocks from {plural(seen.blocks_from, 'one-way pair')} on" if seen.blocks_from else ""
    )
    costs = f"it costs {percent(seen.at_most)} at most, less than must_catch" if seen.everywhere else ""
    facts = (f"two states {percent(seen.gap)} apart, {source}", f"{' and '.join(slow)} slow",
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


def by_metric(cell: CellOutcome) -> list[list[GateOutcome]]:
    """Gates of each metric, what needs reading first: the state that its row is of, the worst, and then the others."""
    rows: dict[tuple[str, str], list[GateOutcome]] = {}
    for gate in ordered_gates(cell):
        rows.setdefault((gate.metric, gate.where), []).append(gate)
    return [sorted(row, key=lambda gate: (urgency(gate), -gate.pairs, gate.state != "both")) for row in rows.values()]


def other_states(cell: CellOutcome) -> tuple[str, ...]:
    """A line for each metric that was compared in several states: what was found in those that its row is not of."""
    rows = ((gates[0].metric, [f"{_state(gate)} {in_brief(gate)}" for gate in gates[1:]]) for gates in by_metric(cell))
    return tuple(f"{metric}: {', '.join(others)}" for metric, others in rows if others)


def urgency(gate: GateOutcome) -> int:
    """0 for what blocks; what passed or is advice comes last, all of it alike."""
    verdicts = list(WORST_FIRST)
    return min(verdicts.index(gate.verdict), verdicts.index("advisory"))


def place_of(gate: GateOutcome) -> tuple[str, int]:
    """File and line of its limits; what has another form, like ``--gate ...``, is not a place in a file."""
    file, _, line = gate.where.rpartition(":")
    return (file, int(line)) if file and line.isascii() and line.isdigit() and len(line) < 8 else ("", 0)  # noqa: PLR2004


def ungated_line(cell: CellOutcome) -> str:
    """The other metrics in one line, by which way they moved: measured, shown, never judged by a gate.

    Worse or better is what its interval says; a difference without one is shown as that. What chance explains, and what
    is the same, is counted; utilisations are beside the floor.
    """
    by_way = {way: [row for row in _others(cell) if _way(row) == way] for way in (*WAYS, "")}
    counted = {way: plural(len(rows), "metric") for way in (CHANCE, SAME) if (rows := by_way.pop(way))}
    in_full = sum(map(len, by_way.values())) <= MOST_IN_FULL
    named = {way: ", ".join(_in_full(row) if in_full else f"{row.metric} {figures(row)}" for row in rows)
             for way, rows in by_way.items() if rows}  # fmt: skip
    return "; ".join(f"{way}: {what}" if way else what for way, what in (named | counted).items())


def ungated_rows(cell: CellOutcome) -> list[tuple[str, ...]]:
    """The same metrics as a table, what is worse first; empty where there are none."""
    rows = [(row.metric, _value(row.base, row), _value(row.head, row), signed_percent(row.change),
             _bounds(row) or "-", _way(row))
            for row in sorted(_others(cell), key=lambda row: (*WAYS, "").index(_way(row)))]  # fmt: skip
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
    visits = gate.visits
    if visits is None or visits.least_detectable is None:
        return "unknown"
    if visits.visits_to_halve is None:
        return f"no number of visits (at best {percent(visits.least_detectable)})"
    return f"{plural(visits.visits_to_halve, 'nightly visit')} more"


def gate_notes(cell: CellOutcome, gate: GateOutcome) -> tuple[NoteLine, ...]:
    """Reasons and cautions of a gate, each with its remedy; a cell that is decided takes no more pairs."""
    decided = not any(cell.undecided_in(kind) for kind in KINDS)
    lines = _note_lines(gate_name(gate), gate.reasons, gate.cautions)
    open_codes = ("undecided", "slower-apart") if decided else ()
    return tuple(
        replace(line, remedy=DECIDED) if line.code in open_codes and line.kind == "reason" else line for line in lines
    )


def cell_notes(cell: CellOutcome) -> tuple[NoteLine, ...]:
    """Reasons and cautions of the cell as a whole."""
    return (*_note_lines(cell.name, cell.reasons, cell.cautions),)


def run_notes(outcome: Outcome) -> tuple[NoteLine, ...]:
    """Reasons that concern the run as a whole, whose name is told elsewhere: of a comparison it is two paths."""
    return (*_note_lines("", outcome.reasons),)


def _note_lines(about: str, reasons: Sequence[Note], cautions: Sequence[Note] = ()) -> Iterator[NoteLine]:
    yield from (NoteLine.of("reason", about, note) for note in reasons)
    yield from (NoteLine.of("caution", about, note) for note in cautions)


def first_line(note: Note | NoteLine) -> str:
    """What a note says, without a program's own words and without a full stop."""
    return note.text.partition("\n")[0].removesuffix(".")


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


FACTS: dict[str, Callable[[CellOutcome], str]] = {
    "not gated": ungated_line,
    "met": met_line,
    "floor": floor_line,
    "GPU": gpu_line,
    "states": states_line,
    "baseline": baseline_line,
}
"""Lines of a cell by the word before each, in the order of the report."""
