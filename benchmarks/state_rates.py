"""Simulate the rule within states of a machine: how often it blocks what is fine and passes what is not.

``benchmarks/error_rates.py`` writes what :func:`simulate_all` makes into docs/error-rates.md; ``python
benchmarks/state_rates.py`` alone takes a quarter of an hour on two cores and puts a fresh section into the page that
is there. Labels are made by the project's own functions, and its tests by a copy that is held against the project's.
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
import visit_rates
from many_runs import Decisions
from restart_models import NOISY_PAIR_SD as PAIR_SD
from state_models import PAIRS, Floats
from state_page import PAIRS_WORDS, TITLE, cells, section
from state_places import PLACES, SEED, WIDE, Place, Row
from state_twin import Ends, decide_all, disagreements

from perfgate.scenario.plan import ALPHA, BETA
from perfgate.stats.rates import rate_bounds
from perfgate.stats.sequential import DEFAULT_SCHEDULE, INCONCLUSIVE, PASS, REGRESSED

PAGE = Path(__file__).parents[1] / "docs" / "error-rates.md"
NEXT = visit_rates.TITLE
RUNS = 4_000
BATCH = 1_000
CHECKED = 3
"""Runs of each place that the project's own functions decide as well, by each number of gates."""


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


def check_twin(place: Place, runs: int = CHECKED) -> tuple[int, int]:
    """Runs compared between the copy of the rule and the project's own functions, and how many differ."""
    measured = place.measure(np.random.default_rng([99, *place.seed]), runs)
    return runs * len(place.gates), disagreements(measured, place.gates)


def _checked(number: int) -> tuple[int, int]:
    return check_twin(PLACES[number])


def _counted(number: int, runs: int) -> list[list[int]]:
    return _counts(PLACES[number], runs)


def simulate_all(runs: int = RUNS, processes: int = 2) -> str:
    """The section, from every row; said as it is done."""
    rows: list[Row] = []
    everywhere = range(len(PLACES))
    with ProcessPoolExecutor(processes) as pool:
        checked = [*pool.map(_checked, everywhere)]
        compared, differing = (sum(counts) for counts in zip(*checked, strict=True))
        print(f"{compared} runs compared with the project's own functions, {differing} differ", flush=True)
        for place, counts in zip(PLACES, pool.map(_counted, everywhere, [runs] * len(PLACES)), strict=True):
            rows += _rows(place, runs, counts)
            print(place.part, place.case, place.margins.must_catch, *cells(rows[-1]), sep="  ", flush=True)
    return section(rows, compared, differing, moderated_rates.section(runs), _of_pairs_table(5 * runs))


def main() -> None:
    """Simulate and put the section into the page, in the place of the one there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="simulated runs a row")
    parser.add_argument("--processes", type=int, default=2)
    words = parser.parse_args()
    text, own = PAGE.read_text(), simulate_all(words.runs, words.processes)
    before, _, rest = text.partition(f"\n{TITLE}") if TITLE in text else text.partition(f"\n{NEXT}")
    after = rest.partition(f"\n{NEXT}")[2] if TITLE in text else rest
    PAGE.write_text(f"{before.rstrip()}\n\n{own}\n{NEXT}{after}")


if __name__ == "__main__":
    main()
