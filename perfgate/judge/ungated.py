"""Metrics that no gate judges: shown for reading, from the first look on with an interval."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfgate import stats
from perfgate.judge.evidence import Evidence
from perfgate.judge.outcome import MetricOutcome
from perfgate.judge.rule import both_sides
from perfgate.metrics.catalogue import METRICS, Metric
from perfgate.metrics.trial import CLOCKED


@dataclass(frozen=True)
class Shown:
    """One metric and its values."""

    metric: Metric  # the metric
    base: Sequence[float]  # a value a trial
    head: Sequence[float]  # the same for the head
    # What part of the level a look may use, as one of so many; 0 where the values are not in pairs of known order, or
    # no look is reached: then nothing is said of the difference
    looks: int = 0
    resolution: float = 0.0  # the instrument's step as a share of the values
    # Whether the signs of the pairs must agree, see :class:`perfgate.stats.signs.FlippedEstimate`
    by_signs: bool = False

    def row(self, level: float) -> MetricOutcome:
        """Both sides; with bounds of the change, each of which fails at any of the looks with probability ``level``."""
        row = both_sides(self.metric, self.base, self.head)
        if not self.looks or row.change is None:
            return row
        sign = self.metric.sign
        d = stats.log_ratios(self.base, self.head, sign)
        estimated = stats.flipped_estimate if self.by_signs else stats.mean_estimate
        estimate, share = estimated(d, self.resolution), level / self.looks
        low, high = sorted((sign * estimate.lower(share), sign * estimate.upper(share)))
        if math.isinf(low):  # too few pairs for any bound
            return row
        return row.model_copy(update={"change_low": stats.to_ratio(low), "change_high": stats.to_ratio(high)})


def rows(shown: Sequence[Shown], alpha: float) -> tuple[MetricOutcome, ...]:
    """The rows of a cell.

    Args:
        shown: What no gate judges.
        alpha: With what probability any interval of the cell leaves its true change out, at any look (Bonferroni).
    """
    tested = sum(entry.looks > 0 for entry in shown)
    return tuple(entry.row(alpha / (2 * max(tested, 1))) for entry in shown)


def ungated(evidence: Evidence, alpha: float, *, judged: bool) -> tuple[MetricOutcome, ...]:
    """Every metric that no gate names, each from the trials of its kind; of a side alone every metric."""
    return rows([*_shown(evidence, judged=judged)], alpha)


def _shown(evidence: Evidence, *, judged: bool) -> Iterator[Shown]:
    heads = any(evidence.trials(kind)["head"] for kind in CLOCKED)
    gated = {gate.gate.metric for gate in evidence.cell.gates} if judged and heads else set()
    alone = "base" not in evidence.sides and not evidence.stops
    for name, metric in METRICS.items():
        if name not in gated:
            base, head = evidence.values(metric)
            if base or (alone and head):
                yield _at_the_last_look(evidence, metric, base, head)


def _at_the_last_look(evidence: Evidence, metric: Metric, base: Sequence[float], head: Sequence[float]) -> Shown:
    """The pairs up to the last look, as those of gates; all trials where none is reached, or pairs lack a value."""
    pairs = evidence.pairs(metric.kind)
    looks = evidence.record.schedule(metric.kind).looks if evidence.paired and evidence.sides else ()
    reached = [look for look in looks if look <= len(pairs)]
    if not reached or {len(base), len(head)} != {len(pairs)}:
        return Shown(metric, base, head)
    used = reached[-1]
    step = max(metric.resolution(trial) for pair in pairs[:used] for trial in pair)
    # One part more than there are declared looks; added ones share it, each half of what is left.
    added = len([look for look in evidence.record.looks_added(metric.kind) if look <= used])
    parts = (len(looks) - len(evidence.record.looks_added(metric.kind)) + 1) * 2**added
    return Shown(metric, base[:used], head[:used], parts, step)
