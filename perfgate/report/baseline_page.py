"""Baselines as text: what there is, one whole, its lineage, two beside each other, what a promotion did."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from perfgate.baseline.lineage import Baseline, Entry
from perfgate.baseline.promotion import Promoted, moved_lines
from perfgate.baseline.store import Stored
from perfgate.metrics.catalogue import find_metric
from perfgate.report.outcome_lines import printable, signed_percent
from perfgate.report.text import columns
from perfgate.stats.prediction import FIRST_BLOCKING_VISITS
from perfgate.units import format_value

SHORT = 12
"""Digits of a digest that people read."""


def render_list(found: Sequence[Stored]) -> str:
    """A line a baseline: where, what, how many visits, and whether it can block yet."""
    heading = ("machine class", "cell", "visits", "verdict", "newest", "promoted by")
    rows = [(b.machine_class, b.cell.name, str(len(b.visits)), _standing(b), b.entries[-1].time_utc[:10],
             printable(b.entries[-1].author)) for b in (one.baseline for one in found)]  # fmt: skip
    return _lines(columns([heading, *rows]))


def render_show(baseline: Baseline) -> str:
    """The current epoch: what, where, which build, and every metric with its spread between visits."""
    cell, build = baseline.cell, baseline.build
    named = [
        *(f"{name} {version}" for name, version in sorted(build.versions.items())),
        *([f"built from {build.source}"] if build.source else []),
        *(f"args.{name}={value}" for name, value in sorted(build.args.items())),
        *(f"env.{name}" for name in build.env),
        *(f"path={name}" for name in build.path),
    ]
    facts = [
        f"{cell.name} on {baseline.machine_class}: {_count(len(baseline.visits), 'visit')}, {_standing(baseline)}",
        f"  cell {cell.cell_id[:SHORT]}, digest {baseline.tip[:SHORT]}, {_count(len(baseline.entries), 'promotion')}",
        f"  build: {', '.join(named) or 'unknown'}",
        "",
    ]
    heading = ("metric", "mean", "spread between visits", "visits", "newest visit")
    return _lines([*facts, *columns([heading, *(_metric_row(baseline, name) for name in _metrics(baseline))])])


def render_log(baseline: Baseline) -> str:
    """The lineage, the newest entry first."""
    numbered = [*enumerate(baseline.entries, 1)]
    return "\n".join(_lines(_entry(number, entry)) for number, entry in reversed(numbered))


def render_diff(one: Baseline, other: Baseline) -> str:
    """What lies between two baselines: lineage, cell, machine, build, and how far each metric moved."""
    shared = sum(a.digest == b.digest for a, b in zip(one.entries, other.entries, strict=False))
    counts = [len(lineage.entries) - shared for lineage in (one, other)]
    lines = [f"{_count(shared, 'promotion')} shared, {counts[0]} only in the first, {counts[1]} only in the second"]
    for number, entry in enumerate(other.entries[shared:], shared + 1):
        lines += ["", *_entry(number, entry)]
    differences = one.cell.differences(other.cell)
    lines += ["", *(f"  cell: {text}" for text in differences)] if differences else []
    heading = ("metric", "first", "second", "change")
    rows = [
        (name, *(format_value(_mean(b, name), find_metric(name).unit) for b in (one, other)),
         signed_percent(_mean(other, name) / _mean(one, name) - 1))
        for name in _metrics(one)
        if name in _metrics(other)
    ]  # fmt: skip
    return _lines([*lines, "", *columns([heading, *rows])])


def render_promoted(promoted: Iterable[Promoted]) -> str:
    """What a promotion wrote, and how far the metrics lie from what was there."""
    lines = []
    for one in promoted:
        visits = _count(len(one.baseline.visits), "visit")
        lines += [
            f"{printable(one.cell)}: {one.kind} ({one.role}): {printable(one.why)}",
            f"  {one.file}: {visits}, {_standing(one.baseline)}, digest {one.baseline.tip[:SHORT]}",
            *(f"  {line}" for line in moved_lines(one.moved)),
        ]
    return _lines(lines)


def _standing(baseline: Baseline) -> str:
    missing = FIRST_BLOCKING_VISITS - len(baseline.visits)
    return "can block" if missing <= 0 else f"advises; blocks after {missing} more"


def _entry(number: int, entry: Entry) -> list[str]:
    return [
        f"entry {number}: {entry.kind}, {entry.time_utc}, {printable(entry.author)}",
        f"  {printable(entry.reason)}",
        f"  {_count(len(entry.visits), 'visit')} from {', '.join(visit.t0_utc for visit in entry.visits)}",
        f"  digest {entry.digest[:SHORT]}, record {entry.record[:SHORT]}, commit {entry.commit[:SHORT] or 'none'}",
    ]


def _metrics(baseline: Baseline) -> list[str]:
    """What its visits carry and can have a mean; values that are zero or negative have no ratio."""
    names = dict.fromkeys(name for visit in baseline.visits for name in visit.values)
    return [name for name in names if all(min(values) > 0 for values in baseline.values(name))]


def _metric_row(baseline: Baseline, name: str) -> tuple[str, ...]:
    unit, visits = find_metric(name).unit, baseline.values(name)
    logs = [math.log(statistics.geometric_mean(visit)) for visit in visits]
    spread = f"{statistics.stdev(logs) * 100:.3g} %" if len(logs) > 1 else "unknown"
    newest = format_value(math.exp(logs[-1]), unit)
    return (name, format_value(_mean(baseline, name), unit), spread, str(len(visits)), newest)


def _mean(baseline: Baseline, name: str) -> float:
    return statistics.geometric_mean([statistics.geometric_mean(visit) for visit in baseline.values(name)])


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"
