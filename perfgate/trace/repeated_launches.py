"""What a process launches again and again: the periods of its sequence of launches.

A launch is a kernel, or a graph with all its kernels. A period belongs to one launch, its beginning: stretches from one
of its occurrences to the next, at least half of which are as long as the most frequent one, whose very sequence occurs
too often to be chance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from perfgate.trace.kernel_table import NONE, Kernels

Ints = NDArray[np.int64]
Rows = NDArray[np.int32]
"""Rows and counts of rows, of which there are at most :data:`perfgate.trace.limits.MAX_ROWS`."""

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

_CELLS = 1 << 18
"""Counts of a kernel in a stretch that are taken at a time."""

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
        kernels: How many kernels it has.
        first: Where its kernels begin in ``names``.
        names: Names of all kernels, in order of launch.
    """

    symbol: Rows
    name: Rows
    time_ns: Ints
    kernels: Rows
    first: Rows
    names: Rows

    @classmethod
    def of(cls, kernels: Kernels, rows: Rows, time_ns: Ints) -> Self:
        """The launches of some kernels, of which those with one correlation id are one launch.

        Args:
            kernels: All kernels.
            rows: Which of them.
            time_ns: When each of all kernels was launched.
        """
        order = _in_order(time_ns, kernels.start_ns, rows)
        names, correlation = kernels.name[order], kernels.correlation[order]
        begins = np.ones(len(order), bool)
        begins[1:] = (correlation[1:] != correlation[:-1]) | (correlation[1:] == NONE)
        del correlation
        first = np.flatnonzero(begins).astype(np.int32)
        size = np.diff(first, append=np.int32(len(order)))
        where = (kernels.device[order[first]].astype(np.int64) << 48) + kernels.stream[order[first]]
        streams, number = np.unique(where, return_counts=True)
        if len(streams) > 1:
            kept = (size > 1) | (where == streams[np.argmax(number)])
            first, size = first[kept], size[kept]
        del where
        return cls(_symbols(names, first, size), names[first], time_ns[order[first]], size, first, names)

    def __len__(self) -> int:
        """How many launches there are."""
        return len(self.symbol)

    def count(self, wanted: NDArray[np.bool_]) -> Ints:
        """How many kernels of each launch have a name that is wanted; ``wanted`` has an entry a name."""
        until = _until(wanted[self.names], np.int32)
        return np.asarray(until[self.first + self.kernels] - until[self.first])

    def until(self) -> Rows:
        """How many kernels come before each launch, and before the end."""
        return _until(self.kernels, np.int32)

    def bits(self) -> NDArray[np.float32]:
        """How much each launch tells, in bits: a graph's kernels one each, as they always come so."""
        share = np.bincount(self.symbol) / max(len(self), 1)
        entropy = float(-(share[share > 0] * np.log2(share[share > 0])).sum())
        return (entropy + np.where(self.kernels > 1, self.kernels, 0)).astype(np.float32)

    def hashes(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Sums from which the hash of any stretch follows, order and all, and what takes out where it began."""
        marks = np.random.default_rng(1).integers(1, 1 << 63, int(self.symbol.max(initial=0)) + 1).astype(np.uint64)
        until = np.zeros(len(self) + 1, np.uint64)
        np.cumsum(marks[self.symbol] * _powers(_MULTIPLIER, len(self)), out=until[1:])
        return until, _powers(_INVERSE, len(self))


def _in_order(time_ns: Ints, start_ns: Ints, rows: Rows) -> Rows:
    """The rows in order of launch, then start; most are in order already."""
    later, same = (np.diff(times[rows]) for times in (time_ns, start_ns))
    if ((later > 0) | ((later == 0) & (same >= 0))).all():
        return rows
    return rows[np.lexsort((start_ns[rows], time_ns[rows]))]


def _symbols(names: Rows, first: Rows, size: Rows) -> Rows:
    """A number for each launch: of a kernel its name, of graphs with the same kernels, in any order, the same one."""
    symbol = names[first]
    graphs = np.flatnonzero(size > 1)
    if len(graphs):
        most = int(names.max())
        hashes = np.random.default_rng(0).integers(1, 1 << 63, most + 1).astype(np.uint64)
        edges = np.stack([first[graphs], first[graphs] + size[graphs]], axis=1).reshape(-1)
        inside = np.zeros(len(names) + 1, np.uint64)  # the last graph may end with the last kernel
        np.take(hashes, names, out=inside[:-1])
        marks = np.add.reduceat(inside, edges)[::2]
        symbol[graphs] = most + 1 + np.unique(marks, return_inverse=True)[1]
    return symbol


def _until(values: NDArray[Any], kind: type[np.int32 | np.int64]) -> NDArray[Any]:
    """Sums of all values before each one, and of all."""
    sums = np.zeros(len(values) + 1, kind)
    np.cumsum(values, out=sums[1:])
    return sums


def _powers(base: int, length: int) -> NDArray[np.uint64]:
    """Powers of a number from its 0th on, modulo 2^64."""
    powers = np.full(length, base, np.uint64)
    powers[:1] = 1
    return np.cumprod(powers, out=powers)


@dataclass(frozen=True)
class Period:
    """Stretches from one launch of something to the next.

    Args:
        at: Where it was launched.
        kernels: Kernels of the most frequent stretch.
        alike: Which stretches are as long as that.
        usual: One of the most frequent stretches.
        members: The periods of the same length, this one included; empty in a member.
    """

    launches: Launches
    at: Rows
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
        edges = self.launches.first[self.at].astype(np.int64)
        distinct, usual = np.unique(names[edges[self.usual] : edges[self.usual + 1]], return_counts=True)
        width = len(distinct) + 1
        column = np.full(int(names.max()) + 1, width - 1)
        column[distinct] = np.arange(width - 1)
        common = np.zeros(len(edges) - 1, np.int64)
        some = max(_CELLS // width, 1)
        for begin in range(0, len(common), some):  # in parts, so that what is worked on stays small
            part = edges[begin : begin + some + 1]
            stretch = np.repeat(np.arange(len(part) - 1), np.diff(part))
            cells = stretch * width + column[names[part[0] : part[-1]]]
            counts = np.bincount(cells, minlength=width * (len(part) - 1)).reshape(-1, width)
            common[begin : begin + some] = np.minimum(counts[:, :-1], usual).sum(axis=1)
        return replace(self, alike=self.alike & (common >= LEAST_COMMON * usual.sum()))

    def sums(self, values: NDArray[Any]) -> Ints:
        """Sums over each stretch of something that each launch has."""
        until = _until(values, np.int64)[self.at]
        return np.asarray(until[1:] - until[:-1])

    def holds(self, shorter: Period, *, alike: bool = False) -> int:
        """How often a shorter period begins in an equal stretch of this one, or only its equal stretches do."""
        at = shorter.at[:-1][shorter.alike] if alike else shorter.at
        return int(np.median(np.diff(np.searchsorted(at, self.at))[self.alike]))

    def more(self, launched: NDArray[np.bool_], shorter: Period, often: int) -> bool:
        """Whether an equal stretch of this holds more of some launches than so many of a shorter period do."""
        amount = np.median(self.sums(launched)[self.alike])
        return bool(amount > often * np.median(shorter.sums(launched)[shorter.alike]))


def periods(launches: Launches) -> list[Period]:
    """The periods of a sequence from the shortest on, one a length, the one with most equal stretches."""
    by_length = sorted(_found(launches), key=lambda period: period.kernels)
    levels: list[list[Period]] = []
    for period in by_length:
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
    order = np.argsort(launches.symbol, kind="stable").astype(np.int32)
    edges = np.flatnonzero(np.diff(launches.symbol[order], prepend=-1, append=-1))
    before, bits_of = launches.until(), launches.bits()
    until, shift = launches.hashes()
    for first, beyond in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if beyond - first <= LEAST_ALIKE:
            continue
        at = order[first:beyond]
        length = np.diff(before[at])
        begin, end = at[:-1], at[1:]
        sequence = (until[end] - until[begin]) * shift[begin]
        _, example, number = np.unique(sequence, return_index=True, return_counts=True)
        most = int(np.argmax(number))
        usual, equal = int(example[most]), int(number[most])
        kernels = int(length[usual])
        alike = sequence == sequence[usual]
        if TOLERANCE * kernels >= 1:  # a layer and what is around the layers may be as long as each other
            alike |= np.abs(length - kernels) <= TOLERANCE * kernels
        bits = float(bits_of[begin[usual] : end[usual]].sum(dtype=float)) * (equal - 1)
        often = kernels >= LEAST_KERNELS and alike.sum() >= LEAST_ALIKE and alike.mean() >= LEAST_SHARE
        if often and bits >= LEAST_BITS:
            yield Period(launches, at, kernels, alike, usual)
