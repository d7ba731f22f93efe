"""Where the difference of two builds' steps comes from, part by part."""

from __future__ import annotations

import math

from perfgate.report.chart import WIDTH, Chart, Mark, Scale, label, line, rect
from perfgate.report.document import cut
from perfgate.report.outcome_charts import LEFT as NAMES
from perfgate.report.outcome_charts import RIGHT as FIGURES
from perfgate.trace.attribution import Attribution
from perfgate.units import signed_us

SHOWN_S = 0.5e-6
SHOWN_SHARE = 0.01
"""A smaller part of a difference, by itself or beside the largest one, has no bar."""
LARGE_S = 0.01
"""From here on milliseconds are read more easily."""
MOST_BARS = 10


def waterfall(change: Attribution) -> Chart:
    """From the base's step to the head's: what took more and what took less, one below the other."""
    largest = max((abs(part.difference_s) for part in change.parts), default=0.0)
    shown = [part for part in change.parts if abs(part.difference_s) >= max(SHOWN_S, SHOWN_SHARE * largest)]
    shown = sorted(shown, key=lambda part: -abs(part.difference_s))[:MOST_BARS]
    rest = change.difference_s - math.fsum(part.difference_s for part in shown)
    steps = [(part.name, part.difference_s) for part in shown]
    steps += [("all others", rest)] if abs(rest) >= SHOWN_S else []
    ends, at = [0.0], 0.0
    for _, difference_s in steps:
        at += difference_s
        ends.append(at)
    scale = Scale.around([*ends, 0.0, change.difference_s], NAMES + 40, FIGURES + 90)
    row, top, large = 26.0, 8.0, scale.high - scale.low >= LARGE_S
    bottom = top + row * (len(steps) + 2)
    marks: list[Mark] = []
    for tick in scale.ticks():
        text = f"{tick * (1e3 if large else 1e6):+.4g}"
        marks += [line("grid", (scale(tick), top), (scale(tick), bottom)),
                  label("tick", scale(tick), bottom + 15, text, "middle")]  # fmt: skip
    zero = scale(0.0)
    bars = [("base", 0.0, 0.0, us(change.base_s).removeprefix("+"))]
    bars += [(name, ends[n], ends[n + 1], us(ds)) for n, (name, ds) in enumerate(steps)]
    bars += [("head", 0.0, change.difference_s, us(change.head_s).removeprefix("+"))]
    for n, (name, begin, end, text) in enumerate(bars):
        y, whole = top + row * n, n in (0, len(bars) - 1)
        tone = "total" if whole else "bad" if end > begin else "good"
        x, width = scale(min(begin, end)), abs(scale(end) - scale(begin))
        marks += [rect(f"bar fill {tone}", x, y + 5, (width, row - 10), f"{name}: {text}", "" if whole else name),
                  label("name", NAMES + 28, y + row / 2 + 4, cut(name, 32), "end"),
                  label("figure", WIDTH - 4, y + row / 2 + 4, text, "end")]  # fmt: skip
        if n < len(bars) - 1:
            marks.append(line("link", (scale(end), y + row - 5), (scale(end), y + row + 5)))
    marks += [line("axis", (zero, top), (zero, bottom)),
              label("axis-title", (NAMES + FIGURES + 130) / 2, bottom + 33,
                    f"{'milli' if large else 'micro'}seconds beside the base's traced step", "middle")]  # fmt: skip
    table = [("part", "base us", "head us", "difference us")]
    table += [(p.name, f"{p.base_s * 1e6:.1f}", f"{p.head_s * 1e6:.1f}", f"{p.difference_s * 1e6:+.1f}")
              for p in change.parts]  # fmt: skip
    summary = ", ".join(f"{name} {us(ds)}" for name, ds in sorted(steps, key=lambda step: -abs(step[1]))[:4])
    seen = (
        f"A traced decode step changed by {us(change.difference_s)}: {summary or 'no part as much as a microsecond'}."
    )
    return Chart("Where the difference comes from", seen, bottom + 40, tuple(marks), (("fill bad", "longer"),
                 ("fill good", "shorter")), table)  # fmt: skip


def us(seconds: float) -> str:
    """A difference in microseconds with its sign; a large one in milliseconds."""
    return f"{seconds * 1e3:+.2f} ms" if abs(seconds) >= LARGE_S else signed_us(seconds, 1)
