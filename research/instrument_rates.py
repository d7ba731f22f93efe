"""Simulate what the rule knows imperfectly: values that are ties of a timer, a floor's base, the spread of few pairs.

``python research/instrument_rates.py`` takes some minutes and puts a fresh section into docs/error-rates.txt. Each
row is decided twice: as perfgate does, and as if what is imperfectly known were exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from claimed_rate import ClaimedRate, heading, line, merged, percent
from many_runs import Decisions, Margins, decide_all
from numpy.typing import NDArray
from scipy import special

from perfgate.scenario.plan import ALPHA, BETA
from perfgate.stats.estimate import Estimate, detectable
from perfgate.stats.sequential import DEFAULT_SCHEDULE, PASS, REGRESSED

Floats = NDArray[np.float64]
Case = Literal["ignorable", "must_catch"]

PAGE = Path(__file__).parents[1] / "docs" / "error-rates.txt"
TITLE = "## What is known imperfectly\n"
SEED = 20261122
RUNS = 100_000
PAIRS = DEFAULT_SCHEDULE.looks[-1]
KERNEL_MARGINS = Margins(0.0002, 0.0015)
FLOOR_MARGINS = Margins(0.02, 0.08)
STEPS = (0.0003, 0.001, 0.003)
"""Of the timer, as shares of the value: 32 ns of 107, 32 and 11 us."""
SPREADS = (0.0, 0.1, 0.3, 1.0)
"""Of restarts, in steps."""
FLOORS = (0.02, 0.05, 0.08, 0.2, 1.0)
"""As shares of the base; the first is ``ignorable``, the third ``must_catch``."""
COMMON = (0.0, 0.005, 0.02)
"""Spread that both sides of a pair share: the speed of the machine."""
PAIR_SD = 0.001


@dataclass(frozen=True)
class Row(ClaimedRate):
    """One truth, counted.

    Args:
        words: What is simulated, a cell of the table each.
        declared: The rate declared for the error; for an effect, that of being blocked.
        runs: Simulated runs.
        wrong: Runs with the error, as perfgate decides; for an effect, runs that were blocked.
        exact: The same where what is imperfectly known is taken as exact.
    """

    words: tuple[str, ...]
    declared: float
    runs: int
    wrong: int
    exact: int


def ties(step: float, spread: float, case: Case, runs: int = RUNS) -> Row:
    """Values rounded to a timer's steps; the base's place between two steps differs from run to run."""
    rng = np.random.default_rng([SEED, 1, round(step * 1e6), round(spread * 100), len(case)])
    slow = KERNEL_MARGINS.ignorable if case == "ignorable" else KERNEL_MARGINS.must_catch
    level = 1 + step * rng.random((runs, 1, 1, 1)) * np.array([1.0, 1.0])
    true = level * np.array([1.0, 1 + slow]) * np.exp(spread * step * rng.standard_normal((runs, 1, PAIRS, 2)))
    values = step * np.round(true / step)
    d = np.log(values[..., 1] / values[..., 0])
    share = step / float(values.min())
    margins = (KERNEL_MARGINS,)
    now, exact = (decide_all(d, margins, resolution=resolution) for resolution in (share, 0.0))
    return Row(
        (f"{step * 100:g} %", f"{spread:g} steps", case),
        ALPHA if case == "ignorable" else BETA, runs, _wrong(now, case), _wrong(exact, case),
    )  # fmt: skip


def at_the_floor(floor: float, common: float, case: Case, runs: int = RUNS) -> Row:
    """A head that is slower by exactly the larger of floor and margin, on a machine whose speed wanders."""
    rng = np.random.default_rng([SEED, 2, round(floor * 1e3), round(common * 1e4), len(case)])
    margin = FLOOR_MARGINS.ignorable if case == "ignorable" else FLOOR_MARGINS.must_catch
    speed = common * rng.standard_normal((runs, 1, PAIRS))
    own = PAIR_SD / math.sqrt(2) * rng.standard_normal((2, runs, 1, PAIRS))
    base = np.exp(speed + own[0])
    head = (1 + max(floor, margin)) * np.exp(speed + own[1])
    d = np.log(head / base)
    first = np.exp(np.log(base[..., : DEFAULT_SCHEDULE.looks[0]]).mean(axis=-1, keepdims=True))
    sides = (FLOOR_MARGINS.ignorable, FLOOR_MARGINS.must_catch)
    now, exact = (
        decide_all(d, (FLOOR_MARGINS,), allowed=np.array([[side + 0 * d, floor / b + 0 * d] for side in sides]))
        for b in (base, first)
    )
    return Row(
        (f"{floor * 100:g} %", f"{common * 100:g} %", case),
        ALPHA if case == "ignorable" else BETA, runs, _wrong(now, case), _wrong(exact, case),
    )  # fmt: skip


def promise(seen: int, look: int, weight: float, runs: int = RUNS) -> Row:
    """A slowdown that one run calls detectable, met by a look of another run."""
    rng = np.random.default_rng([SEED, 3, seen, look])
    level = ALPHA * weight
    errors = 0.0007 * rng.standard_normal((runs, seen)).std(axis=1, ddof=1) / math.sqrt(look)
    again = 0.0007 * rng.standard_normal((runs, look))
    blocked = []
    for spread_df in (seen - 1, math.inf):
        unit = detectable(Estimate(0.0, 1e-6, look - 1), level, 0.0, 1 - BETA, spread_df)
        shift = math.log1p(unit or 0.0) / 1e-6
        t = (again.mean(axis=1) + shift * errors) / (again.std(axis=1, ddof=1) / math.sqrt(look))
        blocked.append(int((special.stdtr(look - 1, -t) <= level).sum()))
    return Row((str(seen), str(look)), 1 - BETA, runs, *blocked)


def _wrong(ends: Decisions, case: Case) -> int:
    return int((ends.runs == (REGRESSED if case == "ignorable" else PASS)).sum())


CASES: tuple[Case, ...] = ("ignorable", "must_catch")
PROMISES = ((4, 6, 0.16), (6, 6, 0.16), (8, 8, 0.24), (12, 12, 0.40))
CLAIMS: tuple[Callable[[int], Row], ...] = (
    *(lambda runs, a=step, b=spread, c=case: ties(a, b, c, runs) for case in CASES for step in STEPS
      for spread in SPREADS),
    *(lambda runs, a=floor, b=common, c=case: at_the_floor(a, b, c, runs) for case in CASES for floor in FLOORS
      for common in COMMON),
)  # fmt: skip
"""Every row for which an error rate is claimed, in order: ties first."""
TIES = len(CASES) * len(STEPS) * len(SPREADS)

HEAD = """
Written by `research/instrument_rates.py` (seed {seed}); {runs:,} simulated runs a row, one gate, normal restarts, the
usual looks. "As if exact" counts the same runs decided by a rule that takes what is imperfectly known as exact.
"""
TIES_HEAD = """
### Values that are ties of a timer

Every run has its base at another place between two steps of the timer, and the head slower by exactly `ignorable` or
`must_catch`; margins 0.02 % and 0.15 %. Restarts spread by a share of a step.

"""
FLOOR_HEAD = """
### A slowdown of exactly the floor

Margins of 2 % and 8 % and a floor; the head is slower by exactly the larger of the floor and one of them. Pairs spread
by 0.1 %; the speed of the machine wanders from pair to pair and both sides share it. "As if exact" takes the floor as a
share of the first look's base, once for all pairs.

"""
PROMISE_HEAD = """
### What `detectable` promises

One run sees the spread of some pairs and names a slowdown; a look of another run meets exactly that slowdown, and
should block in 95 of 100. "As if exact" takes the spread as known.

"""


def section(rows: Sequence[Row], promises: Sequence[Row]) -> str:
    """The section of the page."""
    counts = ("wrong", "at least", "at most", "as if exact", "claim")
    tables = (
        (TIES_HEAD, ("step", "restarts", "slower by", *counts), rows[:TIES]),
        (FLOOR_HEAD, ("floor", "speed", "slower by", *counts), rows[TIES:]),
    )
    parts = [TITLE, HEAD.format(seed=SEED, runs=rows[0].runs)]
    for head, columns, of in tables:
        parts += [head, heading(columns), *(line(cells(row)) for row in of)]
    parts += [PROMISE_HEAD, heading(("pairs seen", "pairs of the look", "blocked", "as if exact"))]
    for row in promises:
        parts.append(line((*row.words, percent(row.wrong / row.runs), percent(row.exact / row.runs))))
    return "".join(parts)


def cells(row: Row) -> list[str]:
    """A row of a table of claims."""
    rates = (row.wrong / row.runs, row.least, row.most, row.exact / row.runs)
    return [*row.words, *map(percent, rates), row.standing]


def simulate_all(runs: int = RUNS) -> tuple[list[Row], list[Row]]:
    """Every row with a claim, and every promise, said as it is done."""
    rows = []
    for claim in CLAIMS:
        rows.append(claim(runs))
        print(*cells(rows[-1]), sep="  ", flush=True)
    return rows, [promise(*place, runs) for place in PROMISES]


def main() -> None:
    """Simulate and put the section into the page, in the place of the one there."""
    PAGE.write_text(merged(PAGE.read_text(), section(*simulate_all())))


if __name__ == "__main__":
    main()
