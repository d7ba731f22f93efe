"""From what a profiler recorded to the kernel table: launches, steps, order, roles and layers, the same for all."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from perfgate.errors import RecordError
from perfgate.models import Note
from perfgate.trace.families import RoleRule, classify, normalised_name, short_name
from perfgate.trace.kernel_table import (
    CALL_KINDS,
    NO_TIME,
    NONE,
    Calls,
    Events,
    Kernels,
    Names,
    Steps,
    Trace,
    empty,
)
from perfgate.trace.layers import assign_layers, places_caution
from perfgate.trace.limits import (
    MAX_BYTES_MOVED,
    MAX_CORRELATION,
    MAX_DEVICE,
    MAX_DURATION_NS,
    MAX_NAME_CHARACTERS,
    MAX_TIME_NS,
)
from perfgate.trace.steps import Range, find_steps, layers_at, steps_at
from perfgate.units import plural

_Rows = TypeVar("_Rows", Events, Calls)


@dataclass(frozen=True)
class Recording:
    """What a reader takes from a file, in any order, with steps, layers and places still open.

    Args:
        source: The profiler and its version.
        where: The file, for errors.
        processes: Process ids.
        devices: Names of the devices, by number.
        names: Demangled kernel names.
        shapes: Launch shapes.
        kernels: Kernels; operators on the CPU carry their own start as their launch.
        calls: Every call of the CUDA interface that is in the file.
        ranges: Named ranges on the host, those that name steps and layers at least.
        copies: Copies.
        memsets: Memsets.
        overhead: The profiler's own work.
        cautions: What the reader noticed.
    """

    source: str
    where: str
    processes: tuple[int, ...]
    devices: dict[int, str]
    names: tuple[str, ...]
    shapes: NDArray[np.int64]
    kernels: Kernels
    calls: Calls
    ranges: Sequence[Range]
    copies: Events = field(default_factory=lambda: empty(Events))
    memsets: Events = field(default_factory=lambda: empty(Events))
    overhead: Events = field(default_factory=lambda: empty(Events))
    cautions: tuple[Note, ...] = ()


def build(recording: Recording, roles: Sequence[RoleRule] = ()) -> Trace:
    """The kernel table of a recording.

    A kernel belongs to the step in which the host launched it, a kernel of a CUDA graph to that of the graph's launch.

    Args:
        recording: What the profiler saw.
        roles: The scenario's own roles, tried before the shipped list.

    Raises:
        RecordError: There is no kernel, something ends before it starts, a number is outside the bounds of
            :mod:`perfgate.trace.limits`, or two steps of a process have one number.
        UsageError: A role's pattern is not a regular expression.
    """
    _check(recording)
    launches = _Launches(recording.calls)
    kernels = _launched(recording.kernels, launches)
    steps, cautions = find_steps(recording.ranges, np.unique(kernels.process).tolist(), recording.where)
    kernels = dataclasses.replace(kernels, step=steps_at(steps, kernels.process, kernels.launched_ns))
    if (np.diff(kernels.start_ns) <= 0).any():  # most exports are in order
        kernels = kernels.take(np.lexsort((kernels.correlation, kernels.stream, kernels.device, kernels.start_ns)))
    names = Names(
        demangled=recording.names,
        short=tuple(map(short_name, recording.names)),
        normalised=tuple(map(normalised_name, recording.names)),
        role=classify(recording.names, roles),
    )
    by_range = layers_at(recording.ranges, kernels.process, kernels.launched_ns)
    layer, place = assign_layers(kernels, names, by_range)
    kernels = dataclasses.replace(kernels, layer=layer, place=place)
    wanted = recording.calls.kind != CALL_KINDS.index("other")
    kept = recording.calls if wanted.all() else recording.calls.take(wanted)
    trace = Trace(
        source=recording.source,
        processes=recording.processes,
        devices=recording.devices,
        names=names,
        shapes=recording.shapes,
        kernels=kernels,
        steps=steps,
        copies=_placed(recording.copies, steps, launches),
        memsets=_placed(recording.memsets, steps, launches),
        overhead=_placed(recording.overhead, steps, None),
        calls=_ordered(dataclasses.replace(kept, step=steps_at(steps, kept.process, kept.start_ns))),
    )
    return dataclasses.replace(trace, cautions=(*recording.cautions, *cautions, *_cautions(trace)))


def _check(recording: Recording) -> None:
    if not len(recording.kernels):
        raise RecordError("holds no kernel", where=recording.where)
    longest = max(map(len, recording.names))
    if longest > MAX_NAME_CHARACTERS:
        raise RecordError(f"holds a kernel's name of {longest} characters: the file is damaged", where=recording.where)
    for what in ("kernels", "copies", "memsets", "overhead", "calls"):
        table = getattr(recording, what)
        if (table.duration_ns < 0).any():
            raise RecordError(f"{what} that end before they start: the file is damaged", where=recording.where)
        for name, (least, most) in _BOUNDS.items():
            column = getattr(table, name, None)
            if column is not None and len(column) and not least <= column.min() <= column.max() <= most:
                text = f"{what} with a {name} outside {least} to {most}: the file is damaged"
                raise RecordError(text, where=recording.where)
    for one in recording.ranges:
        end = one.start_ns if one.end_ns is None else one.end_ns
        if not -MAX_TIME_NS <= one.start_ns <= end <= MAX_TIME_NS:
            text = f"range {one.name[:80]} that ends before it starts, or at no time: the file is damaged"
            raise RecordError(text, where=recording.where)


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

    def start_of(self, process: NDArray[np.int16], correlation: NDArray[np.int64]) -> NDArray[np.int64]:
        """When the launching call began; :data:`NO_TIME` where the trace does not hold it."""
        if not len(self.keys):
            return np.full(len(process), NO_TIME)
        keys = call_keys(process, correlation)
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where((self.keys[place] == keys) & (correlation != NONE), self.start_ns[place], NO_TIME)


def call_keys(process: NDArray[Any], correlation: NDArray[np.int64]) -> NDArray[np.int64]:
    """One number for process and correlation; CUPTI's correlation ids have 32 bits."""
    return (process.astype(np.int64) << 40) + correlation


def _launched(kernels: Kernels, launches: _Launches) -> Kernels:
    """Kernels with the time of their launch, where the reader did not know it already."""
    found = launches.start_of(kernels.process, kernels.correlation)
    known = kernels.launched_ns != NO_TIME
    return dataclasses.replace(kernels, launched_ns=np.where(known, kernels.launched_ns, found))


def _placed(events: Events, steps: Steps, launches: _Launches | None) -> Events:
    """Events with their steps, by their launch where one is known and by their own start elsewhere, in order."""
    time_ns = events.start_ns
    if launches is not None:
        launched_ns = launches.start_of(events.process, events.correlation)
        time_ns = np.where(launched_ns != NO_TIME, launched_ns, time_ns)
    return _ordered(dataclasses.replace(events, step=steps_at(steps, events.process, time_ns)))


def _ordered(rows: _Rows) -> _Rows:
    if not (np.diff(rows.start_ns) <= 0).any():
        return rows
    return rows.take(np.lexsort((rows.correlation, rows.process, rows.start_ns)))


def _cautions(trace: Trace) -> list[Note]:
    found = []
    lost = int((trace.kernels.launched_ns == NO_TIME).sum())
    if lost:
        share = f"{lost} of {len(trace.kernels)} kernels"
        found.append(
            Note(code="launch-not-traced", text=f"{share} have no launching call in the trace and belong to no step")
        )
    if not len(trace.steps):
        found.append(Note(code="no-step-ranges", text="no range names a step, so the table is of the whole trace"))
    if (caution := places_caution(trace.kernels, trace.names)) is not None:
        found.append(caution)
    inside = trace.overhead.take(trace.overhead.step != NONE)
    if len(inside):
        steps = len(np.unique(inside.step))
        text = (
            f"the profiler spent {inside.duration_ns.sum() / 1e6:.3g} ms on its own work within {plural(steps, 'step')}"
        )
        found.append(Note(code="profiler-overhead", text=text))
    return found
