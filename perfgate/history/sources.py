"""Where points come from: folders of runs and nights, baselines with their git history, and artifacts.

Whatever is there may be somebody else's. What cannot be read, or is none of ours, is named and left out.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from perfgate.baseline.lineage import FORMAT, parse
from perfgate.errors import PerfgateError, RecordError, UsageError
from perfgate.fleet.nightly import BESIDE, HALVES, REFERENCE
from perfgate.github.artifact import unpack
from perfgate.history.point_table import PointTable
from perfgate.history.points import Point, Role, points_of_baseline, points_of_run, utc
from perfgate.judge.outcome import Outcome
from perfgate.machine.atomic_files import sha256_hex
from perfgate.machine.json_text import BASELINE, VERDICT
from perfgate.machine.versioned_json import read_bytes, read_model
from perfgate.project.git import Git, NoGitError
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
FORMATTED = f'"format": "{FORMAT.partition("/")[0]}/'  # what every baseline's file says of itself
MOST_VERSIONS = 20_000  # of all files of a source; a promotion a night for fifty years
AT_ONCE = 16
MOST_NAMED = 10  # of versions that git does not give: a partial clone may lack all of them
_DIGEST = re.compile(r'"(?:digest|tip)": "([0-9a-f]{64})"')
_TIP = re.compile(r'"tip": "([0-9a-f]{64})"\s*}\s*$')
_CHANGE = re.compile(r":\d+ \d+ ([0-9a-f]{40,64}) ([0-9a-f]{40,64}) \w+\0([^\0]*)\0")


@dataclass(frozen=True)
class Version:
    """A file as it was at some commit."""

    path: str  # of the file, in its repository
    blob: str  # what git calls its content
    text: str  # all of it


def entries_in(text: str) -> frozenset[str]:
    """The digests of the entries that the text of a baseline names."""
    return frozenset(_DIGEST.findall(text))


def versions(path: Path, digests: AbstractSet[str]) -> Iterator[Version | str]:
    """Versions that hold an entry which no newer one does, the newest first; why others are not read, in words.

    Args:
        path: A folder or a file, perhaps of a repository.
        digests: The digests of entries that were read, and of broken files that are there now. It is asked before each
            version, so the caller adds those of a version once that could be read: a broken one hides no older one.
    """
    git = Git(path if path.is_dir() else path.parent, fetches=False)
    try:
        if git.ask("rev-parse", "--git-dir").returncode or not git.commit("HEAD"):
            return
        if git.run("rev-parse", "--is-shallow-repository").strip() == "true":
            yield "a shallow clone: what its baselines held before is not read (fetch-depth: 0)"
        listed = git.run("log", "--no-show-signature", "--no-renames", "--no-ext-diff", "--raw", "-z", "--no-abbrev",
                         "--format=", "--", "." if path.is_dir() else path.name)  # fmt: skip
    except NoGitError:
        yield "its git history is not read: there is no git on PATH"
        return
    except PerfgateError as error:
        yield f"its git history is not read: {error.text}"
        return
    blobs = {blob: name for old, new, name in _CHANGE.findall(listed) if name.endswith(".json")
             for blob in (new, old) if blob.strip("0")}  # fmt: skip
    if len(blobs) > MOST_VERSIONS:
        yield f"has {len(blobs)} versions in git; the newest {MOST_VERSIONS} are read"
    yield from _read_of(git, dict([*blobs.items()][:MOST_VERSIONS]), digests)


def _read_of(git: Git, blobs: Mapping[str, str], digests: AbstractSet[str]) -> Iterator[Version | str]:
    names, lost = [*blobs], 0
    for begin in range(0, len(names), AT_ONCE):
        for blob, text, problem in _contents(git, names[begin : begin + AT_ONCE]):
            tip = _TIP.search(text[-200:])
            if problem:
                lost += 1
                if lost <= MOST_NAMED:
                    yield f"{blobs[blob]} at {blob[:12]} in git is not read: {problem}"
            elif FORMATTED in text and not {tip[1] if tip else "", sha256_hex(text)} & digests:
                yield Version(blobs[blob], blob, text)
    if lost > MOST_NAMED:
        yield f"{lost} versions in git are not read, of which the first {MOST_NAMED} are named"


def _contents(git: Git, blobs: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """The text of each blob and why git does not give it; nothing of one that no baseline can be so large as."""
    try:
        read = [*_read(git, blobs)]
    except PerfgateError as error:  # git ends at the first that it cannot read, and does not say where it was
        if len(blobs) > 1:
            for blob in blobs:
                yield from _contents(git, [blob])
            return
        read = [(blobs[0], "", error.text)]
    yield from read


def _read(git: Git, blobs: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    small = []
    for line in git.run("cat-file", "--batch-check", text="".join(f"{blob}\n" for blob in blobs)).splitlines():
        blob, *kind = line.split()
        if kind == ["missing"]:
            yield blob, "", "this repository does not have it"
        elif kind[0] == "blob" and int(kind[1]) <= BASELINE.mib << 20:
            small.append(blob)
    rest = git.content("cat-file", "--batch", text="".join(f"{blob}\n" for blob in small))
    for blob in small:
        heading, _, rest = rest.partition(b"\n")
        size = int(heading.rpartition(b" ")[2])
        yield blob, rest[:size].decode(errors="replace"), ""
        rest = rest[size + 1 :]


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
        digests: set[str] = set()
        for source in _walk(path, str(path), None, 0) if path.is_dir() else _file(path, str(path), named=True):
            if isinstance(source, Fault):
                self.faults.append(source)
                continue
            whole = self._take(source)
            if len(source.files) == 1 and source.files[0].suffix == ".json":  # what git need not tell again
                with contextlib.suppress(RecordError):  # it was told of
                    text = read_bytes(source.files[0], BASELINE).decode(errors="replace")
                    digests |= entries_in(text) if whole else {sha256_hex(text)}
        for version in versions(path, digests):  # what baselines held at earlier commits and hold no longer
            if isinstance(version, str):
                self.faults.append(Fault.of(str(path), version))
                continue
            name = f"{version.path} at {version.blob[:12]}"
            load = functools.partial(_points_of_text, version.text, name)
            if self._load(f"git {version.blob}", Found(name, (), load)):
                digests |= entries_in(version.text)

    def _take(self, source: Found) -> bool:
        """Use a source, and whether it is whole; what the table knows is not read again."""
        try:
            parts = ((os.fsencode(file.name), self._digest(file).encode()) for file in source.files)
            digest = sha256_hex(b"\n".join(b" ".join(part) for part in parts))
        except OSError as error:
            self.faults.append(_unreadable(source.name, error))
            return False
        return self._load(digest, source)

    def _load(self, digest: str, source: Found) -> bool:
        """The table keeps where faults are within the source alone: the same content may be found elsewhere."""
        faults, name = self.table.faults(digest), Fault.of(source.name, "").where
        if faults is None:
            points, problems = _loaded(source)
            faults = [f"{fault.where.removeprefix(name)}\n{fault.why}" for fault in problems]
            self.table.keep(digest, points, faults)
        for within, _, why in (fault.partition("\n") for fault in faults):
            self.faults.append(Fault(f"{name}{within}", why))
        self.roles.setdefault(digest, source.role)
        return not faults

    def _digest(self, file: Path) -> str:
        """Of a file's content; a file that is as it was when it was read, by all that its inode tells, has the same."""
        status, where = file.stat(), os.fsencode(file.absolute()).hex()
        state = f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
        digest = self.table.digest(where, state)
        if not digest:
            with file.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            self.table.keep_digest(where, state, digest)
        return digest

    def points(self, now: datetime, metrics: Sequence[str] = ()) -> Iterator[Point]:
        """What was read, in order of time; visits that have not begun yet are left out."""
        latest = utc((now + _AHEAD).isoformat())
        ahead: set[tuple[str, str]] = set()
        for point in self.table.points(self.roles, metrics):
            if point.t0_utc <= latest:
                yield point
            elif (visit := (point.record, point.t0_utc)) not in ahead:
                ahead.add(visit)
                why = f"a visit of record {point.record[:12]} began at {point.t0_utc}, which is yet to come"
                self.faults.append(Fault.of(f"{point.cell} on {point.machine}", why))


def _walk(folder: Path, name: str, role: Role | None, depth: int) -> Iterator[Found | Fault]:
    """What is in a folder; links are not followed, and hidden folders not looked into."""
    try:
        if (folder / RUN).is_file():
            yield _run(folder, name, role)
            return
        if (folder / DRILL).is_file():
            yield Fault.of(name, "a drill: its heads are slow on purpose")
            return
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
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
                part_role: Role | None = "reference" if entry.name in _OF_THE_REFERENCE else "head"
                yield from _walk(path, below, part_role if parts else role, depth + 1)


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


def _loaded(source: Found) -> tuple[list[Point], list[Fault]]:
    """The points of a source, and what of it cannot be read."""
    try:
        return source.load(), []
    except _PartlyRead as partly:
        return partly.points, partly.faults
    except PerfgateError as error:
        return [], [Fault.of(source.name, error.text)]
    except OSError as error:
        return [], [_unreadable(source.name, error)]


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
    return _points_of_text(text, name)


def _points_of_text(text: str, name: str) -> list[Point]:
    return [*points_of_baseline(parse(text, name))]


def _points_of_artifact(file: Path, name: str) -> list[Point]:
    """The runs of an archive, each by its own name in it."""
    points: list[Point] = []
    faults: list[Fault] = []
    with tempfile.TemporaryDirectory(prefix="perfgate-history-") as scratch:
        unpack(file, Path(scratch) / "content", ARTIFACT_BYTES, lambda member: bool(_WANTED.search(member)))
        for source in _walk(Path(scratch) / "content", name, None, 0):
            if isinstance(source, Fault):
                faults.append(source)
                continue
            batch, problems = _loaded(source)
            points += [replace(point, role=source.role or point.role) for point in batch]
            faults += problems
    if faults:
        raise _PartlyRead(points, faults)
    return points
