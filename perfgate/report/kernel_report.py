"""A selection of a trace as text, Markdown, JSON or CSV: what its steps are made of, role by role, kernel by kernel."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfgate.reasons import REASONS
from perfgate.report.markdown import escape, table
from perfgate.report.outcome_lines import percent, printable
from perfgate.report.text import columns
from perfgate.trace.breakdown import GAPS
from perfgate.trace.kernel_table import COPY_KINDS, NO_TIME, NONE, PLACES, STEP_KINDS, Trace
from perfgate.trace.selection import KernelSum, Selection, by_kernel, by_role, by_step_and_kernel, outside, patterns
from perfgate.units import format_value

Rows = list[tuple[str, ...]]
LISTED = 2000
"""Launches that a listing shows at most; JSON and CSV hold all."""

FIGURES = (
    ("step", "step_ns", "from its first kernel to that of the next step"),
    ("span", "span_ns", "from its first kernel, copy or memset to the end of its last"),
    ("busy", "busy_ns", "union of kernels, copies and memsets"),
    ("kernel time", "kernel_ns", "sum over its kernels"),
    ("idle", "idle_ns", "span less busy"),
    ("host launching", "call_ns", "calls that launch kernels or graphs"),
    ("host waiting", "sync_ns", "calls that wait for the device"),
    ("host work", "work_ns", "the host's range of the step less its waiting"),
    ("host slack", "slack_ns", "how much longer the host could work before the device waits"),
    ("communication", "communication_ns", "between GPUs"),
    ("of it hidden", "hidden_ns", "while another kernel ran"),
    ("profiler", "overhead_ns", "the profiler's own work"),
)
"""Times of a step, each with its column of StepFigures and its meaning; one that is always 0 is left out."""


def render_text(selection: Selection) -> str:
    """For a terminal."""
    lines = [*_headings(selection), ""]
    for title, rows in _tables(selection):
        lines += [title, *columns(rows), ""]
    for code, text, remedy in _notes(selection.trace):
        lines += [f"caution {code}: {text}", f"  -> {remedy}"]
    return "\n".join(lines).rstrip() + "\n"


def render_markdown(selection: Selection) -> str:
    """For a pipe, a step summary or a comment; everything that came from a trace is escaped."""
    first, *rest = _headings(selection)
    blocks = [f"**{escape(first)}**", *map(escape, rest)]
    for title, rows in _tables(selection):
        blocks += [f"### {escape(title)}", "\n".join(table(rows))]
    blocks += [
        f"- caution `{code}`: {escape(text)}. _{escape(remedy)}_" for code, text, remedy in _notes(selection.trace)
    ]
    return "\n\n".join(blocks) + "\n"


def render_json(selection: Selection) -> str:
    """Everything, for programs; durations in nanoseconds."""
    trace, found = selection.trace, selection.figures
    steps = []
    for row in range(len(found)):
        step = int(found.step[row])
        steps.append(
            {
                "step": int(trace.steps.index[step]),
                "kind": STEP_KINDS[trace.steps.kind[step]],
                "complete": bool(trace.steps.complete[step]),
                "process": trace.processes[trace.steps.process[step]],
                "device": int(found.device[row]),
                "launches": int(found.launches[row]),
                "graph_launches": int(found.graph_launches[row]),
                "busy_ns": int(found.busy_ns[row]),
                **{name: _known(getattr(found, name)[row]) for name in _PLAIN},
                "idle_ns": dict(zip(GAPS, found.gap_ns[row].tolist(), strict=True)),
                "copies": dict(zip(COPY_KINDS, found.copies[row].tolist(), strict=True)),
                "copy_bytes": dict(zip(COPY_KINDS, found.copy_bytes[row].tolist(), strict=True)),
                "roles": {
                    role: {"launches": int(found.role_launches[row, n]), "time_ns": int(found.role_ns[row, n])}
                    for n, role in enumerate(trace.roles)
                    if found.role_launches[row, n]
                },
            }
        )
    lost, lost_ns = outside(trace)
    content = {
        "source": trace.source,
        "devices": {str(number): name for number, name in trace.devices.items()},
        "processes": list(trace.processes),
        "selection": selection.what,
        "steps": steps,
        "kernels": [
            {
                "role": one.role,
                "place": one.place,
                "kernel": trace.names.short[one.name],
                "name": trace.names.demangled[one.name],
                "normalised": trace.names.normalised[one.name],
                "launches": one.launches,
                "graph_launches": one.graph_launches,
                "time_ns": one.time_ns,
            }
            for one in by_kernel(selection)
        ],
        "outside_steps": {"launches": lost, "time_ns": lost_ns},
        "cautions": [{"code": code, "text": text} for code, text, _ in _notes(trace)],
    }
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


_PLAIN = (
    "kernel_ns", "span_ns", "step_ns", "slack_ns", "work_ns", "calls", "call_ns", "syncs", "sync_ns", "overhead_ns",
    "memsets", "communication_ns", "hidden_ns",
)  # fmt: skip


def render_csv(selection: Selection) -> str:
    """A line for each step, device, kernel and place; over all lines times add up to the selection's kernel time."""
    trace = selection.trace
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for one in by_step_and_kernel(selection):
        inside = one.step != NONE
        writer.writerow(
            (
                int(trace.steps.index[one.step]) if inside else "",
                STEP_KINDS[trace.steps.kind[one.step]] if inside else "",
                trace.processes[trace.steps.process[one.step]] if inside else "",
                one.device,
                csv_text(one.role),
                one.place,
                csv_text(trace.names.short[one.name]),
                one.launches,
                one.graph_launches,
                one.time_ns,
                csv_text(trace.names.demangled[one.name]),
            )
        )
    return sink.getvalue()


def csv_text(text: str) -> str:
    """A text from a trace for a cell: no spreadsheet takes it for a formula, and it steers no terminal."""
    shown = printable(text)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown


_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a formula begins with, also in the wide forms that spreadsheets take for the same."""

CSV_COLUMNS = (
    "step", "kind", "process", "device", "role", "place", "kernel", "launches", "graph_launches", "time_ns", "name"
)  # fmt: skip

FORMATS: dict[str, Callable[[Selection], str]] = {
    "text": render_text,
    "markdown": render_markdown,
    "json": render_json,
    "csv": render_csv,
}
"""Every format by the name that ``--format`` takes."""


def _headings(selection: Selection) -> list[str]:
    trace = selection.trace
    kinds = Counter(STEP_KINDS[kind] for kind in trace.steps.kind.tolist())
    steps = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    on_cpu = (trace.kernels.device == NONE).all()
    devices = "CPU" if on_cpu else ", ".join(sorted(set(trace.devices.values()))) or "unknown GPU"
    lines = [f"{trace.source}, {devices}: {len(trace.kernels)} kernels, {len(trace.steps)} steps ({steps or 'none'})"]
    lines.append(f"Shown: {selection.what}{_pattern_words(selection)}.")
    lost, lost_ns = outside(trace)
    if lost:
        lines.append(f"Outside the steps: {lost} kernels, {_ns(lost_ns)}.")
    return [printable(line) for line in lines]


def _pattern_words(selection: Selection) -> str:
    """How many kernels a step launches, where that is what is shown."""
    found = patterns(selection)
    if selection.layer is not None or not found:
        return ""
    if len(found) == 1:
        return f", {found[0][0]} kernels{' each' if selection.steps > 1 else ''}"
    shown = ", ".join(f"{launches} in {count}" for launches, count in found[:5])
    more = f" and {len(found) - 5} other numbers" if len(found) > 5 else ""  # noqa: PLR2004 (a line)
    return f"; kernels in a step: {shown}{more}"


def _tables(selection: Selection) -> list[tuple[str, Rows]]:
    """Title and rows of each table, headings first."""
    mean = ", mean of a step" if selection.steps > 1 else ""
    tables = [
        (f"Roles{mean}", _sum_rows(selection, by_role(selection), kernels=False)),
        (f"Kernels{mean}", _sum_rows(selection, by_kernel(selection), kernels=True)),
    ]
    if len(selection.figures) and selection.layer is None:
        tables.insert(0, ("Times", _figure_rows(selection)))
    if selection.layer is not None and len(np.unique(selection.trace.kernels.step[selection.rows])) == 1:
        tables.append(("Launches", _launch_rows(selection)))
    return [(printable(title), [tuple(map(printable, row)) for row in rows]) for title, rows in tables]


def _figure_rows(selection: Selection) -> Rows:
    found = selection.figures
    rows: Rows = [("", "median", "least", "most", "meaning")]
    for title, name, meaning in FIGURES:
        rows += _spread(title, np.asarray(getattr(found, name)), meaning, _ns)
    for number, gap in enumerate(GAPS):
        rows += _spread(f"idle: {gap}", found.gap_ns[:, number], _GAP_MEANINGS[gap], _ns)
    rows += _spread("graph coverage", found.graph_coverage, "share of kernels that CUDA graphs launched", percent)
    rows += _spread("launch calls", found.calls, "of the host", _count)
    for number, kind in enumerate(COPY_KINDS):
        size = format_value(float(np.median(found.copy_bytes[:, number])), "B")
        rows += _spread(f"copies {kind}", found.copies[:, number], f"{size} a step", _count)
    return rows + _spread("memsets", found.memsets, "", _count)


_GAP_MEANINGS = {
    "graph": "between kernels of one graph launch, where the host plays no part",
    "launch": "the host was launching",
    "copy": "the host was in a copy",
    "synchronise": "the host was waiting for the device",
    "nothing": "the host was in no CUDA call",
}


def _spread(title: str, values: NDArray[Any], meaning: str, shown: Callable[[float], str]) -> Rows:
    """One row, or none where the figure is unknown or 0 in every step."""
    values = values[values != NO_TIME]
    if not values.any():
        return []
    return [(title, *(shown(float(value)) for value in (np.median(values), values.min(), values.max())), meaning)]


def _sum_rows(selection: Selection, sums: Sequence[KernelSum], *, kernels: bool) -> Rows:
    total = sum(one.time_ns for one in sums)
    names = selection.trace.names.short
    rows: Rows = [("role", "launches", "time", "share", "from graphs", *(("place", "kernel") if kernels else ()))]
    for one in sums:
        figures = (_count(one.launches / selection.steps), _ns(one.time_ns / selection.steps))
        shares = (percent(one.time_ns / total) if total else "-", percent(one.graph_launches / one.launches))
        rows.append((one.role, *figures, *shares, *((one.place, names[one.name]) if kernels else ())))
    return rows


def _launch_rows(selection: Selection) -> Rows:
    """Every launch in order of start: where it lies in the step's stretch, how long nothing ran before it."""
    trace = selection.trace
    kernels = trace.kernels.take(selection.rows)
    rows: Rows = [("start", "gap before", "time", "role", "place", "grid", "block", "kernel")]
    ends = kernels.start_ns + kernels.duration_ns
    reached = np.maximum.accumulate(ends)
    for row in range(min(len(kernels), LISTED)):
        gap = int(kernels.start_ns[row] - reached[row - 1]) if row else 0
        name, shape = int(kernels.name[row]), trace.shapes[kernels.shape[row]].tolist()
        sizes = ("x".join(map(str, shape[:3])), "x".join(map(str, shape[3:]))) if any(shape) else ("-", "-")
        times = (_ns(kernels.start_ns[row] - kernels.start_ns[0]), _ns(max(gap, 0)), _ns(kernels.duration_ns[row]))
        rows.append((*times, trace.names.role[name], PLACES[kernels.place[row]], *sizes, trace.names.short[name]))
    return rows


def _notes(trace: Trace) -> list[tuple[str, str, str]]:
    return [(one.code, printable(one.text), REASONS[one.code].remedy) for one in trace.cautions]


def _ns(value: float) -> str:
    return format_value(float(value) / 1e9, "s")


def _count(value: float) -> str:
    return f"{value:.0f}" if value == round(value) else f"{value:.3g}"


def _known(value: Any) -> int | None:
    return None if value == NO_TIME else int(value)
