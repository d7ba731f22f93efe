"""Times that work on a device can have: within the capture, longer than nothing, one after the other on a stream.

CUPTI gives a kernel whose time it could not collect the start and end 0 (``CUpti_ActivityKernel``), and damaged traces
have durations of days. Such work is set aside, so that its launch counts as one without a kernel. On a stream a kernel
begins when the one before it has ended, but for programmatic dependent launch (compute capability 9.0): there a kernel
begins early and waits within itself, so both overlap and end in order. What overlaps counts once, for the kernel that
began first; kernels that end out of order have no times. In 150,000 kernels of public traces and H200 recordings none
does (docs/decisions.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfgate.errors import RecordError
from perfgate.models import Note
from perfgate.trace.kernel_table import NONE, Kernels, OnDevice, Trace, combinations
from perfgate.trace.steps import Range
from perfgate.units import format_ns, percent, plural

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

NS_PER_US = 1000
COARSE_NS, FINE_NS = 2 * NS_PER_US, 100
"""How far rounding moves an end beside another one: in whole microseconds, and in a device's steps of 32 ns."""
MOST_AT_ONCE, MOST_SHARE = 4, 1 / 2
"""Kernels of one stream that may be open at once, and the part of the kernel time that may overlap: a kernel that is
launched early waits for the one before it, so that two are open and each time counts twice at most."""
EARLY_NS, LATE_NS = 100_000_000, 500_000_000
"""So far outside what the host did work may be, beyond clocks that disagree and kernels that outlast their launches."""


def with_possible_times(recorded: Trace, ranges: Sequence[Range]) -> tuple[Trace, list[Note]]:
    """The same without work that has no possible time, with what overlaps on a stream counted once.

    Args:
        recorded: What a reader took from a file; no duration is negative.
        ranges: Ranges of the host.

    Returns:
        The trace, and what to know of it. Kernels that end out of order are marked, see
        :attr:`perfgate.trace.kernel_table.Kernels.astray`.

    Raises:
        RecordError: No kernel has a possible time.
    """
    kernels = recorded.kernels
    notes: list[Note] = []
    on_device = kernels.device != NONE
    if not on_device.any():  # operators on the CPU take the place of kernels
        return recorded, notes
    coarse = not (kernels.start_ns % NS_PER_US).any() and not (kernels.duration_ns % NS_PER_US).any()
    span = _span(recorded, ranges)
    left: dict[str, Any] = {}
    dropped = 0
    for what in ("kernels", "copies", "memsets"):
        table: OnDevice = getattr(recorded, what)
        kept = ~_impossible(table, span)
        if isinstance(table, Kernels):
            kept &= ~_without_length(table, coarse=coarse) | ~on_device
        if not kept.all():
            dropped += len(kept) - int(kept.sum())
            left[what] = table.take(kept)
    recorded = dataclasses.replace(recorded, **left)
    if dropped:
        if not len(recorded.kernels):
            text = "holds no kernel with a time that the capture can hold"
            raise RecordError(text, where=recorded.where, remedy="Trace again, with one profiler alone.")
        text = (
            f"{dropped} kernels, copies or memsets have no time that the capture can hold (none at all, or beyond its "
            "begin or end) and are set aside"
        )
        notes.append(Note(code="not-recorded", text=text))
    ordered, overlaps = _in_order(recorded.kernels, COARSE_NS if coarse else FINE_NS)
    return dataclasses.replace(recorded, kernels=ordered), [*notes, *overlaps]


def _span(recorded: Trace, ranges: Sequence[Range]) -> tuple[int, int] | None:
    """Between which times the host did what the trace shows; nothing where it shows too little of the host."""
    calls = recorded.calls
    starts = np.concatenate([calls.start_ns, np.array([one.start_ns for one in ranges], np.int64)])
    known = np.array([one.start_ns if one.end_ns is None else one.end_ns for one in ranges], np.int64)
    ends = np.concatenate([calls.start_ns + calls.duration_ns, known])
    if not len(starts):
        return None
    first, last = int(starts.min()), int(ends.max())
    kernels = recorded.kernels
    inside = (kernels.start_ns >= first - EARLY_NS) & (kernels.start_ns <= last + LATE_NS)
    return (first, last) if inside.mean() > 0.5 else None  # noqa: PLR2004 (else the clocks have nothing in common)


def _impossible(table: OnDevice, span: tuple[int, int] | None) -> Mask:
    """Which work is outside the capture, or has neither start nor end."""
    nowhere = (table.start_ns == 0) & (table.duration_ns == 0)
    if span is not None:
        first, last = span
        length = last - first
        nowhere |= table.start_ns < first - max(length, EARLY_NS)
        nowhere |= table.start_ns + table.duration_ns > last + max(10 * length, LATE_NS)
    return np.asarray(nowhere & (table.device != NONE))


def _without_length(kernels: Kernels, *, coarse: bool) -> Mask:
    """Which kernels last no time, unless that is rounded: the longest launch of the kernel lasts a microsecond."""
    nothing = kernels.duration_ns == 0
    if not nothing.any() or not coarse:
        return np.asarray(nothing)
    longest = np.zeros(int(kernels.name.max()) + 1, np.int64)
    np.maximum.at(longest, kernels.name, kernels.duration_ns)
    return np.asarray(nothing & (longest[kernels.name] != NS_PER_US))


def _in_order(kernels: Kernels, rounding_ns: int) -> tuple[Kernels, list[Note]]:
    """The kernels of each stream one after the other, and those marked that end out of order."""
    end_ns = kernels.start_ns + kernels.duration_ns
    rows = np.flatnonzero((kernels.device != NONE) & (kernels.stream != NONE))
    start_ns, astray = kernels.start_ns.copy(), np.zeros(len(kernels), bool)
    overlapped_ns, overlapping = 0, 0
    for own in _streams(kernels, rows):
        own = own[np.lexsort((end_ns[own], kernels.start_ns[own]))]  # noqa: PLW2901 (the same in order)
        reached = np.maximum.accumulate(end_ns[own])
        begun, ended, before = kernels.start_ns[own][1:], end_ns[own][1:], reached[:-1]
        if not (begun < before).any():
            continue
        within = ended < before - rounding_ns
        longest = np.maximum.accumulate(np.where(end_ns[own] == reached, np.arange(len(own)), 0))[:-1]
        astray[own[1:][within]] = astray[own[longest[within]]] = True
        early = ~within & (before - begun > rounding_ns)
        start_ns[own[1:][early]] = np.minimum(before, ended)[early]
        opened = np.searchsorted(np.sort(end_ns[own]), kernels.start_ns[own] + rounding_ns, side="right")
        crowded = np.arange(1, len(own) + 1) - opened > MOST_AT_ONCE
        astray[own[crowded]] = True
        overlapping += int(early.sum())
        overlapped_ns += int((before - begun)[early].sum())
    notes = []
    if overlapping:
        share = overlapped_ns / int(kernels.duration_ns[rows].sum())
        if share > MOST_SHARE:
            astray[rows] = True
        text = (
            f"{overlapping} of {plural(len(rows), 'kernel')} begin before the one before them on their stream has "
            f"ended, by {format_ns(overlapped_ns / overlapping)} each and {percent(share)} of the kernel time, as with "
            "programmatic dependent launch: that time counts once, for the kernel that began first"
        )
        notes.append(Note(code="trace-damaged", text=text))
    if astray.any():
        text = (
            f"{int(astray.sum())} of {plural(len(rows), 'kernel')} run beside one that began before them on their "
            f"stream and ended after them, or beside more than {MOST_AT_ONCE} others, or for most of their time, which "
            "no stream does: their times are not known"
        )
        notes.append(Note(code="trace-damaged", text=text))
    made = dataclasses.replace(kernels, start_ns=start_ns, duration_ns=end_ns - start_ns, astray=astray)
    return made, notes


def _streams(kernels: Kernels, rows: Ints) -> list[NDArray[Any]]:
    """The rows of each stream."""
    _, stream = np.unique(kernels.stream[rows], return_inverse=True)
    _, group = combinations(kernels.process[rows], kernels.device[rows], stream)
    order = np.argsort(group, kind="stable")
    return np.split(rows[order], np.flatnonzero(np.diff(group[order])) + 1)
