"""Simulate runs of several heads beside one base: writes a section of docs/error-rates.txt.

``python research/head_rates.py`` takes about a minute and puts a fresh section into the page that is there. Rounds
are taken as a run takes them: all heads that are undecided go on to the next look, and what a head showed when it was
decided stays in Holm's family. The base's trials are those of every head, so their pairs are correlated by one half.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
from claimed_rate import RateOfCase, line, merged
from many_runs import Margins
from numpy.typing import NDArray
from restart_models import PAIR_SD, PAIRS

from perfgate import stats
from perfgate.scenario.plan import ALPHA, BETA, round_order
from perfgate.stats.sequential import DEFAULT_SCHEDULE, INCONCLUSIVE, PASS, REGRESSED

Floats = NDArray[np.float64]
Case = Literal["all at the margin", "one far slower", "one at must_catch"]

PAGE = Path(__file__).parents[1] / "docs" / "error-rates.txt"
TITLE = "## Several heads beside one base\n"
SEED = 20261125
RUNS = 100_000
ORDERS = 512
"""Sets of orders drawn as the plan does; a simulated run takes one of them."""
TIGHT = Margins(0.0002, 0.0015)
FAR = 0.005
"""Slowdown of a head that every run blocks, by which Holm's procedure loosens the levels of the others."""
CASES: tuple[Case, ...] = ("all at the margin", "one far slower", "one at must_catch")
DRIFTS = (0.0, 0.0007)
"""By how much each trial is slower than the one before."""
PLACES = tuple(product(CASES, (2, 4), DRIFTS))


@dataclass(frozen=True)
class HeadRow(RateOfCase):
    """One simulated truth, counted.

    Args:
        case: All heads slower by exactly ``ignorable``; or the first by :data:`FAR` besides; or the first by exactly
            ``must_catch`` and the others unchanged.
        heads: How many there are.
        drift: See :data:`DRIFTS`.
        runs: Simulated runs.
        wrong: Runs that blocked a head that is no slower than ``ignorable``; at must_catch those that passed the first.
        trials: Of all runs together, without warm-up.
        apart: The same, were each head measured in pairs of its own.
    """

    case: Case
    heads: int
    drift: float
    runs: int
    wrong: int
    trials: int
    apart: int


def slowdowns(case: Case, heads: int) -> tuple[float, ...]:
    """True slowdowns of the heads in a case."""
    if case == "one at must_catch":
        return (TIGHT.must_catch, *(0.0,) * (heads - 1))
    first = FAR if case == "one far slower" else TIGHT.ignorable
    return (first, *(TIGHT.ignorable,) * (heads - 1))


@cache
def places(heads: int) -> NDArray[np.int64]:
    """Where base and heads are in each round, (orders, rounds, 1 + heads), as the plan draws it by seed."""
    names = [f"h{n}" for n in range(heads)]
    rounds = [[round_order(seed, "simulated", n, names) for n in range(PAIRS)] for seed in range(ORDERS)]
    return np.array([[[order.index(label) for label in ("base", *names)] for order in one] for one in rounds])


def pairs_of(rng: np.random.Generator, runs: int, slow: Sequence[float], drift: float) -> Floats:
    """Log ratios of every head and the base of its round, (runs, heads, rounds)."""
    heads = len(slow)
    effects = PAIR_SD / math.sqrt(2) * rng.standard_normal((runs, PAIRS, 1 + heads))
    if drift:
        effects += drift * places(heads)[rng.integers(0, ORDERS, runs)]
    d: Floats = (effects[..., 1:] - effects[..., :1] + np.log1p(slow)).transpose(0, 2, 1)
    return d


def decide_heads(d: Floats, margins: Margins) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
    """What runs end with, by the log ratios of their pairs: the verdict and the pairs of each head, (runs, heads)."""
    runs, heads, _ = d.shape
    p, q = np.ones((runs, heads)), np.ones((runs, heads))
    verdicts, taken = np.zeros((runs, heads), np.int8), np.zeros((runs, heads), np.int64)
    for look in stats.interim_looks(d, DEFAULT_SCHEDULE, margins.ignorable, margins.must_catch):
        open_ = verdicts == INCONCLUSIVE
        p, q, taken = (
            np.where(open_, new, old) for new, old in ((look.p_slower, p), (look.p_equivalent, q), (look.pairs, taken))
        )
        verdicts = stats.decided(stats.holm(p.T, ALPHA).T, q, BETA)
    return verdicts, taken


def simulate(case: Case, heads: int, drift: float, runs: int = RUNS) -> HeadRow:
    """Count what becomes of runs."""
    rng = np.random.default_rng([SEED, heads, round(drift * 1e6), *case.encode()])
    slow = slowdowns(case, heads)
    verdicts, taken = decide_heads(pairs_of(rng, runs, slow, drift), TIGHT)
    fine = np.array([slowdown <= TIGHT.ignorable for slowdown in slow])
    missed = case == "one at must_catch"
    wrong = verdicts[:, 0] == PASS if missed else (verdicts[:, fine] == REGRESSED).any(axis=1)
    together = int((taken.max(axis=1) + taken.sum(axis=1)).sum())
    return HeadRow(case, heads, drift, runs, int(wrong.sum()), together, int(2 * taken.sum()))


HEAD = """
Written by `research/head_rates.py` (seed {seed}); {runs:,} simulated runs a row, one gate a head, margins 0.02 % and
0.15 %, pairs normal with sd 0.07 %, orders of rounds as the plan draws them. Wrong is a block of a head that is slower
by at most `ignorable` (one that is far slower is so by {far}), or a pass of the first at `must_catch`. "Trials" are
those of a run, and what runs of base and one head each would have taken for the same pairs.

| truth | heads | drift a trial | wrong | at most | trials | apart | claim |
|---|---|---|---|---|---|---|---|
"""


def section(rows: Sequence[HeadRow]) -> str:
    """The section of the page."""
    intro = HEAD.format(seed=SEED, runs=rows[0].runs, far=f"{FAR * 100:g} %")
    return "".join([TITLE, intro, *(line(cells(row)) for row in rows)])


def cells(row: HeadRow) -> list[str]:
    """A row of the table."""
    rates = (f"{rate * 100:.2f} %" for rate in (row.drift, row.wrong / row.runs, row.most))
    trials = (f"{count / row.runs:.1f}" for count in (row.trials, row.apart))
    return [row.case, str(row.heads), *rates, *trials, row.standing]


def simulate_all(runs: int = RUNS) -> list[HeadRow]:
    """Every row, in order."""
    return [simulate(*place, runs) for place in PLACES]


def main() -> None:
    """Simulate and put the section into the page, in the place of the one there, else before that of dropped pairs."""
    PAGE.write_text(merged(PAGE.read_text(), section(simulate_all())))


if __name__ == "__main__":
    main()
