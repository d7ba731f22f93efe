"""An SVG of blocked, passed and undecided runs against the true slowdown: panels side by side, no plotting library.

The picture brings its own background, light or dark as the reader's system asks, so it is legible on either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

PANEL_WIDTH, PANEL_HEIGHT = 440, 250
LEFT, RIGHT, TOP, BOTTOM = 58, 18, 46, 46
LEGEND = 40
COLUMNS = 2
LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
TICKS = 6
"""About how many ticks the horizontal axis of a panel has."""

STYLE = """
  .back { fill: #ffffff } .ink { fill: #1f2328 } .soft { fill: #59636e }
  .grid { stroke: #d1d9e0 } .axis { stroke: #59636e } .margin { stroke: #59636e; stroke-dasharray: 2 3 }
  .blocked { stroke: #b3261e } .passed { stroke: #0550ae } .undecided { stroke: #6e7781 }
  .dot { fill: #b3261e }
  path { fill: none; stroke-width: 2 } .undecided { stroke-dasharray: 5 4; stroke-width: 1.5 }
  text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif }
  .title { font-weight: 600; font-size: 13px }
  @media (prefers-color-scheme: dark) {
    .back { fill: #0d1117 } .ink { fill: #e6edf3 } .soft { fill: #9198a1 }
    .grid { stroke: #2f353d } .axis { stroke: #9198a1 } .margin { stroke: #9198a1 }
    .blocked { stroke: #ff8577 } .passed { stroke: #79c0ff } .undecided { stroke: #9198a1 }
    .dot { fill: #ff8577 }
  }
"""


@dataclass(frozen=True)
class Point:
    """Shares of runs at one true slowdown (a ratio minus one); what is left is undecided."""

    slowdown: float
    blocked: float
    passed: float


@dataclass(frozen=True)
class Panel:
    """One plot: its title, the margins of the gate that the slowdown hits, and the curve's points."""

    title: str
    ignorable: float
    must_catch: float
    points: tuple[Point, ...]


def draw(panels: Sequence[Panel]) -> str:
    """The picture of all panels, two in a row, under one legend."""
    width = COLUMNS * PANEL_WIDTH
    height = LEGEND + math.ceil(len(panels) / COLUMNS) * PANEL_HEIGHT
    body = [_panel(panel, n) for n, panel in enumerate(panels)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
            "<title>Share of runs blocked, passed and undecided against the true slowdown</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="back" width="{width}" height="{height}" rx="6"/>',
            _legend(),
            *body,
            "</svg>\n",
        ]
    )


def _legend() -> str:
    parts = []
    for x, name, words in (
        (LEFT, "blocked", "blocked (regressed)"),
        (LEFT + 190, "passed", "passed"),
        (LEFT + 300, "undecided", "inconclusive after 12 pairs"),
        (LEFT + 530, "margin", "ignorable, must_catch"),
    ):
        parts.append(f'<path class="{name}" d="M{x} 22h26"/><text class="ink" x="{x + 34}" y="26">{words}</text>')
        if name == "blocked":
            parts.append(f'<circle class="dot" cx="{x + 13}" cy="22" r="3"/>')
    return "\n".join(parts)


def _panel(panel: Panel, n: int) -> str:
    row, column = divmod(n, COLUMNS)
    inner_width, inner_height = PANEL_WIDTH - LEFT - RIGHT, PANEL_HEIGHT - TOP - BOTTOM
    largest = panel.points[-1].slowdown

    def x(slowdown: float) -> str:
        return f"{LEFT + inner_width * slowdown / largest:.1f}"

    def y(share: float) -> str:
        return f"{TOP + inner_height * (1 - share):.1f}"

    def line(name: str, shares: Sequence[float]) -> str:
        corners = " ".join(f"{x(p.slowdown)},{y(s)}" for p, s in zip(panel.points, shares, strict=True))
        return f'<path class="{name}" d="M{corners}"/>'

    blocked, passed = [p.blocked for p in panel.points], [p.passed for p in panel.points]
    parts = [f'<text class="ink title" x="{LEFT}" y="18">{panel.title}</text>']
    for share in LEVELS:
        parts.append(f'<path class="grid" style="stroke-width:1" d="M{LEFT} {y(share)}h{inner_width}"/>')
        parts.append(
            f'<text class="soft" x="{LEFT - 8}" y="{float(y(share)) + 4:.1f}" text-anchor="end">{share:.0%}</text>'
        )
    for margin in (panel.ignorable, panel.must_catch):
        parts.append(f'<path class="margin" style="stroke-width:1" d="M{x(margin)} {TOP}v{inner_height}"/>')
        parts.append(
            f'<text class="soft" x="{x(margin)}" y="{TOP - 7}" text-anchor="middle">{margin * 100:.4g} %</text>'
        )
    for tick in ticks(largest):
        at = f'x="{x(tick)}" y="{TOP + inner_height + 17}"'
        parts.append(f'<text class="soft" {at} text-anchor="middle">{tick * 100:.4g}</text>')
    middle = LEFT + inner_width / 2
    parts += [
        f'<path class="axis" style="stroke-width:1" d="M{LEFT} {TOP}v{inner_height}h{inner_width}"/>',
        f'<text class="soft" x="{middle:g}" y="{PANEL_HEIGHT - 10}" text-anchor="middle">true slowdown, %</text>',
        f'<g transform="translate(16 {TOP + inner_height / 2:g}) rotate(-90)">',
        '<text class="soft" text-anchor="middle">share of runs</text></g>',
        line("undecided", [1 - b - p for b, p in zip(blocked, passed, strict=True)]),
        line("passed", passed),
        line("blocked", blocked),
        *(f'<circle class="dot" cx="{x(p.slowdown)}" cy="{y(p.blocked)}" r="2.4"/>' for p in panel.points[::2]),
    ]
    place = f"translate({column * PANEL_WIDTH} {LEGEND + row * PANEL_HEIGHT})"
    return f'<g transform="{place}">\n' + "\n".join(parts) + "\n</g>"


def ticks(largest: float) -> list[float]:
    """Round numbers from 0 to ``largest``: steps of 1, 2 or 5 times a power of ten."""
    rough = largest / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(f * power for f in (1, 2, 5, 10) if f * power >= rough * 0.999)
    return [n * step for n in range(int(largest / step * 1.000001) + 1)]
