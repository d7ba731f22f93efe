"""Answers about one selection of a trace: how kernels vary, how launches arrive."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfgate.kernels.answer import Answer, Table, count, share, time, word
from perfgate.kernels.kernel_report import trace_headings
from perfgate.models import Note
from perfgate.scenario.kernel_names import COPY_KINDS
from perfgate.trace.kernel_spread import kernel_spreads
from perfgate.trace.kernel_table import NONE, Trace, combinations
from perfgate.trace.launch_queue import WORK, Launches, find_launches
from perfgate.trace.selection import Selection
from perfgate.units import percent, plural


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
    for one in kernel_spreads(selection):
        times = (one.time_ns, one.least_ns, one.median_ns, one.most_ns, one.mean_ns, one.sd_ns)
        called = (one.place, names.short[one.name], names.demangled[one.name])
        rows.append((one.role, one.launches, *times, one.relative_sd, *called))
    tables = [Table("kernels", "Kernels: time of one launch", columns, rows)]
    return Answer(trace_headings(selection), about(selection), tables, selection.trace.cautions)


def launches_answer(selection: Selection) -> Answer:
    """How long launches take to arrive, and how many wait in each stream."""
    trace = selection.trace
    found = chosen_launches(selection)
    streams = Table("streams", "Streams: launches under way", _STREAM_COLUMNS, _stream_rows(trace, found))
    table = Table("launches", "Launches: from the start of a call to that of its work", _LAUNCH_COLUMNS,
                  _launch_rows(trace, found))  # fmt: skip
    headings, notes = trace_headings(selection), trace.cautions
    if len(found):
        late = int(found.late.sum())
        headings.append(
            f"{plural(len(found), 'launch', 'es')}: {late} ({percent(late / len(found))}) late, after their stream "
            "had finished everything else, so that the device waited for the host."
        )
    else:
        text = "the trace holds no call of the host that launched what is shown, so that delays are not known"
        notes = (*notes, Note(code="not-recorded", text=text))
    return Answer(headings, about(selection), [table, streams], notes)


def chosen_launches(selection: Selection) -> Launches:
    """The launches of the steps selected; of a trace without steps all."""
    found = find_launches(selection.trace)
    if not len(selection.trace.steps):
        return found
    chosen = np.zeros(len(selection.trace.steps) + 1, bool)  # the last one represents no step
    chosen[selection.figures.step] = True
    return found.take(chosen[found.step])


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


def _launch_rows(trace: Trace, found: Launches) -> list[tuple[Any, ...]]:
    """Launches by what they launched, the most numerous first."""
    pieces = np.where(found.work == WORK.index("graph"), found.pieces, 0)
    distinct, group = combinations(found.work, found.name, pieces)
    rows = []
    for number, (work, name, held) in enumerate(distinct):
        own = found.take(group == number)
        delay = own.delay_ns
        figures = (
            len(own), int(own.late.sum()), float(np.median(own.call_ns)), int(delay.min()), float(np.median(delay)),
            int(delay.max()), float(delay.mean()), float(delay.std(ddof=1)) if len(own) > 1 else None,
            float(np.median(own.queue)),
        )  # fmt: skip
        rows.append((WORK[work], *figures, *_named(trace, WORK[work], name, held)))
    return sorted(rows, key=lambda row: (-row[1], row[0], row[-2]))


def _named(trace: Trace, work: str, name: int, held: int) -> tuple[str, str]:
    """A short and a full name of what was launched."""
    if work == "kernel":
        return trace.names.short[name], trace.names.demangled[name]
    text = {"graph": f"graph of {held}", "memset": "memset"}.get(work) or f"copy {COPY_KINDS[name]}"
    return text, text


def _stream_rows(trace: Trace, found: Launches) -> list[tuple[Any, ...]]:
    distinct, group = combinations(found.process, found.device, found.stream)
    rows = []
    for number, (process, device, stream) in enumerate(distinct):
        queue, late = found.queue[group == number], found.late[group == number]
        where = (trace.processes[process], device, stream if stream != NONE else None)
        rows.append((*where, len(queue), int(late.sum()), *_spread(queue)))
    return rows


def _spread(values: NDArray[np.int64]) -> tuple[int, float, float, int]:
    return int(values.min()), float(np.median(values)), float(values.mean()), int(values.max())
