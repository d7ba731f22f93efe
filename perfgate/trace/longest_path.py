"""The longest path through a network of dependent work, and what shortening a part of the work would gain.

Nodes are points in time and edges what must pass between two of them: an activity-on-arc network, whose longest path
bounds the whole (Kelley and Walker, "Critical-Path Planning and Scheduling", 1959). What a part would gain is found by
taking it for no time at all and looking for the longest path again ("logical zeroing": Miller et al., "IPS-2: The
Second Generation of a Parallel Program Measurement System", IEEE TPDS 1(2), 1990), because another path may be nearly
as long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

_CELLS = 1 << 22
"""Times that are worked on at once: 32 MiB."""


@dataclass
class Network:
    """Points in time, from 0 on, and what must pass between them.

    Node 0 is the beginning. A node that nothing leads to may come at once.

    Args:
        tails: Where each edge begins.
        heads: Where it ends.
        times: How long it takes; not negative.
        parts: Which part of the work it belongs to, a number from 0.
    """

    nodes: int = 1
    tails: list[int] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    parts: list[int] = field(default_factory=list)

    def node(self) -> int:
        """A new node."""
        self.nodes += 1
        return self.nodes - 1

    def edge(self, tail: int, head: int, time: int, part: int) -> None:
        """A new edge."""
        self.tails.append(tail)
        self.heads.append(head)
        self.times.append(time)
        self.parts.append(part)

    def ordered(self) -> list[int]:
        """The edges so that all that lead to a node come before those that leave it.

        Of edges that run in a circle, which takes no time where times are those that were seen, some are left out.
        """
        leaving: list[list[int]] = [[] for _ in range(self.nodes)]
        missing = [0] * self.nodes
        for edge, (tail, head) in enumerate(zip(self.tails, self.heads, strict=True)):
            leaving[tail].append(edge)
            missing[head] += 1
        ready = [node for node in range(self.nodes) if not missing[node]]
        order: list[int] = []
        for node in ready:  # grows while it is read
            order += leaving[node]
            for edge in leaving[node]:
                missing[self.heads[edge]] -= 1
                if not missing[self.heads[edge]]:
                    ready.append(self.heads[edge])
        return order

    def finish(self, order: Sequence[int]) -> list[int]:
        """When each node comes."""
        finish = [0] * self.nodes
        tails, heads, times = self.tails, self.heads, self.times
        for edge in order:
            time = finish[tails[edge]] + times[edge]
            finish[heads[edge]] = max(finish[heads[edge]], time)
        return finish


@dataclass(frozen=True)
class LongestPath:
    """The longest path to a node.

    Args:
        edges: Its edges from the beginning on.
        gains: By how much the node would come earlier if a part took no time, for each part on the path.
    """

    length: int
    edges: tuple[int, ...]
    gains: dict[int, int]


def longest_path(network: Network, end: int) -> LongestPath:
    """The longest path to a node; of equally long ones the one whose last edges were given first."""
    order = network.ordered()
    finish = network.finish(order)
    into: defaultdict[int, list[int]] = defaultdict(list)
    for edge in sorted(order):
        into[network.heads[edge]].append(edge)
    edges: list[int] = []
    node = end
    while finish[node]:
        edge = next(e for e in into[node] if finish[network.tails[e]] + network.times[e] == finish[node])
        edges.append(edge)
        node = network.tails[edge]
    edges.reverse()
    parts = list(dict.fromkeys(network.parts[edge] for edge in edges if network.times[edge]))
    return LongestPath(finish[end], tuple(edges), _gains(network, order, end, finish[end], parts))


def _gains(network: Network, order: Sequence[int], end: int, length: int, parts: Sequence[int]) -> dict[int, int]:
    """The gains of several parts at once: a row of times for each node, a column for each part."""
    gains: dict[int, int] = {}
    width = max(_CELLS // network.nodes, 1)
    for first in range(0, len(parts), width):
        chosen = parts[first : first + width]
        column = {part: number for number, part in enumerate(chosen)}
        finish = np.zeros((network.nodes, len(chosen)), np.int64)
        for edge in order:
            time = finish[network.tails[edge]] + network.times[edge]
            index = column.get(network.parts[edge])
            if index is not None:
                time[index] -= network.times[edge]
            head = finish[network.heads[edge]]
            np.maximum(head, time, out=head)
        gains |= {part: length - int(finish[end, number]) for part, number in column.items()}
    return gains
