"""Locks between processes: one at a time measures into a run folder or on a GPU, and one at a time makes a build.

The kernel releases them however their holder ends. Beside a lock that others wait for lies a note of who holds it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from perfgate.errors import InterruptedRunError, NotMeasuredError

LOCK = "lock"
GRACE_S = 2.0
"""A holder killed while it starts an engine leaves the lock to a copy of itself, until that has become the engine."""
POLL_S = 0.5

STATE = "PERFGATE_STATE"
"""The variable that names another :func:`state_folder`; every user and container that shares a GPU must share it."""


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder while the block lasts.

    Raises:
        NotMeasuredError: ``run-folder-busy``: another process holds it, named by its id.
        OSError: The folder is not there, or cannot be written.
    """
    file = folder / LOCK
    holder = _read(file)  # before asking: older filelocks empty the file they ask for
    lock = FileLock(file)
    try:
        lock.acquire(timeout=GRACE_S)
    except Timeout:
        by = f"process {holder}" if holder else "another process"
        raise NotMeasuredError(f"{by} is measuring into it", where=str(folder), code="run-folder-busy") from None
    try:
        with file.open("w") as stream:
            stream.write(f"{os.getpid()}\n")
        yield
    finally:
        lock.release()


def state_folder() -> Path:
    """The folder of what belongs to the host: locks of GPUs and leases of their clocks; made where it is missing.

    ``$PERFGATE_STATE``, else ``/run/lock/perfgate`` (in memory and local by the file system standard, so that locks
    work and a reboot clears them), else a folder for temporary files. All users may write there: who measures must see
    who else does.

    Raises:
        OSError: It cannot be made.
    """
    chosen = os.environ.get(STATE)
    host_wide = Path("/run/lock")
    if chosen:
        folder = Path(chosen)
    elif (host_wide / "perfgate").is_dir() or os.access(host_wide, os.W_OK):
        folder = host_wide / "perfgate"
    else:
        folder = Path(tempfile.gettempdir()) / "perfgate-state"
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)  # mkdir's own mode is cut by the umask
    return folder


@contextlib.contextmanager
def hold_devices(
    names: Iterable[str], run_name: str, waiting: Callable[[str], None], deadline_s: float
) -> Iterator[None]:
    """Hold the host's locks of these devices while the block lasts; wait for whoever holds them.

    They are taken in sorted order, so that two runs that need the same GPUs cannot wait for each other.

    Args:
        names: UUIDs of GPUs, or ``cpu``.
        run_name: What those who wait are told.
        waiting: Told whom we wait for, once a holder.
        deadline_s: Monotonic time after which waiting is given up.

    Raises:
        InterruptedRunError: ``out-of-budget``: still held at the deadline.
        OSError: The state folder cannot be written.
    """
    folder = state_folder()
    with contextlib.ExitStack() as held:
        for name in sorted(set(names)):
            held.enter_context(hold_named(folder, name, f"run {run_name}", waiting, deadline_s))
        yield


@contextlib.contextmanager
def hold_named(
    folder: Path, name: str, doing: str, waiting: Callable[[str], None], deadline_s: float
) -> Iterator[None]:
    """Hold a lock that has a name while the block lasts; wait for whoever holds it.

    Args:
        folder: Where the lock and its note lie; it must be there.
        name: What is locked, in the words that those who wait are told.
        doing: What the holder does, in the same.
        waiting: Told whom we wait for, once a holder.
        deadline_s: Monotonic time after which waiting is given up.

    Raises:
        InterruptedRunError: ``out-of-budget``: still held at the deadline.
        OSError: The folder cannot be written.
    """
    note = folder / f"{name}.holder"
    lock = FileLock(folder / f"{name}.lock", mode=0o666)
    _wait_for(lock, name, note, waiting, deadline_s)
    with contextlib.ExitStack() as held:
        held.callback(lock.release)
        note.unlink(missing_ok=True)  # a killed holder leaves it behind, and only its user may write into that
        with note.open("w") as stream:
            stream.write(f"process {os.getpid()} ({doing}) since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC\n")
        held.callback(note.unlink, missing_ok=True)
        yield


def _wait_for(lock: FileLock, name: str, note: Path, waiting: Callable[[str], None], deadline_s: float) -> None:
    told = ""
    while True:
        try:
            lock.acquire(timeout=POLL_S)
        except Timeout:
            holder = _read(note) or "another process"
            if time.monotonic() > deadline_s:
                text = f"{name} is still in use by {holder}"
                raise InterruptedRunError(text, code="out-of-budget") from None
            if holder != told:
                waiting(f"waiting for {name}, in use by {holder}")
                told = holder
        else:
            return


def _read(file: Path) -> str:
    """What a holder wrote; empty where there is nothing, which may happen at any moment."""
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        return ""
