"""Where the host's time goes in a decode step: sampled stacks of the thread that runs the engine's loop.

Counts of calls repeat exactly and say what is done (:mod:`perfgate.calls.host_calls`); samples say how long it takes,
also where the same call became slower. They judge nothing: two engines of one build differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple, Self

from pydantic import Field, PositiveInt, model_validator

from perfgate.calls.host_calls import Count, Name
from perfgate.models import Frozen

MOST_NODES = 400
"""Of the tree that a record keeps: those in which most time was spent."""
Path = tuple[str, ...]
"""A stack, the outermost function first."""


class Spent(NamedTuple):
    """What was seen of one stack.

    Args:
        work_ns: How long the thread ran meanwhile.
        wait_ns: How long it did not: it waited, or another thread had its CPU.
        square_ns2: Sum of the squares of each sample's work.
    """

    samples: int = 0
    work_ns: int = 0
    wait_ns: int = 0
    square_ns2: int = 0

    def plus(self, other: Spent) -> Spent:
        """Both."""
        return Spent(*(figure + more for figure, more in zip(self, other, strict=True)))


class FunctionTime(Frozen):
    """One function in the decode steps.

    Args:
        samples: In which it was the innermost function; C functions count for who calls them.
        work_ns: How long the thread ran in it then.
        wait_ns: How long it did not run then.
        spread_ns: Root of the sum of the squares of each sample's work: the standard error of ``work_ns`` where samples
            come by chance (a compound Poisson process).
    """

    samples: Count = 0
    work_ns: Count = 0
    wait_ns: Count = 0
    spread_ns: Count = 0


class Node(NamedTuple):
    """A function of the tree of stacks, at one place of it.

    Args:
        parent: Number of the node that calls it, from 1 in the order of the list; 0 for none.
        work_ns: Work in it and in what it calls there.
    """

    parent: Count
    function: Name
    work_ns: Count


class HostProfile(Frozen):
    """What the thread of the engine's loop did in the sampled decode steps of one trial.

    Args:
        steps: Decode steps: returns of the engine with tokens, after every request has its first.
        period_ns: Between two samples.
        figures: Sums over the steps, see :data:`FIGURES`.
        cpus: CPUs on which steps ended.
        allowed: On how many the engine may run.
        threads: By name how many threads its process has, and on how many CPUs the one with the fewest may run.
        imports: Modules that its process imported, and their own microseconds, by package.
        functions: Those that were innermost, by module and qualified name.
        tree: The nodes in which most time was spent, parents before children.
    """

    steps: PositiveInt
    period_ns: PositiveInt
    figures: dict[Name, Count]
    cpus: tuple[Count, ...]
    allowed: PositiveInt
    threads: dict[Name, tuple[PositiveInt, PositiveInt]]
    imports: dict[Name, tuple[PositiveInt, Count]] = {}
    functions: dict[Name, FunctionTime]
    tree: Annotated[tuple[Node, ...], Field(max_length=MOST_NODES)]

    @model_validator(mode="after")
    def _parents_come_first(self) -> Self:
        for number, node in enumerate(self.tree):
            if node.parent > number:
                raise ValueError(f"tree: the parent of node {number + 1} is not before it")
        return self

    def mean(self, figure: str) -> float:
        """A figure of one step."""
        return self.figures.get(figure, 0) / self.steps


FIGURES = ("wall_ns", "thread_ns", "process_ns", "minor_faults", "major_faults", "waits", "preemptions",
           "collections", "collected_ns", "moves")  # fmt: skip
"""Of a step: how long it took, how long its thread and all threads of the process ran meanwhile, page faults of the
process without and with a read from disk, how often the thread waited and was preempted, how often garbage was
collected and how long that took, and whether the thread was on another CPU than after the step before."""


def summed(stacks: Mapping[Path, Spent]) -> dict[str, FunctionTime]:
    """The innermost functions of some stacks."""
    by_function: dict[str, Spent] = {}
    for path, spent in stacks.items():
        by_function[path[-1]] = by_function.get(path[-1], Spent()).plus(spent)
    return {
        name: FunctionTime(samples=seen.samples, work_ns=seen.work_ns, wait_ns=seen.wait_ns,
                           spread_ns=round(seen.square_ns2**0.5))
        for name, seen in sorted(by_function.items())
    }  # fmt: skip


def tree_of(stacks: Mapping[Path, Spent]) -> tuple[Node, ...]:
    """The :data:`MOST_NODES` nodes in which most time was spent; a node's parent has at least as much as itself."""
    work: dict[Path, int] = {}
    for path, spent in stacks.items():
        for depth in range(1, len(path) + 1):
            work[path[:depth]] = work.get(path[:depth], 0) + spent.work_ns
    kept = sorted(work, key=lambda path: (-work[path], len(path), path))[:MOST_NODES]
    places = {path: number for number, path in enumerate(kept, 1)}
    return tuple(Node(places.get(path[:-1], 0), path[-1], work[path]) for path in kept)


def speedscope(name: str, stacks: Mapping[Path, Spent]) -> dict[str, object]:
    """All stacks as a sampled profile, by work; https://www.speedscope.app/file-format-schema.json."""
    frames = {frame: number for number, frame in enumerate(dict.fromkeys(f for path in stacks for f in path))}
    samples: Sequence[tuple[Path, Spent]] = sorted(stacks.items())
    weights = [spent.work_ns for _, spent in samples]
    profile = {"type": "sampled", "name": name, "unit": "nanoseconds", "startValue": 0, "endValue": sum(weights),
               "samples": [[frames[frame] for frame in path] for path, _ in samples], "weights": weights}  # fmt: skip
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "shared": {"frames": [{"name": frame} for frame in frames]},
        "profiles": [profile],
        "name": name,
        "exporter": "perfgate",
    }
