"""Traces beside each other: the ranks of an engine, of which the others wait for one, or the steps of two builds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perfgate.errors import UsageError
from perfgate.kernels.answer import Answer, Table, count, difference_of, share, time, word
from perfgate.kernels.causes import attribution_sentence
from perfgate.metrics.sides import SIDES, Side
from perfgate.models import Note
from perfgate.trace.attribution import SHARED, Attribution, attribute
from perfgate.trace.decode_step import DecodeSteps, summarise_steps
from perfgate.trace.difference import difference
from perfgate.trace.families import short_name
from perfgate.trace.inventory import Amount, inventory
from perfgate.trace.kernel_table import Timed, Trace
from perfgate.trace.rank_waits import RankComparison, compare_ranks, ranks_of
from perfgate.trace.selection import Selection
from perfgate.units import NS_PER_S, format_ns, listed, percent, plural

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
    for (label, chosen), (other, same) in itertools.combinations(selections, 2):
        if _same_work(chosen.trace, same.trace):
            raise UsageError(f"{label} and {other} hold the same trace: give the trace of each rank once")
    ranks = [rank for label, selection in selections for rank in ranks_of(selection, label)]
    clocks = _clocks_unlike(selections)
    one_clock = not clocks and sum(_begins_at_0(selection.trace) for _, selection in selections) < _SEVERAL
    known_clock = len(selections) == 1 or all(selection.trace.base_ns is not None for _, selection in selections)
    comparison = compare_ranks(ranks, one_clock=one_clock, known_clock=known_clock, by_order=not clocks)
    compared = f"{plural(comparison.steps, 'step')} and {plural(comparison.collectives, 'collective')} compared"
    headings = [f"{plural(len(ranks), 'rank')}: {compared}.", *_sentence(comparison)]
    rows: list[tuple[Any, ...]] = [
        (rank.label, rank.step_ns, rank.kernel_ns, rank.communication_ns, rank.waiting_ns, rank.last,
         None if rank.last is None else rank.last / rank.collectives, rank.holds_up_ns)
        for rank in comparison.ranks
    ]  # fmt: skip
    notes = list(dict.fromkeys(note for _, selection in selections for note in selection.trace.cautions))
    if len(ranks) > 1:
        notes += _doubts(comparison, clocks)
    about = {"steps": comparison.steps, "collectives": comparison.collectives}
    return Answer(
        headings, about, [Table("ranks", "Ranks, mean of a step", _RANKS, rows)], (*notes, *_missing(comparison))
    )


def _same_work(trace: Trace, other: Trace) -> bool:
    """Whether two traces hold the same kernels, to the nanosecond."""
    times = (trace.kernels.start_ns, other.kernels.start_ns), (trace.kernels.duration_ns, other.kernels.duration_ns)
    return trace.names.demangled == other.names.demangled and all(np.array_equal(*pair) for pair in times)


def _begins_at_0(trace: Trace) -> bool:
    """Whether its times are since its own first event, as those of a scrubbed copy are."""
    tables: tuple[Timed, ...] = (trace.kernels, trace.copies, trace.memsets, trace.overhead, trace.calls)
    starts = [table.start_ns for table in tables] + [trace.steps.start_ns]
    return min((int(times.min()) for times in starts if len(times)), default=0) == 0


def _clocks_unlike(selections: Sequence[tuple[str, Selection]]) -> str:
    """What to say of traces of which some alone say what their times count from; empty where there are none."""
    without = [label for label, selection in selections if selection.trace.base_ns is None]
    if not without or len(without) == len(selections):
        return ""
    return f"{listed(without, _NAMED)}: no baseTimeNanoseconds, which the others count their times from"


def _doubts(comparison: RankComparison, clocks: str) -> list[Note]:
    """What the comparison takes for granted, and what it does not tell."""
    if clocks and comparison.matched == "order":
        text = f"{clocks}, so that no clock and no number says which steps belong together: no waiting is told"
        return [Note(code="trace-damaged", text=text)]
    notes = []
    if comparison.matched == "order" and max(comparison.shown) > 1:
        notes.append(Note(code="steps-unclear", text=_BY_ORDER))
    elif comparison.collectives and not comparison.grouped:
        text = _NO_CLOCK if max(comparison.shown) > 1 else _WHOLE
        notes.append(Note(code="trace-damaged", text=f"{clocks}; {text}" if clocks else text))
    if comparison.alone:
        text = f"{', '.join(comparison.alone)}: no other rank leaves collectives with it, so its waiting is not known"
        notes.append(Note(code="not-recorded", text=text))
    return notes


def _sentence(comparison: RankComparison) -> list[str]:
    worst = max(comparison.ranks, key=lambda rank: rank.holds_up_ns or 0)
    if not worst.holds_up_ns or worst.last is None:
        return []
    often, late = percent(worst.last / worst.collectives), format_ns(worst.holds_up_ns)
    return [f"{worst.label} arrives last in {often} of the collectives; each step waits {late} for it alone."]


def _missing(comparison: RankComparison) -> list[Note]:
    """What there is nothing to say about, and why."""
    notes = []
    if len(comparison.ranks) == 1:
        notes.append("the trace is of one rank: give a trace of each")
    elif not comparison.steps:
        notes.append("no step ran the same collectives on every rank: are these traces of one run?")
    elif not comparison.collectives and not comparison.alone:
        notes.append("no kernel is a collective in which all ranks wait for each other")
    if comparison.steps and comparison.other_steps:
        notes.append(f"{plural(comparison.other_steps, 'step')} left out: the ranks ran other collectives in them")
    missing = [Note(code="not-recorded", text=text) for text in notes]
    shared = comparison.steps + comparison.other_steps
    if comparison.steps and max(comparison.shown) > shared:
        shown = ", ".join(
            f"{rank.label} {count}" for rank, count in zip(comparison.ranks, comparison.shown, strict=True)
        )
        missing.append(
            Note(
                code="trace-damaged", text=f"steps shown: {shown}; {shared} are of all ranks, {_BY[comparison.matched]}"
            )
        )
    return missing


_PARTS = (
    word("part", "step"), word("kind"), time("base", "base"), time("head", "head"),
    difference_of("difference", "difference"), share("share", "share"), count("base_launches", "base launches"),
    count("head_launches", "head launches"),
)  # fmt: skip
_KERNELS = (
    word("role", "role"), count("base_launches", "base launches"), count("head_launches", "head launches"),
    time("base", "base"), time("head", "head"), difference_of("difference", "difference"), word("place", "place"),
    word("kernel", "kernel"), word("normalised"),
)  # fmt: skip
_CHANGES = (word("change", "difference of the most frequent steps"),)


def difference_answer(sides: Mapping[Side, tuple[str, Selection]]) -> Answer:
    """The step of one trace beside that of another: the parts of the difference, the kernels, and what changed in them.

    Args:
        sides: The name of each side's file, and what is compared of it.

    Raises:
        UsageError: One of them shows no step.
    """
    base, head = (_steps(*sides[side]) for side in SIDES)
    change, changes = attribute([(base, head)]), difference(base, head)
    headings = [
        f"{side}: {name}, {selection.what} ({selection.trace.source})" for side, (name, selection) in sides.items()
    ]
    headings.append(f"{changes.headline[0].upper()}{changes.headline[1:]}.")
    notes = list(dict.fromkeys(note for _, selection in sides.values() for note in selection.trace.cautions))
    ranks = [len(sides[side][1].ranks) for side in SIDES]
    if ranks[0] != ranks[1]:
        text = (
            f"the base has {plural(ranks[0], 'rank')} and the head {ranks[1]}: a step is the mean of all ranks' steps"
        )
        notes.append(Note(code="trace-damaged", text=text))
    if change is None:
        text = "no step has a successor in its trace, so that the length of a step is not known: kernels are compared"
        notes.append(Note(code="not-recorded", text=text))
    else:
        headings.append(attribution_sentence(change))
    tables = [
        Table("parts", "Mean of a step, the middle half by length", _PARTS, _part_rows(change)),
        Table("kernels", "Kernels, mean of a step", _KERNELS, _kernel_rows(base, head)),
        Table("changes", "Kernels that differ", _CHANGES, [(line,) for line in changes.lines]),
    ]
    about: dict[str, Any] = {
        side: {
            "source": selection.trace.source,
            "selection": selection.what,
            "ranks": len(selection.ranks),
            "steps": len(selection.figures),
        }
        for side, (_, selection) in sides.items()
    }
    return Answer(headings, about, tables, notes)


def _steps(name: str, selection: Selection) -> DecodeSteps:
    if not len(selection.figures):
        raise UsageError(f"{name} shows no step that ran a kernel, and --diff compares steps")
    return summarise_steps(selection.trace, selection.figures)


def _part_rows(change: Attribution | None) -> list[tuple[Any, ...]]:
    """The parts that differ or take time, then the step, whose difference they add up to."""
    if change is None:
        return []
    rows = [
        (part.name, part.kind, *_ns(part.base_s, part.head_s, part.difference_s, change), part.base_launches,
         part.head_launches)
        for part in change.parts
        if part.base_s or part.head_s
    ]  # fmt: skip
    return [*rows, ("step", "step", *_ns(change.base_s, change.head_s, change.difference_s, change), None, None)]


def _ns(base_s: float, head_s: float, difference_s: float, change: Attribution) -> Sequence[float | None]:
    of_all = difference_s / change.difference_s if abs(change.difference_s) >= SHARED * change.base_s else None
    return (base_s * NS_PER_S, head_s * NS_PER_S, difference_s * NS_PER_S, of_all)


def _kernel_rows(base: DecodeSteps, head: DecodeSteps) -> list[tuple[Any, ...]]:
    """Each kernel of either side, the largest difference first."""
    sides = [inventory(steps) for steps in (base, head)]
    rows = []
    for key in {**sides[0], **sides[1]}:
        was, now = (side.get(key, Amount()) for side in sides)
        figures = (was.often, now.often, was.ns, now.ns, now.ns - was.ns)
        rows.append((key.role, *figures, key.place, short_name(key.name), key.name))
    return sorted(rows, key=lambda row: (-abs(row[5]), row[0], row[-1]))
