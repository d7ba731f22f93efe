"""What a matrix measured as curves: metrics against batch, lengths or GPUs, beside what would be ideal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfgate.judge.outcome import CellOutcome, GateOutcome, MetricOutcome, Outcome
from perfgate.report.chart import WIDTH, Chart, Mark, Rows, Scale, dots, label, line, polyline
from perfgate.report.document import Section
from perfgate.units import format_value, percent, signed_percent

SHOWN = ("itl_median", "ttft_median", "output_throughput")  # metrics of curves, where they were measured
SPLIT = "tensor_parallel_size"
"""With so many times the GPUs in each layer an ideal engine takes so much less time for a step."""
GPUS = (SPLIT, "pipeline_parallel_size", "data_parallel_size")
"""With so many times the GPUs an ideal engine gives so many times the tokens. Stages and replicas shorten no step: each
token passes all layers, one after the other."""
BATCH = "batch"  # with a larger batch an ideal engine's step takes no longer, so it gives so many times the tokens
HEADINGS = ("metric", "base", "head", "change", "verdict", "of ideal, base", "of ideal, head")
GIVE_WAY = (6, 5, 2)
LEFT, RIGHT, HEIGHT = 90.0, WIDTH - 20.0, 220.0
LEGEND = (("curve base", "base"), ("curve head", "head"))
_MATRIX = re.compile(r"(?P<scenario>[^\[]*)\[(?P<point>.*)\]", re.DOTALL)
_KEY = re.compile(r"(\w+)=")


@dataclass(frozen=True)
class Curve:
    """Cells of a scenario that differ in one number of its matrix."""

    scenario: str  # its name, with its head's where there are several
    key: str  # what differs
    fixed: str  # the other keys with their values, in words; empty where there are none
    points: tuple[tuple[float, CellOutcome], ...]  # values of the key in ascending order, each with its cell

    @property
    def title(self) -> str:
        """What it shows, in words."""
        return f"{self.scenario} against {self.key}" + (f" at {self.fixed}" if self.fixed else "")

    def of(self, metric: str) -> list[tuple[float, MetricOutcome]]:
        """A metric along the curve, where it was measured."""
        rows = [(value, row) for value, cell in self.points for row in (*cell.gates, *cell.ungated)]
        points: dict[float, MetricOutcome] = {}
        for value, row in rows:
            if row.metric == metric and (row.base is not None or row.head is not None):
                points.setdefault(value, row)
        return [*points.items()]


def curves(outcome: Outcome) -> list[Curve]:
    """The curves of an outcome: for each number of a matrix one at each combination of the other values."""
    groups: dict[tuple[str, str, str], dict[float, CellOutcome]] = {}
    for cell in outcome.cells:
        name = cell.name.removeprefix(f"{cell.head}: ") if cell.head else cell.name
        scenario, point = _point(name)
        owner = f"{cell.head}: {scenario}" if cell.head else scenario
        for key, value in point.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                rest = ", ".join(f"{other}={json.dumps(setting)}" for other, setting in point.items() if other != key)
                groups.setdefault((owner, key, rest), {}).setdefault(float(value), cell)
    return [
        Curve(owner, key, rest, tuple(sorted(points.items(), key=lambda pair: pair[0])))
        for (owner, key, rest), points in groups.items()
        if len(points) > 1
    ]


def _point(name: str) -> tuple[str, dict[str, object]]:
    """A cell's scenario and its values of the matrix, by its name; none where it has no matrix."""
    match = _MATRIX.fullmatch(name)
    point: dict[str, object] = {}
    text, at = (match["point"], 0) if match else ("", 0)
    while key := _KEY.match(text, at):
        try:
            point[key[1]], at = json.JSONDecoder().raw_decode(text, key.end())
        except ValueError:
            return name, {}
        at += 1  # the comma
    return (match["scenario"], point) if match and point else (name, {})


def curve_sections(outcome: Outcome, *, charts: bool = False) -> Iterator[Section]:
    """A table a curve, or on pages a chart a metric; nothing where fewer than two of its cells were measured."""
    for curve in curves(outcome):
        by_metric = {name: rows for name in SHOWN if len(rows := curve.of(name)) > 1}
        if not by_metric:
            continue
        title, table = (
            f"Curve: {curve.title}",
            [row for name, rows in by_metric.items() for row in _rows(curve, name, rows)],
        )
        if not charts:
            yield Section(title=title, rows=[(curve.key, *HEADINGS), *table], give_way=GIVE_WAY, importance=2)
            continue
        yield Section(title=title)
        for name, rows in by_metric.items():
            yield Section(lead=name, chart=_chart(curve, name, rows))


def _rows(curve: Curve, name: str, rows: Sequence[tuple[float, MetricOutcome]]) -> Iterator[tuple[str, ...]]:
    for value, row in rows:
        sides = ["-" if reading is None else format_value(reading, row.unit) for reading in (row.base, row.head)]
        change = "-" if row.change is None else signed_percent(row.change)
        ideal = ["-" if share is None else percent(share) for share in efficiency(curve.key, rows, (value, row))]
        yield f"{value:g}", name, *sides, change, row.verdict if isinstance(row, GateOutcome) else "-", *ideal


def efficiency(
    key: str, rows: Sequence[tuple[float, MetricOutcome]], point: tuple[float, MetricOutcome]
) -> tuple[float | None, float | None]:
    """What a point reaches of what an ideal engine would, scaled from the curve's first point; base and head.

    ``None`` where nothing says what would be ideal: an engine has to work longer for longer requests.
    """
    if key != BATCH and key not in GPUS:
        return None, None
    (first, start), (value, row) = rows[0], point
    more = value / first if first > 0 else 0.0
    latency = row.better == "lower"
    if latency and key == BATCH and row.metric != "itl_median":
        return None, None  # a larger batch has a longer prefill
    if latency and key in GPUS and key != SPLIT:
        return None, None
    gain = more if key in GPUS or not latency else 1.0
    shares: list[float | None] = []
    for before, now in ((start.base, row.base), (start.head, row.head)):
        if not before or not now or not gain:
            shares.append(None)
        else:
            shares.append((before / now if latency else now / before) / gain)
    return shares[0], shares[1]


def _chart(curve: Curve, name: str, rows: Sequence[tuple[float, MetricOutcome]]) -> Chart:
    """A metric along the curve, base and head; values are as far from each other as their order says."""
    unit = rows[0][1].unit
    readings = [reading for _, row in rows for reading in (row.base, row.head) if reading is not None]
    x, y = Scale(-0.3, len(rows) - 0.7, LEFT, RIGHT), Scale.around([0.0, *readings], HEIGHT - 30, 12)
    marks: list[Mark] = []
    for tick in y.ticks(4):
        marks += [line("grid", (LEFT, y(tick)), (RIGHT, y(tick))),
                  label("tick", LEFT - 6, y(tick) + 4, format_value(tick, unit), "end")]  # fmt: skip
    for side in ("base", "head"):
        points = [(x(n), y(getattr(row, side))) for n, (_, row) in enumerate(rows) if getattr(row, side) is not None]
        if points:
            caption = f"{name} of {side}"
            marks += [polyline(side, points, caption), dots(f"{side} large", points, caption)]
    marks += [label("tick", x(n), HEIGHT - 12, f"{value:g}", "middle") for n, (value, _) in enumerate(rows)]
    marks.append(label("axis-title", (LEFT + RIGHT) / 2, HEIGHT + 6, curve.key, "middle"))
    table: Rows = [(curve.key, *HEADINGS), *_rows(curve, name, rows)]
    seen = f"{name} at {curve.key} {rows[0][0]:g} to {rows[-1][0]:g}."
    return Chart(f"{name}: {curve.title}", seen, HEIGHT + 14, tuple(marks), LEGEND, table)
