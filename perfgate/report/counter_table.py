"""What ncu counted as text, Markdown or JSON: kernels with their counters, the counters in words, and the roofline."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from perfgate.counters.launch_table import COUNTERS, Counted, CountedKernel, Counter
from perfgate.counters.roofline import RULES, KernelRoof, LaunchGroup, kernel_roof, launch_groups
from perfgate.report.markdown import escape, table
from perfgate.report.outcome_lines import percent, printable
from perfgate.report.text import columns
from perfgate.trace.families import classify, short_name
from perfgate.units import format_value

Rows = list[tuple[str, ...]]
_MANY = 1000
_SI = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def render_text(counted: Counted) -> str:
    """For a terminal."""
    groups = launch_groups(counted)
    lines = [_heading(counted, groups), "", "Kernels, mean of a launch", *columns(_kernel_rows(groups)), ""]
    lines += ["Roofline", *(f"  {line}" for line in (*_roof_lines(groups), *_rule_lines(groups))), ""]
    lines += ["Counters", *(f"  {line}" for one in _shown(groups) for line in _explained(one))]
    lines += ["", *(f"ncu: {printable(text)}" for text in counted.messages)] if counted.messages else []
    return "\n".join(lines) + "\n"


def render_markdown(counted: Counted) -> str:
    """For a pipe, a step summary or a comment; everything that came from the file is escaped."""
    groups = launch_groups(counted)
    explained: Rows = [("counter", "unit", "better", "repeats", "meaning", "usual cause and action")]
    explained += [(c.name, c.unit, c.better, c.tier, c.meaning, f"{c.cause} {c.action}") for c in _shown(groups)]
    blocks = [
        f"**{escape(_heading(counted, groups))}**",
        "### Kernels, mean of a launch",
        "\n".join(table(_kernel_rows(groups))),
        "### Roofline",
        "\n".join(f"- {escape(line)}" for line in _roof_lines(groups)),
        "\n\n".join(escape(line) for line in _rule_lines(groups)),
        "### Counters",
        "\n".join(table(explained)),
    ]
    if counted.messages:
        blocks.append("\n".join(f"- ncu: {escape(printable(text))}" for text in counted.messages))
    return "\n\n".join(blocks) + "\n"


def render_json(counted: Counted) -> str:
    """Every launch with its counters in base units, its ranges and its roofline, for programs."""
    roles = classify([kernel.name for kernel in counted.kernels])
    shown = _shown(launch_groups(counted))
    content = {
        "source": counted.source,
        "kernels": [_launch(kernel, role) for kernel, role in zip(counted.kernels, roles, strict=True)],
        "counters": {
            c.name: {name: getattr(c, name) for name in ("unit", "better", "tier", "meaning", "cause", "action")}
            for c in shown
        },
        "rules": RULES,
        "messages": list(counted.messages),
    }
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


FORMATS: dict[str, Callable[[Counted], str]] = {
    "text": render_text,
    "markdown": render_markdown,
    "json": render_json,
}
"""Every format by the name that ``--format`` takes."""


def _launch(kernel: CountedKernel, role: str) -> dict[str, Any]:
    values = {name: counter.read(kernel) for name, counter in COUNTERS.items()}
    return {
        "number": kernel.number,
        "name": kernel.name,
        "kernel": short_name(kernel.name),
        "role": role,
        "device": kernel.device,
        "architecture": kernel.architecture,
        "grid": list(kernel.grid),
        "block": list(kernel.block),
        "ranges": list(kernel.ranges),
        "counters": {name: value for name, value in values.items() if value is not None},
        "roofline": asdict(kernel_roof(kernel)),
    }


def _shown(groups: Sequence[LaunchGroup]) -> list[Counter]:
    """The counters that at least one kernel has."""
    return [counter for counter in COUNTERS.values() if any(group.mean(counter) is not None for group in groups)]


def _heading(counted: Counted, groups: Sequence[LaunchGroup]) -> str:
    kernels = counted.kernels
    names = dict.fromkeys(kernel.attributes.get("device__attribute_display_name", "") for kernel in kernels)
    gpus = ", ".join(name for name in names if name) or f"sm_{kernels[0].architecture or '?'}"
    return printable(f"{counted.source}, {gpus}: {_count(kernels, 'launch', 'es')} of {_count(groups, 'kernel', 's')}")


def _count(things: Sequence[object], word: str, plural: str) -> str:
    return f"{len(things)} {word}{plural * (len(things) != 1)}"


def _kernel_rows(groups: Sequence[LaunchGroup]) -> Rows:
    shown = _shown(groups)
    rows: Rows = [("role", "launches", *(counter.name for counter in shown), "bound", "of its roof", "kernel")]
    for group in groups:
        roof = group.roof()
        values = (_value(group.mean(counter), counter) for counter in shown)
        share = "-" if roof.distance is None else percent(1 / roof.distance)
        rows.append((group.role, str(len(group.kernels)), *values, roof.bound, share, f"{group.name} {group.shape}"))
    return [tuple(map(printable, row)) for row in rows]


def _roof_lines(groups: Sequence[LaunchGroup]) -> list[str]:
    """A sentence a kernel, those that take most time first."""
    duration = COUNTERS["duration"]
    ranked = sorted(groups, key=lambda group: -(group.mean(duration) or 0.0) * len(group.kernels))
    return [printable(f"{group.name} {group.shape}: {_sentence(group.roof())}") for group in ranked]


def _rule_lines(groups: Sequence[LaunchGroup]) -> list[str]:
    """The rule of each bound that occurs."""
    return [f"{bound}-bound: {RULES[bound]}." for bound in dict.fromkeys(group.roof().bound for group in groups)]


def _sentence(roof: KernelRoof) -> str:
    parts = [f"{roof.bound}-bound" if roof.bound != "unknown" else "bound unknown"]
    if roof.bandwidth is not None and roof.bandwidth_roof is not None:
        of_roof = percent(roof.bandwidth / roof.bandwidth_roof)
        parts.append(f"moves {si(roof.bandwidth, 'B/s')}, {of_roof} of {si(roof.bandwidth_roof, 'B/s')}")
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
    return si(value, counter.unit if counter.unit in ("B", "Hz") else "")


def si(value: float, unit: str) -> str:
    """A value for people: four significant digits, thousands of bytes as NVIDIA counts them, ``52.71 MB``."""
    for scale, prefix in _SI:
        if value >= scale:
            return f"{value / scale:#.4g} {prefix}{unit}".rstrip()
    return f"{value:.4g} {unit}".rstrip()
