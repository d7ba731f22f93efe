"""Folders among temporary files that go with the process that made them, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from perfgate.machine.cleanup import remove_tree


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A folder of this user's that is removed at the end of the block, or by the next one who asks for such a folder.

    Its maker holds a lock on it, which the kernel releases; programs that it started do not hold it. So folders that
    nobody holds are those of killed processes. They have the host's name, as another host that shares them may not see
    the lock.

    Args:
        prefix: How the names of such folders begin.

    Raises:
        OSError: None can be made or locked.
    """
    here = f"{prefix}{zlib.crc32(socket.gethostname().encode()):08x}-"
    with contextlib.ExitStack() as stack:
        folder = _made(here, stack)
        with contextlib.suppress(OSError):  # that folders are lying about stops nobody
            for left in left_behind(here, folder):
                _remove_if_left(left)
        yield folder


def left_behind(prefix: str, home: Path) -> list[Path]:
    """The folders beside ``home`` whose names begin so, which are this user's and nobody else's to write.

    Some may be held by processes at work.
    """
    folders = []
    for folder in home.parent.iterdir():
        if folder != home and folder.name.startswith(prefix):
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                status = folder.lstat()
                mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
                if mine and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    folders.append(folder)
    return sorted(folders)


def _made(prefix: str, stack: contextlib.ExitStack) -> Path:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        stack.callback(remove_tree, folder, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            _lock(folder, fcntl.LOCK_EX, stack)
            if folder.exists():  # nobody took it for one that was left before it was locked
                return folder


def _remove_if_left(folder: Path) -> None:
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:  # it is gone, or its maker is at work
        _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB, stack)
        remove_tree(folder, ignore_errors=True)


def _lock(folder: Path, how: int, stack: contextlib.ExitStack) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    stack.callback(os.close, descriptor)
    fcntl.flock(descriptor, how)
