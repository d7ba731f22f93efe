"""Charts of decode steps, part by part and layer by layer, and of counted kernels against the roofs of their GPU."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, zip_longest

from perfgate.counters.launch_table import grouped
from perfgate.counters.roofline import KernelRoof, kernel_roof
from perfgate.judge.evidence import Evidence
from perfgate.kernels.outcomes import CounterRow, CountersOutcome
from perfgate.metrics.sides import SIDES, Side
from perfgate.report.chart import WIDTH, Chart, Mark, Scale, dots, label, line, rect
from perfgate.trace.attribution import Attribution, Part
from perfgate.trace.decode_step import DecodeSteps, KernelKey
from perfgate.trace.families import short_name

LEFT, RIGHT = 52.0, WIDTH - 28.0
MOST_PARTS = 7
"""Parts of a step with a colour of their own; the rest are one."""
LARGE_US = 10_000
"""A scale that is so long has milliseconds."""
WIDE = 46.0
"""Bars at least so wide carry their name."""
LETTER = 9.0
"""No letter of a name in a bar is wider on average."""
THIN = 0.25
"""A bar that is narrower is not seen: it is drawn as part of its neighbour."""
OF_ITS_OWN = 12.0
"""A kernel that is so wide in a whole step is a bar of its own there, which tells its name."""
MOST_LAYERS = 200
MOST_KERNELS = 400
"""Of a layer; more have no chart of their own."""
KERNELS_TOP, LAYERS_TOP = 20.0, 0.0
REST, IDLE = "part part-rest", "part part-idle"

Timed = tuple[str, str, float]
"""Role, name and mean microseconds of a kernel."""


def part_looks(change: Attribution) -> dict[str, str]:
    """A colour for each of the largest roles, by the longer side; others share one, idle time has its own."""
    kernels = sorted((p for p in change.parts if p.kind == "kernels"), key=lambda p: -max(p.base_s, p.head_s))
    looks = {part.name: f"part part-{n}" for n, part in enumerate(kernels[:MOST_PARTS])}
    looks |= {part.name: REST for part in kernels[MOST_PARTS:]}
    looks |= {part.name: IDLE for part in change.parts if part.kind == "idle"}
    return looks | {part.name: "part part-copy" for part in change.parts if part.kind == "busy"}


def step_bars(change: Attribution) -> Chart:
    """A traced step of each side as one bar, its parts in one order and on one scale, the base above the head."""
    looks = part_looks(change)
    order = {"kernels": 0, "busy": 1, "idle": 2}
    parts = sorted(change.parts, key=lambda p: (order[p.kind], -max(p.base_s, p.head_s)))
    longest = max(math.fsum(max(getattr(p, f"{side}_s"), 0.0) for p in parts) for side in SIDES)
    scale = Scale(0.0, max(longest, 1e-9), LEFT, RIGHT)
    marks: list[Mark] = []
    for n, side in enumerate(SIDES):
        y = 12 + 62.0 * n
        marks.append(label("name", 44, y + 26, side, "end"))
        marks += _stacked(parts, side, scale, y, looks)
    marks += _axis(Scale(0.0, scale.high * 1e6, LEFT, RIGHT), 128)
    legend = [(looks[p.name], p.name) for p in parts if looks[p.name] not in (REST, IDLE)]
    legend += [(look, words) for look, words in ((REST, "other kernels"), (IDLE, "idle")) if look in looks.values()]
    table = [("part", "base us", "share", "head us", "share")]
    table += [(p.name, f"{p.base_s * 1e6:.1f}", _share(p.base_s, change.base_s), f"{p.head_s * 1e6:.1f}",
               _share(p.head_s, change.head_s)) for p in parts]  # fmt: skip
    seen = f"Base {change.base_s * 1e6:.1f} us, head {change.head_s * 1e6:.1f} us"
    if parts:
        seen += (
            f"; the largest part is {parts[0].name} with {_share(parts[0].base_s, change.base_s)} of the base's step"
        )
    return Chart("A decode step, part by part", f"{seen}.", 156, tuple(marks), tuple(dict.fromkeys(legend)), table)


def _stacked(parts: Sequence[Part], side: str, scale: Scale, y: float, looks: Mapping[str, str]) -> Iterator[Mark]:
    at = 0.0
    for part in parts:
        seconds = max(getattr(part, f"{side}_s"), 0.0)
        x, width = scale(at), scale(at + seconds) - scale(at)
        if width >= THIN:
            yield rect(looks[part.name], x, y, (width, 44), f"{side}, {part.name}: {seconds * 1e6:.1f} us", part.name)
        if width >= max(WIDE, LETTER * len(part.name) + 12):
            yield label(_inside(looks[part.name]), x + 6, y + 26, part.name)
        at += seconds


def _inside(look: str) -> str:
    """How words on a bar look: dark on a pale one."""
    return "inside plain" if look in (REST, IDLE) else "inside"


def _axis(scale: Scale, y: float) -> Iterator[Mark]:
    """Ticks of a scale in microseconds below its bars; of a long one in milliseconds."""
    for tick in scale.ticks(8):
        text = f"{tick / 1e3:.4g} ms" if scale.high >= LARGE_US else f"{tick:.4g} us"
        yield label("tick", scale(tick), y + 20, text, "middle")
        yield line("axis", (scale(tick), y), (scale(tick), y + 5))


def _share(part_s: float, whole_s: float) -> str:
    return f"{part_s / whole_s * 100:.1f} %" if whole_s else "-"


def layers_chart(evidence: Evidence, change: Attribution) -> Chart | None:
    """The most frequent step of each side from its first kernel to its last: layers, and roles below them."""
    steps = _first_traced(evidence)
    if steps is None:
        return None
    kernels = {side: _timed(decode) for side, decode in steps.items()}
    layers = {side: _layers(decode, kernels[side]) for side, decode in steps.items()}
    idle = {side: max(_step_us(decode) - _sum(kernels[side]), 0.0) for side, decode in steps.items()}
    longest = max(_sum(kernels[side]) + idle[side] for side in SIDES)
    if longest <= 0:
        return None
    looks, scale = part_looks(change), Scale(0.0, longest, LEFT, RIGHT)
    marks: list[Mark] = []
    for n, side in enumerate(SIDES):
        y = 12 + 76.0 * n
        marks.append(label("name", 44, y + 36, side, "end"))
        marks += _layer_row(layers[side], side, scale, y + LAYERS_TOP)
        marks += _role_row(kernels[side], side, scale, y + KERNELS_TOP, looks)
        if (width := scale(_sum(kernels[side]) + idle[side]) - (x := scale(_sum(kernels[side])))) >= THIN:
            marks.append(rect(IDLE, x, y + KERNELS_TOP, (width, 40), f"{side}, idle: {idle[side]:.1f} us"))
    marks += _axis(scale, 156)
    used = dict.fromkeys(_look(role, looks)[0] for sequence in kernels.values() for role, *_ in sequence)
    named = {
        look: next((name for name, colour in looks.items() if colour == look), "") for look in used if look != REST
    }
    legend = [*named.items(), *([(REST, "other kernels")] if REST in used else []), (IDLE, "idle")]
    table = [("part of the step", "base us", "head us", "difference us"), *_layer_rows(layers, idle)]
    counts = [f"{side} {len(kernels[side])} kernels, {_sum(kernels[side]):.1f} us of them and {idle[side]:.1f} us idle"
              for side in SIDES]  # fmt: skip
    seen = f"Each kernel as long as it is on average; {'; '.join(counts)}."
    return Chart("A decode step, layer by layer", seen, 184, tuple(marks), tuple(legend), table)


def _first_traced(evidence: Evidence) -> dict[Side, DecodeSteps] | None:
    """The first traced trial's steps of each side; ``None`` unless both have one."""
    by_side = {side: next((t.decode for t in trials if t.decode and t.decode.patterns), None)
               for side, trials in evidence.trials("traced").items()}  # fmt: skip
    traced = {side: steps for side, steps in by_side.items() if steps is not None}
    return traced if len(traced) == len(SIDES) else None


def _timed(steps: DecodeSteps) -> list[Timed]:
    """The kernels of the most frequent step, in order."""
    means = [ns / max(often, 1) / 1e3 for ns, often in zip(steps.key_ns, steps.key_launches, strict=True)]
    return [(steps.keys[key].role, steps.keys[key].name, means[key]) for key in steps.patterns[0].kernels]


def _sum(kernels: Sequence[Timed]) -> float:
    return math.fsum(us for *_, us in kernels)


def _step_us(steps: DecodeSteps) -> float:
    lengths = [ns for ns in steps.step_ns if ns is not None]
    return statistics.median(lengths) / 1e3 if lengths else 0.0


def _layers(steps: DecodeSteps, kernels: Sequence[Timed]) -> list[tuple[str, float]]:
    """Stretches of one layer, and those outside of layers, with their microseconds; none where no layer is known."""
    if not 1 < len(steps.patterns[0].layer_begins) <= MOST_LAYERS:
        return []
    of = zip(steps.patterns[0].layers(), kernels, strict=True)
    stretches = [
        (layer, _sum([kernel for _, kernel in group])) for layer, group in groupby(of, key=lambda pair: pair[0])
    ]
    names = ("before the layers", "behind the layers")
    return [(names[n > 0] if layer is None else f"layer {layer}", us) for n, (layer, us) in enumerate(stretches)]


def _layer_row(layers: Sequence[tuple[str, float]], side: str, scale: Scale, y: float) -> Iterator[Mark]:
    at = 0.0
    longest = max((us for name, us in layers if name.startswith("layer ")), default=0.0)
    every = next((n for n in (1, 2, 5, 10, 20, 50) if n * (scale(longest) - scale(0.0)) >= 3 * LETTER), 100)
    for name, us in layers:
        x, width = scale(at), scale(at + us) - scale(at)
        number = name.removeprefix("layer ")
        look = "outside" if number == name else "even" if int(number) % 2 == 0 else "odd"
        yield rect(f"layer {look}", x, y, (width, 18), f"{side}, {name}: {us:.1f} us")
        if look != "outside" and int(number) % every == 0:
            yield label("layer-number", x + width / 2, y + 13, number, "middle")
        at += us


def _role_row(kernels: Sequence[Timed], side: str, scale: Scale, y: float, looks: Mapping[str, str]) -> Iterator[Mark]:
    """A bar for each wide kernel and a path for each colour: a rectangle for every kernel would be too many."""
    paths: dict[str, list[str]] = {}
    sums: dict[str, float] = {}
    names: dict[str, str] = {}
    at, drawn = 0.0, scale(0.0)

    def alone(kernel: Timed) -> str:
        _, name, us = kernel
        return short_name(name) if scale(us) - scale(0.0) >= OF_ITS_OWN else ""

    for (look, name, kernel), run in groupby(kernels, key=lambda timed: (*_look(timed[0], looks), alone(timed))):
        us = _sum(list(run))
        sums[look] = sums.get(look, 0.0) + us
        names.setdefault(look, name)
        at += us
        if kernel:
            yield rect(look, drawn, y, (scale(at) - drawn, 40), f"{side}, {name}, {kernel}: {us:.1f} us", kernel)
            drawn = scale(at)
        elif (end := scale(at)) - drawn >= THIN:
            paths.setdefault(look, []).append(f"M{drawn:.1f} {y:g}h{end - drawn:.1f}v40h{drawn - end:.1f}z")
            drawn = end
    for look, parts in paths.items():
        yield Mark("path", f"{look} fine", text=f"{side}, {names[look]}: {sums[look]:.1f} us",
                   path="".join(parts), about=names[look])  # fmt: skip


def _look(role: str, looks: Mapping[str, str]) -> tuple[str, str]:
    """A role's colour and the name that goes with it; roles that one part joins are ``joined: gemm+norm``."""
    name = next((part for part in looks if role in (part, *part.partition(": ")[2].split("+"))), "")
    look = looks.get(name, REST)
    return (look, "other kernels") if look == REST else (look, name)


def _layer_rows(
    layers: Mapping[Side, Sequence[tuple[str, float]]], idle: Mapping[Side, float]
) -> Iterator[tuple[str, ...]]:
    """A row a stretch, of neighbours with equal figures one for all; then idle time."""
    both = [*zip_longest(layers["base"], layers["head"]), (("idle", idle["base"]), ("idle", idle["head"]))]
    rows: list[tuple[list[str], tuple[str, ...]]] = []
    for base, head in both:
        figures = tuple(f"{stretch[1]:.1f}" if stretch else "-" for stretch in (base, head))
        figures += (f"{head[1] - base[1]:+.1f}",) if base and head else ("-",)
        name = (base or head)[0]
        if rows and rows[-1][1] == figures and name.startswith("layer ") and rows[-1][0][0].startswith("layer "):
            rows[-1][0].append(name)
        else:
            rows.append(([name], figures))
    for names, figures in rows:
        last = names[-1].removeprefix("layer ")
        yield (names[0] if len(names) == 1 else f"{names[0]} to {last}, each", *figures)


def layer_chart(evidence: Evidence, change: Attribution) -> Chart | None:
    """The kernels of the middle layer in the order they run, each as wide as it is long on average over its step."""
    steps = _first_traced(evidence)
    layers = {side: _middle_layer(decode) for side, decode in steps.items()} if steps else {}
    longest = max(map(_sum, layers.values()), default=0.0)
    if longest <= 0 or not all(0 < len(layer) <= MOST_KERNELS for layer in layers.values()):
        return None
    looks, x = part_looks(change), Scale(0.0, longest, LEFT, RIGHT)
    marks: list[Mark] = []
    table = [("side", "role", "kernel", "us")]
    legend: dict[str, str] = {}
    for n, (side, layer) in enumerate(layers.items()):
        y, at = 12 + 62.0 * n, 0.0
        marks.append(label("name", 44, y + 26, side, "end"))
        for role, name, us in layer:
            look, part = _look(role, looks)
            legend.setdefault(look, part)
            width, kernel = x(at + us) - x(at), short_name(name)
            marks.append(rect(look, x(at), y, (width, 44), f"{side}, {role}, {kernel}: {us:.1f} us", kernel))
            if width >= max(WIDE, LETTER * len(role) + 12):
                marks.append(label(_inside(look), x(at) + 6, y + 26, role))
            at += us
            table.append((side, role, kernel, f"{us:.1f}"))
    marks += _axis(x, 128)
    counts = [f"{side} {len(layer)} kernels, {_sum(layer):.1f} us" for side, layer in layers.items()]
    seen = f"Kernels of one layer in order, mean times without the gaps between them: {'; '.join(counts)}."
    return Chart("One layer, kernel by kernel", seen, 156, tuple(marks), tuple(legend.items()), table)


def _middle_layer(steps: DecodeSteps) -> list[Timed]:
    """The kernels of the middle layer of the most frequent step; none where no layer is known."""
    begins = steps.patterns[0].layer_begins
    middle = (len(begins) - 1) // 2
    return _timed(steps)[begins[middle] : begins[middle + 1]] if len(begins) > 1 else []


ROOFS_LEFT, ROOFS_RIGHT = 70.0, WIDTH - 30.0
LEGEND = (("dots base large", "base"), ("dots head large", "head"))
MOST_COUNTED = 200
"""Drawn on each side, those that come first in a step."""
LEAST = 1e-6
"""Of a roof: what is lower is drawn there."""


def roof_plane(counted: CountersOutcome) -> Chart | None:
    """Each counted kernel by how busy it kept device memory and the SMs, a hollow dot for the base."""
    points: list[tuple[CounterRow, Side, float, float]] = [
        (row, side, values["sm_throughput"], values["dram_throughput"])
        for row in counted.rows[:MOST_COUNTED]
        for side, values in zip(SIDES, (row.base, row.head), strict=True)
        if {"sm_throughput", "dram_throughput"} <= values.keys()
    ]
    if not points:
        return None
    x, y = Scale(0, 100, ROOFS_LEFT, ROOFS_RIGHT), Scale(0, 100, 300, 20)
    marks = [rect("zone-warn", x(0), y(60), (x(60) - x(0), y(0) - y(60)))]
    for tick in range(0, 101, 20):
        marks += [line("grid", (x(tick), y(0)), (x(tick), y(100))), line("grid", (x(0), y(tick)), (x(100), y(tick))),
                  label("tick", x(tick), 316, f"{tick} %", "middle"),
                  label("tick", x(0) - 8, y(tick) + 4, f"{tick} %", "end")]  # fmt: skip
    for row, side, sm, dram in points:
        text = (
            f"{side}, {row.role}, {row.kernel}: device memory {dram:.0f} %, SMs {sm:.0f} %, {row.bound.get(side, '')}"
        )
        marks.append(dots(f"{side} large", [(x(sm), y(dram))], text, row.kernel))
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
    x, y = Scale(min(low, -2), 1, ROOFS_LEFT, ROOFS_RIGHT), Scale(min(low, -2), 0, 300, 30)
    marks = [
        *_decades(x, y),
        line("roof", (x(x.low), y(x.low)), (x(0), y(0))),
        line("roof", (x(0), y(0)), (x(1), y(0))),
    ]
    table = [("kernel", "role", "side", "operations a byte", "of the ridge", "of the tensor cores", "bound")]
    for side, key, roof, intensity, share in points:
        name = short_name(key.name)
        text = f"{side}, {key.role}, {name}: {roof.intensity or 0:.3g} operations a byte, {share * 100:.2g} % of the "
        text += f"tensor cores' rate, bound by {roof.bound}"
        marks.append(dots(f"{side} large", [(x(math.log10(intensity)), y(math.log10(share)))], text, name))
        table.append((name, key.role, side, f"{roof.intensity or 0:.3g}", f"{intensity:.2g}", f"{share * 100:.2g} %",
                      roof.bound))  # fmt: skip
    below = sum(intensity < 1 for *_, intensity, _ in points)
    seen = f"{len(points)} kernels with operations of the tensor cores; {below} of them are left of the ridge, where "
    seen += "device memory limits them."
    return Chart("Roofline of the counted kernels", seen, 352, tuple(marks), LEGEND, table)


def _intense(evidence: Evidence) -> Iterator[tuple[Side, KernelKey, KernelRoof, float, float]]:
    """Side, kernel, roof, intensity by the ridge and share of the tensor cores' rate, where all were counted."""
    for side, trials in evidence.trials("counted").items():
        launches = [(launch.key, launch) for trial in trials if trial.counted for launch in trial.counted.launches]
        for key, group in list(grouped(launches).items())[:MOST_COUNTED]:
            roof = kernel_roof(group.median)
            if roof.intensity and roof.ridge and roof.compute_share:
                yield side, key, roof, max(roof.intensity / roof.ridge, LEAST), max(roof.compute_share, LEAST)


def _decades(x: Scale, y: Scale) -> Sequence[Mark]:
    marks: list[Mark] = []
    for power in range(round(x.low), round(x.high) + 1):
        marks += [line("grid", (x(power), y(y.low)), (x(power), y(0))),
                  label("tick", x(power), 316, f"{10.0**power:g}\u00d7", "middle")]  # fmt: skip
        if power <= 0:
            marks += [line("grid", (ROOFS_LEFT, y(power)), (ROOFS_RIGHT, y(power))),
                      label("tick", ROOFS_LEFT - 8, y(power) + 4, f"{100 * 10.0**power:g} %", "end")]  # fmt: skip
    words = "operations a byte of device memory, in multiples of the ridge"
    return [*marks, label("axis-title", (ROOFS_LEFT + ROOFS_RIGHT) / 2, 338, words, "middle"),
            label("note", ROOFS_LEFT, 18, "of the tensor cores' rate"),
            label("note", x(0), 18, "the roofs meet", "middle")]  # fmt: skip
