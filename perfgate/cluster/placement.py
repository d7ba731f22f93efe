"""What a cell needs of a node of the cluster, and which nodes have it; Ray then chooses one of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from perfgate.units import listed

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

    Args:
        machine: The class; empty where any will do.
        ranks: GPUs of its largest engine.
        nodes: Those that are alive, and may measure it.
    """
    able = [node for node in nodes if node.measures(machine)]
    if not able or any(node.has("GPU") for node in able):
        return Need(machine, cores=1.0, gpus=ranks)
    sizes = [Need(machine, cores=node.has("CPU"), memory=MEMORY * node.has("memory")) for node in able]
    return max(sizes, key=lambda size: (_alone_on(size, able), size.cores, size.memory))


def _alone_on(need: Need, nodes: Sequence[Node]) -> int:
    """How many nodes hold it once and not twice."""
    return sum(need.fits(node) and not Need("", 0.0, memory=need.memory).fits(node, 2) for node in nodes)


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
