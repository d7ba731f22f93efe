"""Which ranks wait for each other: those that were in collectives together.

Several groups of ranks may run collectives of one name, as the stages of a pipeline do, and a group is those that leave
at the same time. It does not hold for a broadcast or a reduction to one rank, which are left out. Sending and
receiving, by which NCCL also does an all-to-all, ends together where all ranks do as much.

Without a common clock the hosts' begins of a step say how far clocks are apart: stages come one after the other, ranks
that wait for each other do not. Ranks that were in no collective together wait for nobody that is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfgate.scenario.kernel_names import COMMUNICATION
from perfgate.trace.kernel_table import Kernels, Trace

Ints = NDArray[np.int64]

_ONE_SIDED = re.compile(r"nccl\w*?_(Broadcast|Reduce_)")
"""Communication whose ranks do not leave together."""

OF_A_STAGE = 4
"""Ranks leave a collective together where their ends are closer than this part of what a stage of a pipeline would take
if every rank were one."""
CLOCKS_NS = 5000
"""How far the clocks of two GPUs may be apart; ends of 396 collectives of two H200s differ by 0.6 us at most."""


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

    @property
    def end_ns(self) -> Ints:
        """When it left each."""
        return self.start_ns + self.duration_ns


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
    by_step = {}
    for step in np.unique(number).tolist():
        rows = slice(*np.searchsorted(of_step, [step, step + 1]))
        run = tuple(names.normalised[name] for name in called.name[rows].tolist())
        by_step[step] = Collectives(run, called.start_ns[rows], called.duration_ns[rows])
    return by_step


def group_by_leaving(called: Sequence[Sequence[Collectives]], span_ns: float) -> list[list[int]]:
    """Ranks that leave their collectives together, by their place.

    Args:
        called: The collectives of each step of each rank; the steps are the same in all.
        span_ns: How long a step of all ranks takes.
    """
    apart_ns = span_ns / (OF_A_STAGE * len(called))
    return grouped_by(len(called), lambda rank, other: _leave_together(called[rank], called[other], apart_ns))


def grouped_by(count: int, together: Callable[[int, int], bool]) -> list[list[int]]:
    """Each of so many, from 0, in the group to whose first one it belongs, or in a group of its own."""
    groups: list[list[int]] = []
    for number in range(count):
        group = next((group for group in groups if together(group[0], number)), None)
        if group is None:
            groups.append([number])
        else:
            group.append(number)
    return groups


def _leave_together(rank: Sequence[Collectives], other: Sequence[Collectives], apart_ns: float) -> bool:
    """Whether two ranks' collectives of one name and order end at the same time, and both are in most of them at once.

    A short stage, or one that works on another batch meanwhile, ends near the other one without having been with it.
    """
    later_ns = _later_ns(rank, other)
    if not len(later_ns) or float(np.median(np.abs(later_ns))) > apart_ns:
        return False
    return overlap([rank, other], [0, float(np.clip(np.median(later_ns), -CLOCKS_NS, CLOCKS_NS))])


def may_meet(rank: Sequence[Collectives], other: Sequence[Collectives], host_ns: float, work_ns: float) -> bool:
    """Whether two ranks without a clock in common may have been in most of their collectives together.

    Args:
        rank: The collectives of each step of a rank.
        other: Those of the same steps of the other one.
        host_ns: By how much the other one's host begins a step later, by their clocks.
        work_ns: How long the rank with less work works in a step. Hosts may be as far ahead of each other, and the
            work of a stage begins where that of the one before has ended.
    """
    later_ns = _later_ns(rank, other)
    if not len(later_ns) or overlap([rank, other], [0, host_ns]):
        return True
    device_ns = float(np.median(later_ns))
    return abs(device_ns - host_ns) < work_ns and overlap([rank, other], [0, device_ns])


def _later_ns(rank: Sequence[Collectives], other: Sequence[Collectives]) -> NDArray[np.float64]:
    """By how much collectives end later on the other rank, in the steps in which both ran the same."""
    runs = [(a, b) for a, b in zip(rank, other, strict=True) if a.names == b.names]
    return np.concatenate([np.zeros(0), *(b.end_ns - a.end_ns for a, b in runs)])


def overlap(called: Sequence[Sequence[Collectives]], late_ns: Sequence[float]) -> bool:
    """Whether most collectives ran on all ranks at once.

    Args:
        called: Those of each step of each rank; steps in which the ranks ran other ones tell nothing.
        late_ns: How late each rank's clock is.
    """
    met: list[bool] = []
    for run in zip(*called, strict=True):
        if len({calls.names for calls in run}) == 1:
            ends = np.min([calls.end_ns - late for calls, late in zip(run, late_ns, strict=True)], axis=0)
            met += (
                np.max([calls.start_ns - late for calls, late in zip(run, late_ns, strict=True)], axis=0) < ends
            ).tolist()
    return 2 * sum(met) >= len(met)
