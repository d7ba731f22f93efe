"""The pages of a history: one of all series, and one for each cell on each class of machines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from perfgate.history.history_charts import build_name, history_chart, noise, short, short_place, summary, time_of
from perfgate.history.points import Series
from perfgate.history.sources import Fault
from perfgate.machine.atomic_files import sha256_hex
from perfgate.report.document import Document, Section
from perfgate.report.html import to_html
from perfgate.stats.change_points import YEARLY
from perfgate.stats.estimate import to_ratio
from perfgate.units import format_value, percent, plural, signed_percent

INDEX = "index.html"
TOLD = 1_600  # points of a page that are told one by one, of all its series together; a page has at most 2 MB
MOST_TOLD = 400  # of one series
MOST_PROMOTIONS = 60
MOST_LINKS = 60  # to pages of other cells, of a page that is not the first
MOST_FAULTS = 150  # shown; the command prints all
NO_DATA = "No data: nothing that was named holds a measurement."
SOURCE = "the records of its runs and the entries of its baselines"
RULE = (
    "Levels are logarithms of ratios to an anchor, one a night. One bad night is not a change: about four must have "
    f"seen it. In at most {percent(YEARLY)} of years without one a series shows one on any night (docs/error-rates.md)."
)
CHANGES = ("when", "what", "change (95 %)", "between")


def site(series: Sequence[Series], faults: Sequence[Fault]) -> dict[str, str]:
    """Every page by its file's name."""
    pages = {_file(group): group for _, members in groupby(series, key=_place) for group in [[*members]]}
    cells = _cell_names(series)
    names = [(f"{cells[group[0].cell_id]} on {short(group[0].machine)}", file) for file, group in pages.items()]
    written = {INDEX: to_html(replace(_overview(series, faults), pages=tuple(names), source=SOURCE))}
    for (words, file), group in zip(names, pages.values(), strict=True):
        others = [link for link in names if link[1] != file][:MOST_LINKS]
        links = (("all cells", INDEX), *others)
        sections = [section for trend in group for section in _metric(trend, min(MOST_TOLD, TOLD // len(group)))]
        headline = [words, *(f"{trend.metric.name}: {summary(trend)}{_newest(trend)}" for trend in group)]
        page = replace(Document.of(headline, sections), name=short(group[0].cell))
        written[file] = to_html(replace(page, pages=links, source=SOURCE))
    return written


def _cell_names(series: Sequence[Series]) -> dict[str, str]:
    """What each cell is called, by its id, which is told where another one has the same name."""
    names = {trend.cell_id: short(trend.cell) for trend in series}
    met = Counter(names.values())
    return {cell_id: name if met[name] == 1 else f"{name} ({cell_id[:8]})" for cell_id, name in names.items()}


def _place(series: Series) -> tuple[str, str]:
    return series.cell_id, series.machine


def _file(series: Sequence[Series]) -> str:
    """Named so that a reader knows it and no two pages share it."""
    readable = re.sub(r"[^a-z0-9]+", "-", series[0].cell.lower()).strip("-")[:40]
    return f"{readable or 'cell'}-{sha256_hex(' '.join(_place(series[0])))[:8]}.html"


def _overview(series: Sequence[Series], faults: Sequence[Fault]) -> Document:
    heading = ("cell", "machine", "metric", "visits", "newest", "beside the anchor", "changes", "newest visit")
    cells = _cell_names(series)
    rows: list[tuple[str, ...]] = [heading]
    for trend in series:
        newest, level = trend.points[-1], signed_percent(to_ratio(trend.nights[-1].level)) if trend.nights else "-"
        rows.append((
            cells[trend.cell_id], trend.machine, trend.metric.name, str(len(trend.points)),
            format_value(newest.value, trend.metric.unit), level,
            str(len(trend.course.changes)) if trend.course.looked else "-", time_of(newest)[:10],
        ))  # fmt: skip
    left_out = tuple(f"{short_place(fault.where)}: {short(fault.why)}" for fault in faults[:MOST_FAULTS])
    if len(faults) > MOST_FAULTS:
        left_out += (f"and {len(faults) - MOST_FAULTS} more",)
    looked = [trend for trend in series if trend.course.looked]
    changed = sum(bool(trend.course.changes) for trend in looked)
    headline = ["The history of what was measured" if series else NO_DATA]
    if looked:
        headline.append(f"{changed} of {len(looked)} series changed.")
    elif series:
        headline.append("No series has enough nights beside an anchor to look for changes.")
    sections = [
        Section(lead="what is measured", rows=rows) if series else None,
        Section(lead=f"left out: {len(faults)}", lines=left_out, style="items", folded=len(faults) > 10)  # noqa: PLR2004
        if faults else None,
        Section(lead="how changes are found", lines=(RULE,)),
    ]  # fmt: skip
    return replace(Document.of(headline, sections), name="history")


def _newest(series: Series) -> str:
    if not series.course.changes:
        return ""
    change = series.course.changes[-1]
    how, night = "drifted" if change.drifts else "changed", series.nights[change.first]
    return f" Newest: {how} by {signed_percent(to_ratio(change.size))} from {night.date} on."


def _metric(series: Series, most: int) -> Iterator[Section]:
    yield Section(title=f"{series.metric.name}: {series.metric.meaning}")
    chart = history_chart(series, most)
    count = len(series.nights or series.points)
    lines = [f"The table has the newest {most} of {count}."] if count > most else []
    yield Section(lead=chart.title, lines=tuple(filter(None, (noise(series), *lines))), chart=chart)
    if series.course.changes:
        yield Section(lead="changes", rows=[CHANGES, *_change_rows(series)])
    facts = tuple(_facts(series))
    if facts:
        yield Section(lead="anchor and machine", lines=facts, style="facts")
    promotions = [point for point in series.points if point.promoted]
    if promotions:
        rows = [("visit", "kind", "by", "build", "reason")]
        rows += [(time_of(point), point.promoted, short(point.author), build_name(point), short(point.reason))
                 for point in reversed(promotions[-MOST_PROMOTIONS:])]  # fmt: skip
        shown = f", the newest {MOST_PROMOTIONS}" if len(promotions) > MOST_PROMOTIONS else ""
        yield Section(lead=f"{plural(len(promotions), 'promotion')}{shown}", rows=rows, folded=True)


def _change_rows(series: Series) -> Iterator[tuple[str, ...]]:
    for change in reversed(series.course.changes):
        begun, ended = series.nights[change.first], series.nights[change.last]
        before = series.nights[max(change.first - 1, 0)]
        low, high = (signed_percent(to_ratio(end)) for end in change.interval())
        yield (
            f"{before.date} to {ended.date}" if change.drifts else begun.date,
            "drift" if change.drifts else "change",
            f"{signed_percent(to_ratio(change.size))} ({low} to {high})",
            f"{build_name(before.point)} ({before.date}) and {build_name(ended.point)} ({ended.date})",
        )


def _facts(series: Series) -> Iterator[str]:
    """What is beside the build: the anchor, how far it moved itself, and the cards."""
    if series.nights:
        yield f"anchor: {short(series.anchor)}, beside {plural(len(series.nights), 'night')}"
        moved = series.anchor_moved
        nights = [night for night in series.nights if night.anchor == series.nights[-1].anchor]
        if moved is not None:
            sign = series.metric.sign
            low, high = sorted(to_ratio(sign * end) for end in (moved.lower(0.025), moved.upper(0.025)))
            unit = series.metric.unit
            yield (f"drift of the anchor: {signed_percent(to_ratio(sign * moved.mean))} ({signed_percent(low)} to "
                   f"{signed_percent(high)}), {format_value(nights[0].beside, unit)} on {nights[0].date} to "
                   f"{format_value(nights[-1].beside, unit)} on {nights[-1].date}: the machine")  # fmt: skip
    if series.nights and (others := len(series.points) - len(series.nights)):
        yield (f"not among them: {plural(others, 'visit')}, of the same hours as another, not beside the anchor, or "
               "beside one that no build links to it")  # fmt: skip
    for card, letter in series.cards.items():
        visits = [point for point in series.points if (point.card or point.devices) == card]
        yield f"card {letter}: {plural(len(visits), 'visit')}, {time_of(visits[0])[:10]} to {time_of(visits[-1])[:10]}"
    for state in ("slow", "both"):
        if met := sum(point.state == state for point in series.points):
            yield f"{state} state{'s' if state == 'both' else ''}: {plural(met, 'visit')}"
