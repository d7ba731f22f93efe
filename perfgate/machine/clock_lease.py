"""Leases of GPU clocks: notes of who locked them, because neither a killed process nor NVML can tell.

A lease is written before its lock and removed after it, so that every lock has one. It is ``<uuid>.lease.json`` in the
host's state folder. Its owner holds the kernel's lock on that file as long as it lives, however it ends: that is
how others tell whether it does, also from another container, where the owner's pid means nothing. Who undoes what a
dead owner left only shares that lock, lest it be taken for the owner, and holds ``<uuid>.undo.lock`` meanwhile.

The folder is sticky, so only its user can remove a lease; others write :data:`VOID` into it. One that cannot be read,
as where its writer was killed, counts as a lease of unknown clocks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, ValidationError

from perfgate.errors import NotMeasuredError
from perfgate.machine.fingerprint import boot_id
from perfgate.machine.locks import GRACE_S, open_shared, state_folder

SUFFIX: Final = ".lease.json"
VOID: Final = b"null"
"""The content of a lease that is over."""
LARGEST_BYTES: Final = 64 * 1024
POLL_S: Final = 0.02
UNDO_LIMIT_S: Final = 75.0
"""Undoing takes no longer: the helper's limit (:data:`perfgate.machine.clock_helper.LIMIT_S`) and some more."""


class Lease(BaseModel):
    """Who locked the clocks of a GPU, and at what; all but the UUID is empty where the file cannot be read.

    Args:
        uuid: The GPU.
        run: Name of the run.
        pid: The owner's process id, in its own pid namespace.
        boot_id: The boot it ran under; a lock does not outlive it.
        since: When, ISO 8601, UTC.
        sm_mhz: The SM clock held.
        memory_mhz: The memory clock held, if any.
        sm_mhz_before: The SM clock seen before.
        memory_mhz_before: The memory clock seen before.
    """

    # Fields that a later version adds are not a reason to undo what its living owner holds.
    model_config = ConfigDict(frozen=True, extra="ignore")

    uuid: str
    run: str = ""
    pid: int = 0
    boot_id: str = ""
    since: str = ""
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    sm_mhz_before: int | None = None
    memory_mhz_before: int | None = None

    @property
    def readable(self) -> bool:
        """Whether the file told more than its name."""
        return self.sm_mhz is not None

    @property
    def holds_memory(self) -> bool:
        """Whether the memory clock may be locked: to be assumed where the file cannot be read."""
        return self.memory_mhz is not None or not self.readable

    @property
    def outlived_a_boot(self) -> bool:
        """Whether the machine has been booted since, which cleared the lock."""
        return self.readable and self.boot_id != boot_id()

    def __str__(self) -> str:
        """For people: what is held, by whom and since when."""
        if not self.readable:
            return "clocks locked by an unknown run (its lease cannot be read)"
        memory = f", memory at {self.memory_mhz} MHz" if self.memory_mhz is not None else ""
        return f"SM at {self.sm_mhz} MHz{memory}, by run {self.run} (pid {self.pid}) since {self.since}"


@dataclass(frozen=True)
class Hold:
    """A lease in force, from :func:`take`; its file is locked until :meth:`drop` or the end of this process."""

    lease: Lease
    descriptor: int

    def drop(self) -> None:
        """Remove the lease, once its lock is undone."""
        _void(self.lease.uuid, self.descriptor)
        os.close(self.descriptor)


def take(lease: Lease) -> Hold:
    """Write a lease, its file locked before; on the disk when this returns.

    To be called by whoever holds the GPU (:func:`perfgate.machine.locks.hold_devices`), after :func:`adopt` removed
    the lease of one that is gone.

    Raises:
        NotMeasuredError: ``clocks-held``: somebody else holds the file; ``storage-failed``: it is not a regular file.
        OSError: The state folder cannot be written.
    """
    descriptor = _open_locked(lease.uuid, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX)
    try:
        _write(descriptor, lease.model_dump_json().encode())
        os.fsync(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return Hold(lease, descriptor)


def _write(descriptor: int, content: bytes) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, content, 0)


def _void(uuid: str, descriptor: int) -> None:
    """Remove a lease, or say in it that it is over where it is another user's file."""
    try:
        _file(uuid).unlink(missing_ok=True)
    except PermissionError:
        _write(descriptor, VOID)


@contextlib.contextmanager
def adopt(uuid: str) -> Iterator[Lease | None]:
    """The lease of an owner that is gone, to undo its lock in the block; ``None`` where the GPU has none.

    Nobody else can adopt it meanwhile, and who wants to waits. It is removed when the block ends, and stays when that
    raises.

    Raises:
        NotMeasuredError: ``clocks-held``: the owner lives, or somebody else does not come to an end of undoing it.
        OSError: The lease cannot be opened or removed.
    """
    with contextlib.ExitStack() as held:
        lease = None
        if find_leases([uuid]):
            held.enter_context(_alone(uuid))
            with contextlib.suppress(FileNotFoundError):  # its owner, or who undid it, has just removed it
                descriptor = _open_locked(uuid, os.O_RDWR, fcntl.LOCK_SH)
                held.callback(os.close, descriptor)
                lease = _parse(uuid, descriptor)
        yield lease
        if lease is not None:
            _void(uuid, descriptor)


def find_leases(uuids: Collection[str]) -> tuple[Lease, ...]:
    """The leases of these GPUs, whether their owners live or not."""
    leases = []
    for uuid in uuids:
        with contextlib.suppress(FileNotFoundError), _opened(uuid) as descriptor:
            leases.append(_parse(uuid, descriptor))
    return tuple(lease for lease in leases if lease is not None)


def owner_lives(uuid: str) -> bool:
    """Whether the GPU has a lease whose owner still runs."""
    try:
        with _opened(uuid) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def held_by_another(lease: Lease) -> NotMeasuredError:
    """The error that a living owner's lease is."""
    return NotMeasuredError(f"held by a living process: {lease}", where=lease.uuid, code="clocks-held")


def _alone(uuid: str) -> contextlib.AbstractContextManager[object]:
    """A block in which nobody else undoes the lock of this GPU."""
    undoing = FileLock(state_folder() / f"{uuid}.undo.lock", mode=0o666)
    try:
        return undoing.acquire(timeout=UNDO_LIMIT_S, poll_interval=POLL_S)
    except Timeout:
        raise NotMeasuredError(
            f"another process has been giving the clocks free for {UNDO_LIMIT_S:.0f} s",
            where=uuid,
            remedy="See whether nvidia-smi answers for this GPU, and what perfgate clocks show says.",
            code="clocks-held",
        ) from None


def _open_locked(uuid: str, flags: int, operation: int) -> int:
    """The lease's file, open and locked, as soon as nobody else holds it.

    Raises:
        NotMeasuredError: ``clocks-held``: somebody holds it.
        FileNotFoundError: It is not there, and was not to be made.
    """
    deadline = time.monotonic() + GRACE_S
    while True:
        with contextlib.ExitStack() as opened:
            descriptor = open_shared(_file(uuid), flags)
            opened.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
            except BlockingIOError:
                # Who looks for something to undo holds it for a moment; so does what an owner forked before it was
                # killed.
                if time.monotonic() > deadline:
                    raise held_by_another(_parse(uuid, descriptor) or Lease(uuid=uuid)) from None
                time.sleep(POLL_S)
                continue
            if _is_still(_file(uuid), descriptor):  # else its owner has given it up, and perhaps a new one is there
                opened.pop_all()
                return descriptor


def _is_still(file: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(file.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _opened(uuid: str) -> Iterator[int]:
    descriptor = open_shared(_file(uuid), os.O_RDWR)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _parse(uuid: str, descriptor: int) -> Lease | None:
    """What a lease says; ``None`` for one that is over."""
    content = os.pread(descriptor, LARGEST_BYTES, 0)
    if content == VOID:
        return None
    try:
        lease = Lease.model_validate_json(content)
    except ValidationError:
        return Lease(uuid=uuid)
    return lease if lease.uuid == uuid else Lease(uuid=uuid)


def _file(uuid: str) -> Path:
    return state_folder() / f"{uuid}{SUFFIX}"
