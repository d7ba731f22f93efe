"""Memory over time: what each holder holds at most, when, and in which step."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from perfgate.kernels.answer import Answer, Table, count, size, time, word
from perfgate.models import Note
from perfgate.trace.kernel_table import STEP_KINDS, Trace
from perfgate.trace.memory_timeline import MemoryTimeline
from perfgate.units import plural

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


def memory_answer(found: MemoryTimeline, trace: Trace | None) -> Answer:
    """What each holder holds over time.

    Args:
        found: The memory events of a file.
        trace: The steps of the same file; ``None`` where it holds nothing but memory.
    """
    changes = sum(map(len, found.holdings.values()))
    headings = [f"{found.source}: {plural(changes, 'change')} of memory in {plural(len(found.holdings), 'holder')}"]
    notes = (*(trace.cautions if trace else ()), *found.cautions)
    if not found.holdings:
        text = "no event of memory: PyTorch records them with profile_memory=True, nsys with --cuda-memory-usage=true"
        tables = [Table("changes", "", _CHANGES, [])]
        return Answer(headings, {"source": found.source}, tables, (*notes, Note(code="not-recorded", text=text)))
    begin_ns = min(int(holding.time_ns[0]) for holding in found.holdings.values())
    tables = [
        Table("changes", "", _CHANGES, _change_rows(found, begin_ns)),
        Table("holders", "Holders", _HOLDERS, _holder_rows(found, begin_ns)),
        _slices(found, begin_ns),
        Table("steps", "Steps", _STEPS, _step_rows(found, trace) if trace else []),
    ]
    return Answer(headings, {"source": found.source}, tables, notes)


def _change_rows(found: MemoryTimeline, begin_ns: int) -> list[tuple[Any, ...]]:
    return [
        (name, time_ns - begin_ns, change, level, reserved if reserved >= 0 else None)
        for name, holding in found.holdings.items()
        for time_ns, change, level, reserved in zip(
            *(column.tolist() for column in vars(holding).values()), strict=True
        )
    ]


def _holder_rows(found: MemoryTimeline, begin_ns: int) -> list[tuple[Any, ...]]:
    rows = []
    for name, holding in found.holdings.items():
        first, peak = holding.at(int(holding.time_ns[0]) - 1), int(holding.level_bytes.max())
        at = int(holding.time_ns[int(np.argmax(holding.level_bytes))])
        figures = (first, min(first, int(holding.level_bytes.min())), max(first, peak), at - begin_ns)
        allocated = int(holding.change_bytes[holding.change_bytes > 0].sum())
        reserved = int(holding.reserved_bytes.max())
        row = (name, len(holding), *figures, int(holding.level_bytes[-1]), allocated)
        rows.append((*row, reserved if reserved >= 0 else None))
    return rows


def _slices(found: MemoryTimeline, begin_ns: int) -> Table:
    """The peak of each holder in equal slices of time."""
    end_ns = max(int(holding.time_ns[-1]) for holding in found.holdings.values()) + 1
    edges = np.unique(begin_ns + np.linspace(0, end_ns - begin_ns, SLICES + 1).astype(np.int64)).tolist()
    rows = []
    for first, beyond in itertools.pairwise(edges):
        peaks = (holding.peak(first, beyond) for holding in found.holdings.values())
        rows.append((first - begin_ns, *peaks))
    columns = (time("from", "from"), *(size(name.replace(" ", "_"), name) for name in found.holdings))
    return Table("slices", "Peak in each slice of time", columns, rows)


def _step_rows(found: MemoryTimeline, trace: Trace) -> list[tuple[Any, ...]]:
    """What each step that changes a holder does to it."""
    steps, rows = trace.steps, []
    for row in np.flatnonzero(steps.complete).tolist():
        begin_ns, end_ns = int(steps.start_ns[row]), int(steps.end_ns[row])
        for name, holding in found.holdings.items():
            first, beyond = np.searchsorted(holding.time_ns, (begin_ns, end_ns))
            grown = holding.change_bytes[first:beyond][holding.change_bytes[first:beyond] > 0]
            if first < beyond:
                levels = (holding.at(begin_ns - 1), holding.peak(begin_ns, end_ns), holding.at(end_ns - 1))
                kind = STEP_KINDS[steps.kind[row]]
                rows.append((int(steps.index[row]), kind, name, *levels, len(grown), int(grown.sum())))
    return rows
