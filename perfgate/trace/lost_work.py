"""Work that the host launched and the trace does not show: calls without kernels, and graphs with fewer than before.

A profiler's buffers overflow, its device side begins late or ends early, and some lose the kernels of graphs (ROCm 7).
Then all figures of a step are too small, and look like those of a faster one. What a launch should have left is known
from its call, and of a graph from its other replays. Launches that a stream capture only notes down leave nothing.

A step whose first or last launches are missing because the profiler saw the device later, or no longer, is left out; a
step that lacks anything else has no figures.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfgate.errors import NotMeasuredError
from perfgate.models import Note
from perfgate.trace.kernel_table import (
    CALL_WORK,
    CAPTURES,
    NONE,
    STEP_KINDS,
    Calls,
    Columns,
    Trace,
    call_keys,
    combinations,
    rows_by,
)
from perfgate.units import percent, plural

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

DUE, LOST, SHORT = (CALL_WORK.index(word) for word in ("due", "lost", "short"))
ALIKE = 0.8
"""Two replays at one place that have so much in common, and other numbers of the same kernels, are of one graph."""
MOST_REPLAYS = 64
"""Different replays of one graph, or at one place, that are held against each other."""
WORKING = ("decode", "prefill", "mixed", "repeated")
"""Kinds of steps that run kernels."""


def mark_lost(recorded: Trace, unclear: Ints) -> Trace:
    """The same with the calls marked that launched what the trace does not show.

    Args:
        recorded: What a reader took from a file, its calls not yet in steps.
        unclear: Keys that several calls have, so that nobody knows which of them launched something.
    """
    calls = recorded.calls
    tables = (recorded.kernels, recorded.copies, recorded.memsets)
    ran = np.concatenate([call_keys(table.process, table.correlation)[table.correlation != NONE] for table in tables])
    keys = call_keys(calls.process, calls.correlation)
    clear = (calls.correlation != NONE) & ~np.isin(keys, unclear) & np.isin(calls.process, recorded.kernels.process)
    due = (calls.work == DUE) & clear & ~_captured(calls)
    work = np.where(due, np.where(np.isin(keys, ran), DUE, LOST), 0).astype(np.int8)
    return dataclasses.replace(recorded, calls=dataclasses.replace(calls, work=work))


def _captured(calls: Calls) -> Mask:
    """Which calls were made while their process captured a stream."""
    captured = np.zeros(len(calls), bool)
    begin, end = (calls.of(kind) for kind in CAPTURES)
    for process in np.unique(calls.process[begin | end]).tolist():
        rows = np.flatnonzero(calls.process == process)
        rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
        depth = np.cumsum(begin[rows].astype(np.int64) - end[rows])
        captured[rows] = depth > min(int(depth.min()), 0)
    return captured


def without_cut_steps(trace: Trace) -> tuple[Trace, list[Note]]:
    """The trace with short replays marked, and without the steps of which the profiler missed the begin or the end.

    Args:
        trace: Whole, its calls marked by :func:`mark_lost`.

    Returns:
        The trace, and what is missing in it, in words.
    """
    calls = trace.calls
    if not (calls.work == DUE).any() and not (calls.work == LOST).any():
        return trace, list(_without_kernels(trace))
    short = _short_replays(trace)
    work = calls.work.copy()
    work[short.call] = SHORT
    cut = _edges(calls, work)
    steps = np.unique(calls.step[cut & (calls.step != NONE)])
    complete = trace.steps.complete.copy()
    left_out = int(complete[steps].sum())
    complete[steps] = False
    work[cut] = 0
    trace = dataclasses.replace(
        trace,
        calls=dataclasses.replace(calls, work=work),
        steps=dataclasses.replace(trace.steps, complete=complete),
    )
    notes = []
    if left_out:
        text = (
            f"{plural(left_out, 'step')} at the begin or the end of the trace {'is' if left_out == 1 else 'are'} left "
            f"out: {plural(int(cut.sum()), 'launch', 'es')} there have no kernel, or not all of their graph"
        )
        notes.append(Note(code="trace-damaged", text=text))
    kept = np.isin(short.call, np.flatnonzero(work == SHORT))
    if lost := _in_words(trace.calls, np.ones(len(calls), bool), int(short.kernels[kept].sum())):
        notes.append(Note(code="trace-damaged", text=lost))
    return trace, [*notes, *_without_kernels(trace)]


def check_shown(trace: Trace, steps: Ints, what: str) -> None:
    """Refuse figures of steps that are not whole.

    Args:
        trace: All of it.
        steps: Rows of its steps; none for the whole trace.
        what: These steps in words.

    Raises:
        NotMeasuredError: Launches of these steps have not all of their kernels in the trace or kernels of
            theirs have times that no stream can have (``trace-damaged``).
    """
    calls, kernels = trace.calls, trace.kernels
    inside = np.isin(calls.step, steps) if len(steps) else np.ones(len(calls), bool)
    if lost := _in_words(calls, inside, None):
        why = [note.text for note in trace.cautions if note.code == "not-recorded"]
        text = "; ".join([f"what the device did in {what} is not known: {lost}", *why])
        raise NotMeasuredError(text, where=trace.where, code="trace-damaged")
    ran = np.isin(kernels.step, steps) if len(steps) else np.ones(len(kernels), bool)
    if astray := int((kernels.astray & ran).sum()):
        text = (
            f"the times of {what} are not known: {astray} of {plural(int(ran.sum()), 'kernel')} run beside others of "
            "their stream as no stream does"
        )
        raise NotMeasuredError(text, where=trace.where, code="trace-damaged")


def _in_words(calls: Calls, inside: Mask, missing: int | None) -> str:
    """How many of some launches have not all of their kernels in the trace; empty where all have."""
    due = int((inside & (calls.work != 0)).sum())
    lost, short = (int((inside & (calls.work == word)).sum()) for word in (LOST, SHORT))
    if not lost + short:
        return ""
    said = [f"{lost} without a kernel"] if lost else []
    if short:
        fewer = f", {missing} in all" if missing else ""
        said.append(f"{plural(short, 'graph')} with fewer kernels than in other replays{fewer}")
    share = f"{percent((lost + short) / due)} of {plural(due, 'launch', 'es')}"
    return f"{share} are not whole in the trace: {', '.join(said)}"


def _without_kernels(trace: Trace) -> Iterator[Note]:
    """What to say of steps that should have run something, and of which the trace shows no kernel."""
    steps = trace.steps
    ran = np.zeros(len(steps) + 1, bool)
    ran[trace.kernels.step] = True
    for kind in WORKING:
        due = (steps.kind == STEP_KINDS.index(kind)) & np.isin(steps.process, trace.kernels.process)
        empty = due & steps.complete & ~ran[:-1]
        if empty.any():
            first = ", ".join(map(str, steps.index[empty][:3].tolist()))
            more = ", ..." if empty.sum() > 3 else ""  # noqa: PLR2004 (as many as are named)
            text = f"{int(empty.sum())} of {plural(int(due.sum()), f'{kind} step')} have no kernel in the trace and are"
            yield Note(code="trace-damaged", text=f"{text} left out: {first}{more}")


def _edges(calls: Calls, work: NDArray[np.int8]) -> Mask:
    """Launches that are not whole and before the first whole one of their process, or after the last."""
    cut = np.zeros(len(calls), bool)
    due = work != 0
    for process in np.unique(calls.process[due]).tolist():
        rows = np.flatnonzero(due & (calls.process == process))
        rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
        whole = np.flatnonzero(work[rows] == DUE)
        if len(whole):
            cut[rows[: whole[0]]] = cut[rows[whole[-1] + 1 :]] = True
    return cut


@dataclasses.dataclass(frozen=True)
class _Short(Columns):
    """Launches of graphs that ran fewer kernels than others: the row of the call, and how many are missing."""

    call: Ints
    kernels: Ints


def _short_replays(trace: Trace) -> _Short:
    """Launches of graphs of which the trace shows fewer kernels than of others of the same graph."""
    calls, kernels = trace.calls, trace.kernels
    launched = np.flatnonzero(calls.of("graph-launch") & (calls.work == DUE))
    keys = call_keys(calls.process[launched], calls.correlation[launched])
    order = np.argsort(keys, kind="stable")
    kernel_keys = call_keys(kernels.process, kernels.correlation)
    if not len(keys):
        return _Short(launched, launched)
    place = np.minimum(np.searchsorted(keys[order], kernel_keys), len(keys) - 1)
    rows = np.flatnonzero((keys[order][place] == kernel_keys) & (kernels.correlation != NONE))
    call = launched[order[place[rows]]]
    by_node = kernels.node[rows] != NONE
    nothing = np.empty(0, np.int64), np.empty(0, np.int64)
    sure = _short_by_node(trace, rows[by_node], call[by_node]) if by_node.any() else nothing
    untold = np.setdiff1d(launched, call[by_node])
    rest = np.isin(call, untold)
    guessed = _short_by_place(trace, untold, rows[rest], call[rest])
    return _Short(*(np.concatenate(pair) for pair in zip(sure, guessed, strict=True)))


def _short_by_node(trace: Trace, rows: Ints, call: Ints) -> tuple[Ints, Ints]:
    """By the nodes of each graph: one that ran in another launch of the graph, and not in this.

    The body of a conditional node is a graph of its own, so a launch that does not enter it lacks nothing.
    """
    _, node = np.unique(trace.kernels.node[rows], return_inverse=True)
    _, number = np.unique(node * (1 << 16) + trace.kernels.process[rows], return_inverse=True)
    first = np.unique(number, return_index=True)[1]
    owner, graph = trace.kernels.process[rows[first]].astype(np.int64), trace.kernels.node[rows[first]] >> 32
    _, graph = combinations(owner, np.unique(graph, return_inverse=True)[1])
    nodes = np.bincount(graph)
    ran = np.unique(call.astype(np.int64) * len(first) + number)
    launches, count = np.unique(ran // len(first) * len(nodes) + graph[ran % len(first)], return_counts=True)
    owner, which = launches // len(nodes), launches % len(nodes)
    missing = nodes[which] - count
    short, index = np.unique(owner[missing > 0], return_inverse=True)
    return short, np.bincount(index, missing[missing > 0], len(short)).astype(np.int64)


def _short_by_place(trace: Trace, launched: Ints, rows: Ints, call: Ints) -> tuple[Ints, Ints]:
    """By the place in a step, where nothing names the graph: launches there that lack what another one ran.

    Another graph, for another batch, runs other kernels or the same in other shapes; a replay that lost some has other
    numbers of the same.
    """
    calls, kernels = trace.calls, trace.kernels
    launched = launched[calls.step[launched] != NONE]
    launched = launched[np.lexsort((calls.start_ns[launched], calls.step[launched]))]
    if not len(launched):
        return launched, launched
    step = calls.step[launched]
    _, begin, counts = np.unique(step, return_index=True, return_counts=True)
    ordinal = np.arange(len(step)) - np.repeat(begin, counts)
    groups, group = combinations(
        calls.process[launched], trace.steps.kind[step], np.repeat(counts, counts), ordinal
    )  # fmt: skip
    _, sort = combinations(kernels.name[rows], kernels.shape[rows])
    ran = {int(call[replay[0]]): np.sort(sort[replay]) for replay in rows_by(call)}
    lacking: dict[int, int] = {}
    for number in range(len(groups)):
        members = launched[group == number].tolist()
        replays = {launch: ran[launch] for launch in members if launch in ran}
        variants = {sorts.tobytes(): sorts for sorts in replays.values()}
        if 1 < len(variants) <= MOST_REPLAYS or len(variants) > MOST_REPLAYS:
            missing = _missing(list(variants.values())[:MOST_REPLAYS])
            lacks = dict(zip(variants, missing, strict=False))
            lacking |= {launch: lack for launch, sorts in replays.items() if (lack := lacks.get(sorts.tobytes(), 0))}
    return np.array(list(lacking), np.int64), np.array(list(lacking.values()), np.int64)


def _missing(variants: Sequence[NDArray[Any]]) -> list[int]:
    """How many kernels each of these replays lacks of one that is of the same graph."""
    width = max(int(variant.max()) for variant in variants) + 1
    counts = np.stack([np.bincount(variant, minlength=width) for variant in variants])
    lacks = [0] * len(variants)
    for number, count in enumerate(counts):
        for other in counts:
            common = np.minimum(count, other).sum()
            within = common == count.sum() < other.sum()
            same = (
                common >= ALIKE * max(count.sum(), other.sum()) and ((count > 0) & (other > 0) & (count != other)).any()
            )
            if within or same:
                lacks[number] = max(lacks[number], int(np.maximum(other - count, 0).sum()))
    return lacks
