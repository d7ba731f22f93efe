"""Where points come from: folders of runs and nights, baselines with their git history, and artifacts.

Whatever is there may be somebody else's. What cannot be read, or is none of ours, is named and left out.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfgate.baseline.lineage import parse
from perfgate.errors import PerfgateError, RecordError, UsageError
from perfgate.github.artifact import unpack
from perfgate.history.baseline_versions import FORMATTED, Version, versions
from perfgate.history.point_table import PointTable
from perfgate.history.points import Point, Role, points_of_baseline, points_of_run
from perfgate.judge.outcome import Outcome
from perfgate.machine.atomic_files import sha256_hex
from perfgate.machine.json_text import BASELINE, VERDICT
from perfgate.machine.versioned_json import read_bytes, read_model
from perfgate.nightly import BESIDE, HALVES, REFERENCE
from perfgate.record.run_record import read_records, read_run, record_digest
from perfgate.report.run_folders import DRILL, NIGHT, RUN

ARTIFACT_BYTES = 1024**3
"""Of what is unpacked from one artifact; traces and timelines stay packed."""
DEEPEST = 12
"""Folders below a source; ours are at most seven deep."""
VERDICT_FILE = "verdict.json"
_WANTED = re.compile(rf"(?:^|/)(?:{RUN}|{NIGHT}|{DRILL}|{VERDICT_FILE}|records/[^/]+\.json)$")
_OF_THE_REFERENCE = {REFERENCE, *(part for part, measured in BESIDE.items() if measured == REFERENCE)}
_PASSED_BY = {NIGHT, VERDICT_FILE, "job.json"}
"""Files beside runs that tell nothing more."""


@dataclass(frozen=True)
class Fault:
    """Something that was left out.

    Args:
        where: Its path, as it was found.
        why: What is wrong with it.
    """

    where: str
    why: str


@dataclass(frozen=True)
class Found:
    """Something that may be read.

    Args:
        name: Its path, for people.
        files: What it consists of.
        load: Reads it.
        role: Of what it measured, where its place tells.
    """

    name: str
    files: tuple[Path, ...]
    load: Callable[[], list[Point]]
    role: Role | None = None


@dataclass
class Sources:
    """What was read so far.

    Args:
        table: Where points are kept.
        roles: Digest of each source, with the role of what it measured where its place tells.
        faults: What was left out.
    """

    table: PointTable
    roles: dict[str, Role | None] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def add(self, path: Path) -> None:
        """Read a folder of runs, nights, artifacts or baselines, or one of these.

        Raises:
            UsageError: There is no such path.
        """
        if not path.exists():
            raise UsageError("does not exist", where=str(path))
        kept: list[Path] = []
        for found in _walk(path, str(path), None, 0) if path.is_dir() else _file(path, str(path), named=True):
            if isinstance(found, Fault):
                self.faults.append(found)
                continue
            self._take(found)
            kept += [file for file in found.files if file.suffix == ".json" and len(found.files) == 1]
        self._add_versions(path, kept)

    def _take(self, found: Found) -> None:
        """Use a source; what the table knows is not read again."""
        try:
            digest = sha256_hex("\n".join(f"{file.name} {self._digest(file)}" for file in found.files))
        except OSError as error:
            self.faults.append(Fault(found.name, f"cannot be read: {error.strerror or error}"))
            return
        self._load(digest, found)

    def _load(self, digest: str, found: Found) -> None:
        faults = self.table.faults(digest)
        if faults is None:
            points, told = _loaded(found)
            faults = [f"{one.where}\n{one.why}" for one in told]
            self.table.keep(digest, points, faults)
        self.faults += [Fault(*fault.split("\n", 1)) for fault in faults]
        self.roles.setdefault(digest, found.role)

    def _digest(self, file: Path) -> str:
        """Of a file's content; one of the size and time that it had when it was read is taken for the same."""
        told, where = file.stat(), str(file.absolute())
        digest = self.table.digest(where, told.st_size, told.st_mtime_ns)
        if not digest:
            with file.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
        self.table.keep_digest(where, told.st_size, told.st_mtime_ns, digest)
        return digest

    def _add_versions(self, path: Path, kept: list[Path]) -> None:
        """What baselines held at earlier commits and hold no longer."""
        for version in versions(path, kept):
            if isinstance(version, str):
                self.faults.append(Fault(str(path), version))
            else:
                self._load(version.digest, _of_version(version))


def _of_version(version: Version) -> Found:
    name = f"{version.path} at {version.blob[:12]}"
    return Found(name, (), lambda: [*points_of_baseline(parse(version.text, name))])


def _walk(folder: Path, name: str, role: Role | None, depth: int) -> Iterator[Found | Fault]:
    """What is in a folder; links are not followed, and hidden folders not looked into."""
    if (folder / RUN).is_file():
        yield _run(folder, name, role)
    elif (folder / DRILL).is_file():
        yield Fault(name, "a drill: its heads are slow on purpose")
    elif depth > DEEPEST:
        yield Fault(name, f"is more than {DEEPEST} folders deep")
    else:
        parts = (*HALVES, *BESIDE) if (folder / NIGHT).is_file() else ()
        for entry in sorted(os.scandir(folder), key=lambda one: one.name):
            below, path = f"{name}/{entry.name}", Path(entry.path)
            if entry.is_symlink() or entry.name.startswith("."):
                continue
            if not entry.is_dir():
                yield from _file(path, below)
            elif not parts or entry.name in parts:
                own: Role | None = "reference" if entry.name in _OF_THE_REFERENCE else "head"
                yield from _walk(path, below, own if parts else role, depth + 1)


def _file(file: Path, name: str, *, named: bool = False) -> Iterator[Found | Fault]:
    """A file that is ours by its name; others, like reports, are told of only where they were asked for."""
    if file.suffix == ".zip":
        yield Found(name, (file,), lambda: _points_of_artifact(file, name))
    elif file.suffix == ".json" and file.name not in _PASSED_BY:
        yield Found(name, (file,), lambda: _points_of_baseline(file, name))
    elif named:
        yield Fault(name, "expected a folder, the .zip of an artifact, or the .json of a baseline")


def _run(folder: Path, name: str, role: Role | None) -> Found | Fault:
    records = sorted((folder / "records").glob("*.json"))
    files = (folder / RUN, folder / VERDICT_FILE, *records)
    missing = next((file.name for file in files if not file.is_file()), "" if records else "records")
    if missing:
        return Fault(name, f"not a whole run: it has no {missing}")
    return Found(name, files, lambda: _points_of_run(folder), role)


def _loaded(found: Found) -> tuple[list[Point], list[Fault]]:
    """The points of a source, and what of it cannot be read."""
    try:
        return found.load(), []
    except _PartlyRead as partly:
        return partly.points, partly.faults
    except PerfgateError as error:
        return [], [Fault(found.name, error.text)]
    except OSError as error:
        return [], [Fault(found.name, f"cannot be read: {error.strerror or error}")]


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
