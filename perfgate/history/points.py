"""What visits measured of one metric, the rows of the history's table, and the series that they make."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import groupby
from typing import Any, Literal

from perfgate import scipy_special as special
from perfgate import stats
from perfgate.baseline.lineage import Baseline
from perfgate.baseline.night_series import SECONDS_A_DAY, Night, linked, one_a_day
from perfgate.baseline.stored_visit import BaselineVisit, Build, visits_of
from perfgate.errors import RecordError
from perfgate.judge.outcome import CellOutcome, Outcome
from perfgate.machine.atomic_files import canonical_json
from perfgate.machine.fingerprint import machine_class
from perfgate.metrics.catalogue import Metric, find_metric
from perfgate.metrics.sides import Side
from perfgate.record.run_record import Record, Run, record_digest
from perfgate.report.outcome_lines import by_metric
from perfgate.stats.change_points import Change, Course, course
from perfgate.stats.drift import moved

Role = Literal["head", "reference"]  # a build that changes from night to night, or one that is measured again and again
LEAST, LARGEST = 1e-18, 1e18  # of a value; what is beyond was not measured
YEARS = range(2000, 2200)  # of a visit
MISSED = 0.05  # of intervals at most so many miss the median


@dataclass(frozen=True)
class Point:
    """A visit of one build and one metric; plain values, as they are in the cache."""

    cell_id: str  # the cell
    cell: str
    machine: str  # the machine class
    metric: str  # name of the metric
    t0_utc: str  # when the visit began, ISO 8601 in UTC
    record: str  # digest of the record that its values come from
    role: Role  # what is measured, as far as its source tells
    build: str  # the build, as JSON of :class:`~perfgate.baseline.stored_visit.Build`
    value: float  # median of the restarts, in the metric's base unit
    low: float | None  # lower end of its interval; `None` where there are too few restarts for one
    high: float | None  # upper end
    restarts: int  # how many there are
    beside: str = ""  # the build that was measured in pairs with it, as `build`; empty where it was measured alone
    pinned: bool = False  # whether that is an anchor
    ratio: float | None = None  # median of ln(build / beside), positive is worse; `None` without pairs
    ratio_low: float | None = None  # lower end of its interval
    ratio_high: float | None = None  # upper end
    beside_value: float | None = None  # median of what that build took
    card: str = ""  # digest of the GPUs by the salt of the baseline that it is of; empty without one
    devices: str = ""  # ids of the GPUs, for a record; they are never shown
    state: str = ""  # of the machine, where it has two: `slow`, `fast` or `both`
    verdict: str = ""  # of the metric's gate; empty where it is not gated, or a baseline tells of it alone
    change: float | None = None  # what the gate says of head beside base; `None` without a verdict
    gated: bool = False  # whether the cell has a gate of the metric
    promoted: str = ""  # kind of the promotion that took it into a baseline; empty where none did
    author: str = ""  # who promoted it
    reason: str = ""  # why


@functools.cache
def build_of(text: str) -> Build:
    """The build that a point names."""
    return Build.model_validate_json(text)


@functools.cache
def metric_of(name: str) -> Metric | None:
    """The metric of that name; ``None`` for one of a newer version, or that somebody made up."""
    try:
        return find_metric(name)
    except KeyError:
        return None


def points_of_run(run: Run, outcome: Outcome, records: Sequence[Record]) -> Iterator[Point]:
    """What a run measured: of each visit its head, each of several heads, or the only side it has.

    Raises:
        RecordError: A visit began at no time.
    """
    cells = {(cell.cell_id, cell.head): cell for cell in outcome.cells}
    for record in records:
        digest, pinned = record_digest(record), run.against is not None and record.alone is None
        devices = {utc(visit.t0_utc): " ".join(sorted({*visit.uuids})) for visit in record.visits}
        for head, compared in record.comparisons().items():
            judgement = cells.get((record.cell.cell_id, head))
            yield from _points_of_record(compared, judgement, digest, devices, pinned=pinned)


def _points_of_record(
    record: Record, outcome: CellOutcome | None, digest: str, devices: Mapping[str, str], *, pinned: bool
) -> Iterator[Point]:
    side: Side = "head" if "head" in record.subjects else "base"
    paired = record.alone is None and not Build.of(record, "base").opaque
    build = _text(Build.of(record, side))
    gates = {gate.gate.metric for gate in record.cell.gates}
    where = machine_class(record.visits[0].machine, record.cell.clocks.mode) if record.visits else ""
    state = ""  # of the machine while the head was measured; empty where it has one
    if outcome is not None and outcome.states is not None:
        slow, trials = (counted.get("head", 0) for counted in (outcome.states.slow, outcome.states.trials))
        state = "fast" if not slow else "slow" if slow == trials else "both"
    gates_shown = [gate for gate, *_ in by_metric(outcome)] if outcome else []  # of several states the worst
    said: dict[str, dict[str, Any]] = {
        gate.metric: {"verdict": gate.verdict, "change": gate.change} for gate in reversed(gates_shown)
    }
    for visit in visits_of(record, side, "", anchored=paired):
        begun = utc(visit.t0_utc)
        for metric, figures in _figures(visit):
            yield Point(
                record.cell.cell_id, record.cell.name, where, metric, begun, digest,
                "head" if side == "head" else "reference", build, **figures, pinned=pinned,
                devices=devices.get(begun, ""), state=state, gated=metric in gates, **said.get(metric, {}),
            )  # fmt: skip


def points_of_baseline(lineage: Baseline) -> Iterator[Point]:
    """What a baseline keeps: every visit of every entry, of whatever epoch.

    A lineage in which most entries are of another build is that of a head, else of a reference.

    Raises:
        RecordError: A visit began at no time.
    """
    cell, machine = lineage.entries[0].cell, lineage.entries[0].machine
    builds = {_text(entry.build) for entry in lineage.entries}
    role: Role = "head" if 2 * len(builds) > len(lineage.entries) else "reference"
    for entry in lineage.entries:
        cell, machine = entry.cell or cell, entry.machine or machine
        if cell is None or machine is None:
            continue  # no entry before it says what it measured; such a lineage is not read
        where = machine_class(machine, str(cell.clocks["mode"]))
        for visit in entry.visits:
            for metric, figures in _figures(visit):
                yield Point(
                    cell.cell_id, cell.name, where, metric, utc(visit.t0_utc), entry.record, role, _text(entry.build),
                    **figures, pinned=visit.anchor is not None, card=visit.card, promoted=entry.kind,
                    author=entry.author, reason=entry.reason,
                )  # fmt: skip


def utc(text: str) -> str:
    """A moment in UTC to the second, so that moments are in order as texts.

    Raises:
        RecordError: It is none, or in no year in which anything can have been measured.
    """
    try:
        moment = datetime.fromisoformat(text)
        instant = moment.astimezone(UTC) if moment.tzinfo and moment.year in YEARS else None
    except (ValueError, OverflowError):
        instant = None
    if instant is None:
        raise RecordError(f"a visit began at {text[:40]!r}, and that is not a time with its zone")
    return instant.isoformat(timespec="seconds")


def _figures(visit: BaselineVisit) -> Iterator[tuple[str, dict[str, Any]]]:
    """Value, ratio and their intervals by name of the metric; what has no logarithm or is not known is left out."""
    for metric, values in visit.values.items():
        definition, other = metric_of(metric), visit.anchor.values.get(metric, ()) if visit.anchor else ()
        if definition is None or not LEAST < min((*values, *other)) <= max((*values, *other)) < LARGEST:
            continue
        logs = [math.log(value) for value in values]
        middle, low, high = (None if end is None else math.exp(end) for end in typical(logs))
        figures: dict[str, Any] = {"value": middle, "low": low, "high": high, "restarts": len(values)}
        if visit.anchor and other:
            beside = [math.log(value) for value in other]
            ratios = [log - anchor for log, anchor in zip(logs, beside, strict=False)]
            if (within := visit.anchor.in_states.get(metric)) is not None:
                ratios = [math.log(ratio) for ratio in within if LEAST < ratio < LARGEST]
            signed = typical([definition.sign * ratio for ratio in ratios]) if ratios else (None, None, None)
            figures |= dict(zip(("ratio", "ratio_low", "ratio_high"), signed, strict=True))
            figures |= {"beside": _text(visit.anchor.build), "beside_value": math.exp(typical(beside)[0])}
        yield metric, figures


def typical(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """The median with an interval by order statistics, which needs no assumption about how restarts are spread.

    The interval between the k-th smallest and the k-th largest misses the median of a continuous distribution with
    twice the probability that a fair coin shows heads fewer than k times. Below six values there is none.
    """
    ordered = sorted(values)
    n, half = len(ordered), len(ordered) // 2
    middle = ordered[half] if n % 2 else (ordered[half - 1] + ordered[half]) / 2
    rank = max((k for k in range(1, half + 1) if 2 * special.bdtr(k - 1, n, 0.5) <= MISSED), default=0)
    return (middle, ordered[rank - 1], ordered[n - rank]) if rank else (middle, None, None)


def _text(build: Build) -> str:
    return canonical_json(build.model_dump(mode="json"))


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
        metric = metric_of(self.points[-1].metric)
        assert metric is not None  # noqa: S101 (no point is of an unknown one)
        return metric

    @property
    def anchor(self) -> str:
        """What the newest nights were measured beside, in words; empty where there are none."""
        return self.nights[-1].anchor.title if self.nights else ""

    @cached_property
    def anchor_moved(self) -> stats.Estimate | None:
        """How far the newest anchor's own times moved, as a log ratio, positive is worse: the machine's drift."""
        nights = [night for night in self.nights if night.anchor == self.nights[-1].anchor]
        sign = self.metric.sign
        return moved([(night.day, sign * math.log(night.beside)) for night in nights], math.inf)

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

    Points come in any order; the same visit may be told of by a run, its artifact and a baseline. Without ``metrics``
    these are those with a gate, else the usual ones.
    """
    groups: dict[tuple[str, str, str], list[Point]] = {}
    for point in _each_once(points):
        groups.setdefault((point.cell_id, point.machine, point.metric), []).append(point)
    gated: dict[str, set[str]] = {}
    for (cell_id, _, metric), group in groups.items():
        if any(point.gated for point in group):
            gated.setdefault(cell_id, set()).add(metric)
    order = {name: number for number, name in reversed([*enumerate([*metrics, *USUAL])])}
    series = []
    for (cell_id, _, metric), group in groups.items():
        if metric in (metrics or gated.get(cell_id) or USUAL):
            visits = sorted(group, key=lambda point: (point.t0_utc, point.role))
            nights = one_a_day(linked(_nights(visits))[0])
            series.append(Series(tuple(visits), nights, _course(nights)))

    def place(trend: Series) -> tuple[str, str, str, int, str]:
        name = trend.metric.name
        return trend.cell, trend.cell_id, trend.machine, order.get(name, len(order)), name

    return sorted(series, key=place)


def _each_once(points: Iterable[Point]) -> Iterator[Point]:
    """A point for each visit of a build: what its run says, and how it was promoted.

    A run that went on later has another record, and its first visit in both. Two visits that began in one second and
    took the same to the last digit are one.
    """
    table: dict[tuple[object, ...], Point] = {}
    for point in points:
        key = (point.t0_utc, point.cell_id, point.machine, point.metric, point.build, point.restarts, point.value)
        other = table.get(key)
        if other is None:
            table[key] = point
            continue
        run, kept = sorted((other, point), key=lambda point: (not point.verdict, point.ratio is None))
        table[key] = replace(run, card=run.card or kept.card, promoted=run.promoted or kept.promoted,
                             author=run.author or kept.author, reason=run.reason or kept.reason)  # fmt: skip
    named = {point.devices: point.card for point in table.values() if point.devices and point.card}
    return (replace(point, card=named.get(point.devices, point.card)) if point.devices else point
            for point in table.values())  # fmt: skip


def _nights(points: Sequence[Point]) -> list[MeasuredNight]:
    """The visits beside an anchor, else beside the build that most were: of heads, where there are any."""
    beside = [point for point in points if point.ratio is not None and point.beside]
    beside = [point for point in beside if point.pinned] or beside
    beside = [point for point in beside if point.role == "head"] or beside
    if beside and not beside[0].pinned:
        most, visits = Counter(point.beside for point in beside).most_common(1)[0]
        beside = [point for point in beside if point.beside == most and visits >= FEWEST_BESIDE]
    nights = []
    for point in beside:
        begun = datetime.fromisoformat(point.t0_utc).astimezone(UTC)
        nights.append(MeasuredNight(
            day=begun.timestamp() / SECONDS_A_DAY, date=begun.date().isoformat(), build=build_of(point.build),
            anchor=build_of(point.beside), level=point.ratio or 0.0, beside=point.beside_value or math.nan, point=point,
        ))  # fmt: skip
    return nights


def _course(nights: Sequence[MeasuredNight]) -> Course:
    """Of each anchor's nights on their own: a link is not exact, and its error would pass for a change."""
    changes: list[Change] = []
    fitted: list[float] = []
    newest = Course((), (), 0.0, looked=False)
    for _, together in groupby(nights, key=lambda night: night.point.beside):
        begin, stretch = len(fitted), course([night.level for night in together])
        changes += [replace(change, first=change.first + begin, last=change.last + begin) for change in stretch.changes]
        fitted += stretch.fitted
        newest = stretch if stretch.looked or not newest.looked else newest
    return replace(newest, changes=tuple(changes), fitted=tuple(fitted))
