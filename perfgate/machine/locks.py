"""Locks between processes: one at a time measures into a run folder or on a GPU, and one at a time makes a build.

The kernel releases them however their holder ends. Beside a lock that others wait for there is a note of who holds it.

Other users can write into the folder of the host's locks, and root measures too. So what is opened there is never a
link, never a pipe that would block, and the folder is sticky: nobody takes away or replaces the file of another user.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from perfgate.errors import InterruptedRunError, NotMeasuredError

LOCK = "lock"
CPU = "cpu"
"""What is locked where there is no GPU."""
GRACE_S = 2.0
"""If the holder dies between fork and exec, the child keeps the lock until it execs: so long a start waits."""
POLL_S = 0.5
NOTE_BYTES = 5000
"""A note is shorter, also with the longest path."""

STATE = "PERFGATE_STATE"
"""The variable that names another :func:`state_folder`; every user and container that shares a GPU must share it."""

_WAITING: ContextVar[bool] = ContextVar("waiting", default=True)


@contextlib.contextmanager
def never_waiting() -> Iterator[None]:
    """A block in which devices that somebody else holds are not waited for: whoever was given them gives them back."""
    token = _WAITING.set(False)
    try:
        yield
    finally:
        _WAITING.reset(token)


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder while the block lasts.

    Raises:
        NotMeasuredError: ``run-folder-busy``: another process holds it, named by its id.
        OSError: The folder is not there, or cannot be written.
    """
    file = folder / LOCK
    holder = ""
    with contextlib.suppress(FileNotFoundError):  # before asking: older filelocks empty the file they ask for
        holder = file.read_text().strip()
    try:
        held = FileLock(file).acquire(timeout=GRACE_S)
    except Timeout:
        by = f"process {holder}" if holder else "another process"
        raise NotMeasuredError(f"{by} is measuring into it", where=str(folder), code="run-folder-busy") from None
    with held:
        file.write_text(f"{os.getpid()}\n")
        yield


def measuring_into(folder: Path) -> str:
    """Which living process measures into a run folder now, in words; empty where none does, or nobody can tell.

    The lock is asked for, shared, and let go at once: whoever begins to measure meanwhile waits longer than that.
    """
    try:
        with (folder / LOCK).open("rb") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = stream.read(20).decode(errors="replace").strip()
                return f"process {holder}" if holder.isdigit() else "another process"
    except OSError:
        pass
    return ""


def state_folder() -> Path:
    """The folder of what belongs to the host: locks of GPUs and leases of their clocks; made where it is missing.

    ``$PERFGATE_STATE``, else ``/run/lock/perfgate`` (in memory and local by the file system standard, so that locks
    work and a reboot clears them), else a folder for temporary files. All users may write there: who measures must see
    who else does. It is sticky, as the folder for temporary files is.

    Raises:
        NotMeasuredError: ``storage-failed``: it is a link that nobody chose.
        OSError: It cannot be made.
    """
    chosen = os.environ.get(STATE)
    host_wide = Path("/run/lock")
    if chosen:
        folder = Path(chosen).resolve()
    elif (host_wide / "perfgate").is_dir() or os.access(host_wide, os.W_OK):
        folder = host_wide / "perfgate"
    else:
        folder = Path(tempfile.gettempdir()) / "perfgate-state"
    if not os.path.lexists(folder):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o1777)  # mkdir's own mode is cut by the umask
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise _unsafe(folder, f"is {_kind(status.st_mode)}, not a folder")
    if status.st_uid == os.geteuid() and status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        folder.chmod(stat.S_IMODE(status.st_mode) | stat.S_ISVTX)  # as earlier versions made it
    return folder


def open_shared(file: Path, flags: int) -> int:
    """Open a file of a folder that others write into; nothing but a regular file with one name.

    Args:
        file: The file.
        flags: Those of :func:`os.open`; with ``O_CREAT`` one that is not there is made, readable and writable for all.

    Returns:
        The descriptor.

    Raises:
        NotMeasuredError: ``storage-failed``: something else is there.
        FileNotFoundError: It is not there, and was not to be made.
        OSError: It cannot be opened or made.
    """
    safe = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        try:  # without O_CREAT, with which the kernel refuses another user's file in a sticky folder
            descriptor = os.open(file, (flags & ~(os.O_CREAT | os.O_TRUNC)) | safe)
            break
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise _unsafe(file, f"is {_kind(file.lstat().st_mode)}, not a regular file") from error
            raise
        try:
            descriptor = os.open(file, flags | os.O_EXCL | safe, 0o666)
        except FileExistsError:  # somebody was faster
            continue
        os.fchmod(descriptor, 0o666)  # whatever the umask
        break
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
        return descriptor
    os.close(descriptor)
    what = "has another name too" if stat.S_ISREG(status.st_mode) else f"is {_kind(status.st_mode)}, not a regular file"
    raise _unsafe(file, what)


def _unsafe(file: Path, what: str) -> NotMeasuredError:
    remedy = "perfgate did not make it: see whose it is (ls -l), and remove it."
    return NotMeasuredError(what, where=str(file), remedy=remedy, code="storage-failed")


def _kind(mode: int) -> str:
    kinds = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file"}
    return kinds.get(stat.S_IFMT(mode), "a device or socket")


@contextlib.contextmanager
def hold_devices(
    names: Iterable[str], holder: str, waiting: Callable[[str], None], deadline_s: float
) -> Iterator[None]:
    """Hold the host's locks of these devices while the block lasts; wait for whoever holds them.

    They are taken in sorted order, so that two runs that need the same GPUs cannot wait for each other. Names are UUIDs
    of GPUs, or :data:`CPU`; those who wait are told the ``holder``, the folder of the run. See :func:`hold_named`.

    Raises:
        InterruptedRunError: ``out-of-budget``: still held at the deadline.
        NotMeasuredError: ``gpu-busy``: one is held, in a block of :func:`never_waiting`.
        OSError: The state folder cannot be written.
    """
    folder, waits = state_folder(), _WAITING.get()
    with contextlib.ExitStack() as held:
        for name in sorted(set(names)):
            try:
                until_s = deadline_s if waits else time.monotonic()
                held.enter_context(hold_named(folder, name, f"run {holder}", waiting, until_s))
            except InterruptedRunError as error:
                if waits:
                    raise
                raise NotMeasuredError(error.text, code="gpu-busy") from error
        yield


def holder_of(name: str) -> str:
    """Who holds the host's lock of a device now, as those who wait are told; empty where nobody does.

    Raises:
        OSError: The state folder cannot be read, or the lock not be tried.
    """
    folder = state_folder()
    holder = _read_note(folder / f"{name}.holder")
    if holder:  # a killed holder leaves its note behind
        try:
            FileLock(folder / f"{name}.lock", mode=0o666).acquire(timeout=0).lock.release()
        except Timeout:
            return holder
    return ""


@contextlib.contextmanager
def hold_named(
    folder: Path, name: str, doing: str, waiting: Callable[[str], None], deadline_s: float
) -> Iterator[None]:
    """Hold a lock that has a name while the block lasts; wait for whoever holds it, until a monotonic time.

    Lock and note are in ``folder``, which exists; the note says what the holder is ``doing``. ``waiting`` is told whom
    we wait for, once a holder.

    Raises:
        InterruptedRunError: ``out-of-budget``: still held at the deadline.
        OSError: The folder cannot be written.
    """
    note = folder / f"{name}.holder"
    lock = FileLock(folder / f"{name}.lock", mode=0o666, thread_local=False)
    _wait_for(lock, name, note, waiting, deadline_s)
    with contextlib.ExitStack() as held:
        held.callback(lock.release)
        _remove(note)  # a killed holder leaves it behind
        with os.fdopen(open_shared(note, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w", errors="replace") as stream:
            stream.write(f"process {os.getpid()} ({doing}) since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC\n")
        held.callback(_remove, note)
        yield


def _wait_for(lock: FileLock, name: str, note: Path, waiting: Callable[[str], None], deadline_s: float) -> None:
    announced = ""
    while True:
        try:
            lock.acquire(timeout=min(POLL_S, max(0.0, deadline_s - time.monotonic())))
        except Timeout:
            holder = _read_note(note) or "another process"
            if time.monotonic() > deadline_s:
                text = f"{name} is still in use by {holder}"
                raise InterruptedRunError(text, code="out-of-budget") from None
            if holder != announced:
                waiting(f"waiting for {name}, in use by {holder}")
                announced = holder
        else:
            return


def _remove(note: Path) -> None:
    """Take a note away, or empty it where it is another user's and the folder is sticky."""
    try:
        note.unlink(missing_ok=True)
    except PermissionError:
        os.close(open_shared(note, os.O_WRONLY | os.O_TRUNC))


def _read_note(note: Path) -> str:
    """What a holder wrote; empty where there is nothing, which may happen at any moment."""
    try:
        descriptor = open_shared(note, os.O_RDONLY)
    except FileNotFoundError:
        return ""
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read(NOTE_BYTES).decode(errors="replace").strip()
