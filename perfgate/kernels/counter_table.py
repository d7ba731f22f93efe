"""What ncu counted: kernels with their counters, the roofline, and the counters in words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from perfgate.counters.launch_table import COUNTERS, Counter, KernelLaunch, LaunchGroup, NcuReport, grouped
from perfgate.counters.roofline import RULES, KernelRoof, kernel_roof
from perfgate.report.document import Document, Section
from perfgate.trace.families import short_name
from perfgate.units import format_si, format_value, percent, plural

Rows = list[tuple[str, ...]]
_MANY = 1000


def counters_document(counted: NcuReport) -> Document:
    """Kernels with their counters, how near each is to its roof, and what the counters mean."""
    groups = _groups(counted)
    shown = _shown(groups)
    meanings = [(c.name, c.unit, c.better, c.tier, c.meaning, f"{c.cause} {c.action}") for c in shown]
    sections = [
        Section(title="Kernels, mean of a launch", rows=_kernel_rows(groups)),
        Section(title="Roofline", lines=tuple(_roof_lines(groups)), style="items"),
        Section(lines=rules(kernel_roof(group.median) for group in groups), close=True),
        Section(
            title="Counters",
            rows=[("counter", "unit", "better", "repeats", "meaning", "usual cause and action"), *meanings],
            spelled=tuple(line for counter in shown for line in _explained(counter)),
        ),
        messages(counted),
    ]
    return Document.of([_heading(counted, groups)], sections)


def messages(counted: NcuReport, *, close: bool = False) -> Section:
    """What ncu said while it counted."""
    return Section(lines=tuple(f"ncu: {text}" for text in counted.messages), style="facts", close=close)


def rules(roofs: Iterable[KernelRoof]) -> tuple[str, ...]:
    """The rule of each bound that occurs."""
    return tuple(f"{bound}-bound: {RULES[bound]}." for bound in dict.fromkeys(roof.bound for roof in roofs))


def counters_json(counted: NcuReport) -> str:
    """Every launch with its counters in base units, its ranges and its roofline, for programs."""
    shown = _shown(_groups(counted))
    content = {
        "source": counted.source,
        "kernels": list(map(_launch, counted.launches)),
        "counters": {
            c.name: {name: getattr(c, name) for name in ("unit", "better", "tier", "meaning", "cause", "action")}
            for c in shown
        },
        "rules": RULES,
        "messages": list(counted.messages),
    }
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def _groups(counted: NcuReport) -> tuple[LaunchGroup, ...]:
    """Launches by name and shape."""
    return tuple(
        grouped(((launch.key.name, launch.grid, launch.block), launch) for launch in counted.launches).values()
    )


def _launch(kernel: KernelLaunch) -> dict[str, Any]:
    values = {name: kernel.read(name) for name in COUNTERS}
    return {
        "number": kernel.number,
        "name": kernel.key.name,
        "kernel": short_name(kernel.key.name),
        "role": kernel.key.role,
        "device": kernel.device,
        "architecture": kernel.gpu.architecture,
        "grid": list(kernel.grid),
        "block": list(kernel.block),
        "ranges": list(kernel.ranges),
        "counters": {name: value for name, value in values.items() if value is not None},
        "roofline": asdict(kernel_roof(kernel)),
    }


def _shown(groups: Sequence[LaunchGroup]) -> list[Counter]:
    """The counters that at least one kernel has."""
    return [counter for counter in COUNTERS.values() if any(group.mean(counter.name) is not None for group in groups)]


def _heading(counted: NcuReport, groups: Sequence[LaunchGroup]) -> str:
    launches = counted.launches
    names = dict.fromkeys(launch.gpu.name for launch in launches)
    gpus = ", ".join(name for name in names if name) or f"sm_{launches[0].gpu.architecture or '?'}"
    count = plural(len(launches), "launch", "es")
    return f"{counted.source}, {gpus}: {count} of {plural(len(groups), 'kernel')}"


def _kernel_rows(groups: Sequence[LaunchGroup]) -> Rows:
    shown = _shown(groups)
    rows: Rows = [("role", "launches", *(counter.name for counter in shown), "bound", "of its roof", "kernel")]
    for group in groups:
        roof, first = kernel_roof(group.median), group.launches[0]
        values = (_value(group.mean(counter.name), counter) for counter in shown)
        share = "-" if roof.distance is None else percent(1 / roof.distance)
        rows.append((first.key.role, str(len(group.launches)), *values, roof.bound, share, _called(first)))
    return rows


def _roof_lines(groups: Sequence[LaunchGroup]) -> list[str]:
    """A sentence a kernel, those that take most time first."""
    ranked = sorted(groups, key=lambda group: -(group.mean("duration") or 0.0) * len(group.launches))
    return [f"{_called(group.launches[0])}: {_sentence(kernel_roof(group.median))}" for group in ranked]


def _called(launch: KernelLaunch) -> str:
    """The function's own name, with grid and block as far as they are known."""
    sizes = "/".join("x".join(map(str, size)) for size in (launch.grid, launch.block) if size)
    return f"{short_name(launch.key.name)} {sizes}"


def _sentence(roof: KernelRoof) -> str:
    parts = [f"{roof.bound}-bound" if roof.bound != "unknown" else "bound unknown"]
    if roof.bandwidth is not None and roof.bandwidth_roof is not None:
        of_roof = percent(roof.bandwidth / roof.bandwidth_roof)
        parts.append(f"moves {format_si(roof.bandwidth, 'B/s')}, {of_roof} of {format_si(roof.bandwidth_roof, 'B/s')}")
    if roof.intensity is not None and roof.ridge is not None:
        parts.append(f"{roof.intensity:.3g} operations a byte, the ridge is at {roof.ridge:.3g}")
    if roof.distance is not None:
        times = f"{roof.distance:{'.3g' if roof.distance < _MANY else '.0f'}}"
        parts.append(f"{times} times the time at its nearest roof, SMs included")
    return "; ".join(parts)


def _explained(counter: Counter) -> tuple[str, ...]:
    better = "" if counter.better == "neither" else f", {counter.better} is better"
    head = f"{counter.name} ({counter.unit}{better}, {counter.tier}): {counter.meaning}"
    return (head, f"  cause: {counter.cause}", f"  action: {counter.action}")


def _value(value: float | None, counter: Counter) -> str:
    if value is None:
        return "-"
    if counter.unit == "s":
        return format_value(value, "s")
    if counter.unit == "%":
        return f"{value:.3g} %"
    return format_si(value, counter.unit if counter.unit in ("B", "Hz") else "")
