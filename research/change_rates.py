"""Simulate nights beside an anchor: how often a change is told where there is none, and how soon one that there is.

``python research/change_rates.py`` takes hours and puts a fresh section into docs/error-rates.txt; ``error_rates.py``
leaves the one there as it is.
Every simulated night calls :func:`perfgate.stats.change_points.course` itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from claimed_rate import ClaimedRate, heading, line, merged
from numpy.typing import NDArray

from perfgate.scenario.plan import BETA
from perfgate.stats.change_points import FEWEST_NIGHTS, YEARLY, course

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Floats]

PAGE = Path(__file__).parents[1] / "docs" / "error-rates.txt"
TITLE = "## Changes of a level over many nights\n"
SEED = 20261122
YEAR = 365
YEARS = 1_000
SERIES = 1_000
NIGHTLY = ("independent", "AR(1), 0.5", "heavy-tailed")
NIGHTLY_YEARS = 600
"""Of these, years looked at on every night: what a page told on one night may be gone by the next."""
SIZE = 0.003
NEAR = 3
"""Nights by which the place of a change may be off."""


@dataclass(frozen=True)
class NightModel:
    """How nights at one level differ.

    Args:
        name: For the table.
        about: One sentence.
        draw: So many nights from a generator, of standard deviation 1.
        claims: Whether the declared rate is claimed.
    """

    name: str
    about: str
    draw: Draw
    claims: bool = True


def normal(rng: np.random.Generator, nights: int) -> Floats:
    """Independent."""
    return rng.standard_normal(nights)


def alike(rho: float) -> Draw:
    """AR(1): so much of the night before, from its stationary distribution on; a random walk at 1."""

    def draw(rng: np.random.Generator, nights: int) -> Floats:
        steps = rng.standard_normal(nights)
        levels = np.empty(nights)
        levels[0] = steps[0]
        own = (1 - rho**2) ** 0.5 if rho < 1 else 1.0
        for night in range(1, nights):
            levels[night] = rho * levels[night - 1] + own * steps[night]
        return levels

    return draw


def heavy(rng: np.random.Generator, nights: int) -> Floats:
    """Student's t with 3 degrees of freedom, scaled to sd 1."""
    return np.asarray(rng.standard_t(3, nights) / 3**0.5, dtype=np.float64)


def spiky(rng: np.random.Generator, nights: int) -> Floats:
    """Normal, and one night in twenty is off by up to six standard deviations."""
    return rng.standard_normal(nights) + (rng.random(nights) < 0.05) * 6 * rng.random(nights)  # noqa: PLR2004


def two_levels(rng: np.random.Generator, nights: int) -> Floats:
    """A GPU that is in another state in three nights of ten, 2 sd away."""
    return rng.standard_normal(nights) + 2 * (rng.random(nights) < 0.3)  # noqa: PLR2004


MODELS = (
    NightModel("independent", "Nights are normal and know nothing of one another.", normal),
    NightModel("AR(1), 0.3", "Each night is 0.3 of the one before, and its own.", alike(0.3)),
    NightModel("AR(1), 0.5", "The same with 0.5.", alike(0.5)),
    NightModel("heavy-tailed", "Nights follow a t distribution with 3 degrees of freedom.", heavy),
    NightModel("spiky", "Normal, and one night in twenty is slower by up to six of them.", spiky, claims=False),
    NightModel("two states", "Normal, and three nights in ten are slower by two standard deviations.", two_levels),
    NightModel("AR(1), 0.8", "Each night is 0.8 of the one before.", alike(0.8), claims=False),
    NightModel("random walk", "Each night is the one before and a step.", alike(1.0), claims=False),
)


@dataclass(frozen=True)
class FalseRow(ClaimedRate):
    """Years in which nothing changed.

    Args:
        model: How nights differ.
        runs: Simulated years.
        wrong: Years in which any night told of a change.
        at_the_end: Years in which the last one did.
        step: Nights from one look to the next.
    """

    model: NightModel
    runs: int
    wrong: int
    at_the_end: int
    step: int
    declared: float = YEARLY


@dataclass(frozen=True)
class FoundRow(ClaimedRate):
    """Series with one change.

    Args:
        model: How nights differ.
        sd: Standard deviation of a night.
        before: Nights before the change.
        after: Nights since.
        runs: Simulated series.
        wrong: Those that do not tell of it.
        claims: Whether the declared rate is claimed.
    """

    model: NightModel
    sd: float
    before: int
    after: int
    runs: int
    wrong: int
    claims: bool
    declared: float = BETA


FOUND = (
    *((MODELS[0], *place) for place in product((0.0005, 0.0007, 0.001), (30, 60, 120, 240), (4, 7, 10, 14, 21))),
    *((MODELS[2], *place) for place in product((0.0005, 0.001), (120,), (7, 14, 21))),
)
"""Every row of the table of what is found."""
ENOUGH = {0.0005: (60, 7), 0.0007: (120, 10), 0.001: (120, 14)}
"""Nights before and after from which on a change of 0.3 % is claimed to be found, by sd of independent nights."""


def false_alarms(model: NightModel, years: int = YEARS, step: int = 1) -> FalseRow:
    """Look at years without a change on every night, or on every so many-th.

    Args:
        model: How nights differ.
        years: How many.
        step: Nights from one look to the next.
    """
    rng = np.random.default_rng([SEED, *model.name.encode()])
    wrong = last = 0
    for _ in range(years):
        nights = model.draw(rng, YEAR)
        wrong += any(course(nights[:upto]).changes for upto in range(YEAR, FEWEST_NIGHTS - 1, -step))
        last += bool(course(nights).changes)
    return FalseRow(model, years, wrong, last, step)


def found(model: NightModel, sd: float, before: int, after: int, series: int = SERIES) -> FoundRow:
    """Look at series with a change of 0.3 %, so many nights after it."""
    rng = np.random.default_rng([SEED, before, after, round(sd * 1e6), *model.name.encode()])
    missed = 0
    for _ in range(series):
        nights = sd * model.draw(rng, before + after)
        nights[before:] += SIZE
        missed += not any(abs(change.first - before) <= NEAR for change in course(nights).changes)
    enough = ENOUGH[sd]
    claims = model is MODELS[0] and before >= enough[0] and after >= enough[1]
    return FoundRow(model, sd, before, after, series, missed, claims)


NIGHTS = np.arange(YEAR)
KINDS: tuple[tuple[str, NDArray[Any], list[bool]], ...] = (
    ("a change of 0.3 %", SIZE * (NIGHTS >= YEAR // 2), [False]),
    ("two changes of 0.3 %, one way", SIZE * (NIGHTS >= YEAR // 2) + SIZE * (NIGHTS >= YEAR - 90), [False, False]),
    ("a drift of 0.3 % in 120 nights", SIZE * np.clip((NIGHTS - 120) / 120, 0, 1), [True]),
    ("a drift of 0.6 % in 120 nights", 2 * SIZE * np.clip((NIGHTS - 120) / 120, 0, 1), [True]),
)
"""What happened in a year, the level of its nights, and whether each change is a drift."""


def kinds(series: int = 300) -> list[tuple[str, int, int, int]]:
    """How often each is told as what it is, and how often as the other kind alone."""
    rng = np.random.default_rng([SEED, 1])
    counted = []
    for name, level, right in KINDS:
        years = [[one.drifts for one in course(level + 0.0007 * rng.standard_normal(YEAR)).changes]
                 for _ in range(series)]  # fmt: skip
        other = sum(bool(told) and right[0] not in told for told in years)
        counted.append((name, series, sum(told == right for told in years), other))
    return counted


HEAD = """
Written by `research/change_rates.py` (seed {seed}). Declared: in at most {yearly} of years in which nothing changed
does any night tell of a change. A simulated year has {year} nights and is looked at every so many of them, up to the
last. "At least" and "at most" are one-sided 99 % bounds of the rate.

| nights | what they are |
|---|---|
"""
SECOND = """
### A change of 0.3 %

Told, and its place at most {near} nights off, so many nights after it; {series:,} series a row. The claim is that at
most {beta} are missed: from the {a}th night on after {b} at a night's standard deviation of 0.05 %, the {c}th after {d}
at 0.07 %, the {e}th after {f} at 0.1 %.

| nights | sd | before | after | found | missed, at most | claim |
|---|---|---|---|---|---|---|
"""
THIRD = """
### Changes and drifts

Years at 0.07 % a night, looked at from their end.

| what happened | years | told as that | told as the other kind alone |
|---|---|---|---|
"""


def section(years: Sequence[FalseRow], series: Sequence[FoundRow], told: Sequence[tuple[str, int, int, int]]) -> str:
    """The section of the page."""
    parts = [TITLE, HEAD.format(seed=SEED, yearly=percent(YEARLY), year=YEAR)]
    parts += [f"| {model.name} | {model.about} |\n" for model in dict.fromkeys(row.model for row in years)]
    columns = ("nights", "looked at every", "years", "with a change on any look", "at least", "at most",
               "on the last night", "claim")  # fmt: skip
    parts.append("\n" + heading(columns))
    parts += [line(false_cells(row)) for row in years]
    (b, a), (d, c), (f, e) = ENOUGH.values()
    parts.append(SECOND.format(near=NEAR, series=series[0].runs, beta=percent(BETA), a=a, b=b, c=c, d=d, e=e, f=f))
    parts += [line(found_cells(row)) for row in series]
    parts.append(THIRD)
    parts += [f"| {name} | {count} | {right} | {other} |\n" for name, count, right, other in told]
    return "".join(parts)


def false_cells(row: FalseRow) -> list[str]:
    """A row of the first table."""
    rates = [percent(rate) for rate in (row.wrong / row.runs, row.least, row.most, row.at_the_end / row.runs)]
    every = "night" if row.step == 1 else f"{row.step} nights"
    return [row.model.name, every, f"{row.runs:,}", *rates, row.standing if row.model.claims else "none made"]


def found_cells(row: FoundRow) -> list[str]:
    """A row of the second."""
    rates = [percent(1 - row.wrong / row.runs), percent(row.most)]
    standing = row.standing if row.claims else "none made"
    return [row.model.name, f"{row.sd * 100:.2f} %", str(row.before), str(row.after), *rates, standing]


def percent(rate: float) -> str:
    """A rate as percent."""
    return f"{rate * 100:.3g} %"


def simulate_all(years: int = YEARS, step: int = 1, series: int = SERIES) -> str:
    """The section, its rows said as they are done."""
    alarms = []
    for model in MODELS:
        alarms.append(false_alarms(model, years if model.claims else min(years, 200), step))
        print(*false_cells(alarms[-1]), sep="  ", flush=True)
        if model.name in NIGHTLY and step > 1:
            alarms.append(false_alarms(model, NIGHTLY_YEARS))
            print(*false_cells(alarms[-1]), sep="  ", flush=True)
    rows = []
    for place in FOUND:
        rows.append(found(*place, series))
        print(*found_cells(rows[-1]), sep="  ", flush=True)
    return section(alarms, rows, kinds())


def main() -> None:
    """Simulate and put the section into the page, in the place of the one there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--years", type=int, default=YEARS, help="simulated years a row")
    parser.add_argument("--series", type=int, default=SERIES, help="simulated series with a change a row")
    parser.add_argument("--step", type=int, default=1, help="nights from one look to the next")
    words = parser.parse_args()
    PAGE.write_text(merged(PAGE.read_text(), simulate_all(words.years, words.step, words.series)))


if __name__ == "__main__":
    main()
