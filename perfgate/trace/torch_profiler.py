"""Reads a Chrome trace of PyTorch's profiler (Kineto): GPU kernels, or on the CPU operators that represent kernels.

On the CPU the outermost operators count: what they call is inside their time, so that nothing is counted twice. Only
wrappers around compiled code give way to what they call.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from perfgate.errors import RecordError
from perfgate.models import Note
from perfgate.trace.assembly import build, named
from perfgate.trace.families import RoleRule
from perfgate.trace.kernel_table import (
    CALL_KINDS,
    COPY_KINDS,
    NO_TIME,
    NONE,
    Calls,
    Events,
    Kernels,
    Rows,
    Steps,
    Trace,
    call_kind,
    filled,
)
from perfgate.trace.limits import MAX_JSON_BYTES, MAX_TIME_NS
from perfgate.trace.steps import Range

CALLS = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "xpu_runtime", "xpu_driver")
"""Categories of calls on the host; Kineto files those of HIP under ``cuda_runtime`` too; ``xpu_`` is SYCL's."""

WORK = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of work on the device."""

_BESIDE = ("gpu_user_annotation", "cuda_sync", "cuda_event", "overhead", *CALLS)
"""Categories that may name a device and a stream and are not its work."""

_WRAPPERS = re.compile(r"Torch-Compiled Region|CompiledFxGraph|CompiledFunction|^## Call|^(PyTorch )?Profiler")
_COPY = re.compile(r"Memcpy (\w)to(\w)(?: \((\w+) -> (\w+)\))?")
_DIRECTIONS = {"HD": "h2d", "DH": "d2h", "DD": "d2d", "PP": "peer"}
_TIME = re.compile(r"-?\d{1,19}(\.\d{1,12})?", re.ASCII)
_WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)
_POINTER = re.compile(r"0x[0-9a-fA-F]{1,15}")
_SIZES = (0, 1 << 31)


def read_torch(file: Path, roles: Sequence[RoleRule] = ()) -> Trace:
    """The kernel table of a Chrome trace.

    Args:
        file: What ``torch.profiler`` exported, unpacked.
        roles: The scenario's own roles.

    Raises:
        RecordError: The file is not JSON, cut short, not a Chrome trace, of several processes, holds no kernel and no
            operator, or holds work of a device but none of its kernels.
        UsageError: A role's pattern is not a regular expression.
    """
    return read_recording(read_kineto(load_events(file), file), file, roles)


@dataclass(frozen=True)
class Recording:
    """What a file of events says, whichever tool wrote it.

    Args:
        events: Its events, in the categories that PyTorch's profiler uses.
        source: The tool.
        devices: Names of the devices, by number.
        cautions: What the reader should know.
    """

    events: list[Event]
    source: str
    devices: dict[int, str]
    cautions: tuple[Note, ...] = ()


def read_kineto(content: dict[str, Any], file: Path) -> Recording:
    """The events of PyTorch's profiler.

    Raises:
        RecordError: One has no name, or no time that a trace can have.
    """
    return Recording(complete_events(content, file), f"torch profiler{_version(content)}", device_names(content))


def read_recording(recording: Recording, file: Path, roles: Sequence[RoleRule] = ()) -> Trace:
    """The kernel table of a recording; the errors of :func:`read_torch`."""
    try:
        recorded, ranges = _Reader(recording, file).read(roles)
    except (ValueError, OverflowError) as error:
        raise RecordError(f"holds an event with a wrong number: {error}", where=str(file)) from error
    return build(recorded, ranges)


def load_events(file: Path) -> dict[str, Any]:
    """A Chrome trace as it is, its times as exact decimals, its events a list of mappings.

    Raises:
        RecordError: The file is too large, no JSON, cut short or no Chrome trace.
    """
    if file.stat().st_size > MAX_JSON_BYTES:
        text = f"is larger than {MAX_JSON_BYTES} bytes"
        raise RecordError(text, where=str(file), remedy="Trace fewer iterations.")
    try:
        with file.open(encoding="utf-8") as stream:
            # Times are microseconds since boot or 1970: as floats they would lose up to 256 ns.
            content = json.load(stream, parse_float=Decimal)
    except ArithmeticError as error:
        raise RecordError("holds a number beyond all bounds", where=str(file)) from error
    except (ValueError, RecursionError) as error:
        text = f"incomplete or invalid JSON: {error}"
        raise RecordError(text, where=str(file), remedy="Was the profiler stopped before the process ended?") from error
    head: dict[str, Any] = content if isinstance(content, dict) else {"traceEvents": content}
    events = head.get("traceEvents")
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise RecordError("is JSON, but no Chrome trace: it has no list of traceEvents", where=str(file))
    return head


@dataclass(frozen=True, slots=True)
class Event:
    """A complete event (``"ph": "X"``).

    Args:
        number: Its place among the file's events.
        category: Its category in lower case.
        name: Its name.
        start_ns: When it began.
        end_ns: When it ended.
        thread: Its thread; a device's event has its stream here.
        pid: Its process; a device's event has the device here.
        detail: Its arguments, whatever they are.
    """

    number: int
    category: str
    name: str
    start_ns: int
    end_ns: int
    thread: int | str
    pid: int | None
    detail: dict[str, Any]

    def whole(self, key: str) -> int | None:
        """An argument that is a whole number, also where it is written as text or as a pointer (ROCm's streams).

        Raises:
            ValueError: It is anything else.
        """
        value = self.detail.get(key)
        if isinstance(value, str) and _POINTER.fullmatch(value):
            return int(value, 16)
        if isinstance(value, str) and _WHOLE.fullmatch(value):
            return int(value)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise ValueError(f"event {self.number}: {key} is not a whole number: {_cut(value)}")

    def shape(self) -> tuple[int, ...]:
        """Grid and block of a kernel; zeros for an operator.

        Raises:
            ValueError: A size is none that a launch can have.
        """
        grid, block = self.detail.get("grid"), self.detail.get("block")
        if not (isinstance(grid, list) and isinstance(block, list) and len(grid) == len(block) == 3):  # noqa: PLR2004 (x, y, z)
            return (0,) * 6
        sizes = (*grid, *block)
        if not all(isinstance(size, int) and _SIZES[0] <= size <= _SIZES[1] for size in sizes):
            raise ValueError(f"event {self.number}: grid or block is not a launch shape: {_cut(sizes)}")
        return tuple(int(size) for size in sizes)


def complete_events(content: dict[str, Any], file: Path) -> list[Event]:
    """The complete events of what :func:`load_events` gave.

    Raises:
        RecordError: One has no name, or no time that a trace can have.
    """
    try:
        rows = enumerate(content["traceEvents"])
        return [_event(number, row) for number, row in rows if row.get("ph") == "X"]
    except ValueError as error:
        raise RecordError(f"holds a damaged event: {error}", where=str(file)) from error


def _event(number: int, row: dict[str, Any]) -> Event:
    name, start, duration = row.get("name"), microseconds(row.get("ts")), microseconds(row.get("dur", 0))
    if not isinstance(name, str) or start is None or duration is None:
        key = "name" if not isinstance(name, str) else "ts" if start is None else "dur"
        raise ValueError(f"event {number}: {key} is {_cut(row.get(key))}")
    thread, pid, detail = row.get("tid"), row.get("pid"), row.get("args")
    return Event(
        number,
        str(row.get("cat", "")).lower(),
        name,
        round(start * 1000),
        round((start + duration) * 1000),
        thread if isinstance(thread, int | str) and not isinstance(thread, bool) else NONE,
        pid if isinstance(pid, int) and not isinstance(pid, bool) else None,
        detail if isinstance(detail, dict) else {},
    )


def microseconds(value: Any) -> int | Decimal | None:
    """A time or duration, also where it is written as text; ``None`` where it is none that a trace can have."""
    if isinstance(value, str) and _TIME.fullmatch(value):
        value = Decimal(value)
    number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    return value if number and abs(value) < MAX_TIME_NS // 1000 else None


def _cut(value: Any) -> str:
    """A value for a message, whatever it is."""
    text = f"{value}" if isinstance(value, int | float | Decimal) and not isinstance(value, bool) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


_SHOWN = 60


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
        operators, ranges = self._of("cpu_op", "operator"), self._of("user_annotation")
        pids = sorted({event.pid for event in (*self.calls, *operators, *ranges) if event.pid is not None})
        if len(pids) > 1:
            raise RecordError(f"holds several processes: {pids}", where=self.file, remedy="Give one trace a rank.")
        cautions = self._check_devices()
        on_gpu = self._of("kernel")
        launches = on_gpu or outermost(operators)
        distinct = sorted({event.name for event in launches})
        number = {name: index for index, name in enumerate(distinct)}
        shapes = sorted({event.shape() for event in launches})
        row_of = {shape: row for row, shape in enumerate(shapes)}
        columns: dict[str, list[Any]] = {
            "name": [number[event.name] for event in launches],
            "shape": [row_of[event.shape()] for event in launches],
            "graph": [bool(event.detail.get("graph node id")) for event in launches],
        }
        if on_gpu:
            columns["launched_ns"] = [NO_TIME if (at := e.whole("launched_ns")) is None else at for e in launches]
        else:  # an operator is launched where it runs, and its thread represents a stream
            columns["launched_ns"] = [event.start_ns for event in launches]
            columns["stream"] = [_whole(event.thread) for event in launches]
        copies = self._of("gpu_memcpy")
        trace = Trace(
            source=self.recording.source,
            where=self.file,
            processes=tuple(pids) or (0,),
            devices=self.recording.devices,
            names=named(tuple(distinct), roles, self.file),
            shapes=np.array(shapes, np.int64).reshape(-1, 6),
            kernels=_table(Kernels, launches, columns),
            steps=filled(Steps),
            calls=_table(Calls, self.calls, self._of_calls()),
            copies=_table(Events, copies, {"kind": [_copy_kind(event) for event in copies]}),
            memsets=_table(Events, self._of("gpu_memset"), {}),
            overhead=_table(Events, self._of("overhead"), {}),
            cautions=(*self.recording.cautions, *cautions),
        )
        return trace, [Range(event.name, event.start_ns, event.end_ns, 0, hash(event.thread)) for event in ranges]

    def _of_calls(self) -> dict[str, list[Any]]:
        """What only calls have: what they are for, and their thread, by a number of ours because some are words."""
        threads = {thread: number for number, thread in enumerate(dict.fromkeys(call.thread for call in self.calls))}
        return {
            "kind": [CALL_KINDS.index(call_kind(call.name)) for call in self.calls],
            "thread": [threads[call.thread] for call in self.calls],
        }

    def _check_devices(self) -> tuple[Note, ...]:
        """Operators represent kernels only where no device worked; other work of a device is never left out unsaid."""
        unknown = Counter(
            category
            for category, events in self.by_category.items()
            if category not in (*WORK, *_BESIDE)
            for event in events
            if {"device", "stream"} <= event.detail.keys()
        )
        words = ", ".join(f"{_cut(category)} ({count} events)" for category, count in unknown.most_common(3))
        if "kernel" in self.by_category:
            text = f"work of a device is in categories that are not known here and left out: {words}"
            return (Note(code="device-events-unknown", text=text),) if unknown else ()
        launching = next((e.name for e in self.calls if call_kind(e.name) in ("launch", "graph-launch")), "")
        if unknown or launching or self._of(*WORK):
            called = f"calls that launch kernels ({_cut(launching)})" if launching else "copies of a device"
            text = f"holds {f'work of a device in {words}' if unknown else called}, but no event of category kernel"
            remedy = "Trace again without another profiler on the GPU; report a category of a new PyTorch."
            raise RecordError(text, where=self.file, remedy=remedy)
        return ()


def _version(head: dict[str, Any]) -> str:
    for key, word in (("cuda_runtime_version", "CUDA"), ("hip_runtime_version", "HIP")):
        version = head.get(key)
        if isinstance(version, int | str) and version:
            return f" on {word} runtime {str(version)[:_SHOWN]}"
    return ""


def device_names(head: dict[str, Any]) -> dict[int, str]:
    """Names of the devices that a trace's head describes."""
    given = head.get("deviceProperties")
    described = [device for device in given if isinstance(device, dict)] if isinstance(given, list) else []
    return {device["id"]: str(device.get("name", "")) for device in described if isinstance(device.get("id"), int)}


def _table(table: type[Rows], events: Sequence[Event], own: dict[str, list[Any]]) -> Rows:
    """Columns that every sort of event has, and its own.

    Raises:
        ValueError: An argument is not the number that it should be.
        OverflowError: It is larger than any.
    """
    known = {field.name for field in fields(table)}
    read = {name: argument for name, argument in _ARGUMENTS.items() if name in known}
    columns = {name: [argument(event) for event in events] for name, argument in read.items()} | own
    return filled(table, **{name: np.array(column, np.int64) for name, column in columns.items()})


def _whole(value: int | str | None) -> int:
    return value if isinstance(value, int) else NONE


def _owner(event: Event, key: str, beside: int | str | None) -> int:
    """The device or stream of its work; some releases for ROCm give it as the process or thread alone."""
    given = event.whole(key)
    return given if given is not None else _whole(beside) if event.category in WORK else NONE


_ARGUMENTS: dict[str, Callable[[Event], int]] = {
    "start_ns": lambda event: event.start_ns,
    "duration_ns": lambda event: event.end_ns - event.start_ns,
    "process": lambda _: 0,
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
        if event.start_ns >= until.get(event.thread, event.start_ns) and not _WRAPPERS.search(event.name):
            outer.append(event)
            until[event.thread] = event.end_ns
    return outer


def _copy_kind(event: Event) -> int:
    match = _COPY.match(event.name)
    kind = _DIRECTIONS.get(f"{match[1]}{match[2]}", "other") if match else "other"
    if match and "Pageable" in (match[3], match[4]) and kind in ("h2d", "d2h"):
        kind += "-pageable"
    return COPY_KINDS.index(kind)
