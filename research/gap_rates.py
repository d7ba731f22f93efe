"""What rests on few pairs of a state, too few to be told well: ``python research/gap_rates.py``.

How often one build is blocked for a state gap that was measured too small, and how often a head passes in a rarer and
noisier state, in which alone it is slower by ``must_catch``.

A gate on a noisy tail beside one on steps. The head is slow in every pair, and so is the base in the first few alone:
what the tail differs by between the states rests on these. The share of the slow state, which tells such runs apart as
well, is left aside. A minute on one core.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from many_runs import Margins
from restart_models import NOISY_PAIR_SD as PAIR_SD
from state_models import E2E_NS, GAP, ITERATIONS, PAIRS, PROBE_GAP, PROBE_NS, PROBE_SD, RESTART_SD, STEP_NS, Drawn
from state_places import WIDE
from state_runs import LOOKS, Measured, OneRun

from perfgate.judge.machine_states import Sample
from perfgate.judge.outcome import PASSED
from perfgate.judge.rule import decide
from perfgate.judge.state_series import OWN_PAIRS, StateLook, StateSeries, by_state
from perfgate.scenario.plan import ALPHA, BETA
from perfgate.stats.estimate import Floats
from perfgate.stats.sequential import DEFAULT_SCHEDULE, Schedule

Shape = Callable[[np.random.Generator, tuple[int, ...]], Floats]
RUNS = 4_000
BATCH = 1_000
TAIL_GAP = 0.12
"""Slow over fast of the tail, a natural logarithm; steps are :data:`state_models.GAP` apart."""
MARGINS = Margins(0.01, 0.05)
FAMILY = 2
"""Gates that share the error: two metrics in the slow state, which alone is common."""


def draw(rng: np.random.Generator, runs: int, slow_bases: int, tail_sd: float, slower: float = 1.0) -> Measured:
    """Simulated runs whose head's tail is slower by a ratio.

    Args:
        rng: Draws.
        runs: How many.
        slow_bases: Pairs, from the first, whose base is slow, too; in the first it becomes fast.
        tail_sd: Standard deviation of ln(tail) between trials of one side and state.
        slower: The head's ratio.
    """
    slow = np.zeros((runs, 1 + PAIRS, 2, ITERATIONS), bool)
    slow[:, :, 1] = True
    slow[:, : 1 + slow_bases, 0] = True
    slow[:, 1, 0, ITERATIONS // 2 :] = False
    seen = slow[:, 1:]
    steps = GAP * seen + RESTART_SD * rng.standard_normal((runs, PAIRS, 2, 1))
    of_state = tail_sd * rng.standard_normal((2, runs, PAIRS, 2, 1))
    tails = TAIL_GAP * seen + np.where(seen, *of_state) + np.log([1.0, slower])[:, None]
    probes = PROBE_GAP * slow[..., None] + PROBE_SD * rng.standard_normal((*slow.shape, 2))
    marks = np.repeat(STEP_NS * np.exp(steps)[..., None], 2, axis=-1)
    drawn = Drawn(np.round(marks), np.round(PROBE_NS * np.exp(probes)), np.round(E2E_NS * np.exp(tails))[None])
    return Measured(drawn, (0.0, 0.0), MARGINS, "probe")


def blocked(slow_bases: int, tail_sd: float, slower: float = 1.0, runs: int = RUNS) -> list[float]:
    """Share of runs that the tail blocks by each look, without correction for the metrics beside it."""
    rng = np.random.default_rng([20261128, slow_bases, round(tail_sd * 1e6), round(slower * 1e6)])
    counts = np.zeros(len(LOOKS), int)
    for _ in range(0, runs, BATCH):
        measured = draw(rng, BATCH, slow_bases, tail_sd, slower)
        for run in range(BATCH):
            least = 1.0
            for number, look in enumerate(LOOKS):
                tails = by_state(measured.series(run, look, 1), OneRun(measured, run, look))
                seen = [looks[-1] for looks in (tail.interim_looks() for tail in tails) if looks]
                least = min([least, *(float(one.p_slower) for one in seen)])
                counts[number] += least <= ALPHA / FAMILY
    return [count / (BATCH * -(-runs // BATCH)) for count in counts.tolist()]


def passed_alone(own: int, noise: float, draw: Shape, runs: int = RUNS) -> int:
    """How many heads pass in a state of so many pairs at a last look, slower there by ``must_catch``.

    Decided by :class:`perfgate.judge.state_series.StateSeries` and :func:`perfgate.judge.rule.decide`, a run at a time.

    Args:
        own: Pairs that have the state in common; twelve less these have the other one.
        noise: Times the spread of the others.
        draw: What a pair's log ratio spreads by there, numbers of about one in size and with mean zero.
        runs: How many.
    """
    rng = np.random.default_rng([20261129, own, round(noise * 1e3)])
    plan = WIDE.plan
    (row,) = np.log1p(WIDE.must_catch) + noise * PAIR_SD * draw(rng, (1, runs, own))
    schedule = Schedule((PAIRS,), DEFAULT_SCHEDULE.block[-1:], DEFAULT_SCHEDULE.pass_[-1:])
    found = 0
    for d in row:
        sample = Sample((1.0,) * own, tuple(np.exp(d).tolist()))
        look = StateLook(sample, sample, passes=own >= OWN_PAIRS)
        series = StateSeries(plan, sample.base, sample.head, schedule, state="fast", compared=(look,))
        found += decide([series], ALPHA, BETA)[0].verdict in PASSED
    return found


def main() -> None:
    """Say it for some spreads, slow bases and slowdowns."""
    for own in (1, 2, 3, 4, 5):
        for noise in (1.0, 3.0):
            passed = passed_alone(own, noise, lambda rng, shape: rng.standard_normal(shape))
            print(f"{own} pairs, {noise:g} times the spread of the others: {passed} of {RUNS} pass", flush=True)
    print("spread  slow bases  head's ratio  blocked by", *(f"{look} pairs" for look in LOOKS))
    for tail_sd in (0.02, 0.04):
        for slow_bases in (1, 2, 3):
            for slower in (1.0, 1.1, 1.2, 1.5):
                shares = (f"{share:.2%}" for share in blocked(slow_bases, tail_sd, slower))
                print(f"{tail_sd:.0%}  {slow_bases}  {slower}", *shares, sep="  ", flush=True)


if __name__ == "__main__":
    main()
