"""Ranks beside each other: which one the others wait for."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from perfgate.errors import UsageError
from perfgate.models import Note
from perfgate.report.answer import Answer, Table, count, share, time, word
from perfgate.trace.kernel_table import Trace
from perfgate.trace.rank_waits import RankComparison, compare_ranks, ranks_of
from perfgate.trace.selection import Selection
from perfgate.units import format_ns, percent, plural

_RANKS = (
    word("rank", "rank"), time("step_median", "step"), time("kernels", "kernels"),
    time("communication", "communication"), time("waiting", "of it waiting"), count("last", "arrived last"),
    share("last_share", "share"), time("holds_up", "holds all up by"),
)  # fmt: skip
_BY_ORDER = "inferred steps have no numbers of the engine: ranks are compared as if all traces began with the same step"


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
    found = compare_ranks(ranks)
    compared = f"{plural(found.steps, 'step')} and {plural(found.collectives, 'collective')} compared"
    headings = [f"{plural(len(ranks), 'rank')}: {compared}.", *_sentence(found)]
    rows: list[tuple[Any, ...]] = [
        (rank.label, rank.step_ns, rank.kernel_ns, rank.communication_ns, rank.waiting_ns, rank.last,
         None if rank.last is None else rank.last / found.collectives, rank.holds_up_ns)
        for rank in found.ranks
    ]  # fmt: skip
    notes = list(dict.fromkeys(note for _, selection in selections for note in selection.trace.cautions))
    if len(ranks) > 1 and any(selection.trace.steps.inferred.any() for _, selection in selections):
        notes.append(Note(code="steps-unclear", text=_BY_ORDER))
    about = {"steps": found.steps, "collectives": found.collectives}
    return Answer(headings, about, [Table("ranks", "Ranks, mean of a step", _RANKS, rows)], (*notes, *_missing(found)))


def _same_work(one: Trace, other: Trace) -> bool:
    """Whether two traces hold the same kernels, to the nanosecond."""
    times = (one.kernels.start_ns, other.kernels.start_ns), (one.kernels.duration_ns, other.kernels.duration_ns)
    return one.names.demangled == other.names.demangled and all(np.array_equal(*pair) for pair in times)


def _sentence(found: RankComparison) -> list[str]:
    worst = max(found.ranks, key=lambda rank: rank.holds_up_ns or 0)
    if not worst.holds_up_ns or worst.last is None:
        return []
    often, late = percent(worst.last / found.collectives), format_ns(worst.holds_up_ns)
    return [f"{worst.label} arrives last in {often} of the collectives; each step waits {late} for it alone."]


def _missing(found: RankComparison) -> list[Note]:
    """What there is nothing to say about, and why."""
    notes = []
    if len(found.ranks) == 1:
        notes.append("the trace is of one rank: give a trace of each")
    elif not found.steps:
        notes.append("no step ran the same collectives on every rank: are these traces of one run?")
    elif not found.collectives:
        notes.append("no kernel is a collective in which all ranks wait for each other")
    if found.steps and found.other_steps:
        notes.append(f"{plural(found.other_steps, 'step')} left out: the ranks ran other collectives in them")
    missing = [Note(code="not-recorded", text=text) for text in notes]
    shared = found.steps + found.other_steps
    if found.steps and max(found.shown) > shared:
        shown = ", ".join(f"{rank.label} {count}" for rank, count in zip(found.ranks, found.shown, strict=True))
        missing.append(
            Note(code="ranks-differ", text=f"steps shown: {shown}; {shared} are of all ranks, by their numbers")
        )
    return missing
