"""Counters beside time: a trace's kernels with what ncu counted of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from perfgate.counters.roofline import RULES, KernelRoof, kernel_roof
from perfgate.counters.trace_join import Join, Row
from perfgate.kernels.counter_table import messages, rules
from perfgate.kernels.kernel_report import caution_section
from perfgate.report.csv_rows import csv_table
from perfgate.report.document import Document, Section, printable
from perfgate.trace.launch_shapes import in_words
from perfgate.units import format_mean, format_ns, format_si, percent

Rows = list[tuple[str, ...]]

TIME_ONLY, COUNTERS_ONLY = "time only", "counters only"
"""What replaces what both sides agree in."""

SOURCES = "Time comes from the trace; bytes, throughput and roofline come from ncu, whose durations are not shown."


def joined_document(found: Join) -> Document:
    """Roles and kernels with their time and what ncu counted of them."""
    cautions = caution_section((*found.selection.trace.cautions, *found.cautions))
    sections = [
        Section(title="Roles", rows=_role_rows(found)),
        Section(title="Kernels", rows=_kernel_rows(found)),
        Section(lines=rules(kernel_roof(row.counted.median) for row in found.rows if row.counted), style="items"),
        cautions,
        messages(found.counted, close=bool(cautions)),
    ]
    return Document.of(_headings(found), sections)


def joined_json(found: Join) -> str:
    """Everything, for programs: times in nanoseconds a step, counters in base units a launch."""
    content = {
        "trace": found.selection.trace.source,
        "counters": found.counted.source,
        "selection": found.selection.what,
        "steps": found.selection.steps,
        "kernels": [dict(zip(COLUMNS, _values(row), strict=True)) for row in found.rows],
        "share_in_trace": found.share,
        "messages": list(found.counted.messages),
        "rules": RULES,
        "cautions": [
            {"code": one.code, "text": printable(one.text)}
            for one in (*found.selection.trace.cautions, *found.cautions)
        ],
    }
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def joined_csv(found: Join) -> str:
    """A line a kernel, in the units of JSON; a value that one side does not have is empty."""
    return csv_table(COLUMNS, map(_values, found.rows))


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


def _headings(found: Join) -> list[str]:
    trace, both = found.selection.trace, [row for row in found.rows if row.timed and row.counted]
    share = percent(_time_ns(both) / found.time_ns) if found.time_ns else "-"
    devices = "".join(f", {name}" for name in sorted(set(trace.devices.values())))
    counts = f"{len(both)} of {sum(row.timed for row in found.rows)} kernels, {share} of the kernel time"
    return [
        f"{trace.source}{devices}, with the counters of {found.counted.source}",
        f"Shown: {found.selection.what}, mean of a step. {SOURCES}",
        f"Counted: {counts}; they move {format_si(_sum_bytes(both), 'B')} a step.",
        f"Of what was counted {percent(found.share)} is in the trace, in name and shape.",
    ]


def _role_rows(found: Join) -> Rows:
    """What is timed, by role; the time that has counters beside it, and the bytes of that part."""
    rows: Rows = [("role", "launches", "time", "share", "of it counted", "DRAM a step")]
    by_role: dict[str, list[Row]] = {}
    for row in found.rows:
        if row.timed:
            by_role.setdefault(row.role, []).append(row)
    for role, own in sorted(by_role.items(), key=lambda item: -_time_ns(item[1])):
        time_ns, counted = _time_ns(own), [row for row in own if row.counted]
        share = percent(time_ns / found.time_ns) if found.time_ns else "-"
        of_it = percent(_time_ns(counted) / time_ns) if time_ns else "-"
        launches, moved = math.fsum(row.launches for row in own), _sum_bytes(counted) if counted else None
        rows.append((role, format_mean(launches), format_ns(time_ns), share, of_it, _shown(moved, _bytes)))
    return rows


def _kernel_rows(found: Join) -> Rows:
    rows: Rows = [
        ("role", "launches", "time", "share", "DRAM a launch", "DRAM a step", "DRAM throughput", "bound", "of its roof",
         "joined by", "place", "kernel"),
    ]  # fmt: skip
    for row in found.rows:
        values = dict(zip(COLUMNS, _values(row), strict=True))
        time_ns, distance = values["time_ns_per_step"], values["roof_distance"]
        rows.append(
            (
                row.role,
                _shown(values["launches_per_step"], format_mean),
                _shown(time_ns, format_ns),
                _shown(time_ns if found.time_ns else None, lambda time_ns: percent(time_ns / found.time_ns)),
                _shown(values["dram_bytes_per_launch"], _bytes),
                _shown(row.step_bytes, _bytes),
                _shown(values["dram_throughput_percent"], lambda share: f"{share:.3g} %"),
                values["bound"] or "-",
                percent(1 / distance) if distance else "-",
                values["joined_by"],
                row.identity.place,
                f"{row.kernel} {values['shape']}".rstrip(),
            )
        )
    return rows


def _shown(value: float | None, form: Callable[[float], str]) -> str:
    return "-" if value is None else form(value)


def _bytes(size: float) -> str:
    return format_si(size, "B")


def _throughput(row: Row, roof: KernelRoof | None) -> float | None:
    """Percent of what device memory can sustain: ncu's own figure, else bytes over time by the roof."""
    own = row.counted.mean("dram_throughput") if row.counted else None
    if own is not None or roof is None or roof.memory_share is None:
        return own
    return roof.memory_share * 100


def _joined(row: Row) -> str:
    return row.joined_by or (TIME_ONLY if row.timed else COUNTERS_ONLY)


def _time_ns(rows: Sequence[Row]) -> float:
    return math.fsum(row.time_ns for row in rows)


def _sum_bytes(rows: Sequence[Row]) -> float:
    return math.fsum(row.step_bytes for row in rows if row.step_bytes is not None)
