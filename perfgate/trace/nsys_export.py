"""An SQLite export of Nsight Systems as a file: opened with checks, probed for tables and columns, read in columns."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from perfgate.errors import RecordError
from perfgate.trace.limits import MAX_ROWS, SQLITE

MAGIC = b"SQLite format 3\x00"
Ints = NDArray[np.int64]

PREFIX = "CUPTI_ACTIVITY_KIND_"
KERNELS, _GRAPHS = f"{PREFIX}KERNEL", f"{PREFIX}GRAPH_TRACE"
_KERNEL_COLUMNS = (
    "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "demangledName",
    "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
)  # fmt: skip

_CHUNK_ROWS = 1 << 16
_NO_LIMITS: Mapping[str, int] = {}
_HEADER_BYTES = 100
DAMAGED = "The file is damaged: copy it again, or export the report again."


class Export(contextlib.AbstractContextManager["Export"]):
    """An open export: its tables, its columns, its strings.

    Args:
        file: What ``nsys export --type=sqlite`` wrote.

    Raises:
        RecordError: The file is empty, cut short, damaged or no SQLite database.
    """

    def __init__(self, file: Path) -> None:
        self.where = str(file)
        _check_file(file)
        self.connection = sqlite3.connect(read_only(file), uri=True)
        self.columns: dict[str, dict[str, str]] = {}
        """The declared type of each column of each table, in capitals."""
        try:
            harden(self.connection)
            for (table,) in list(self.select("SELECT name FROM sqlite_master WHERE type = 'table'")):
                rows = self.select(f"PRAGMA table_info({quoted(table)})")
                self.columns[table] = {str(row[1]): str(row[2]).upper() for row in rows}
        except BaseException:
            self.connection.close()
            raise

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.connection.close()

    def select(self, query: str, values: Sequence[Any] = ()) -> Generator[tuple[Any, ...], None, None]:
        """Rows one by one.

        Raises:
            RecordError: SQLite cannot read them.
        """
        try:
            yield from self.connection.execute(query, values)
        except (sqlite3.Error, UnicodeError) as error:
            raise RecordError(f"cannot be read: {error}", where=self.where, remedy=DAMAGED) from error

    def has(self, table: str) -> bool:
        """Whether the table is there and has a row."""
        query = f'SELECT 1 FROM "{table}" LIMIT 1'  # noqa: S608 (tables named in this package)
        return table in self.columns and bool(list(self.select(query)))

    def count(self, table: str) -> int:
        """The rows of a table; none where it is not there."""
        query = f'SELECT COUNT(*) FROM "{table}"'  # noqa: S608 (as above)
        return sum(rows for (rows,) in self.select(query)) if table in self.columns else 0

    def need(self, table: str, columns: Sequence[str]) -> None:
        """Check that a table has these columns.

        Raises:
            RecordError: It has not.
        """
        missing = [name for name in columns if name not in self.columns[table]]
        if missing:
            text = f"table {table} has no column {missing[0]} ({self.version})"
            raise RecordError(text, where=self.where, remedy="This layout of nsys is not known here; report it.")

    def integers(
        self,
        table: str,
        expressions: Sequence[str],
        keep: Callable[[Sequence[Ints]], NDArray[np.bool_]] | None = None,
        condition: str = "1",
        most: Mapping[str, int] = _NO_LIMITS,
    ) -> list[Ints]:
        """One array an expression over the rows of a table, unordered; empty ones where the table is not there.

        Args:
            table: Its name.
            expressions: What to select.
            keep: Which of some rows to keep, by their columns; all without it.
            condition: Which rows to read at all: a row that SQLite leaves out costs a tenth of one that is read.
            most: The largest value of columns that expressions pack into one number; the least is 0, and -1 and nothing
                say that there is none. Texts and blobs, which SQL would take for 0, do not fit.

        Raises:
            RecordError: A value is not an integer or does not fit, or there are more rows to keep than
                :data:`perfgate.trace.limits.MAX_ROWS`.
        """
        if table not in self.columns:
            return [_NOTHING for _ in expressions]
        chunks, count = [], 0
        for chunk in self._chunks(table, expressions, condition, most):
            if keep is not None and not (kept := keep(chunk)).all():
                chunk[:] = [column[kept] for column in chunk]
            count += len(chunk[0])
            if count > MAX_ROWS:
                text = f"table {table} has more than {MAX_ROWS} rows"
                raise RecordError(text, where=self.where, remedy="Trace fewer iterations.")
            chunks.append(chunk)
        made = []
        for number in range(len(expressions)):  # column by column, so that no more than one is there twice
            made.append(np.concatenate([_NOTHING, *(chunk[number] for chunk in chunks)]))
            for chunk in chunks:
                chunk[number] = _NOTHING
        return made

    def _chunks(
        self, table: str, expressions: Sequence[str], condition: str, most: Mapping[str, int]
    ) -> Iterator[list[Ints]]:
        """The columns of so many rows at a time; as texts that SQLite joins they take half the time of single rows."""
        named = ", ".join(f"{expression} AS c{n}" for n, expression in enumerate(expressions))
        joined = ", ".join(f"GROUP_CONCAT(c{n})" for n in range(len(expressions)))
        query = (
            f"SELECT COUNT(*), MAX(number), MIN(fits), {joined} "  # noqa: S608 (named in this package)
            f"FROM (SELECT _rowid_ AS number, {_fitting(most)} AS fits, {named} "
            f'FROM "{table}" WHERE _rowid_ > ? AND ({condition}) ORDER BY _rowid_ LIMIT {_CHUNK_ROWS})'
        )
        last = _NO_ROW
        while True:
            ((count, after, fits, *texts),) = self.select(query, (last,))
            if not count:
                return
            if fits == 0:
                raise RecordError(self._beyond(table, most), where=self.where, remedy=DAMAGED)
            columns = [_parsed(text) for text in texts]
            if any(len(column) != count for column in columns) or not isinstance(after, int) or after <= last:
                raise RecordError(self._unlike_integers(table, expressions), where=self.where, remedy=DAMAGED)
            last = after
            yield columns

    def _unlike_integers(self, table: str, expressions: Sequence[str]) -> str:
        """What is wrong with a table's values."""
        for expression in expressions:
            query = f"SELECT {expression} FROM \"{table}\" WHERE TYPEOF({expression}) != 'integer' LIMIT 1"  # noqa: S608
            for (value,) in self.select(query):
                return f"table {table} holds a value that is not an integer: {str(value)[:60]!r}"
        return f"table {table} holds rows that cannot be told apart"

    def _beyond(self, table: str, most: Mapping[str, int]) -> str:
        """Which value of a table does not fit."""
        query = f'SELECT {", ".join(most)} FROM "{table}" WHERE NOT ({_fitting(most)}) LIMIT 1'  # noqa: S608
        for row in self.select(query):
            for (name, top), value in zip(most.items(), row, strict=True):
                if not (isinstance(value, int | float) and -1 <= value <= top):
                    return f"table {table} has {name} {str(value)[:60]!r}, expected a whole number up to {top}"
        return f"table {table} holds a number that is too large"

    def strings(self, ids: Ints) -> tuple[str, ...]:
        """The strings of these ids.

        Raises:
            RecordError: An id has none.
        """
        wanted: list[int] = ids.tolist()
        texts: dict[int, Any] = {}
        for first in range(0, len(wanted), 500):
            part = wanted[first : first + 500]
            marks = ",".join("?" * len(part))
            texts.update(self.select(f"SELECT id, value FROM StringIds WHERE id IN ({marks})", part))  # noqa: S608
        missing = [number for number in wanted if not isinstance(texts.get(number), str)]
        if missing:
            raise RecordError(f"StringIds has no text {missing[0]}", where=self.where, remedy=DAMAGED)
        return tuple(texts[number] for number in wanted)

    @property
    def version(self) -> str:
        """The version of nsys that exported, as far as the file tells."""
        for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
            if table in self.columns:
                query = f"SELECT value FROM {table} WHERE name = 'EXPORT_PRODUCT_VERSION'"  # noqa: S608
                return next((f"nsys {str(row[0])[:40]}" for row in self.select(query)), _UNKNOWN)
        return _UNKNOWN


def check_content(export: Export) -> None:
    """Check that a file is an export of nsys and holds its kernels.

    Raises:
        RecordError: It is not, or they are hidden in graphs traced as single events.
    """
    if "StringIds" not in export.columns:
        text = "is an SQLite database, but no export of nsys"
        raise RecordError(text, where=export.where, remedy="Make one with: nsys export --type=sqlite REPORT.nsys-rep")
    if hidden := _hidden_graphs(export):
        of = f"{hidden} of {export.count(_GRAPHS)} launches of CUDA graphs"
        text = f"holds {of} as single events, so that their kernels are hidden"
        raise RecordError(text, where=export.where, remedy="Trace with --cuda-graph-trace=node.")
    if not export.has(KERNELS):
        text = f"holds no CUDA kernel ({export.version})"
        remedy = "Was --trace=cuda given, the capture range opened, and no other CUPTI client (torch profiler) running?"
        raise RecordError(text, where=export.where, remedy=remedy)
    export.need(KERNELS, _KERNEL_COLUMNS)


def _hidden_graphs(export: Export) -> int:
    """How many launches of graphs have an event of their own and no kernel."""
    if not export.has(_GRAPHS):
        return 0
    key = ("correlationId", "COALESCE(globalPid, 0)")
    if not {"correlationId", "globalPid"} <= export.columns[_GRAPHS].keys():
        return export.count(_GRAPHS)
    seen = set[tuple[int, int]]()
    if {"correlationId", "globalPid", "graphNodeId"} <= export.columns.get(KERNELS, {}).keys():
        launched = export.integers(KERNELS, key, condition="graphNodeId IS NOT NULL AND correlationId IS NOT NULL")
        seen = set(zip(*(column.tolist() for column in launched), strict=True))
    traced = export.integers(_GRAPHS, ("COALESCE(correlationId, -1)", key[1]))
    return sum(launch not in seen for launch in zip(*(column.tolist() for column in traced), strict=True))


def harden(connection: sqlite3.Connection) -> None:
    """Let nothing in a file's schema run code, and bound what a query and a value may take."""
    for limit, value in SQLITE.items():
        connection.setlimit(limit, value)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")


def quoted(name: str) -> str:
    """A name from a file as an identifier of SQL."""
    return f'"{name.replace(chr(34), chr(34) * 2)}"'


def read_only(file: Path) -> str:
    """The URI by which SQLite reads a file without locks, whatever bytes its path has."""
    return f"file:{quote(os.fsencode(file))}?mode=ro&immutable=1"


def _fitting(most: Mapping[str, int]) -> str:
    """Whether values fit, in SQL."""
    return " AND ".join(f'"{name}" BETWEEN -1 AND {value}' for name, value in most.items()) or "1"


def _parsed(text: str | None) -> Ints:
    """The integers of a text with commas, up to the first that is none."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of text behind the last integer
        try:
            return np.fromstring(text or "", np.int64, sep=",")
        except ValueError:  # the same in a later numpy
            return _NOTHING


_NO_ROW = -(1 << 63)
_UNKNOWN = "nsys of an unknown version"
_NOTHING = np.empty(0, np.int64)


def _check_file(file: Path) -> None:
    """What can be known before SQLite opens a file."""
    with file.open("rb") as stream:
        head = stream.read(_HEADER_BYTES)
    size = file.stat().st_size
    if not size:
        raise RecordError("is empty", where=str(file), remedy="nsys wrote nothing into it: see its messages.")
    if not head.startswith(MAGIC) or len(head) < _HEADER_BYTES:
        raise RecordError("not an SQLite database", where=str(file))
    page_bytes, pages = int.from_bytes(head[16:18], "big"), int.from_bytes(head[28:32], "big")
    expected = (page_bytes if page_bytes > 1 else 65536) * pages  # SQLite writes 65536 as 1
    if size < expected:
        text = f"is cut short: {size} of {expected} bytes are there"
        raise RecordError(text, where=str(file), remedy="Copy it again, or export the report again.")
