"""Decode steps of an engine whose model runs in several ranks: what all do in a step, and each one's part in it.

A step begins with the first work of any rank and ends with the last. What it is made of is told by the rank that is the
slowest in it: the one that is busy for the longest, communication that nothing hides left out. In tensor parallelism
all ranks' steps are equally long, because the others wait for that one. What of communication is waiting is not known
everywhere, as where a stage waits for another one's broadcast, so none of it makes a rank slow.

Steps belong together by the number that perfgate's ranges in each rank give them, elsewhere by the time at which the
ranks' hosts begin them; how many steps a rank shows does not matter. Ranks wait for each other in collectives as
:mod:`perfgate.trace.rank_waits` and :mod:`perfgate.trace.rank_groups` say. Several groups of ranks may run collectives
of one name, as the stages of a pipeline do, so ranks are compared that leave their collectives at the same time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfgate.errors import NotMeasuredError
from perfgate.models import Frozen, Note
from perfgate.scenario.kernel_names import COMMUNICATION
from perfgate.trace.breakdown import StepFigures
from perfgate.trace.decode_step import COLUMNS, DecodeSteps, decode_figures, pool, summarise_steps
from perfgate.trace.idle_gaps import OTHER_RANKS
from perfgate.trace.kernel_table import NO_TIME, Trace, combinations
from perfgate.trace.rank_groups import Collectives, collectives_of, group_by_leaving
from perfgate.trace.rank_waits import matched_by_time, waits_in
from perfgate.units import format_ns, plural

Ints = NDArray[np.int64]


class RankSteps(Frozen):
    """The decode steps of one rank, the same in each rank of a trial; columns hold an entry a step.

    Args:
        label: ``rank 0`` and so on, in the order of files, devices and processes.
        begins_ns: By how much its work began after that of the first rank.
        ends_ns: By how much its work ended before that of the last one.
        communication_ns: Time with a communication kernel, waiting included.
        hidden_ns: The part of it in which another kernel ran.
        waiting_ns: How much longer it was in its collectives than the rank that was shortest in each; ``None`` where
            the ranks ran different ones, empty where it has no other rank to compare with.
        collectives: How many were compared, over all steps.
        last: In how many of them it alone arrived last.
        slowest: In how many steps it was the slowest.
    """

    label: str
    decode: DecodeSteps
    begins_ns: tuple[int, ...]
    ends_ns: tuple[int, ...]
    communication_ns: tuple[int, ...]
    hidden_ns: tuple[int, ...]
    waiting_ns: tuple[int | None, ...] = ()
    collectives: int = 0
    last: int = 0
    slowest: int = 0


Ranks = tuple[RankSteps, ...]
"""Those of one engine; none where it has but one."""


def each_rank(decode: DecodeSteps | None, ranks: Ranks | None) -> tuple[DecodeSteps, ...]:
    """What the decode steps of a trial ran, rank by rank; of all where there is but one rank, empty where nothing is.

    Args:
        decode: The steps over all ranks.
        ranks: The steps of each.
    """
    return tuple(rank.decode for rank in ranks or ()) or ((decode,) if decode else ())


def summarise_ranks(traces: Sequence[Trace], expected: int = 1) -> tuple[DecodeSteps, tuple[RankSteps, ...]]:
    """What the decode steps of an engine ran, over all ranks, and rank by rank.

    Args:
        traces: All that a profiler left of one engine: a rank each, or several in one.
        expected: How many ranks the engine has at least.

    Returns:
        The steps, and no rank where there is but one.

    Raises:
        NotMeasuredError: A trace shows no decode step (``evidence-missing``), a rank is missing (``trace-damaged``), or
            the ranks show no step in common (``trace-damaged``).
    """
    parts = [part for trace in traces for part in _parts(trace)]
    if len(parts) < expected:
        text = f"the trace shows decode steps of {plural(len(parts), 'rank')}, and the engine has {expected}"
        raise NotMeasuredError(text, code="trace-damaged")
    if len(parts) == 1:
        return summarise_steps(parts[0].trace, parts[0].figures), ()
    shown = [len(part.figures) for part in parts]
    parts = [part.take(rows) for part, rows in zip(parts, _matched(parts), strict=True)]
    common = len(parts[0].figures)
    if not common:
        counts = ", ".join(f"rank {n} {count}" for n, count in enumerate(shown))
        raise NotMeasuredError(f"no decode step is of all ranks: {counts}", code="trace-damaged")
    _check_clock(parts)
    notes = []
    if min(shown) < max(shown) or common < max(shown):
        counts = ", ".join(f"rank {n} {count}" for n, count in enumerate(shown))
        text = f"decode steps shown: {counts}; {common} are of all ranks, and only those are judged"
        notes.append(Note(code="trace-damaged", text=text))
    return _together(parts, notes)


@dataclass(frozen=True)
class _Part:
    """One rank: its own part of a trace, and the figures of its decode steps in order of time."""

    trace: Trace
    figures: StepFigures

    @property
    def host_ns(self) -> Ints:
        """When the host began each step."""
        return self.trace.steps.start_ns[self.figures.step]

    @property
    def numbers(self) -> Ints:
        """The steps' own numbers."""
        return self.trace.steps.index[self.figures.step]

    @property
    def numbered(self) -> bool:
        """Whether perfgate numbered them in the rank."""
        return bool(self.trace.steps.own[self.figures.step].all())

    def take(self, rows: Ints) -> _Part:
        """The same with some of its steps."""
        return _Part(self.trace, self.figures.take(rows))


def _parts(trace: Trace) -> list[_Part]:
    """The ranks of a trace: each device of a process that shows decode steps."""
    figures = decode_figures(trace)
    pairs, owner = combinations(figures.device, trace.steps.process[figures.step])
    if len(pairs) == 1:
        return [_Part(trace, figures)]
    parts = []
    for number, (device, process) in enumerate(pairs):
        kernels = trace.kernels
        chosen = kernels.take(np.flatnonzero((kernels.device == device) & (kernels.process == process)))
        parts.append(_Part(dataclasses.replace(trace, kernels=chosen), figures.take(owner == number)))
    return parts


def _matched(parts: Sequence[_Part]) -> list[Ints]:
    """The rows of each rank's steps that all ranks show, in one order."""
    if all(part.numbered for part in parts):
        common = sorted(set.intersection(*({*part.numbers.tolist()} for part in parts)))
        places = [{number: row for row, number in enumerate(part.numbers.tolist())} for part in parts]
        return [np.array([place[number] for number in common], np.int64) for place in places]
    return matched_by_time([part.host_ns for part in parts])


def _check_clock(parts: Sequence[_Part]) -> None:
    """Refuse ranks whose steps of one number are further apart than a pipeline as deep as there are ranks could hold.

    Raises:
        NotMeasuredError: ``trace-damaged``.
    """
    if len({part.trace.base_ns is None for part in parts}) > 1:
        text = "some ranks' traces say what their times count from (baseTimeNanoseconds), others do not"
        raise NotMeasuredError(text, code="trace-damaged")
    begins = [part.host_ns for part in parts]
    if len(begins[0]) < 2:  # noqa: PLR2004 (no distance between steps)
        return
    step_ns = float(np.median(np.diff(begins[0])))
    for number, host_ns in enumerate(begins[1:], 1):
        apart_ns = float(np.median(np.abs(host_ns - begins[0])))
        if apart_ns > step_ns * len(parts):
            text = f"the hosts of rank 0 and rank {number} begin a step {format_ns(apart_ns)} apart"
            raise NotMeasuredError(f"{text}, and a step takes {format_ns(step_ns)}", code="trace-damaged")


def _together(parts: Sequence[_Part], notes: list[Note]) -> tuple[DecodeSteps, tuple[RankSteps, ...]]:
    figures = [part.figures for part in parts]
    begin = np.stack([f.begin_ns for f in figures])
    end = np.stack([f.begin_ns + f.span_ns for f in figures])
    first = np.stack([f.first_ns for f in figures])
    waits = _waits(parts, float(np.median(end.max(axis=0) - begin.min(axis=0))))
    slowest = _slowest([(f.busy_ns, f.communication_ns, f.hidden_ns) for f in figures])
    ranks = tuple(
        RankSteps(
            label=f"rank {number}",
            decode=summarise_steps(part.trace, part.figures),
            begins_ns=_listed(begin[number] - begin.min(axis=0)),
            ends_ns=_listed(end.max(axis=0) - end[number]),
            communication_ns=_listed(part.figures.communication_ns),
            hidden_ns=_listed(part.figures.hidden_ns),
            waiting_ns=tuple(None if ns < 0 else ns for ns in wait.waiting_ns.tolist()) if wait.known else (),
            collectives=wait.collectives,
            last=wait.last,
            slowest=int((slowest == number).sum()),
        )
        for number, (part, wait) in enumerate(zip(parts, waits, strict=True))
    )
    notes += _untold(ranks)
    follows = np.logical_and.reduce([f.step_ns != NO_TIME for f in figures])
    follows[:-1] &= np.logical_and.reduce([np.diff(f.step) == 1 for f in figures])
    edges = {"span_ns": end.max(axis=0) - begin.min(axis=0), "step_ns": _lengths(first.min(axis=0), follows)}
    return _of_all(ranks, slowest, edges, notes), ranks


def _untold(ranks: Sequence[RankSteps]) -> Iterator[Note]:
    """What to say of ranks that communicate in steps of which nobody knows how long they wait."""
    untold = {rank.label: sum(ns is None for ns in _visible_waits(rank)) for rank in ranks}
    alone = [rank.label for rank in ranks if untold[rank.label] and all(ns is None for ns in rank.waiting_ns)]
    if alone:
        text = f"{', '.join(alone)}: no collectives that other ranks ran with it, so waiting is not told from transfer"
        yield Note(code="not-recorded", text=text)
    some = [f"{count} of {label}" for label, count in untold.items() if count and label not in alone]
    if some:
        text = (
            f"waiting is not told from transfer in some of {plural(ranks[0].decode.steps, 'step')}: {', '.join(some)}"
        )
        yield Note(code="not-recorded", text=text)


def _slowest(columns: Sequence[tuple[ArrayLike, ArrayLike, ArrayLike]]) -> Ints:
    """The rank that is the slowest in each step, of how long each one is busy, communicates, and hides of that."""
    work_ns: Ints = np.array([np.subtract(busy, np.subtract(talked, hidden)) for busy, talked, hidden in columns])
    return np.asarray(work_ns.argmax(axis=0))


def _of_all(ranks: Sequence[RankSteps], slowest: Ints, edges: dict[str, Ints], notes: Sequence[Note]) -> DecodeSteps:
    """The steps of all ranks as one; the columns are of the rank that is the slowest in each, the host's the worst."""
    decodes = [rank.decode for rank in ranks]
    every = pool(decodes)
    chosen = list(enumerate(slowest.tolist()))

    def of_slowest(columns: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
        return tuple(columns[rank][step] if columns[rank] else 0 for step, rank in chosen)

    columns: dict[str, Any] = {name: of_slowest([getattr(decode, name) for decode in decodes]) for name in COLUMNS}
    columns |= {name: tuple(None if ns == NO_TIME else ns for ns in column.tolist()) for name, column in edges.items()}
    columns["slack_ns"] = tuple(min(times, default=None) for times in _by_step(decodes, "slack_ns"))
    columns["work_ns"] = tuple(max(times, default=None) for times in _by_step(decodes, "work_ns"))
    for table in ("gap_ns", "role_ns"):
        names = dict.fromkeys(chain.from_iterable(getattr(decode, table) for decode in decodes))
        columns[table] = {
            name: of_slowest([getattr(decode, table).get(name, ()) for decode in decodes]) for name in names
        }
    cautions = (*every.cautions, *((note.code, note.text) for note in notes))
    return every.model_copy(update={**columns, "cautions": cautions})


def slowest_waits_as_idle(steps: DecodeSteps, ranks: Sequence[RankSteps]) -> DecodeSteps:
    """The steps of all ranks, with what the slowest rank of each waits for others as idle time (:func:`waits_as_idle`).

    Args:
        steps: Of one trial.
        ranks: Its ranks; none where the engine has one.
    """
    if not ranks:
        talked = steps.role_ns.get(COMMUNICATION, (0,) * len(steps.step_ns))
        return _with_waits(steps, [None if ns else 0 for ns in talked])
    slowest = _slowest([(rank.decode.busy_ns, rank.communication_ns, rank.hidden_ns) for rank in ranks])
    waits = [_visible_waits(rank) for rank in ranks]
    return _with_waits(steps, [waits[rank][step] for step, rank in enumerate(slowest.tolist())])


def waits_as_idle(rank: RankSteps) -> DecodeSteps:
    """The steps of one rank with what it waits for others in collectives as idle time, not as communication.

    A rank that arrives early spends the time in a kernel, but that kernel would not be slower for it: what a build
    changed is the transfer. Waiting beside which another kernel may have run stays communication. A step that
    communicates has no known length where it is not known how much of that is waiting.
    """
    return _with_waits(rank.decode, _visible_waits(rank))


def _visible_waits(rank: RankSteps) -> list[int | None]:
    """What of each step's waiting nothing hides, at most; ``None`` where the rank communicates and it is not known."""
    waits = rank.waiting_ns or (None,) * len(rank.communication_ns)
    columns = zip(waits, rank.communication_ns, rank.hidden_ns, strict=True)
    return [None if waited is None and talked else min(waited or 0, talked - hidden)
            for waited, talked, hidden in columns]  # fmt: skip


def _with_waits(steps: DecodeSteps, waits_ns: Sequence[int | None]) -> DecodeSteps:
    if COMMUNICATION not in steps.role_ns:
        return steps
    waited_ns = [ns or 0 for ns in waits_ns]

    def less(column: Sequence[int]) -> tuple[int, ...]:
        return tuple(ns - waited for ns, waited in zip(column, waited_ns, strict=True))

    roles = steps.role_ns | {COMMUNICATION: less(steps.role_ns[COMMUNICATION])}
    gaps = steps.gap_ns | {OTHER_RANKS: tuple(waited_ns)}
    lengths = tuple(None if waited is None else ns for ns, waited in zip(steps.step_ns, waits_ns, strict=True))
    columns = {"busy_ns": less(steps.busy_ns), "role_ns": roles, "gap_ns": gaps, "step_ns": lengths}
    return steps.model_copy(update=columns)


def _by_step(decodes: Sequence[DecodeSteps], name: str) -> list[list[int]]:
    """What of a column is known in each step, over the ranks."""
    return [
        [ns for ns in row if ns is not None] for row in zip(*(getattr(decode, name) for decode in decodes), strict=True)
    ]


def _lengths(first_ns: Ints, follows: NDArray[np.bool_]) -> Ints:
    """From the first kernel of each step to that of the next, where that is the next one."""
    lengths = np.full(len(first_ns), NO_TIME)
    rows = np.flatnonzero(follows[:-1])
    lengths[rows] = first_ns[rows + 1] - first_ns[rows]
    return lengths


@dataclass(frozen=True)
class _Wait:
    """How long a rank waits in the collectives of each step, -1 where that is not known; see :class:`RankSteps`."""

    waiting_ns: Ints
    known: bool
    collectives: int = 0
    last: int = 0


def _waits(parts: Sequence[_Part], span_ns: float) -> list[_Wait]:
    """The waits of each rank, held against the ranks that leave collectives with it."""
    called = [_called(part) for part in parts]
    by_rank: dict[int, _Wait] = {}
    for group in group_by_leaving(called, span_ns):
        by_rank |= dict(zip(group, _group_waits([called[number] for number in group]), strict=True))
    return [by_rank[number] for number in range(len(parts))]


def _called(part: _Part) -> list[Collectives]:
    """The collectives of each step of a rank."""
    steps = part.figures.step
    kernels = part.trace.kernels
    kernels = kernels.take(np.flatnonzero(np.isin(kernels.step, steps)))
    by_step = collectives_of(part.trace, kernels, kernels.step.astype(np.int64))
    return [by_step[step] for step in steps.tolist()]


def _group_waits(called: Sequence[Sequence[Collectives]]) -> list[_Wait]:
    waiting = np.full((len(called), len(called[0])), -1, np.int64)
    last, collectives = np.zeros(len(called), np.int64), 0
    for step, row in enumerate(zip(*called, strict=True)):
        if len(called) > 1 and row[0].names and len({calls.names for calls in row}) == 1:
            waits, held_up = waits_in(np.stack([calls.duration_ns for calls in row]))
            waiting[:, step] = waits.sum(axis=1)
            last += (held_up > 0).sum(axis=1)
            collectives += len(row[0].names)
    return [_Wait(waited, collectives > 0, collectives, int(late)) for waited, late in zip(waiting, last, strict=True)]


def _listed(column: Ints) -> tuple[int, ...]:
    return tuple(column.tolist())


def pool_ranks(trials: Sequence[Sequence[RankSteps]]) -> tuple[RankSteps, ...]:
    """The ranks of several trials as those of one; trials of another number of ranks are left out."""
    alike = [ranks for ranks in trials if len(ranks) == len(trials[0])] if trials else []
    pooled = []
    for parts in zip(*alike, strict=True):
        joined = {name: tuple(chain.from_iterable(getattr(part, name) for part in parts)) for name in _JOINED}
        joined["waiting_ns"] = tuple(
            chain.from_iterable(part.waiting_ns or (None,) * len(part.begins_ns) for part in parts)
        )
        added = {name: sum(getattr(part, name) for part in parts) for name in ("collectives", "last", "slowest")}
        pooled.append(RankSteps(label=parts[0].label, decode=pool([part.decode for part in parts]), **joined, **added))
    return tuple(pooled)


_JOINED = ("begins_ns", "ends_ns", "communication_ns", "hidden_ns")
