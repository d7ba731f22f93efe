"""Folders for temporary files that killed processes of this user left: an actor's are taken over, a task's removed."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from perfgate.machine.locks import LOCK

YOUNG_S: Final = 60.0
"""A folder that was made so recently may be one whose owner is about to lock it."""


def left_behind(prefix: str, own: Path) -> list[Path]:
    """The folders beside ``own`` whose names begin so, which are this user's and nobody else's to write."""
    found = []
    for folder in own.parent.iterdir():
        if folder != own and folder.name.startswith(prefix):
            try:
                status = folder.lstat()
            except FileNotFoundError:  # another task was faster
                continue
            mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            if mine and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                found.append(folder)
    return sorted(found)


def remove_left_behind(prefix: str, own: Path) -> None:
    """Remove those of which nobody holds the lock, that of a run folder (:func:`perfgate.machine.locks.hold`)."""
    for folder in left_behind(prefix, own):
        try:
            if folder.stat().st_mtime < own.stat().st_mtime - YOUNG_S:
                with FileLock(folder / LOCK, timeout=0):
                    shutil.rmtree(folder)
        except (Timeout, OSError):  # in use, or another task was faster: what cannot be removed hinders nobody
            continue
