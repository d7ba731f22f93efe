"""Whether folders can hold what perfgate puts there: writable, with working locks, durable, local, with room."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from perfgate.doctor.diagnosis import Check, Finding
from perfgate.machine.atomic_files import write_atomically
from perfgate.machine.forked import Forked, NoAnswerError
from perfgate.machine.locks import STATE
from perfgate.units import gib

LOW_DISK_BYTES = 2 * 1024**3
LOCK_TIMEOUT_S = 30.0

NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "fuse.sshfs", "afs", "9p")
"""Beginnings of the types of file systems that are on another machine."""

STATE_FOLDER = Check(
    "state-folder", "Locks of GPUs and leases of their clocks lie there: without them two runs collide."
)
RUNS_FOLDER = Check("runs-folder", "Records are written there after every trial; one process at a time may do that.")
DISK = Check("disk", "A run that fills the disk ends unfinished.")


def check_folder(check: Check, folder: Path) -> Finding:
    """Try a folder, or the nearest one above it where it does not exist yet; nothing stays behind."""
    if folder.exists() and not folder.is_dir():
        return check.failed(f"{folder} is not a folder", "Name another.")
    existing = _nearest(folder)
    name = str(folder) if folder.is_dir() else f"{folder}, which is to be made in {existing},"
    try:
        with tempfile.TemporaryDirectory(prefix=".perfgate-doctor-", dir=existing) as scratch:
            write_atomically(Path(scratch) / "file", "perfgate")  # as records are written
            excluded = _second_is_refused(Path(scratch) / "lock")
    except OSError as error:
        remedy = f"Make {folder} writable for this user" + (f", or name another in {STATE}." * (check is STATE_FOLDER))
        return check.failed(f"{name} cannot be written: {error.strerror}", remedy)
    kind = file_system(existing)
    shown = f"{name} ({kind or 'file system unknown'})"
    another = f"Put it on a local disk: {STATE}=FOLDER." if check is STATE_FOLDER else "Name another with --runs."
    if not excluded:
        return check.failed(f"{shown}: two processes held one lock at the same time", another)
    if check is STATE_FOLDER and kind.startswith(NETWORK):
        return check.warning(f"{shown} is on another machine: several hosts would share its locks and leases", another)
    return check.ok(f"{shown} is writable, and locks exclude")


def check_disk(folder: Path) -> Finding:
    """Whether there is room for run folders."""
    existing = _nearest(folder)
    free = shutil.disk_usage(existing).free
    text = f"{gib(free)} free for {folder}"
    remedy = f"Free some space in {existing}, at least {LOW_DISK_BYTES >> 30} GiB."
    return DISK.warning(text, remedy) if free < LOW_DISK_BYTES else DISK.ok(text)


def file_system(folder: Path) -> str:
    """The type of the file system a folder is on; empty where the kernel does not tell."""
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    resolved = folder.resolve()
    return next((mounts[path] for path in (resolved, *resolved.parents) if path in mounts), "")


def _nearest(folder: Path) -> Path:
    """The folder itself, or the nearest above it that exists."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())


class _Second:
    """What another process is asked to do."""

    def is_refused(self, file: Path) -> bool:
        """Whether somebody else holds this lock."""
        try:
            FileLock(file).acquire(timeout=0)
        except Timeout:
            return True
        return False


def _second_is_refused(file: Path) -> bool:
    """Whether another process is kept out while this one holds a lock.

    Raises:
        OSError: The file system knows no locks, or the other process did not answer.
    """
    second = Forked(_Second())
    try:
        with FileLock(file):
            return bool(second.call("is_refused", (file,), {}, LOCK_TIMEOUT_S))
    except NoAnswerError as error:
        raise OSError(0, "a second process asked for its lock and did not come back") from error
    finally:
        second.close()
