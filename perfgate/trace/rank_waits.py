"""Which rank holds the others up: how long each waits in collectives for the one that arrives last.

All ranks leave a collective together, because none can have its result before the last has brought its part. So the
rank that is in it for the shortest time arrived last, and what another one was in it for longer it waited ("Wait at
N x N": Geimer et al., "The Scalasca performance toolset architecture", Concurrency and Computation 22(6), 2010). That
needs no common clock: only durations are compared. It does not hold for a broadcast or a reduction to one rank, which
are left out. Sending and receiving, by which NCCL also does an all-to-all, ends together where all ranks do as much.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfgate.trace.breakdown import StepFigures
from perfgate.trace.families import COMMUNICATION
from perfgate.trace.kernel_table import NO_TIME, Kernels, Trace, combinations
from perfgate.trace.selection import Selection

_ONE_SIDED = re.compile(r"nccl\w*?_(Broadcast|Reduce_)")
"""Communication whose ranks do not leave together."""

WHOLE = -1
"""The number of the one step of a trace without steps."""


@dataclass(frozen=True)
class Rank:
    """The steps of one rank.

    Args:
        label: What it is called.
        step_ns: The lengths of its steps of known length.
        kernel_ns: Kernel time without communication, by the step's number.
        communication_ns: Kernel time of communication, by the step's number.
        collectives: By the step's number the names of its collectives, in alphabetical order, and how long each took;
            those of one name in order of start.
    """

    label: str
    step_ns: tuple[int, ...]
    kernel_ns: dict[int, int]
    communication_ns: dict[int, int]
    collectives: dict[int, tuple[tuple[str, ...], NDArray[np.int64]]]


@dataclass(frozen=True)
class RankWaits:
    """What one rank does while others wait; times in nanoseconds, means over the steps compared.

    What there is nothing to compare for is ``None``.

    Args:
        label: What it is called.
        step_ns: The median length of its steps; ``None`` where none has a successor.
        kernel_ns: Kernel time without communication.
        communication_ns: Kernel time of communication.
        waiting_ns: By how much it was in its collectives for longer than the rank that was shortest in each.
        last: In how many collectives it alone arrived last.
        holds_up_ns: How much sooner those would have ended, had it arrived with the last but one.
    """

    label: str
    step_ns: float | None
    kernel_ns: float | None
    communication_ns: float | None
    waiting_ns: float | None
    last: int | None
    holds_up_ns: float | None


@dataclass(frozen=True)
class RankComparison:
    """Ranks beside each other.

    Args:
        ranks: In the order given.
        steps: Steps in which all ran the same collectives.
        other_steps: Steps that all have, in which they did not.
        collectives: Collectives compared.
        shown: How many steps each rank shows.
    """

    ranks: tuple[RankWaits, ...]
    steps: int
    other_steps: int
    collectives: int
    shown: tuple[int, ...]


def ranks_of(selection: Selection, label: str) -> list[Rank]:
    """The ranks that a trace holds: each device of a process, called by both where there are several."""
    trace = selection.trace
    kernels = trace.kernels.take(selection.rows)
    pairs, owner = combinations(kernels.process, kernels.device)
    several = len(pairs) > 1
    return [
        _rank(
            f"{label} process {trace.processes[process]} device {device}" if several else label,
            trace,
            kernels.take(owner == number),
            selection.figures.take(
                (selection.figures.device == device) & (trace.steps.process[selection.figures.step] == process)
            ),
        )
        for number, (process, device) in enumerate(pairs)
    ]


def _rank(label: str, trace: Trace, kernels: Kernels, figures: StepFigures) -> Rank:
    talking = np.array([role == COMMUNICATION for role in trace.names.role])[kernels.name]
    numbers = np.append(trace.steps.index, WHOLE)  # the last one is of kernels in no step
    number = numbers[kernels.step]
    return Rank(
        label=label,
        step_ns=tuple(figures.step_ns[figures.step_ns != NO_TIME].tolist()),
        kernel_ns=_sums(number[~talking], kernels.duration_ns[~talking]),
        communication_ns=_sums(number[talking], kernels.duration_ns[talking]),
        collectives={
            step: (found.names, found.duration_ns) for step, found in collectives_of(trace, kernels, number).items()
        },
    )


@dataclass(frozen=True)
class Collectives:
    """What one rank ran in a step together with others.

    Args:
        names: Normalised, in alphabetical order.
        start_ns: Of each; those of one name are in order of start.
        duration_ns: Of each.
    """

    names: tuple[str, ...]
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]


def collectives_of(trace: Trace, kernels: Kernels, number: NDArray[np.int64]) -> dict[int, Collectives]:
    """The collectives of each step, by its number; steps without one as well.

    Args:
        trace: Of which the kernels are.
        kernels: Those of one rank.
        number: The number of each kernel's step.
    """
    names = trace.names
    # In alphabetical order as numbers: an array of a step's names would be as wide as the longest of the trace.
    place = np.unique(np.array(names.normalised), return_inverse=True)[1]
    together = np.array(
        [role == COMMUNICATION and not _ONE_SIDED.search(name)
         for role, name in zip(names.role, names.normalised, strict=True)]
    )[kernels.name]  # fmt: skip
    called, of_step = kernels.take(together), number[together]
    order = np.lexsort((called.start_ns, place[called.name], of_step))
    called, of_step = called.take(order), of_step[order]
    found = {}
    for step in np.unique(number).tolist():
        own = slice(*np.searchsorted(of_step, [step, step + 1]))
        run = tuple(names.normalised[name] for name in called.name[own].tolist())
        found[step] = Collectives(run, called.start_ns[own], called.duration_ns[own])
    return found


def _sums(number: NDArray[np.int64], duration_ns: NDArray[np.int64]) -> dict[int, int]:
    """The sum of durations of each step."""
    numbers, group = np.unique(number, return_inverse=True)
    return dict(zip(numbers.tolist(), np.bincount(group, duration_ns).astype(np.int64).tolist(), strict=True))


def compare_ranks(ranks: Sequence[Rank]) -> RankComparison:
    """Each rank's waits in the steps that all have, by their numbers, and in which all ran the same collectives.

    Raises:
        ValueError: There is no rank.
    """
    shared = sorted(set.intersection(*({*rank.collectives} for rank in ranks)))
    steps = [step for step in shared if len({rank.collectives[step][0] for rank in ranks}) == 1]
    table = np.array([np.concatenate([rank.collectives[step][1] for step in steps] or [_NOTHING]) for rank in ranks])
    some, mean = bool(steps), max(len(steps), 1)
    compared, shown = [], tuple(len(rank.collectives) for rank in ranks)
    for rank, waited, held_up in zip(ranks, *waits_in(table), strict=True):
        compared.append(
            RankWaits(
                label=rank.label,
                step_ns=statistics.median(rank.step_ns) if rank.step_ns else None,
                kernel_ns=sum(rank.kernel_ns.get(step, 0) for step in steps) / mean if some else None,
                communication_ns=sum(rank.communication_ns.get(step, 0) for step in steps) / mean if some else None,
                waiting_ns=int(waited.sum()) / mean if len(waited) else None,
                last=int((held_up > 0).sum()) if len(waited) else None,
                holds_up_ns=int(held_up.sum()) / mean if len(waited) else None,
            )
        )
    return RankComparison(tuple(compared), len(steps), len(shared) - len(steps), table.shape[1], shown)


def waits_in(duration_ns: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How long each rank waits in each collective, and by how much it alone holds up the others.

    Args:
        duration_ns: How long each rank was in each collective, (ranks, collectives), at least one rank.

    Returns:
        Both of that shape: the wait, and how much sooner the collective would have ended, had the rank that alone
        arrived last arrived with the last but one; 0 for all other ranks.
    """
    waits = duration_ns - duration_ns.min(axis=0)
    second = np.sort(waits, axis=0)[1:2].sum(axis=0)  # 0 where there is one rank
    return waits, np.where(waits == 0, second, 0)


_NOTHING = np.empty(0, np.int64)
