"""From what a profiler recorded to the kernel table: launches, steps, order, roles and layers, the same for all."""

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
    Steps,
    Timed,
    Trace,
    call_keys,
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
from perfgate.trace.times import with_possible_times
from perfgate.units import format_ns, plural

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
    copied_ns, set_ns = (launches.start_of(one.process, one.correlation) for one in (recorded.copies, recorded.memsets))
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
    known = kernels.launched_ns != NO_TIME
    return dataclasses.replace(kernels, launched_ns=np.where(known, kernels.launched_ns, launched_ns))


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
