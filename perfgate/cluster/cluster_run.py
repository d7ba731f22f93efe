"""What is measured on a cluster, and how files of a run folder travel between its nodes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Final, Literal

from pydantic import Field

from perfgate.capture.compile_caches import FOLDERS as CACHES
from perfgate.capture.parking import FOLDERS as PARKED
from perfgate.errors import RecordError
from perfgate.machine.locks import LOCK
from perfgate.models import Frozen
from perfgate.record.shards import Shard, ShardPlan
from perfgate.scenario.subject import Subject

NAMESPACE: Final = "perfgate"
"""Of the actors in the cluster."""

Files = Mapping[str, bytes]
"""Contents by path below a folder, with forward slashes."""


class ClusterRun(Frozen):
    """A run of which each cell is a shard that some node measures.

    Args:
        perfgate: Version that began it.
        folder: The working directory, which every node has at the same path.
        scenarios: Absolute paths of the scenario files.
        subjects: The builds by what they are called in the run; those of git refs are made on each host.
        plan: One shard a cell.
        ranks: How many GPUs the engines of each cell take, in the order of shards.
    """

    format: Literal["perfgate-cluster/1"] = "perfgate-cluster/1"
    perfgate: str
    folder: str
    scenarios: Annotated[tuple[str, ...], Field(min_length=1)]
    subjects: dict[str, Subject]
    plan: ShardPlan
    ranks: tuple[int, ...]

    @property
    def name(self) -> str:
        """Of the joined run, and of the actor that looks after it."""
        return self.plan.run

    def shard(self, number: int) -> Shard:
        """The entry of a cell, by its number from 1."""
        return self.plan.include[number - 1]

    def cell(self, number: int) -> str:
        """The name of that cell."""
        return self.shard(number).cells[0]


@dataclass(frozen=True)
class Ending:
    """How a task ended.

    Args:
        kind: ``done``; ``given-back``: somebody else measures on what it was given; ``stopped`` on request, or out of
            budget; ``failed``: it cannot be measured there.
        text: Why, where it is not done.
        code: The reason code of that, if there is one.
    """

    kind: Literal["done", "given-back", "stopped", "failed"]
    text: str = ""
    code: str = ""


class GrowingFolder:
    """A folder whose new and changed files are sent on; locks, caches and half-written files are left out.

    Args:
        folder: It holds run folders.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, tuple[int, int]] = {}

    def changed(self) -> dict[str, bytes]:
        """The files that changed since the last call, records last: what a record names is there before it."""
        found: dict[str, bytes] = {}
        for file in self._files():
            status, path = file.stat(), file.relative_to(self.folder).as_posix()
            state = status.st_mtime_ns, status.st_size
            if self._known.get(path) != state:
                self._known[path] = state
                found[path] = file.read_bytes()
        return dict(sorted(found.items(), key=lambda entry: "/records/" in f"/{entry[0]}"))

    def _files(self) -> list[Path]:
        found = []
        for folder, folders, names in os.walk(self.folder):
            folders[:] = [name for name in folders if not name.startswith((CACHES, PARKED, "."))]
            own = [Path(folder, name) for name in names if name != LOCK and not name.startswith(".")]
            found += [file for file in own if file.is_file() and not file.is_symlink()]
        return sorted(found)


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
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f".{file.name}.part")
        part.write_bytes(content)
        part.replace(file)


def read_all(folder: Path) -> dict[str, bytes]:
    """Every file of a folder that is sent on; none where there is no such folder."""
    return GrowingFolder(folder).changed()
