"""What the files of a folder on a module path hold, as :mod:`perfgate.capture.counted_files` finds them; changes since.

A file that a package's ``RECORD`` lists has that digest as long as its size fits and neither of its times is newer than
that of the record; all others are read. Later a file is looked at, and read only where its size, one of its times or
its number on the disk is another. So whoever writes the same content anew, or touches it, changes nothing; and what was
written and put back while nobody looked is taken for touched. What cannot be read counts by its name: engines cannot
read it either. A new file that nothing looks for by its name, like a table of results, is told of and changes nothing.

What is there may be anything: files are read by the size that they say they have, and how much is read is bounded.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Final, NamedTuple, Self

from perfgate.capture.counted_files import counted, has_modules

MOST_FILES: Final = 400_000
MOST_BYTES: Final = 64 << 30
"""Of files to read. A build with more of either has no digest."""
MOST_AGAIN_BYTES: Final = 4 << 30
"""Of files to read again at one later look: a few seconds. The next look goes on with the rest."""
_MOST_RECORD_BYTES: Final = 64 << 20
"""Each line has a file: a record of 400,000 takes half of it."""
_MOST_DIGITS: Final = 15
_CHUNK: Final = 1 << 20
_NEWER_NS: Final = 1_000_000_000
"""The record is written when the files are; file systems keep time less finely than that at worst."""


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
    device: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """That of a file, or of what a link leads to."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)

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
        is_data: Whether it is declared as data.

    Raises:
        UnknownBuildError: There is more.
        OSError: A file cannot be read.
    """

    def __init__(self, root: str, left: Left, *, is_data: bool = False) -> None:
        self.root, self.new = root, ""
        self._is_data = is_data or not has_modules(root)
        recorded = dict(_recorded(root))
        self._seen: dict[str, _Seen] = {}
        for name, path, status, _ in counted(root, is_data=self._is_data):
            state = State.of(status)
            digest = recorded[name].digest(state) if name in recorded else ""
            left.take(1, 0 if digest else state.size)
            with contextlib.suppress(FileNotFoundError):
                self._seen[name] = _Seen.at(state, digest or _read(path))

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
        """What has changed since they were read, a sentence for each file; ``new`` has a file that changes nothing.

        A file that was touched is known by its new state from then on.

        Args:
            left: How much may be read again.

        Raises:
            UnknownBuildError: There is more; what was read until then is known.
        """
        sentences: list[str] = []
        gone = {*self._seen}
        self.new = ""
        for name, path, status, is_sought in counted(self.root, is_data=self._is_data):
            seen, state = self._seen.get(name), State.of(status)
            if seen is not None and state == seen.state:
                gone.discard(name)
                continue
            if seen is None and not is_sought:
                self.new = f"{path} is new: {state}"
                continue
            left.take(1, state.size)
            try:
                digest = _read(path)
            except FileNotFoundError:  # it went while this looked
                continue
            gone.discard(name)
            if seen is None:
                sentences.append(f"{path} is new: {state}")
            elif digest != seen.digest:
                contents = f"content {seen.digest[:12] or 'not readable'}, now {digest[:12] or 'not readable'}"
                sentences.append(f"{path} has changed: {seen.shown}; now {state}; {contents}")
            else:
                self._seen[name] = _Seen.at(state, digest)
        sentences += [f"{self._path(name)} is gone: {self._seen[name].shown}" for name in sorted(gone)]
        return sentences

    def written_since(self, ns: int) -> list[str]:
        """Files of which anything is newer than a time, the newest first, in words."""
        newer = [(max(seen.shown.mtime_ns, seen.shown.ctime_ns), name) for name, seen in self._seen.items()]
        return [f"{self._path(name)}: {self._seen[name].shown}" for at, name in sorted(newer, reverse=True) if at > ns]

    def _path(self, name: str) -> str:
        return f"{self.root}{os.sep}{name}" if name else self.root


def packages_of(root: str) -> list[Path]:
    """The folders of what was installed into a folder, in order of their names."""
    return sorted(Path(root).glob("*.dist-info"))


class _Recorded(NamedTuple):
    """A file as a package's record has it, and until when it may have been written and touched."""

    size: int
    mtime_ns: int
    ctime_ns: int
    sha256: str

    def digest(self, state: State) -> str:
        """That of a file in a state that fits; else empty."""
        is_older = state.mtime_ns <= self.mtime_ns and state.ctime_ns <= self.ctime_ns
        return self.sha256 if state.size == self.size and is_older else ""


def _recorded(root: str) -> Iterator[tuple[str, _Recorded]]:
    """Each file in the records of packages."""
    for package in packages_of(root):
        try:
            record = package / "RECORD"
            status = record.stat()
            rows = list(csv.reader(content_of(record, _MOST_RECORD_BYTES).decode(errors="replace").splitlines()))
        except (OSError, csv.Error):  # its files are read
            continue
        times = status.st_mtime_ns + _NEWER_NS, status.st_ctime_ns + _NEWER_NS
        for row in rows:
            if len(row) != 3 or len(row[2]) > _MOST_DIGITS:  # noqa: PLR2004 (file, digest, size)
                continue
            if row[1].startswith("sha256=") and row[2].isdecimal():
                yield row[0], _Recorded(int(row[2]), *times, _hexadecimal(row[1].removeprefix("sha256=")))


def _hexadecimal(digest: str) -> str:
    try:
        return base64.urlsafe_b64decode(f"{digest}=").hex()
    except ValueError:
        return digest


def _read(file: str) -> str:
    """The digest of a file; empty where it may not be read."""
    digest = hashlib.sha256()
    try:
        for chunk in _chunks(Path(file)):
            digest.update(chunk)
    except (PermissionError, IsADirectoryError):
        return ""
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
