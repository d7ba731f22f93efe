"""Simulate dropped pairs: a machine that fails fairly, and a head that fails when it is slow.

``python research/dropped_rates.py`` takes seconds and puts a fresh section into docs/error-rates.txt. The cap and the
binomial test are those of :mod:`perfgate.record.dropped_pairs`, over every split of failures that can occur.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from claimed_rate import line, merged, percent
from many_runs import Margins, decide_all
from numpy.typing import NDArray
from restart_models import normal, orders

from perfgate.record.dropped_pairs import LEVEL, chance
from perfgate.stats.sequential import PASS

Counts = NDArray[np.int64]

PAGE = Path(__file__).parents[1] / "docs" / "error-rates.txt"
TITLE = "## Dropped pairs\n"
SEED = 20261122
RUNS = 100_000
ATTEMPTS = 160
"""Pairs begun in a simulated run, at most."""
MARGINS = Margins(0.001, 0.005)
PAIR_SD = 0.0007
RESUMES = 3


@dataclass(frozen=True)
class DropModel:
    """On which side trials fail.

    Args:
        name: For the table.
        base: Share of the base's trials that fail, from 0 to below 1.
        head: That of the head's.
        cap: ``measure.max_dropped_pairs``.
    """

    name: str
    base: float
    head: float
    cap: int = 2


MODELS = (
    DropModel("fair, 1 % of trials", 0.01, 0.01),
    DropModel("fair, 5 % of trials", 0.05, 0.05),
    DropModel("fair, 20 % of trials", 0.20, 0.20),
    DropModel("fair, 20 % of trials", 0.20, 0.20, cap=20),
    DropModel("fair, half of trials", 0.50, 0.50, cap=20),
    DropModel("the head throttles itself in half", 0.0, 0.5),
    DropModel("the head throttles itself in half", 0.0, 0.5, cap=20),
    DropModel("the same, beside a fair 5 %", 0.05, 0.525),
)


@dataclass(frozen=True)
class DropRow:
    """One model, counted.

    Args:
        model: On which side trials fail.
        runs: Simulated runs; every head passes by its trials that do not fail.
        at_once: Runs that ended 0 in their first visit where the cap counted a visit.
        resumed: The same with up to :data:`RESUMES` resumed visits, each with a cap of its own.
        ended: Runs that end 0 now, however often they are resumed.
        one_sided: Runs that the binomial test ends.
    """

    model: DropModel
    runs: int
    at_once: int
    resumed: int
    ended: int
    one_sided: int


def failures(model: DropModel, rng: np.random.Generator, runs: int) -> NDArray[np.int8]:
    """Which side failed first in each pair begun, (runs, attempts): 0 neither, 1 the base, 2 the head."""
    drawn = orders(ATTEMPTS)
    head_first = drawn[rng.integers(0, len(drawn), runs)]
    base, head = (rng.random((runs, ATTEMPTS)) < share for share in (model.base, model.head))
    first = np.where(head_first, np.where(head, 2, base), np.where(base, 1, 2 * head))
    return first.astype(np.int8)


def refusals(cap: int) -> NDArray[np.bool_]:
    """Whether the binomial test ends a run with so many failures of the base and of the head, up to the cap."""
    return np.array([[chance(base, head) <= LEVEL for head in range(cap + 2)] for base in range(cap + 2)])


def simulate(model: DropModel, runs: int = RUNS) -> DropRow:
    """Count what becomes of runs whose pairs are dropped and replaced."""
    rng = np.random.default_rng([SEED, model.cap, *model.name.encode()])
    ends = decide_all(normal(PAIR_SD).pairs(rng, runs, (0.0,)), (MARGINS,))
    first = failures(model, rng, runs)
    base, head = (np.cumsum(first == side, axis=1) for side in (1, 2))
    dropped, valid = base + head, np.cumsum(first == 0, axis=1)
    needed = valid < ends.pairs[:, None]  # pairs begun before the deciding look
    before: Counts = np.where(needed, dropped, 0).max(axis=1)
    tested = refusals(model.cap)
    counted = needed & (dropped <= model.cap + 1)
    one_sided = (tested[np.minimum(base, model.cap + 1), np.minimum(head, model.cap + 1)] & counted).any(axis=1)
    passes = (ends.runs == PASS) & (valid[:, -1] >= ends.pairs)
    stops = before // (model.cap + 1)  # visits that the cap ended, were it counted a visit
    return DropRow(
        model, runs, int((passes & (stops == 0)).sum()), int((passes & (stops <= RESUMES)).sum()),
        int((passes & (before <= model.cap) & ~one_sided).sum()), int(one_sided.sum()),
    )  # fmt: skip


HEAD = """
Written by `research/dropped_rates.py` (seed {seed}); {runs:,} simulated runs a row, margins 0.1 % and 0.5 %, pairs
normal with sd 0.07 %, orders as the plan draws them. A pair whose trial fails is dropped and replaced; all runs pass by
the pairs that are left, and "ends 0" counts those that get there. The columns "a visit" say what became of the same
runs if each visit had a cap of its own, without and with {resumes} times `--resume`. The binomial test is to end
at most {level} of the runs of a fair machine; the largest share here is {worst}.

| failures | cap | ends 0, cap a visit | the same, resumed | ends 0 | ended by the binomial test |
|---|---|---|---|---|---|
"""


def section(rows: Sequence[DropRow]) -> str:
    """The section of the page."""
    worst = max(row.one_sided / row.runs for row in rows if row.model.base == row.model.head)
    intro = HEAD.format(seed=SEED, runs=rows[0].runs, resumes=RESUMES, level=f"{LEVEL * 100:g} %", worst=percent(worst))
    return "".join([TITLE, intro, *(line(cells(row)) for row in rows)])


def cells(row: DropRow) -> list[str]:
    """A row of the table."""
    counts = (row.at_once, row.resumed, row.ended, row.one_sided)
    return [row.model.name, str(row.model.cap), *(percent(count / row.runs) for count in counts)]


def simulate_all(runs: int = RUNS) -> list[DropRow]:
    """Every row, in order."""
    return [simulate(model, runs) for model in MODELS]


def main() -> None:
    """Simulate and put the section into the page, in the place of the one there."""
    PAGE.write_text(merged(PAGE.read_text(), section(simulate_all())))


if __name__ == "__main__":
    main()
