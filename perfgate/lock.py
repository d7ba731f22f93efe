"""The lock of a run folder: one process at a time measures into it, any number may read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from perfgate.errors import NotMeasuredError

LOCK = "lock"
GRACE_S = 2.0
"""A holder killed while it starts an engine leaves the lock to a copy of itself, until that has become the engine."""


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder while the block lasts; the kernel releases it however this process ends.

    Raises:
        NotMeasuredError: ``run-folder-busy``: another process holds it, named by its id.
        OSError: The folder is not there, or cannot be written.
    """
    file = folder / LOCK
    holder = file.read_text() if file.exists() else ""  # before asking: older filelocks empty the file they ask for
    lock = FileLock(file)
    try:
        lock.acquire(timeout=GRACE_S)
    except Timeout:
        by = f"process {holder.strip()}" if holder.strip() else "another process"
        raise NotMeasuredError(f"{by} is measuring into it", where=str(folder), code="run-folder-busy") from None
    try:
        with file.open("w") as stream:
            stream.write(f"{os.getpid()}\n")
        yield
    finally:
        lock.release()
