"""Drift: how far a build that changes every night has moved from an anchor that does not.

Many small losses that no single change was blocked for add up. The nights are the visits of one lineage, whatever was
promoted as what: all that measured the same cell on comparable machines beside an anchor.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from perfgate import stats
from perfgate.baseline.lineage import Baseline
from perfgate.baseline.occupations import typical
from perfgate.baseline.store import find
from perfgate.baseline.stored_visit import ONE_STATE, Build
from perfgate.machine.atomic_files import canonical_json
from perfgate.machine.fingerprint import comparable
from perfgate.metrics.catalogue import METRICS, Metric
from perfgate.record.identity import Measured
from perfgate.scenario.declaration import load
from perfgate.scenario.margins import Budget
from perfgate.scenario.plan import ALPHA, resolve_cells
from perfgate.stats.drift import moved, night_sd

SECONDS_A_DAY = 86_400


@dataclass(frozen=True)
class Night:
    """One visit of the series.

    Args:
        day: When, in days since 1970.
        date: The same, ``2026-01-31``, as its machine had it.
        build: What was measured.
        anchor: What was measured beside it.
        level: ln(build / anchor), positive is worse.
        beside: What the anchor took, in the metric's base unit: how the machine itself drifts.
    """

    day: float
    date: str
    build: Build
    anchor: Build
    level: float
    beside: float


_Night = TypeVar("_Night", bound=Night)


@dataclass(frozen=True)
class Drift:
    """How far one metric moved in the window of its budget.

    Args:
        metric: Its name.
        budget: What it may lose; ``None`` where nights are only drawn.
        nights: All nights beside the newest anchor, or linked to it, levels as if beside that one; one of each day.
        change: Newest against oldest nights of the window, or of all without a budget; positive is worse. ``None``
            where there are too few.
        over: Whether it is beyond the budget, with Holm's correction over all budgets of a command.
    """

    metric: str
    budget: Budget | None
    nights: tuple[Night, ...]
    change: stats.Estimate | None
    over: bool = False

    @property
    def days(self) -> float:
        """Length of the window."""
        return self.budget.days if self.budget else math.inf

    @property
    def window(self) -> tuple[Night, ...]:
        """The nights of the window."""
        begun = self.nights[-1].day - self.days if self.nights else math.inf
        return tuple(night for night in self.nights if night.day >= begun)

    @property
    def builds(self) -> tuple[Night, ...]:
        """The first night of each build in the window: the loss is of changes between the first build and the last."""
        met: dict[str, Night] = {}
        for night in self.window:
            met.setdefault(_identity(night.build), night)
        return tuple(met.values())


@dataclass(frozen=True)
class Budgeted:
    """What the ``drift:`` keys of some scenarios are held against.

    Args:
        drifts: Each lineage with what became of its budgets; without one, how its gated metrics moved.
        unbudgeted: Scenario files without such a key.
        without_nights: Cells of which no night is stored: their names, each with its scenario file.
    """

    drifts: tuple[tuple[Baseline, tuple[Drift, ...]], ...]
    unbudgeted: tuple[Path, ...]
    without_nights: tuple[tuple[str, Path], ...]

    @property
    def over(self) -> list[tuple[Baseline, Drift]]:
        """The budgets that are overdrawn."""
        return [(lineage, drift) for lineage, drifts in self.drifts for drift in drifts if drift.over]

    @property
    def decided(self) -> bool:
        """Whether every budget has nights enough to say whether it is overdrawn."""
        without_nights = any(file not in self.unbudgeted for _, file in self.without_nights)
        return not without_nights and all(d.change for _, drifts in self.drifts for d in drifts if d.budget)


def held_to_budgets(scenarios: Sequence[Path], baselines: Path, *, only_drawn: bool = False) -> Budgeted:
    """Hold the nights of each cell against the budgets of its scenario, or with ``only_drawn`` against none.

    Raises:
        ScenarioError: A scenario is invalid.
        RecordError: A baseline is.
    """
    budgets, unbudgeted, without_nights = [], [], []
    for file in scenarios:
        loaded = load(file)
        limits: dict[str, Budget | None] = {**loaded.scenario.drift}
        if not limits:
            unbudgeted.append(file)
        for cell in resolve_cells(loaded):
            metrics = limits or dict.fromkeys(gate.gate.metric for gate in cell.gates if gate.gate.metric in METRICS)
            stored = [entry.baseline for entry in find(baselines, [cell])[cell.cell_id]]
            same = [lineage for lineage in stored if not lineage.cell.differences(Measured.of(cell))]
            budgets += [(lineage, dict.fromkeys(metrics) if only_drawn else metrics) for lineage in same]
            if not same:
                without_nights.append((cell.name, file))
    lineages = [
        (lineage, tuple(drift for drift in held if drift.budget or drift.nights)) for lineage, held in drifts(budgets)
    ]
    return Budgeted(tuple(row for row in lineages if row[1]), tuple(unbudgeted), tuple(without_nights))


def drifts(budgets: Sequence[tuple[Baseline, Mapping[str, Budget | None]]]) -> list[tuple[Baseline, tuple[Drift, ...]]]:
    """Hold lineages against their budgets; at most alpha of nights say that one is over which is exactly used up.

    A metric that is only drawn has ``None`` for a budget.
    """
    lineages = [
        (lineage, [_drift(lineage, METRICS[name], metrics[name]) for name in sorted(metrics)])
        for lineage, metrics in budgets
    ]
    held = [(drift.change, drift.budget) for _, drifts in lineages for drift in drifts if drift.budget]
    p = [change.p_above(math.log1p(budget.most)) if change else 1.0 for change, budget in held]
    over = iter(stats.holm(p, ALPHA).tolist())
    return [
        (lineage, tuple(replace(drift, over=next(over)) if drift.budget else drift for drift in drifts))
        for lineage, drifts in lineages
    ]


def _drift(lineage: Baseline, metric: Metric, budget: Budget | None) -> Drift:
    every, error = linked(sorted(_nights(lineage, metric), key=lambda night: night.day))
    nights = one_a_day(every)
    drift = Drift(metric.name, budget, nights, None)
    if not nights:
        return drift
    crossed = drift.window[0].anchor != nights[-1].anchor
    levels = [(night.day, night.level) for night in nights]
    return replace(drift, change=moved(levels, drift.days, error if crossed else 0.0))


def one_a_day(nights: Sequence[_Night]) -> tuple[_Night, ...]:
    """The newest of runs of the same hours: they met the machine in one state and are one observation."""
    kept: list[_Night] = []
    for night in reversed(nights):
        if not kept or kept[-1].day - night.day > ONE_STATE.total_seconds() / SECONDS_A_DAY:
            kept.append(night)
    return tuple(kept[::-1])


def _nights(lineage: Baseline, metric: Metric) -> Iterator[Night]:
    """A night for each run that was measured beside an anchor: its visits are one observation."""
    same = False
    for entry in lineage.entries:
        if entry.cell is not None and entry.machine is not None:
            same = not entry.cell.differences(lineage.cell) and not comparable(entry.machine, lineage.machine)
        anchors = [visit.anchor for visit in entry.visits if visit.anchor]
        ratios = [ratio for visit in entry.visits if anchors for ratio in visit.ratios(metric.name, anchors[0].build)]
        if same and ratios and min(ratios) > 0:
            taken = [value for anchor in anchors for value in anchor.values.get(metric.name, ()) if value > 0]
            yield Night(
                day=datetime.fromisoformat(entry.visits[0].t0_utc).timestamp() / SECONDS_A_DAY,
                date=datetime.fromisoformat(entry.visits[0].t0_utc).date().isoformat(),
                build=entry.build,
                anchor=anchors[0].build,
                level=metric.sign * math.log(*typical(ratios)),
                beside=statistics.geometric_mean(taken),
            )


def _identity(build: Build) -> str:
    return canonical_json(build.model_dump(mode="json"))


def linked(nights: Sequence[_Night]) -> tuple[tuple[_Night, ...], float]:
    """Nights beside the newest anchor, and those before it as if beside that one; what is added to their error.

    A build that was measured beside two anchors says how far they are apart: by the means of its nights, with the error
    of these. Without one the series begins with the newest anchor.
    """
    anchors: dict[str, list[_Night]] = {}  # that of the newest night first
    for night in reversed(nights):
        anchors.setdefault(_identity(night.anchor), []).append(night)
    series: tuple[_Night, ...] = ()
    error = 0.0
    for group in reversed(anchors.values()):
        series, error = _behind(series, error, group[::-1])
    return series, error


def _behind(before: Sequence[_Night], error: float, nights: Sequence[_Night]) -> tuple[tuple[_Night, ...], float]:
    """The nights of one anchor behind those of earlier ones, which are as if beside it where a build links them."""
    builds = [night.build for night in before]
    shared = next((night.build for night in nights if night.build in builds), None)
    if shared is None:
        return tuple(nights), 0.0
    first, second = ([night.level for night in of if night.build == shared] for of in (nights, before))
    shift = statistics.fmean(first) - statistics.fmean(second)
    spread = max(night_sd([night.level for night in of]) for of in (nights, before))
    own_error = spread * math.sqrt(1 / len(first) + 1 / len(second))
    earlier = (replace(night, level=night.level + shift) for night in before if night.day < nights[0].day)
    return (*earlier, *nights), math.hypot(error, own_error)
