"""Simulate searches for the commit that lost it: writes a section of docs/error-rates.txt.

``python research/bisect_rates.py`` takes twenty minutes and puts a fresh section into the page that is there. The
decisions are those of ``perfgate bisect`` itself (:func:`perfgate.bisect.commit_search.next_step`), and the first and
the last comparison are looked at by the gate's own rule. Beside it are plain halving and the way of ``asv find``, on
the same histories.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from claimed_rate import ClaimedRate, line, merged
from numpy.typing import NDArray

from perfgate import stats
from perfgate.bisect.commit_posterior import Comparison, Evidence
from perfgate.bisect.commit_search import Answer, Limits, next_step
from perfgate.scenario.plan import ALPHA, BETA
from perfgate.stats.sequential import DEFAULT_SCHEDULE

Floats = NDArray[np.float64]

PAGE = Path(__file__).parents[1] / "docs" / "error-rates.txt"
TITLE = "## Which commit lost it\n"
SEED = 20261128
SEARCHES = 1000
COMMITS = 64
LOSS = 0.005
PAIR_SD, BUILD_SD = 0.001, 0.001
CHANGING, BROKEN = 0.25, 0.1
"""Shares of commits that change a little, and of those that do not build."""
SIZES = (0.0005, 0.001)
"""Of the small changes, which are uniform up to that in either direction."""
HALVING_PAIRS = 6
MARGINS = (0.001, LOSS)
"""``ignorable`` and ``must_catch`` of the gate."""


@dataclass(frozen=True)
class Line:
    """A simulated history.

    Args:
        lost_at: Number of the commit that lost it.
        levels: Log of what each build takes, (commits + 1,).
        broken: Commits that do not build.
        rng: Draws the noise of what is measured.
    """

    lost_at: int
    levels: Floats
    broken: frozenset[int]
    rng: np.random.Generator

    @classmethod
    def drawn(cls, number: int, size: float) -> Line:
        """One of many, always the same."""
        rng = np.random.default_rng([SEED, number, round(size * 1e6)])
        lost_at = int(rng.integers(1, COMMITS + 1))
        changes = np.where(rng.random(COMMITS) < CHANGING, rng.uniform(-size, size, COMMITS), 0.0)
        changes[lost_at - 1] = math.log1p(LOSS)
        levels = np.concatenate([[0.0], np.cumsum(changes)]) + BUILD_SD * rng.standard_normal(COMMITS + 1)
        broken = frozenset(n for n in range(1, COMMITS) if rng.random() < BROKEN)
        return cls(lost_at, levels, broken, rng)

    def pairs(self, base: int, head: int, count: int) -> Floats:
        """Log ratios of pairs of two builds."""
        d: Floats = self.levels[head] - self.levels[base] + PAIR_SD * self.rng.standard_normal(count)
        return d

    def trial(self, number: int) -> float:
        """One trial of one build; a pair has two."""
        return float(self.levels[number] + PAIR_SD / math.sqrt(2) * self.rng.standard_normal())

    def judged(self, base: int, head: int) -> tuple[Floats, str]:
        """Pairs as the gate's own rule takes them, and what it says."""
        d = self.pairs(base, head, DEFAULT_SCHEDULE.looks[-1])
        for count in DEFAULT_SCHEDULE.looks:
            ignorable, must_catch = (np.full((1, count), margin) for margin in MARGINS)
            look = stats.interim_looks(d[:count], DEFAULT_SCHEDULE, ignorable, must_catch, 0.0)[-1]
            if look.p_slower <= ALPHA:
                return d[:count], "regressed"
            if look.p_equivalent <= BETA:
                return d[:count], "pass"
        return d, "inconclusive"


@dataclass(frozen=True)
class Searched:
    """Where one search ended.

    Args:
        commits: The answer; empty where the loss was not reproduced.
        pairs: How many it took.
        builds: How many builds, those that failed among them.
    """

    commits: tuple[int, ...]
    pairs: float
    builds: int


def by_posterior(line: Line, limits: Limits) -> Searched:
    """``perfgate bisect``."""
    compared: list[Comparison] = []
    asked, confirmed = {0, COMMITS}, set[tuple[int, int]]()
    while True:
        evidence = Evidence(COMMITS, tuple(compared), frozenset(asked & line.broken))
        step = next_step(evidence, limits, frozenset(confirmed))
        if isinstance(step, Answer):
            return Searched(step.commits, evidence.pairs, len(asked))
        asked |= {step.base, step.head}
        if {step.base, step.head} & line.broken:
            continue
        if step.pairs is not None:
            d = line.pairs(step.base, step.head, step.pairs)
        else:
            d, verdict = line.judged(step.base, step.head)
            if step.purpose == "reproduce" and verdict != "regressed":
                return Searched((), len(d), len(asked))
            confirmed |= {(step.base, step.head)} if step.purpose == "confirm" else set()
        compared.append(Comparison(step.base, step.head, tuple(d.tolist())))


def by_halving(line: Line) -> Searched:
    """Half of what is left: a commit is bad where six pairs are nearer to the bad commit than to the good one.

    Where a commit does not build the nearest to the middle that does is taken.
    """
    first, verdict = line.judged(0, COMMITS)
    taken, asked = len(first), {0, COMMITS}
    if verdict != "regressed":
        return Searched((), taken, len(asked))
    good, bad = 0, COMMITS
    while left := [n for n in range(good + 1, bad) if n not in asked & line.broken]:
        middle = min(left, key=lambda n: abs(n - (good + bad) / 2))
        asked.add(middle)
        if middle in line.broken:
            continue
        taken += HALVING_PAIRS
        slower = line.pairs(0, middle, HALVING_PAIRS).mean() > first.mean() / 2
        good, bad = (good, middle) if slower else (middle, bad)
    return Searched(tuple(range(good + 1, bad + 1)), taken, len(asked))


def by_asv(line: Line) -> Searched:
    """``asv find``: each commit is measured once, and the half with the greater difference is searched.

    Where a commit does not build the next one is taken, towards the other end where it is the last of a half.
    """
    found: dict[int, float] = {}

    def measured(number: int, step: int) -> int:
        while number in line.broken:
            number += step
        found.setdefault(number, line.trial(number))
        return number

    low, high = measured(0, 1), measured(COMMITS, -1)
    while high - low > 1:
        middle = measured((low + high) // 2, 1)
        if middle >= high:
            break
        rises = [found[high] - found[middle], found[middle] - found[low]]
        low, high = (low, middle) if rises[1] >= rises[0] else (middle, high)
    return Searched((high,), len(found) / 2, len(found))


USUAL, BOLD = Limits(), Limits(0.2)
WAYS: dict[str, tuple[Callable[[Line], Searched], float | None]] = {
    "perfgate bisect": (partial(by_posterior, limits=USUAL), USUAL.error),
    "the same, --error 20%": (partial(by_posterior, limits=BOLD), BOLD.error),
    "plain halving": (by_halving, None),
    "asv find": (by_asv, None),
}
"""Each with the error rate that it claims."""


@dataclass(frozen=True)
class BisectRow(ClaimedRate):
    """Many searches of one way, counted.

    Args:
        way: In words.
        size: Of the small changes.
        runs: Those in which the loss was reproduced, of all.
        searches: All of them.
        wrong: Answers without the commit.
        single: Answers of one commit.
        commits: In all answers together.
        pairs: In all of these searches together.
        builds: The same.
        declared: The error rate that the way claims; 1 where it claims none.
    """

    way: str
    size: float
    searches: int
    runs: int
    wrong: int
    single: int
    commits: int
    pairs: float
    builds: int
    declared: float


def count(way: str, size: float, searches: int = SEARCHES) -> BisectRow:
    """Search many lines in one way; the lines are the same for each way."""
    lines = [Line.drawn(number, size) for number in range(searches)]
    search, declared = WAYS[way]
    ended = [(line, search(line)) for line in lines]
    over = [(line, one) for line, one in ended if one.commits]
    return BisectRow(
        way, size, searches, len(over), sum(line.lost_at not in one.commits for line, one in over),
        sum(len(one.commits) == 1 for _, one in over), sum(len(one.commits) for _, one in over),
        sum(one.pairs for _, one in over), sum(one.builds for _, one in over), declared or 1.0,
    )  # fmt: skip


HEAD = """
Written by `research/bisect_rates.py` (seed {seed}); {searches:,} simulated searches a row among {commits} commits.
One of them, any with equal probability, made each step slower by {loss}. Pairs have an sd of {pair}, each build an
offset with an sd of {build}, a quarter of the other commits change by up to "small changes" in either direction, and
one in ten does not build. Margins 0.1 % and 0.5 %. The claim is that at most {error} of answers do not hold the commit.
All columns but "told" are of the searches whose ends the gate told apart. Plain halving takes {halving} pairs a commit.

| small changes | search | told | wrong | at most | one named | commits | pairs | builds | claim |
|---|---|---|---|---|---|---|---|---|---|
"""


def section(rows: list[BisectRow]) -> str:
    """The section of the page."""
    intro = HEAD.format(
        seed=SEED, searches=rows[0].searches, commits=COMMITS, loss=_percent(LOSS), pair=_percent(PAIR_SD),
        build=_percent(BUILD_SD), halving=HALVING_PAIRS, error=_percent(USUAL.error),
    )  # fmt: skip
    return "".join([TITLE, intro, *(line(cells(row)) for row in rows)])


def cells(row: BisectRow) -> list[str]:
    """A row of the table."""
    rates = (f"{rate * 100:.1f} %" for rate in (row.runs / row.searches, row.wrong / row.runs, row.most,
                                               row.single / row.runs))  # fmt: skip
    means = (f"{total / row.runs:.1f}" for total in (row.commits, row.pairs, row.builds))
    claim = row.standing if row.declared < 1 else "none made"
    return [f"{_percent(row.size)}", row.way, *rates, *means, claim]


def _percent(ratio: float) -> str:
    return f"{ratio * 100:g} %"


def main() -> None:
    """Simulate and put the section into the page, in the place of the one there, else before that of dropped pairs."""
    rows = [count(way, size) for size in SIZES for way in WAYS]
    PAGE.write_text(merged(PAGE.read_text(), section(rows)))


if __name__ == "__main__":
    main()
