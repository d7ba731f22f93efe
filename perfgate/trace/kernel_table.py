"""The kernel table: what a traced engine ran, step by step, whichever profiler saw it.

Pure data in columns (numpy arrays of one length): ``perfgate kernels`` takes 0.8 GiB for five million kernels with
three calls each (docs/measurements.md). Times are integer nanoseconds on the clock of the capture; durations are
never negative. An index that does not apply is -1.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, Self, TypeVar, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from perfgate.models import Note

NONE = -1
"""An index that does not apply: no step, no layer, no device, no known launch."""

NO_TIME = int(np.iinfo(np.int64).min)
"""A time that the trace does not show; nsys counts from the start of its session, so that times may be negative."""

STEP_KINDS = ("decode", "prefill", "mixed", "idle", "unknown", "repeated")
"""What a step computed; ``idle`` scheduled nothing, ``unknown`` carries no range that tells, ``repeated`` launched what
most inferred steps launched."""

CALL_KINDS = ("launch", "graph-launch", "copy", "synchronise", "capture-begin", "capture-end", "other")
"""What a call of the CUDA interface does for the step; those that capture a graph, and ``other`` ones, are not kept."""
LAUNCHES, CAPTURES = CALL_KINDS[:2], CALL_KINDS[4:6]
"""Those that launch kernels, and those between which a stream's launches are only noted down for a graph."""

CALL_WORK = ("unknown", "due", "lost", "short")
"""What a call left on the device: nobody knows whether there is any; a kernel or a graph, which the trace shows; one
that it does not show; a graph of which it shows fewer kernels than in other replays."""


@dataclass(frozen=True)
class Columns:
    """Columns of one length.

    Raises:
        ValueError: They are not.
    """

    def __post_init__(self) -> None:
        """Check the lengths."""
        lengths = {field.name: len(getattr(self, field.name)) for field in dataclasses.fields(self)}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of different lengths: {lengths}")

    def __len__(self) -> int:
        """How many rows there are."""
        return len(getattr(self, dataclasses.fields(self)[0].name))

    def take(self, rows: NDArray[Any]) -> Self:
        """These rows (indices, or a mask), in this order."""
        return dataclasses.replace(self, **{f.name: getattr(self, f.name)[rows] for f in dataclasses.fields(self)})


Rows = TypeVar("Rows", bound=Columns)


@dataclass(frozen=True)
class Timed(Columns):
    """What ran, one row a launch, call or piece of work.

    Args:
        start_ns: Start.
        duration_ns: Length.
        process: Index into :attr:`Trace.processes`.
        correlation: The profiler's number of the launching call, unique within a process; -1 where there is none.
        step: Row of :class:`Steps`, or -1.
    """

    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    process: NDArray[np.int16]
    correlation: NDArray[np.int64]
    step: NDArray[np.int32]


@dataclass(frozen=True)
class OnDevice(Timed):
    """What ran on a device.

    Args:
        device: The device's number; -1 where it has none, as operators on the CPU.
        stream: The stream's number; -1 where it has none.
        graph: True where a CUDA graph launched it.
    """

    device: NDArray[np.int16]
    stream: NDArray[np.int64]
    graph: NDArray[np.bool_]


@dataclass(frozen=True)
class Kernels(OnDevice):
    """Kernels as they ran.

    Args:
        name: Index into :class:`Names`.
        shape: Index into :attr:`Trace.shapes`.
        launched_ns: Start of the launching call on the host; :data:`NO_TIME` where it is not in the trace.
        layer: Number of the layer from 0, or -1 outside the layers.
        place: Index into :data:`perfgate.scenario.kernel_names.PLACES`.
        node: The graph above 32 bits and its node below; -1 where the profiler does not tell.
        astray: True where its times are none that a stream can have beside its others (:mod:`perfgate.trace.times`).
    """

    name: NDArray[np.int32]
    shape: NDArray[np.int32]
    launched_ns: NDArray[np.int64]
    layer: NDArray[np.int16]
    place: NDArray[np.int8]
    node: NDArray[np.int64]
    astray: NDArray[np.bool_]


@dataclass(frozen=True)
class Names(Columns):
    """Every kernel name of a trace, in one order for all columns.

    Args:
        demangled: As the profiler writes it, template arguments and all.
        short: The function's own name, for people.
        normalised: The identity to compare builds by (:func:`perfgate.trace.families.normalised_name`).
        role: The family.
    """

    demangled: tuple[str, ...]
    short: tuple[str, ...]
    normalised: tuple[str, ...]
    role: tuple[str, ...]


@dataclass(frozen=True)
class Steps(Columns):
    """Engine steps, in order of process and start.

    Args:
        index: N of ``perfgate.step.N``, or the number that another range has; else from 0.
        kind: Index into :data:`STEP_KINDS`.
        start_ns: When the host began it.
        end_ns: When the host ended it; the device may still be at an earlier step.
        process: Index into :attr:`Trace.processes`.
        thread: The thread whose range it is, as :attr:`Calls.thread`; -1 where no range of its process marks it.
        complete: False where the trace does not show the step's end, or what it launched first or last.
        own: True where a range of perfgate's marks the step; vLLM's own ranges end before the sampler.
        inferred: True where no range marks it: it was inferred from what is launched again and again.
    """

    index: NDArray[np.int64]
    kind: NDArray[np.int8]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    process: NDArray[np.int16]
    thread: NDArray[np.int32]
    complete: NDArray[np.bool_]
    own: NDArray[np.bool_]
    inferred: NDArray[np.bool_]

    def complete_of(self, kind: str) -> NDArray[np.int64]:
        """The rows of complete steps of a kind in :data:`STEP_KINDS`."""
        return np.flatnonzero(self.complete & (self.kind == STEP_KINDS.index(kind)))


@dataclass(frozen=True)
class Events(OnDevice):
    """Copies, memsets or the profiler's own work, in order of start.

    Args:
        kind: Index into the kinds of its sort.
        bytes: Bytes moved or set; 0 where it has none.
    """

    kind: NDArray[np.int8]
    bytes: NDArray[np.int64]


@dataclass(frozen=True)
class Calls(Timed):
    """Calls of the CUDA interface on the host, in order of start.

    Args:
        kind: Index into :data:`CALL_KINDS`.
        thread: Any number that tells threads of a process apart; -1 where it has none.
        work: Index into :data:`CALL_WORK`.
    """

    kind: NDArray[np.int8]
    thread: NDArray[np.int32]
    work: NDArray[np.int8]

    def of(self, *kinds: str) -> NDArray[np.bool_]:
        """Which are of one of these :data:`CALL_KINDS`."""
        return np.isin(self.kind, [CALL_KINDS.index(kind) for kind in kinds])


@dataclass(frozen=True)
class Trace:
    """A traced stretch of an engine's life.

    Args:
        source: The profiler and its version.
        processes: Process ids.
        devices: Names of the devices, by number.
        names: Kernel names.
        shapes: Launch shapes, one row each: grid x, y, z, then block x, y, z; zeros where there is none.
        kernels: The kernels.
        steps: The steps.
        copies: Copies, kinds in :data:`COPY_KINDS`.
        memsets: Memsets.
        overhead: The profiler's own work on the host.
        calls: Calls on the host that launch, copy or synchronise.
        cautions: What the reader should know.
        where: The file, for errors.
        base_ns: What its times counted from before they became nanoseconds since 1970; ``None`` where it does not say,
            so that its clock is its own.
    """

    source: str
    processes: tuple[int, ...]
    devices: dict[int, str]
    names: Names
    shapes: NDArray[np.int64]
    kernels: Kernels
    steps: Steps
    copies: Events
    memsets: Events
    overhead: Events
    calls: Calls
    cautions: tuple[Note, ...]
    where: str
    base_ns: int | None = None

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that occur, in alphabetical order."""
        return tuple(sorted(set(self.names.role)))


_CALLS = {
    "graph-launch": re.compile(r"(cu(da)?|hip)GraphLaunch|urEnqueueCommandBuffer|AscendCL@acl(mdlExecute|mdlRI)"),
    "launch": re.compile(
        r"(cu(da)?|hip(Ext|Hcc|Drv)?(Module)?)Launch(?!HostFunc)|(ur|pi)Enqueue(Cooperative)?KernelLaunch|"
        r"zeCommandListAppendLaunch|Node@launch|AscendCL@(aclnn|aclopExecute|aclrtLaunch)"
    ),
    "copy": re.compile(
        r"(cu(da)?|hip(Drv)?)Mem(cpy|set)|urEnqueue(USM)?Mem|zeCommandListAppendMemory|AscendCL@aclrtMem(cpy|set)"
    ),
    "synchronise": re.compile(
        r"(cu(da)?|hip)\w*Synchronize|ur(QueueFinish|EventWait)|ze\w*Synchronize|(AscendCL@aclrt|Runtime@\w*)Synchronize"
    ),
    "capture-begin": re.compile(r"(cu(da)?|hip)StreamBeginCapture"),
    "capture-end": re.compile(r"(cu(da)?|hip)StreamEndCapture"),
}
"""CUDA and HIP; Unified Runtime and Level Zero under SYCL; AscendCL and what is below it, as CANN names them."""


def call_kind(name: str) -> str:
    """What a call of a device's interface is for, by its name; suffixes such as ``_v10000`` do not matter.

    Waits are known by the call's name, not by CUPTI's synchronisation records: nsys 2023.4 exports
    ``cudaEventSynchronize`` as a "stream wait".
    """
    return next((kind for kind, pattern in _CALLS.items() if pattern.match(name)), "other")


def call_work(name: str) -> int:
    """Index into :data:`CALL_WORK` by the name of a call: CUDA's and HIP's launches each leave work on the device.

    Copies and memsets of no bytes leave none, nor do copies within the host; AscendCL and SYCL launch in several calls.
    """
    return CALL_WORK.index("due" if call_kind(name) in LAUNCHES and name.startswith(("cu", "hip")) else "unknown")


def filled(table: type[Rows], /, **columns: NDArray[Any]) -> Rows:
    """Rows of ``table`` from the columns given, each cast to its type; the others say "does not apply".

    Raises:
        OverflowError: A value does not fit into its column.
    """
    length = len(next(iter(columns.values()), ()))
    made = {}
    for name, hint in get_type_hints(table).items():
        kind = scalar_type(hint)
        if name in columns:
            made[name] = _cast(name, np.asarray(columns[name]), kind)
        else:  # takes no memory, and cannot be written to
            made[name] = np.broadcast_to(np.array(_NEUTRAL.get(name, NONE)).astype(kind), length)
    return table(**made)


def scalar_type(hint: Any) -> Any:
    """``np.int16`` of ``NDArray[np.int16]``: its argument in later numpy, ``ndarray[Any, dtype[np.int16]]`` before."""
    while parts := get_args(hint):
        hint = parts[-1]
    return hint


_NEUTRAL = {
    "graph": 0, "inferred": 0, "bytes": 0, "place": 0, "kind": 0, "duration_ns": 0, "launched_ns": NO_TIME,
    "astray": 0, "work": 0,
}  # fmt: skip


def _cast(name: str, column: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """The column as another type; numpy alone would let a number that does not fit come out as another one."""
    cast = column.astype(dtype, copy=False)
    lost = np.flatnonzero(cast != column)
    if len(lost):
        raise OverflowError(f"{name} {column[lost[0]]} does not fit into {8 * cast.itemsize} bits")
    return cast


def call_keys(process: NDArray[Any], correlation: NDArray[np.int64]) -> NDArray[np.int64]:
    """One number for process and correlation; CUPTI's correlation ids have 32 bits."""
    return (process.astype(np.int64) << 40) + correlation


def combinations(*columns: NDArray[Any]) -> tuple[list[list[int]], NDArray[np.int64]]:
    """The combinations of values that rows have, in order, and which of them each row has.

    Args:
        columns: Of one length, values from -1 up; shape (n,).
    """
    sizes = [int(column.max(initial=NONE)) + 2 for column in columns]
    packed = np.zeros(len(columns[0]), np.int64)
    for column, size in zip(columns, sizes, strict=True):  # in place: there may be millions of rows
        packed *= size
        packed += column
        packed += 1
    distinct = np.unique(packed)
    return (np.stack(np.unravel_index(distinct, sizes), axis=1) - 1).tolist(), np.searchsorted(distinct, packed)
