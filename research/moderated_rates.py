"""Simulate variance that is moderated by history, which the rule does not use: how often few pairs err with it.

After limma (Smyth 2004): earlier runs say that the variance of pairs is about s0^2, with the weight of d0 degrees of
freedom, and a run of n pairs tests with (d0 s0^2 + (n - 1) s^2) / (d0 + n - 1) and d0 + n - 1 degrees of freedom. That
is exact where every run's variance is drawn from the history's, an inverse chi-square of d0 degrees of freedom. Here
the head's restarts may spread more than the history's did.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
from claimed_rate import heading, line, percent
from scipy import special

from perfgate.scenario.plan import ALPHA, BETA

SEED = 20261124
PRIOR_DF = (4, 10, 30)
PAIRS = (4, 6)
RATIOS = (1.0, 1.25, 1.5, 2.0)
"""Standard deviation of the head's restarts over that of the history's."""


@dataclass(frozen=True)
class ModeratedRow:
    """Shares of simulated runs that one look errs in, at ``ignorable`` (blocks) and at ``must_catch`` (passes).

    Args:
        pairs: Of the look.
        prior_df: Degrees of freedom that the history counts for.
        ratio: See :data:`RATIOS`.
        blocks: By the variance of the run alone, by the moderated one, and by the larger of both.
        passes: The same for passing.
    """

    pairs: int
    prior_df: int
    ratio: float
    blocks: tuple[float, float, float]
    passes: tuple[float, float, float]


PLACES = tuple(product(PAIRS, PRIOR_DF, RATIOS))


def simulate(pairs: int, prior_df: int, ratio: float, runs: int) -> ModeratedRow:
    """Test means of pairs whose true excess over a margin is 0, with all of alpha, and all of beta, in one look."""
    rng = np.random.default_rng([SEED, pairs, prior_df, round(100 * ratio)])
    sd = np.sqrt(prior_df / rng.chisquare(prior_df, runs)) * math.sqrt((1 + ratio**2) / 2)
    d = sd[:, None] * rng.standard_normal((runs, pairs))
    own, df = d.var(axis=1, ddof=1), pairs - 1
    moderated = (prior_df + df * own) / (prior_df + df)
    tests = ((own, df), (moderated, prior_df + df), (np.maximum(own, moderated), prior_df + df))
    wrong = [
        [float((special.stdtr(freedom, -sign * d.mean(axis=1) / np.sqrt(variance / pairs)) <= level).mean())
         for variance, freedom in tests]
        for sign, level in ((1, ALPHA), (-1, BETA))
    ]  # fmt: skip
    blocks, passes = ((row[0], row[1], row[2]) for row in wrong)
    return ModeratedRow(pairs, prior_df, ratio, blocks, passes)


HEAD = """
### Variance moderated by history

{runs:,} runs a row, one look that has all of alpha and all of beta, the variances of runs drawn as limma (Smyth 2004)
assumes, with d0 degrees of freedom. "Own" is the t test on the run alone, "moderated" has history's part, "larger"
takes the larger of both variances. Declared are {alpha} and {beta}.

"""
COLUMNS = (
    "pairs", "d0", "head's sd over history's", "blocked at `ignorable`: own", "moderated", "larger",
    "passed at `must_catch`: own", "moderated", "larger",
)  # fmt: skip


def section(runs: int) -> str:
    """The table, as Markdown."""
    rows = [simulate(*place, runs) for place in PLACES]
    lines = [
        line([f"{row.pairs}", f"{row.prior_df}", f"{row.ratio:g}", *map(percent, (*row.blocks, *row.passes))])
        for row in rows
    ]
    head = HEAD.format(runs=runs, alpha=f"{ALPHA * 100:g} %", beta=f"{BETA * 100:g} %")
    return "".join([head, heading(COLUMNS), *lines])
