"""Points as series: one metric of a cell on one class of machines, its nights beside an anchor, and what changed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import groupby

from perfgate import stats
from perfgate.baseline.night_series import SECONDS_A_DAY, Night, linked, one_a_day
from perfgate.history.points import Point, build_of, metric_of
from perfgate.metrics.catalogue import Metric
from perfgate.stats.change_points import Change, Course, course
from perfgate.stats.drift import moved

USUAL = ("itl_median", "tpot_mean", "ttft_median", "output_throughput")  # shown of a cell of which no gate is known
FEWEST_BESIDE = 2  # visits beside one build that make it something that ratios are told to


@dataclass(frozen=True)
class MeasuredNight(Night):
    """A night of a series, with the point that it is."""

    point: Point  # as it was measured; :attr:`level` may be beside a later anchor


@dataclass(frozen=True)
class Series:
    """One metric of one cell on one class of machines."""

    points: tuple[Point, ...]  # in order of time, each visit once
    nights: tuple[MeasuredNight, ...]  # those of them that were measured beside one anchor or linked to it, one a day
    course: Course  # what the nights say together: no change is sought between nights beside different anchors

    @property
    def cell_id(self) -> str:
        """The cell's id."""
        return self.points[-1].cell_id

    @property
    def cell(self) -> str:
        """The cell's name."""
        return self.points[-1].cell

    @property
    def machine(self) -> str:
        """The machine class."""
        return self.points[-1].machine

    @property
    def metric(self) -> Metric:
        """The metric."""
        found = metric_of(self.points[-1].metric)
        assert found is not None  # noqa: S101 (no point is of an unknown one)
        return found

    @property
    def anchor(self) -> str:
        """What the newest nights were measured beside, in words; empty where there are none."""
        return self.nights[-1].anchor.title if self.nights else ""

    @cached_property
    def anchor_moved(self) -> stats.Estimate | None:
        """How far the newest anchor's own times moved, as a log ratio, positive is worse: the machine's drift."""
        own = [night for night in self.nights if night.anchor == self.nights[-1].anchor]
        sign = self.metric.sign
        return moved([(night.day, sign * math.log(night.beside)) for night in own], math.inf)

    @cached_property
    def cards(self) -> dict[str, str]:
        """A letter for each card, in the order they were met; nothing else is told of a device."""
        met = dict.fromkeys(card for point in self.points if (card := point.card or point.devices))
        return {card: _letters(number) for number, card in enumerate(met)}


def _letters(number: int) -> str:
    """A, B, ..., Z, AA, ..."""
    return (_letters(number // 26 - 1) if number >= 26 else "") + chr(ord("A") + number % 26)  # noqa: PLR2004


def all_series(points: Iterable[Point], metrics: Sequence[str] = ()) -> list[Series]:
    """Every series, by cell, machine and metric.

    Args:
        points: In any order; the same visit may be told of by a run, its artifact and a baseline.
        metrics: What is wanted; those with a gate, else the usual ones, where nothing is named.
    """
    groups: dict[tuple[str, str, str], list[Point]] = {}
    for point in _each_once(points):
        groups.setdefault((point.cell_id, point.machine, point.metric), []).append(point)
    gated: dict[str, set[str]] = {}
    for (cell_id, _, metric), own in groups.items():
        if any(point.gated for point in own):
            gated.setdefault(cell_id, set()).add(metric)
    order = {name: number for number, name in reversed([*enumerate([*metrics, *USUAL])])}
    found = [
        _series(sorted(own, key=lambda point: (point.t0_utc, point.role)))
        for (cell_id, _, metric), own in groups.items()
        if metric in (metrics or gated.get(cell_id) or USUAL)
    ]

    def place(one: Series) -> tuple[str, str, str, int, str]:
        name = one.metric.name
        return one.cell, one.cell_id, one.machine, order.get(name, len(order)), name

    return sorted(found, key=place)


def _each_once(points: Iterable[Point]) -> Iterator[Point]:
    """A point for each visit of a build: what its run says, and how it was promoted.

    A run that went on later has another record, and its first visit in both. Two visits that began in one second and
    took the same to the last digit are one.
    """
    known: dict[tuple[object, ...], Point] = {}
    for point in points:
        key = (point.t0_utc, point.cell_id, point.machine, point.metric, point.build, point.restarts, point.value)
        other = known.get(key)
        if other is None:
            known[key] = point
            continue
        run, kept = sorted((other, point), key=lambda one: (not one.verdict, one.ratio is None))
        known[key] = replace(run, card=run.card or kept.card, promoted=run.promoted or kept.promoted,
                             author=run.author or kept.author, reason=run.reason or kept.reason)  # fmt: skip
    named = {point.devices: point.card for point in known.values() if point.devices and point.card}
    return (replace(point, card=named.get(point.devices, point.card)) if point.devices else point
            for point in known.values())  # fmt: skip


def _series(points: Sequence[Point]) -> Series:
    nights = one_a_day(linked(_nights(points))[0])
    return Series(tuple(points), nights, _course(nights))


def _nights(points: Sequence[Point]) -> list[MeasuredNight]:
    """The visits beside an anchor, else beside the build that most were: of heads, where there are any."""
    beside = [point for point in points if point.ratio is not None and point.beside]
    beside = [point for point in beside if point.pinned] or beside
    beside = [point for point in beside if point.role == "head"] or beside
    if beside and not beside[0].pinned:
        most, visits = Counter(point.beside for point in beside).most_common(1)[0]
        beside = [point for point in beside if point.beside == most and visits >= FEWEST_BESIDE]
    return [_night(point) for point in beside]


def _night(point: Point) -> MeasuredNight:
    begun = datetime.fromisoformat(point.t0_utc).astimezone(UTC)
    return MeasuredNight(
        day=begun.timestamp() / SECONDS_A_DAY, date=begun.date().isoformat(), build=build_of(point.build),
        anchor=build_of(point.beside), level=point.ratio or 0.0, beside=point.beside_value or math.nan, point=point,
    )  # fmt: skip


def _course(nights: Sequence[MeasuredNight]) -> Course:
    """Of each anchor's nights on their own: a link is not exact, and its error would pass for a change."""
    changes: list[Change] = []
    fitted: list[float] = []
    newest = Course((), (), 0.0, looked=False)
    for _, together in groupby(nights, key=lambda night: night.point.beside):
        begin, own = len(fitted), course([night.level for night in together])
        changes += [replace(one, first=one.first + begin, last=one.last + begin) for one in own.changes]
        fitted += own.fitted
        newest = own if own.looked or not newest.looked else newest
    return replace(newest, changes=tuple(changes), fitted=tuple(fitted))
