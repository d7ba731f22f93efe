"""What the devices and threads of a process did while a step lasted: rows in order of start, found by time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfgate.scenario.kernel_names import COPY_KINDS, PLACES
from perfgate.trace.kernel_table import (
    CALL_KINDS,
    NO_TIME,
    NONE,
    Calls,
    Columns,
    OnDevice,
    Timed,
    Trace,
    call_keys,
    combinations,
)
from perfgate.trace.selection import Selection

Ints = NDArray[np.int64]
Where = Literal["device", "gap", "host"]
WHERES: tuple[Where, ...] = ("device", "gap", "host")
"""Work of a device; time between two pieces of it; work of the host, launches on their way included."""


class PathPart(NamedTuple):
    """A part of what a step is made of.

    Args:
        what: A kernel's role; of all else what it is.
        place: Where in the layer, of a kernel.
        name: Index into the trace's names, of a kernel; else -1.
    """

    where: Where
    what: str
    place: str = ""
    name: int = NONE


@dataclass(frozen=True)
class Window:
    """The time of a step on a device.

    Args:
        step: Row of the trace's steps; -1 for the whole of a trace without steps.
        process: Index into the trace's processes.
        begin_ns: The start of its first kernel.
        end_ns: The start of the first kernel of its successor, or the end of its own last work.
    """

    step: int
    process: int
    device: int
    begin_ns: int
    end_ns: int
    successor: bool


def windows(selection: Selection) -> Iterator[Window]:
    """The times of the steps selected, of each process's devices where the trace has no steps."""
    trace, figures, rows = selection.trace, selection.figures, selection.rows
    kernels = trace.kernels
    if not len(figures):
        for process, device in combinations(kernels.process, kernels.device)[0]:
            tables = [_of(table, process, device) for table in (kernels, trace.copies, trace.memsets)]
            edges = [(int(t.start_ns[0]), int((t.start_ns + t.duration_ns).max())) for t in tables if len(t)]
            yield Window(NONE, process, device, edges[0][0], max(end for _, end in edges), successor=False)
        return
    distinct, group = combinations(kernels.step[rows], kernels.device[rows])
    _, first = np.unique(group, return_index=True)  # kernels are in order of start
    first_ns = dict(zip(map(tuple, distinct), kernels.start_ns[rows[first]].tolist(), strict=True))
    for row in range(len(figures)):
        step, device = int(figures.step[row]), int(figures.device[row])
        begin_ns, length_ns = first_ns[step, device], int(figures.step_ns[row])
        successor = length_ns != NO_TIME
        end_ns = begin_ns + length_ns if successor else _last_end(trace, step, device)
        yield Window(step, int(trace.steps.process[step]), device, begin_ns, end_ns, successor)


def _of(events: OnDevice, process: int, device: int) -> OnDevice:
    return events.take((events.process == process) & (events.device == device))


def _last_end(trace: Trace, step: int, device: int) -> int:
    tables: tuple[OnDevice, ...] = (trace.kernels, trace.copies, trace.memsets)
    chosen = [table.take((table.step == step) & (table.device == device)) for table in tables]
    return max(int((events.start_ns + events.duration_ns).max(initial=NO_TIME)) for events in chosen)


@dataclass(frozen=True)
class Spans(Columns):
    """What lasted: work of devices, or calls of the host, in order of start.

    Args:
        key: Of the call, or of the call that launched the work; -1 where that is not known.
        lane: The device and stream of work, the thread of a call: a number for each.
        part: Index into the parts of the timeline.
        until_ns: The latest end up to here.
    """

    start_ns: Ints
    end_ns: Ints
    key: Ints
    lane: Ints
    part: Ints
    until_ns: Ints

    def between(self, begin_ns: int, end_ns: int) -> Spans:
        """Those that last into the time, or begin within it or with its end."""
        near = slice(
            np.searchsorted(self.until_ns, begin_ns, side="left"), np.searchsorted(self.start_ns, end_ns, side="right")
        )
        rows = np.arange(near.start, near.stop)
        return self.take(rows[(self.end_ns[near] > begin_ns) | (self.start_ns[near] >= begin_ns)])


@dataclass(frozen=True)
class Timeline:
    """A process of a trace.

    Args:
        work: What its devices did; ``lane`` is an index into ``streams``.
        calls: Its calls; ``lane`` is the thread.
        streams: Device and stream of each lane.
    """

    work: Spans
    calls: Spans
    streams: tuple[tuple[int, int], ...]
    parts: tuple[PathPart, ...]


CALL_PARTS = {kind: PathPart("host", f"{kind} call") for kind in CALL_KINDS}


def timeline(trace: Trace, process: int) -> Timeline:
    """What a process's devices and threads did."""
    kernels, names = trace.kernels, trace.names
    distinct, kernel_part = combinations(kernels.name, kernels.place)
    parts = [PathPart("device", names.role[name], PLACES[place], name) for name, place in distinct]
    copies, memset = len(parts), len(parts) + len(COPY_KINDS)
    parts += [PathPart("device", f"copy {kind}") for kind in COPY_KINDS]
    parts += [PathPart("device", "memset"), *CALL_PARTS.values()]
    tables: tuple[tuple[OnDevice, NDArray[Any]], ...] = (
        (kernels, kernel_part),
        (trace.copies, copies + trace.copies.kind.astype(np.int64)),
        (trace.memsets, np.full(len(trace.memsets), memset)),
    )
    chosen = [(events, part, np.flatnonzero(events.process == process)) for events, part in tables]
    device, stream = (
        np.concatenate([getattr(events, name)[rows].astype(np.int64) for events, _, rows in chosen])
        for name in ("device", "stream")
    )
    lanes, lane = _lanes(device, stream)
    work = [(*_columns(events.take(rows)), part[rows].astype(np.int64)) for events, part, rows in chosen]
    start_ns, end_ns, key, part = (np.concatenate(column) for column in zip(*work, strict=True))
    calls: Calls = trace.calls.take(trace.calls.process == process)
    kinds = memset + 1 + calls.kind.astype(np.int64)
    return Timeline(
        _spans(start_ns, end_ns, key, lane, part),
        _spans(*_columns(calls), calls.thread.astype(np.int64), kinds),
        lanes,
        tuple(parts),
    )


def _lanes(device: Ints, stream: Ints) -> tuple[tuple[tuple[int, int], ...], Ints]:
    """The pairs that occur, and which of them each row has."""
    pairs, lane = np.unique(np.stack([device, stream], axis=1), axis=0, return_inverse=True)
    return tuple((int(device_id), int(stream_id)) for device_id, stream_id in pairs), lane.reshape(-1)


def _columns(events: Timed) -> tuple[Ints, Ints, Ints]:
    """Start, end and the key of the launching call."""
    keys = np.where(events.correlation != NONE, call_keys(events.process, events.correlation), NONE)
    return events.start_ns, events.start_ns + events.duration_ns, keys


def _spans(start_ns: Ints, end_ns: Ints, key: Ints, lane: Ints, part: Ints) -> Spans:
    order = np.lexsort((key, -end_ns, start_ns))  # what encloses others comes before them
    rows = (start_ns[order], end_ns[order], key[order], lane[order], part[order])
    return Spans(*rows, np.maximum.accumulate(end_ns[order]) if len(order) else end_ns)
