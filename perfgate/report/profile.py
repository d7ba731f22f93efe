"""What ncu counted of a decode step as rows, and why a role is slower in a sentence."""

from __future__ import annotations

from perfgate.judge.outcome import CellOutcome, CounterRow, CountersOutcome
from perfgate.metrics.catalogue import METRICS, split_name

HEADINGS = ("counted kernel", "role", "launches", "bytes", "DRAM", "SM", "occupancy", "times its roof", "bound")
MOST_ROWS = 12
"""Kernels with a row of their own, those that move most bytes; the others are counted in one line."""
SHOWN_RATIO = 0.005
"""A difference of bytes that is a smaller share is shown as one figure: repeats differ by as much."""
SHOWN_POINTS = 5.0
"""The same for shares in percent."""


def counted_rows(found: CountersOutcome) -> list[tuple[str, ...]]:
    """Rows under :data:`HEADINGS`; both sides' figures where they differ, base first."""
    return [_row(row) for row in _most(found)]


def counted_rest(found: CountersOutcome) -> str:
    """What the rows leave out; empty where they hold everything."""
    rest = [row for row in found.rows if row not in _most(found)]
    if not rest:
        return ""
    moved = sum((row.head or row.base).get("dram_bytes", 0.0) for row in rest)
    return f"and {len(rest)} kernel{'s' * (len(rest) > 1)} more that move {_size(moved)} a launch together"


def changed(found: CountersOutcome) -> list[str]:
    """A sentence for each role whose counters changed."""
    return [text for part, text in found.sentences.items() if "/" not in part and not text.endswith(": same bytes")]


def why_slower(cell: CellOutcome) -> list[str]:
    """For each role that a regressed gate is about the sentence that its counters give; a step's is its largest part.

    A role whose counters did not change has one too: that it moves the same bytes is news.
    """
    if cell.counters is None:
        return []
    blocked = [split_name(gate.metric) for gate in cell.gates if gate.verdict == "regressed"]
    of_the_step = {name for name, metric in METRICS.items() if metric.of_the_step}
    parts = [part or (_largest_part(cell) if metric in of_the_step else None) for metric, part in blocked]
    told = (cell.counters.sentences.get(part) for part in dict.fromkeys(parts) if part)
    return [text for text in told if text]


def _largest_part(cell: CellOutcome) -> str | None:
    """The role that lengthened the step most."""
    parts = [part for part in cell.attribution.parts if part.kind == "kernels"] if cell.attribution else []
    grown = max(parts, key=lambda part: part.difference_s, default=None)
    return grown.name if grown is not None and grown.difference_s > 0 else None


def _most(found: CountersOutcome) -> list[CounterRow]:
    largest = sorted(found.rows, key=lambda row: -max(side.get("dram_bytes", 0.0) for side in (row.base, row.head)))
    chosen = [id(row) for row in largest[:MOST_ROWS]]
    return [row for row in found.rows if id(row) in chosen]


def _row(row: CounterRow) -> tuple[str, ...]:
    name = f"{row.kernel} ({row.place})" if row.place else row.kernel
    sides = [row.launches.get("base"), row.launches.get("head")]
    launches = str(sides[0]) if sides[0] == sides[1] else " to ".join("-" if n is None else str(n) for n in sides)
    bounds = dict.fromkeys(row.bound.values())
    distances = [row.distance.get("base"), row.distance.get("head")]
    return (
        name, row.role, launches, _bytes(row), _share(row, "dram_throughput"), _share(row, "sm_throughput"),
        _share(row, "occupancy"), _both([None if d is None else f"{d:.2g}" for d in distances]), " to ".join(bounds),
    )  # fmt: skip


def _bytes(row: CounterRow) -> str:
    base, head = row.base.get("dram_bytes"), row.head.get("dram_bytes")
    if base is not None and head is not None and abs(head - base) <= SHOWN_RATIO * max(base, head):
        return _size(base)
    return _both([None if value is None else _size(value) for value in (base, head)])


def _share(row: CounterRow, name: str) -> str:
    base, head = row.base.get(name), row.head.get(name)
    if base is not None and head is not None and abs(head - base) < SHOWN_POINTS:
        return f"{base:.0f} %"
    return _both([None if value is None else f"{value:.0f} %" for value in (base, head)])


def _both(sides: list[str | None]) -> str:
    """One figure where both sides have the same or only one has any, else both."""
    known = [side for side in sides if side is not None]
    if len(set(known)) <= 1:
        return known[0] if known else "-"
    return " to ".join(known)


def _size(value: float) -> str:
    """As ncu shows sizes, in thousands: ``52.58 MB``."""
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value:.0f} B"
