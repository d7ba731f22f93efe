"""Folders that are kept under a key, sealed: what is given back is byte for byte what was kept, or nothing is.

A store is a folder of this user's alone. An entry of it is ``files`` and ``seal.json``, which names every file with its
size and digest. Programs never work in an entry: they get a copy, and each file of it is checked while it is copied. An
entry with anything else in it (a link, a file more or less, another owner, a mode by which others could write) is
removed, and the caller makes its content anew.

A seal shows that nothing was changed by accident. It protects from nobody who runs as the same user, who could write
another seal (docs/security.md).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from perfgate.errors import InterruptedRunError, RecordError
from perfgate.machine.atomic_files import canonical_json, sha256_hex
from perfgate.machine.cleanup import Swept, remove_tree
from perfgate.machine.locks import hold_named
from perfgate.machine.versioned_json import read_model, write_model
from perfgate.models import Frozen

SEAL, FILES, LOCKS = "seal.json", "files", "locks"
PART: Final = ".part"
"""What an entry that is being written is called, after its key."""
ENTRY: Final = re.compile("[0-9a-f]{64}(\\.part)?")
"""How entries are called; whatever else is in the folder is somebody else's and stays."""
MOST_FILES: Final = 20_000
MOST_DEPTH: Final = 64
"""Folders within folders of an entry."""
MOST_ENTRY: Final = 4 << 30
"""Bytes of an entry: one build does not push out all others."""
MOST_BYTES: Final = 16 << 30
"""Of a store; what was used longest ago goes first."""
MOST_AGE: Final = timedelta(days=14)
"""Older content is made anew, whoever uses it."""
LOCK_S: Final = 60.0
"""So long a copy may take another process; then this one does without."""
_OTHERS_WRITE = 0o022
_CHUNK = 1 << 20


class SealedFile(Frozen):
    """One file of an entry: what its copy must be."""

    size: int
    mtime_ns: int
    executable: bool
    sha256: str


class Seal(Frozen):
    """What an entry holds.

    Args:
        key: Under which it is kept.
        draws: By who filled it, twelve digits that name the content then: who gets a copy of it, or of what grew from
            it, and is of that name, has these.
        filled_utc: When its first content was kept, ISO 8601.
        home: The folder that it is a copy of: files may name one another by their paths there.
        files: By path from ``files``, with slashes.
    """

    format: Literal["perfgate-sealed/3"] = "perfgate-sealed/3"
    key: str
    draws: Annotated[dict[str, Annotated[str, Field(pattern="^[0-9a-f]{12}$")]], Field(min_length=1)]
    filled_utc: str
    home: str
    files: dict[str, SealedFile]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())

    @property
    def too_old(self) -> bool:
        """Whether it is to be made anew."""
        return abs(datetime.now(UTC) - datetime.fromisoformat(self.filled_utc)) > MOST_AGE


class UnfitError(Exception):
    """Something is not what a sealed folder may be; the text says what, and where."""


class Store:
    """Entries by key, below one folder.

    Args:
        root: The folder, made where it is missing.

    Raises:
        UnfitError: It is a link, another user's, or others can write there.
        OSError: It cannot be made.
    """

    def __init__(self, root: Path) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_own(root, root.lstat(), stat.S_ISDIR)
        self.root = root
        (root / LOCKS).mkdir(mode=0o700, exist_ok=True)

    def take(self, key: str, into: Path) -> Seal | None:
        """Copy the content of an entry into a folder that is made for it; ``None`` where there is none, or an old one.

        Raises:
            UnfitError: The entry is not what was kept, and has been removed; or another process holds it for long.
            OSError: The copy cannot be written; nothing of it is left then.
        """
        entry = self.root / key
        with self._held(key):
            if not os.path.lexists(entry):
                return None
            try:
                seal = _read_seal(entry, key)
                if not seal.too_old:
                    _copy_checked(entry / FILES, into, seal)
                    os.utime(entry / SEAL)
                    return seal
            except BaseException as error:
                _remove(into)  # half a copy is not what was kept
                if isinstance(error, UnfitError):
                    _remove(entry)
                raise
            _remove(entry)
            return None

    def keep(self, key: str, folder: Path, by: str, grown_from: Seal | None = None) -> Seal | None:
        """Keep a copy of a folder's content; what is there already is replaced only by what grew from just that.

        Args:
            key: Under which.
            folder: Nothing writes into it meanwhile.
            by: Who filled it.
            grown_from: The seal of what the folder held at first; its draws and date are kept.

        Returns:
            Its seal; ``None`` where something else is there, which stays.

        Raises:
            UnfitError: The folder holds something else than files and folders, or too many; or see :meth:`take`.
            OSError: It cannot be written; nothing of it is left then.
        """
        entry, part = self.root / key, self.root / f"{key}{PART}"
        with self._held(key):
            there = _seal_or_none(entry, key)
            if there is not None and there != grown_from:
                return None
            _remove(part)
            try:
                files = _copy_sealing(folder, part / FILES)
                now = datetime.now(UTC).isoformat(timespec="seconds")
                content = {"filled": now, "files": {name: file.sha256 for name, file in files.items()}}
                draws = {by: sha256_hex(canonical_json(content))[:12], **(grown_from.draws if grown_from else {})}
                filled_utc = grown_from.filled_utc if grown_from else now
                seal = Seal(key=key, draws=draws, filled_utc=filled_utc, home=str(folder), files=files)
                write_model(part / SEAL, seal)
                _remove(entry)
                part.rename(entry)
            finally:
                _remove(part)
        self._make_room(key)
        return seal

    def seal(self, key: str) -> Seal | None:
        """That of an entry, its content unchecked; ``None`` where there is none, or an old one."""
        seal = _seal_or_none(self.root / key, key)
        return None if seal is None or seal.too_old else seal

    def forget(self, seal: Seal) -> None:
        """Remove what is of no use, where it is still there: what somebody else has kept in its place stays.

        Raises:
            UnfitError: Another process holds it for long.
            OSError: It cannot be removed.
        """
        with self._held(seal.key):
            if _seal_or_none(self.root / seal.key, seal.key) == seal:
                _remove(self.root / seal.key)

    def sweep(self, days: float) -> Iterator[Swept]:
        """Remove what nobody used for so long, what is broken, and what a killed process left half written.

        Every file of what stays is read: whoever sweeps has the time.
        """
        oldest = datetime.now(UTC) - timedelta(days=days)
        before_s = oldest.timestamp()
        for entry in self._entries():
            try:
                with self._held(entry.name.removesuffix(PART), 0.0):
                    seal = _seal_or_none(entry, entry.name)
                    old = seal is not None and (seal.too_old or (entry / SEAL).stat().st_mtime < before_s)
                    if seal is None or old or not _is_whole(entry / FILES, seal):
                        _remove(entry)
                        yield Swept(entry)
            except (UnfitError, OSError) as error:
                yield Swept(entry, str(error))

    def _entries(self) -> list[Path]:
        return sorted(entry for entry in self.root.iterdir() if ENTRY.fullmatch(entry.name))

    def _make_room(self, kept: str) -> None:
        """Remove what is too old or half written, and what was used longest ago, until the rest fits.

        What was just kept stays.
        """
        left, before_s = MOST_BYTES, (datetime.now(UTC) - MOST_AGE).timestamp()
        for entry in sorted(self._entries(), key=_used_s, reverse=True):
            seal = _seal_or_none(entry, entry.name)
            left -= seal.size if seal else 0
            # Without a seal that can be read it is half written, or of another version of perfgate.
            old = seal.too_old if seal else entry.name.endswith(PART) or _used_s(entry) < before_s
            if entry.name == kept or not (old or left < 0):
                continue
            with contextlib.suppress(UnfitError, OSError), self._held(entry.name.removesuffix(PART), 0.0):
                _remove(entry)  # what is in use stays

    @contextlib.contextmanager
    def _held(self, key: str, patience_s: float | None = None) -> Iterator[None]:
        with contextlib.ExitStack() as held:
            deadline_s = time.monotonic() + (LOCK_S if patience_s is None else patience_s)
            try:
                held.enter_context(hold_named(self.root / LOCKS, key, "caches", lambda _: None, deadline_s))
            except InterruptedRunError as error:
                raise UnfitError(error.finding) from error
            yield


def _used_s(entry: Path) -> float:
    """When an entry was used last; the time of its folder where nothing says that."""
    for file in (entry / SEAL, entry):
        with contextlib.suppress(OSError):
            return file.lstat().st_mtime
    return 0.0


def _read_seal(entry: Path, key: str) -> Seal:
    """The seal of an entry whose own folder, and nothing but, is as it was made; like all below raises UnfitError."""
    _require_own(entry, entry.lstat(), stat.S_ISDIR)
    if {item.name for item in os.scandir(entry)} != {SEAL, FILES}:
        raise UnfitError(f"{entry}: holds something else than {FILES} and {SEAL}")
    _require_own(entry / SEAL, (entry / SEAL).lstat(), stat.S_ISREG)
    try:
        seal = read_model(Seal, entry / SEAL)
        filled_utc = datetime.fromisoformat(seal.filled_utc).astimezone(UTC).isoformat(timespec="seconds")
    except RecordError as error:  # whoever is told makes the content anew: its remedy is for files that are needed
        raise UnfitError(error.finding) from error
    except (ValueError, OverflowError) as error:
        raise UnfitError(str(error)) from error
    if seal.key != key or seal.filled_utc != filled_utc:
        raise UnfitError(f"{entry}: sealed under another key, or without a date in UTC")
    return seal


def _seal_or_none(entry: Path, key: str) -> Seal | None:
    try:
        return _read_seal(entry, key)
    except (UnfitError, OSError):  # whoever takes it is told
        return None


def _require_own(path: Path, status: os.stat_result, is_kind: Callable[[int], bool]) -> None:
    """Refuse what somebody else made, could change, or what is not of that kind."""
    if not is_kind(status.st_mode):
        raise UnfitError(f"{path}: a link, or not the file or folder that was made")
    if status.st_uid != os.geteuid():
        raise UnfitError(f"{path}: belongs to another user")
    if status.st_mode & _OTHERS_WRITE:
        raise UnfitError(f"{path}: others can write to it")
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        raise UnfitError(f"{path}: has another name too")


def _walk(folder: Path, below: str = "") -> Iterator[tuple[str, Path]]:
    """Every file below a folder with its path from there."""
    if below.count("/") > MOST_DEPTH:
        raise UnfitError(f"{folder}: more than {MOST_DEPTH} folders deep")
    with os.scandir(folder) as items:
        for item in sorted(items, key=lambda item: item.name):
            name = f"{below}{item.name}"
            if not item.name.isprintable():
                raise UnfitError(f"{folder}: holds a file called {item.name!a}")
            if item.is_dir(follow_symlinks=False):
                yield from _walk(Path(item.path), f"{name}/")
            elif item.is_file(follow_symlinks=False):
                yield name, Path(item.path)
            else:
                raise UnfitError(f"{item.path}: a link, or not the file or folder that was made")


def _is_whole(source: Path, seal: Seal) -> bool:
    try:
        _copy_checked(source, None, seal)
    except UnfitError:
        return False
    return True


def _copy_checked(source: Path, into: Path | None, seal: Seal) -> None:
    """Copy what a seal names, or only read it, and only while there is nothing else."""
    _require_own(source, source.lstat(), stat.S_ISDIR)
    files = dict(_walk(source))
    if files.keys() != seal.files.keys():
        raise UnfitError(f"{source}: {min(files.keys() ^ seal.files.keys())} is missing, or one file too many")
    if into:
        into.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, file in files.items():
        sealed, copy = seal.files[name], into / name if into else None
        if _copy(file, copy, sealed=True) != sealed.model_copy(update={"mtime_ns": 0}):
            raise UnfitError(f"{file}: is not what was kept")
        if copy:
            copy.chmod(0o700 if sealed.executable else 0o600)
            os.utime(copy, ns=(sealed.mtime_ns, sealed.mtime_ns))


def _copy_sealing(source: Path, into: Path) -> dict[str, SealedFile]:
    """Copy all that is in a folder, read-only."""
    into.mkdir(mode=0o700, parents=True)
    files: dict[str, SealedFile] = {}
    left = MOST_ENTRY
    for name, file in _walk(source):
        status = file.lstat()
        left -= status.st_size
        if left < 0 or len(files) >= MOST_FILES:
            raise UnfitError(f"{source}: more than {MOST_FILES} files or {MOST_ENTRY >> 30} GiB")
        files[name] = _copy(file, into / name, sealed=False).model_copy(update={"mtime_ns": status.st_mtime_ns})
    return files


def _copy(file: Path, into: Path | None, *, sealed: bool) -> SealedFile:
    """Copy one file that is not a link, or only read it, and say what it is, but for its time."""
    if into:
        into.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
        status = os.fstat(stream.fileno())
        if sealed:
            _require_own(file, status, stat.S_ISREG)
        elif not stat.S_ISREG(status.st_mode):
            raise UnfitError(f"{file}: not a regular file")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        executable = bool(status.st_mode & stat.S_IXUSR)
        with os.fdopen(os.open(into or os.devnull, flags, 0o500 if executable else 0o400), "wb") as copy:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
                copy.write(chunk)
    return SealedFile(size=size, mtime_ns=0, executable=executable, sha256=digest.hexdigest())


def _remove(path: Path) -> None:
    """Take away whatever is there; of a link the link alone."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        remove_tree(path)
