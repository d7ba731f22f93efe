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

READER = f"2 {__version__}"  # what a file was read by: another version may see other things in the same record
_TYPES = {"str": "VARCHAR", "Role": "VARCHAR", "int": "INTEGER", "bool": "BOOLEAN"}
# Of points, in the order of their fields; what may be missing is a figure
_COLUMNS = {one.name: _TYPES.get(str(one.type), "DOUBLE") for one in fields(Point)}
_TABLES = {
    "reader": "version VARCHAR",
    "files": "path VARCHAR PRIMARY KEY, state VARCHAR, digest VARCHAR",
    "sources": "digest VARCHAR PRIMARY KEY, faults VARCHAR[]",
    "points": f"source VARCHAR, {', '.join(f'{name} {kind}' for name, kind in _COLUMNS.items())}",
}


class PointTable:
    """The table, open; one process at a time has it."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        there = {name for (name,) in connection.execute("SHOW TABLES").fetchall()}
        if "reader" not in there or connection.execute("SELECT version FROM reader").fetchall() != [(READER,)]:
            connection.begin()
            for name, columns in _TABLES.items():
                connection.execute(f"CREATE OR REPLACE TABLE {name} ({columns})")
            connection.execute("INSERT INTO reader VALUES (?)", [READER])
            connection.commit()
        rows = connection.execute("SELECT path, state, digest FROM files").fetchall()
        self._files: dict[str, tuple[str, str]] = {path: (state, digest) for path, state, digest in rows}
        self._seen: dict[str, tuple[str, str]] = {}
        self._known = dict(connection.execute("SELECT digest, faults FROM sources").fetchall())
        self._new: list[tuple[object, ...]] = []
        self._added: list[str] = []

    def digest(self, path: str, state: str) -> str:
        """The digest that a file had when it was in this state, its inode and times; empty where it was not."""
        old_state, digest = self._files.get(path, ("", ""))
        return digest if old_state == state else ""

    def keep_digest(self, path: str, state: str, digest: str) -> None:
        """Remember what a file holds."""
        self._seen[path] = (state, digest)

    def faults(self, source: str) -> list[str] | None:
        """What could not be read of a source; ``None`` for one that was not read yet."""
        return self._known.get(source)

    def keep(self, source: str, points: Iterable[Point], faults: Sequence[str] = ()) -> None:
        """Add what a source holds, by its digest."""
        self._new += [(source, *astuple(point)) for point in points]
        self._known[source] = [*faults]
        self._added.append(source)

    def save(self) -> None:
        """Write what was added, all of it or nothing: a source that is known has its points."""
        rows = [(digest, self._known[digest]) for digest in self._added]
        files = [(path, *what) for path, what in self._seen.items()]
        self._connection.begin()
        self._insert("sources", rows, ["digest", "faults"], "OR REPLACE")
        self._insert("files", files, ["path", "state", "digest"], "OR REPLACE")
        self._insert("points", self._new, ["source", *_COLUMNS])
        self._connection.commit()
        self._new, self._added = [], []

    def points(self, roles: Mapping[str, Role | None], metrics: Sequence[str] = ()) -> Iterator[Point]:
        """The points of some sources in order of time.

        A source comes with the role of what it measured where that is known from elsewhere.
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
    try:
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
        connection = duckdb.connect(":memory:" if file is None else str(file))
    except (OSError, duckdb.Error) as error:
        raise _refused(file, "cannot be opened as a cache", error) from error
    with connection:
        try:
            if foreign := {name for (name,) in connection.execute("SHOW TABLES").fetchall()} - {*_TABLES}:
                raise _refused(file, "is not a cache of perfgate", f"it has a table {min(foreign)}")
            table = PointTable(connection)
        except duckdb.Error as error:
            raise _refused(file, "is not a cache of perfgate", error) from error
        try:
            yield table
        except duckdb.Error as error:
            raise _refused(file, "cannot be used as a cache", error) from error


def _refused(file: Path | None, what: str, why: object) -> UsageError:
    remedy = "Remove the file, name another with --cache, or wait for the perfgate history that has it."
    return UsageError(f"{what}: {str(why).partition(chr(10))[0]}", where=str(file or "memory"), remedy=remedy)
