"""Intervals in characters, for where no picture is shown: on a terminal, and on GitHub, which drops SVG and images.

The signs are of WGL4, the characters that monospaced fonts of every system have: of another font they would not be as
wide as the rest.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence

from perfgate.judge.outcome import GateOutcome, Outcome
from perfgate.report.chart import Scale
from perfgate.report.document import printable
from perfgate.report.outcome_charts import drawable, margin_scale, span
from perfgate.report.outcome_lines import gate_name, gate_row, urgency

COLUMNS = 41
LEAST_COLUMNS = 9
"""Of an interval beside a figure of any length, which then loses its end."""
MOST_ROWS = 12
NAMES = 34
"""Characters of a name; a longer one loses its end, as the table below has all of it."""
_SIGNS = "\u2502 no change   \u2551 must_catch   \u251c\u2500\u25cf\u2500\u2524 interval"
LEGEND = f"{_SIGNS}   slower is right, in multiples of each gate's must_catch"


def interval_lines(outcome: Outcome) -> tuple[str, ...]:
    """A line a gate, at most :data:`MOST_ROWS`, what needs reading first; then what the signs mean."""
    gates = [(cell.name, gate) for cell in outcome.cells for gate in drawable(cell)]
    gates.sort(key=lambda named: urgency(named[1]))
    shown, several = gates[:MOST_ROWS], len(outcome.cells) > 1
    if not shown:
        return ()
    spans = [span(gate) for _, gate in shown]
    scale = margin_scale(spans, 0, COLUMNS - 1)
    names = [_cut(f"{cell} {gate_name(gate)}" if several else gate_name(gate), NAMES) for cell, gate in shown]
    width = max(map(_columns, names))
    rows = [
        f"{name}{' ' * (width - _columns(name))}  {_strip(own, scale)}  {_figures(gate)}"
        for name, own, (_, gate) in zip(names, spans, shown, strict=True)
    ]
    more = [f"and {len(gates) - MOST_ROWS} more in the tables"] if len(gates) > MOST_ROWS else []
    return (*rows, *more, LEGEND)


def strips(gates: Sequence[GateOutcome], width: int) -> list[str]:
    """A line a gate in so many columns: its name, its interval and its change, where there is room in figures too.

    Args:
        gates: Each with an estimate, see :func:`perfgate.report.outcome_charts.drawable`.
        width: At least 36.
    """
    spans = [span(gate) for gate in gates]
    names = [_cut(gate_name(gate), width // 3) for gate in gates]
    longest, figures = max(map(_columns, names), default=0), [gate_row(gate)[3:5] for gate in gates]
    widest = max((len(change) for change, _ in figures), default=0)
    columns = min(COLUMNS, max(width - longest - widest - 4, LEAST_COLUMNS))
    scale = margin_scale(spans, 0, columns - 1)
    rows = [
        (f"{name}{' ' * (longest - _columns(name))}  {_strip(own, scale)}  {change.rjust(widest)}", interval)
        for name, own, (change, interval) in zip(names, spans, figures, strict=True)
    ]
    room = all(_columns(row) + len(interval) + 2 <= width for row, interval in rows)
    return [f"{row}  {interval}" if room else row for row, interval in rows]


def _figures(gate: GateOutcome) -> str:
    row = gate_row(gate)
    return f"{row[3]:>8}  {row[7]}"


def _cut(name: str, most: int) -> str:
    """A name in one line, by the columns that it takes."""
    shown = " ".join(printable(name).split())
    if _columns(shown) <= most:
        return shown
    while _columns(shown) > most - 1:
        shown = shown[:-1]
    return f"{shown}\u2026"


def _columns(text: str) -> int:
    """How wide text is where characters are of one width: East Asian ones take two, marks on others none."""
    return sum(map(_width, text))


def _width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def _strip(own: Sequence[float], scale: Scale) -> str:
    """One interval between its ends; an end that is not in the strip, or not known, is an arrow."""
    middle, low, high = (math.asinh(value) for value in own)
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
