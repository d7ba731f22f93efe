"""The chart of what a verdict holds: gates against their margins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfgate.judge.outcome import CellOutcome, GateOutcome
from perfgate.report.chart import WIDTH, Chart, Mark, Scale, arrow, diamond, label, line, rect
from perfgate.report.document import cut
from perfgate.report.outcome_lines import gate_name, gate_row, loudly, ordered_gates

LEFT, RIGHT = 200.0, 520.0
"""Where the plot of a chart of rows begins and ends; names are left of it, figures right."""
FURTHEST = 200.0
"""In margins; what is further away is an arrow."""
TICKS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0)
WIDE_NOTE = 60.0
"""Room for the words over the line of no change, where it is near the chart's edge."""
MOST_GATES = 60
"""Drawn, those that need reading first."""
TONES = {"regressed": "bad", "pass": "good", "improved": "good"}


@dataclass(frozen=True)
class Layout:
    """Where the chart of gates has what, in its own units.

    Args:
        left: Where the plot begins.
        right: Where it ends.
        width: Of the whole chart.
        row: Height of a gate.
        words: How much of it, at its top, is for the gate's words; 0 where they are beside the plot.
        axis: What the axis says.
    """

    left: float
    right: float
    width: float
    row: float
    words: float
    axis: str


ON_A_DESK = Layout(LEFT, RIGHT, WIDTH, 34.0, 0.0, "slowdown in multiples of each gate's must_catch margin")
ON_A_TELEPHONE = Layout(18.0, 322.0, 340.0, 46.0, 18.0, "slowdown in multiples of must_catch")


def forest(cell: CellOutcome) -> Chart | None:
    """Each gate's interval, in margins of its own: must_catch is at 1 whatever it is."""
    gates = drawable(cell)[:MOST_GATES]
    if not gates:
        return None
    table = [("gate", "change", "interval", "margins", "verdict")]
    table += [(row[0], row[3], row[4], row[5], row[7]) for row in map(gate_row, gates)]
    seen = "; ".join(f"{row[0]} {row[1]}, {row[2]}: {row[4]}" for row in table[1:])
    legend = (("zone-good", "ignorable"), ("zone-warn", "between the margins"), ("zone-bad", "must be caught"))
    (height, marks), (narrow_height, narrow_marks) = (_forest(gates, layout) for layout in (ON_A_DESK, ON_A_TELEPHONE))
    chart = Chart("Gates against their margins", seen, height, marks, legend, table)
    return replace(chart, narrow=replace(chart, height=narrow_height, marks=narrow_marks, width=ON_A_TELEPHONE.width))


def _forest(gates: Sequence[GateOutcome], layout: Layout) -> tuple[float, tuple[Mark, ...]]:
    """The chart's height and its marks."""
    spans = [span(gate) for gate in gates]
    scale = margin_scale(spans, layout.left, layout.right)
    bottom = 22 + layout.row * len(gates)
    marks = _margins(scale, bottom, layout)
    for n, (gate, own) in enumerate(zip(gates, spans, strict=True)):
        top = 22 + layout.row * n
        marks += _gate_marks(gate, own, scale, top + (layout.row + layout.words) / 2)
        marks += _gate_words(gate, layout, top)
    return bottom + 40, tuple(marks)


def drawable(cell: CellOutcome) -> list[GateOutcome]:
    """The gates that have an interval to draw, those that need reading first."""
    return [gate for gate in ordered_gates(cell) if gate.change is not None and gate.must_catch > 0]


def span(gate: GateOutcome) -> tuple[float, float, float]:
    """Estimate and ends as slowdowns in margins of must_catch; an end that this look does not have is infinite."""
    low, high = (None if end is None else end / gate.must_catch for end in gate.slowdown_bounds)
    middle = gate.slowdown(gate.change or 0.0) / gate.must_catch
    return middle, -math.inf if low is None else low, math.inf if high is None else high


def margin_scale(spans: Sequence[tuple[float, float, float]], begin: float, end: float) -> Scale:
    """For the asinh of slowdowns in margins: linear near 0, and what is 50 margins away still has its place."""
    known = [value for own in spans for value in own if math.isfinite(value)]
    slow = min(max([2.5, *(1.15 * value for value in known)]), FURTHEST)
    fast = min(max([1.5, *(-1.15 * value for value in known)]), FURTHEST)
    return Scale(-math.asinh(fast), math.asinh(slow), begin, end)


def _margins(scale: Scale, bottom: float, layout: Layout) -> list[Mark]:
    one, zero = scale(math.asinh(1)), scale(0.0)
    marks = [rect("zone-bad", one, 22, (layout.right - one, bottom - 22))]
    for tick in TICKS:
        for side in {tick, -tick}:
            x = scale(math.asinh(side))
            if layout.left < x < layout.right and (side > 0 or tick <= 1 or tick in (10, 100)):
                text = "0" if not side else f"{side:g}\u00d7".replace("-", "\u2212")
                marks.append(line("grid", (x, 22), (x, bottom)))
                if abs(x - zero) > 18 or not side:  # noqa: PLR2004 (labels would touch)
                    marks.append(label("tick", x, bottom + 15, text, "middle"))
    marks += [line("axis", (zero, 18), (zero, bottom)), line("must", (one, 18), (one, bottom))]
    middle = (layout.left + layout.right) / 2
    marks += [label("axis-title", middle, bottom + 33, layout.axis, "middle"), label("note", one + 4, 14, "must catch")]
    return [*marks, label("note", max(zero - 4, WIDE_NOTE), 14, "no change", "end")]


def _gate_marks(gate: GateOutcome, own: tuple[float, float, float], scale: Scale, y: float) -> list[Mark]:
    tone = TONES.get(gate.verdict, "warn")
    middle, low, high = map(math.asinh, own)
    zero, ignorable, one = (scale(math.asinh(v)) for v in (0.0, gate.ignorable / gate.must_catch, 1.0))
    x, begin, end = scale(middle), scale(low), scale(high)
    row = gate_row(gate)
    told = f"{row[0]}: {row[1]} to {row[2]}, {row[3]} ({row[4]}), margins {row[5]}, {row[7]}"
    marks = [rect("zone-good", zero, y - 13, (ignorable - zero, 26)),
             rect("zone-warn", ignorable, y - 13, (one - ignorable, 26)),
             line(f"interval {tone}", (begin, y), (end, y), told)]  # fmt: skip
    for value, at, direction in ((low, begin, -1), (high, end, 1)):
        outside = not scale.low <= value <= scale.high
        marks.append(arrow(f"fill {tone}", at - 8 * direction, y, direction) if outside
                     else line(f"interval {tone}", (at, y - 5), (at, y + 5)))  # fmt: skip
    return [*marks, diamond(f"fill {tone}", x, y, told)]


def _gate_words(gate: GateOutcome, layout: Layout, top: float) -> list[Mark]:
    """Its name, change and verdict: on either side of the plot, or in a line above its interval."""
    change, interval = gate_row(gate)[3:5]
    look, verdict = f"figure {TONES.get(gate.verdict, 'warn')}-text", loudly(gate.verdict)
    if layout.words:
        y = top + layout.words - 4
        return [label("name", 4, y, cut(gate_name(gate), 25)), label("figure", layout.width - 100, y, change, "end"),
                label(look, layout.width - 4, y, verdict, "end")]  # fmt: skip
    y = top + layout.row / 2
    return [label("name", layout.left - 12, y + 4, cut(gate_name(gate), 25), "end"),
            label("figure", layout.right + 14, y - 2, change), label("note", layout.right + 14, y + 12, interval),
            label(look, layout.width - 4, y + 4, verdict, "end")]  # fmt: skip
