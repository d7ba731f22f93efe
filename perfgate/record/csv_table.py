"""Measurements of any origin as a long CSV: ``pair,order,subject,metric,unit,value``, one line a trial and metric.

``subject`` is ``base`` or ``head``. Without a ``pair`` column the trials are unpaired. ``order`` is the place of the
trial in its pair, 1 or 2; without that column nobody knows which side ran first.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

from perfgate.errors import RecordError
from perfgate.metrics.catalogue import find_metric, metric_names
from perfgate.metrics.sides import SIDES
from perfgate.metrics.trial import Kind
from perfgate.scenario.yaml_document import did_you_mean
from perfgate.units import UNIT_SCALE

ORDER = "order"
COLUMNS = ("pair", ORDER, "subject", "metric", "unit", "value")
NEEDED = COLUMNS[2:]
PLACES = ("1", "2")


@dataclass(frozen=True)
class Values:
    """One metric on both sides in base units; paired values are in the order of their pairs' first lines.

    Args:
        base: A value a trial.
        head: The same for the head.
        resolution: One unit in the last place that any value is written with, as a share of the smallest value; 0 for
            metrics that are counted exactly.
        head_first: Whether the head ran first, of each pair; empty where the table does not say.
    """

    base: tuple[float, ...]
    head: tuple[float, ...]
    resolution: float = 0.0
    head_first: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Table:
    """A CSV as read: whether trials are paired, and the values by metric."""

    paired: bool
    metrics: dict[str, Values]


def read_table(file: Path) -> Table:
    """Read a long CSV.

    Raises:
        RecordError: With file and line: a missing column, an unknown metric, subject or unit, a value that is not a
            finite number, a pair given twice or with one side missing, an order that is not 1 on one side and 2 on
            the other.
    """
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            return _read(csv.DictReader(stream), file)
    except FileNotFoundError as error:
        raise RecordError("does not exist", where=str(file)) from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RecordError(f"cannot be read as CSV: {error}", where=str(file)) from error


def _read(rows: csv.DictReader[str], file: Path) -> Table:
    header = [name.strip() for name in rows.fieldnames or ()]
    rows.fieldnames = header
    if missing := [name for name in NEEDED if name not in header]:
        raise RecordError(f"has no column {missing[0]!r}, expected {','.join(COLUMNS)}", where=f"{file}:1")
    paired, places = "pair" in header, _Places() if {"pair", ORDER} <= {*header} else None
    by_metric: dict[str, dict[str, dict[str, float]]] = {}
    steps: dict[str, float] = {}
    for row in rows:
        where = f"{file}:{rows.line_num}"
        metric, subject, value, step = _read_row(row, where)
        steps[metric] = min(step, steps.get(metric, math.inf))
        pair = (row["pair"] or "").strip() if paired else str(rows.line_num)
        side = by_metric.setdefault(metric, {name: {} for name in SIDES})[subject]
        if not pair:
            raise RecordError("pair is empty", where=where)
        if pair in side:
            raise RecordError(f"pair {pair} has {metric} of {subject} twice", where=where)
        if places is not None:
            places.note(find_metric(metric).kind, pair, subject, (row[ORDER] or "").strip(), where)
        side[pair] = value
    if not by_metric:
        raise RecordError("holds no measurement", where=str(file))
    metrics = {name: _values(name, sides, paired, steps[name], file) for name, sides in by_metric.items()}
    if places is not None:
        metrics = {name: replace(values, head_first=places.head_first(name, by_metric[name]["base"]))
                   for name, values in metrics.items()}  # fmt: skip
    return Table(paired, metrics)


class _Places:
    """The place of each trial in its pair, as far as it was read."""

    def __init__(self) -> None:
        self._known: dict[tuple[Kind, str], str] = {}

    def note(self, kind: Kind, pair: str, subject: str, place: str, where: str) -> None:
        """A line; of one trial every line says the same, and of the other side's the other place."""
        if place not in PLACES:
            raise RecordError(f"order is {place!r}, expected 1 or 2: the place of the trial in its pair", where=where)
        first = subject if place == PLACES[0] else SIDES[subject == SIDES[0]]
        if self._known.setdefault((kind, pair), first) != first:
            text = f"order is {place} here, and by an earlier line {self._known[kind, pair]} ran first in pair {pair}"
            raise RecordError(text, where=where)

    def head_first(self, metric: str, pairs: Iterable[str]) -> tuple[bool, ...]:
        """Of each pair of a metric whether the head ran first."""
        return tuple(self._known[find_metric(metric).kind, pair] == SIDES[1] for pair in pairs)


def _read_row(row: dict[str, str], where: str) -> tuple[str, str, float, float]:
    """Metric, subject, value, and one unit in the value's last place, 0 where the metric is counted exactly."""
    cells = {name: (row.get(name) or "").strip() for name in NEEDED}
    metric, subject, unit = cells["metric"], cells["subject"], cells["unit"]
    try:
        definition = find_metric(metric)
    except KeyError:
        raise RecordError(f"unknown metric {metric!r}{did_you_mean(metric, metric_names())}", where=where) from None
    if subject not in SIDES:
        raise RecordError(f"subject is {subject!r}, expected base or head", where=where)
    if unit not in UNIT_SCALE or UNIT_SCALE[unit][0] != definition.unit:
        raise RecordError(f"{unit!r} is not a unit of {metric} ({definition.unit})", where=where)
    try:
        value = float(cells["value"]) * UNIT_SCALE[unit][1]
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise RecordError(f"the value {cells['value']!r} is not a finite number", where=where)
    if not value or not definition.steps:  # zeros may have exponents beyond any float
        return metric, subject, value, 0.0
    last_place = 10.0 ** int(Decimal(cells["value"]).as_tuple().exponent)
    return metric, subject, value, last_place * UNIT_SCALE[unit][1]


def _values(metric: str, sides: dict[str, dict[str, float]], paired: bool, step: float, file: Path) -> Values:  # noqa: FBT001 (private)
    if paired:
        for side, opposite in (SIDES, SIDES[::-1]):
            if alone := [pair for pair in sides[side] if pair not in sides[opposite]]:
                raise RecordError(f"pair {alone[0]} has {metric} of {side} but not of {opposite}", where=str(file))
        sides = {"base": sides["base"], "head": {pair: sides["head"][pair] for pair in sides["base"]}}
    base, head = (tuple(sides[side].values()) for side in SIDES)
    smallest = min(map(abs, (*base, *head)), default=0.0)
    return Values(base, head, step / smallest if smallest else 0.0)
