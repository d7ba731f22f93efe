"""An SQLite export of Nsight Systems as a file: opened with checks, probed for tables and columns, read in columns."""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
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

_CHUNK_ROWS = 1 << 16
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

    def check_range(self, table: str, most: Mapping[str, int]) -> None:
        """Check that values fit where SQL packs several into one; text and blobs, which it would take for 0, do not.

        Args:
            table: Its name; nothing is checked where it is not there.
            most: The largest value of each column; the least is 0, and -1 and nothing say that there is none.

        Raises:
            RecordError: One does not fit.
        """
        if table not in self.columns:
            return
        fits = " AND ".join(f'"{name}" BETWEEN -1 AND {value}' for name, value in most.items())
        query = f'SELECT {", ".join(most)} FROM "{table}" WHERE NOT ({fits}) LIMIT 1'  # noqa: S608 (named in this package)
        for row in self.select(query):
            for (name, top), value in zip(most.items(), row, strict=True):
                if not (isinstance(value, int | float) and -1 <= value <= top):
                    text = f"table {table} has {name} {str(value)[:60]!r}, expected a whole number up to {top}"
                    raise RecordError(text, where=self.where, remedy=DAMAGED)

    def integers(
        self,
        table: str,
        expressions: Sequence[str],
        keep: Callable[[Sequence[Ints]], NDArray[np.bool_]] | None = None,
        condition: str = "1",
    ) -> list[Ints]:
        """One array an expression over the rows of a table, unordered; empty ones where the table is not there.

        Args:
            table: Its name.
            expressions: What to select.
            keep: Which of some rows to keep, by their columns; all without it.
            condition: Which rows to read at all: a row that SQLite leaves out costs a tenth of one that is read.

        Raises:
            RecordError: A value is not an integer, or there are more rows to keep than
                :data:`perfgate.trace.limits.MAX_ROWS`.
        """
        if table not in self.columns:
            return [_NOTHING for _ in expressions]
        query = f'SELECT {", ".join(expressions)} FROM "{table}" WHERE {condition}'  # noqa: S608 (named in this package)
        chunks, count = [], 0
        with contextlib.closing(self.select(query)) as rows:
            for chunk in self._chunks(rows, len(expressions), table):
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

    def _chunks(self, rows: Iterator[tuple[Any, ...]], width: int, table: str) -> Iterator[list[Ints]]:
        """The columns of so many rows at a time."""
        values = itertools.chain.from_iterable(rows)
        while True:
            try:
                flat = np.fromiter(itertools.islice(values, width * _CHUNK_ROWS), np.int64)
            except (TypeError, ValueError, OverflowError) as error:
                text = f"table {table} holds a value that is not an integer: {error}"
                raise RecordError(text, where=self.where, remedy=DAMAGED) from error
            if not len(flat):
                return
            yield [np.ascontiguousarray(column) for column in flat.reshape(-1, width).T]

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
