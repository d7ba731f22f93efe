"""Reads a Chrome trace of PyTorch's profiler (Kineto): GPU kernels, or on the CPU operators that represent kernels.

On the CPU the outermost operators count: what they call is inside their time, so that nothing is counted twice. Only
wrappers around compiled code give way to what they call.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from perfgate.errors import RecordError
from perfgate.models import Note
from perfgate.scenario.kernel_names import COPY_KINDS, RoleRule
from perfgate.trace.assembly import build, named
from perfgate.trace.chrome_events import SHOWN, Event, base_of, complete_events, cut, load_events
from perfgate.trace.kernel_table import (
    CALL_KINDS,
    LAUNCHES,
    NO_TIME,
    NONE,
    Calls,
    Events,
    Kernels,
    Rows,
    Steps,
    Trace,
    call_kind,
    call_work,
    filled,
)
from perfgate.trace.steps import PROFILER_STEP, Range
from perfgate.trace.trace_ranks import Processes
from perfgate.units import plural

CALLS = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "xpu_runtime", "xpu_driver")
"""Categories of calls on the host; Kineto files those of HIP under ``cuda_runtime`` too; ``xpu_`` is SYCL's."""

WORK = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of work on the device."""

_BESIDE = ("gpu_user_annotation", "cuda_sync", "cuda_event", "overhead", *CALLS)
"""Categories that may name a device and a stream and are not its work."""

_OTHER_DEVICES = {"mtia_ccp_events": "Meta's MTIA"}
"""Categories of work on devices that are not read here, and whose events name no stream (Kineto's ``ActivityType``)."""

_WRAPPERS = re.compile(r"Torch-Compiled Region|CompiledFxGraph|CompiledFunction|^## Call|^(PyTorch )?Profiler")
_COPY = re.compile(r"Memcpy (\w)to(\w)(?: \((\w+) -> (\w+)\))?")
_DIRECTIONS = {"HD": "h2d", "DH": "d2h", "DD": "d2d", "PP": "peer"}


def read_torch(file: Path, roles: Sequence[RoleRule] = ()) -> Trace:
    """The kernel table of a Chrome trace.

    Args:
        file: What ``torch.profiler`` exported, unpacked.
        roles: The scenario's own roles.

    Raises:
        RecordError: The file is not JSON, cut short, not a Chrome trace, holds no kernel and no operator, or holds
            work of a device but none of its kernels, or not which process launched it.
        UsageError: A role's pattern is not a regular expression.
    """
    return read_recording(read_kineto(load_events(file), file), file, roles)


@dataclass(frozen=True)
class Recording:
    """What a file of events says, whichever tool wrote it.

    Args:
        events: Its events, in the categories that PyTorch's profiler uses.
        devices: Names of the devices, by number.
        cautions: What the reader should know.
        base_ns: As in :class:`perfgate.trace.kernel_table.Trace`.
    """

    events: list[Event]
    source: str
    devices: dict[int, str]
    cautions: tuple[Note, ...] = ()
    base_ns: int | None = None


def read_kineto(content: dict[str, Any], file: Path) -> Recording:
    """The events of PyTorch's profiler.

    Raises:
        RecordError: One has no name, or no time that a trace can have.
    """
    source, base_ns = f"torch profiler{_version(content)}", base_of(content, file)
    return Recording(complete_events(content, file), source, device_names(content), base_ns=base_ns)


def read_recording(recording: Recording, file: Path, roles: Sequence[RoleRule] = ()) -> Trace:
    """The kernel table of a recording; the errors of :func:`read_torch`."""
    try:
        recorded, ranges = _Reader(recording, file).read(roles)
    except (ValueError, OverflowError) as error:
        raise RecordError(f"holds an event with a wrong number: {error}", where=str(file)) from error
    return build(recorded, ranges)


class _Reader:
    """Turns the events of one trace into columns."""

    def __init__(self, recording: Recording, file: Path) -> None:
        self.file = str(file)
        self.recording = recording
        self.by_category: dict[str, list[Event]] = {}
        for event in recording.events:
            self.by_category.setdefault(event.category, []).append(event)
        self.calls = self._of(*CALLS)

    def _of(self, *categories: str) -> list[Event]:
        return [event for category in categories for event in self.by_category.get(category, ())]

    def read(self, roles: Sequence[RoleRule]) -> tuple[Trace, list[Range]]:
        """What the kernel table is made of, see :func:`perfgate.trace.assembly.build`."""
        operators = self._of("cpu_op", "operator")
        ranges = [*self._of("user_annotation"), *(e for e in operators if PROFILER_STEP.fullmatch(e.name))]
        cautions = self._check_devices()
        on_gpu = self._of("kernel")
        launches = on_gpu or outermost(operators)
        processes = Processes((on_gpu and self.calls) or operators or ranges, self._of(*WORK), self.file)
        distinct = sorted({event.name for event in launches})
        number = {name: index for index, name in enumerate(distinct)}
        shapes = sorted({event.shape() for event in launches})
        row_of = {shape: row for row, shape in enumerate(shapes)}
        columns: dict[str, list[Any]] = {
            "name": [number[event.name] for event in launches],
            "shape": [row_of[event.shape()] for event in launches],
            "graph": [bool(event.detail.get("graph node id")) for event in launches],
            "node": [_node(event) for event in launches],
        }
        if on_gpu:
            columns["launched_ns"] = [NO_TIME if (at := e.whole("launched_ns")) is None else at for e in launches]
        else:  # an operator is launched where it runs, and its thread represents a stream
            columns["launched_ns"] = [event.start_ns for event in launches]
            columns["stream"] = [_whole(event.thread) for event in launches]
        copies = self._of("gpu_memcpy")
        # A number of ours, because some threads are words.
        threads = {
            thread: number
            for number, thread in enumerate(dict.fromkeys((e.owner, e.thread) for e in [*self.calls, *ranges]))
        }
        calls: dict[str, list[Any]] = {
            "kind": [CALL_KINDS.index(call_kind(call.name)) for call in self.calls],
            "thread": [threads[call.owner, call.thread] for call in self.calls],
            "work": [call_work(call.name) for call in self.calls],
        }
        trace = Trace(
            source=self.recording.source,
            where=self.file,
            processes=processes.pids,
            devices=self.recording.devices,
            names=named(tuple(distinct), roles, self.file),
            shapes=np.array(shapes, np.int64).reshape(-1, 6),
            kernels=_table(Kernels, launches, processes, columns),
            steps=filled(Steps),
            calls=_table(Calls, self.calls, processes, calls),
            copies=_table(Events, copies, processes, {"kind": [_copy_kind(event) for event in copies]}),
            memsets=_table(Events, self._of("gpu_memset"), processes, {}),
            overhead=_table(Events, self._of("overhead"), processes, {}),
            cautions=(*self.recording.cautions, *cautions),
            base_ns=self.recording.base_ns,
        )
        return trace, [
            Range(
                event.name, event.start_ns, event.end_ns, processes.of_range(event), threads[event.owner, event.thread]
            )
            for event in ranges
        ]

    def _check_devices(self) -> tuple[Note, ...]:
        """Operators represent kernels only where no device worked; other work of a device is never left out unsaid."""
        unknown = Counter(
            category
            for category, events in self.by_category.items()
            if category not in (*WORK, *_BESIDE)
            for event in events
            if category in _OTHER_DEVICES or {"device", "stream"} <= event.detail.keys()
        )
        words = ", ".join(f"{cut(category)} ({plural(count, 'event')})" for category, count in unknown.most_common(3))
        if "kernel" in self.by_category:
            text = f"work of a device is in categories that are not known here and left out: {words}"
            return (Note(code="trace-damaged", text=text),) if unknown else ()
        launching = next((e.name for e in self.calls if call_kind(e.name) in LAUNCHES), "")
        if unknown or launching or self._of(*WORK):
            called = f"calls that launch kernels ({cut(launching)})" if launching else "copies of a device"
            text = f"holds {f'work of a device in {words}' if unknown else called}, but no event of category kernel"
            foreign = next((device for category, device in _OTHER_DEVICES.items() if category in unknown), None)
            remedy = (
                f"Work of {foreign} is not read: trace the program on a GPU with CUDA, ROCm or XPU, on an Ascend NPU "
                "or on the CPU alone."
                if foreign
                else "Trace again without another profiler on the GPU; report a category of a new PyTorch."
            )
            raise RecordError(text, where=self.file, remedy=remedy)
        return ()


def _version(head: dict[str, Any]) -> str:
    for key, word in (("cuda_runtime_version", "CUDA"), ("hip_runtime_version", "HIP")):
        version = head.get(key)
        if type(version) in (int, str) and version:
            return f" on {word} runtime {str(version)[:SHOWN]}"
    return ""


def device_names(head: dict[str, Any]) -> dict[int, str]:
    """Names of the devices that a trace's head describes."""
    given = head.get("deviceProperties")
    described = [device for device in given if isinstance(device, dict)] if isinstance(given, list) else []
    return {device["id"]: str(device.get("name", "")) for device in described if type(device.get("id")) is int}


def _table(table: type[Rows], events: Sequence[Event], processes: Processes, added: dict[str, list[Any]]) -> Rows:
    """Columns that every sort of event has, and its own.

    Raises:
        ValueError: An argument is not the number that it should be.
        OverflowError: It is larger than any.
    """
    names = {field.name for field in fields(table)}
    read = {name: argument for name, argument in _ARGUMENTS.items() if name in names}
    columns = {name: [argument(event) for event in events] for name, argument in read.items()} | added
    columns["process"] = [(processes.of_work if e.category in WORK else processes.of_host)(e) for e in events]
    return filled(table, **{name: np.array(column, np.int64) for name, column in columns.items()})


def _whole(value: int | str | None) -> int:
    return value if isinstance(value, int) else NONE


def _node(event: Event) -> int:
    """The graph of a kernel above 32 bits, its node below; CUPTI's ids of nodes hold their graph in some releases."""
    graph, node = event.whole("graph id"), event.whole("graph node id")
    if not node:
        return NONE
    return node & _NODE_BITS if graph is None else (graph & 0x7FFFFFFF) << 32 | node & 0xFFFFFFFF


_NODE_BITS = (1 << 63) - 1


def _owner(event: Event, key: str, beside: int | str | None) -> int:
    """The device or stream of its work; some releases for ROCm give it as the process or thread alone."""
    given = event.whole(key)
    return given if given is not None else _whole(beside) if event.category in WORK else NONE


_ARGUMENTS: dict[str, Callable[[Event], int]] = {
    "start_ns": lambda event: event.start_ns,
    "duration_ns": lambda event: event.end_ns - event.start_ns,
    "correlation": lambda event: NONE if (given := event.whole("correlation")) is None else given,
    "device": lambda event: _owner(event, "device", event.pid),
    "stream": lambda event: _owner(event, "stream", event.thread),
    "bytes": lambda event: event.whole("bytes") or 0,
}


def outermost(operators: Iterable[Event]) -> list[Event]:
    """The operators that no other one of their thread encloses; wrappers do not count."""
    outer: list[Event] = []
    until: dict[Any, int] = {}
    for event in sorted(operators, key=lambda event: (event.start_ns, -event.end_ns)):
        thread = event.owner, event.thread
        if event.start_ns >= until.get(thread, event.start_ns) and not _WRAPPERS.search(event.name):
            outer.append(event)
            until[thread] = event.end_ns
    return outer


def _copy_kind(event: Event) -> int:
    match = _COPY.match(event.name)
    kind = _DIRECTIONS.get(f"{match[1]}{match[2]}", "other") if match else "other"
    if match and "Pageable" in (match[3], match[4]) and kind in ("h2d", "d2h"):
        kind += "-pageable"
    return COPY_KINDS.index(kind)
