"""Room on a disk: the compile caches that killed visits left in run folders, and run folders of long ago."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from perfgate.errors import NotMeasuredError
from perfgate.machine.json_text import read_json
from perfgate.machine.locks import hold


@dataclass(frozen=True)
class Swept:
    """What became of a compile cache or run folder, and why it was kept, where it was."""

    folder: Path
    kept: str = ""

    def __str__(self) -> str:
        """For people."""
        return f"kept {self.folder}: {self.kept}" if self.kept else f"removed {self.folder}"


def remove_tree(folder: Path, *, ignore_errors: bool = False) -> None:
    """Remove a folder that code under test could write, as :func:`shutil.rmtree` does, however deep it is.

    That has a file open for each level and, before Python 3.13, calls itself: a program can make more levels than
    either permits, and ``rm`` neither.

    Raises:
        OSError: Something cannot be removed, and that is not to be ignored.
    """
    failure: Exception | None = None
    try:
        shutil.rmtree(folder, ignore_errors=ignore_errors)
    except RecursionError as error:
        failure = error
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        failure = error
    # A Path raises where it may not look, and these say no.
    if failure is not None or (ignore_errors and os.path.isdir(folder) and not os.path.islink(folder)):  # noqa: PTH112, PTH114
        _force(folder, failure, ignore_errors=ignore_errors)


def _force(folder: Path, failure: Exception | None, *, ignore_errors: bool) -> None:
    try:
        done = subprocess.run(["rm", "-rf", "--", folder], stderr=subprocess.DEVNULL, check=False)  # noqa: S603, S607
    except OSError:  # there is no such program here
        if not ignore_errors:
            raise
    else:
        if done.returncode and not ignore_errors:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(folder)) from failure


def count_files(folder: Path) -> int:
    """Files below a folder, at any depth; what cannot be read counts as empty."""
    count, left = 0, [folder]
    while left:
        with contextlib.suppress(OSError), os.scandir(left.pop()) as items:
            for item in items:
                if item.is_dir(follow_symlinks=False):
                    left.append(Path(item.path))
                else:
                    count += 1
    return count


def sweep(root: Path, days: float) -> Iterator[Swept]:
    """Remove what nobody needs from the run folders at any depth below ``root``; links are not followed.

    A run folder is one with a ``run.json`` of ours; one that a run holds is left alone, however old it is. Those in
    which nothing was measured for so many days go whole, of others only the compile caches.
    """
    for folder in list(_run_folders(root)):
        try:
            with hold(folder):
                yield from _sweep(folder, datetime.now(UTC) - timedelta(days=days))
        except (NotMeasuredError, OSError) as error:
            yield Swept(folder, error.finding if isinstance(error, NotMeasuredError) else str(error))


def _run_folders(root: Path) -> Iterator[Path]:
    for folder, inside, files in os.walk(root):
        if "run.json" in files and _is_ours(Path(folder, "run.json")):
            inside.clear()  # no run is in another's folder, and programs under test wrote there
            yield Path(folder)


def _is_ours(file: Path) -> bool:
    try:
        content = read_json(file)
    except (OSError, ValueError):  # no manifest that perfgate could have written
        return False
    return isinstance(content, dict) and str(content.get("format", "")).startswith("perfgate-run/")


def _sweep(folder: Path, before: datetime) -> Iterator[Swept]:
    measured_s = max(file.stat().st_mtime for file in (folder / "run.json", *folder.glob("records/*.json")))
    for old in [folder] if datetime.fromtimestamp(measured_s, UTC) < before else sorted(folder.glob("cache-*")):
        remove_tree(old)
        yield Swept(old)
