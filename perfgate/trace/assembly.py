"""From what a profiler recorded to the kernel table: launches, steps, order, roles and layers, the same for all.

Work on a device has times within the capture, longer than nothing, one after the other on a stream. CUPTI gives a
kernel whose time it could not collect the start and end 0 (``CUpti_ActivityKernel``), and damaged traces have durations
of days. Such work is set aside, so that its launch counts as one without a kernel. On a stream a kernel begins when the
one before it has ended, but for programmatic dependent launch (compute capability 9.0): there a kernel begins early and
waits within itself, so both overlap and end in order. What overlaps counts once, for the kernel that began first;
kernels that end out of order have no times. In 150,000 kernels of public traces and H200 recordings none does
(docs/decisions.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from perfgate.errors import RecordError
from perfgate.models import Note
from perfgate.scenario.kernel_names import RoleRule
from perfgate.trace.families import classify, normalised_name, short_name
from perfgate.trace.kernel_table import (
    CAPTURES,
    LAUNCHES,
    NO_TIME,
    NONE,
    Calls,
    Kernels,
    Names,
    OnDevice,
    Steps,
    Timed,
    Trace,
    call_keys,
    combinations,
    rows_by,
)
from perfgate.trace.layers import assign_layers, layer_cautions
from perfgate.trace.limits import (
    MAX_BYTES_MOVED,
    MAX_CORRELATION,
    MAX_DEVICE,
    MAX_DURATION_NS,
    MAX_NAME_CHARACTERS,
    MAX_TIME_NS,
)
from perfgate.trace.lost_work import mark_lost, without_cut_steps
from perfgate.trace.step_inference import infer_steps
from perfgate.trace.steps import Range, find_steps, layers_at, steps_at
from perfgate.units import format_ns, percent, plural

Ints = NDArray[np.int64]
_Rows = TypeVar("_Rows", bound=Timed)


class NoKernelError(RecordError):
    """A trace that can be read and shows nothing that ran."""


def named(demangled: tuple[str, ...], roles: Sequence[RoleRule], where: str) -> Names:
    """Kernel names in all their forms; ``roles`` are the scenario's own, tried before the shipped list.

    Raises:
        RecordError: One is too long; ``where`` names the file.
        UsageError: A role's pattern is not a regular expression.
    """
    longest = max(map(len, demangled), default=0)
    if longest > MAX_NAME_CHARACTERS:
        raise RecordError(f"holds a kernel's name of {longest} characters: the file is damaged", where=where)
    short, normalised = tuple(map(short_name, demangled)), tuple(map(normalised_name, demangled))
    return Names(demangled, short, normalised, classify(demangled, roles))


def build(recorded: Trace, ranges: Sequence[Range]) -> Trace:
    """The kernel table of what a reader took from a file, in any order, with steps, layers and places still open.

    A kernel belongs to the step in which the host launched it, a kernel of a CUDA graph to that of the graph's launch.

    Args:
        recorded: What the profiler saw; operators on the CPU carry their own start as their launch.
        ranges: Named ranges on the host, those that name steps and layers at least.

    Raises:
        RecordError: There is no kernel, something ends before it starts, a number is outside the bounds of
            :mod:`perfgate.trace.limits`, or two steps of a process have one number.
    """
    _check(recorded, ranges)
    recorded, doubts = with_possible_times(recorded, ranges)
    launches = _Launches(recorded.calls)
    recorded = mark_lost(recorded, launches.shared)
    recorded, unclear = _without_shared_numbers(recorded, launches)
    kernels = _launched(recorded.kernels, launches)
    copied_ns, set_ns = (
        launches.start_of(events.process, events.correlation) for events in (recorded.copies, recorded.memsets)
    )
    del launches
    steps, cautions = find_steps(ranges, np.unique(kernels.process).tolist(), recorded.where)
    time_ns = kernels.launched_ns
    if not len(steps):
        steps, time_ns, inferred = infer_steps(dataclasses.replace(recorded, kernels=kernels))
        cautions = (*cautions, *inferred)
    kernels = dataclasses.replace(kernels, step=steps_at(steps, kernels.process, time_ns))
    if (np.diff(kernels.start_ns) <= 0).any():  # most exports are in order
        kernels = kernels.take(np.lexsort((kernels.correlation, kernels.stream, kernels.device, kernels.start_ns)))
    by_range = layers_at(ranges, kernels.process, kernels.launched_ns)
    layer, place = assign_layers(kernels, recorded.names, by_range)
    wanted = ~recorded.calls.of("other", *CAPTURES)
    calls = recorded.calls if wanted.all() else recorded.calls.take(wanted)
    trace = dataclasses.replace(
        recorded,
        kernels=dataclasses.replace(kernels, layer=layer, place=place),
        steps=steps,
        copies=_placed(recorded.copies, steps, copied_ns),
        memsets=_placed(recorded.memsets, steps, set_ns),
        overhead=_placed(recorded.overhead, steps, None),
        calls=_placed(calls, steps, None),
    )
    trace, missing = without_cut_steps(trace)
    notes = (*recorded.cautions, *cautions, *unclear, *doubts, *missing, *_cautions(trace))
    return dataclasses.replace(trace, cautions=notes)


def _check(recorded: Trace, ranges: Sequence[Range]) -> None:
    if not len(recorded.kernels):
        raise NoKernelError("holds no kernel", where=recorded.where)
    for what in ("kernels", "copies", "memsets", "overhead", "calls"):
        table = getattr(recorded, what)
        if (table.duration_ns < 0).any():
            raise RecordError(f"{what} that end before they start: the file is damaged", where=recorded.where)
        for name, (least, most) in _BOUNDS.items():
            column = getattr(table, name, None)
            if column is not None and len(column) and not least <= column.min() <= column.max() <= most:
                text = f"{what} with a {name} outside {least} to {most}: the file is damaged"
                raise RecordError(text, where=recorded.where)
    for span in ranges:
        end = span.start_ns if span.end_ns is None else span.end_ns
        if not -MAX_TIME_NS <= span.start_ns <= end <= MAX_TIME_NS:
            text = f"range {span.name[:80]} that ends before it starts, or at no time: the file is damaged"
            raise RecordError(text, where=recorded.where)


_BOUNDS = {
    "start_ns": (-MAX_TIME_NS, MAX_TIME_NS),
    "duration_ns": (0, MAX_DURATION_NS),
    "device": (NONE, MAX_DEVICE),
    "correlation": (NONE, MAX_CORRELATION),
    "bytes": (0, MAX_BYTES_MOVED),
}
"""What numbers a trace can hold."""


class _Launches:
    """Finds the call that launched something, by process and correlation: the numbers repeat across processes."""

    def __init__(self, calls: Calls) -> None:
        keys = call_keys(calls.process, calls.correlation)
        order = np.argsort(keys, kind="stable")
        self.keys, self.start_ns = keys[order], calls.start_ns[order]
        self.shared = self._shared(calls, order)
        """The keys that several launching calls have, none of them within the first, in order."""

    def _shared(self, calls: Calls, order: Ints) -> Ints:
        twice = np.flatnonzero(self.keys[1:] == self.keys[:-1])
        if not len(twice):
            return twice
        rows = order[np.isin(self.keys, self.keys[twice])]
        rows = rows[calls.of(*LAUNCHES, "copy")[rows] & (calls.correlation[rows] != NONE)]
        rows = rows[np.lexsort((calls.start_ns[rows], call_keys(calls.process[rows], calls.correlation[rows])))]
        keys = call_keys(calls.process[rows], calls.correlation[rows])
        distinct, first, group = np.unique(keys, return_index=True, return_inverse=True)
        until = (calls.start_ns[rows] + calls.duration_ns[rows])[first]
        return np.asarray(distinct[np.unique(group[calls.start_ns[rows] > until[group]])])

    def start_of(self, process: NDArray[np.int16], correlation: NDArray[np.int64]) -> NDArray[np.int64]:
        """When the launching call began; :data:`NO_TIME` where the trace does not hold it."""
        if not len(self.keys):
            return np.full(len(process), NO_TIME)
        keys = call_keys(process, correlation)
        index = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where((self.keys[index] == keys) & (correlation != NONE), self.start_ns[index], NO_TIME)


def _without_shared_numbers(recorded: Trace, launches: _Launches) -> tuple[Trace, list[Note]]:
    """Work whose number several calls have is launched by none that is known, which is said."""
    if not len(launches.shared):
        return recorded, []
    changed: dict[str, Any] = {}
    for what in ("kernels", "copies", "memsets"):
        table = getattr(recorded, what)
        unclear = np.isin(call_keys(table.process, table.correlation), launches.shared)
        if unclear.any():
            changed[what] = dataclasses.replace(table, correlation=np.where(unclear, NONE, table.correlation))
    lost = sum(int((table.correlation != getattr(recorded, what).correlation).sum()) for what, table in changed.items())
    if not lost:
        return recorded, []
    text = f"{lost} kernels, copies or memsets have the number of several calls, so what launched them is not known"
    return dataclasses.replace(recorded, **changed), [Note(code="trace-damaged", text=text)]


def _launched(kernels: Kernels, launches: _Launches) -> Kernels:
    """Kernels with the time of their launch, where the reader did not know it already."""
    launched_ns = launches.start_of(kernels.process, kernels.correlation)
    timed = kernels.launched_ns != NO_TIME
    return dataclasses.replace(kernels, launched_ns=np.where(timed, kernels.launched_ns, launched_ns))


def _placed(rows: _Rows, steps: Steps, launched_ns: Ints | None) -> _Rows:
    """Events with their steps, by their launch where one is known and by their own start elsewhere, in order."""
    time_ns = rows.start_ns
    if launched_ns is not None:
        time_ns = np.where(launched_ns != NO_TIME, launched_ns, time_ns)
    rows = dataclasses.replace(rows, step=steps_at(steps, rows.process, time_ns))
    if not (np.diff(rows.start_ns) <= 0).any():
        return rows
    return rows.take(np.lexsort((rows.correlation, rows.process, rows.start_ns)))


def _cautions(trace: Trace) -> list[Note]:
    notes = []
    kernels = trace.kernels
    unknown = kernels.launched_ns == NO_TIME
    if lost := int(unknown.sum()):
        placed = bool((kernels.step[unknown] != NONE).any())
        so = "belong to the step in which they began" if placed else "belong to no step"
        text = f"{lost} of {plural(len(kernels), 'kernel')} have no launching call in the trace and {so}"
        notes.append(Note(code="trace-damaged", text=text))
    early_ns = np.where(unknown, 0, kernels.launched_ns - kernels.start_ns)
    if early := int((early_ns > 0).sum()):
        text = (
            f"{early} of {plural(len(kernels), 'kernel')} begin before the call that launched them, by up to "
            f"{format_ns(early_ns.max())}"
        )
        notes.append(Note(code="trace-damaged", text=text))
    notes += layer_cautions(trace.kernels, trace.names)
    inside = trace.overhead.take(trace.overhead.step != NONE)
    if len(inside):
        steps = len(np.unique(inside.step))
        text = (
            f"the profiler spent {inside.duration_ns.sum() / 1e6:.3g} ms on its own work within {plural(steps, 'step')}"
        )
        notes.append(Note(code="trace-damaged", text=text))
    return notes


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
    starts = np.concatenate([calls.start_ns, np.array([span.start_ns for span in ranges], np.int64)])
    range_ends = np.array([span.start_ns if span.end_ns is None else span.end_ns for span in ranges], np.int64)
    ends = np.concatenate([calls.start_ns + calls.duration_ns, range_ends])
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
    for lane in _streams(kernels, rows):
        lane = lane[np.lexsort((end_ns[lane], kernels.start_ns[lane]))]  # noqa: PLW2901 (the same in order)
        reached = np.maximum.accumulate(end_ns[lane])
        begun, ended, before = kernels.start_ns[lane][1:], end_ns[lane][1:], reached[:-1]
        if not (begun < before).any():
            continue
        within = ended < before - rounding_ns
        longest = np.maximum.accumulate(np.where(end_ns[lane] == reached, np.arange(len(lane)), 0))[:-1]
        astray[lane[1:][within]] = astray[lane[longest[within]]] = True
        early = ~within & (before - begun > rounding_ns)
        start_ns[lane[1:][early]] = np.minimum(before, ended)[early]
        opened = np.searchsorted(np.sort(end_ns[lane]), kernels.start_ns[lane] + rounding_ns, side="right")
        crowded = np.arange(1, len(lane) + 1) - opened > MOST_AT_ONCE
        astray[lane[crowded]] = True
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
    return [rows[lane] for lane in rows_by(group)]
