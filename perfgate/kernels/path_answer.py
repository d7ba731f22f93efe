"""The critical path of the steps of a selection: its parts, what each would gain, and the chain of a single step."""

from __future__ import annotations

from collections import Counter
from typing import Any

from perfgate.kernels.answer import Answer, Table, count, share, time, word
from perfgate.kernels.kernel_report import trace_headings
from perfgate.kernels.trace_answers import about
from perfgate.models import Note
from perfgate.trace.critical_path import MOST_STEPS, StepPath, critical_paths
from perfgate.trace.kernel_table import NONE, Trace
from perfgate.trace.selection import Selection
from perfgate.trace.step_timeline import WHERES, PathPart
from perfgate.units import format_ns, percent, plural

NO_CALLS = "the trace holds no call of the host that launched what is shown, so that no path can be followed"
_WORDS = {"device": "the device's work", "gap": "gaps between it", "host": "the host"}
_PARTS = (
    word("where", "where"), word("part", "part"), count("pieces", "pieces"), time("on_path", "on the path"),
    share("share", "share"), time("in_step", "in the step"), time("gain_at_most", "gain at most"),
    word("place", "place"), word("kernel", "kernel"), word("name"),
)  # fmt: skip
_STEPS = (
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
        Table("paths", "Steps", _STEPS, [_step_row(trace, path) for path in paths]),
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
    known = part.name != NONE
    return (trace.names.short[part.name], trace.names.demangled[part.name]) if known else ("", "")


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
