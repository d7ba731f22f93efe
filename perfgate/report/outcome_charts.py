"""The chart of what a verdict holds: gates against their margins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfgate.judge.outcome import CellOutcome, GateOutcome
from perfgate.report.chart import WIDTH, Chart, Mark, Scale, arrow, diamond, label, line, rect
from perfgate.report.document import cut
from perfgate.report.outcome_lines import by_metric, gate_name, gate_row, gate_sentence, loudly

LEFT, RIGHT = 200.0, 520.0  # where the plot of a chart of rows begins and ends; names are left of it, figures right
FURTHEST = 200.0  # in margins; what is further away is an arrow
TICKS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0)
WIDE_NOTE = 60.0  # room for the words over the line of no change, where it is near the chart's edge
MOST_GATES = 60  # drawn, those that need reading first
TONES = {"regressed": "bad", "pass": "good", "improved": "good"}


@dataclass(frozen=True)
class Layout:
    """Where the chart of gates has what, in its own units."""

    left: float  # where the plot begins
    right: float  # where it ends
    width: float  # of the whole chart
    row: float  # height of a gate
    words: float  # how much of it, at its top, is for the gate's words; 0 where they are beside the plot
    axis: str  # what the axis says


ON_A_DESK = Layout(LEFT, RIGHT, WIDTH, 34.0, 0.0, "slowdown in multiples of each gate's must_catch margin")
ON_A_TELEPHONE = Layout(18.0, 322.0, 340.0, 46.0, 18.0, "slowdown in multiples of must_catch")


def forest(cell: CellOutcome) -> Chart | None:
    """Each gate's interval, in margins of its own: must_catch is at 1 whatever it is."""
    gates = drawable(cell)[:MOST_GATES]
    if not gates:
        return None
    table = [("gate", "change", "interval", "margins", "verdict")]
    table += [(row.metric, row.change, row.interval, row.margins, row.verdict) for row in map(gate_row, gates)]
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
    for n, (gate, interval) in enumerate(zip(gates, spans, strict=True)):
        top = 22 + layout.row * n
        marks += _gate_marks(gate, interval, scale, top + (layout.row + layout.words) / 2)
        marks += _gate_words(gate, layout, top)
    return bottom + 40, tuple(marks)


def drawable(cell: CellOutcome) -> list[GateOutcome]:
    """The gates that have an interval to draw, those that need reading first."""
    shown = [[gate for gate in gates if gate.change is not None and gate.must_catch > 0] for gates in by_metric(cell)]
    return [gates[0] for gates in shown if gates]


def span(gate: GateOutcome) -> tuple[float, float, float]:
    """Estimate and ends as slowdowns in margins of must_catch; an end that this look does not have is infinite."""
    low, high = (None if end is None else end / gate.must_catch for end in gate.slowdown_bounds)
    middle = gate.slowdown(gate.change or 0.0) / gate.must_catch
    return middle, -math.inf if low is None else low, math.inf if high is None else high


def margin_scale(spans: Sequence[tuple[float, float, float]], begin: float, end: float) -> Scale:
    """For the asinh of slowdowns in margins: linear near 0, and what is 50 margins away still has its place."""
    ends = [value for interval in spans for value in interval if math.isfinite(value)]
    slow = min(max([2.5, *(1.15 * value for value in ends)]), FURTHEST)
    fast = min(max([1.5, *(-1.15 * value for value in ends)]), FURTHEST)
    return Scale(-math.asinh(fast), math.asinh(slow), begin, end)


def _margins(scale: Scale, bottom: float, layout: Layout) -> list[Mark]:
    must, zero = scale(math.asinh(1)), scale(0.0)
    marks = [rect("zone-bad", must, 22, (layout.right - must, bottom - 22))]
    for tick in TICKS:
        for side in {tick, -tick}:
            x = scale(math.asinh(side))
            if layout.left < x < layout.right and (side > 0 or tick <= 1 or tick in (10, 100)):
                text = "0" if not side else f"{side:g}\u00d7".replace("-", "\u2212")
                marks.append(line("grid", (x, 22), (x, bottom)))
                if abs(x - zero) > 18 or not side:  # noqa: PLR2004 (labels would touch)
                    marks.append(label("tick", x, bottom + 15, text, "middle"))
    marks += [line("axis", (zero, 18), (zero, bottom)), line("must", (must, 18), (must, bottom))]
    middle = (layout.left + layout.right) / 2
    marks += [
        label("axis-title", middle, bottom + 33, layout.axis, "middle"),
        label("note", must + 4, 14, "must catch"),
    ]
    return [*marks, label("note", max(zero - 4, WIDE_NOTE), 14, "no change", "end")]


def _gate_marks(gate: GateOutcome, interval: tuple[float, float, float], scale: Scale, y: float) -> list[Mark]:
    tone = TONES.get(gate.verdict, "warn")
    middle, low, high = map(math.asinh, interval)
    zero, ignorable, must = (scale(math.asinh(v)) for v in (0.0, gate.ignorable / gate.must_catch, 1.0))
    x, begin, end = scale(middle), scale(low), scale(high)
    caption = f"{gate_name(gate)}: {gate_sentence(gate)}: {loudly(gate.verdict)}"
    marks = [rect("zone-good", zero, y - 13, (ignorable - zero, 26)),
             rect("zone-warn", ignorable, y - 13, (must - ignorable, 26)),
             line(f"interval {tone}", (begin, y), (end, y), caption)]  # fmt: skip
    for value, at, direction in ((low, begin, -1), (high, end, 1)):
        outside = not scale.low <= value <= scale.high
        marks.append(arrow(f"fill {tone}", at - 8 * direction, y, direction) if outside
                     else line(f"interval {tone}", (at, y - 5), (at, y + 5)))  # fmt: skip
    return [*marks, diamond(f"fill {tone}", x, y, caption)]


def _gate_words(gate: GateOutcome, layout: Layout, top: float) -> list[Mark]:
    """Its name, change and verdict: on either side of the plot, or in a line above its interval."""
    row, name = gate_row(gate), cut(gate_name(gate), 25)
    look, verdict = f"figure {TONES.get(gate.verdict, 'warn')}-text", loudly(gate.verdict)
    if layout.words:
        y = top + layout.words - 4
        return [label("name", 4, y, name), label("figure", layout.width - 100, y, row.change, "end"),
                label(look, layout.width - 4, y, verdict, "end")]  # fmt: skip
    y, right = top + layout.row / 2, layout.right + 14
    return [label("name", layout.left - 12, y + 4, name, "end"), label("figure", right, y - 2, row.change),
            label("note", right, y + 12, row.interval),
            label(look, layout.width - 4, y + 4, verdict, "end")]  # fmt: skip
