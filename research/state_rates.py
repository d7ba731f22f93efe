"""Simulate the rule within states of a machine: how often it blocks what is fine and passes what is not.

``python research/state_rates.py`` takes two hours on two cores and puts a fresh section into docs/error-rates.txt.
Runs are decided by :mod:`perfgate.judge.state_series`, one by one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import many_runs
import moderated_rates
import numpy as np
import state_models as models
from claimed_rate import heading, line, merged
from many_runs import Decisions
from restart_models import NOISY_PAIR_SD as PAIR_SD
from state_models import PAIRS, Floats, StateModel
from state_places import PERCENT_GAP, PLACES, SEED, TIGHT, WIDE, Place, Row
from state_runs import Ends, decide_all

from perfgate.judge.machine_states import Source
from perfgate.scenario.plan import ALPHA, BETA
from perfgate.stats.rates import rate_bounds
from perfgate.stats.sequential import DEFAULT_SCHEDULE, INCONCLUSIVE, PASS, REGRESSED

PAGE = Path(__file__).parents[1] / "docs" / "error-rates.txt"
RUNS = 4_000
BATCH = 1_000


def simulate(place: Place, runs: int = RUNS) -> list[Row]:
    """Count what the rule makes of simulated runs, by each number of gates."""
    return _rows(place, runs, _counts(place, runs))


def _rows(place: Place, runs: int, counts: Sequence[Sequence[int]]) -> list[Row]:
    return [Row(place, gates, runs, *own) for gates, own in zip(place.gates, counts, strict=True)]


def _counts(place: Place, runs: int) -> list[list[int]]:
    rng = np.random.default_rng(place.seed)
    counts = np.zeros((len(place.gates), 7), np.int64)
    for begin in range(0, runs, BATCH):
        measured = place.measure(rng, min(BATCH, runs - begin))
        counts += np.array([_count(decide_all(measured, gates), place.model.slower) for gates in place.gates])
    found: list[list[int]] = counts.tolist()
    return found


def _count(ends: Ends, slower: float) -> list[int]:
    passed = ends.runs == PASS
    within = passed & ends.within
    most = [[rate_bounds(more, pairs, 1 - BETA)[1] for more in range(pairs + 1)] for pairs in range(PAIRS + 1)]
    said = np.array([most[pairs][more] for pairs, more in zip(ends.labelled.tolist(), ends.more.tolist(), strict=True)])
    return [int(found.sum()) for found in (ends.runs == REGRESSED, ends.by_share, passed, within,
                                           within & (said < slower), ends.first == PASS, ends.pairs)]  # fmt: skip


TWO_LEVELS = "on two levels"
SHAPES: dict[str, tuple[Callable[[np.random.Generator, tuple[int, ...]], Floats], bool]] = {
    "t, 2 degrees of freedom": (lambda rng, shape: rng.standard_t(2, shape), True),
    "t, 3 degrees of freedom": (lambda rng, shape: rng.standard_t(3, shape), True),
    "contaminated, one in ten by five times": (models.contaminated, True),
    "exponential, tail towards slow": (models.exponential, False),
    "exponential, tail towards fast": (lambda rng, shape: -models.exponential(rng, shape), False),
    TWO_LEVELS: (models.on_two_levels, True),
    "three in ten slow": (lambda rng, shape: rng.choice([-0.65, 1.53], shape, p=[0.7, 0.3]), False),
    "one in ten slow": (lambda rng, shape: rng.choice([-1 / 3, 3.0], shape, p=[0.9, 0.1]), False),
}
"""What pairs may look like, and whether rates are claimed."""


SPREADS = (PAIR_SD, 3e-3, 6e-3, 1.2e-2)
"""Scales of pairs: with little spread nearly every run ends at the first look, so that some errors do not show."""


SHAPE_RUNS = 20_000
"""Of each shape: a rate of 0.8 % is then shown to be below 1 %."""


FURTHER = (16, 24, 40)
"""Looks that ``--more`` adds, one after another."""


def of_pairs(name: str, runs: int = SHAPE_RUNS, further: tuple[int, ...] = ()) -> tuple[Decisions, Decisions]:
    """What the rule makes of pairs of a shape, at ``ignorable`` and at ``must_catch``, at the spread that errs most."""
    draw, _ = SHAPES[name]
    schedule = DEFAULT_SCHEDULE.further(further)
    shape = (runs, 1, schedule.looks[-1])
    rng = np.random.default_rng([SEED, *name.encode()])
    worst = []
    for slow, error in ((WIDE.ignorable, REGRESSED), (WIDE.must_catch, PASS)):
        every = [many_runs.decide_all(np.log1p(slow) + sd * draw(rng, shape), (WIDE,), schedule) for sd in SPREADS]
        wrong = [int((ends.runs == error).sum()) for ends in every]
        worst.append(every[wrong.index(max(wrong))])
    return worst[0], worst[1]


def _of_pairs_table(runs: int) -> str:
    rows = [PAIRS_WORDS.format(runs=runs)]
    for name, further in (*((name, ()) for name in SHAPES), (TWO_LEVELS, FURTHER)):
        own, claimed = [], SHAPES[name][1]
        wrong = zip(of_pairs(name, runs, further), (REGRESSED, PASS), (ALPHA, BETA), strict=True)
        kept = claimed
        for ends, error, declared in wrong:
            count, open_ = int((ends.runs == error).sum()), float((ends.runs == INCONCLUSIVE).mean())
            most = rate_bounds(count, runs, 0.95)[1]
            kept &= most <= declared
            own += [f"{share * 100:.2f} %" for share in (count / runs, most, open_)]
        looks = f", looks at {FURTHER[0]} to {FURTHER[-1]} as well" if further else ""
        rows.append(f"| {name}{looks} | {' | '.join(own)} | {'shown' if kept else 'none made'} |\n")
    return "".join(rows)


def _counted(number: int, runs: int) -> list[list[int]]:
    return _counts(PLACES[number], runs)


def simulate_all(runs: int = RUNS, processes: int = 2) -> str:
    """The section, from every row; said as it is done."""
    rows: list[Row] = []
    everywhere = range(len(PLACES))
    with ProcessPoolExecutor(processes) as pool:
        for place, counts in zip(PLACES, pool.map(_counted, everywhere, [runs] * len(PLACES)), strict=True):
            rows += _rows(place, runs, counts)
            print(place.part, place.case, place.margins.must_catch, *cells(rows[-1]), sep="  ", flush=True)
    return section(rows, moderated_rates.section(runs), _of_pairs_table(5 * runs))


# --- the section

TITLE = "## Within states of the machine\n"
HEAD = """
Written by `research/state_rates.py` (seed {seed}); {runs:,} simulated runs a row. A GPU jumps between two states, of
which decode steps in the slow one take 3.3 % more. Iterations spread by 0.1 %, marks by another 0.05 %, restarts by
0.11 %, so that pairs spread by 0.16 % within a state; orders are as the plan draws them, gates correlated by one half.
**{verdict}** The bounds "at most" of all rows hold together with 99 %.

| machine | what it is |
|---|---|
"""
TITLES = {
    WIDE: "### Declared rates, margins 0.1 % and 0.5 %\n",
    TIGHT: "### Declared rates, margins 0.02 % and 0.15 %\n",
}
COLUMNS = {
    "claims": ("machine", "told by", "gates", "unchanged: blocked", "inconclusive", "pairs", "at `ignorable`: blocked",
               "at most", "inconclusive", "pairs", "one gate at `must_catch`: passed", "at most", "blocked", "pairs",
               "claim"),
    "caused": ("slow state", "told by", "gates", "costs the head", "blocked", "of these by the share",
               "passed as it is", "passed within states", "said too low a bound", "inconclusive", "pairs"),
    "effects": ("machine", "told by", "gates", "head slower by", "blocked", "passed", "inconclusive", "pairs"),
    "power": ("machine", "told by", "gates", "head slower by", "blocked", "passed", "inconclusive", "pairs"),
}  # fmt: skip


def section(rows: Sequence[Row], moderated: str, of_pairs: str = "") -> str:
    """The section of the page."""
    claimed = [row for row in rows if row.place.part == "claims"]
    made = [row for row in claimed if row.place.case != "no change" and row.place.model.claims]
    shown, refuted = sum(standing([row]) == "shown" for row in made), [row for row in made if row.least > row.declared]
    verdict = f"{shown} of {len(made)} claims are shown, {len(refuted)} are refuted."
    parts = [TITLE, HEAD.format(seed=SEED, runs=rows[0].runs, verdict=verdict)]
    every = dict.fromkeys((row.place.model.name, row.place.model.about) for row in claimed)
    parts += [f"| {name} | {about} |\n" for name, about in every]
    for margins, title in TITLES.items():
        own = [row for row in claimed if row.place.margins == margins]
        keys = dict.fromkeys((row.place.model, row.place.source, row.gates) for row in own)
        parts += ["\n", title, "\n" + heading(COLUMNS["claims"])]
        parts += [line(claim_cells([row for row in own if _key(row) == key])) for key in keys]
    parts.append(of_pairs)
    for part, words in (("caused", CAUSED_WORDS), ("effects", EFFECTS_WORDS), ("power", POWER_WORDS)):
        own = [row for row in rows if row.place.part == part]
        parts += [words, "\n" + heading(COLUMNS[part]), *(line(cells(row)) for row in own)]
    return "".join([*parts, moderated])


PAIRS_WORDS = """
### Pairs of a shape of their own

The base repeats exactly, so that a pair's log ratio has the shape of the head's restarts. One state, one gate, margins
0.1 % and 0.5 %; each rate is that at the worst of the spreads 0.16, 0.3, 0.6 and 1.2 % (t: of that scale), {runs:,}
runs each, "at most" with 95 %.

| pairs | at `ignorable`: blocked | at most | inconclusive | at `must_catch`: passed | at most | inconclusive | claim |
|---|---|---|---|---|---|---|---|
"""
CAUSED_WORDS = """
### A head that causes the slow state

No claim is made here. "Said too low a bound" counts passes within states whose reports say less of what the share could
cost ("at most", 95 %, caution `two-states`) than the head does lose.
"""
EFFECTS_WORDS = """
### A head that is slower by three times the gap, the gap, half of it, or a tenth

All gates of the head are slower; margins 0.1 % and 0.5 %.
"""
POWER_WORDS = """
### What tight margins catch

Margins 0.02 % and 0.15 %, restarts spread by 0.055 %, so that pairs within a state spread by 0.10 %.
"""


def _key(row: Row) -> tuple[StateModel, Source, int]:
    return row.place.model, row.place.source, row.gates


def claim_cells(rows: Sequence[Row]) -> list[str]:
    """The cases of a model side by side."""
    *unchanged, ignorable, must_catch = rows
    first = [own for row in unchanged for own in (row.share(row.blocked), row.undecided, row.mean_pairs)]
    return [
        ignorable.place.model.name, ignorable.place.source, str(ignorable.gates), *(first or ["-"] * 3),
        ignorable.share(ignorable.blocked), f"{ignorable.most * 100:.2f} %", ignorable.undecided,
        ignorable.mean_pairs, must_catch.share(must_catch.first_passed), f"{must_catch.most * 100:.2f} %",
        must_catch.share(must_catch.blocked), must_catch.mean_pairs, standing(rows[-2:]),
    ]  # fmt: skip


def standing(rows: Sequence[Row]) -> str:
    """What the simulation says of the claims."""
    if not rows[0].place.model.claims:
        return "none made"
    if any(row.least > row.declared for row in rows):
        return "**refuted**"
    return "shown" if all(row.most <= row.declared for row in rows) else "not refuted"


def cells(row: Row) -> list[str]:
    """A row of the other tables."""
    place, mean = row.place, row.mean_pairs
    first = [place.model.name.removesuffix(", quiet"), place.source, str(row.gates)]
    if place.part == "caused":
        counts = (row.blocked, row.by_share, row.passed - row.passed_within, row.passed_within, row.too_low)
        cost = f"{place.model.slower * PERCENT_GAP * 100:.2f} %"
        return [*first, cost, *map(row.share, counts), row.undecided, mean]
    return [*first, f"{place.slow[0] * 100:.2f} %", *map(row.share, (row.blocked, row.passed)), row.undecided, mean]


def main() -> None:
    """Simulate and put the section into the page, in the place of the one there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="simulated runs a row")
    parser.add_argument("--processes", type=int, default=2)
    words = parser.parse_args()
    PAGE.write_text(merged(PAGE.read_text(), simulate_all(words.runs, words.processes)))


if __name__ == "__main__":
    main()
