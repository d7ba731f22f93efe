"""Whatever a trace holds, it is read or refused in words: mutations of small whole traces, by structure and type."""

from __future__ import annotations

import contextlib
import copy
import json
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nsys_builder import PID, TABLES, ExportBuilder, columns_of, global_id

from perfgate.breakdown import figures
from perfgate.capture.scrub import scrub
from perfgate.capture.tracefile import read_trace
from perfgate.errors import NotMeasuredError, RecordError
from perfgate.pattern import summarise
from perfgate.report.kernels import FORMATS
from perfgate.selection import select

FUZZ = settings(
    max_examples=6 * settings().max_examples,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each example's file is; the next one replaces it."""
    return tmp_path_factory.mktemp("fuzz")


EVENTS: list[dict[str, Any]] = [
    {"ph": "X", "cat": "user_annotation", "name": "perfgate.step.1.decode", "ts": 0, "dur": 9, "pid": 9, "tid": 9},
    {"ph": "X", "cat": "user_annotation", "name": "model.layers.3.mlp", "ts": 1, "dur": 4, "pid": 9, "tid": 9},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1.25, "dur": 2, "pid": 9, "tid": 9},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1, "dur": 1, "pid": 9, "tid": 9,
     "args": {"correlation": 3, "stream": "0x0"}},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaStreamSynchronize", "ts": 5, "dur": 1, "pid": 9, "tid": 9},
    {"ph": "X", "cat": "kernel", "name": "void gemm<(int)4>(T1 *)", "ts": 1.5, "dur": 2.25, "pid": 0, "tid": 7,
     "args": {"device": 0, "stream": 7, "correlation": 3, "grid": [1, 2, 3], "block": [4, 5, 6], "graph node id": 8}},
    {"ph": "X", "cat": "kernel", "name": "flash::fwd", "ts": 4, "dur": 2, "pid": 0, "tid": 7,
     "args": {"device": 0, "stream": 7, "correlation": 3}},
    {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "ts": 4, "dur": 1, "pid": 0, "tid": 7,
     "args": {"device": 0, "stream": 7, "correlation": 3, "bytes": 96}},
    {"ph": "X", "cat": "overhead", "name": "Buffer Flush", "ts": 2, "dur": 1, "pid": -1, "tid": 0},
]  # fmt: skip
CHROME: dict[str, Any] = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
    "cuda_runtime_version": 13000,
    "traceEvents": EVENTS,
}
PATHS = [
    ("deviceProperties",), ("deviceProperties", 0), ("deviceProperties", 0, "id"), ("deviceProperties", 0, "name"),
    ("cuda_runtime_version",), ("traceEvents",),
    *(("traceEvents", n) for n in range(len(EVENTS))),
    *(("traceEvents", n, key) for n, event in enumerate(EVENTS) for key in event),
    *(("traceEvents", n, "args", key) for n, event in enumerate(EVENTS) for key in event.get("args", ())),
    *(("traceEvents", 5, "args", "grid", n) for n in range(3)),
]  # fmt: skip
"""Every place of a Chrome trace."""

WORDS = st.sampled_from([
    "", "kernel", "cpu_op", "cuda_runtime", "gpu_memcpy", "gpu_memset", "mtia_workload", "X", "M", "0x0",
    "0xffffffffffffffff", "-1", "1.5", "1e400", "nan", "perfgate.step.1", "perfgate.step.999999999999999999",
    "perfgate.layer.9999",
    "execute_context_0(0)_generation_8(8)", "cudaGraphLaunch", "hipLaunchKernel", "triton_" + "_1" * 200,
    "Kernel<" * 60, "cutlass" * 60, ">" * 80, "(" * 80, "\x00", "\ud800", "=1+1", "events were dropped",
    "reshape_and_cache",
])  # fmt: skip
NUMBERS = st.sampled_from([
    0, 1, -1, 2, 255, 65_535, 65_536, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 40, 1 << 53, 1 << 62, (1 << 63) - 1,
    -(1 << 63), -(1 << 62), 59, 60, 0.5, -0.0, 1e15, 1e18, -1e300,
])  # fmt: skip
SCALARS = WORDS | NUMBERS | st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.text(max_size=4)
VALUES = SCALARS | st.lists(SCALARS, max_size=4) | st.dictionaries(WORDS, SCALARS, max_size=2)
RAW = st.sampled_from(
    ["1e999990", "1e-999990", "9" * 5000, "NaN", "-Infinity", "1e99999999999999999999", "[" * 3000, "1.5e1"]
)
"""Values that only the text of a file can hold."""


def show(file: Path) -> None:
    """Everything that ``perfgate kernels`` and a traced trial do with a trace."""
    trace = read_trace(file)
    assert len(trace.kernels)
    found = figures(trace)
    assert (found.idle_ns >= 0).all()
    assert (found.busy_ns >= 0).all()
    selection = select(trace)
    for render in FORMATS.values():
        assert render(selection)
    with contextlib.suppress(NotMeasuredError):  # no whole decode step
        summarise(trace)


def check(file: Path) -> None:
    """Reading and scrubbing a trace works, or is refused in words that name the file."""
    for use in (show, lambda trace: scrub(trace, trace.with_name("scrubbed"))):
        refused = f"{file}: "
        try:
            use(file)
        except RecordError as error:
            refused = str(error)
        assert refused.startswith(f"{file}: ")


@FUZZ
@given(st.lists(st.tuples(st.sampled_from(PATHS), st.none() | VALUES), max_size=4), st.none() | RAW)
def test_chrome_traces(folder: Path, changes: list[tuple[tuple[Any, ...], Any]], raw: str | None) -> None:
    """Values of every type at every place of a Chrome trace, and numbers that only text can hold."""
    content = copy.deepcopy(CHROME)
    if raw is not None and changes:
        changes = [*changes[:-1], (changes[-1][0], "@RAW@")]
    for path, value in changes:
        with contextlib.suppress(LookupError, TypeError):  # an earlier change took the place away
            put(content, path, value)
    file = folder / "trace.json"
    file.write_text(json.dumps(content).replace('"@RAW@"', raw or "0"), encoding="utf-8")
    check(file)


def put(content: Any, path: tuple[Any, ...], value: Any) -> None:
    """Set what is at a path; ``None`` takes it away."""
    for key in path[:-1]:
        content = content[key]
    if value is None:
        del content[path[-1]]
    else:
        content[path[-1]] = value


def export() -> bytes:
    """A small whole export with a row in every table."""
    builder = ExportBuilder("2024.2")
    for n in range(3):
        begin = n * 1000
        builder.span(f"perfgate.step.{n}", begin, begin + 900, registered=n == 1)
        builder.span("execute_context_0(0)_generation_8(8)", begin + 1, begin + 800)
        builder.launch("void gemm<(int)4>(T1 *)", begin, 9000 + begin, 9050 + begin)
        builder.graph(begin + 20, [("flash::fwd", 9100 + begin, 9200 + begin), ("gemm", 9300 + begin, 9400 + begin)])
        builder.copy(1, begin + 10, 9060 + begin, 9070 + begin, 64)
    tid, pid = global_id(PID, PID), global_id(PID)
    memset = {"start": 9080, "end": 9090, "deviceId": 0, "streamId": 7, "correlationId": 1, "bytes": 4}
    builder.add("CUPTI_ACTIVITY_KIND_MEMSET", globalPid=pid, **memset)
    builder.add("PROFILER_OVERHEAD", start=50, end=60, globalTid=tid, nameId=builder.string("CUPTI: Buffer flush"))
    builder.add("DIAGNOSTIC_EVENT", timestamp=1, source=1, severity=3, text="Range capture ended late.")
    builder.add("TARGET_INFO_GPU", vmId=1, id=0, name="NVIDIA H200", cuDevice=0)
    with tempfile.TemporaryDirectory() as folder:
        return builder.write(Path(folder) / "export.sqlite").read_bytes()


EXPORT = export()
COLUMNS = {table: columns_of(table, "2024.2") for table in TABLES if not table.endswith("GRAPH_TRACE")}
COLUMNS["META_DATA_EXPORT"] = ["name", "value"]
CELLS = st.sampled_from(sorted(COLUMNS)).flatmap(
    lambda table: st.tuples(st.just(table), st.sampled_from(COLUMNS[table]))
)
TEXTS = st.text(max_size=4) | WORDS
SQL_VALUES = NUMBERS | st.none() | st.binary(max_size=4) | TEXTS.map(lambda one: one.encode("utf-8", "surrogatepass"))
CASTS = st.sampled_from(["?", "CAST(? AS TEXT)", "-?", "? + 1"])
SCHEMA = st.sampled_from([
    "DROP TABLE {table}", "ALTER TABLE {table} DROP COLUMN {column}", "ALTER TABLE {table} RENAME TO other",
    "ALTER TABLE {table} RENAME COLUMN {column} TO other", "DELETE FROM {table}",
    "INSERT INTO {table} SELECT * FROM {table}",
])  # fmt: skip


@FUZZ
@given(
    st.lists(st.tuples(CELLS, st.integers(1, 3), CASTS, SQL_VALUES), max_size=4),
    st.none() | st.tuples(SCHEMA, CELLS),
)
def test_exports(
    folder: Path,
    changes: list[tuple[tuple[str, str], int, str, Any]],
    schema: tuple[str, tuple[str, str]] | None,
) -> None:
    """Values of every type in every column of an export, and tables and columns that are not there."""
    file = folder / "export.sqlite"
    file.write_bytes(EXPORT)
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        for (table, column), row, cast, value in changes:
            text = f"UPDATE OR IGNORE {table} SET {column} = {cast} WHERE rowid % {row} = 0"  # noqa: S608
            with contextlib.suppress(sqlite3.OperationalError, sqlite3.IntegrityError):  # a type that it does not take
                connection.execute(text, (value,))
        if schema is not None:
            template, (table, column) = schema
            with contextlib.suppress(sqlite3.OperationalError, sqlite3.IntegrityError):  # an id twice, a column in use
                connection.execute(template.format(table=table, column=column))
    check(file)
