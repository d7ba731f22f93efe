"""Reads an SQLite export of Nsight Systems with SQL of our own.

Tables exist only where they have rows and columns vary with the version (2022.4 to 2026.2 are known), so both are
looked up before they are read. Row order means nothing: what is read is sorted by start. Rows of different tables
belong together by process and correlation id.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfgate.errors import RecordError
from perfgate.models import Note
from perfgate.scenario.kernel_names import COPY_KINDS, RoleRule
from perfgate.trace.assembly import build, named
from perfgate.trace.kernel_table import (
    CALL_KINDS,
    CALL_WORK,
    LAUNCHES,
    NONE,
    Calls,
    Events,
    Kernels,
    Steps,
    Trace,
    call_keys,
    call_kind,
    filled,
)
from perfgate.trace.limits import KERNEL_BYTES, MAX_CAUTIONS, MAX_RANGES, check_memory
from perfgate.trace.nsys_export import DAMAGED, KERNELS, PREFIX, Export, check_content
from perfgate.trace.steps import GLOBS, Range

_CALL = f"{PREFIX}RUNTIME"
_MAX_STRING, _MAX_CALL, _MAX_16 = (1 << 31) - 1, (1 << 32) - 1, (1 << 16) - 1
_PACKED = {
    "streamId": (1 << 46) - 1, "deviceId": _MAX_16, "correlationId": _MAX_CALL, "gridX": (1 << 31) - 1,
    "gridY": _MAX_16, "gridZ": _MAX_16, "blockX": _MAX_16, "blockY": _MAX_16, "blockZ": _MAX_16,
}  # fmt: skip
_PACKED_CALL = {"correlationId": _MAX_CALL, "nameId": _MAX_STRING}
"""What fits into the numbers that several columns are packed into, CUDA's own limits at least."""

_COPIES = {2: "h2d", 3: "h2d-pageable", 4: "d2h", 5: "d2h-pageable", 16: "d2d", 20: "peer"}
"""Twice ENUM_CUDA_MEMCPY_OPER, and one more where the host's memory is pageable (0 in ENUM_CUDA_MEM_KIND)."""
_CASES = " ".join(f"WHEN {number} THEN {COPY_KINDS.index(kind)}" for number, kind in _COPIES.items())
_COPY_KIND = (
    "CASE copyKind * 2 + COALESCE((CASE copyKind WHEN 1 THEN srcKind WHEN 2 THEN dstKind END) = 0, 0) "
    f"{_CASES} ELSE {COPY_KINDS.index('other')} END"
)
"""Index into COPY_KINDS."""

_LOST = re.compile(r"\b(lost|dropp(ed|ing)|overflow\w*|discard\w*|incomplete|not all)\b", re.IGNORECASE)
_PERHAPS_LOST = re.compile(r"\bevents might be missing\b", re.IGNORECASE)
_READ = re.compile(r"\b(CUDA|CUPTI|NVTX)\b", re.IGNORECASE)
_NOT_READ = re.compile(
    r"\b(sampl\w+|CPU|backtraces?|context switch\w*|ftrace|OSRT|OS runtime|ETW|OpenGL|OpenACC|OpenMP|Vulkan|Direct3D|"
    r"DX1[12]|WDDM|MPI|UCX|OpenSHMEM|NIC|InfiniBand|(GPU|SOC) metrics|cuBLAS|cuDNN|X?HV|other events)\b",
    re.IGNORECASE,
)


def lost_data(text: str) -> bool | None:
    """Whether a diagnostic of nsys says that events are missing from which the kernel table is made.

    Texts as in nsys 2022.4: "CUPTI dropped 5 records. Some CUPTI events might be missing.", "Not all NVTX events might
    have been collected." and, which does no harm, "Sampling events were lost in the interval 1 - 2 (3) ns. ...".

    Returns:
        ``None`` where it only says that they might be, or speaks of other events: samples of the CPU, OpenGL and the
        like. A loss that does not say of what is one of these events.
    """
    if not _LOST.search(text):
        return None if _PERHAPS_LOST.search(text) else False
    return None if _NOT_READ.search(text) and not _READ.search(text) else True


_OTHER = CALL_KINDS.index("other")
_FAILED = "TYPEOF(returnValue) = 'integer' AND returnValue > 0"
_LAUNCHING, _DUE = [CALL_KINDS.index(kind) for kind in LAUNCHES], CALL_WORK.index("due")
_ERROR = 3
"""Severity of an error in DIAGNOSTIC_EVENT; 1 is information, 2 a warning, 4 verbose."""


def read_nsys(file: Path, roles: Sequence[RoleRule] = ()) -> Trace:
    """The kernel table of an SQLite export.

    Args:
        file: What ``nsys export --type=sqlite`` wrote.
        roles: The scenario's own roles.

    Raises:
        RecordError: The file is empty, cut short, damaged, no export of nsys, without kernels, traced with whole graphs
            as one event, short of data by nsys's own account, or too large for the memory that is available.
        UsageError: A role's pattern is not a regular expression.
    """
    with Export(file) as export:
        check_content(export)
        check_memory(KERNEL_BYTES * export.count(KERNELS), export.where)
        try:
            recorded, ranges = _Reader(export).read(roles)
        except OverflowError as error:
            text = f"holds a number that is too large: {error}"
            raise RecordError(text, where=export.where, remedy=DAMAGED) from error
        return build(recorded, ranges)


class _Reader:
    """Turns the tables of one export into columns."""

    def __init__(self, export: Export) -> None:
        self.export = export
        self.pids: NDArray[np.int64] = np.empty(0, np.int64)
        """Global ids of the processes that ran kernels; the low 24 bits are a thread's and zero here."""

    def read(self, roles: Sequence[RoleRule]) -> tuple[Trace, list[Range]]:
        """What the kernel table is made of, see :func:`perfgate.trace.assembly.build`."""
        diagnostics = self._diagnostics()
        kernels, names, shapes = self._kernels()
        copies, memsets = self._events("MEMCPY", _COPY_KIND), self._events("MEMSET", "0")
        trace = Trace(
            source=self.export.version,
            where=self.export.where,
            processes=tuple((self.pids >> 24 & 0xFFFFFF).tolist()),
            devices=self._devices(),
            names=named(names, roles, self.export.where),
            shapes=shapes,
            kernels=kernels,
            steps=filled(Steps),
            calls=self._calls((kernels, copies, memsets)),
            copies=copies,
            memsets=memsets,
            overhead=self._overhead(),
            cautions=diagnostics,
        )
        return trace, self._ranges()

    def _process_of(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Indices of the processes of global thread or process ids, and whether they are among those with kernels."""
        ids = ids & ~0xFFFFFF
        index = np.minimum(np.searchsorted(self.pids, ids), len(self.pids) - 1)
        return index, self.pids[index] == ids

    def _kernels(self) -> tuple[Kernels, tuple[str, ...], NDArray[np.int64]]:
        graph = "COALESCE(graphNodeId, 0) != 0" if "graphNodeId" in self.export.columns[KERNELS] else "0"
        node = "COALESCE(graphNodeId, -1)" if "graphNodeId" in self.export.columns[KERNELS] else "-1"
        start, end, where, link, pid, nodes, grid, block = self.export.integers(
            KERNELS,
            (
                "start", "end", f"(streamId << 17) | (deviceId << 1) | ({graph})", _link("demangledName"), "globalPid",
                node, "(gridX << 32) | (gridY << 16) | gridZ", "(blockX << 32) | (blockY << 16) | blockZ",
            ),
            most=_PACKED | {"demangledName": _MAX_STRING},
        )  # fmt: skip
        correlation, name = _unlinked(link)
        self.pids, process = _unique(pid & ~0xFFFFFF)
        ids, name = _unique(name)
        grids, grid = _unique(grid)
        blocks, block = _unique(block)
        shapes, shape = _unique(grid.astype(np.int64) * len(blocks) + block)
        table = [*_unpacked(grids[shapes // len(blocks)]), *_unpacked(blocks[shapes % len(blocks)])]
        made = filled(
            Kernels,
            start_ns=start,
            duration_ns=end - start,
            name=name,
            shape=shape,
            stream=where >> 17,
            device=where >> 1 & 0xFFFF,
            process=process,
            graph=where & 1,
            node=nodes,
            correlation=correlation,
        )
        return made, self.export.strings(ids), np.stack(table, axis=1)

    def _calls(self, launched: Sequence[Kernels | Events]) -> Calls:
        """Calls on the host that matter to a step or launched something; without them nothing has a launch.

        There may be several calls of other kinds a kernel, which are not kept: only what is kept counts as a row. They
        are not even read unless something has no launching call among the others.
        """
        texts = self.export.select("SELECT id, CAST(value AS TEXT) FROM StringIds WHERE value GLOB '[ch][ui]*'")
        kinds = {number: CALL_KINDS.index(call_kind(text)) for number, text in texts if isinstance(number, int)}
        kinds = {number: kind for number, kind in kinds.items() if kind != _OTHER}
        listed = f"nameId IN ({', '.join(map(str, kinds))})"
        calls = self._read_calls(kinds, listed, lambda key: np.ones(len(key), bool))
        launching = np.concatenate(
            [call_keys(events.process, events.correlation)[events.correlation != NONE] for events in launched]
        )
        keys = np.sort(call_keys(calls.process, calls.correlation))
        unknown = np.sort(launching[~_among(launching, keys)])
        if not len(unknown):
            return calls
        others = self._read_calls({}, f"NOT {listed}", lambda key: _among(key, unknown))
        return Calls.joined((calls, others))

    def _read_calls(
        self, kinds: dict[int, int], condition: str, wanted: Callable[[NDArray[np.int64]], NDArray[np.bool_]]
    ) -> Calls:
        """The calls of processes with kernels that are wanted by process and correlation; kinds by the id of a name."""

        def matters(columns: Sequence[NDArray[np.int64]]) -> NDArray[np.bool_]:
            process, traced = self._process_of(columns[2])
            return np.asarray(traced & wanted(call_keys(process, _unlinked(columns[3])[0])))

        expressions = ("start", "end", "globalTid", _link("nameId"))
        start, end, tid, link = self.export.integers(_CALL, expressions, matters, condition, _PACKED_CALL)
        correlation, name = _unlinked(link)
        ids, index = _unique(name)
        kind = np.array([kinds.get(number, _OTHER) for number in ids.tolist()], np.int8)
        failed = self._failed(condition)
        return filled(
            Calls,
            kind=kind[index],
            work=np.where(np.isin(kind[index], _LAUNCHING) & ~np.isin(correlation, failed), _DUE, 0),
            start_ns=start,
            duration_ns=end - start,
            process=self._process_of(tid)[0],
            thread=tid & 0xFFFFFF,
            correlation=correlation,
        )

    def _failed(self, condition: str) -> NDArray[np.int64]:
        """Correlation ids of calls that ended with an error, as where a tuner tries what a device cannot do."""
        if "returnValue" not in self.export.columns.get(_CALL, {}):
            return np.empty(0, np.int64)
        return self.export.integers(_CALL, ("correlationId",), condition=f"{_FAILED} AND ({condition})")[0]

    def _ranges(self) -> list[Range]:
        """The ranges that can name steps and layers; processes without kernels are numbered after those with some."""
        rows = named_ranges(self.export)
        thread = np.array([thread for *_, thread in rows], np.int64)
        process, traced = self._process_of(thread)
        _, place = np.unique(thread[~traced] & ~0xFFFFFF, return_inverse=True)
        process[~traced] = len(self.pids) + place
        return [
            Range(name, start, end, number, thread & 0xFFFFFF)
            for (name, start, end, thread), number in zip(rows, process.tolist(), strict=True)
        ]

    def _events(self, what: str, kind: str) -> Events:
        """One table of events on the device, those of processes with kernels; ``kind`` is an expression of SQL."""
        table = f"{PREFIX}{what}"
        columns = self.export.columns.get(table, {})
        optional = [name if name in columns else "0" for name in ("bytes", "graphNodeId")]
        start, end, device, stream, correlation, pid, code, size, node = self.export.integers(
            table,
            (
                "start", "end", "deviceId", "streamId", "COALESCE(correlationId, -1)", "COALESCE(globalPid, 0)",
                kind, *(f"COALESCE({name}, 0)" for name in optional),
            ),
        )  # fmt: skip
        process, traced = self._process_of(pid)
        made = filled(
            Events,
            kind=code,
            start_ns=start,
            duration_ns=end - start,
            device=device,
            stream=stream,
            process=process,
            bytes=size,
            graph=node != 0,
            correlation=correlation,
        )
        return made if traced.all() else made.take(traced)

    def _overhead(self) -> Events:
        """CUPTI's own work on the host, in whichever thread of the process it was done."""
        start, end, tid = self.export.integers("PROFILER_OVERHEAD", ("start", "end", "COALESCE(globalTid, 0)"))
        process, traced = self._process_of(tid)
        made = filled(Events, start_ns=start, duration_ns=end - start, process=process)
        return made.take(traced)

    def _devices(self) -> dict[int, str]:
        columns = self.export.columns.get("TARGET_INFO_GPU", {})
        if not {"id", "name"} <= columns.keys():
            return {}
        number = "COALESCE(cuDevice, id)" if "cuDevice" in columns else "id"
        rows = self.export.select(f"SELECT {number}, name FROM TARGET_INFO_GPU ORDER BY 1")  # noqa: S608
        return {device: str(name) for device, name in rows if isinstance(device, int)}

    def _diagnostics(self) -> tuple[Note, ...]:
        """What nsys itself says went wrong; lost data is an error."""
        if "DIAGNOSTIC_EVENT" not in self.export.columns:
            return ()
        query = "SELECT severity, text FROM DIAGNOSTIC_EVENT WHERE severity IN (2, 3) ORDER BY timestamp"
        shown: dict[Note, None] = {}
        for severity, value in self.export.select(query):
            text = str(value)
            lost = lost_data(text)
            if lost:
                remedy = "Trace fewer iterations; synchronise before the capture ends."
                raise RecordError(f"nsys lost data: {text}", where=self.export.where, remedy=remedy)
            if (severity == _ERROR or lost is None) and len(shown) < MAX_CAUTIONS:
                shown[Note(code="trace-damaged", text=f"nsys: {text}")] = None
        return tuple(shown)


def named_ranges(export: Export) -> list[tuple[str, int, int | None, int]]:
    """The ranges that can name steps and layers, or are perfgate's own: name, start, end, global id of the thread.

    Raises:
        RecordError: There are too many, or one with a time that is not an integer.
    """
    if not export.has("NVTX_EVENTS"):
        return []
    query = (  # 59 push/pop, 60 start/end; the name is text (ASCII) or textId (registered strings)
        "SELECT * FROM (SELECT CAST(COALESCE(s.value, e.text, '') AS TEXT) AS name, e.start, e.end, "  # noqa: S608
        "COALESCE(CAST(e.globalTid AS INTEGER), 0) FROM NVTX_EVENTS e LEFT JOIN StringIds s ON s.id = e.textId "
        "WHERE e.eventType IN (59, 60)) "
        f"WHERE {_WANTED} ORDER BY start LIMIT ?"
    )
    rows = list(export.select(query, (MAX_RANGES + 1,)))
    if len(rows) > MAX_RANGES:
        text = f"table NVTX_EVENTS has more than {MAX_RANGES} ranges of steps and layers"
        raise RecordError(text, where=export.where, remedy="Trace fewer iterations.")
    if not all(isinstance(row[1], int) and isinstance(row[2], int | None) for row in rows):
        raise RecordError("table NVTX_EVENTS holds a time that is not an integer", where=export.where)
    return [(name, start, end, thread) for name, start, end, thread in rows]


_WANTED = " OR ".join(f"name GLOB '{glob}'" for glob in GLOBS)


def _link(name: str) -> str:
    """Correlation id (32 bits, -1 where there is none) and the id of a string (31 bits) in one number.

    Packed, because what a row costs to read grows with its columns.
    """
    return f"(COALESCE(correlationId, -1) << 31) | {name}"


def _unlinked(packed: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return packed >> 31, packed & 0x7FFFFFFF


def _among(values: NDArray[np.int64], ordered: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which values are among others, which are in order."""
    if not len(ordered):
        return np.zeros(len(values), bool)
    return np.asarray(ordered[np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)] == values)


def _unique(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The distinct values and the place of each among them, by chunks: there are millions of rows and few values."""
    chunks = [values[first : first + _UNIQUE_ROWS] for first in range(0, len(values), _UNIQUE_ROWS)]
    distinct = np.unique(np.concatenate([np.unique(chunk) for chunk in chunks])) if chunks else values
    index = [np.searchsorted(distinct, chunk).astype(np.int32) for chunk in chunks]
    return distinct, np.concatenate(index) if index else np.empty(0, np.int32)


_UNIQUE_ROWS = 1 << 18


def _unpacked(packed: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """x, y and z of a launch shape; CUDA allows 31, 16 and 16 bits (Programming Guide, compute capabilities)."""
    return [packed >> 32, packed >> 16 & 0xFFFF, packed & 0xFFFF]
