"""What a calibration loop as a covariate would bring for 50 us of host work more in a step (research/README.md).

``python research/host_work_rates.py [RUNS]`` simulates pairs of engines of an H200 whose hosts work 2.3 ms a step.
Engines of one build differ by 79 us (docs/decisions.md), of which a CPU that is not always as fast makes all but 18.
A loop of known length tells that speed, but for an error of its own. The decision is the usual one at 4, 6, 8 and 12
pairs: blocked above 10 us at alpha 1 %, passed below 50 us at beta 5 %.
"""

from __future__ import annotations

import sys

import numpy as np

from perfgate import stats
from perfgate.stats.sequential import DEFAULT_SCHEDULE

WORK_S, ENGINES_S, LEFT_S = 2.3e-3, 79e-6, 18e-6
"""Of a step's host; what engines of one build differ by; and what of it the CPU's speed does not explain."""
IGNORABLE_S, MUST_CATCH_S = 10e-6, 50e-6
ALPHA, BETA = 0.01, 0.05
ERRORS = {"none": None, "a loop without error": 0.0, "a loop that is 1 % wrong": 0.01, "a loop that is 3 % wrong": 0.03}
"""Standard deviation of what the loop says of the CPU's speed, as a share; without a loop sides are subtracted."""
ADDED_S = (0.0, IGNORABLE_S, 25e-6, MUST_CATCH_S)
SPEED_SD = float(np.sqrt(ENGINES_S**2 - LEFT_S**2)) / WORK_S


def decided(rng: np.random.Generator, added_s: float, error: float | None) -> tuple[str, int]:
    """What one run ends with, and after how many pairs."""
    most = DEFAULT_SCHEDULE.looks[-1]
    speed = rng.normal(0.0, SPEED_SD, (2, most))
    work = WORK_S * (1 + speed) + rng.normal(0.0, LEFT_S, (2, most)) + np.array([[0.0], [added_s]])
    loop = 1 + speed + rng.normal(0.0, error or 0.0, (2, most))
    p = q = 1.0
    for look, block, pass_ in zip(DEFAULT_SCHEDULE.looks, DEFAULT_SCHEDULE.block, DEFAULT_SCHEDULE.pass_, strict=True):
        if error is None:
            found = stats.mean_estimate(work[1, :look] - work[0, :look])
        else:
            found = stats.adjusted_difference(*work[:, :look].tolist(), *loop[:, :look].tolist())
        p = min(p, found.p_above(IGNORABLE_S) / block) if block else p
        q = min(q, found.p_below(MUST_CATCH_S) / pass_)
        if p <= ALPHA:
            return "blocked", look
        if q <= BETA:
            return "passed", look
    return "undecided", most


def main(runs: int) -> None:
    """Print the table."""
    print("| covariate | added | blocked | passed | undecided | mean pairs |\n|---|---|---|---|---|---|")
    for name, error in ERRORS.items():
        for added_s in ADDED_S:
            rng = np.random.default_rng(20261122)
            ends = [decided(rng, added_s, error) for _ in range(runs)]
            shares = [100 * sum(end == what for end, _ in ends) / runs for what in ("blocked", "passed", "undecided")]
            pairs = sum(look for _, look in ends) / runs
            print(f"| {name} | {added_s * 1e6:.0f} us | {' | '.join(f'{s:.1f} %' for s in shares)} | {pairs:.1f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
