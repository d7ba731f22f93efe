"""Where points come from: folders of runs and nights, baselines with their git history, and artifacts.

Whatever is there may be somebody else's. What cannot be read, or is none of ours, is named and left out.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from perfgate.baseline.lineage import parse
from perfgate.errors import PerfgateError, RecordError, UsageError
from perfgate.fleet.nightly import BESIDE, HALVES, REFERENCE
from perfgate.github.artifact import unpack
from perfgate.history.baseline_versions import FORMATTED, Version, entries_in, versions
from perfgate.history.point_table import PointTable
from perfgate.history.points import Point, Role, points_of_baseline, points_of_run, utc
from perfgate.judge.outcome import Outcome
from perfgate.machine.atomic_files import sha256_hex
from perfgate.machine.json_text import BASELINE, VERDICT
from perfgate.machine.versioned_json import read_bytes, read_model
from perfgate.record.run_names import DRILL, NIGHT, RUN
from perfgate.record.run_record import read_records, read_run, record_digest
from perfgate.report.document import printable

ARTIFACT_BYTES = 1024**3  # of what is unpacked from one artifact; traces and timelines stay packed
DEEPEST = 12  # folders below a source; ours are at most seven deep
VERDICT_FILE = "verdict.json"
_WANTED = re.compile(rf"(?:^|/)(?:{RUN}|{NIGHT}|{DRILL}|{VERDICT_FILE}|records/[^/]+\.json)$")
_OF_THE_REFERENCE = {REFERENCE, *(part for part, measured in BESIDE.items() if measured == REFERENCE)}
_PASSED_BY = {NIGHT, VERDICT_FILE, "job.json"}  # files beside runs that tell nothing more
_AHEAD = timedelta(days=1)  # by which the clock of a machine may be ahead of this one's


@dataclass(frozen=True)
class Fault:
    """Something that was left out."""

    where: str  # its path, as it was found, in one line
    why: str  # what is wrong with it, in one line

    @classmethod
    def of(cls, where: str, why: str) -> Fault:
        """Of words that somebody else may have written."""
        return cls(*(" ".join(printable(text).split("\n")) for text in (where, why)))


@dataclass(frozen=True)
class Found:
    """Something that may be read."""

    name: str  # its path, for people
    files: tuple[Path, ...]  # what it consists of
    load: Callable[[], list[Point]]  # reads it
    role: Role | None = None  # of what it measured, where its place tells


@dataclass
class Sources:
    """What was read so far."""

    table: PointTable  # where points are kept
    # Digest of each source, with the role of what it measured where its place tells
    roles: dict[str, Role | None] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)  # what was left out

    def add(self, path: Path) -> None:
        """Read a folder of runs, nights, artifacts or baselines, or one of these.

        Raises:
            UsageError: There is no such path.
        """
        if not path.exists():
            raise UsageError("does not exist", where=str(path))
        known: set[str] = set()
        for found in _walk(path, str(path), None, 0) if path.is_dir() else _file(path, str(path), named=True):
            if isinstance(found, Fault):
                self.faults.append(found)
                continue
            whole = self._take(found)
            if len(found.files) == 1 and found.files[0].suffix == ".json":
                known |= _told_of(found.files[0], whole=whole)
        self._add_versions(path, known)

    def _take(self, found: Found) -> bool:
        """Use a source, and whether it is whole; what the table knows is not read again."""
        try:
            parts = ((os.fsencode(file.name), self._digest(file).encode()) for file in found.files)
            digest = sha256_hex(b"\n".join(b" ".join(part) for part in parts))
        except OSError as error:
            self.faults.append(_unreadable(found.name, error))
            return False
        return self._load(digest, found)

    def _load(self, digest: str, found: Found) -> bool:
        """The table keeps where faults are within the source alone: the same content may be found elsewhere."""
        faults, name = self.table.faults(digest), Fault.of(found.name, "").where
        if faults is None:
            points, told = _loaded(found)
            faults = [f"{one.where.removeprefix(name)}\n{one.why}" for one in told]
            self.table.keep(digest, points, faults)
        for within, _, why in (fault.partition("\n") for fault in faults):
            self.faults.append(Fault(f"{name}{within}", why))
        self.roles.setdefault(digest, found.role)
        return not faults

    def _digest(self, file: Path) -> str:
        """Of a file's content; a file that is as it was when it was read, by all that its inode tells, has the same."""
        told, where = file.stat(), os.fsencode(file.absolute()).hex()
        state = f"{told.st_dev} {told.st_ino} {told.st_size} {told.st_mtime_ns} {told.st_ctime_ns}"
        digest = self.table.digest(where, state)
        if not digest:
            with file.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            self.table.keep_digest(where, state, digest)
        return digest

    def points(self, now: datetime, metrics: Sequence[str] = ()) -> Iterator[Point]:
        """What was read, in order of time; visits that have not begun yet are left out.

        Args:
            now: The time.
            metrics: Only these; all if there are none.
        """
        latest = utc((now + _AHEAD).isoformat())
        ahead: set[tuple[str, str]] = set()
        for point in self.table.points(self.roles, metrics):
            if point.t0_utc <= latest:
                yield point
            elif (visit := (point.record, point.t0_utc)) not in ahead:
                ahead.add(visit)
                why = f"a visit of record {point.record[:12]} began at {point.t0_utc}, which is yet to come"
                self.faults.append(Fault.of(f"{point.cell} on {point.machine}", why))

    def _add_versions(self, path: Path, known: set[str]) -> None:
        """What baselines held at earlier commits and hold no longer."""
        for version in versions(path, known):
            if isinstance(version, str):
                self.faults.append(Fault.of(str(path), version))
            elif self._load(version.digest, _of_version(version)):
                known |= entries_in(version.text)


def _told_of(file: Path, *, whole: bool) -> frozenset[str]:
    """Of a baseline's file what git need not tell again: its entries, or itself where it is broken."""
    try:
        text = read_bytes(file, BASELINE).decode(errors="replace")
    except RecordError:  # it was told of
        return frozenset()
    return entries_in(text) if whole else frozenset({sha256_hex(text)})


def _of_version(version: Version) -> Found:
    name = f"{version.path} at {version.blob[:12]}"
    return Found(name, (), lambda: [*points_of_baseline(parse(version.text, name))])


def _walk(folder: Path, name: str, role: Role | None, depth: int) -> Iterator[Found | Fault]:
    """What is in a folder; links are not followed, and hidden folders not looked into."""
    try:
        if (folder / RUN).is_file():
            yield _run(folder, name, role)
            return
        if (folder / DRILL).is_file():
            yield Fault.of(name, "a drill: its heads are slow on purpose")
            return
        entries = sorted(os.scandir(folder), key=lambda one: one.name)
        parts = (*HALVES, *BESIDE) if (folder / NIGHT).is_file() else ()
    except OSError as error:
        yield _unreadable(name, error)
        return
    if depth > DEEPEST:
        yield Fault.of(name, f"is more than {DEEPEST} folders deep")
    else:
        for entry in entries:
            below, path = f"{name}/{entry.name}", Path(entry.path)
            if entry.name.startswith("."):
                continue
            if entry.is_symlink():
                yield Fault.of(below, "a link, which is not followed: name where it leads")
            elif not entry.is_dir():
                yield from _file(path, below)
            elif not parts or entry.name in parts:
                own: Role | None = "reference" if entry.name in _OF_THE_REFERENCE else "head"
                yield from _walk(path, below, own if parts else role, depth + 1)


def _file(file: Path, name: str, *, named: bool = False) -> Iterator[Found | Fault]:
    """A file that is ours by its name; others, like reports, are told of only where they were asked for."""
    if not file.is_file():
        yield Fault.of(name, "neither a file nor a folder")
    elif file.suffix == ".zip":
        yield Found(name, (file,), lambda: _points_of_artifact(file, name))
    elif file.suffix == ".json" and file.name not in _PASSED_BY:
        yield Found(name, (file,), lambda: _points_of_baseline(file, name))
    elif named:
        yield Fault.of(name, "expected a folder, the .zip of an artifact, or the .json of a baseline")


def _run(folder: Path, name: str, role: Role | None) -> Found | Fault:
    records = sorted((folder / "records").glob("*.json"))
    files = (folder / RUN, folder / VERDICT_FILE, *records)
    missing = next((file.name for file in files if not file.is_file()), "" if records else "records")
    if missing:
        return Fault.of(name, f"not a whole run: it has no {missing}")
    return Found(name, files, lambda: _points_of_run(folder), role)


def _loaded(found: Found) -> tuple[list[Point], list[Fault]]:
    """The points of a source, and what of it cannot be read."""
    try:
        return found.load(), []
    except _PartlyRead as partly:
        return partly.points, partly.faults
    except PerfgateError as error:
        return [], [Fault.of(found.name, error.text)]
    except OSError as error:
        return [], [_unreadable(found.name, error)]


def _unreadable(name: str, error: OSError) -> Fault:
    return Fault.of(name, f"cannot be read: {error.strerror or error}")


class _PartlyRead(Exception):  # noqa: N818 (an archive of which some runs were left out)
    def __init__(self, points: list[Point], faults: list[Fault]) -> None:
        super().__init__()
        self.points = points
        self.faults = faults


def _points_of_run(folder: Path) -> list[Point]:
    run = read_run(folder)
    if run.quick:
        raise RecordError("a run with --quick, of one trial a side")
    outcome = read_model(Outcome, folder / VERDICT_FILE, VERDICT)
    records = [*read_records(folder, run)]
    judged = {cell.record for cell in outcome.cells}
    if not {record_digest(record) for record in records} <= judged:
        raise RecordError("its verdict.json is not of its records")
    points = [*points_of_run(run, outcome, records)]
    if not points:
        raise RecordError(f"nothing was measured: {outcome.verdict}")
    return points


def _points_of_baseline(file: Path, name: str) -> list[Point]:
    text = read_bytes(file, BASELINE).decode(errors="replace")  # which no digest fits
    if FORMATTED not in text:
        raise RecordError("not a run, a baseline or an artifact")
    return [*points_of_baseline(parse(text, name))]


def _points_of_artifact(file: Path, name: str) -> list[Point]:
    """The runs of an archive, each by its own name in it."""
    points: list[Point] = []
    faults: list[Fault] = []
    with tempfile.TemporaryDirectory(prefix="perfgate-history-") as scratch:
        unpack(file, Path(scratch) / "content", ARTIFACT_BYTES, lambda member: bool(_WANTED.search(member)))
        for found in _walk(Path(scratch) / "content", name, None, 0):
            if isinstance(found, Fault):
                faults.append(found)
                continue
            own, told = _loaded(found)
            points += [replace(point, role=found.role or point.role) for point in own]
            faults += told
    if faults:
        raise _PartlyRead(points, faults)
    return points
