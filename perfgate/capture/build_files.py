"""Which files of a folder on a module path belong to a build, what each holds, and whether one has changed since.

What counts is what an import reaches and what it may read: modules, libraries, path files, bytecode without its source,
entry points and metadata of packages, and all else inside a regular package, like the JSON of tuned kernels. What
nothing imports does not: bytecode beside its source, hidden files, object files and folders of builds, logs, locks,
files of editors, prose, and data outside of packages. A folder without modules is read whole: it can only hold data.

A file that a package's ``RECORD`` lists has that digest as long as its size fits and it is not newer than the record;
all others are read. Later a file is looked at, and read only where its size, one of its times or its number on the
disk is another. So whoever writes the same content anew, or touches it, changes nothing; and what was written and put
back while nobody looked is taken for touched.

What is there may be anything: files are read by the size that they say they have, and how much is read is bounded.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Final, NamedTuple, Self

from perfgate.record.run_names import RUN

MOST_FILES: Final = 400_000
MOST_BYTES: Final = 64 << 30
"""Of files to read. A build with more of either has no digest."""
MOST_AGAIN_BYTES: Final = 4 << 30
"""Of files to read again at one later look: a few seconds. The next look goes on with the rest."""
_MOST_RECORD_BYTES: Final = 64 << 20
"""Each line has a file: a record of 400,000 takes half of it."""
_MOST_DIGITS: Final = 15
_CHUNK: Final = 1 << 20
_LEFT_OUT: Final = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
"""Of a package's own folder: they differ between two installations of one wheel."""
_NEWER_NS: Final = 1_000_000_000
"""The record is written when the files are; file systems keep time less finely than that at worst."""
_OUTPUTS: Final = {"build", "dist", "node_modules", "CMakeFiles"}
"""Folders of what builds leave, where they lack an ``__init__.py``."""
_MODULES: Final = (".py", ".so", ".pth")
_NOISE: Final = (
    ".a", ".bak", ".d", ".egg", ".gcda", ".gcno", ".lock", ".log", ".md", ".o", ".obj", ".orig", ".part", ".pid",
    ".prof", ".pyc", ".rej", ".rst", ".swp", ".tmp", "~",
)  # fmt: skip
"""Ends of what builds, editors and tools leave inside packages, and of prose."""


class UnknownBuildError(Exception):
    """A build cannot be told from others; the text says why."""


@dataclass
class Left:
    """How much more of a build may be looked at."""

    files: int = field(default_factory=lambda: MOST_FILES)
    size: int = field(default_factory=lambda: MOST_BYTES)

    def __post_init__(self) -> None:
        """Note what there was to begin with."""
        self._most = f"more than {self.files} files, or {self.size >> 30} GiB to read"

    def take(self, files: int, size: int) -> None:
        """Take so many files, and so many bytes to read.

        Raises:
            UnknownBuildError: That is too much.
        """
        self.files, self.size = self.files - files, self.size - size
        if self.files < 0 or self.size < 0:
            raise UnknownBuildError(self._most)


class State(NamedTuple):
    """What the file system says of a file; where all of it is as before, so is its content."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """That of a file, or of what a link leads to."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)

    def __str__(self) -> str:
        """For people."""
        written, changed = (
            datetime.fromtimestamp(ns / 1e9, UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")
            for ns in (self.mtime_ns, self.ctime_ns)
        )
        return f"{self.size} bytes written {written}, inode {self.inode} of {changed}"


@cache
def _clock_of_files() -> int:
    """A file in memory: whatever somebody does to the host's clock, times of files are compared with a file's."""
    return os.memfd_create("perfgate-now")


def _now_of_files() -> int:
    """What a file that is touched now has as its time, nanoseconds."""
    os.utime(_clock_of_files())
    return os.fstat(_clock_of_files()).st_ctime_ns


class _Seen(NamedTuple):
    """A file when it was read.

    Args:
        state: As it was then; ``None`` where a change just after that would leave it the same.
        shown: The same, for people.
        digest: SHA-256 of its content, hexadecimal.
    """

    state: State | None
    shown: State
    digest: str

    @classmethod
    def at(cls, state: State, digest: str) -> Self:
        """A file that was read now: file systems keep time less finely than it can be written twice."""
        is_fresh = state.ctime_ns > _now_of_files() - _NEWER_NS
        return cls(None if is_fresh else state, state, digest)


class FolderFiles:
    """The files that count of one folder of a module path, or of one archive on it.

    Args:
        root: Its real path.
        left: How much may be looked at.

    Raises:
        UnknownBuildError: There is more.
        OSError: A file cannot be read.
    """

    def __init__(self, root: str, left: Left) -> None:
        self.root = root
        recorded = dict(_recorded(root))
        self._seen: dict[str, _Seen] = {}
        for name, path, status in _counted(root):
            state = State.of(status)
            size, until_ns, digest = recorded.get(name, (-1, 0, ""))
            to_read = state.size != size or state.mtime_ns > until_ns
            left.take(1, state.size if to_read else 0)
            self._seen[name] = _Seen.at(state, _read(path) if to_read else digest)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._seen)

    @cached_property
    def digest(self) -> str:
        """That of the content of all, and of their names below the folder."""
        digest = hashlib.sha256()
        for name, seen in sorted(self._seen.items()):
            digest.update(f"{name} {seen.digest}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()

    def changes(self, left: Left) -> list[str]:
        """What has changed since they were read, a sentence for each file.

        A file that was touched is known by its new state from then on.

        Args:
            left: How much may be read again.

        Raises:
            UnknownBuildError: There is more; what was read until then is known.
        """
        found: list[str] = []
        gone = {*self._seen}
        for name, path, status in _counted(self.root):
            seen, state = self._seen.get(name), State.of(status)
            if seen is not None and state == seen.state:
                gone.discard(name)
                continue
            left.take(1, state.size)
            try:
                digest = _read(path)
            except FileNotFoundError:  # it went while this looked
                continue
            gone.discard(name)
            if seen is None:
                found.append(f"{path} is new: {state}")
            elif digest != seen.digest:
                told = f"content {seen.digest[:12]}, now {digest[:12]}"
                found.append(f"{path} has changed: {seen.shown}; now {state}; {told}")
            else:
                self._seen[name] = _Seen.at(state, digest)
        found += [f"{self._path(name)} is gone: {self._seen[name].shown}" for name in sorted(gone)]
        return found

    def written_since(self, ns: int) -> list[str]:
        """Files of which anything is newer than a time, the newest first, in words."""
        newer = [(max(seen.shown.mtime_ns, seen.shown.ctime_ns), name) for name, seen in self._seen.items()]
        return [f"{self._path(name)}: {self._seen[name].shown}" for at, name in sorted(newer, reverse=True) if at > ns]

    def _path(self, name: str) -> str:
        return f"{self.root}{os.sep}{name}" if name else self.root


def packages_of(root: str) -> list[Path]:
    """The folders of what was installed into a folder, in order of their names."""
    return sorted(Path(root).glob("*.dist-info"))


def _recorded(root: str) -> Iterator[tuple[str, tuple[int, int, str]]]:
    """Of each file in the records of packages: its size, until when it may have been written, and its digest."""
    for package in packages_of(root):
        try:
            record = package / "RECORD"
            until_ns = record.stat().st_mtime_ns + _NEWER_NS
            rows = list(csv.reader(content_of(record, _MOST_RECORD_BYTES).decode(errors="replace").splitlines()))
        except (OSError, csv.Error):  # its files are read
            continue
        for row in rows:
            if len(row) != 3 or len(row[2]) > _MOST_DIGITS:  # noqa: PLR2004 (file, digest, size)
                continue
            if row[1].startswith("sha256=") and row[2].isdecimal():
                yield row[0], (int(row[2]), until_ns, _hexadecimal(row[1].removeprefix("sha256=")))


def _hexadecimal(digest: str) -> str:
    try:
        return base64.urlsafe_b64decode(f"{digest}=").hex()
    except ValueError:
        return digest


def _counted(root: str) -> Iterator[tuple[str, str, os.stat_result]]:
    """The files that count below a folder, with their paths from it, and whole; links are followed, each folder once.

    What goes while this looks is passed over.

    Raises:
        OSError: A folder cannot be read.
    """
    if Path(root).is_file():  # an archive
        yield "", root, Path(root).stat()
        return
    open_: list[tuple[str, str, bool]] = [(root, "", False)]
    seen: set[tuple[int, int]] = set()
    while open_:
        folder, below, is_packaged = open_.pop()
        try:
            status = Path(folder).stat()
            with os.scandir(folder) as scanned:
                items = list(scanned)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        names = {item.name for item in items}
        if below and _is_left_out(Path(folder).name, names, is_packaged=is_packaged):
            continue
        folders = [item for item in items if item.is_dir()]
        is_packaged = is_packaged or "__init__.py" in names or not (below or _has_modules(names, folders))
        # Hidden folders hold git's and tools' own files, but for the libraries of older wheels.
        open_ += [
            (item.path, f"{below}{item.name}/", is_packaged)
            for item in folders
            if item.name == ".libs" or (item.name != "__pycache__" and not item.name.startswith("."))
        ]
        for item in items:
            if item.is_file() and _counts(item.name, below, names, is_packaged=is_packaged):
                with contextlib.suppress(FileNotFoundError):
                    yield f"{below}{item.name}", item.path, item.stat()


def _is_left_out(folder: str, names: Collection[str], *, is_packaged: bool) -> bool:
    """Whether nothing below a folder counts, by its name and what is in it."""
    # An environment inside a checkout is on nobody's module path by that, and run folders change with each run.
    if "pyvenv.cfg" in names or {RUN, "trials"} <= {*names}:
        return True
    return folder in _OUTPUTS and not is_packaged and "__init__.py" not in names


def _has_modules(names: Collection[str], folders: Collection[os.DirEntry[str]]) -> bool:
    return any(map(_is_module, names)) or any(Path(folder.path, "__init__.py").exists() for folder in folders)


def _is_module(name: str) -> bool:
    return name.endswith(_MODULES) or ".so." in name


def _counts(name: str, below: str, beside: Collection[str], *, is_packaged: bool) -> bool:
    """Whether a file does, by its name and the folder that it is in."""
    folder = below.rstrip("/").rpartition("/")[2]
    if folder.endswith(".egg-info"):  # written anew by each build; the rest says what the package's files say
        return name == "entry_points.txt"
    if folder.endswith(".dist-info"):
        return name not in _LEFT_OUT
    if _is_module(name):
        return True
    if name.endswith(".pyc"):
        return name[:-1] not in beside
    return is_packaged and not name.startswith((".", "#")) and not name.endswith(_NOISE)


def _read(file: str) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(Path(file)):
        digest.update(chunk)
    return digest.hexdigest()


def content_of(file: Path, most: int) -> bytes:
    """A small file; nothing of one with more bytes than ``most``.

    Raises:
        OSError: It cannot be read.
    """
    return b"".join(_chunks(file)) if file.stat().st_size <= most else b""


def _chunks(file: Path) -> Iterator[bytes]:
    """A file by the size that it says it has: devices, and what the kernel makes up, have none and may never end."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:
        left = os.fstat(stream.fileno()).st_size
        while left > 0 and (chunk := stream.read(min(left, _CHUNK))):
            left -= len(chunk)
            yield chunk
