"""When a level changed over many nights: at once, or little by little.

ruptures finds the places (Killick, Fearnhead and Eckley 2012, PELT with the squared error of a mean), and this module
what a place costs. The penalty is a quantile of Student's t so far out that all nights of a year may be looked at one
after the other, each at all places: at most 1 % of years in which nothing changed show a change on any night
(docs/error-rates.md, simulated). Nights that follow each other may be alike: the penalty is in units of their long-run
variance, for which they are taken as AR(1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import ruptures
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from perfgate import scipy_special as special

Floats = NDArray[np.float64]

FEWEST_AFTER = 4
"""Nights between two changes, before the first and after the last."""
FEWEST_NIGHTS = 2 * FEWEST_AFTER
LEVEL = 1e-6
"""Two-sided, of one place on one night: chosen by simulation, for a declared rate of :data:`YEARLY`."""
YEARLY = 0.01
"""Declared: the share of years without a change in which any night tells of one."""
WINDOW, CLIPPED_AT = 7, 3.0
"""A night further from the median of the seven around it than three standard deviations counts as if it were there."""
LEAST_PENALTY = 1e-12
"""A change of less than a millionth is rounding."""
MOST_ALIKE = 0.9
ALLOWED = 1.5
"""Standard errors by which nights are taken to be more alike than they are seen to be."""
PLACES = 48
"""Begins and ends of a drift that are tried, within the nights where it may be."""


@dataclass(frozen=True)
class Change:
    """One change of a level.

    Args:
        first: Number of the first night after the level before.
        last: Number of the night from which on the new level holds; ``first``, but for a drift.
        size: New level less the one before.
        error: Standard error of ``size``.
        df: Degrees of freedom of ``error``.
    """

    first: int
    last: int
    size: float
    error: float
    df: float

    @property
    def drifts(self) -> bool:
        """Whether the level moved little by little."""
        return self.last > self.first

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Where the true size is; the place is taken as known, which is a little too narrow."""
        reach = float(special.stdtrit(self.df, (1 + confidence) / 2)) * self.error
        return self.size - reach, self.size + reach


@dataclass(frozen=True)
class Course:
    """What the nights of a series say together.

    Args:
        changes: In order of time.
        fitted: The level of each night, constant between changes.
        night_sd: Standard deviation of a night about its level; 0 where there are too few nights to tell.
        looked: Whether there were enough nights to look for changes.
    """

    changes: tuple[Change, ...]
    fitted: tuple[float, ...]
    night_sd: float
    looked: bool


@dataclass(frozen=True)
class _Noise:
    """Of nights about their levels: of one night, of many in the long run, and how much is known of both."""

    sd: float
    long_run: float
    df: float

    @property
    def penalty(self) -> float:
        """The least by which a change must lower the squared error; positive, for ruptures."""
        return max(float(special.stdtrit(self.df, 1 - LEVEL / 2)) ** 2 * self.long_run, LEAST_PENALTY)


def course(levels: ArrayLike) -> Course:
    """Find the changes of a level.

    Args:
        levels: Of each night, in order of time, finite; logarithms of ratios to an anchor.
    """
    series = np.asarray(levels, dtype=np.float64)
    if len(series) < FEWEST_NIGHTS:
        return Course((), (float(np.median(series)),) * len(series) if len(series) else (), 0.0, looked=False)
    nights = _without_outliers(series)
    # Around the best single place the noise is not that of a change: with it in, a large one would hide itself.
    search = ruptures.KernelCPD(kernel="linear", min_size=FEWEST_AFTER).fit(nights[:, None])
    places = _found(search.predict(n_bkps=1))
    for _ in range(10):
        noise = _noise(nights, places)
        next_places = _found(search.predict(pen=noise.penalty))
        if next_places == places:
            break
        places = next_places
    parts = [*_merged(nights, places, noise)]
    fitted = np.full(len(nights), nights[: places[0]].mean() if places else nights.mean())
    for change in parts:
        fitted += change.size * _ramp(len(nights), change.first - 1, change.last)
    fitted += (nights - fitted).mean()
    return Course(tuple(parts), tuple(fitted.tolist()), noise.sd, looked=True)


def _found(ends: Sequence[int]) -> list[int]:
    """What ruptures tells: the first night of each part, but of the first."""
    return [int(end) for end in ends[:-1]]


def _without_outliers(levels: Floats) -> Floats:
    """Single nights far from those around them brought nearer (Hampel 1974), so that one bad night is not a change."""
    half = WINDOW // 2
    medians = np.median(sliding_window_view(np.pad(levels, half, mode="reflect"), WINDOW), axis=1)
    reach = CLIPPED_AT * float(np.median(np.abs(np.diff(levels)))) * 1.4826 / math.sqrt(2)
    clipped: Floats = np.clip(levels, medians - reach, medians + reach)
    return clipped


def _noise(levels: Floats, places: Sequence[int]) -> _Noise:
    """By differences of nights between which no change is: one and two nights apart, which tell how alike they are.

    Half the mean square of the first is v (1 - rho), of the second v (1 - rho^2), where v is a night's variance. rho is
    taken larger than it is seen. Squared differences of neighbours are worth two thirds of as many
    independent observations (von Neumann 1941).
    """
    parts = np.split(levels, places)
    near = np.concatenate([np.diff(part) for part in parts])
    far = np.concatenate([part[2:] - part[:-2] for part in parts])
    first, second = (float((steps**2).mean()) / 2 for steps in (near, far))
    alike = max(second / first - 1, 0.0) if first > 0 else 0.0
    rho = min(alike + ALLOWED / math.sqrt(len(near)), MOST_ALIKE)
    sd = math.sqrt(first / (1 - min(alike, MOST_ALIKE)))
    return _Noise(sd, first * (1 + rho) / (1 - rho) ** 2, len(near) * 2 / 3)


def _merged(levels: Floats, places: Sequence[int], noise: _Noise) -> Iterator[Change]:
    """Each place as a change; neighbours in one direction as a drift where a ramp describes them better."""
    at = 0
    while at < len(places):
        upto, change = at + 1, _step(levels, places, at, noise)
        for further in range(at + 1, len(places) + 1):
            if (drift := _drift(levels, places, at, further, noise)) is not None:
                upto, change = further, drift
        yield change
        at = upto


def _around(levels: Floats, places: Sequence[int], at: int, upto: int) -> tuple[int, int]:
    """The nights from the change before some places to the one after them."""
    return (places[at - 1] if at else 0), (places[upto] if upto < len(places) else len(levels))


def _step(levels: Floats, places: Sequence[int], at: int, noise: _Noise) -> Change:
    begin, end = _around(levels, places, at, at + 1)
    before, after = levels[begin : places[at]], levels[places[at] : end]
    error = math.sqrt(noise.long_run * (1 / len(before) + 1 / len(after)))
    return Change(places[at], places[at], float(after.mean() - before.mean()), error, noise.df)


def _drift(levels: Floats, places: Sequence[int], at: int, upto: int, noise: _Noise) -> Change | None:
    """The ramp in the place of steps ``at`` to ``upto``, where it is better: it has two places, a step one."""
    begin, end = _around(levels, places, at, upto)
    steps = np.array([part.mean() for part in np.split(levels[begin:end], [p - begin for p in places[at:upto]])])
    if (np.diff(steps) > 0).any() == (np.diff(steps) < 0).any():
        return None
    stretch = levels[begin:end]
    stepwise = np.repeat(steps, np.diff([begin, *places[at:upto], end]))
    bound = float(((stretch - stepwise) ** 2).sum()) + (upto - at) * noise.penalty
    last = len(stretch) - 1
    ends = np.unique(np.linspace(0, last, min(PLACES, last + 1)).round().astype(int)).tolist()
    cost, size, spread, first, until = min(
        (*_fitted(stretch, _ramp(len(stretch), low, high)), low, high) for low in ends for high in ends if high > low
    )
    if until - first < FEWEST_AFTER or cost + 2 * noise.penalty >= bound:
        return None
    error = math.sqrt(noise.long_run / spread)
    return Change(begin + first + 1, begin + until, size, error, noise.df)


def _ramp(nights: int, low: int, high: int) -> Floats:
    """0 up to one night, 1 from another one on, and in a straight line between."""
    ramp: Floats = np.clip((np.arange(nights) - low) / (high - low), 0.0, 1.0)
    return ramp


def _fitted(levels: Floats, shape: Floats) -> tuple[float, float, float]:
    """By least squares, a level and so much of a shape: squared error, how much, and what that much is worth."""
    off, deviations = shape - shape.mean(), levels - levels.mean()
    spread = float(off @ off)
    size = float(off @ deviations) / spread
    return float(((deviations - size * off) ** 2).sum()), size, spread
