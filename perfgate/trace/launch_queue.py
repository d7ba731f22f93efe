"""How long launches take to arrive, and how many are under way: does the device wait for the host?

A launch is one call of the host with what it had a device do: a kernel, a copy, a memset, or a whole graph. Its delay
runs from the start of the call to the start of that work. Its queue is how many launches of the same stream, itself
included, had been called and not yet begun when it was called: 1 says that nothing was waiting. A launch is late where
the stream had finished everything else before the call, so that the device could only wait for the host. Terms as in
CUPTI's activity records: https://docs.nvidia.com/cupti/main/main.html#correlation-records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfgate.trace.kernel_table import NONE, Columns, OnDevice, Trace, call_keys, combinations, rows_by

Ints = NDArray[np.int64]

WORK = ("kernel", "graph", "copy", "memset")
"""What a launch has a device do."""


@dataclass(frozen=True)
class Launches(Columns):
    """One row a launch, in order of call.

    Args:
        delay_ns: From the start of the call to that of its first work; 0 where the clocks of host and device disagree.
        end_ns: When its last work ended.
        step: Row of the trace's steps, or -1.
        process: Index into the trace's processes.
        stream: The stream of its first work.
        work: Index into :data:`WORK`.
        name: Of a kernel its index into the trace's names, of a copy its kind, else -1.
        pieces: Kernels, copies and memsets that it launched.
        queue: Launches of its stream called and not yet begun, itself included.
        late: Whether its stream had finished everything before it was called.
    """

    called_ns: Ints
    call_ns: Ints
    delay_ns: Ints
    end_ns: Ints
    step: NDArray[np.int32]
    process: NDArray[np.int16]
    device: NDArray[np.int16]
    stream: Ints
    work: Ints
    name: Ints
    pieces: Ints
    queue: Ints
    late: NDArray[np.bool_]


def find_launches(trace: Trace) -> Launches:
    """Every launch whose call and work the trace both hold; none of operators on the CPU."""
    made = _Made.of(trace)
    calls = trace.calls
    keys = call_keys(calls.process, calls.correlation)
    by_key = np.argsort(keys, kind="stable")
    sorted_keys = np.append(keys[by_key], np.iinfo(np.int64).max)
    call = np.append(by_key, NONE)[np.searchsorted(sorted_keys[:-1], made.key)]
    linked = np.flatnonzero(sorted_keys[np.searchsorted(sorted_keys[:-1], made.key)] == made.key)
    linked = linked[np.argsort(calls.start_ns[call[linked]], kind="stable")]
    made, call = made.take(linked), call[linked]
    called_ns = calls.start_ns[call]
    begun_ns = np.maximum(made.start_ns, called_ns)
    queue, late = np.zeros(len(call), np.int64), np.zeros(len(call), bool)
    _, owner = combinations(calls.process[call], made.device, made.stream)
    for rows in rows_by(owner):
        queue[rows], late[rows] = _queue(called_ns[rows], begun_ns[rows], made.end_ns[rows])
    graph = calls.of("graph-launch")[call]
    return Launches(
        called_ns=called_ns,
        call_ns=calls.duration_ns[call],
        delay_ns=begun_ns - called_ns,
        end_ns=made.end_ns,
        step=calls.step[call],
        process=calls.process[call],
        device=made.device,
        stream=made.stream,
        work=np.where(graph, WORK.index("graph"), made.work),
        name=np.where(graph, NONE, made.name),
        pieces=made.pieces,
        queue=queue,
        late=late,
    )


def _queue(called_ns: Ints, begun_ns: Ints, end_ns: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Queue and lateness of one stream's launches, which are in order of call."""
    begun = np.searchsorted(np.sort(begun_ns), called_ns, side="left")
    finished = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(end_ns)[:-1]])
    return np.arange(1, len(called_ns) + 1) - begun, finished <= called_ns


@dataclass(frozen=True)
class _Made(Columns):
    """What each call had a device do, one row a call, with the stream, name and start of what began first."""

    key: Ints
    start_ns: Ints
    end_ns: Ints
    device: NDArray[np.int16]
    stream: Ints
    work: Ints
    name: Ints
    pieces: Ints

    @classmethod
    def of(cls, trace: Trace) -> _Made:
        tables: list[tuple[OnDevice, str, NDArray[Any]]] = [
            (trace.kernels, "kernel", trace.kernels.name),
            (trace.copies, "copy", trace.copies.kind),
            (trace.memsets, "memset", np.full(len(trace.memsets), NONE)),
        ]
        parts = []
        for events, work, name in tables:
            rows = np.flatnonzero((events.correlation != NONE) & (events.device != NONE))
            start_ns, wanted = events.start_ns[rows], np.full(len(rows), WORK.index(work))
            keys = call_keys(events.process[rows], events.correlation[rows])
            columns = (start_ns, start_ns + events.duration_ns[rows], events.device[rows], events.stream[rows])
            parts.append((keys, *columns, wanted, name[rows].astype(np.int64)))
        key, start_ns, end_ns, device, stream, work_of, name_of = map(np.concatenate, zip(*parts, strict=True))
        order = np.lexsort((start_ns, key))
        first = np.flatnonzero(np.diff(key[order], prepend=NONE - 1))
        chosen = order[first]
        last = np.maximum.reduceat(end_ns[order], first) if len(first) else end_ns
        pieces = np.diff(np.append(first, len(order)))
        details = (device[chosen], stream[chosen], work_of[chosen], name_of[chosen])
        return cls(key[chosen], start_ns[chosen], last, *details, pieces)
