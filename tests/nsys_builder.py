"""Makes SQLite exports as nsys writes them, with CUDA rows of our own: a machine without a GPU records none.

Rows go into a new file with the tables of one version, or into a real export of NVTX ranges. A file made here says so
in its metadata (``PERFGATE_ROWS``). Run as a program it turns a real export (``nsys export --lazy=false``) into a
fixture: everything personal is deleted, the tables of CUDA activities stay as that nsys lays them out::

    python tests/nsys_builder.py EXPORT.sqlite FIXTURE.sqlite.gz
"""

from __future__ import annotations

import contextlib
import gzip
import random
import sqlite3
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from perfgate.trace.kernel_table import Trace
from perfgate.trace.nsys import read_nsys

PID, VM = 4242, 0x1000000000000
Row = dict[str, Any]

_DEVICE = ["start", "end", "deviceId", "contextId", "greenContextId", "streamId", "correlationId", "globalPid"]
_HOST = ["start", "end", "globalTid", "nameId"]
TABLES: dict[str, list[str]] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": [
        *_DEVICE, "demangledName", "shortName", "mangledName", "launchType", "gridX", "gridY", "gridZ", "blockX",
        "blockY", "blockZ", "graphNodeId",
    ],
    "CUPTI_ACTIVITY_KIND_RUNTIME": [*_HOST, "eventClass", "correlationId", "returnValue"],
    "CUPTI_ACTIVITY_KIND_MEMCPY": [*_DEVICE, "bytes", "graphNodeId", "copyKind", "srcKind", "dstKind"],
    "CUPTI_ACTIVITY_KIND_MEMSET": [*_DEVICE, "bytes", "graphNodeId", "value", "memKind"],
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [*_DEVICE, "graphId", "graphExecId"],
    "PROFILER_OVERHEAD": [*_HOST, "returnValue"],
    "NVTX_EVENTS": [
        "start", "end", "eventType", "rangeId", "text", "globalTid", "endGlobalTid", "textId", "domainId",
    ],
    "DIAGNOSTIC_EVENT": ["timestamp", "source", "severity", "text", "globalPid"],
    "TARGET_INFO_GPU": ["vmId", "id", "name", "busLocation", "uuid", "cuDevice"],
    "StringIds": ["id", "value"],
}  # fmt: skip
VERSIONS = ("2022.4", "2023.4", "2024.2", "2026.2")
"""Layouts that differ: no green contexts and other metadata in 2022.4, more columns in 2026.2."""


def columns_of(table: str, version: str) -> list[str]:
    """The columns of a table in a version."""
    columns = TABLES[table]
    if version == "2022.4":
        return [name for name in columns if name != "greenContextId"]
    if version == "2026.2" and table == "CUPTI_ACTIVITY_KIND_KERNEL":
        return [*columns, "graphId", "clusterX", "clusterY", "clusterZ"]
    return columns


def global_id(pid: int, tid: int = 0) -> int:
    """The number that nsys gives a process, or a thread of it."""
    return VM | pid << 24 | tid


class ExportBuilder:
    """Collects rows and writes them.

    Args:
        version: A layout of :data:`VERSIONS`, for tables that the file does not have yet.
    """

    def __init__(self, version: str = "2023.4") -> None:
        self.version = version
        self.rows: dict[str, list[Row]] = {}
        self.names: dict[str, int] = {}
        self.correlations: dict[int, int] = {}
        self.graphs: dict[tuple[str, ...], int] = {}

    def add(self, table: str, **values: Any) -> None:
        """One row, as it will stand there."""
        self.rows.setdefault(table, []).append(values)

    def string(self, text: str) -> int:
        """The id of a string; far from those that nsys gives out."""
        return self.names.setdefault(text, 100_000 + len(self.names))

    def next_correlation(self, pid: int) -> int:
        """The next correlation id of a process: they begin at the same number in each."""
        self.correlations[pid] = self.correlations.get(pid, 0) + 1
        return self.correlations[pid]

    def span(self, name: str, start: int, end: int | None, *, pid: int = PID, registered: bool = False) -> None:
        """A range on the host: start/end where its string is registered, else push/pop."""
        text = {"textId": self.string(name)} if registered else {"text": name}
        tid = global_id(pid, pid)
        kind = 60 if registered else 59
        self.add("NVTX_EVENTS", start=start, end=end, eventType=kind, globalTid=tid, domainId=0, **text)

    def call(self, name: str, start: int, end: int, *, pid: int = PID, tid: int | None = None) -> int:
        """A call of the CUDA interface, by the process's first thread unless another is named; returns its id."""
        correlation = self.next_correlation(pid)
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=start,
            end=end,
            globalTid=global_id(pid, pid if tid is None else tid),
            correlationId=correlation,
            nameId=self.string(name),
        )
        return correlation

    def kernel(  # noqa: PLR0913 (what a row has)
        self,
        name: str,
        start: int,
        end: int,
        correlation: int | None,
        *,
        pid: int = PID,
        stream: int = 7,
        device: int = 0,
        node: int | None = None,
        grid: tuple[int, int, int] = (1, 1, 1),
        block: tuple[int, int, int] = (128, 1, 1),
    ) -> None:
        """A kernel as the device ran it."""
        text = self.string(name)
        sizes = dict(zip(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), (*grid, *block), strict=True))
        self.add(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            start=start,
            end=end,
            deviceId=device,
            streamId=stream,
            correlationId=correlation,
            globalPid=global_id(pid),
            demangledName=text,
            shortName=text,
            mangledName=text,
            graphNodeId=node,
            **sizes,
        )

    def launch(self, name: str, called: int, start: int, end: int, **where: Any) -> None:
        """A kernel with the call that launched it, which takes 1000 ns."""
        thread = {"pid": where.get("pid", PID), "tid": where.pop("tid", None)}
        correlation = self.call("cudaLaunchKernel_v7000", called, called + 1000, **thread)
        self.kernel(name, start, end, correlation, **where)

    def graph(self, called: int, kernels: Iterable[tuple[str, int, int]], **where: Any) -> None:
        """A launch of a graph, known by the names of its kernels, which takes 2000 ns: name, start, end of each."""
        kernels = list(kernels)
        graph = self.graphs.setdefault(tuple(name for name, *_ in kernels), 1 + len(self.graphs))
        correlation = self.call("cudaGraphLaunch_v10000", called, called + 2000, pid=where.get("pid", PID))
        for node, (name, start, end) in enumerate(kernels):
            self.kernel(name, start, end, correlation, node=(graph << 32) + node, **where)

    def copy(self, kind: int, called: int, start: int, end: int, size: int, host: int = 1, *, pid: int = PID) -> None:
        """A copy: 1 to the device, 2 from it, 8 within; ``host`` memory is pageable (0) or pinned (1)."""
        correlation = self.call("cudaMemcpyAsync_v3020", called, called + 500, pid=pid)
        self.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            start=start,
            end=end,
            deviceId=0,
            streamId=7,
            correlationId=correlation,
            globalPid=global_id(pid),
            bytes=size,
            copyKind=kind,
            srcKind=host if kind == 1 else 2,
            dstKind=host if kind == 2 else 2,
        )

    def read(self) -> Trace:
        """The kernel table of everything."""
        with tempfile.TemporaryDirectory() as folder:
            return read_nsys(self.write(Path(folder) / "export.sqlite"))

    def write(self, file: Path, shuffle: random.Random | None = None) -> Path:
        """Write everything into a new file or an existing export; tables without a row are not made, as with nsys."""
        strings = [{"id": number, "value": text} for text, number in self.names.items()]
        meta = "EXPORT_META_DATA" if self.version == "2022.4" else "META_DATA_EXPORT"
        with contextlib.closing(sqlite3.connect(file)) as connection, connection:
            connection.execute(f'CREATE TABLE IF NOT EXISTS "{meta}" (name TEXT NOT NULL, value TEXT)')
            if not list(connection.execute(f'SELECT 1 FROM "{meta}"')):  # noqa: S608
                connection.execute(f"""INSERT INTO "{meta}" VALUES ('EXPORT_PRODUCT_VERSION', '{self.version}.0.0')""")  # noqa: S608
            connection.execute(f"""INSERT INTO "{meta}" VALUES ('PERFGATE_ROWS', 'CUDA rows are synthetic')""")  # noqa: S608
            for table, rows in {"StringIds": strings, **self.rows}.items():
                insert(connection, table, self.version, random_order(rows, shuffle))
        connection.close()
        return file


def random_order(rows: Sequence[Row], shuffle: random.Random | None) -> list[Row]:
    """The rows, shuffled where a source of chance is given."""
    return list(rows) if shuffle is None else shuffle.sample(rows, len(rows))


def insert(connection: sqlite3.Connection, table: str, version: str, rows: Sequence[Row]) -> None:
    """Insert rows; what a row does not say is 0 where the column must have a value, else NULL."""
    declared = ", ".join(f'"{name}" {_declared(name)}' for name in columns_of(table, version))
    connection.execute(f'CREATE TABLE IF NOT EXISTS "{table}" ({declared})')
    info = connection.execute(f'PRAGMA table_info("{table}")').fetchall()
    defaults = {row[1]: 0 if row[3] else None for row in info}
    marks = ", ".join("?" * len(info))
    values = ([{**defaults, **row}[name] for name in defaults] for row in rows)
    connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', values)  # noqa: S608


def _declared(name: str) -> str:
    if name == "id":
        return "INTEGER NOT NULL PRIMARY KEY"
    return "TEXT" if name in ("text", "value", "name", "busLocation", "uuid") else "INTEGER"


def make_fixture(source: Path, target: Path) -> None:
    """Strip a real export of everything personal and pack it."""
    connection = sqlite3.connect(source)
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    for table in tables & {
        "ProcessStreams", "TARGET_INFO_SYSTEM_ENV", "PROCESSES", "ThreadNames", "META_DATA_CAPTURE", "ANALYSIS_FILE",
        "TARGET_INFO_NIC_INFO", "TARGET_INFO_NETWORK_DEVICES", "TARGET_INFO_SESSION_START_TIME",
    }:  # fmt: skip
        connection.execute(f'DELETE FROM "{table}"')  # noqa: S608
    for table in tables & {"META_DATA_EXPORT", "EXPORT_META_DATA"}:
        kept = "name NOT LIKE 'EXPORT_PRODUCT%' AND name NOT LIKE 'EXPORT_SCHEMA%'"
        connection.execute(f'DELETE FROM "{table}" WHERE {kept}')  # noqa: S608
    if "DIAGNOSTIC_EVENT" in tables:
        connection.execute("UPDATE DIAGNOSTIC_EVENT SET text = 'text removed'")
    connection.execute(
        "DELETE FROM StringIds WHERE id NOT IN (SELECT textId FROM NVTX_EVENTS WHERE textId IS NOT NULL "
        "UNION SELECT nameId FROM PROFILER_OVERHEAD)"
    )
    for table in tables:  # a full export has two hundred, most of them empty and none of our business
        empty = not list(connection.execute(f'SELECT 1 FROM "{table}" LIMIT 1'))  # noqa: S608
        if table.startswith("ENUM_") or (empty and not table.startswith(("CUPTI_ACTIVITY_KIND_", "CUDA_GRAPH_"))):
            connection.execute(f'DROP TABLE "{table}"')
    connection.commit()
    connection.execute("VACUUM")
    connection.close()
    with target.open("wb") as stream, gzip.GzipFile("", "wb", fileobj=stream, mtime=0) as packed:
        packed.write(source.read_bytes())


if __name__ == "__main__":
    make_fixture(Path(sys.argv[1]), Path(sys.argv[2]))
