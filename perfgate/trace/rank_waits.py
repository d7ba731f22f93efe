"""Which rank holds the others up: how long each waits in collectives for the one that arrives last.

All ranks leave a collective together, because none can have its result before the last has brought its part. So the
rank that is in it for the shortest time arrived last, and what another one was in it for longer it waited ("Wait at
N x N": Geimer et al., "The Scalasca performance toolset architecture", Concurrency and Computation 22(6), 2010). The
wait itself needs no common clock: only durations are compared. Which ranks belong together does
(:mod:`perfgate.trace.rank_groups`).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from perfgate.scenario.kernel_names import COMMUNICATION
from perfgate.trace.breakdown import StepFigures
from perfgate.trace.kernel_table import NO_TIME, Kernels, Trace, combinations
from perfgate.trace.rank_groups import Collectives, collectives_of, group_by_leaving, grouped_by, may_meet, overlap
from perfgate.trace.selection import Selection

WHOLE = -1
"""The number of the one step of a trace without steps."""
Ints = NDArray[np.int64]
Matched = Literal["number", "time", "order"]
"""By what steps of several ranks belong together."""


@dataclass(frozen=True)
class Rank:
    """The steps of one rank.

    Args:
        step_ns: The lengths of its steps of known length.
        kernel_ns: Kernel time without communication, by the step's number.
        communication_ns: Kernel time of communication, by the step's number.
        collectives: Those of each step, by its number.
        numbered: Whether perfgate numbered its steps in the rank, so that one number is one step in all ranks.
        begins_ns: When its host began each step, by its number; empty where the trace has no steps.
        work_ns: When the work of each step began and ended, by its number; empty where the trace has no steps.
    """

    label: str
    step_ns: tuple[int, ...]
    kernel_ns: dict[int, int]
    communication_ns: dict[int, int]
    collectives: dict[int, Collectives]
    numbered: bool
    begins_ns: dict[int, int]
    work_ns: dict[int, tuple[int, int]]


@dataclass(frozen=True)
class RankWaits:
    """What one rank does while others wait; times in nanoseconds, means over the steps compared.

    What there is nothing to compare for is ``None``.

    Args:
        step_ns: The median length of its steps; ``None`` where none has a successor.
        kernel_ns: Kernel time without communication.
        communication_ns: Kernel time of communication.
        waiting_ns: By how much it was in its collectives for longer than the rank that was shortest in each.
        collectives: In how many it was compared, with the ranks that leave them together with it.
        last: In how many of them it alone arrived last.
        holds_up_ns: How much sooner those would have ended, had it arrived with the last but one.
    """

    label: str
    step_ns: float | None
    kernel_ns: float | None
    communication_ns: float | None
    waiting_ns: float | None
    collectives: int
    last: int | None
    holds_up_ns: float | None


@dataclass(frozen=True)
class RankComparison:
    """Ranks beside each other.

    Args:
        steps: Steps in which all ranks of each group ran the same collectives.
        other_steps: Steps that all have, in which they did not.
        collectives: Collectives compared, over all groups.
        shown: How many steps each rank shows.
        grouped: Whether ranks leave collectives at the same time, so that those that do are a group; else those are
            that may have been in them together.
        alone: Ranks that communicate, and that no other one was in a collective with.
    """

    ranks: tuple[RankWaits, ...]
    steps: int
    other_steps: int
    collectives: int
    shown: tuple[int, ...]
    matched: Matched
    grouped: bool
    alone: tuple[str, ...]


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
    steps = trace.steps.index[figures.step].tolist()
    work = zip(figures.begin_ns.tolist(), (figures.begin_ns + figures.span_ns).tolist(), strict=True)
    return Rank(
        label=label,
        step_ns=tuple(figures.step_ns[figures.step_ns != NO_TIME].tolist()),
        kernel_ns=_sums(number[~talking], kernels.duration_ns[~talking]),
        communication_ns=_sums(number[talking], kernels.duration_ns[talking]),
        collectives=collectives_of(trace, kernels, number),
        numbered=bool(trace.steps.own[figures.step].all()),
        begins_ns=dict(zip(steps, trace.steps.start_ns[figures.step].tolist(), strict=True)),
        work_ns=dict(zip(steps, work, strict=True)),
    )


def _sums(number: NDArray[np.int64], duration_ns: NDArray[np.int64]) -> dict[int, int]:
    """The sum of durations of each step."""
    numbers, group = np.unique(number, return_inverse=True)
    return dict(zip(numbers.tolist(), np.bincount(group, duration_ns).astype(np.int64).tolist(), strict=True))


def compare_ranks(
    ranks: Sequence[Rank], *, one_clock: bool = True, known_clock: bool = False, by_order: bool = True
) -> RankComparison:
    """Each rank's waits in the steps that all have, held against the ranks that leave collectives with it.

    Args:
        ranks: At least one.
        one_clock: Whether their traces may have a clock in common; steps without numbers of perfgate's are matched by
            time only then.
        known_clock: Whether they do: what does not meet on it is not compared.
        by_order: Whether waits are told of steps that only their order matches.

    Raises:
        ValueError: There is no rank.
    """
    matched, rows = _same_steps(ranks, one_clock=one_clock)
    groups = [] if matched == "order" else _groups_of(ranks, rows)
    grouped = any(len(group) > 1 for group in groups)
    sure = known_clock and bool(groups)
    if matched == "time" and not sure and not (grouped and all(_met(ranks, group, rows) for group in groups)):
        matched, rows, grouped = "order", _by_number(ranks), False
    telling = by_order or matched != "order"
    if not grouped and not sure:
        groups = grouped_by(len(ranks), lambda rank, other: telling and _may_meet(ranks, (rank, other), rows))
    shared = len(rows)
    rows = [row for row in rows if all(len({_names(ranks, row, n) for n in group}) == 1 for group in groups)]
    waits: dict[int, RankWaits] = {}
    for group in groups:
        waits |= dict(zip(group, _waits_of(ranks, group, rows), strict=True))
    compared = tuple(waits[number] for number in range(len(ranks)))
    ran = any(_names(ranks, row, number) for row in rows for number in range(len(ranks)))
    single = {group[0] for group in groups if len(group) == 1 < len(ranks)} if ran else set[int]()
    return RankComparison(
        ranks=compared,
        steps=len(rows),
        other_steps=shared - len(rows),
        collectives=sum(waits[group[0]].collectives for group in groups),
        shown=tuple(len(rank.collectives) for rank in ranks),
        matched=matched,
        grouped=grouped,
        alone=tuple(rank.label for number, rank in enumerate(compared) if number in single and rank.communication_ns),
    )


_Row = tuple[int, ...]
"""A step's number in each rank."""


def _names(ranks: Sequence[Rank], row: _Row, number: int) -> tuple[str, ...]:
    return ranks[number].collectives[row[number]].names


def _waits_of(ranks: Sequence[Rank], group: Sequence[int], rows: Sequence[_Row]) -> list[RankWaits]:
    """What the ranks of a group do in these steps."""
    taken = [[ranks[number].collectives[row[number]].duration_ns for row in rows] for number in group]
    table = np.array([np.concatenate(durations or [_NOTHING]) for durations in taken])
    count = table.shape[1] if len(group) > 1 or len(ranks) == 1 else 0
    waits = []
    for number, waited, held_up in zip(group, *waits_in(table), strict=True):
        rank, steps = ranks[number], [row[number] for row in rows]
        waits.append(
            RankWaits(
                label=rank.label,
                step_ns=statistics.median(rank.step_ns) if rank.step_ns else None,
                kernel_ns=sum(rank.kernel_ns.get(step, 0) for step in steps) / len(steps) if steps else None,
                communication_ns=sum(rank.communication_ns.get(step, 0) for step in steps) / len(steps)
                if steps
                else None,
                waiting_ns=int(waited.sum()) / len(steps) if count else None,
                collectives=count,
                last=int((held_up > 0).sum()) if count else None,
                holds_up_ns=int(held_up.sum()) / len(steps) if count else None,
            )
        )
    return waits


def _same_steps(ranks: Sequence[Rank], *, one_clock: bool) -> tuple[Matched, list[_Row]]:
    """The steps that all ranks show, and by what they belong together."""
    if all(rank.numbered for rank in ranks):
        return "number", _by_number(ranks)
    if not one_clock or not all(rank.begins_ns for rank in ranks):
        return "order", _by_number(ranks)
    numbers = [sorted(rank.begins_ns, key=rank.begins_ns.__getitem__) for rank in ranks]
    begins = [np.array([rank.begins_ns[step] for step in steps]) for rank, steps in zip(ranks, numbers, strict=True)]
    places = matched_by_time(begins)
    rows = zip(*([steps[row] for row in taken] for steps, taken in zip(numbers, places, strict=True)), strict=True)
    shown = [{*rank.collectives} for rank in ranks]
    return "time", [row for row in rows if all(step in steps for step, steps in zip(row, shown, strict=True))]


def _by_number(ranks: Sequence[Rank]) -> list[_Row]:
    return [(step,) * len(ranks) for step in sorted(set.intersection(*({*rank.collectives} for rank in ranks)))]


def matched_by_time(begins_ns: Sequence[Ints]) -> list[Ints]:
    """The rows of each rank's steps that all ranks show, in one order: each is the nearest of the other's.

    Args:
        begins_ns: When each rank's host began its steps, in order; at least one of each.
    """
    first = begins_ns[0]
    rows = [np.arange(len(first))]
    kept = np.ones(len(first), bool)
    for begins in begins_ns[1:]:
        nearest = _nearest(first, begins)
        kept &= _nearest(begins, first)[nearest] == rows[0]
        rows.append(nearest)
    return [row[kept] for row in rows]


def _nearest(times: Ints, others: Ints) -> Ints:
    """For each time the row of the nearest of others, which are in order."""
    after = np.clip(np.searchsorted(others, times), 1, max(len(others) - 1, 1))
    before = after - 1
    after = np.minimum(after, len(others) - 1)
    return np.asarray(np.where(times - others[before] <= np.abs(others[after] - times), before, after))


def _groups_of(ranks: Sequence[Rank], rows: Sequence[_Row]) -> list[list[int]]:
    """Ranks that leave collectives together, by their place; no group where no step says how long a stage is."""
    stepped = all(rank.work_ns and (rank.numbered or len(rank.work_ns) > 1) for rank in ranks)
    works = [[rank.work_ns[step] for rank, step in zip(ranks, row, strict=True)] for row in rows] if stepped else []
    if not works:
        return []
    span_ns = statistics.median(max(end for _, end in work) - min(begin for begin, _ in work) for work in works)
    called = [[rank.collectives[row[number]] for row in rows] for number, rank in enumerate(ranks)]
    return group_by_leaving(called, span_ns)


def _met(ranks: Sequence[Rank], group: Sequence[int], rows: Sequence[_Row]) -> bool:
    """Whether the ranks of a group were in most collectives at the same time, as they were if their clock is one."""
    return overlap([[ranks[number].collectives[row[number]] for row in rows] for number in group], [0] * len(group))


def _may_meet(ranks: Sequence[Rank], pair: tuple[int, int], rows: Sequence[_Row]) -> bool:
    """Whether two ranks may have been in their collectives together; they may where no host's begin of a step tells."""
    member, other = (ranks[number] for number in pair)
    if not rows or not member.begins_ns or not other.begins_ns:
        return True
    host_ns = statistics.median([other.begins_ns[row[pair[1]]] - member.begins_ns[row[pair[0]]] for row in rows])
    work_ns = min(statistics.median(end - begin for begin, end in rank.work_ns.values()) for rank in (member, other))
    first, second = ([ranks[number].collectives[row[number]] for row in rows] for number in pair)
    return may_meet(first, second, host_ns, work_ns)


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
