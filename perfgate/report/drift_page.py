"""How far a build that changes every night has moved from its anchor, and how far the machine has."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from perfgate.baseline.lineage import Baseline
from perfgate.baseline.night_series import Drift, Night
from perfgate.metrics.catalogue import METRICS
from perfgate.report.document import Document, Section
from perfgate.stats.estimate import to_ratio
from perfgate.units import format_value, plural, signed_percent

BARS = "▁▂▃▄▅▆▇█"
MOST_BARS = 60
"""Nights drawn, the newest ones."""


def drift_document(found: Iterable[tuple[Baseline, Sequence[Drift]]]) -> Document:
    """Budgets and what was used of them, a section a lineage, with the nights drawn below."""
    return Document.of((), [section for lineage, drifts in found for section in _sections(lineage, drifts)])


def _sections(lineage: Baseline, drifts: Sequence[Drift]) -> Iterable[Section]:
    rows = [("metric", "budget", "moved", "nights", "verdict"), *map(_row, drifts)]
    yield Section(title=f"{lineage.cell.name} on {lineage.machine_class}", rows=rows)
    yield Section(lines=tuple(line for drift in drifts if drift.nights for line in _lines(drift)), close=True)


def _row(drift: Drift) -> tuple[str, ...]:
    moved = "unknown" if drift.change is None else signed_percent(to_ratio(drift.change.mean))
    verdict = "too few nights" if drift.change is None else "OVER BUDGET" if drift.over else "within"
    return (drift.metric, str(drift.budget), moved, str(len(drift.window) if drift.nights else 0), verdict)


def _lines(drift: Drift) -> Iterable[str]:
    nights, unit = drift.nights[-MOST_BARS:], METRICS[drift.metric].unit
    levels = [night.level for night in nights]
    first, last = (signed_percent(to_ratio(levels[n])) for n in (0, -1))
    days = " to ".join(nights[n].date for n in (0, -1))
    yield f"{drift.metric} by the anchor's: {bars(levels)} {first} to {last}, {days}"
    newest = [night for night in nights if night.anchor == nights[-1].anchor]
    ends = " to ".join(format_value(newest[n].beside, unit) for n in (0, -1))
    yield f"the anchor's own, {newest[0].anchor.title}: {bars([math.log(night.beside) for night in newest])} {ends}"
    if drift.over:
        yield between(drift.window)


def between(window: Sequence[Night]) -> str:
    """Between which builds a loss is, in words."""
    builds = list(dict.fromkeys(night.build.title for night in window))
    if len(builds) == 1:
        return f"one build was measured all along, {builds[0]}: the machine did this"
    others = plural(len(builds) - 2, "build")
    return f"the loss is of changes after {builds[0]} and up to {builds[-1]}, with {others} measured in between"


def bars(levels: Sequence[float]) -> str:
    """A character a level, from the least to the largest."""
    low, high = min(levels), max(levels)
    step = (high - low) / (len(BARS) - 1)
    return "".join(BARS[round((level - low) / step)] if step else BARS[0] for level in levels)
