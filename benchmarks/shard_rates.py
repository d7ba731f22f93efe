"""Simulate plans that several machines measure in shards: writes a section of docs/error-rates.txt.

``python benchmarks/shard_rates.py`` takes some minutes and puts a fresh section into the page that is there. A shard
measures its cells one after the other, each look by look until it is decided, at the levels that the whole plan leaves:
what other shards found counts as p = 1. Then Holm's method is applied over all. The same pairs are also given to one
machine by the rule of a run that is no part of a plan: it knows what it has rejected so far, and each of the gates that
a gate is judged as has a share of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from claimed_rate import ClaimedRate
from numpy.typing import NDArray
from page_sections import merged
from restart_models import PAIR_SD, PAIRS
from rule_twin import Margins, look_p

from perfgate.drill.peer_rules import INCONCLUSIVE, PASS, REGRESSED
from perfgate.scenario.plan import ALPHA, BETA
from perfgate.stats.sequential import DEFAULT_SCHEDULE

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
class ShardRow(ClaimedRate):
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
    confidence: float = 0.99

    @property
    def declared(self) -> float:
        """The rate declared for that error."""
        return BETA if self.case == "one at must_catch" else ALPHA


@dataclass(frozen=True)
class Measured:
    """What plans end with.

    Args:
        p: Of "slower by at most ignorable", (plans, members).
        q: Of "slower by at least must_catch".
        stopped: Which members were rejected where they were measured.
        pairs: Of each cell, (plans, cells).
    """

    p: Floats
    q: Floats
    stopped: Bools
    pairs: NDArray[np.int64]


def weighted_holm(p: Floats, weights: Floats, alpha: float) -> Bools:
    """Which hypotheses Holm's weighted step-down rejects, row by row, (plans, members)."""
    order = np.argsort(p / weights, axis=1, kind="stable")
    shares = weights[order]
    left = np.cumsum(shares[:, ::-1], axis=1)[:, ::-1]
    in_order = np.logical_and.accumulate(
        np.take_along_axis(p, order, axis=1) <= alpha * shares / left * (1 + 1e-12), axis=1
    )
    rejected = np.empty_like(in_order)
    np.put_along_axis(rejected, order, in_order, axis=1)
    return rejected


def measure(d: Floats, cells: Sequence[slice], shards: Sequence[Sequence[int]], weights: Floats) -> Measured:
    """Take the pairs of plans as machines do that know only their own shard.

    Args:
        d: Log ratios of all pairs that there could be, (plans, members, pairs).
        cells: The members of each cell.
        shards: The cells of each, in the order in which they are measured.
        weights: Shares of alpha, a member.
    """
    plans, members, _ = d.shape
    ends = Measured(
        np.ones((plans, members)), np.ones((plans, members)), np.zeros((plans, members), bool),
        np.zeros((plans, len(cells)), np.int64),
    )  # fmt: skip
    for shard in shards:
        own = np.zeros(members, bool)
        for cell in shard:
            own[cells[cell]] = True
            _measure_cell(d, cells[cell], (ends, cell), own, weights)
        ends.stopped[:, own] = weighted_holm(np.where(own, ends.p, 1.0), weights, ALPHA)[:, own]
    return ends


def _measure_cell(d: Floats, cell: slice, into: tuple[Measured, int], own: Bools, weights: Floats) -> None:
    ends, number = into
    going = np.arange(len(d))
    for pairs, block, passing in zip(
        DEFAULT_SCHEDULE.looks, DEFAULT_SCHEDULE.block, DEFAULT_SCHEDULE.pass_, strict=True
    ):
        above, below = look_p(d[going, cell, :pairs], TIGHT, block, passing)
        ends.p[going, cell] = np.minimum(ends.p[going, cell], above)
        ends.q[going, cell] = np.minimum(ends.q[going, cell], below)
        ends.pairs[going, number] = pairs
        rejected = weighted_holm(np.where(own, ends.p[going], 1.0), weights, ALPHA)[:, cell]
        undecided = ~rejected.any(axis=1) & (ends.q[going, cell] > BETA).any(axis=1)
        going = going[undecided]


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
    weights = np.repeat(1 / np.array(sizes), sizes)
    slow = np.array(slowdowns(case, count, each))
    fine = np.repeat(slow, sizes) <= TIGHT.ignorable
    divided = [range(each * shard, each * (shard + 1)) for shard in range(count)]
    totals = np.zeros(6, np.int64)
    for first in range(0, runs, CHUNK):
        plans = min(CHUNK, runs - first)
        d = PAIR_SD * rng.standard_normal((plans, len(weights), PAIRS)) + np.repeat(np.log1p(slow), sizes)[:, None]
        apart = measure(d, cells, divided, weights)
        alone = measure(d, cells, [range(count * each)], np.ones_like(weights))
        joined = weighted_holm(apart.p, weights, ALPHA)
        verdicts, other = (_verdicts(*own, cells) for own in ((apart, joined), (alone, alone.stopped)))
        missed = verdicts[:, 0] == PASS
        wrong = missed if case == "one at must_catch" else joined[:, fine].any(axis=1)
        counted = (wrong, (apart.stopped & ~joined).any(axis=1), (joined & ~apart.stopped).any(axis=1),
                   (verdicts != other).any(axis=1), apart.pairs, alone.pairs)  # fmt: skip
        totals += [int(own.sum()) for own in counted]
    return ShardRow(case, layout, runs, *map(int, totals))


def _verdicts(ends: Measured, rejected: Bools, cells: Sequence[slice]) -> NDArray[np.int8]:
    """Of each cell: its worst member's, (plans, cells)."""
    blocked = np.stack([rejected[:, cell].any(axis=1) for cell in cells], axis=1)
    passed = np.stack([(ends.q[:, cell] <= BETA).all(axis=1) for cell in cells], axis=1)
    return np.where(blocked, REGRESSED, np.where(passed, PASS, INCONCLUSIVE)).astype(np.int8)


HEAD = """
Written by `benchmarks/shard_rates.py` (seed {seed}); {runs:,} simulated plans a row, one gate a cell, margins 0.02 %
and 0.15 %, pairs normal with sd 0.07 %. Each shard measures its cells one after the other and stops at the levels of
the whole plan, with the gates of other shards at p = 1; Holm's method over all gates joins them. **The claim is that at
most 1 % of plans block any cell that is slower by at most `ignorable`**, also where the first cell of each shard is
slower by {far} and is blocked, **and that at most 5 % pass a cell that is slower by `must_catch`.** "3 x 2, split" is a
plan whose first shard is on a GPU with two states, where each gate is judged as three that share its level. "Taken
back" counts plans in which a shard stopped a gate as regressed that the join did not block; "added" those in which the
join blocked one more. "Otherwise" are those in which one machine, given the same pairs as a run of the whole plan, had
ended with another verdict of any cell: it knows what it rejected before, and stops earlier; and with two states each
of the three gates has a share of its own there, where in a shard they have one together. The last columns are pairs of
a plan, in shards and on one machine.

| truth | shards x cells | wrong | at most | taken back | added | otherwise | pairs | one machine | claim |
|---|---|---|---|---|---|---|---|---|---|
"""


def section(rows: Sequence[ShardRow]) -> str:
    """The section of the page."""
    intro = HEAD.format(seed=SEED, runs=rows[0].runs, far=f"{FAR * 100:g} %")
    return "".join([TITLE, intro, *(f"| {' | '.join(words(row))} |\n" for row in rows)])


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
