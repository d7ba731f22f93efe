"""A folder among temporary files that goes with the process that made it, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from perfgate.machine.cleanup import remove_tree

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path | None]:
    """A folder of this user's that is removed at the end of the block, or by the next one who asks for such a folder.

    Its maker holds a lock on it, which the kernel releases. So folders that nobody holds are those of killed processes.
    They have the host's name, as another host that shares them may not see the lock. It is ``None`` where none can be
    made or locked.

    Args:
        prefix: How the names of such folders begin.
    """
    here = f"{prefix}{zlib.crc32(socket.gethostname().encode()):08x}-"
    with contextlib.ExitStack() as stack:
        folder = None
        with contextlib.suppress(OSError):
            for left in Path(tempfile.gettempdir()).glob(f"{here}*"):
                _remove_if_left(left)
            folder = _made(here, stack)
        yield folder


def _made(prefix: str, stack: contextlib.ExitStack) -> Path:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        stack.callback(remove_tree, folder, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(folder, _OPEN)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if folder.exists():  # nobody took it for one that was left before it was locked
                return folder


def _remove_if_left(folder: Path) -> None:
    """Remove a folder of this user's that nobody holds; nothing is done about others, and links are not followed."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:  # it is gone, a link, or its maker is at work
        descriptor = os.open(folder, _OPEN)
        stack.callback(os.close, descriptor)
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(folder, ignore_errors=True)
