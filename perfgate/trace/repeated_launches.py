"""What a process launches again and again: the periods of its sequence of launches.

A launch is a kernel, or a graph with all its kernels. A period belongs to one launch, its beginning: stretches from one
of its occurrences to the next, at least half of which are as long as the most frequent one, whose very sequence occurs
too often to be chance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from perfgate.trace.kernel_table import NONE, Kernels

Ints = NDArray[np.int64]

LEAST_ALIKE, LEAST_KERNELS = 3, 4
"""The fewest equal stretches, and the fewest kernels of one, that are a period."""

TOLERANCE = 0.02
"""Stretches are as long as each other where their kernels differ by no more: a decode step in sixteen of vLLM has one
kernel more than the others, and attention splits as contexts grow."""

LEAST_SHARE = 0.5
"""The share of stretches that must be as long as the most frequent one."""

LEAST_COMMON = 0.8
"""The share of its kernels that a stretch has in common with others of its sort: a graph for another batch runs other
gemms, and a prefill other attention too."""

LEAST_BITS = 64.0
"""How unlikely the repetition must be were launches drawn by chance with their frequencies: one in 2^64."""

_MULTIPLIER = 0x9E3779B97F4A7C15
_INVERSE = pow(_MULTIPLIER, -1, 1 << 64)


@dataclass(frozen=True)
class Launches:
    """What a process launched, one row a launch, in order of launch.

    Single kernels of other streams than the busiest are left out: what runs beside the main work need not keep its
    order.

    Args:
        symbol: What was launched: the same number for the same kernel, or for graphs of the same kernels.
        name: Name of the launch's first kernel.
        time_ns: When.
        kernels: How many kernels it has.
        first: Where its kernels begin in ``names``.
        names: Names of all kernels, in order of launch.
    """

    symbol: Ints
    name: NDArray[np.int32]
    time_ns: Ints
    kernels: Ints
    first: Ints
    names: NDArray[np.int32]

    @classmethod
    def of(cls, kernels: Kernels, time_ns: Ints) -> Self:
        """The launches of a process's kernels; those with one correlation id are one launch."""
        order = np.lexsort((kernels.start_ns, time_ns))
        names, correlation, time_ns = kernels.name[order], kernels.correlation[order], time_ns[order]
        begins = np.ones(len(order), bool)
        begins[1:] = (correlation[1:] != correlation[:-1]) | (correlation[1:] == NONE)
        first = np.flatnonzero(begins)
        size = np.diff(first, append=len(order))
        hashes = np.random.default_rng(0).integers(1, 1 << 63, int(names.max(initial=0)) + 1).astype(np.uint64)
        marks = np.add.reduceat(hashes[names], first) if len(first) else np.empty(0, np.uint64)
        where = (kernels.device.astype(np.int64) << 48) + kernels.stream
        streams, place = np.unique(where[order][first], return_inverse=True)
        busiest = np.argmax(np.bincount(place, minlength=1)) if len(streams) else 0
        kept = np.flatnonzero((size > 1) | (place == busiest))
        symbol = np.unique(marks[kept], return_inverse=True)[1].astype(np.int64)
        return cls(symbol, names[first[kept]], time_ns[first[kept]], size[kept], first[kept], names)

    def __len__(self) -> int:
        """How many launches there are."""
        return len(self.symbol)

    def count(self, wanted: NDArray[np.bool_]) -> Ints:
        """How many kernels of each launch have a name that is wanted; ``wanted`` has an entry a name."""
        until = np.concatenate([[0], np.cumsum(wanted[self.names])])
        return np.asarray(until[self.first + self.kernels] - until[self.first])

    @cached_property
    def until(self) -> Ints:
        """How many kernels come before each launch, and before the end."""
        return np.concatenate([[0], np.cumsum(self.kernels)])

    @cached_property
    def bits(self) -> Ints:
        """How much the launches up to each one tell, in bits: a graph's kernels one each, as they always come so."""
        share = np.bincount(self.symbol) / max(len(self), 1)
        entropy = float(-(share[share > 0] * np.log2(share[share > 0])).sum())
        return np.concatenate([[0.0], np.cumsum(entropy + np.where(self.kernels > 1, self.kernels, 0))])

    @cached_property
    def hashes(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Sums from which the hash of any stretch follows, order and all, and what takes out where it began."""
        marks = np.random.default_rng(1).integers(1, 1 << 63, int(self.symbol.max(initial=0)) + 1).astype(np.uint64)
        until = np.zeros(len(self) + 1, np.uint64)
        np.cumsum(marks[self.symbol] * _powers(_MULTIPLIER, len(self)), out=until[1:])
        return until, _powers(_INVERSE, len(self))


def _powers(base: int, length: int) -> NDArray[np.uint64]:
    """Powers of a number from its 0th on, modulo 2^64."""
    powers = np.full(length, base, np.uint64)
    powers[:1] = 1
    return np.cumprod(powers, out=powers)


@dataclass(frozen=True)
class Period:
    """Stretches from one launch of something to the next.

    Args:
        launches: All launches.
        at: Where it was launched.
        kernels: Kernels of the most frequent stretch.
        alike: Which stretches are as long as that.
        usual: One of the most frequent stretches.
        members: The periods of the same length, this one included; empty in a member.
    """

    launches: Launches
    at: Ints
    kernels: int
    alike: NDArray[np.bool_]
    usual: int
    members: tuple[Period, ...] = ()

    @property
    def tolerance(self) -> float:
        """By how many kernels a stretch may differ."""
        return TOLERANCE * self.kernels

    @property
    def covered(self) -> int:
        """How many kernels equal stretches hold."""
        return int(self.alike.sum()) * self.kernels

    def of_one_sort(self) -> Period:
        """The period of the stretches that also run the same kernels, most of them: a prefill may be as long."""
        names = self.launches.names
        edges = self.launches.first[self.at]
        stretch = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
        width = int(names.max()) + 1
        found, number = np.unique(stretch * width + names[edges[0] : edges[-1]], return_counts=True)
        usual = np.bincount(names[edges[self.usual] : edges[self.usual + 1]], minlength=width)
        common = np.bincount(found // width, np.minimum(number, usual[found % width]), len(edges) - 1)
        return replace(self, alike=self.alike & (common >= LEAST_COMMON * usual.sum()))

    def sums(self, values: NDArray[Any]) -> Ints:
        """Sums over each stretch of something that each launch has."""
        until = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
        return np.asarray(until[self.at[1:]] - until[self.at[:-1]])

    def holds(self, shorter: Period, *, alike: bool = False) -> int:
        """How often a shorter period begins in an equal stretch of this one, or only its equal stretches do."""
        at = shorter.at[:-1][shorter.alike] if alike else shorter.at
        return int(np.median(np.diff(np.searchsorted(at, self.at))[self.alike]))

    def more(self, launched: NDArray[np.bool_], shorter: Period, often: int) -> bool:
        """Whether an equal stretch of this holds more of some launches than so many of a shorter period do."""
        own = np.median(self.sums(launched)[self.alike])
        return bool(own > often * np.median(shorter.sums(launched)[shorter.alike]))


def periods(launches: Launches) -> list[Period]:
    """The periods of a sequence from the shortest on, one a length, the one with most equal stretches."""
    found = sorted(_found(launches), key=lambda period: period.kernels)
    levels: list[list[Period]] = []
    for period in found:
        if levels and period.kernels - levels[-1][0].kernels <= levels[-1][0].tolerance:
            levels[-1].append(period)
        else:
            levels.append([period])
    made = []
    for level in levels:
        best = max(level, key=lambda period: int(period.alike.sum()))
        least = best.alike.sum() - 1  # at the ends of a trace one launch may be there once less than another
        members = tuple(period for period in level if period.alike.sum() >= least)
        made.append(replace(best, members=members))
    return made


def _found(launches: Launches) -> Iterator[Period]:
    """The periods of all symbols that have one."""
    if not len(launches):
        return
    order = np.argsort(launches.symbol, kind="stable")
    edges = np.flatnonzero(np.diff(launches.symbol[order], prepend=-1, append=-1))
    until, shift = launches.hashes
    for first, beyond in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if beyond - first <= LEAST_ALIKE:
            continue
        at = order[first:beyond]
        length = np.diff(launches.until[at])
        begin, end = at[:-1], at[1:]
        sequence = (until[end] - until[begin]) * shift[begin]
        _, one, number = np.unique(sequence, return_index=True, return_counts=True)
        most = int(np.argmax(number))
        usual, equal = int(one[most]), int(number[most])
        kernels = int(length[usual])
        alike = sequence == sequence[usual]
        if TOLERANCE * kernels >= 1:  # a layer and what is around the layers may be as long as each other
            alike |= np.abs(length - kernels) <= TOLERANCE * kernels
        bits = float(launches.bits[end[usual]] - launches.bits[begin[usual]]) * (equal - 1)
        often = kernels >= LEAST_KERNELS and alike.sum() >= LEAST_ALIKE and alike.mean() >= LEAST_SHARE
        if often and bits >= LEAST_BITS:
            yield Period(launches, at, kernels, alike, usual)
