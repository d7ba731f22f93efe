"""Ranks beside each other: which one the others wait for."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from perfgate.errors import UsageError
from perfgate.kernels.answer import Answer, Table, count, share, time, word
from perfgate.models import Note
from perfgate.trace.kernel_table import Timed, Trace
from perfgate.trace.rank_waits import RankComparison, compare_ranks, ranks_of
from perfgate.trace.selection import Selection
from perfgate.units import format_ns, listed, percent, plural

_SEVERAL = 2
_NAMED = 5
_RANKS = (
    word("rank", "rank"), time("step_median", "step"), time("kernels", "kernels"),
    time("communication", "communication"), time("waiting", "of it waiting"), count("last", "arrived last"),
    share("last_share", "share"), time("holds_up", "holds all up by"),
)  # fmt: skip
_MAY_MEET = "those are compared that may have been in collectives together, by the begins of their hosts' steps"
_BY_ORDER = (
    "steps have no numbers of the engine, and the traces show no clock in common: all traces are taken to begin with "
    f"the same step, and {_MAY_MEET}"
)
_NO_CLOCK = (
    "the traces show no two ranks that leave their collectives at the same time, as without a clock in common: "
    f"{_MAY_MEET}"
)
_WHOLE = "traces without steps do not say which ranks leave their collectives together: all are compared as one group"
_BY = {"number": "by their numbers", "time": "by the time at which hosts begin them", "order": "by their order"}


def ranks_answer(selections: Sequence[tuple[str, Selection]]) -> Answer:
    """Each rank with what it waits in collectives, and how often the others wait for it.

    Args:
        selections: At least one, with the name of its file; a file may hold several ranks.

    Raises:
        UsageError: Two files hold the same kernels at the same times.
    """
    for (label, one), (other, same) in itertools.combinations(selections, 2):
        if _same_work(one.trace, same.trace):
            raise UsageError(f"{label} and {other} hold the same trace: give the trace of each rank once")
    ranks = [rank for label, selection in selections for rank in ranks_of(selection, label)]
    clocks = _clocks_unlike(selections)
    one_clock = not clocks and sum(_begins_at_0(selection.trace) for _, selection in selections) < _SEVERAL
    known_clock = len(selections) == 1 or all(selection.trace.base_ns is not None for _, selection in selections)
    found = compare_ranks(ranks, one_clock=one_clock, known_clock=known_clock, by_order=not clocks)
    compared = f"{plural(found.steps, 'step')} and {plural(found.collectives, 'collective')} compared"
    headings = [f"{plural(len(ranks), 'rank')}: {compared}.", *_sentence(found)]
    rows: list[tuple[Any, ...]] = [
        (rank.label, rank.step_ns, rank.kernel_ns, rank.communication_ns, rank.waiting_ns, rank.last,
         None if rank.last is None else rank.last / rank.collectives, rank.holds_up_ns)
        for rank in found.ranks
    ]  # fmt: skip
    notes = list(dict.fromkeys(note for _, selection in selections for note in selection.trace.cautions))
    if len(ranks) > 1:
        notes += _doubts(found, clocks)
    about = {"steps": found.steps, "collectives": found.collectives}
    return Answer(headings, about, [Table("ranks", "Ranks, mean of a step", _RANKS, rows)], (*notes, *_missing(found)))


def _same_work(one: Trace, other: Trace) -> bool:
    """Whether two traces hold the same kernels, to the nanosecond."""
    times = (one.kernels.start_ns, other.kernels.start_ns), (one.kernels.duration_ns, other.kernels.duration_ns)
    return one.names.demangled == other.names.demangled and all(np.array_equal(*pair) for pair in times)


def _begins_at_0(trace: Trace) -> bool:
    """Whether its times are since its own first event, as those of a scrubbed copy are."""
    tables: tuple[Timed, ...] = (trace.kernels, trace.copies, trace.memsets, trace.overhead, trace.calls)
    starts = [table.start_ns for table in tables] + [trace.steps.start_ns]
    return min((int(own.min()) for own in starts if len(own)), default=0) == 0


def _clocks_unlike(selections: Sequence[tuple[str, Selection]]) -> str:
    """What to say of traces of which some alone say what their times count from; empty where there are none."""
    without = [label for label, selection in selections if selection.trace.base_ns is None]
    if not without or len(without) == len(selections):
        return ""
    return f"{listed(without, _NAMED)}: no baseTimeNanoseconds, which the others count their times from"


def _doubts(found: RankComparison, clocks: str) -> list[Note]:
    """What the comparison takes for granted, and what it does not tell."""
    if clocks and found.matched == "order":
        text = f"{clocks}, so that no clock and no number says which steps belong together: no waiting is told"
        return [Note(code="trace-damaged", text=text)]
    notes = []
    if found.matched == "order" and max(found.shown) > 1:
        notes.append(Note(code="steps-unclear", text=_BY_ORDER))
    elif found.collectives and not found.grouped:
        text = _NO_CLOCK if max(found.shown) > 1 else _WHOLE
        notes.append(Note(code="trace-damaged", text=f"{clocks}; {text}" if clocks else text))
    if found.alone:
        text = f"{', '.join(found.alone)}: no other rank leaves collectives with it, so its waiting is not known"
        notes.append(Note(code="not-recorded", text=text))
    return notes


def _sentence(found: RankComparison) -> list[str]:
    worst = max(found.ranks, key=lambda rank: rank.holds_up_ns or 0)
    if not worst.holds_up_ns or worst.last is None:
        return []
    often, late = percent(worst.last / worst.collectives), format_ns(worst.holds_up_ns)
    return [f"{worst.label} arrives last in {often} of the collectives; each step waits {late} for it alone."]


def _missing(found: RankComparison) -> list[Note]:
    """What there is nothing to say about, and why."""
    notes = []
    if len(found.ranks) == 1:
        notes.append("the trace is of one rank: give a trace of each")
    elif not found.steps:
        notes.append("no step ran the same collectives on every rank: are these traces of one run?")
    elif not found.collectives and not found.alone:
        notes.append("no kernel is a collective in which all ranks wait for each other")
    if found.steps and found.other_steps:
        notes.append(f"{plural(found.other_steps, 'step')} left out: the ranks ran other collectives in them")
    missing = [Note(code="not-recorded", text=text) for text in notes]
    shared = found.steps + found.other_steps
    if found.steps and max(found.shown) > shared:
        shown = ", ".join(f"{rank.label} {count}" for rank, count in zip(found.ranks, found.shown, strict=True))
        missing.append(
            Note(code="trace-damaged", text=f"steps shown: {shown}; {shared} are of all ranks, {_BY[found.matched]}")
        )
    return missing
