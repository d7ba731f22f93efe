"""A chart as data: marks in its own coordinates, and its figures as a table. How it is drawn is the page's business."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

WIDTH = 760  # of a chart on a desk, in its own units; a page scales it

Rows = Sequence[tuple[str, ...]]
Anchor = Literal["start", "middle", "end"]
Shape = Literal["rect", "line", "path", "text"]


@dataclass(frozen=True)
class Mark:
    """One thing that is drawn."""

    shape: Shape  # `at` is x, y, width, height of a `rect`, two points of a `line` and one of a `text`
    look: str  # what it is, in words of the page's style sheet
    at: tuple[float, ...] = ()  # coordinates
    text: str = ""  # what a `text` says; of all others what a pointer resting on them is told
    anchor: Anchor = "start"  # which end of a `text` is at its point
    path: str = ""  # an SVG path made of figures alone
    about: str = ""  # the kernel or the part of a step that it shows: the rows and marks of the same are shown together


@dataclass(frozen=True)
class Chart:
    """A chart with what is needed to read it without seeing it."""

    title: str  # what is shown
    description: str  # what a reader would see in it, in a sentence
    height: float  # in the chart's own units, like :data:`WIDTH`
    marks: tuple[Mark, ...]  # in the order they are drawn
    legend: tuple[tuple[str, str], ...] = ()  # looks and their meaning
    rows: Rows = ()  # the same figures as a table, its heading first
    # Where any two rows may be compared by their second column, a ratio: its standard deviation, as a logarithm
    spread: float = 0.0
    width: float = WIDTH  # in its own units
    # The same drawn for a telephone, where that needs another one; its figures are in this one's table
    narrow: Chart | None = None


def rect(look: str, x: float, y: float, size: tuple[float, float], text: str = "", about: str = "") -> Mark:
    """A rectangle from its upper left corner; nothing is narrower than a hair."""
    return Mark("rect", look, (x, y, max(size[0], 0.5), size[1]), text, about=about)


def line(look: str, start: tuple[float, float], end: tuple[float, float], text: str = "") -> Mark:
    """A straight line."""
    return Mark("line", look, (*start, *end), text)


def label(look: str, x: float, y: float, text: str, anchor: Anchor = "start") -> Mark:
    """Words at a point of their baseline."""
    return Mark("text", look, (x, y), text, anchor)


def dots(look: str, points: Sequence[tuple[float, float]], text: str = "", about: str = "") -> Mark:
    """Round dots of one look, drawn as lines of no length with round caps: a few bytes each."""
    return Mark("path", f"dots {look}", text=text, about=about, path="".join(f"M{x:.1f} {y:.1f}h0" for x, y in points))


def polyline(look: str, points: Sequence[tuple[float, float]], text: str = "") -> Mark:
    """A line through points."""
    return Mark("path", f"curve {look}", text=text, path="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points))


def diamond(look: str, x: float, y: float, text: str = "") -> Mark:
    """An estimate."""
    return Mark("path", look, text=text, path=f"M{x - 6:.1f} {y:.1f}l6 -6 6 6 -6 6z")


def arrow(look: str, x: float, y: float, direction: int) -> Mark:
    """Where an interval goes on beyond the chart: to the left with -1, to the right with 1."""
    return Mark("path", look, path=f"M{x:.1f} {y - 5:.1f}l{8 * direction} 5 {-8 * direction} 5z")


@dataclass(frozen=True)
class Scale:
    """Values to coordinates, linearly."""

    low: float  # the value at `begin`
    high: float  # the value at `end`; more than `low`
    begin: float  # a coordinate
    end: float  # the other one

    def __call__(self, value: float) -> float:
        """The coordinate of a value; of one that is outside the one at that end."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values within the scale: two at least, and at most so many unless these are fewer than two."""
        rough = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(rough))
        steps = [step * power for step in (10, 5, 2, 1, 0.5, 0.2)]
        wide = next(n for n, step in reversed([*enumerate(steps)]) if step >= rough * (1 - 1e-9))
        for step in steps[wide:]:
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            if last > first:
                break
        return [n * step for n in range(first, last + 1)]

    @classmethod
    def around(cls, values: Sequence[float], begin: float, end: float, *, share: float = 0.08) -> Scale:
        """A scale that holds values with some room on either side."""
        low, high = min(values), max(values)
        room = (high - low) * share or abs(high) * 0.01 or 1.0
        return cls(low - room, high + room, begin, end)
