"""Many simulated runs at once, decided by perfgate's own rule: look, judge all gates together, stop or go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfgate import stats
from perfgate.gate import parse_gate
from perfgate.scenario.plan import ALPHA, BETA, GatePlan
from perfgate.stats.estimate import Bools, Floats
from perfgate.stats.sequential import DEFAULT_SCHEDULE, INCONCLUSIVE, PASS, REGRESSED, Schedule

Verdicts = NDArray[np.int8]


@dataclass(frozen=True)
class Margins:
    """A gate's margins as ratios minus one."""

    ignorable: float
    must_catch: float

    @property
    def plan(self) -> GatePlan:
        """The same margins as a gate of a lower-is-better metric."""
        return parse_gate(f"itl_median:{self.ignorable * 100:.10g}%:{self.must_catch * 100:.10g}%")


@dataclass(frozen=True)
class Decisions:
    """What simulated runs ended with.

    Args:
        runs: Verdict of each run, (runs,).
        gates: Verdict of each gate when its run ended, (runs, gates).
        pairs: Pairs each run took, (runs,).
    """

    runs: Verdicts
    gates: Verdicts
    pairs: NDArray[np.int64]


def decide_all(
    d: Floats,
    margins: Sequence[Margins],
    schedule: Schedule = DEFAULT_SCHEDULE,
    *,
    resolution: float = 0.0,
    allowed: Floats | None = None,
    beta: float = BETA,
) -> Decisions:
    """Decide runs from the log ratios of their pairs, (runs, gates, pairs).

    Args:
        d: Log ratios.
        margins: Of each gate.
        schedule: When to look.
        resolution: The instrument's step as a share of the values.
        allowed: In the place of margins those of every pair, ratios minus one, (2, k, runs, gates, pairs): for
            ``ignorable`` and ``must_catch`` k of which the largest counts.
        beta: Of a gate.

    Raises:
        ValueError: There are fewer pairs than the last look asks for.
    """
    runs, gates, measured = d.shape
    if measured < schedule.looks[-1]:
        raise ValueError(f"{measured} pairs do not reach the look at {schedule.looks[-1]}")
    of_gates = [[margin.ignorable for margin in margins], [margin.must_catch for margin in margins]]
    ignorable, must_catch = np.array(of_gates).reshape(2, 1, 1, gates, 1) if allowed is None else allowed
    ends = Decisions(np.zeros(runs, np.int8), np.zeros((runs, gates), np.int8), np.zeros(runs, np.int64))
    going = np.ones(runs, bool)
    for look in stats.interim_looks(d, schedule, ignorable, must_catch, resolution):
        p, q = np.transpose(look.p_slower), np.transpose(look.p_equivalent)
        verdicts = stats.decided(stats.holm(p, ALPHA), q, beta)
        ends.gates[going], ends.pairs[going] = verdicts.T[going], look.pairs
        ends.runs[going] = worst(verdicts)[going]
        going &= ends.runs == INCONCLUSIVE
    return ends


def worst(verdicts: Verdicts, there: Bools | None = None) -> Verdicts:
    """The worst of the first axis: a block, else a pass where all pass; of those that are there."""
    some = np.ones(verdicts.shape, bool) if there is None else there
    blocked, passed = (some & (verdicts == REGRESSED)).any(axis=0), (~some | (verdicts == PASS)).all(axis=0)
    return np.where(blocked, REGRESSED, np.where(passed, PASS, INCONCLUSIVE)).astype(np.int8)
