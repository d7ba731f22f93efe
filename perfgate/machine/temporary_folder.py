"""A folder among temporary files that goes with the process that made it, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A folder of this user's that is removed at the end of the block, or by the next one who asks for such a folder.

    Its maker holds a lock on it, which the kernel releases. So folders that nobody holds are those of killed processes.

    Args:
        prefix: How the names of such folders begin.

    Raises:
        OSError: None can be made.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        _remove_if_left(left)
    with contextlib.ExitStack() as stack:
        yield _made(prefix, stack)


def _made(prefix: str, stack: contextlib.ExitStack) -> Path:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(folder, _OPEN)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if folder.exists():  # nobody took it for one that was left before it was locked
                return folder


def _remove_if_left(folder: Path) -> None:
    """Remove a folder of this user's that nobody holds; nothing is done about others, and links are not followed."""
    try:
        descriptor = os.open(folder, _OPEN)
    except OSError:  # it is gone by now, a link, or of somebody else
        return
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:  # its maker is at work
        pass
    finally:
        os.close(descriptor)
