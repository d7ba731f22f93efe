"""The table of all points: a DuckDB file that saves reading again what was read before.

JSON stays the truth. What is in the file is told by digests of what was read; with the file gone, or of another
version, everything is read anew and the pages are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, fields
from pathlib import Path

import duckdb
import pandas as pd

from perfgate import __version__
from perfgate.errors import UsageError
from perfgate.history.points import Point, Role

READER = f"1 {__version__}"
"""What a file was read by: another version may see other things in the same record."""
_TYPES = {"str": "VARCHAR", "Role": "VARCHAR", "int": "INTEGER", "bool": "BOOLEAN"}
_COLUMNS = {one.name: _TYPES.get(str(one.type), "DOUBLE") for one in fields(Point)}
"""Of points, in the order of their fields; what may be missing is a figure."""
_TABLES = f"""
CREATE TABLE IF NOT EXISTS files (path VARCHAR PRIMARY KEY, size BIGINT, mtime_ns BIGINT, digest VARCHAR);
CREATE TABLE IF NOT EXISTS sources (digest VARCHAR PRIMARY KEY, reader VARCHAR, faults VARCHAR[]);
CREATE TABLE IF NOT EXISTS points (source VARCHAR, {", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())});
"""


class PointTable:
    """The table, open; one process at a time has it.

    Args:
        connection: To its file, or to memory.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        connection.execute(_TABLES)
        if connection.execute("SELECT 1 FROM sources WHERE reader <> ? LIMIT 1", [READER]).fetchall():
            connection.execute(f"DROP TABLE files; DROP TABLE sources; DROP TABLE points; {_TABLES}")
        rows = connection.execute("SELECT path, size, mtime_ns, digest FROM files").fetchall()
        self._files: dict[str, tuple[int, int, str]] = {path: (size, when, digest) for path, size, when, digest in rows}
        self._seen: dict[str, tuple[int, int, str]] = {}
        self._known = dict(connection.execute("SELECT digest, faults FROM sources").fetchall())
        self._new: list[tuple[object, ...]] = []
        self._added: list[str] = []

    def digest(self, path: str, size: int, mtime_ns: int) -> str:
        """The digest that a file had when it had this size and time; empty where it was not like that."""
        known = self._files.get(path)
        return known[2] if known and known[:2] == (size, mtime_ns) else ""

    def keep_digest(self, path: str, size: int, mtime_ns: int, digest: str) -> None:
        """Remember what a file holds."""
        if self._files.get(path) != (size, mtime_ns, digest):
            self._seen[path] = (size, mtime_ns, digest)

    def faults(self, source: str) -> list[str] | None:
        """What could not be read of a source; ``None`` for one that was not read yet."""
        return self._known.get(source)

    def keep(self, source: str, points: Iterable[Point], faults: Sequence[str] = ()) -> None:
        """Add what a source holds, by its digest."""
        self._new += [(source, *astuple(point)) for point in points]
        self._known[source] = [*faults]
        self._added.append(source)

    def save(self) -> None:
        """Write what was added."""
        known = [(digest, READER, self._known[digest]) for digest in self._added]
        files = [(path, *what) for path, what in self._seen.items()]
        self._insert("sources", known, ["digest", "reader", "faults"], "OR REPLACE")
        self._insert("files", files, ["path", "size", "mtime_ns", "digest"], "OR REPLACE")
        self._insert("points", self._new, ["source", *_COLUMNS])
        self._new, self._added = [], []

    def points(self, roles: Mapping[str, Role | None], metrics: Sequence[str] = ()) -> Iterator[Point]:
        """The points of some sources in order of time.

        Args:
            roles: Digests of the sources, each with the role of what they measured where that is known from elsewhere.
            metrics: Only these; all if there are none.
        """
        asked = pd.DataFrame([*roles.items()], columns=["digest", "told"], dtype=object)
        self._connection.register("asked", asked)
        names = ", ".join("coalesce(told, role) AS role" if name == "role" else name for name in _COLUMNS)
        only = f"WHERE metric IN ({', '.join('?' * len(metrics))})" if metrics else ""
        query = f"SELECT {names} FROM points JOIN asked ON source = digest {only} ORDER BY t0_utc, record, metric"  # noqa: S608
        rows = self._connection.execute(query, [*metrics]).fetchall()
        self._connection.unregister("asked")
        return (Point(*row) for row in rows)

    def _insert(self, table: str, rows: Sequence[tuple[object, ...]], columns: Sequence[str], how: str = "") -> None:
        if rows:
            self._connection.register("new_rows", pd.DataFrame(rows, columns=[*columns], dtype=object))
            self._connection.execute(f"INSERT {how} INTO {table} SELECT * FROM new_rows")  # noqa: S608 (names of ours)
            self._connection.unregister("new_rows")


@contextmanager
def opened(file: Path | None) -> Iterator[PointTable]:
    """The table in a file; in memory without one.

    Raises:
        UsageError: The file is not such a table, cannot be written, or another process has it.
    """
    remedy = "Remove the file, name another with --cache, or wait for the perfgate history that has it."
    try:
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
        connection = duckdb.connect(":memory:" if file is None else str(file))
    except (OSError, duckdb.Error) as error:
        text = str(error).partition("\n")[0]
        raise UsageError(f"cannot be opened as a cache: {text}", where=str(file), remedy=remedy) from error
    with connection:
        try:
            table = PointTable(connection)
        except duckdb.Error as error:
            text = str(error).partition("\n")[0]
            raise UsageError(f"is not a cache of perfgate: {text}", where=str(file), remedy=remedy) from error
        yield table
