"""What is measured on a cluster, what actor and tasks say to each other, and what a cell needs of a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from perfgate.models import Frozen
from perfgate.record.shards import Shard, ShardPlan
from perfgate.scenario.declaration import LoadedScenario, load
from perfgate.scenario.presets import with_preset
from perfgate.scenario.subject import Subject
from perfgate.units import listed

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
    return [with_preset(scenario, "scaling", count) for scenario, count in zip(scenarios, gpus, strict=True)]


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


# What a cell of the CPU takes of a node's memory, as Ray counts it, so that no second one is there: Ray lends out the
# cores of a task that waits for an answer, and neither its memory nor its GPUs
MEMORY: Final = 0.6
NAMED: Final = 8  # so many nodes are named in a sentence


@dataclass(frozen=True)
class Node:
    """A node that is alive."""

    id: str  # ray's
    name: str  # of its host
    resources: Mapping[str, float]  # what it has in all, as Ray counts it; memory in bytes

    def has(self, resource: str) -> float:
        """How much it has of a resource."""
        return self.resources.get(resource, 0.0)

    def measures(self, machine: str) -> bool:
        """Whether cells of a class run on it at all: a head node may have no cores, so that none does."""
        return bool(self.has("CPU") and (not machine or self.has(machine)))

    def __str__(self) -> str:
        """For people."""
        return f"{self.name} ({counted(self.resources)})"


@dataclass(frozen=True)
class Need:
    """What a cell is to have."""

    machine: str  # the class of machines; empty where any will do
    cores: float  # logical cores, as Ray counts them
    gpus: int = 0  # whole ones
    memory: float = 0.0  # bytes

    def fits(self, node: Node, times: int = 1) -> bool:
        """Whether a node that runs nothing else holds so many of it at once."""
        if self.machine and not node.has(self.machine):
            return False
        wanted = ((self.cores, "CPU"), (self.gpus, "GPU"), (self.memory, "memory"))
        return all(node.has(resource) >= times * amount for amount, resource in wanted)

    def lack(self, nodes: Iterable[Node]) -> str:
        """A sentence where none of the nodes that are there can hold it; empty where one can."""
        there = [*nodes]
        if any(map(self.fits, there)):
            return ""
        of_class = f" on a node with the resource {self.machine}" if self.machine else ""
        like = [node for node in there if not self.machine or node.has(self.machine)]
        others = f"; other nodes: {len(there) - len(like)}" if len(like) < len(there) else ""
        named = listed([*map(str, like)], NAMED) or "none"
        return f"waits for a node: it needs {self}{of_class}, and of these there are: {named}{others}"

    def __str__(self) -> str:
        """For people."""
        return _amounts(self.cores, self.gpus, self.memory)


def need_of(machine: str, ranks: int, nodes: Iterable[Node]) -> Need:
    """What a cell is to have on nodes of a class.

    On nodes with GPUs it has as many as its largest engine takes; on others the node to itself, by the size that fits
    most of them once and not twice. Where there is no such node yet GPUs are taken for granted.
    """
    able = [node for node in nodes if node.measures(machine)]
    if not able or any(node.has("GPU") for node in able):
        return Need(machine, cores=1.0, gpus=ranks)
    sizes = [Need(machine, cores=node.has("CPU"), memory=MEMORY * node.has("memory")) for node in able]
    alone_on = {  # how many nodes hold it once and not twice
        size: sum(size.fits(node) and not Need("", 0.0, memory=size.memory).fits(node, 2) for node in able)
        for size in sizes
    }
    return max(sizes, key=lambda size: (alone_on[size], size.cores, size.memory))


def most_gpus(machine: str, nodes: Iterable[Node]) -> int:
    """The GPUs of the largest node that measures a class; 1 where none has any, as on a machine without."""
    return int(max((node.has("GPU") for node in nodes if node.measures(machine)), default=0)) or 1


def counted(resources: Mapping[str, float]) -> str:
    """Those that cells need, for people."""
    return _amounts(*(resources.get(name, 0.0) for name in ("CPU", "GPU", "memory")))


def _amounts(cores: float, gpus: float, memory: float) -> str:
    gib = f"{memory / 2**30:.1f} GiB of memory" if memory else ""
    return ", ".join(filter(None, [_counted(gpus, "GPU") if gpus else "", _counted(cores, "core"), gib]))


def _counted(number: float, what: str) -> str:
    return f"{number:g} {what}{'' if number == 1 else 's'}"
