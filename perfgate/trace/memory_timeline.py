"""What was allocated when: the events of PyTorch's allocator, of CUDA's own calls, or of PyTorch's memory timeline.

Three files hold them. A Chrome trace of PyTorch's profiler with ``profile_memory=True`` has an instant event for each
allocation and release of its allocator, with what is allocated and reserved after it. An export of nsys with
``--cuda-memory-usage=true`` has those of CUDA itself. ``export_memory_timeline("x.raw.json.gz")`` writes each change
as time, action, bytes and category of tensor (https://github.com/pytorch/pytorch/pull/105094).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfgate.errors import RecordError
from perfgate.models import Note
from perfgate.trace.chrome_events import base_of, load_events, load_json, microseconds
from perfgate.trace.kernel_table import Columns
from perfgate.trace.limits import MAX_BYTES_MOVED, MAX_TIME_NS
from perfgate.trace.nsys_export import MAGIC, Export

Ints = NDArray[np.int64]

CATEGORIES = (
    "parameter", "optimizer state", "input", "temporary", "activation", "gradient", "autograd detail", "unknown",
)  # fmt: skip
"""Of tensors, in the order of PyTorch's memory timeline (torch/profiler/_memory_profiler.py)."""
_DEVICE_TYPES = {0: "cpu", 1: "cuda", 12: "xpu", 20: "hip"}
"""c10/core/DeviceType.h."""
_USAGE = "CUDA_GPU_MEMORY_USAGE_EVENTS"
_UNKNOWN = -1


@dataclass(frozen=True)
class Holding(Columns):
    """What one holder holds, an entry a change, in order of time.

    Args:
        change_bytes: By how much; negative for a release.
        level_bytes: What is held after it.
        reserved_bytes: What the allocator has from the device after it; -1 where that is not recorded.
    """

    time_ns: Ints
    change_bytes: Ints
    level_bytes: Ints
    reserved_bytes: Ints

    def at(self, time_ns: int) -> int:
        """What is held at a time; before the first change what was held until then."""
        row = int(np.searchsorted(self.time_ns, time_ns, side="right"))
        return int(self.level_bytes[row - 1]) if row else int(self.level_bytes[0] - self.change_bytes[0])

    def peak(self, begin_ns: int, end_ns: int) -> int:
        """The most that is held between two times, the beginning included."""
        first, beyond = np.searchsorted(self.time_ns, (begin_ns, end_ns))
        return max(self.at(begin_ns), int(self.level_bytes[first:beyond].max(initial=0)))


@dataclass(frozen=True)
class MemoryTimeline:
    """What a file says about memory.

    Args:
        source: What recorded it.
        holdings: By holder: a device, or a category of tensors; those of a device or of all categories add up.
        cautions: What the reader should know.
        traced: Whether the file is a trace too, with steps.
    """

    source: str
    holdings: dict[str, Holding]
    cautions: tuple[Note, ...] = ()
    traced: bool = True


def read_memory(file: Path) -> MemoryTimeline:
    """The memory events of a file, unpacked; none where it has none.

    Raises:
        RecordError: It is damaged, or not one of the three.
    """
    with file.open("rb") as stream:
        head = stream.read(1024).lstrip()
    if head.startswith(MAGIC):
        return _of_cuda(file)
    if head[:1] == b"[" and head[1:].lstrip()[:1] == b"[":
        return _of_categories(file)
    return _of_allocator(file)


def _holding(times: Sequence[int], changes: Sequence[int], levels: Ints | None, reserved: Ints | None) -> Holding:
    """In order of time; what is not recorded is added up from nothing."""
    time_ns, change = np.array(times, np.int64), np.array(changes, np.int64)
    order = np.argsort(time_ns, kind="stable")
    change = change[order]
    return Holding(
        time_ns[order],
        change,
        np.cumsum(change) if levels is None else levels[order],
        np.full(len(order), _UNKNOWN) if reserved is None else reserved[order],
    )


def _of_allocator(file: Path) -> MemoryTimeline:
    rows: dict[str, list[tuple[int, int, int, int]]] = {}
    content = load_events(file)
    base_ns = base_of(content, file) or 0
    for number, event in enumerate(content["traceEvents"]):
        if event.get("name") != "[memory]":
            continue
        detail = event.get("args")
        detail = detail if isinstance(detail, dict) else {}
        try:
            kind, device = _whole(detail, "Device Type"), _whole(detail, "Device Id")
            change, level, reserved = (_whole(detail, key) for key in ("Bytes", "Total Allocated", "Total Reserved"))
            time_ns = base_ns + _time_ns(event.get("ts"))
        except ValueError as error:
            raise RecordError(f"holds a damaged memory event {number}: {error}", where=str(file)) from error
        name = _DEVICE_TYPES.get(kind, f"device type {kind}")
        rows.setdefault(name if device < 0 else f"{name}:{device}", []).append((time_ns, change, level, reserved))
    holdings = {}
    for name, events in sorted(rows.items()):
        columns = np.array(events, np.int64).T
        holdings[name] = _holding(columns[0].tolist(), columns[1].tolist(), columns[2], columns[3])
    return MemoryTimeline("torch profiler", holdings)


def _whole(detail: dict[str, Any], key: str) -> int:
    value = detail.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > MAX_BYTES_MOVED:
        raise ValueError(f"{key} is {str(value)[:60]!r}, expected a whole number")
    return value


def _time_ns(value: Any) -> int:
    time = microseconds(value)
    if time is None:
        raise ValueError(f"ts is {str(value)[:60]!r}")
    return round(time * 1000)


def _of_cuda(file: Path) -> MemoryTimeline:
    with Export(file) as export:
        time_ns, device, process, change = export.integers(
            _USAGE,
            ("start", f"CASE WHEN memKind IN (0, 1) THEN {_UNKNOWN} ELSE deviceId END",
             "COALESCE(globalPid, 0) >> 24 & 0xFFFFFF", "CASE memoryOperationType WHEN 1 THEN -bytes ELSE bytes END"),
        )  # fmt: skip
        holdings = {}
        pairs = sorted({*zip(process.tolist(), device.tolist(), strict=True)})
        several = len({pid for pid, _ in pairs}) > 1
        for pid, number in pairs:
            rows = (process == pid) & (device == number)
            where = "host" if number == _UNKNOWN else f"cuda:{number}"
            name = f"{where} of process {pid}" if several else where
            holdings[name] = _holding(time_ns[rows].tolist(), change[rows].tolist(), None, None)
        text = "levels count from the beginning of the capture: what was allocated before it is not in them"
        notes = (Note(code="not-recorded", text=text),) if holdings else ()
        return MemoryTimeline(export.version, holdings, notes)


def _of_categories(file: Path) -> MemoryTimeline:
    rows = load_json(file)
    if not all(_is_change(row) for row in rows):
        text = "is not PyTorch's memory timeline: expected rows of time, action, bytes and category"
        raise RecordError(text, where=str(file), remedy='Write it with prof.export_memory_timeline("x.raw.json.gz").')
    begin_ns = min((row[0] for row in rows if row[0] >= 0), default=0)
    holdings = {}
    for number, name in enumerate(CATEGORIES):
        entries = [row for row in rows if row[3] == number]
        before = sum(row[2] for row in entries if row[0] < 0)  # a time of -1 is of what there was already
        changes = [row for row in entries if row[0] >= 0] or [[begin_ns, 0, 0, number]]
        if entries:
            holding = _holding([row[0] for row in changes], [row[2] for row in changes], None, None)
            holdings[name] = dataclasses.replace(holding, level_bytes=holding.level_bytes + before)
    return MemoryTimeline("torch memory timeline", holdings, traced=False)


def _is_change(row: Any) -> bool:
    whole = isinstance(row, list) and len(row) == len(("time", "action", "bytes", "category"))
    if not whole or not all(isinstance(value, int) and not isinstance(value, bool) for value in row):
        return False
    time_ns, _, change, category = row
    return bool(-1 <= time_ns <= MAX_TIME_NS and abs(change) <= MAX_BYTES_MOVED and 0 <= category < len(CATEGORIES))
