"""Reads a Chrome trace of PyTorch's profiler (Kineto): GPU kernels, or on the CPU operators that stand for kernels.

On the CPU the outermost operators count: what they call lies inside their time, so that nothing is counted twice. Only
wrappers around compiled code give way to what they call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from perfgate.capture.trace import Recording, build
from perfgate.errors import RecordError
from perfgate.kernels import (
    CALL_KINDS,
    COPY_KINDS,
    NONE,
    Calls,
    Columns,
    Events,
    Kernels,
    Trace,
    call_kind,
    filled,
)
from perfgate.roles import RoleRule
from perfgate.steps import Range

MAX_BYTES = 2 << 30
"""The largest trace that is read; JSON takes about ten times its size in memory."""

_WRAPPERS = re.compile(r"Torch-Compiled Region|CompiledFxGraph|CompiledFunction|^## Call|^(PyTorch )?Profiler")
_COPY = re.compile(r"Memcpy (\w)to(\w)(?: \((\w+) -> (\w+)\))?")
_DIRECTIONS = {"HD": "h2d", "DH": "d2h", "DD": "d2d", "PP": "peer"}


def read_torch(file: Path, roles: Sequence[RoleRule] = ()) -> Trace:
    """The kernel table of a Chrome trace.

    Args:
        file: What ``torch.profiler`` exported, unpacked.
        roles: The scenario's own roles.

    Raises:
        RecordError: The file is no JSON, cut short, no Chrome trace, of several processes, or holds no kernel and no
            operator.
        UsageError: A role's pattern is no regular expression.
    """
    content = load_events(file)
    return build(_Reader(_complete(content["traceEvents"], file), content, file).recording(), roles)


def load_events(file: Path) -> dict[str, Any]:
    """A Chrome trace as it stands, its times as exact decimals, its events a list of mappings.

    Raises:
        RecordError: The file is too large, no JSON, cut short or no Chrome trace.
    """
    if file.stat().st_size > MAX_BYTES:
        raise RecordError(f"is larger than {MAX_BYTES >> 30} GiB", where=str(file), remedy="Trace fewer iterations.")
    try:
        with file.open(encoding="utf-8") as stream:
            # Times are microseconds since boot or 1970: as floats they would lose up to 256 ns.
            content = json.load(stream, parse_float=Decimal)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        text = f"is no whole JSON document: {error}"
        raise RecordError(text, where=str(file), remedy="Was the profiler stopped before the process ended?") from error
    head: dict[str, Any] = content if isinstance(content, dict) else {"traceEvents": content}
    events = head.get("traceEvents")
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise RecordError("is JSON, but no Chrome trace: it has no list of traceEvents", where=str(file))
    return head


@dataclass(frozen=True)
class _Event:
    """A complete event ("ph": "X")."""

    category: str
    name: str
    start_ns: int
    end_ns: int
    thread: Any
    pid: Any
    detail: dict[str, Any]


def _complete(rows: Sequence[dict[str, Any]], file: Path) -> list[_Event]:
    try:
        return [
            _Event(
                str(row.get("cat", "")),
                str(row["name"]),
                round(row["ts"] * 1000),
                round((row["ts"] + row.get("dur", 0)) * 1000),
                row.get("tid"),
                row.get("pid"),
                row.get("args") or {},
            )
            for row in rows
            if row.get("ph") == "X"
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"holds an event that is none: {error!r}", where=str(file)) from error


class _Reader:
    """Turns the events of one trace into columns."""

    def __init__(self, events: list[_Event], head: dict[str, Any], file: Path) -> None:
        self.file = str(file)
        self.head = head
        self.by_category: dict[str, list[_Event]] = {}
        for event in events:
            self.by_category.setdefault(event.category.lower(), []).append(event)
        self.calls = self._of("cuda_runtime", "cuda_driver", "hip_runtime")

    def _of(self, *categories: str) -> list[_Event]:
        return [event for category in categories for event in self.by_category.get(category, ())]

    def recording(self) -> Recording:
        """Everything that the kernel table is made of."""
        operators = self._of("cpu_op", "operator")
        ranges = self._of("user_annotation")
        pids = sorted({event.pid for event in (*self.calls, *operators, *ranges) if isinstance(event.pid, int)})
        if len(pids) > 1:
            raise RecordError(f"holds several processes: {pids}", where=self.file, remedy="Give one trace a rank.")
        on_gpu = self._of("kernel")
        launches = on_gpu or outermost(operators)
        distinct = sorted({event.name for event in launches})
        number = {name: place for place, name in enumerate(distinct)}
        shapes = sorted({_shape(event) for event in launches})
        place = {shape: row for row, shape in enumerate(shapes)}
        columns: dict[str, list[Any]] = {
            "name": [number[event.name] for event in launches],
            "shape": [place[_shape(event)] for event in launches],
            "graph": [bool(event.detail.get("graph node id")) for event in launches],
        }
        if not on_gpu:  # an operator is launched where it runs, and its thread stands for a stream
            columns["launched_ns"] = [event.start_ns for event in launches]
            columns["stream"] = [event.thread if isinstance(event.thread, int) else NONE for event in launches]
        copies = self._of("gpu_memcpy")
        return Recording(
            source="torch profiler" + (f" on {version}" if (version := self._cuda()) else ""),
            where=self.file,
            processes=tuple(pids) or (0,),
            devices={d["id"]: str(d.get("name", "")) for d in self.head.get("deviceProperties") or () if "id" in d},
            names=tuple(distinct),
            shapes=np.array(shapes, np.int64).reshape(-1, 6),
            kernels=self._table(Kernels, launches, columns),
            calls=self._table(Calls, self.calls, {"kind": [CALL_KINDS.index(call_kind(e.name)) for e in self.calls]}),
            ranges=[Range(one.name, one.start_ns, one.end_ns, 0, hash(one.thread)) for one in ranges],
            copies=self._table(Events, copies, {"kind": [_copy_kind(event) for event in copies]}),
            memsets=self._table(Events, self._of("gpu_memset"), {}),
            overhead=self._table(Events, self._of("overhead"), {}),
        )

    def _table(self, table: type[Columns], events: Sequence[_Event], own: dict[str, list[Any]]) -> Any:
        """Columns that every sort of event has, and its own."""
        try:
            made = {
                "start_ns": np.array([event.start_ns for event in events], np.int64),
                "duration_ns": np.array([event.end_ns - event.start_ns for event in events], np.int64),
                "correlation": np.array([event.detail.get("correlation", NONE) for event in events], np.int64),
                "device": np.array([event.detail.get("device", NONE) for event in events], np.int64),
                "stream": np.array([event.detail.get("stream", NONE) for event in events], np.int64),
                "bytes": np.array([event.detail.get("bytes", 0) for event in events], np.int64),
                "process": np.zeros(len(events), np.int64),
            }
            made |= {name: np.array(column, np.int64) for name, column in own.items()}
        except (TypeError, ValueError, OverflowError) as error:
            raise RecordError(f"holds an event with a wrong number: {error}", where=self.file) from error
        return filled(table, len(events), **made)

    def _cuda(self) -> str:
        version = self.head.get("cuda_runtime_version")
        return f"CUDA runtime {version}" if version else ""


def outermost(operators: Iterable[_Event]) -> list[_Event]:
    """The operators that lie in no other one of their thread; wrappers do not count."""
    found: list[_Event] = []
    until: dict[Any, int] = {}
    for event in sorted(operators, key=lambda one: (one.start_ns, -one.end_ns)):
        if event.start_ns >= until.get(event.thread, event.start_ns) and not _WRAPPERS.search(event.name):
            found.append(event)
            until[event.thread] = event.end_ns
    return found


def _shape(event: _Event) -> tuple[int, ...]:
    """Grid and block of a kernel; zeros for an operator."""
    grid, block = event.detail.get("grid"), event.detail.get("block")
    if isinstance(grid, list) and isinstance(block, list) and len(grid) == len(block) == 3:  # noqa: PLR2004 (x, y, z)
        return tuple(int(size) for size in (*grid, *block))
    return (0,) * 6


def _copy_kind(event: _Event) -> int:
    match = _COPY.match(event.name)
    kind = _DIRECTIONS.get(f"{match[1]}{match[2]}", "other") if match else "other"
    if match and "Pageable" in (match[3], match[4]) and kind in ("h2d", "d2h"):
        kind += "-pageable"
    return COPY_KINDS.index(kind)
