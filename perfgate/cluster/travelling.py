"""How files of run folders travel between the nodes of a cluster: whole, and in an order that can always be read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from perfgate.capture.compile_caches import FOLDERS as CACHES
from perfgate.capture.parking import FOLDERS as PARKED
from perfgate.cluster.cluster_run import Files
from perfgate.errors import RecordError
from perfgate.machine.locks import LOCK
from perfgate.record.run_names import RUN

TRIALS: Final = "trials"
RECORDS: Final = "records"


class GrowingFolder:
    """A folder whose new and changed files are sent on; locks, caches and half-written files are left out.

    Args:
        folder: It holds run folders.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sent: dict[str, tuple[int, int]] = {}
        self._read: dict[str, tuple[int, int]] = {}

    def changed(self) -> dict[str, bytes]:
        """The files that changed since those that were sent, in an order of which every beginning can be read.

        A manifest comes after the scenarios that it names, and records after the trials.
        """
        self._read = {}
        found: dict[str, bytes] = {}
        for file in _files(self._folder):
            status, path = file.stat(), file.relative_to(self._folder).as_posix()
            state = status.st_mtime_ns, status.st_size
            if self._sent.get(path) != state:
                self._read[path] = state
                found[path] = file.read_bytes()
        return dict(sorted(found.items(), key=lambda entry: _rank(entry[0])))

    def sent(self) -> None:
        """Note that what :meth:`changed` said last was kept by whoever it was sent to."""
        self._sent |= self._read


def put(folder: Path, files: Files) -> None:
    """Write files below a folder, each whole or not at all, in their order.

    Raises:
        RecordError: A path leads out of the folder.
        OSError: They cannot be written.
    """
    for path, content in files.items():
        parts = PurePosixPath(path).parts
        if not parts or PurePosixPath(path).is_absolute() or ".." in parts:
            raise RecordError("leads out of the run folder", where=path)
        file = folder.joinpath(*parts)
        if path.endswith("/"):
            file.mkdir(parents=True, exist_ok=True)
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f".{file.name}.part")
        part.write_bytes(content)
        part.replace(file)


def read_all(folder: Path) -> dict[str, bytes]:
    """Every file of a folder that is sent on; none where there is no such folder."""
    return GrowingFolder(folder).changed()


def read_for_later_pairs(folder: Path) -> dict[str, bytes]:
    """What further pairs need of run folders: manifest, scenarios, records and, of trials, which numbers are taken.

    Logs, timelines and traces of earlier trials are most of a run folder, and no later trial reads them.
    """
    trials = {f"{trial.relative_to(folder).as_posix()}/": b"" for trial in sorted(folder.glob(f"*/{TRIALS}/*/"))}
    files = [file for file in _files(folder) if file.relative_to(folder).parts[1:2] != (TRIALS,)]
    own = {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}
    return trials | dict(sorted(own.items(), key=lambda entry: _rank(entry[0])))


def _rank(path: str) -> int:
    """Where in the order of what is sent a file comes."""
    parts = PurePosixPath(path).parts
    return 2 if RECORDS in parts else 1 if parts[-1] == RUN else 0


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((CACHES, PARKED, ".")))
        own = (Path(place, name) for name in sorted(names) if name != LOCK and not name.startswith("."))
        yield from (file for file in own if file.is_file() and not file.is_symlink())
