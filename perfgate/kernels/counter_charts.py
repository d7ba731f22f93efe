"""Charts of what ncu counted: kernels against the roofs of their GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from perfgate.counters.launch_table import grouped
from perfgate.counters.roofline import KernelRoof, kernel_roof
from perfgate.judge.evidence import Evidence
from perfgate.kernels.outcomes import CounterRow, CountersOutcome
from perfgate.metrics.sides import SIDES, Side
from perfgate.report.chart import WIDTH, Chart, Mark, Scale, dots, label, line, rect
from perfgate.trace.decode_step import KernelKey
from perfgate.trace.families import short_name

LEFT, RIGHT = 70.0, WIDTH - 30.0
LEGEND = (("dots base large", "base"), ("dots head large", "head"))
MOST_KERNELS = 200
"""Drawn on each side, those that come first in a step."""
LEAST = 1e-6
"""Of a roof: what is lower is drawn there."""


def roof_plane(counted: CountersOutcome) -> Chart | None:
    """Each counted kernel by how busy it kept device memory and the SMs, a hollow dot for the base."""
    points: list[tuple[CounterRow, Side, float, float]] = [
        (row, side, values["sm_throughput"], values["dram_throughput"])
        for row in counted.rows[:MOST_KERNELS]
        for side, values in zip(SIDES, (row.base, row.head), strict=True)
        if {"sm_throughput", "dram_throughput"} <= values.keys()
    ]
    if not points:
        return None
    x, y = Scale(0, 100, LEFT, RIGHT), Scale(0, 100, 300, 20)
    marks = [rect("zone-warn", x(0), y(60), (x(60) - x(0), y(0) - y(60)))]
    for tick in range(0, 101, 20):
        marks += [line("grid", (x(tick), y(0)), (x(tick), y(100))), line("grid", (x(0), y(tick)), (x(100), y(tick))),
                  label("tick", x(tick), 316, f"{tick} %", "middle"),
                  label("tick", x(0) - 8, y(tick) + 4, f"{tick} %", "end")]  # fmt: skip
    for row, side, sm, dram in points:
        told = (
            f"{side}, {row.role}, {row.kernel}: device memory {dram:.0f} %, SMs {sm:.0f} %, {row.bound.get(side, '')}"
        )
        marks.append(dots(f"{side} large", [(x(sm), y(dram))], told, row.kernel))
    marks += [label("axis-title", (x(0) + x(100)) / 2, 336, "of what the SMs can do", "middle"),
              label("note", x(1), y(94), "bound by device memory"),
              label("note", x(99), y(4), "bound by compute", "end"),
              label("note", x(1), y(4), "bound by latency")]  # fmt: skip
    table = [("kernel", "role", "side", "device memory", "SMs", "bound")]
    table += [(row.kernel, row.role, side, f"{dram:.0f} %", f"{sm:.0f} %", row.bound.get(side, "-"))
              for row, side, sm, dram in points]  # fmt: skip
    seen = f"{len(points)} kernels by their shares of both roofs; below 60 % of both a kernel waits."
    return Chart("Counted kernels against both roofs", seen, 344, tuple(marks), LEGEND, table)


def roofline(evidence: Evidence) -> Chart | None:
    """Kernels with counted operations by their arithmetic intensity, both as multiples of where their roofs meet.

    Roofs differ with the precision and the clocks of a kernel; against its own ridge each is below the same two lines.
    """
    points = list(_intense(evidence))
    if not points:
        return None
    low = math.floor(math.log10(min(min(x, y) for *_, x, y in points)))
    x, y = Scale(min(low, -2), 1, LEFT, RIGHT), Scale(min(low, -2), 0, 300, 30)
    marks = [
        *_decades(x, y),
        line("roof", (x(x.low), y(x.low)), (x(0), y(0))),
        line("roof", (x(0), y(0)), (x(1), y(0))),
    ]
    table = [("kernel", "role", "side", "operations a byte", "of the ridge", "of the tensor cores", "bound")]
    for side, key, roof, intensity, share in points:
        name = short_name(key.name)
        told = f"{side}, {key.role}, {name}: {roof.intensity or 0:.3g} operations a byte, {share * 100:.2g} % of the "
        told += f"tensor cores' rate, bound by {roof.bound}"
        marks.append(dots(f"{side} large", [(x(math.log10(intensity)), y(math.log10(share)))], told, name))
        table.append((name, key.role, side, f"{roof.intensity or 0:.3g}", f"{intensity:.2g}", f"{share * 100:.2g} %",
                      roof.bound))  # fmt: skip
    below = sum(intensity < 1 for *_, intensity, _ in points)
    seen = f"{len(points)} kernels with operations of the tensor cores; {below} of them are left of the ridge, where "
    seen += "device memory limits them."
    return Chart("Roofline of the counted kernels", seen, 352, tuple(marks), LEGEND, table)


def _intense(evidence: Evidence) -> Iterator[tuple[Side, KernelKey, KernelRoof, float, float]]:
    """Side, kernel, roof, intensity by the ridge and share of the tensor cores' rate, where all were counted."""
    for side, trials in evidence.trials("counted").items():
        launches = [(one.key, one) for trial in trials if trial.counted for one in trial.counted.launches]
        for key, group in list(grouped(launches).items())[:MOST_KERNELS]:
            roof = kernel_roof(group.median)
            if roof.intensity and roof.ridge and roof.compute_share:
                yield side, key, roof, max(roof.intensity / roof.ridge, LEAST), max(roof.compute_share, LEAST)


def _decades(x: Scale, y: Scale) -> Sequence[Mark]:
    marks: list[Mark] = []
    for power in range(round(x.low), round(x.high) + 1):
        marks += [line("grid", (x(power), y(y.low)), (x(power), y(0))),
                  label("tick", x(power), 316, f"{10.0**power:g}\u00d7", "middle")]  # fmt: skip
        if power <= 0:
            marks += [line("grid", (LEFT, y(power)), (RIGHT, y(power))),
                      label("tick", LEFT - 8, y(power) + 4, f"{100 * 10.0**power:g} %", "end")]  # fmt: skip
    words = "operations a byte of device memory, in multiples of the ridge"
    return [*marks, label("axis-title", (LEFT + RIGHT) / 2, 338, words, "middle"),
            label("note", LEFT, 18, "of the tensor cores' rate"),
            label("note", x(0), 18, "the roofs meet", "middle")]  # fmt: skip
