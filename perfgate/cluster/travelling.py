"""How files of run folders travel between the nodes of a cluster: whole, and in an order that can always be read.

What an engine leaves behind may be anything: a core dump, a link, a tree without end. Files are read and written
piece by piece and no link is followed; what no record names is bounded, and what stays behind is named.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import stat
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Final

from perfgate.capture.compile_caches import FOLDERS as CACHES
from perfgate.capture.engine import LOG
from perfgate.capture.parking import FOLDERS as PARKED
from perfgate.cluster.cluster_run import Files, Piece, is_last
from perfgate.errors import RecordError
from perfgate.machine.locks import LOCK
from perfgate.record.manifest import SCENARIOS
from perfgate.record.run_names import RUN

TRIALS: Final = "trials"
RECORDS: Final = "records"
PIECE_BYTES: Final = 16 * 1024**2  # of a file in one message
MESSAGE_BYTES: Final = 64 * 1024**2  # of files in one message, but for the last of them
LARGEST_LEFT: Final = 64 * 1024**2  # bytes of a file that no record names: logs have less than one MiB
ALL_LEFT: Final = 1024**3  # bytes of all such files of a cell on one node
MOST_LEFT: Final = 10_000  # such files
DEEPEST: Final = 12  # folders below the one that holds run folders; ours are at most five deep
MOST_NAMED: Final = 20  # of what stays behind in one message; the rest is counted
# How records name the files that were measured
_ARTIFACT: Final = re.compile(rb'"path":\s*"([^"\\]+)",\s*"sha256":\s*"[0-9a-f]{64}"')
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Errors that a path meets and a full disk does not
_NO_PLACE: Final = {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ENXIO, errno.ENOENT}


@dataclass(frozen=True)
class _Found:
    """A file."""

    path: str  # below the folder, with forward slashes
    state: tuple[int, int]  # by which a changed file is known
    size: int  # in bytes


class GrowingFolder:
    """A folder whose new and changed files are sent on; locks, caches and half-written files are left out.

    Args:
        folder: It holds run folders.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[str, _Found] = {}
        self._read: dict[str, _Found] = {}
        self._behind: dict[str, str] = {}
        self._told = 0

    def changed(self) -> Iterator[Files]:
        """Messages with the files that changed since those that were sent, in an order of which every beginning counts.

        A manifest comes after the scenarios that it names, and records after the trials.
        """
        message: dict[str, bytes | Piece] = {}
        size = 0
        for file, ours in self._due():
            self._read[file.path] = file
            for content in self._contents(file, ours=ours):
                more = len(content.content if isinstance(content, Piece) else content)
                if message and (size + more > MESSAGE_BYTES or file.path in message):
                    yield message
                    message, size = {}, 0
                message[file.path] = content
                size += more
        if message:
            yield message

    def sent(self, files: Files) -> None:
        """Note that a message of :meth:`changed` was kept by whoever it was sent to."""
        self._kept |= {path: self._read[path] for path, content in files.items() if is_last(content)}

    def behind(self) -> list[str]:
        """What stays behind, in words, each once: files that no record names and that are too large or too many."""
        new = [*self._behind.items()][self._told :]
        self._told = len(self._behind)
        more = [f"{len(new) - MOST_NAMED} more files stay behind"] if len(new) > MOST_NAMED else []
        return [f"{_shown(path)} stays behind: {why}" for path, why in new[:MOST_NAMED]] + more

    def _due(self) -> list[tuple[_Found, bool]]:
        """What is to be sent, in its order: what was measured comes before what was left, and of that logs first."""
        files = [*_files(self._folder, self._leave)]
        named = {name for file in files if _rank(file.path) for name in _named_in(self._folder, file.path)}
        left = {path: file.size for path, file in self._kept.items() if not _is_ours(path, named)}
        room = ALL_LEFT - sum(left.values())
        due = []
        for ours, file in sorted(((_is_ours(file.path, named), file) for file in files), key=_order):
            if self._kept.get(file.path) == file:
                continue
            if not ours:
                room += left.pop(file.path, 0)
                if file.size > LARGEST_LEFT or file.size > room or len(left) >= MOST_LEFT:
                    self._leave(file.path, f"{file.size / 2**20:.1f} MiB that no record names")
                    continue
                room -= file.size
                left[file.path] = file.size
            due.append((file, ours))
        return due

    def _contents(self, file: _Found, *, ours: bool) -> Iterator[bytes | Piece]:
        """A file, in pieces where it is large; that cannot be read stays behind where no record names it."""
        try:
            content = read_piece(self._folder, file.path)
            yield content
            while isinstance(content, Piece) and not is_last(content):
                content = read_piece(self._folder, file.path, content)
                yield content
        except OSError as error:
            if ours:
                raise
            if error.errno != errno.ENOENT:  # else it was removed meanwhile
                self._leave(file.path, error.strerror or str(error))

    def _leave(self, path: str, why: str) -> None:
        self._behind.setdefault(path, why)


def put(folder: Path, files: Files) -> None:
    """Write files below a folder in their order, each whole or not at all; no link in it is followed.

    A file of several pieces is there once its last piece came.

    Raises:
        RecordError: A path leads out of the folder, or a piece does not follow the one before it.
        OSError: They cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or {"..", "\0"} & {*parts, *path} or len(parts) > DEEPEST + 2:
            raise RecordError("leads out of the run folder", where=_shown(path))
        try:
            with _below(folder, parts if path.endswith("/") else parts[:-1], make=True) as place:
                if not path.endswith("/"):
                    _write(place, parts[-1], content)
        except OSError as error:
            if error.errno not in _NO_PLACE:
                raise
            raise RecordError(f"cannot be in the run folder: {error.strerror}", where=_shown(path)) from error
        except ValueError as error:
            raise RecordError(str(error), where=_shown(path)) from error


def _write(place: int, name: str, content: bytes | Piece) -> None:
    """Write a file into an open folder; raises ValueError where a piece does not follow the one before it."""
    piece = content if isinstance(content, Piece) else Piece(content, 0, len(content), "")
    part = f".{sha256(os.fsencode(name)).hexdigest()[:16]}.part"  # the name may be as long as names may be
    if not piece.begin:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part, dir_fd=place)
    how = _WRITE if piece.begin else _WRITE | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(part, how, 0o666, dir_fd=place), "wb", buffering=0) as file:
        if file.seek(0, os.SEEK_END) != piece.begin or piece.end > piece.size:
            raise ValueError("comes in pieces that do not follow each other")
        left = memoryview(piece.content)
        while left:
            left = left[file.write(left) :]
    if is_last(piece):
        os.replace(part, name, src_dir_fd=place, dst_dir_fd=place)


def read_piece(folder: Path, path: str, before: Piece | None = None) -> bytes | Piece:
    """A file below a folder, or where it is large a piece of it; no link is followed.

    Raises:
        OSError: It cannot be read, is a pipe or device, or changed since the piece before.
    """
    with _opened(folder, path) as file:
        status = os.fstat(file)
        version = f"{status.st_ino} {status.st_mtime_ns} {status.st_size}"
        if not stat.S_ISREG(status.st_mode) or (before is not None and before.version != version):
            raise OSError(errno.ESTALE, "not a plain file" if before is None else "it changed while it was read")
        begin = before.end if before is not None else 0
        content = os.pread(file, min(status.st_size - begin, PIECE_BYTES), begin)
        if before is None and len(content) == status.st_size:
            return content
        if not content:
            raise OSError(errno.ESTALE, "it changed while it was read")
        return Piece(content, begin, status.st_size, version)


def read_for_later_pairs(folder: Path) -> Files:
    """What further pairs need of run folders: manifest, scenarios, records and, of trials, which numbers are taken.

    Logs, timelines and traces of earlier trials are most of a run folder, and no later trial reads them.
    """
    trials = {f"{trial.relative_to(folder).as_posix()}/": b"" for trial in sorted(folder.glob(f"*/{TRIALS}/*/"))}
    paths = [file.path for file in _files(folder, lambda *_: None) if _is_ours(file.path, ())]
    return trials | {path: _whole(folder, path) for path in sorted(paths, key=lambda path: (_rank(path), path))}


def _whole(folder: Path, path: str) -> bytes:
    with _opened(folder, path) as file, os.fdopen(os.dup(file), "rb") as stream:
        return stream.read()


@contextlib.contextmanager
def _opened(folder: Path, path: str) -> Iterator[int]:
    """The descriptor of a file below a folder."""
    *above, name = path.split("/")
    with _below(folder, above) as place:
        file = os.open(name, _READ, dir_fd=place)
    try:
        yield file
    finally:
        os.close(file)


@contextlib.contextmanager
def _below(folder: Path, parts: Sequence[str], *, make: bool = False) -> Iterator[int]:
    """The descriptor of a folder below another; no link on the way is followed."""
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=place)
            inside = os.open(part, _FOLDER, dir_fd=place)
            os.close(place)
            place = inside
        yield place
    finally:
        os.close(place)


def _files(folder: Path, leave: Callable[[str, str], None]) -> Iterator[_Found]:
    """Every file that may travel; ``leave`` is told of folders that are not looked into.

    Walked by hand: before Python 3.12 os.walk calls itself.
    """
    places = [("", folder)]
    while places:
        path, place = places.pop()
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    below = f"{path}{entry.name}"
                    if entry.name.startswith(".") or entry.name == LOCK or entry.is_symlink():
                        continue
                    if not entry.is_dir(follow_symlinks=False):
                        yield from _plain(below, entry)
                    elif below.count("/") >= DEEPEST:
                        leave(below, f"it is more than {DEEPEST} folders deep")
                    elif not entry.name.startswith((CACHES, PARKED)):
                        places.append((f"{below}/", Path(entry)))
        except FileNotFoundError:  # it was removed meanwhile
            continue
        except OSError as error:
            leave(path, error.strerror or str(error))


def _named_in(folder: Path, path: str) -> Iterator[str]:
    """The files that a record or manifest says were measured, as paths below the folder."""
    run = path.partition("/")[0]
    with _opened(folder, path) as file:
        if os.fstat(file).st_size:
            with mmap.mmap(file, 0, access=mmap.ACCESS_READ) as content:
                for name in _ARTIFACT.finditer(content):
                    yield f"{run}/{os.fsdecode(name[1])}"


def _plain(path: str, entry: os.DirEntry[str]) -> Iterator[_Found]:
    """The file that an entry is, if it is one and is still there."""
    with contextlib.suppress(FileNotFoundError):
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(status.st_mode):
            yield _Found(path, (status.st_mtime_ns, status.st_ino), status.st_size)


def _is_ours(path: str, named: Container[str]) -> bool:
    """Whether perfgate wrote a file, and not an engine: records and what they name, manifests and scenarios."""
    parts = PurePosixPath(path).parts
    return len(parts) <= 2 or parts[1] in (SCENARIOS, RECORDS) or path in named  # noqa: PLR2004 (of a run's own folder)


def _order(entry: tuple[bool, _Found]) -> tuple[int, bool, bool, str]:
    ours, file = entry
    return _rank(file.path), not ours, not file.path.endswith(f"/{LOG}"), file.path


def _rank(path: str) -> int:
    """Where in the order of what is sent a file comes."""
    parts = PurePosixPath(path).parts
    return 2 if parts[1:2] == (RECORDS,) else 1 if parts[1:] == (RUN,) else 0


def _shown(path: str) -> str:
    """A path that anybody may have chosen, in one line."""
    return "".join(c if c.isprintable() else "?" for c in path)[:300]
