"""Baselines: what there is, one whole, its lineage, two beside each other, what a promotion did."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from perfgate.baseline.lineage import Baseline, Entry
from perfgate.baseline.occupations import most_visits
from perfgate.baseline.promotion import Promoted, moved_lines
from perfgate.baseline.store import Stored
from perfgate.baseline.stored_visit import Build
from perfgate.metrics.catalogue import Metric, find_metric
from perfgate.report.document import Document, Section
from perfgate.stats.prediction import FIRST_PASSING_VISITS
from perfgate.units import format_value, plural, signed_percent

SHORT = 12
"""Digits of a digest that people read."""


def list_document(baselines: Sequence[Stored]) -> Document:
    """A line a baseline: where, what, how many visits, and whether it can block yet."""
    rows = [("machine class", "cell", "visits", "verdict", "newest", "promoted by")]
    for baseline in (item.baseline for item in baselines):
        last, visits = baseline.entries[-1], str(len(baseline.occupations))
        where = (baseline.machine_class, baseline.cell.name)
        rows.append((*where, visits, _standing(baseline), last.time_utc[:10], last.author))
    return Document.of((), [Section(rows=rows)])


def baseline_document(baseline: Baseline) -> Document:
    """The current epoch: what, where, which build, and every metric with its spread between visits."""
    cell, visits = baseline.cell, plural(len(baseline.occupations), "visit")
    title = f"{cell.name} on {baseline.machine_class}: {visits}, {_standing(baseline)}"
    entries = plural(len(baseline.entries), "promotion")
    anchors = Counter(", ".join(visit.anchor.build.words) for visit in baseline.visits if visit.anchor)
    facts = (
        f"cell {cell.cell_id[:SHORT]}, digest {baseline.tip[:SHORT]}, {entries}",
        f"build: {', '.join(baseline.build.words) or 'unknown'}",
        *(f"anchor: {anchor} (beside {plural(count, 'visit')})" for anchor, count in anchors.items()),
        *(f"not known to this version: {name}" for name, metric in _carried(baseline).items() if metric is None),
    )
    anchor = baseline.newest_anchor
    beside = ["of ratios to the anchor"] if anchor else []
    heading = ("metric", "mean", "spread between visits", *beside, "visits", "newest visit")
    rows = [heading, *(_metric_row(baseline, metric, anchor) for metric in _metrics(baseline))]
    return Document.of((), [Section(title=title, lines=facts), Section(rows=rows)])


def log_document(baseline: Baseline) -> Document:
    """The lineage, the newest entry first."""
    return Document.of((), reversed([_entry(number, entry) for number, entry in enumerate(baseline.entries, 1)]))


def diff_document(before: Baseline, after: Baseline) -> Document:
    """How two baselines differ: lineage, cell, machine, build, and how far each metric moved."""
    shared = sum(a.digest == b.digest for a, b in zip(before.entries, after.entries, strict=False))
    first, second = (len(lineage.entries) - shared for lineage in (before, after))
    rows: list[tuple[str, ...]] = [("metric", "first", "second", "change")]
    carried = {metric.name for metric in _metrics(after)}
    for metric in (metric for metric in _metrics(before) if metric.name in carried):
        was, now = _mean(before, metric), _mean(after, metric)
        figures = (format_value(value, metric.unit) for value in (was, now))
        rows.append((metric.name, *figures, signed_percent(now / was - 1)))
    return Document.of(
        [f"{plural(shared, 'promotion')} shared, {first} only in the first, {second} only in the second"],
        [
            *(_entry(number, entry) for number, entry in enumerate(after.entries[shared:], shared + 1)),
            Section(lines=tuple(f"cell: {text}" for text in before.cell.differences(after.cell))),
            Section(rows=rows),
        ],
    )


def promoted_document(promoted: Iterable[Promoted]) -> Document:
    """What a promotion wrote, and how far the metrics are from what was there."""
    sections = []
    for done in promoted:
        visits = plural(len(done.baseline.occupations), "visit")
        file = f"{done.file}: {visits}, {_standing(done.baseline)}, digest {done.baseline.tip[:SHORT]}"
        title = f"{done.cell}: {done.kind} ({done.side}): {done.why}"
        sections.append(Section(title=title, lines=(file, *moved_lines(done.moved)), close=True))
    return Document.of((), sections)


def _standing(baseline: Baseline) -> str:
    """Whether times can pass, and ratios to the newest anchor: those of one day count on several cards."""
    seen, anchor = baseline.occupations, baseline.newest_anchor
    beside = [
        occupation for occupation in seen if anchor and any(visit.tells_of(anchor) for visit in occupation.visits)
    ]
    counted = [most_visits(seen, baseline.cards, by_day=True)]
    counted += [most_visits(beside, baseline.cards, by_day=False)] if beside else []
    more = [max(FIRST_PASSING_VISITS - visits, 0) for visits in counted]
    if len(set(more)) == 1:
        return f"advises; passes after {more[0]} more" if more[0] else "can pass"
    times, ratios = (f"after {missing} more" if missing else "now" for missing in more)
    return f"passes {times}, beside the anchor {ratios}"


def _entry(number: int, entry: Entry) -> Section:
    visits = ", ".join(visit.t0_utc for visit in entry.visits)
    lines = (
        entry.reason,
        f"{plural(len(entry.visits), 'visit')} from {visits}",
        f"digest {entry.digest[:SHORT]}, record {entry.record[:SHORT]}, commit {entry.commit[:SHORT] or 'none'}",
    )
    return Section(title=f"entry {number}: {entry.kind}, {entry.time_utc}, {entry.author}", lines=lines)


def _metrics(baseline: Baseline) -> list[Metric]:
    """What its visits carry and can have a mean; values that are zero or negative have no ratio."""
    metrics = (metric for metric in _carried(baseline).values() if metric is not None)
    return [metric for metric in metrics if all(min(values) > 0 for values in baseline.values(metric.name))]


def _carried(baseline: Baseline) -> dict[str, Metric | None]:
    """What its visits carry, by name; ``None`` for what a newer version, or somebody else, wrote."""
    metrics: dict[str, Metric | None] = {}
    for name in dict.fromkeys(name for visit in baseline.visits for name in visit.values):
        try:
            metrics[name] = find_metric(name)
        except KeyError:
            metrics[name] = None
    return metrics


def _metric_row(baseline: Baseline, metric: Metric, anchor: Build | None) -> tuple[str, ...]:
    visits = baseline.values(metric.name)
    logs = [math.log(statistics.geometric_mean(visit)) for visit in visits]
    mean, newest = (format_value(value, metric.unit) for value in (_mean(baseline, metric), math.exp(logs[-1])))
    ratios = [occupation.values(metric.name, anchor) for occupation in baseline.occupations] if anchor else []
    beside = [_spread([math.log(*ratio) for ratio in ratios if ratio and min(ratio) > 0])] if anchor else []
    return (metric.name, mean, _spread(logs), *beside, str(len(visits)), newest)


def _spread(logs: Sequence[float]) -> str:
    return f"{statistics.stdev(logs) * 100:.3g} %" if len(logs) > 1 else "unknown"


def _mean(baseline: Baseline, metric: Metric) -> float:
    return statistics.geometric_mean([statistics.geometric_mean(visit) for visit in baseline.values(metric.name)])
