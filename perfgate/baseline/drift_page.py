"""How far a build that changes every night has moved from its anchor, and how far the machine has."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence

from perfgate.baseline.lineage import Baseline
from perfgate.baseline.night_series import Drift
from perfgate.metrics.catalogue import METRICS
from perfgate.report.document import Document, Section
from perfgate.stats.estimate import to_ratio
from perfgate.units import format_value, listed, plural, signed_percent

BARS = "▁▂▃▄▅▆▇█"
MOST_BARS = 60
"""Nights drawn, the newest ones."""
ENDS = 5
"""Builds named at either end of a window; JSON has all of them."""
MOST_WORDS = 6
"""What is told of a build beside its title."""


def drift_document(lineages: Iterable[tuple[Baseline, Sequence[Drift]]]) -> Document:
    """Budgets and what was used of them, a section a lineage, with the nights drawn below."""
    return Document.of((), [section for lineage, drifts in lineages for section in _sections(lineage, drifts)])


def drift_json(lineages: Iterable[tuple[Baseline, Sequence[Drift]]]) -> str:
    """The same as JSON: each budget with its nights, and every build of its window."""
    rows = [
        {
            "cell": lineage.cell.name,
            "machine_class": lineage.machine_class,
            "metric": drift.metric,
            "budget": drift.budget._asdict() if drift.budget else None,
            "moved": None if drift.change is None else to_ratio(drift.change.mean),
            "over": drift.over,
            "finding": finding(drift) if drift.over else "",
            "nights": [{"date": n.date, "moved": to_ratio(n.level), "anchor": n.beside} for n in drift.nights],
            "builds": [
                {"date": night.date, "name": name, **night.build.model_dump(mode="json")}
                for night, name in zip(drift.builds, named(drift), strict=True)
            ],
        }
        for lineage, drifts in lineages
        for drift in drifts
    ]
    return json.dumps(rows, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _sections(lineage: Baseline, drifts: Sequence[Drift]) -> Iterator[Section]:
    rows = [("metric", "budget", "moved", "nights", "verdict"), *map(_row, drifts)]
    yield Section(title=f"{lineage.cell.name} on {lineage.machine_class}", rows=rows)
    for drift in drifts:
        if drift.nights:
            yield Section(lines=tuple(_lines(drift)), close=True)
        if drift.over:
            yield Section(lines=tuple(measured_builds(drift)), style="items", close=True)


def _row(drift: Drift) -> tuple[str, ...]:
    moved, verdict = "unknown", "too few nights"
    if drift.change is not None:
        moved = signed_percent(to_ratio(drift.change.mean))
        verdict = "OVER BUDGET" if drift.over else "within"
    verdict = verdict if drift.budget else "only drawn"
    return (drift.metric, str(drift.budget or "none"), moved, str(len(drift.window)), verdict)


def _lines(drift: Drift) -> Iterator[str]:
    nights, unit = drift.nights[-MOST_BARS:], METRICS[drift.metric].unit
    levels = [night.level for night in nights]
    first, last = (signed_percent(to_ratio(levels[n])) for n in (0, -1))
    days = " to ".join(nights[n].date for n in (0, -1))
    yield f"{drift.metric} by the anchor's: {bars(levels)} {first} to {last}, {days}"
    newest = [night for night in nights if night.anchor == nights[-1].anchor]
    ends = " to ".join(format_value(newest[n].beside, unit) for n in (0, -1))
    yield f"the anchor's own, {newest[0].anchor.title}: {bars([math.log(night.beside) for night in newest])} {ends}"
    if drift.over:
        yield finding(drift)


def finding(drift: Drift) -> str:
    """Between which builds a loss is, in words."""
    names = named(drift)
    if len(names) == 1:
        return (
            f"by all that can be told one build was measured all along, {names[0]}: what slows the anchor as much "
            "cancels, so look for what slows this build more: files that were edited in place, or a part of the "
            "machine that it uses more"
        )
    between = f"with {plural(len(names) - 2, 'build')} measured in between"
    return f"the loss is of changes after {names[0]} and up to {names[-1]}, {between}"


def measured_builds(drift: Drift) -> Iterator[str]:
    """The builds of a window, each with its first night; of many the first and last few; none where all are one."""
    lines = [f"{night.date}: {name}" for night, name in zip(drift.builds, named(drift), strict=True)]
    more = len(lines) - 2 * ENDS
    if more > 1:
        lines[ENDS:-ENDS] = [f"... {more} more"]
    return iter(lines if len(lines) > 1 else [])


def named(drift: Drift) -> list[str]:
    """Each of its builds by title and vLLM's commit; where titles are alike, by all else in which builds differ."""
    builds = [night.build for night in drift.builds]
    titles = [build.title for build in builds]
    shared = set.intersection(*(set(build.words) for build in builds)) if builds else set()
    alike = len({*titles}) < len(titles)
    names = []
    for build, title in zip(builds, titles, strict=True):
        further = [word for word in build.words if word not in shared and word.removeprefix("built from ") not in title]
        words = further if alike else [word for word in further if word.startswith("vllm commit ")]
        names.append(f"{title}, {listed(words, MOST_WORDS)}" if words else title)
    return names


def bars(levels: Sequence[float]) -> str:
    """A character a level, from the least to the largest."""
    low, high = min(levels), max(levels)
    step = (high - low) / (len(BARS) - 1)
    return "".join(BARS[round((level - low) / step)] if step else BARS[0] for level in levels)
