"""What is measured on a cluster, and what the actor that looks after it and the tasks say to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from perfgate.models import Frozen
from perfgate.record.shards import Shard, ShardPlan
from perfgate.scenario.declaration import LoadedScenario, load
from perfgate.scenario.presets import with_preset
from perfgate.scenario.subject import Subject

NAMESPACE: Final = "perfgate"  # of the actors in the cluster


@dataclass(frozen=True)
class Piece:
    """Of a file that is too large for one message."""

    content: bytes  # the bytes
    begin: int  # where in the file they are
    size: int  # bytes of the whole file
    version: str  # of the file; the pieces of one belong together

    @property
    def end(self) -> int:
        """Where in the file the next piece begins."""
        return self.begin + len(self.content)


# Contents by path below a folder, with forward slashes; a path that ends with one is a folder
Files = Mapping[str, bytes | Piece]


def is_last(content: bytes | Piece) -> bool:
    """Whether a file is whole once this is kept."""
    return not isinstance(content, Piece) or content.end == content.size


class ClusterRun(Frozen):
    """A run of which each cell is a shard that some node measures."""

    format: Literal["perfgate-cluster/1"] = "perfgate-cluster/1"
    perfgate: str  # version that began it
    folder: str  # the working directory, which every node has at the same path
    scenarios: Annotated[tuple[str, ...], Field(min_length=1)]  # absolute paths of the scenario files
    scaled_to: tuple[int, ...] = ()  # with --preset scaling, the GPUs that each scenario is scaled to; empty without
    # The builds by what they are called in the run; those of git refs are made on each host
    subjects: dict[str, Subject]
    plan: ShardPlan  # one shard a cell
    ranks: tuple[int, ...]  # how many GPUs the engines of each cell take, in the order of shards

    @property
    def name(self) -> str:
        """Of the joined run, and of the actor that looks after it."""
        return self.plan.run

    def loaded(self) -> list[LoadedScenario]:
        """The scenarios as they are measured, by the files that this machine has.

        Raises:
            ScenarioError: One cannot be read.
        """
        return scaled([load(Path(file)) for file in self.scenarios], self.scaled_to)

    @property
    def numbers(self) -> range:
        """Those of its cells, from 1."""
        return range(1, len(self.plan.include) + 1)

    def shard(self, number: int) -> Shard:
        """The entry of a cell, by its number from 1."""
        return self.plan.include[number - 1]

    def cell(self, number: int) -> str:
        """The name of that cell."""
        return self.shard(number).cells[0]


def scaled(scenarios: Sequence[LoadedScenario], gpus: Sequence[int]) -> list[LoadedScenario]:
    """Scenarios as --preset scaling measures them on so many GPUs each; as they are where none are named."""
    if not gpus:
        return [*scenarios]
    return [with_preset(one, "scaling", count) for one, count in zip(scenarios, gpus, strict=True)]


@dataclass(frozen=True)
class Begun:
    """What a task is given when it begins to run."""

    files: Files  # what it needs of what was measured of its cell so far
    seconds_left: float  # of the budget; infinite without one
    beginning: str  # names the beginning of the run: a build that failed since is not tried again on that host


@dataclass(frozen=True)
class Ending:
    """How a task ended."""

    # `done`; `given-back`: somebody else measures on what it was given; `stopped` on request, or out of budget;
    # `elsewhere`: its node was lost, or cannot measure it, and another may; `failed`: no node can
    kind: Literal["done", "given-back", "stopped", "elsewhere", "failed"]
    text: str = ""  # why, where it is not done
    code: str = ""  # the reason code of that, if there is one
    node: str = ""  # ray's id of a node that cannot measure it
