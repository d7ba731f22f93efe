"""What ncu counted: kernels with their counters, the roofline, the counters in words; and all of it beside a trace."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from perfgate.counters.launch_table import COUNTERS, Counter, KernelLaunch, LaunchGroup, NcuReport, grouped
from perfgate.counters.roofline import RULES, KernelRoof, kernel_roof
from perfgate.counters.trace_join import Join, Row
from perfgate.kernels.kernel_report import caution_section
from perfgate.report.csv_rows import csv_table
from perfgate.report.document import Document, Section, printable
from perfgate.trace.families import short_name
from perfgate.trace.launch_details import in_words
from perfgate.units import format_mean, format_ns, format_si, format_value, percent, plural

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


TIME_ONLY, COUNTERS_ONLY = "time only", "counters only"
"""What replaces what both sides agree in."""

SOURCES = "Time comes from the trace; bytes, throughput and roofline come from ncu, whose durations are not shown."


def joined_document(join: Join) -> Document:
    """Roles and kernels with their time and what ncu counted of them."""
    cautions = caution_section((*join.selection.trace.cautions, *join.cautions))
    sections = [
        Section(title="Roles", rows=_role_rows(join)),
        Section(title="Kernels", rows=_timed_rows(join)),
        Section(lines=rules(kernel_roof(row.counted.median) for row in join.rows if row.counted), style="items"),
        cautions,
        messages(join.counted, close=bool(cautions)),
    ]
    return Document.of(_headings(join), sections)


def joined_json(join: Join) -> str:
    """Everything, for programs: times in nanoseconds a step, counters in base units a launch."""
    content = {
        "trace": join.selection.trace.source,
        "counters": join.counted.source,
        "selection": join.selection.what,
        "steps": join.selection.steps,
        "kernels": [dict(zip(COLUMNS, _values(row), strict=True)) for row in join.rows],
        "share_in_trace": join.share,
        "messages": list(join.counted.messages),
        "rules": RULES,
        "cautions": [
            {"code": note.code, "text": printable(note.text)}
            for note in (*join.selection.trace.cautions, *join.cautions)
        ],
    }
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def joined_csv(join: Join) -> str:
    """A line a kernel, in the units of JSON; a value that one side does not have is empty."""
    return csv_table(COLUMNS, map(_values, join.rows))


COLUMNS = (
    "role", "place", "kernel", "shape", "joined_by", "launches_per_step", "time_ns_per_step", "launches_counted",
    "dram_bytes_per_launch", "dram_bytes_per_step", "dram_throughput_percent", "bound", "roof_distance", "name",
)  # fmt: skip


def _values(row: Row) -> tuple[Any, ...]:
    """A row under :data:`COLUMNS`."""
    roof = kernel_roof(row.counted.median) if row.counted else None
    return (
        row.role,
        row.identity.place,
        row.kernel,
        in_words(row.identity.shape),
        _joined(row),
        row.launches if row.timed else None,
        row.time_ns if row.timed else None,
        len(row.counted.launches) if row.counted else 0,
        row.counted.moved if row.counted else None,
        row.step_bytes,
        _throughput(row, roof),
        roof.bound if roof else None,
        roof.distance if roof else None,
        row.identity.name,
    )


def _headings(join: Join) -> list[str]:
    trace, both = join.selection.trace, [row for row in join.rows if row.timed and row.counted]
    share = percent(_time_ns(both) / join.time_ns) if join.time_ns else "-"
    devices = "".join(f", {name}" for name in sorted(set(trace.devices.values())))
    counts = f"{len(both)} of {sum(row.timed for row in join.rows)} kernels, {share} of the kernel time"
    return [
        f"{trace.source}{devices}, with the counters of {join.counted.source}",
        f"Shown: {join.selection.what}, mean of a step. {SOURCES}",
        f"Counted: {counts}; they move {format_si(_sum_bytes(both), 'B')} a step.",
        f"Of what was counted {percent(join.share)} is in the trace, in name and shape.",
    ]


def _role_rows(join: Join) -> Rows:
    """What is timed, by role; the time that has counters beside it, and the bytes of that part."""
    rows: Rows = [("role", "launches", "time", "share", "of it counted", "DRAM a step")]
    by_role: dict[str, list[Row]] = {}
    for row in join.rows:
        if row.timed:
            by_role.setdefault(row.role, []).append(row)
    for role, members in sorted(by_role.items(), key=lambda item: -_time_ns(item[1])):
        time_ns, counted = _time_ns(members), [row for row in members if row.counted]
        share = percent(time_ns / join.time_ns) if join.time_ns else "-"
        of_it = percent(_time_ns(counted) / time_ns) if time_ns else "-"
        launches, moved = math.fsum(row.launches for row in members), _sum_bytes(counted) if counted else None
        rows.append((role, format_mean(launches), format_ns(time_ns), share, of_it, _or_dash(moved, _bytes)))
    return rows


def _timed_rows(join: Join) -> Rows:
    rows: Rows = [
        ("role", "launches", "time", "share", "DRAM a launch", "DRAM a step", "DRAM throughput", "bound", "of its roof",
         "joined by", "place", "kernel"),
    ]  # fmt: skip
    for row in join.rows:
        values = dict(zip(COLUMNS, _values(row), strict=True))
        time_ns, distance = values["time_ns_per_step"], values["roof_distance"]
        rows.append(
            (
                row.role,
                _or_dash(values["launches_per_step"], format_mean),
                _or_dash(time_ns, format_ns),
                _or_dash(time_ns if join.time_ns else None, lambda time_ns: percent(time_ns / join.time_ns)),
                _or_dash(values["dram_bytes_per_launch"], _bytes),
                _or_dash(row.step_bytes, _bytes),
                _or_dash(values["dram_throughput_percent"], lambda share: f"{share:.3g} %"),
                values["bound"] or "-",
                percent(1 / distance) if distance else "-",
                values["joined_by"],
                row.identity.place,
                f"{row.kernel} {values['shape']}".rstrip(),
            )
        )
    return rows


def _or_dash(value: float | None, form: Callable[[float], str]) -> str:
    return "-" if value is None else form(value)


def _bytes(size: float) -> str:
    return format_si(size, "B")


def _throughput(row: Row, roof: KernelRoof | None) -> float | None:
    """Percent of what device memory can sustain: ncu's own figure, else bytes over time by the roof."""
    reading = row.counted.mean("dram_throughput") if row.counted else None
    if reading is not None or roof is None or roof.memory_share is None:
        return reading
    return roof.memory_share * 100


def _joined(row: Row) -> str:
    return row.joined_by or (TIME_ONLY if row.timed else COUNTERS_ONLY)


def _time_ns(rows: Sequence[Row]) -> float:
    return math.fsum(row.time_ns for row in rows)


def _sum_bytes(rows: Sequence[Row]) -> float:
    return math.fsum(row.step_bytes for row in rows if row.step_bytes is not None)
