"""What iterations that differ by their prompts do to a verdict within states: ``python research/prompt_rates.py``.

Experts are chosen by tokens, so a step of one iteration may take longer than one of another, the same in all trials. A
pair is compared by the iterations that both of its trials had in a state. One gate, a machine that jumps as recorded.
Ten minutes on one core.
"""

from __future__ import annotations

import itertools

import numpy as np
from state_places import CASES, JUMPING, SOURCES, WIDE, Case, Place, variant
from state_runs import decide_all

from perfgate.judge.machine_states import Source
from perfgate.stats.sequential import PASS, REGRESSED

RUNS = 4_000
BATCH = 1_000
SPREADS = (0.0, 0.01, 0.03)
"""Standard deviations of an iteration by its prompts; recorded were 1.5 % on H100s (docs/measurements.md)."""


def place(spread: float, case: Case, source: Source = "probe") -> Place:
    """The machine and what the head is slower by."""
    model = variant(JUMPING, f"prompts {spread:.0%}", "Iterations differ by their prompts.", prompts=spread)
    slow = {"no change": 0.0, "ignorable": WIDE.ignorable, "must_catch": WIDE.must_catch}[case]
    return Place("effects", model, source, WIDE, (slow, slow), case)


def rates(spread: float, case: Case, source: Source = "probe", runs: int = RUNS) -> tuple[float, float, float]:
    """The shares of runs that are blocked and that pass, and the pairs that a run takes."""
    where = place(spread, case, source)
    rng = np.random.default_rng([20261128, *where.seed])
    ends = [decide_all(where.measure(rng, BATCH), 1) for _ in range(0, runs, BATCH)]
    verdicts = np.concatenate([end.runs for end in ends])
    pairs = np.concatenate([end.pairs for end in ends])
    return float((verdicts == REGRESSED).mean()), float((verdicts == PASS).mean()), float(pairs.mean())


def main() -> None:
    """Say it for each spread and slowdown."""
    print("spread  told by  head's slowdown  blocked  passed  pairs")
    for spread, source in itertools.product(SPREADS, SOURCES):
        for case in CASES:
            blocked, passed, pairs = rates(spread, case, source)
            print(f"{spread:.0%}  {source}  {case}  {blocked:.2%}  {passed:.2%}  {pairs:.1f}", flush=True)


if __name__ == "__main__":
    main()
