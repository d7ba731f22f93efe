"""Whatever a trace holds, it is read or refused in words: mutations of small whole traces, by structure and type."""

from __future__ import annotations

import contextlib
import copy
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nsys_builder import TABLES, columns_of
from readers import scrub_trace, show_trace
from whole_inputs import CHROME, EVENTS, EXPORT

from perfgate.errors import NotMeasuredError, RecordError

FUZZ = settings(
    max_examples=6 * settings().max_examples,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each example's file is; the next one replaces it."""
    return tmp_path_factory.mktemp("fuzz")


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


def check(file: Path) -> None:
    """Reading and scrubbing a trace works, or is refused in words that name the file."""
    for use in (show_trace, scrub_trace):
        refused = f"{file}: "
        try:
            use(file)
        except (RecordError, NotMeasuredError) as error:
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
