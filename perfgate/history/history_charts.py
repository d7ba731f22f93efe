"""The chart of a series: ratios to the anchor with their intervals and changes, and below the times themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

from perfgate.baseline.night_series import SECONDS_A_DAY
from perfgate.history.points import Point, Series, build_of
from perfgate.report.chart import WIDTH, Chart, Mark, Rows, Scale, dots, label, line, polyline, rect
from perfgate.report.document import cut
from perfgate.stats.estimate import to_ratio
from perfgate.units import format_value, percent, plural, signed_percent

LEFT, RIGHT = 74.0, WIDTH - 16.0
TOP, MIDDLE, GAP, BOTTOM = 22.0, 196.0, 60.0, 352.0
LONGEST_BUILD = 90  # characters of a build's name; whoever made it may have made it long
MANY = 150  # nights whose dots are drawn small
CARD_COLOURS = 7
LOOKS = {"slow": "slow", "fast": "fast", "both": "mixed"}
HEADING = ("night", "beside the anchor", "interval", "value", "anchor", "restarts", "card", "state", "verdict",
           "promoted", "build")  # fmt: skip
LEGEND = (
    ("dots head medium", "a night"),
    ("line range head", "its interval, 95 %"),
    ("curve base", "level between changes"),
    ("line must", "a change"),
    ("zone-warn", "a drift"),
    ("fill good", "promoted"),
)
TIMES = (("dots head small", "the build itself"), ("dots plain small", "anchor"))
STATES = {"slow": ("dots slow large", "slow state"), "fast": ("dots fast large", "fast state"),
          "both": ("dots mixed large", "both states")}  # fmt: skip


def short(text: str) -> str:
    """Words that somebody else may have written, cut."""
    return cut(text, LONGEST_BUILD)


def short_place(text: str) -> str:
    """A place in files, cut in front: its end names the file."""
    return text if len(text) <= LONGEST_BUILD else f"\u2026{text[1 - LONGEST_BUILD :]}"


def build_name(point: Point) -> str:
    """What was measured, in short."""
    return short(build_of(point.build).title) or "unknown"


def day_of(point: Point) -> float:
    """When, in days since 1970."""
    return datetime.fromisoformat(point.t0_utc).timestamp() / SECONDS_A_DAY


def time_of(point: Point) -> str:
    """The same for people, to the minute, in UTC."""
    return f"{datetime.fromisoformat(point.t0_utc).astimezone(UTC):%Y-%m-%d %H:%M}"


def history_chart(series: Series, most: int) -> Chart:
    """Ratios and times of a series where it has nights beside an anchor, else its times alone.

    Of the newest points so many are told one by one; those before are drawn.
    """
    first, last = (day_of(series.points[n]) for n in (0, -1))
    x = Scale(first - 0.02 * (last - first) - 0.3, last + 0.02 * (last - first) + 0.3, LEFT, RIGHT)
    metric, unit = series.metric, series.metric.unit
    marks: list[Mark] = []
    top = TOP
    if series.nights:
        top = MIDDLE + GAP
        marks += [*_ratios(series, x, most), *_below(series, x)]
    values = [value for point in series.points for value in (point.value, point.beside_value) if value]
    marks += _times(series, x, Scale.around(values, BOTTOM, top), most)
    marks += [label("panel", LEFT, top - 8, f"{metric.name} itself"), *_dates(x, BOTTOM)]
    states = [STATES[state] for state in dict.fromkeys(point.state for point in series.points) if state in STATES]
    if len(series.cards) > 1:
        states += [(_card_look(letter), f"card {letter}") for letter in [*series.cards.values()][:CARD_COLOURS]]
    legend = ((*LEGEND, *states) if series.nights else ()) + TIMES[: 2 if series.nights else 1]
    newest = series.points[-1]
    seen = f"{len(series.points)} visits from {time_of(series.points[0])[:10]} to {time_of(newest)[:10]}; the newest "
    seen += f"took {format_value(newest.value, unit)}. {summary(series)}"
    title = f"{metric.name} over time"
    return Chart(title, seen, BOTTOM + 34, tuple(marks), legend, _table(series, most), spread=series.course.night_sd)


def summary(series: Series) -> str:
    """How many changes there are, in a sentence."""
    if not series.nights:
        return "No anchor was measured beside it, so changes are not looked for."
    if not series.course.looked:
        return f"{plural(len(series.nights), 'night')} beside an anchor: too few to look for changes."
    drifts = sum(change.drifts for change in series.course.changes)
    steps = len(series.course.changes) - drifts
    counted = [f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in ((steps, "change"), (drifts, "drift"))]
    changes = " and ".join(text for text in counted if not text.startswith("0")) or "No change"
    return f"{changes} in {len(series.nights)} nights."


# --- marks


def _ratios(series: Series, x: Scale, most: int) -> Iterator[Mark]:
    nights = series.nights
    shift = [night.level - (night.point.ratio or 0.0) for night in nights]
    ends = [end + moved for night, moved in zip(nights, shift, strict=True)
            for end in (night.point.ratio_low, night.point.ratio_high) if end is not None]  # fmt: skip
    ordered = sorted([*ends, *(night.level for night in nights)])
    thousandth = len(ordered) // 200  # at either end: one night that went wrong must not flatten all others
    y = Scale.around([to_ratio(v) for v in ordered[thousandth : len(ordered) - thousandth]], MIDDLE, TOP)
    yield from _grid(y, signed_percent)
    yield label("panel", LEFT, TOP - 8, "beside the anchor, worse is up")
    yield from _changes(series, x, y)
    for night, moved in zip(nights, shift, strict=True):
        low, high = night.point.ratio_low, night.point.ratio_high
        if low is not None and high is not None and night.day >= nights[-most:][0].day:
            yield line(
                "range head", (x(night.day), y(to_ratio(low + moved))), (x(night.day), y(to_ratio(high + moved)))
            )
    yield from _drawn([(x(night.day), y(to_ratio(night.level))) for night in nights[:-most]], "head")
    size = "small" if len(nights) > MANY else "medium"
    for night in nights[-most:]:
        point, card = night.point, _card(night.point)
        words = [f"{signed_percent(to_ratio(night.level))} beside the anchor",
                 format_value(point.value, series.metric.unit), f"card {series.cards[card]}" if card else "",
                 f"{point.state} state" if point.state else "", point.verdict,
                 f"promoted ({point.promoted})" if point.promoted else "", build_name(point)]  # fmt: skip
        tip = f"{time_of(point)}: {', '.join(filter(None, words))}"
        yield dots(f"head {LOOKS.get(point.state, '')} {size}", [(x(night.day), y(to_ratio(night.level)))], tip)
    yield polyline("base", [(x(night.day), y(to_ratio(level)))
                            for night, level in zip(nights, series.course.fitted, strict=True)])  # fmt: skip


def _changes(series: Series, x: Scale, y: Scale) -> Iterator[Mark]:
    nights = series.nights
    for change in series.course.changes:
        at, until = nights[change.first], nights[change.last]
        words = f"{at.date}: {signed_percent(to_ratio(change.size))}"
        if change.drifts:
            begin, end = x(nights[max(change.first - 1, 0)].day), x(until.day)
            yield rect("zone-warn", begin, TOP, (end - begin, MIDDLE - TOP), f"drift from {words} to {until.date}")
        else:
            middle = (x(at.day) + x(nights[max(change.first - 1, 0)].day)) / 2
            yield line("must", (middle, TOP), (middle, MIDDLE), f"change by {words}")
        height = y.end + 10 if change.size < 0 else y.begin - 6
        yield label("note", min(x(at.day) + 4, RIGHT - 40), height, signed_percent(to_ratio(change.size)))


def _below(series: Series, x: Scale) -> Iterator[Mark]:
    """Promotions and, where there are several, the cards: what they were is in the tables."""
    promoted = [x(day_of(point)) for point in series.points if point.promoted]
    if promoted:
        yield Mark("path", "fill good", path="".join(f"M{at:.1f} {MIDDLE + 3:.0f}l3 6-6 0z" for at in promoted))
    if len(series.cards) < 2:  # noqa: PLR2004 (nothing to be told apart)
        return
    begin = x.begin
    for at, point in enumerate(series.points):
        following = series.points[at + 1] if at + 1 < len(series.points) else None
        if following is None or _card(following) != _card(point):
            end = (x(day_of(point)) + x(day_of(following))) / 2 if following else x.end
            if letter := series.cards.get(_card(point)):
                yield rect(_card_look(letter), begin, MIDDLE + 13, (end - begin, 5), f"card {letter}")
            begin = end


def _card(point: Point) -> str:
    return point.card or point.devices


def _card_look(letter: str) -> str:
    return f"part-{(ord(letter[-1]) - ord('A')) % CARD_COLOURS}"


def _times(series: Series, x: Scale, y: Scale, most: int) -> Iterator[Mark]:
    unit = series.metric.unit
    yield from _grid(y, lambda tick: format_value(tick, unit))
    beside = {id(night.point) for night in series.nights}
    anchors = [(x(night.day), y(night.beside)) for night in series.nights]
    yield from _drawn(anchors, "plain")
    if series.nights:
        others = [point for point in series.points if id(point) not in beside]
        yield from _drawn([(x(night.day), y(night.point.value)) for night in series.nights], "head")
        yield from _drawn([(x(day_of(point)), y(point.value)) for point in others], "cut")
        return
    for point in series.points[-most:]:
        if point.low is not None and point.high is not None:
            at = x(day_of(point))
            yield line("range head", (at, y(point.low)), (at, y(point.high)))
    yield from _drawn([(x(day_of(point)), y(point.value)) for point in series.points[:-most]], "head")
    for point in series.points[-most:]:
        tip = f"{time_of(point)}: {format_value(point.value, unit)}, {point.verdict or point.promoted}, "
        look = f"head {LOOKS.get(point.state, '')} medium"
        yield dots(look, [(x(day_of(point)), y(point.value))], tip + build_name(point))


def _drawn(points: Sequence[tuple[float, float]], side: str) -> Iterator[Mark]:
    """Points that are not told one by one; of those in one place of the screen one is drawn."""
    kept = dict.fromkeys((round(x), round(y, 0)) for x, y in points)
    if kept:
        yield dots(f"{side} small", [*kept])


def _grid(scale: Scale, show: Callable[[float], str]) -> Iterator[Mark]:
    for tick in scale.ticks(4):
        yield line("grid", (LEFT, scale(tick)), (RIGHT, scale(tick)))
        yield label("tick", LEFT - 8, scale(tick) + 4, show(tick), "end")


def _dates(x: Scale, bottom: float) -> Iterator[Mark]:
    """Days or first days of months, as many as have room."""
    begin, end = (datetime.fromtimestamp(day * SECONDS_A_DAY, UTC) for day in (x.low, x.high))
    for day in _round_days(begin, end):
        at = x(day.timestamp() / SECONDS_A_DAY)
        yield line("axis", (at, bottom), (at, bottom + 5))
        yield label("tick", at, bottom + 20, f"{day:%Y-%m-%d}" if day.day != 1 or (end - begin).days < 60  # noqa: PLR2004
                    else f"{day:%Y-%m}", "middle")  # fmt: skip


def _round_days(begin: datetime, end: datetime) -> Iterator[datetime]:
    days = (end - begin).days + 1
    if days <= 60:  # noqa: PLR2004 (two months: days tell more)
        step = max(1, math.ceil(days / 7))
        first = begin.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
        yield from (first + timedelta(days=n) for n in range(0, days - 1, step))
        return
    months = math.ceil(days / 30.4 / 9)
    step = next((size for size in (1, 2, 3, 6, 12) if size >= months), 12 * math.ceil(months / 12))
    for month in range(begin.year * 12, end.year * 12 + 12, step):
        day = datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC)
        if begin <= day <= end:
            yield day


def _table(series: Series, most: int) -> Rows:
    """The newest nights, newest first; without an anchor the newest visits."""
    unit = series.metric.unit
    levels = {id(night.point): night for night in series.nights}
    points = [night.point for night in series.nights] if series.nights else [*series.points]
    rows: list[tuple[str, ...]] = [HEADING]
    for point in reversed(points[-most:]):
        night, card = levels.get(id(point)), _card(point)
        moved = night.level - (point.ratio or 0.0) if night else 0.0
        ends = [signed_percent(to_ratio(end + moved)) for end in (point.ratio_low, point.ratio_high) if end is not None]
        level = f"{to_ratio(night.level) * 100:+.3f} %" if night else ""  # all digits: rows are compared by it
        beside = format_value(point.beside_value, unit) if night and point.beside_value else ""
        cells = (time_of(point), level, " to ".join(ends), format_value(point.value, unit), beside,
                 str(point.restarts), series.cards[card] if card else "", point.state, point.verdict, point.promoted,
                 build_name(point))  # fmt: skip
        rows.append(tuple(cell or "-" for cell in cells))
    return rows


def noise(series: Series) -> str:
    """How far two nights are apart by chance, for those who compare rows."""
    if not series.course.night_sd:
        return ""
    sd = series.course.night_sd
    return (
        f"Nights at one level differ by {percent(sd)} (one standard deviation). The change between two rows "
        f"of the table is the difference of their levels; by chance it is within {percent(1.96 * math.sqrt(2) * sd)} "
        "in 95 of 100."
    )
