"""Measurements of any origin as a long CSV: ``pair,subject,metric,unit,value``, one line a trial and metric.

``subject`` is ``base`` or ``head``. Without a ``pair`` column the trials are unpaired.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from perfgate.errors import RecordError
from perfgate.metrics.catalogue import find_metric, metric_names
from perfgate.metrics.trial import SIDES
from perfgate.scenario.yaml_document import did_you_mean
from perfgate.units import UNIT_SCALE

COLUMNS = ("pair", "subject", "metric", "unit", "value")


@dataclass(frozen=True)
class Values:
    """One metric on both sides in base units; paired values are in the order of their pairs' first lines.

    Args:
        base: A value a trial.
        head: The same for the head.
        resolution: One unit in the last place that any value is written with, as a share of the smallest value; 0 for
            metrics that are counted exactly.
    """

    base: tuple[float, ...]
    head: tuple[float, ...]
    resolution: float = 0.0


@dataclass(frozen=True)
class Table:
    """A CSV as read: whether trials are paired, and the values by metric."""

    paired: bool
    metrics: dict[str, Values]


def read_table(file: Path) -> Table:
    """Read a long CSV.

    Raises:
        RecordError: With file and line: a missing column, an unknown metric, subject or unit, a value that is not a
            finite number, a pair given twice or with one side missing.
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
    missing = [name for name in COLUMNS[1:] if name not in header]
    if missing:
        raise RecordError(f"has no column {missing[0]!r}, expected {','.join(COLUMNS)}", where=f"{file}:1")
    paired = "pair" in header
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
        side[pair] = value
    if not by_metric:
        raise RecordError("holds no measurement", where=str(file))
    return Table(
        paired, {metric: _values(metric, sides, paired, steps[metric], file) for metric, sides in by_metric.items()}
    )


def _read_row(row: dict[str, str], where: str) -> tuple[str, str, float, float]:
    """Metric, subject, value, and one unit in the value's last place, 0 where the metric is counted exactly."""
    cells = {name: (row.get(name) or "").strip() for name in COLUMNS[1:]}
    metric, subject, unit = cells["metric"], cells["subject"], cells["unit"]
    try:
        known = find_metric(metric)
    except KeyError:
        raise RecordError(f"unknown metric {metric!r}{did_you_mean(metric, metric_names())}", where=where) from None
    if subject not in SIDES:
        raise RecordError(f"subject is {subject!r}, expected base or head", where=where)
    if unit not in UNIT_SCALE or UNIT_SCALE[unit][0] != known.unit:
        raise RecordError(f"{unit!r} is not a unit of {metric} ({known.unit})", where=where)
    try:
        value = float(cells["value"]) * UNIT_SCALE[unit][1]
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise RecordError(f"the value {cells['value']!r} is not a finite number", where=where)
    return metric, subject, value, _last_place(cells["value"]) * UNIT_SCALE[unit][1] if value and known.steps else 0.0


def _last_place(word: str) -> float:
    """One unit in the last digit of a number that is not zero as a float: zeros may have exponents beyond any float."""
    return 10.0 ** int(Decimal(word).as_tuple().exponent)


def _values(metric: str, sides: dict[str, dict[str, float]], paired: bool, step: float, file: Path) -> Values:  # noqa: FBT001 (private)
    if paired:
        for side, opposite in (SIDES, SIDES[::-1]):
            alone = [pair for pair in sides[side] if pair not in sides[opposite]]
            if alone:
                raise RecordError(f"pair {alone[0]} has {metric} of {side} but not of {opposite}", where=str(file))
        sides = {"base": sides["base"], "head": {pair: sides["head"][pair] for pair in sides["base"]}}
    base, head = (tuple(sides[side].values()) for side in SIDES)
    smallest = min(map(abs, (*base, *head)), default=0.0)
    return Values(base, head, step / smallest if smallest else 0.0)
