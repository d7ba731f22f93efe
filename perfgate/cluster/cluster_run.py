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

NAMESPACE: Final = "perfgate"
"""Of the actors in the cluster."""


@dataclass(frozen=True)
class Piece:
    """Of a file that is too large for one message.

    Args:
        content: The bytes.
        begin: Where in the file they are.
        size: Bytes of the whole file.
        version: Of the file; the pieces of one belong together.
    """

    content: bytes
    begin: int
    size: int
    version: str

    @property
    def end(self) -> int:
        """Where in the file the next piece begins."""
        return self.begin + len(self.content)


Files = Mapping[str, bytes | Piece]
"""Contents by path below a folder, with forward slashes; a path that ends with one is a folder."""


def is_last(content: bytes | Piece) -> bool:
    """Whether a file is whole once this is kept."""
    return not isinstance(content, Piece) or content.end == content.size


class ClusterRun(Frozen):
    """A run of which each cell is a shard that some node measures.

    Args:
        perfgate: Version that began it.
        folder: The working directory, which every node has at the same path.
        scenarios: Absolute paths of the scenario files.
        scaled_to: With --preset scaling, the GPUs that each scenario is scaled to; empty without.
        subjects: The builds by what they are called in the run; those of git refs are made on each host.
        plan: One shard a cell.
        ranks: How many GPUs the engines of each cell take, in the order of shards.
    """

    format: Literal["perfgate-cluster/1"] = "perfgate-cluster/1"
    perfgate: str
    folder: str
    scenarios: Annotated[tuple[str, ...], Field(min_length=1)]
    scaled_to: tuple[int, ...] = ()
    subjects: dict[str, Subject]
    plan: ShardPlan
    ranks: tuple[int, ...]

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
    """What a task is given when it begins to run.

    Args:
        files: What it needs of what was measured of its cell so far.
        seconds_left: Of the budget; infinite without one.
        beginning: Names the beginning of the run: a build that failed since is not tried again on that host.
    """

    files: Files
    seconds_left: float
    beginning: str


@dataclass(frozen=True)
class Ending:
    """How a task ended.

    Args:
        kind: ``done``; ``given-back``: somebody else measures on what it was given; ``stopped`` on request, or out of
            budget; ``elsewhere``: its node was lost, or cannot measure it, and another may; ``failed``: no node can.
        text: Why, where it is not done.
        code: The reason code of that, if there is one.
        node: Ray's id of a node that cannot measure it.
    """

    kind: Literal["done", "given-back", "stopped", "elsewhere", "failed"]
    text: str = ""
    code: str = ""
    node: str = ""
