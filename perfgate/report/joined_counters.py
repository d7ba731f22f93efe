"""Counters beside time as text, Markdown, JSON or CSV: a trace's kernels with what ncu counted of them."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from perfgate.counters.launch_table import COUNTERS
from perfgate.counters.roofline import RULES, KernelRoof
from perfgate.counters.trace_join import Join, Row, in_words
from perfgate.reasons import REASONS
from perfgate.report.counter_table import si
from perfgate.report.kernel_report import csv_text
from perfgate.report.markdown import escape, table
from perfgate.report.outcome_lines import percent, printable
from perfgate.report.text import columns
from perfgate.units import format_value

Rows = list[tuple[str, ...]]

TIME_ONLY, COUNTERS_ONLY = "time only", "counters only"
"""What stands in place of what both sides agree in."""

SOURCES = "Time is the trace's, bytes, throughput and roofline are ncu's, whose durations are no step's and not shown."


def render_text(found: Join) -> str:
    """For a terminal."""
    lines = [*_headings(found), ""]
    for title, rows in _tables(found):
        lines += [title, *columns(rows), ""]
    lines += [*(f"  {line}" for line in _rules(found)), ""]
    for code, text, remedy in _notes(found):
        lines += [f"caution {code}: {text}", f"  -> {remedy}"]
    lines += [f"ncu: {message}" for message in map(printable, found.counted.messages)]
    return "\n".join(lines).rstrip() + "\n"


def render_markdown(found: Join) -> str:
    """For a pipe, a step summary or a comment; everything that came from a file is escaped."""
    first, *rest = _headings(found)
    blocks = [f"**{escape(first)}**", *map(escape, rest)]
    for title, rows in _tables(found):
        blocks += [f"### {escape(title)}", "\n".join(table(rows))]
    blocks.append("\n".join(f"- {escape(line)}" for line in _rules(found)))
    blocks += [f"- caution `{code}`: {escape(text)}. _{escape(remedy)}_" for code, text, remedy in _notes(found)]
    blocks += [f"- ncu: {escape(printable(message))}" for message in found.counted.messages]
    return "\n\n".join(block for block in blocks if block) + "\n"


def render_json(found: Join) -> str:
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
        "cautions": [{"code": code, "text": text} for code, text, _ in _notes(found)],
    }
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def render_csv(found: Join) -> str:
    """A line a kernel, in the units of JSON; a value that one side does not have is empty."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(map(_cell, _values(row)) for row in found.rows)
    return sink.getvalue()


def _cell(value: Any) -> Any:
    return "" if value is None else csv_text(value) if isinstance(value, str) else value


COLUMNS = (
    "role", "place", "kernel", "shape", "joined_by", "launches_per_step", "time_ns_per_step", "launches_counted",
    "dram_bytes_per_launch", "dram_bytes_per_step", "dram_throughput_percent", "bound", "roof_distance", "name",
)  # fmt: skip

FORMATS: dict[str, Callable[[Join], str]] = {
    "text": render_text,
    "markdown": render_markdown,
    "json": render_json,
    "csv": render_csv,
}
"""Every format by the name that ``--format`` takes."""


def _values(row: Row) -> tuple[Any, ...]:
    """A row under :data:`COLUMNS`."""
    roof = row.counted.roof() if row.counted else None
    return (
        row.role,
        row.identity.place,
        row.kernel,
        in_words(row.identity.shape),
        _joined(row),
        row.timed.launches if row.timed else None,
        row.timed.time_ns if row.timed else None,
        len(row.counted.kernels) if row.counted else 0,
        row.counted.moved if row.counted else None,
        row.step_bytes,
        _throughput(row, roof),
        roof.bound if roof else None,
        roof.distance if roof else None,
        row.identity.name,
    )


def _headings(found: Join) -> list[str]:
    trace, both = found.selection.trace, [row for row in found.rows if row.timed and row.counted]
    covered = sum(row.timed.time_ns for row in both if row.timed)
    share = percent(covered / found.time_ns) if found.time_ns else "-"
    devices = "".join(f", {name}" for name in sorted(set(trace.devices.values())))
    counts = f"{len(both)} of {sum(row.timed is not None for row in found.rows)} kernels, {share} of the kernel time"
    lines = [
        f"{trace.source}{devices}, with the counters of {found.counted.source}",
        f"Shown: {found.selection.what}, mean of a step. {SOURCES}",
        f"Counted: {counts}; they move {si(_sum_bytes(both), 'B')} a step.",
        f"Of what was counted {percent(found.share)} is in the trace, in name and shape.",
    ]
    return [printable(line) for line in lines]


def _tables(found: Join) -> list[tuple[str, Rows]]:
    tables = [("Roles", _role_rows(found)), ("Kernels", _kernel_rows(found))]
    return [(title, [tuple(map(printable, row)) for row in rows]) for title, rows in tables]


def _role_rows(found: Join) -> Rows:
    """What is timed, by role; the time that has counters beside it, and the bytes of that part."""
    rows: Rows = [("role", "launches", "time", "share", "of it counted", "DRAM a step")]
    roles = dict.fromkeys(row.role for row in found.rows if row.timed)
    sums = {role: [row for row in found.rows if row.timed and row.role == role] for role in roles}
    for role, own in sorted(sums.items(), key=lambda one: -_time_ns(one[1])):
        time_ns, counted = _time_ns(own), [row for row in own if row.counted]
        share = percent(time_ns / found.time_ns) if found.time_ns else "-"
        of_it = percent(_time_ns(counted) / time_ns) if time_ns else "-"
        launches = _count(math.fsum(row.timed.launches for row in own if row.timed))
        rows.append((role, launches, _ns(time_ns), share, of_it, si(_sum_bytes(counted), "B") if counted else "-"))
    return rows


def _kernel_rows(found: Join) -> Rows:
    rows: Rows = [
        ("role", "launches", "time", "share", "DRAM a launch", "DRAM a step", "DRAM throughput", "bound", "of its roof",
         "joined by", "place", "kernel"),
    ]  # fmt: skip
    for row in found.rows:
        roof = row.counted.roof() if row.counted else None
        moved, throughput = row.counted.moved if row.counted else None, _throughput(row, roof)
        share = percent(row.timed.time_ns / found.time_ns) if row.timed and found.time_ns else "-"
        times = (_count(row.timed.launches), _ns(row.timed.time_ns)) if row.timed else ("-", "-")
        rows.append(
            (
                row.role,
                *times,
                share,
                "-" if moved is None else si(moved, "B"),
                "-" if row.step_bytes is None else si(row.step_bytes, "B"),
                "-" if throughput is None else f"{throughput:.3g} %",
                roof.bound if roof else "-",
                percent(1 / roof.distance) if roof and roof.distance else "-",
                _joined(row),
                row.identity.place,
                f"{row.kernel} {in_words(row.identity.shape)}".rstrip(),
            )
        )
    return rows


def _rules(found: Join) -> list[str]:
    """The rule of each bound that occurs."""
    bounds = dict.fromkeys(row.counted.roof().bound for row in found.rows if row.counted)
    return [f"{bound}-bound: {RULES[bound]}." for bound in bounds]


def _throughput(row: Row, roof: KernelRoof | None) -> float | None:
    """Percent of what device memory can sustain: ncu's own figure, else bytes over time by the roof."""
    own = row.counted.mean(COUNTERS["dram_throughput"]) if row.counted else None
    if own is not None or roof is None or roof.memory_share is None:
        return own
    return roof.memory_share * 100


def _joined(row: Row) -> str:
    return row.joined_by or (TIME_ONLY if row.timed else COUNTERS_ONLY)


def _notes(found: Join) -> list[tuple[str, str, str]]:
    cautions = (*found.selection.trace.cautions, *found.cautions)
    return [(one.code, printable(one.text), REASONS[one.code].remedy) for one in cautions]


def _time_ns(rows: Sequence[Row]) -> float:
    return math.fsum(row.timed.time_ns for row in rows if row.timed)


def _sum_bytes(rows: Sequence[Row]) -> float:
    return math.fsum(row.step_bytes for row in rows if row.step_bytes is not None)


def _ns(value: float) -> str:
    return format_value(value / 1e9, "s")


def _count(value: float) -> str:
    return f"{value:.0f}" if value == round(value) else f"{value:.3g}"
