"""What reports show of traced and counted trials: causes, ranks and counters, with charts on the run's page.

Ranks are in one table, the slowest first; kernels in one with their times and what ncu counted of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from urllib.parse import quote

from perfgate.judge.evidence import Evidence
from perfgate.judge.outcome import CellOutcome
from perfgate.kernels.causes import attribution_section, counters_section
from perfgate.kernels.outcomes import CounterRow, RankOutcome, RanksOutcome
from perfgate.kernels.step_charts import layer_chart, layers_chart, roof_plane, roofline, step_bars
from perfgate.kernels.waterfall import waterfall
from perfgate.metrics.sides import SIDES, Side
from perfgate.report.document import Section, charted
from perfgate.trace.decode_step import DecodeSteps, pool
from perfgate.trace.difference import first_difference
from perfgate.trace.families import short_name
from perfgate.trace.inventory import inventory
from perfgate.units import format_si, format_value, percent, plural, signed_us

SHARED_TIMES = "Launches of one kernel share the mean of their times, wherever they are."


def of_traced(cell: CellOutcome) -> Iterator[Section]:
    """Where the time went, and what each rank does."""
    if cell.attribution:
        yield attribution_section(cell.attribution)
    if ranks := cell.fact("ranks"):
        yield ranks_section(ranks)


def of_counted(cell: CellOutcome) -> Iterator[Section]:
    """The counters of kernels."""
    if cell.counters and cell.counters.rows:
        yield counters_section(cell.counters)


def traced_on_page(cell: CellOutcome, evidence: Evidence | None) -> Iterator[Section | None]:
    """The same as on the report, with charts."""
    if (change := cell.attribution) is not None:
        yield replace(attribution_section(change), lead="where the time went", chart=waterfall(change))
        yield charted(step_bars(change))
        if evidence is not None and evidence.paired and evidence.sides:
            yield charted(layers_chart(evidence, change), SHARED_TIMES)
    if ranks := cell.fact("ranks"):
        yield replace(ranks_section(ranks), lead="rank by rank")


def traced_evidence(cell: CellOutcome, evidence: Evidence) -> Iterator[Section | None]:
    """Layer by layer and kernel by kernel what the traces of pairs hold."""
    if cell.attribution is not None:
        yield charted(layer_chart(evidence, cell.attribution), SHARED_TIMES, folded=True)
    yield envelope_section(evidence)
    yield kernels_section(evidence, cell)


def counted_evidence(_: CellOutcome, evidence: Evidence) -> Iterator[Section | None]:
    """How far kernels are from their roofs."""
    yield charted(roofline(evidence), folded=True)


def counted_on_page(cell: CellOutcome, _: Evidence | None) -> Iterator[Section]:
    """The counters of kernels beside the plane of roofs."""
    if cell.counters is not None and cell.counters.rows:
        counted = counters_section(cell.counters)
        yield replace(counted, lead="counters of kernels", chart=roof_plane(cell.counters), folded=True)


COLUMNS = (
    ("slowest in", "slowest"), ("own work", "own_s"), ("transfer", "transfer_s"), ("waiting", "waiting_s"),
    ("hidden", "hidden"), ("arrives last", "last"), ("host work", "work_s"), ("host slack", "slack_s"),
    ("begins after", "begins_s"), ("outside", "outside"),
)  # fmt: skip
"""Headings and the figures below them; those ending in ``_s`` are seconds, the others shares."""
GIVE_WAY = (5, 9, 6, 7, 8, 3)
"""Columns that move below their row where the table is too wide: hidden, begins after, arrives last, those of the host,
transfer."""


def ranks_section(ranks: RanksOutcome) -> Section:
    """A row a rank and side, then what to see in them."""
    shown = [column for column in COLUMNS if any(column[1] in rank.figures for rank in ranks.ranks)]
    ordered = sorted(ranks.ranks, key=lambda rank: rank.label != ranks.worst)
    rows = [("a decode step by rank", *(heading for heading, _ in shown))]
    rows += [row for rank in ordered for row in _rows(rank, [name for _, name in shown])]
    give_way = tuple(1 + shown.index(COLUMNS[place - 1]) for place in GIVE_WAY if COLUMNS[place - 1] in shown)
    return Section(rows=rows, lines=tuple(_lines(ranks, ordered)), importance=2, give_way=give_way)


def _rows(rank: RankOutcome, names: list[str]) -> Iterator[tuple[str, ...]]:
    sides = [side for side in SIDES if any(side in by_side for by_side in rank.figures.values())]
    for side in sides:
        yield f"{rank.label} {side}", *(_figure(name, rank.figures.get(name, {}).get(side)) for name in names)


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return format_value(value, "s") if name.endswith("_s") else percent(value)


def _lines(ranks: RanksOutcome, ordered: list[RankOutcome]) -> Iterator[str]:
    worst = ordered[0]
    often = " and ".join(f"{percent(share)} of the steps of {side}" for side, share in worst.figures["slowest"].items())
    yield f"{worst.label} is the slowest in {often}; figures of the step as a whole are of the slowest rank in each"
    yield from _waiting(worst, ordered[1:])
    skew = " and ".join(f"{format_value(value, 's')} on {side}" for side, value in ranks.skew_s.items())
    yield f"from the first rank's begin of a step to the last one's: {skew}"
    for rank in ordered:
        if rank.change_s is not None:
            parts = ", ".join(f"{name} {signed_us(value, 1)}" for name, value in rank.parts.items() if value)
            yield f"{rank.label}: {signed_us(rank.change_s, 1)} a step{f': {parts}' if parts else ''}"


def _waiting(worst: RankOutcome, others: list[RankOutcome]) -> Iterator[str]:
    """For how long the others wait, on the side judged."""
    for side in reversed(SIDES):
        waits = [
            (by_side[side], rank.label) for rank in others if side in (by_side := rank.figures.get("waiting_s", {}))
        ]
        if waits:
            most, label = max(waits)
            yield f"{label} of {side} waits most for other ranks: {format_value(most, 's')} a step{_of(worst, side)}"
            return


def _of(worst: RankOutcome, side: Side) -> str:
    waiting_s = worst.figures.get("waiting_s", {}).get(side)
    return "" if waiting_s is None else f"; {worst.label} waits {format_value(waiting_s, 's')}"


HEADINGS = ("kernel", "role", "launches", "base us", "head us", "difference us")
COUNTED = ("DRAM bytes", "bound")
MOST_ROWS = 20
"""Kernels with a row of their own, those whose time changed most."""

Kernel = tuple[str, str, str]
"""Role, place and own name: what traces and counters both know."""
Figures = dict[Kernel, tuple[float, float]]
"""Launches and microseconds a step."""


def kernels_section(evidence: Evidence, cell: CellOutcome) -> Section | None:
    """A row a kernel with its times, and its counters where these were read; then the traces that show it."""
    sides = {
        side: _figures([t.decode for t in trials if t.decode]) for side, trials in evidence.trials("traced").items()
    }
    kernels = {
        kernel: tuple(sides[side].get(kernel, (0.0, 0.0)) for side in SIDES)
        for by_kernel in sides.values()
        for kernel in by_kernel
    }
    ranked = sorted(kernels.items(), key=lambda entry: -abs(entry[1][1][1] - entry[1][0][1]))
    counted = {(row.role, row.place, row.kernel): row for row in cell.counters.rows} if cell.counters else {}
    rows = [(*HEADINGS, *(COUNTED if counted else ()))]
    for kernel, (base, head) in ranked[:MOST_ROWS]:
        role, place, name = kernel
        launches = " to ".join(dict.fromkeys(f"{often:.3g}" for often, _ in (base, head)))
        row = (name, f"{role} ({place})" if place else role, launches, f"{base[1]:.1f}", f"{head[1]:.1f}",
               f"{head[1] - base[1]:+.1f}")  # fmt: skip
        rows.append((*row, *_counters(counted.get(kernel))) if counted else row)
    lines = (
        [f"and {plural(len(ranked) - MOST_ROWS, 'kernel')} more that changed less"] if len(ranked) > MOST_ROWS else []
    )
    links = dict(_links(evidence))
    if not ranked and not links:
        return None
    return Section(
        lead="kernels with their counters and traces",
        rows=rows if ranked else (),
        lines=(*lines, *links),
        hrefs=(*("" for _ in lines), *links.values()),
        style="items",
        folded=True,
    )


def envelope_section(evidence: Evidence) -> Section | None:
    """What the head's step runs otherwise than the base's, line by line."""
    lines = first_difference((base.decode, head.decode) for base, head in evidence.pairs("traced"))
    return Section(lead="kernels of a step, base to head", lines=lines, style="items", folded=True) if lines else None


def _figures(trials: list[DecodeSteps]) -> Figures:
    """Means of a step over all trials; kernels that only template arguments tell apart are one."""
    sums: Figures = {}
    for key, amount in inventory(pool(trials)).items() if trials else ():
        kernel = key.role, key.place, short_name(key.name)
        launches, us = sums.get(kernel, (0.0, 0.0))
        sums[kernel] = launches + amount.often, us + amount.ns / 1e3
    return sums


def _counters(row: CounterRow | None) -> tuple[str, str]:
    if row is None:
        return "not counted", "-"
    moved = [
        format_si(counters["dram_bytes"], "B", ".4g") for counters in (row.base, row.head) if "dram_bytes" in counters
    ]
    return " to ".join(dict.fromkeys(moved)) or "-", " to ".join(dict.fromkeys(row.bound.values())) or "-"


def _links(evidence: Evidence) -> Mapping[str, str]:
    """Each trace of the run in words, and its place beside a page in the run's folder."""
    kept = [(trial, artifact.path) for trial in evidence.record.trials for artifact in trial.traces]
    return {
        f"trial {trial.index}, {trial.subject}: {path}, {_opener(path)}": f"./{quote(path, errors='replace')}"
        for trial, path in kept
    }


def _opener(path: str) -> str:
    """What shows a profiler's file."""
    tool = "nsys-ui" if PurePosixPath(path).suffix == ".nsys-rep" else "ui.perfetto.dev"
    return f"open in {tool} and search for the kernel's name"
