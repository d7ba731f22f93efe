"""Answers about one trace: how kernels vary, how launches arrive, what bounds a step, who holds memory when."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfgate.kernels.answer import Answer, Table, count, share, size, time, word
from perfgate.kernels.kernel_report import trace_headings
from perfgate.models import Note
from perfgate.scenario.kernel_names import COPY_KINDS
from perfgate.trace.critical_path import MOST_STEPS, StepPath, critical_paths
from perfgate.trace.kernel_table import NONE, STEP_KINDS, Trace, combinations
from perfgate.trace.launch_queue import WORK, Launches, find_launches
from perfgate.trace.memory_timeline import MemoryTimeline
from perfgate.trace.selection import Selection, kernel_spreads
from perfgate.trace.step_timeline import WHERES, PathPart
from perfgate.units import format_ns, percent, plural


def about(selection: Selection) -> dict[str, Any]:
    """What programs are told that an answer is of."""
    trace = selection.trace
    return {
        "source": trace.source,
        "devices": {str(number): name for number, name in trace.devices.items()},
        "selection": selection.what,
        "ranks": len(selection.ranks),
        "steps": len(selection.figures),
    }


def spread_answer(selection: Selection) -> Answer:
    """How long the launches of each kernel take: the shortest, the longest, and how they scatter."""
    names = selection.trace.names
    columns = (
        word("role", "role"), count("launches", "launches"), time("time", "time"), time("least", "least"),
        time("median", "median"), time("most", "most"), time("mean", "mean"), time("sd", "sd"),
        share("relative_sd", "sd/mean"), word("place", "place"), word("kernel", "kernel"), word("name"),
    )  # fmt: skip
    rows = []
    for spread in kernel_spreads(selection):
        times = (spread.time_ns, spread.least_ns, spread.median_ns, spread.most_ns, spread.mean_ns, spread.sd_ns)
        called = (spread.place, names.short[spread.name], names.demangled[spread.name])
        rows.append((spread.role, spread.launches, *times, spread.relative_sd, *called))
    tables = [Table("kernels", "Kernels: time of one launch", columns, rows)]
    return Answer(trace_headings(selection), about(selection), tables, selection.trace.cautions)


def launches_answer(selection: Selection) -> Answer:
    """How long launches take to arrive, and how many wait in each stream."""
    trace = selection.trace
    chosen = chosen_launches(selection)
    streams = Table("streams", "Streams: launches under way", _STREAM_COLUMNS, _stream_rows(trace, chosen))
    table = Table("launches", "Launches: from the start of a call to that of its work", _LAUNCH_COLUMNS,
                  _launch_rows(trace, chosen))  # fmt: skip
    headings, notes = trace_headings(selection), trace.cautions
    if len(chosen):
        late = int(chosen.late.sum())
        headings.append(
            f"{plural(len(chosen), 'launch', 'es')}: {late} ({percent(late / len(chosen))}) late, after their stream "
            "had finished everything else, so that the device waited for the host."
        )
    else:
        text = "the trace holds no call of the host that launched what is shown, so that delays are not known"
        notes = (*notes, Note(code="not-recorded", text=text))
    return Answer(headings, about(selection), [table, streams], notes)


def chosen_launches(selection: Selection) -> Launches:
    """The launches of the steps selected; of a trace without steps all."""
    launches = find_launches(selection.trace)
    if not len(selection.trace.steps):
        return launches
    chosen = np.zeros(len(selection.trace.steps) + 1, bool)  # the last one represents no step
    chosen[selection.figures.step] = True
    return launches.take(chosen[launches.step])


_LAUNCH_COLUMNS = (
    word("work", "work"), count("launches", "launches"), count("late", "late"), time("call_median", "call"),
    time("delay_least", "least delay"), time("delay_median", "median"), time("delay_most", "most"),
    time("delay_mean", "mean"), time("delay_sd", "sd"), count("queue_median", "queue"), word("launched", "launched"),
    word("name"),
)  # fmt: skip
_STREAM_COLUMNS = (
    word("process"), word("device", "device"), word("stream", "stream"), count("launches", "launches"),
    count("late", "late"), count("queue_least", "least queue"), count("queue_median", "median"),
    count("queue_mean", "mean"), count("queue_most", "most"),
)  # fmt: skip


def _launch_rows(trace: Trace, launches: Launches) -> list[tuple[Any, ...]]:
    """Launches by what they launched, the most numerous first."""
    pieces = np.where(launches.work == WORK.index("graph"), launches.pieces, 0)
    distinct, group = combinations(launches.work, launches.name, pieces)
    rows = []
    for number, (work, name, held) in enumerate(distinct):
        part = launches.take(group == number)
        delay = part.delay_ns
        figures = (
            len(part), int(part.late.sum()), float(np.median(part.call_ns)), int(delay.min()), float(np.median(delay)),
            int(delay.max()), float(delay.mean()), float(delay.std(ddof=1)) if len(part) > 1 else None,
            float(np.median(part.queue)),
        )  # fmt: skip
        rows.append((WORK[work], *figures, *_named(trace, WORK[work], name, held)))
    return sorted(rows, key=lambda row: (-row[1], row[0], row[-2]))


def _named(trace: Trace, work: str, name: int, held: int) -> tuple[str, str]:
    """A short and a full name of what was launched."""
    if work == "kernel":
        return trace.names.short[name], trace.names.demangled[name]
    text = {"graph": f"graph of {held}", "memset": "memset"}.get(work) or f"copy {COPY_KINDS[name]}"
    return text, text


def _stream_rows(trace: Trace, launches: Launches) -> list[tuple[Any, ...]]:
    distinct, group = combinations(launches.process, launches.device, launches.stream)
    rows = []
    for number, (process, device, stream) in enumerate(distinct):
        queue, late = launches.queue[group == number], launches.late[group == number]
        where = (trace.processes[process], device, stream if stream != NONE else None)
        rows.append((*where, len(queue), int(late.sum()), *_spread(queue)))
    return rows


def _spread(values: NDArray[np.int64]) -> tuple[int, float, float, int]:
    return int(values.min()), float(np.median(values)), float(values.mean()), int(values.max())


NO_CALLS = "the trace holds no call of the host that launched what is shown, so that no path can be followed"
_WORDS = {"device": "the device's work", "gap": "gaps between it", "host": "the host"}
_PARTS = (
    word("where", "where"), word("part", "part"), count("pieces", "pieces"), time("on_path", "on the path"),
    share("share", "share"), time("in_step", "in the step"), time("gain_at_most", "gain at most"),
    word("place", "place"), word("kernel", "kernel"), word("name"),
)  # fmt: skip
_PATHS = (
    word("step"), word("process"), word("device"), time("path", ""), *(time(where, "") for where in WHERES),
    word("bound_by"),
)  # fmt: skip
_CHAIN = (
    time("begin", "begin"), time("time", "time"), word("where", "where"), word("part", "part"),
    word("stream", "stream"), word("place", "place"), word("kernel", "kernel"), word("name"),
)  # fmt: skip


def path_answer(selection: Selection) -> Answer:
    """What bounds a step: the parts of its path, as means over the steps, and the chain where there is one step."""
    trace, paths = selection.trace, critical_paths(selection)
    headings, notes = trace_headings(selection), trace.cautions
    if not paths:
        notes = (*notes, Note(code="not-recorded", text=NO_CALLS))
    else:
        headings += _sentences(paths, len(selection.figures))
    tables = [
        Table(
            "parts", f"Critical path{', mean of a step' if len(paths) > 1 else ''}", _PARTS, _part_rows(trace, paths)
        ),
        Table("paths", "Steps", _PATHS, [_step_row(trace, path) for path in paths]),
    ]
    if len(paths) == 1:
        tables.append(Table("chain", "Chain", _CHAIN, _chain_rows(trace, paths[0])))
    return Answer(headings, about(selection), tables, notes)


def _sentences(paths: list[StepPath], steps: int) -> list[str]:
    """How long the path is, what it is made of, and what bounds how many steps."""
    length_ns, sums = sum(path.length_ns for path in paths), Counter[str]()
    for path in paths:
        sums.update(path.time_by_where())
    shares = ", ".join(f"{_WORDS[where]} {percent(sums[where] / length_ns if length_ns else 0.0)}" for where in WHERES)
    next_one = any(path.window.successor for path in paths)
    of = "its first kernel to that of the next" if next_one else "the first kernel to the end of all work"
    bound = Counter(_bound_by(path) for path in paths)
    many = ", ".join(f"{bound[where]} by {_WORDS[where]}" for where in WHERES if bound[where])
    some = f" (every {steps / MOST_STEPS:.3g}th of {steps})" if steps > len(paths) else ""
    return [
        f"Path from {of}, {format_ns(length_ns / len(paths))}: {shares}.",
        f"Of {plural(len(paths), 'step')}{some} bound: {many}.",
        "What waited for what is taken from times. A gain is what a step would lose, at most, without the part.",
    ]


def _bound_by(path: StepPath) -> str:
    sums = path.time_by_where()
    return max(WHERES, key=lambda where: sums[where])


def _part_rows(trace: Trace, paths: list[StepPath]) -> list[tuple[Any, ...]]:
    """The parts on the path of any step, what takes most of it first."""
    pieces, on_path, in_step, gains = (Counter[PathPart]() for _ in range(4))
    for path in paths:
        in_step.update(path.in_step_ns)
        gains.update(path.gains_ns)
        for piece in path.pieces:
            pieces[piece.part] += 1
            on_path[piece.part] += piece.time_ns
    steps, whole_ns = len(paths), max(sum(on_path.values()), 1)
    return [
        (part.where, part.what, pieces[part] / steps, time_ns / steps, time_ns / whole_ns, in_step[part] / steps,
         gains[part] / steps, part.place, *_names(trace, part))
        for part, time_ns in on_path.most_common()
    ]  # fmt: skip


def _names(trace: Trace, part: PathPart) -> tuple[str, str]:
    named = part.name != NONE
    return (trace.names.short[part.name], trace.names.demangled[part.name]) if named else ("", "")


def _step_row(trace: Trace, path: StepPath) -> tuple[Any, ...]:
    window, sums = path.window, path.time_by_where()
    step = int(trace.steps.index[window.step]) if window.step != NONE else None
    times = (path.length_ns, *(sums[where] for where in WHERES))
    return (step, trace.processes[window.process], window.device, *times, _bound_by(path))


def _chain_rows(trace: Trace, path: StepPath) -> list[tuple[Any, ...]]:
    return [
        (piece.begin_ns, piece.time_ns, piece.part.where, piece.part.what, piece.stream, piece.part.place,
         *_names(trace, piece.part))
        for piece in path.pieces
    ]  # fmt: skip


SLICES = 24
"""Rows in which a reader sees the whole time; JSON and CSV hold each change."""

_CHANGES = (
    word("holder"), time("time", ""), size("change", ""), size("level", ""), size("reserved", ""),
)  # fmt: skip
_HOLDERS = (
    word("holder", "holder"), count("changes", "changes"), size("first", "at first"), size("least", "least"),
    size("peak", "peak"), time("peak_at", "after"), size("last", "at last"), size("allocated", "allocated"),
    size("reserved_peak", "reserved, peak"),
)  # fmt: skip
_STEPS = (
    word("step", "step"), word("kind", "kind"), word("holder", "holder"), size("first", "at first"),
    size("peak", "peak"), size("last", "at last"), count("allocations", "allocations"), size("allocated", "allocated"),
)  # fmt: skip


def memory_answer(timeline: MemoryTimeline, trace: Trace | None) -> Answer:
    """What each holder holds over time.

    Args:
        timeline: The memory events of a file.
        trace: The steps of the same file; ``None`` where it holds nothing but memory.
    """
    changes = sum(map(len, timeline.holdings.values()))
    headings = [
        f"{timeline.source}: {plural(changes, 'change')} of memory in {plural(len(timeline.holdings), 'holder')}"
    ]
    notes = (*(trace.cautions if trace else ()), *timeline.cautions)
    if not timeline.holdings:
        text = "no event of memory: PyTorch records them with profile_memory=True, nsys with --cuda-memory-usage=true"
        tables = [Table("changes", "", _CHANGES, [])]
        return Answer(headings, {"source": timeline.source}, tables, (*notes, Note(code="not-recorded", text=text)))
    begin_ns = min(int(holding.time_ns[0]) for holding in timeline.holdings.values())
    tables = [
        Table("changes", "", _CHANGES, _change_rows(timeline, begin_ns)),
        Table("holders", "Holders", _HOLDERS, _holder_rows(timeline, begin_ns)),
        _slices(timeline, begin_ns),
        Table("steps", "Steps", _STEPS, _step_rows(timeline, trace) if trace else []),
    ]
    return Answer(headings, {"source": timeline.source}, tables, notes)


def _change_rows(timeline: MemoryTimeline, begin_ns: int) -> list[tuple[Any, ...]]:
    return [
        (name, time_ns - begin_ns, change, level, reserved if reserved >= 0 else None)
        for name, holding in timeline.holdings.items()
        for time_ns, change, level, reserved in zip(
            *(column.tolist() for column in vars(holding).values()), strict=True
        )
    ]


def _holder_rows(timeline: MemoryTimeline, begin_ns: int) -> list[tuple[Any, ...]]:
    rows = []
    for name, holding in timeline.holdings.items():
        first, peak = holding.at(int(holding.time_ns[0]) - 1), int(holding.level_bytes.max())
        at = int(holding.time_ns[int(np.argmax(holding.level_bytes))])
        figures = (first, min(first, int(holding.level_bytes.min())), max(first, peak), at - begin_ns)
        allocated = int(holding.change_bytes[holding.change_bytes > 0].sum())
        reserved = int(holding.reserved_bytes.max())
        row = (name, len(holding), *figures, int(holding.level_bytes[-1]), allocated)
        rows.append((*row, reserved if reserved >= 0 else None))
    return rows


def _slices(timeline: MemoryTimeline, begin_ns: int) -> Table:
    """The peak of each holder in equal slices of time."""
    end_ns = max(int(holding.time_ns[-1]) for holding in timeline.holdings.values()) + 1
    edges = np.unique(begin_ns + np.linspace(0, end_ns - begin_ns, SLICES + 1).astype(np.int64)).tolist()
    rows = []
    for first, beyond in itertools.pairwise(edges):
        peaks = (holding.peak(first, beyond) for holding in timeline.holdings.values())
        rows.append((first - begin_ns, *peaks))
    columns = (time("from", "from"), *(size(name.replace(" ", "_"), name) for name in timeline.holdings))
    return Table("slices", "Peak in each slice of time", columns, rows)


def _step_rows(timeline: MemoryTimeline, trace: Trace) -> list[tuple[Any, ...]]:
    """What each step that changes a holder does to it."""
    steps, rows = trace.steps, []
    for row in np.flatnonzero(steps.complete).tolist():
        begin_ns, end_ns = int(steps.start_ns[row]), int(steps.end_ns[row])
        for name, holding in timeline.holdings.items():
            first, beyond = np.searchsorted(holding.time_ns, (begin_ns, end_ns))
            grown = holding.change_bytes[first:beyond][holding.change_bytes[first:beyond] > 0]
            if first < beyond:
                levels = (holding.at(begin_ns - 1), holding.peak(begin_ns, end_ns), holding.at(end_ns - 1))
                kind = STEP_KINDS[steps.kind[row]]
                rows.append((int(steps.index[row]), kind, name, *levels, len(grown), int(grown.sum())))
    return rows
