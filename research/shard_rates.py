"""Simulate plans that several machines measure in shards: writes a section of docs/error-rates.txt.

``python research/shard_rates.py`` takes some minutes and puts a fresh section into the page that is there. A shard
measures its cells one after the other, each look by look until it is decided, at the levels that the whole plan leaves:
what other shards found counts as p = 1. Then Holm's method is applied over all. The same pairs are also given to one
machine by the rule of a run that is no part of a plan: it knows what it has rejected so far, and each of the gates that
a gate is judged as has a share of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from claimed_rate import RateOfCase, line, merged
from many_runs import Margins, worst
from numpy.typing import NDArray
from restart_models import PAIR_SD, PAIRS

from perfgate import stats
from perfgate.scenario.plan import ALPHA, BETA
from perfgate.stats.sequential import DEFAULT_SCHEDULE, PASS

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Case = Literal["all at the margin", "a cell of each shard far slower", "one at must_catch"]

PAGE = Path(__file__).parents[1] / "docs" / "error-rates.txt"
TITLE = "## Shards of one plan\n"
SEED = 20261127
RUNS = 40_000
CHUNK = 10_000
TIGHT = Margins(0.0002, 0.0015)
FAR = 0.005
"""Slowdown of a cell that every run blocks, by which Holm's method loosens the levels of the others."""
CASES: tuple[Case, ...] = ("all at the margin", "a cell of each shard far slower", "one at must_catch")
LAYOUTS = ((3, 2, 1), (4, 4, 1), (3, 2, 3))
"""Shards, cells of each, and members that each gate of the first shard is judged as: three on a GPU with two states."""


@dataclass(frozen=True)
class ShardRow(RateOfCase):
    """One simulated truth, counted.

    Args:
        case: All cells slower by exactly ``ignorable``; or the first of each shard by :data:`FAR` besides; or the very
            first by exactly ``must_catch`` and the others unchanged.
        layout: One of :data:`LAYOUTS`.
        runs: Simulated plans.
        wrong: Those that blocked a cell no slower than ``ignorable``; at must_catch those that passed the first.
        taken_back: Those in which a shard stopped a gate as regressed and the join did not block it.
        added: Those in which the join blocked a gate that no shard had.
        otherwise: Those in which one machine had ended with another verdict of any cell.
        pairs: Of all plans together.
        alone: Those that one machine had taken.
    """

    case: Case
    layout: tuple[int, int, int]
    runs: int
    wrong: int
    taken_back: int
    added: int
    otherwise: int
    pairs: int
    alone: int


@dataclass(frozen=True)
class Measured:
    """What plans end with.

    Args:
        p: Of "slower by at most ignorable", (members, plans).
        q: Of "slower by at least must_catch".
        stopped: Which members were rejected where they were measured.
        pairs: Of each cell, (cells, plans).
    """

    p: Floats
    q: Floats
    stopped: Bools
    pairs: NDArray[np.int64]


def measure(
    d: Floats, cells: Sequence[slice], shards: Sequence[Sequence[int]], weights: Sequence[Fraction]
) -> Measured:
    """Take the pairs of plans as machines do that know only their own shard.

    Args:
        d: Log ratios of all pairs that there could be, (members, plans, pairs).
        cells: The members of each cell.
        shards: The cells of each, in the order in which they are measured.
        weights: Shares of alpha, a member.
    """
    looks = stats.interim_looks(d, DEFAULT_SCHEDULE, TIGHT.ignorable, TIGHT.must_catch)
    members, plans, _ = d.shape
    ends = Measured(
        np.ones((members, plans)), np.ones((members, plans)), np.zeros((members, plans), bool),
        np.zeros((len(cells), plans), np.int64),
    )  # fmt: skip
    for shard in shards:
        own = np.zeros((members, 1), bool)
        for number in shard:
            cell, going = cells[number], np.ones(plans, bool)
            own[cell] = True
            for look in looks:
                for into, seen in ((ends.p, look.p_slower), (ends.q, look.p_equivalent)):
                    into[cell] = np.where(going, np.asarray(seen)[cell], into[cell])
                ends.pairs[number, going] = look.pairs
                rejected = stats.holm(np.where(own, ends.p, 1.0), ALPHA, weights)[cell]
                going &= ~rejected.any(axis=0) & (ends.q[cell] > BETA).any(axis=0)
        ends.stopped[own[:, 0]] = stats.holm(np.where(own, ends.p, 1.0), ALPHA, weights)[own[:, 0]]
    return ends


def slowdowns(case: Case, shards: int, cells: int) -> list[float]:
    """True slowdowns of the cells in a case."""
    if case == "one at must_catch":
        return [TIGHT.must_catch, *[0.0] * (shards * cells - 1)]
    first = TIGHT.ignorable if case == "all at the margin" else FAR
    return [first, *[TIGHT.ignorable] * (cells - 1)] * shards


def simulate(case: Case, layout: tuple[int, int, int], runs: int = RUNS) -> ShardRow:
    """Count what becomes of plans."""
    count, each, split = layout
    rng = np.random.default_rng([SEED, *layout, *case.encode()])
    sizes = [split] * each + [1] * each * (count - 1)
    bounds = np.cumsum([0, *sizes])
    cells = [slice(int(first), int(last)) for first, last in pairwise(bounds)]
    weights = [Fraction(1, size) for size in sizes for _ in range(size)]
    slow = np.array(slowdowns(case, count, each))
    fine = np.repeat(slow, sizes) <= TIGHT.ignorable
    divided = [range(each * shard, each * (shard + 1)) for shard in range(count)]
    totals = np.zeros(6, np.int64)
    for first in range(0, runs, CHUNK):
        plans = min(CHUNK, runs - first)
        d = PAIR_SD * rng.standard_normal((plans, len(weights), PAIRS)) + np.repeat(np.log1p(slow), sizes)[:, None]
        d = d.transpose(1, 0, 2)
        apart = measure(d, cells, divided, weights)
        alone = measure(d, cells, [range(count * each)], [Fraction(1)] * len(weights))
        joined = stats.holm(apart.p, ALPHA, weights)
        verdicts, other = (_verdicts(*own, cells) for own in ((apart, joined), (alone, alone.stopped)))
        missed = verdicts[0] == PASS
        wrong = missed if case == "one at must_catch" else joined[fine].any(axis=0)
        counted = (wrong, (apart.stopped & ~joined).any(axis=0), (joined & ~apart.stopped).any(axis=0),
                   (verdicts != other).any(axis=0), apart.pairs, alone.pairs)  # fmt: skip
        totals += [int(own.sum()) for own in counted]
    return ShardRow(case, layout, runs, *map(int, totals))


def _verdicts(ends: Measured, rejected: Bools, cells: Sequence[slice]) -> NDArray[np.int8]:
    """Of each cell: its worst member's, (cells, plans)."""
    return np.stack([worst(stats.decided(rejected[cell], ends.q[cell], BETA)) for cell in cells])


HEAD = """
Written by `research/shard_rates.py` (seed {seed}); {runs:,} simulated plans a row, one gate a cell, margins 0.02 %
and 0.15 %, pairs normal with sd 0.07 %. Wrong is a block of a cell that is slower by at most `ignorable` (one that is
far slower is so by {far}), or a pass of the first at `must_catch`. "3 x 2, split" is a plan whose first shard is on a
GPU with two states, where each gate is judged as three that share its level. "Taken back" counts plans in which a shard
stopped a gate as regressed that the join did not block, "added" those in which the join blocked one more, "otherwise"
those in which one machine had ended with another verdict of any cell. The last columns are pairs of a plan.

| truth | shards x cells | wrong | at most | taken back | added | otherwise | pairs | one machine | claim |
|---|---|---|---|---|---|---|---|---|---|
"""


def section(rows: Sequence[ShardRow]) -> str:
    """The section of the page."""
    intro = HEAD.format(seed=SEED, runs=rows[0].runs, far=f"{FAR * 100:g} %")
    return "".join([TITLE, intro, *(line(words(row)) for row in rows)])


def words(row: ShardRow) -> list[str]:
    """A row of the table."""
    count, each, split = row.layout
    shares = (f"{share / row.runs * 100:.2f} %" for share in (row.added, row.otherwise))
    pairs = (f"{total / row.runs:.1f}" for total in (row.pairs, row.alone))
    rates = (f"{rate * 100:.2f} %" for rate in (row.wrong / row.runs, row.most))
    layout = f"{count} x {each}{', split' if split > 1 else ''}"
    return [row.case, layout, *rates, str(row.taken_back), *shares, *pairs, row.standing]


def simulate_all(runs: int = RUNS) -> list[ShardRow]:
    """Every row, in order."""
    return [simulate(case, layout, runs) for case in CASES for layout in LAYOUTS]


def main() -> None:
    """Simulate and put the section into the page, in the place of the one there, else before that of dropped pairs."""
    PAGE.write_text(merged(PAGE.read_text(), section(simulate_all())))


if __name__ == "__main__":
    main()
