"""Copies of traces that may be shown: no environment, host, user, path, process list or GPU identity survives.

Reports of nsys carry the whole environment of what they traced, in tables of their own and inside StringIds. A copy is
therefore made by listing what may stay: the tables that the kernel table is made from, and of the strings those that a
kernel, a CUDA call, the profiler's own work or a step's range uses.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from perfgate.errors import RecordError, UsageError
from perfgate.trace.chrome_events import Event
from perfgate.trace.event_formats import read_events
from perfgate.trace.nsys import lost_data
from perfgate.trace.nsys_export import MAGIC, Export, check_content, harden, quoted, read_only
from perfgate.trace.steps import LAYER, is_step
from perfgate.trace.torch_profiler import CALLS, WORK
from perfgate.trace.trace_file import as_plain_file

_ACTIVITIES = ("KERNEL", "RUNTIME", "MEMCPY", "MEMSET", "SYNCHRONIZATION", "GRAPH_TRACE")
_INTEGER_TABLES = (*(f"CUPTI_ACTIVITY_KIND_{name}" for name in _ACTIVITIES), "PROFILER_OVERHEAD")
"""Tables of numbers: every column that is declared as one is copied, any other is left out."""

_GPU_COLUMNS = (
    "id", "cuDevice", "name", "chipName", "l2CacheSize", "totalMemory", "memoryBandwidth", "clockRate", "smCount",
    "computeMajor", "computeMinor",
)  # fmt: skip

_NAME_COLUMNS = ("demangledName", "shortName", "mangledName", "nameId")
_PATH = re.compile(r"(?:~|\.{1,2}|(?<![\w)\]>]))(?:/[\w.+@-]+)+|\w:\\[\w\\.+-]*")
"""What looks like a path; a division in a template argument has something before it."""

_CATEGORIES = (*WORK, *CALLS, "cpu_op", "operator", "user_annotation", "overhead")
_ARGUMENTS = ("correlation", "device", "stream", "bytes", "graph id", "graph node id")


def scrub(file: Path, target: Path) -> None:
    """Write a copy of a trace from which the same kernel table is read, and nothing else.

    Args:
        file: Any file that :func:`perfgate.trace.trace_file.read_trace` takes.
        target: The copy: SQLite or JSON as the original, with gzip where its name ends in ``.gz``; replaced where
            it exists.

    Raises:
        RecordError: The file cannot be read, or is not a trace.
        UsageError: The copy would replace the original.
    """
    if target.exists() and target.samefile(file):
        raise UsageError(f"--scrub {target} would replace the original")
    with as_plain_file(file) as plain, tempfile.TemporaryDirectory(prefix="perfgate-", dir=target.parent) as folder:
        made = Path(folder) / "copy"
        with plain.open("rb") as stream:
            is_export = stream.read(len(MAGIC)) == MAGIC
        _scrub_export(plain, made) if is_export else _scrub_events(plain, made)
        if target.suffix == ".gz":
            packed = Path(folder) / "packed"
            with made.open("rb") as source, packed.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, 0) as sink:
                shutil.copyfileobj(source, sink)  # with neither name nor time, so that equal copies are equal files
            made = packed
        made.replace(target)


def _scrub_export(file: Path, target: Path) -> None:
    with Export(file) as export:
        check_content(export)
        types = export.columns
    connection = sqlite3.connect(target, isolation_level=None, uri=True)
    try:
        harden(connection)
        connection.execute("ATTACH ? AS source", (read_only(file),))
        connection.execute("BEGIN")
        for table, columns in types.items():
            if table in _INTEGER_TABLES:
                _copy(connection, table, {name: kind for name, kind in columns.items() if kind == "INTEGER"})
            elif table == "TARGET_INFO_GPU":
                _copy(connection, table, {name: columns[name] for name in _GPU_COLUMNS if name in columns})
            elif table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
                condition = "name = 'EXPORT_PRODUCT_VERSION' OR name GLOB 'EXPORT_SCHEMA_VERSION*'"
                _copy(connection, table, {"name": "TEXT", "value": "TEXT"}, condition)
            elif table == "NVTX_EVENTS":
                _copy_ranges(connection)
            elif table == "DIAGNOSTIC_EVENT":
                _copy_diagnostics(connection)
        _copy_strings(connection, types)
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise RecordError(f"cannot be copied: {error}", where=str(file)) from error
    finally:
        connection.close()


def _copy(connection: sqlite3.Connection, table: str, columns: dict[str, str], condition: str = "1") -> None:
    """Create a table with these columns and fill it; a value of another type than its column's is not copied."""
    named = {quoted(name): kind for name, kind in columns.items()}
    declared = ", ".join(f"{name} {kind}" for name, kind in named.items())
    values = ", ".join(
        f"CASE WHEN typeof({name}) = 'integer' THEN {name} END" if kind == "INTEGER" else name
        for name, kind in named.items()
    )
    connection.execute(f'CREATE TABLE "{table}" ({declared})')
    connection.execute(f'INSERT INTO "{table}" SELECT {values} FROM source."{table}" WHERE {condition}')  # noqa: S608


def _copy_ranges(connection: sqlite3.Connection) -> None:
    """Ranges that name a step or a layer, under names of ours."""
    connection.execute(
        "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, "
        "textId INTEGER)"
    )
    rows = connection.execute(
        "SELECT CAST(COALESCE(s.value, e.text, '') AS TEXT), e.start, e.end, e.eventType, e.globalTid "
        "FROM source.NVTX_EVENTS e LEFT JOIN source.StringIds s ON s.id = e.textId "
        "WHERE e.eventType IN (59, 60) ORDER BY e.start"
    )
    kept = ((*row[1:4], name, row[4]) for row in rows if (name := _range_name(row[0])) and _only_numbers(row[1:]))
    connection.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, NULL)", kept)


def _range_name(name: str) -> str:
    """The name under which a range may stay; empty where it may not."""
    if is_step(name):
        return name
    layer = LAYER.search(name)
    return f"perfgate.layer.{layer[1]}" if layer else ""


def _copy_diagnostics(connection: sqlite3.Connection) -> None:
    """That nsys had something to say stays, and whether it was lost data; its words may hold paths."""
    connection.execute("CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, severity INTEGER, text TEXT)")
    rows = connection.execute("SELECT timestamp, severity, text FROM source.DIAGNOSTIC_EVENT").fetchall()
    kept = [
        (*(number if _only_numbers([number]) else 0 for number in numbers), _LOSSES[lost_data(str(text))])
        for *numbers, text in rows
    ]
    connection.executemany("INSERT INTO DIAGNOSTIC_EVENT VALUES (?, ?, ?)", kept)


_LOSSES = {True: "lost data (text scrubbed)", None: "lost other events (text scrubbed)", False: "text scrubbed"}


def _copy_strings(connection: sqlite3.Connection, types: dict[str, dict[str, str]]) -> None:
    """The strings that the tables copied refer to by a name column, paths in them blotted out."""
    connection.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    used = " UNION ".join(
        f'SELECT "{column}" FROM "{table}"'  # noqa: S608
        for table in _INTEGER_TABLES
        for column in _NAME_COLUMNS
        if column in types.get(table, {})
    )
    rows = connection.execute(f"SELECT id, value FROM source.StringIds WHERE id IN ({used})").fetchall()  # noqa: S608
    connection.executemany(
        "INSERT INTO StringIds VALUES (?, ?)", [(number, _PATH.sub("PATH", str(text))) for number, text in rows]
    )


def _only_numbers(values: Iterable[Any]) -> bool:
    """Whether there is nothing but integers and gaps: in SQLite a column of numbers can hold text."""
    return all(isinstance(value, int | None) for value in values)


def _scrub_events(file: Path, target: Path) -> None:
    recording = read_events(file)
    events = [event for event in recording.events if event.category in _CATEGORIES]
    origin = min((event.start_ns for event in events), default=0)
    try:
        rows = [_scrub_event(event, name, origin) for event in events if (name := _shown_name(event))]
    except ValueError as error:
        raise RecordError(f"holds an event with a wrong number: {error}", where=str(file)) from error
    devices = [{"id": number, "name": name} for number, name in recording.devices.items()]
    copy = {"schemaVersion": 1, "deviceProperties": devices, "traceEvents": rows}
    target.write_text(json.dumps(copy, separators=(",", ":")), encoding="utf-8")


def _shown_name(event: Event) -> str:
    """The name under which an event may stay; empty where it may not."""
    return _range_name(event.name) if event.category == "user_annotation" else _PATH.sub("PATH", event.name)


def _scrub_event(event: Event, name: str, origin: int) -> dict[str, Any]:
    """What is read of an event, times since ``origin``."""
    duration_ns = event.end_ns - event.start_ns
    arguments: dict[str, Any] = {key: value for key in _ARGUMENTS if (value := event.whole(key)) is not None}
    if (launched_ns := event.whole("launched_ns")) is not None:
        arguments["launched_ns"] = launched_ns - origin
    if any(shape := event.shape()):
        arguments |= {"grid": shape[:3], "block": shape[3:]}
    made: dict[str, Any] = {"ph": "X", "cat": event.category, "name": name, "args": arguments}
    made |= {"ts": (event.start_ns - origin) / 1000, "dur": duration_ns / 1000}
    numbers = {key: number for key, number in (("pid", event.pid), ("tid", event.thread)) if isinstance(number, int)}
    return made | numbers | ({"pid": f"{event.rank}{event.pid}"} if event.rank else {})
