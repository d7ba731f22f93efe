"""Intervals in characters, for where no picture is shown: on a terminal, and on GitHub, which drops SVG and images.

The signs are of WGL4, the characters that monospaced fonts of every system have: of another font they would not be as
wide as the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.cells import cell_len

from perfgate.judge.outcome import GateOutcome, Outcome
from perfgate.report.chart import Scale
from perfgate.report.document import printable
from perfgate.report.outcome_charts import drawable, margin_scale, span
from perfgate.report.outcome_lines import gate_name, gate_row, urgency

COLUMNS = 41
LEAST_COLUMNS = 9  # of an interval beside a figure of any length, which then loses its end
MOST_ROWS = 12
NAMES = 34  # characters of a name; a longer one loses its end, as the table below has all of it
_SIGNS = "\u2502 no change   \u2551 must_catch   \u251c\u2500\u25cf\u2500\u2524 interval"
LEGEND = f"{_SIGNS}   slower is right, in multiples of each gate's must_catch"


def interval_lines(outcome: Outcome) -> tuple[str, ...]:
    """A line a gate, at most :data:`MOST_ROWS`, what needs reading first; then what the signs mean."""
    gates = [(cell.name, gate) for cell in outcome.cells for gate in drawable(cell)]
    gates.sort(key=lambda named: urgency(named[1]))
    shown, several = gates[:MOST_ROWS], len(outcome.cells) > 1
    if not shown:
        return ()
    names = [_cut(f"{cell} {gate_name(gate)}" if several else gate_name(gate), NAMES) for cell, gate in shown]
    lines = _beside(names, [gate for _, gate in shown], COLUMNS)
    figures = [gate_row(gate) for _, gate in shown]
    rows = [f"{line}  {row.change:>8}  {row.verdict}" for line, row in zip(lines, figures, strict=True)]
    more = [f"and {len(gates) - MOST_ROWS} more in the tables"] if len(gates) > MOST_ROWS else []
    return (*rows, *more, LEGEND)


def strips(gates: Sequence[GateOutcome], width: int) -> list[str]:
    """A line a gate in so many columns, at least 36: name, interval and change, where there is room in figures too."""
    names = [_cut(gate_name(gate), width // 3) for gate in gates]
    longest, figures = max(map(cell_len, names), default=0), [*map(gate_row, gates)]
    widest = max((len(row.change) for row in figures), default=0)
    lines = _beside(names, gates, min(COLUMNS, max(width - longest - widest - 4, LEAST_COLUMNS)))
    rows = [f"{line}  {row.change.rjust(widest)}" for line, row in zip(lines, figures, strict=True)]
    in_full = [f"{line}  {row.interval}" for line, row in zip(rows, figures, strict=True)]
    return in_full if all(cell_len(line) <= width for line in in_full) else rows


def _beside(names: Sequence[str], gates: Sequence[GateOutcome], columns: int) -> list[str]:
    """Names of one width, each with the interval of its gate beside it, all on one scale."""
    spans, longest = [span(gate) for gate in gates], max(map(cell_len, names), default=0)
    scale = margin_scale(spans, 0, columns - 1)
    return [f"{name}{' ' * (longest - cell_len(name))}  {_strip(of_gate, scale)}"
            for name, of_gate in zip(names, spans, strict=True)]  # fmt: skip


def _cut(name: str, most: int) -> str:
    """A name in one line, by the columns that it takes: East Asian characters take two, marks on others none."""
    shown = " ".join(printable(name).split())
    if cell_len(shown) <= most:
        return shown
    while cell_len(shown) > most - 1:
        shown = shown[:-1]
    return f"{shown}\u2026"


def _strip(interval: Sequence[float], scale: Scale) -> str:
    """One interval between its ends; an end that is not in the strip, or not known, is an arrow."""
    middle, low, high = (math.asinh(value) for value in interval)
    signs = [" "] * (round(scale.end) + 1)
    begin, at, end = (round(scale(value)) for value in (low, middle, high))
    signs[begin : end + 1] = "\u2500" * (end + 1 - begin)
    for value, beside, across in ((0.0, "\u2502", "\u253c"), (1.0, "\u2551", "\u256b")):
        place = round(scale(math.asinh(value)))
        signs[place] = beside if signs[place] == " " else across
    signs[begin] = "\u251c" if low >= scale.low else "\u25c4"
    signs[end] = "\u2524" if high <= scale.high else "\u25ba"
    signs[at] = "\u25cf"
    return "".join(signs)
