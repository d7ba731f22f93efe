"""A selection of a trace: what its steps are made of, role by role, kernel by kernel."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfgate.models import Note
from perfgate.report.csv_rows import csv_table
from perfgate.report.document import Document, NoteLine, Section, printable
from perfgate.scenario.kernel_names import COPY_KINDS, PLACES
from perfgate.trace.idle_gaps import GAPS
from perfgate.trace.kernel_table import NO_TIME, NONE, STEP_KINDS, Trace
from perfgate.trace.selection import KernelSum, Selection, by_kernel, by_role, by_step_and_kernel, outside, patterns
from perfgate.units import format_mean, format_ns, format_value, listed, percent, plural

Rows = list[tuple[str, ...]]
LISTED = 2000
"""Launches that a listing shows at most; JSON and CSV hold all."""
RANKS = 8
"""Ranks that a heading names at most."""

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


def kernels_document(selection: Selection) -> Document:
    """What is shown, where the time goes, and what to know about the trace."""
    mean = ", mean of a step" if selection.steps > 1 else ""
    sections = [
        Section(title=f"Roles{mean}", rows=_sum_rows(selection, by_role(selection), kernels=False)),
        Section(title=f"Kernels{mean}", rows=_sum_rows(selection, by_kernel(selection), kernels=True)),
    ]
    if len(selection.figures) and selection.layer is None:
        sections.insert(0, Section(title="Times", rows=_figure_rows(selection)))
    if selection.layer is not None and len(np.unique(selection.trace.kernels.step[selection.rows])) == 1:
        sections.append(Section(title="Launches", rows=_launch_rows(selection)))
    return Document.of(trace_headings(selection), [*sections, caution_section(selection.trace.cautions)])


def caution_section(cautions: Iterable[Note]) -> Section:
    """What to know about a trace."""
    return Section(notes=tuple(NoteLine.of("caution", "", note) for note in cautions))


def kernels_json(selection: Selection) -> str:
    """Everything, for programs; durations in nanoseconds."""
    trace, figures = selection.trace, selection.figures
    steps = []
    for row in range(len(figures)):
        step = int(figures.step[row])
        steps.append(
            {
                "step": int(trace.steps.index[step]),
                "kind": STEP_KINDS[trace.steps.kind[step]],
                "complete": bool(trace.steps.complete[step]),
                "inferred": bool(trace.steps.inferred[step]),
                "process": trace.processes[trace.steps.process[step]],
                "device": int(figures.device[row]),
                **{name: _known(getattr(figures, name)[row]) for name in _PLAIN},
                "idle_ns": dict(zip(GAPS, figures.gap_ns[row].tolist(), strict=True)),
                "copies": dict(zip(COPY_KINDS, figures.copies[row].tolist(), strict=True)),
                "copy_bytes": dict(zip(COPY_KINDS, figures.copy_bytes[row].tolist(), strict=True)),
                "roles": {
                    role: {"launches": int(figures.role_launches[row, n]), "time_ns": int(figures.role_ns[row, n])}
                    for n, role in enumerate(trace.roles)
                    if figures.role_launches[row, n]
                },
            }
        )
    lost, lost_ns = outside(trace)
    content = {
        "source": trace.source,
        "devices": {str(number): name for number, name in trace.devices.items()},
        "processes": list(trace.processes),
        "selection": selection.what,
        "ranks": [rank._asdict() for rank in selection.ranks],
        "steps": steps,
        "kernels": [
            {
                "role": kernel.role,
                "place": kernel.place,
                "kernel": trace.names.short[kernel.name],
                "name": trace.names.demangled[kernel.name],
                "normalised": trace.names.normalised[kernel.name],
                "launches": kernel.launches,
                "graph_launches": kernel.graph_launches,
                "time_ns": kernel.time_ns,
            }
            for kernel in by_kernel(selection)
        ],
        "outside_steps": {"launches": lost, "time_ns": lost_ns},
        "cautions": [{"code": note.code, "text": printable(note.text)} for note in trace.cautions],
    }
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


_PLAIN = (
    "launches", "graph_launches", "busy_ns", "kernel_ns", "span_ns", "step_ns", "slack_ns", "work_ns", "calls",
    "call_ns", "syncs", "sync_ns", "overhead_ns", "memsets", "communication_ns", "hidden_ns",
)  # fmt: skip


def kernels_csv(selection: Selection) -> str:
    """A line for each step, device, kernel and place; over all lines times add up to the selection's kernel time."""
    trace = selection.trace
    return csv_table(CSV_COLUMNS, (_csv_row(trace, row) for row in by_step_and_kernel(selection)))


def _csv_row(trace: Trace, row: KernelSum) -> tuple[Any, ...]:
    inside = row.step != NONE
    names = (row.role, row.place, trace.names.short[row.name])
    return (
        int(trace.steps.index[row.step]) if inside else "",
        STEP_KINDS[trace.steps.kind[row.step]] if inside else "",
        trace.processes[trace.steps.process[row.step]] if inside else "",
        *(row.device, *names, row.launches, row.graph_launches, row.time_ns, trace.names.demangled[row.name]),
    )


CSV_COLUMNS = (
    "step", "kind", "process", "device", "role", "place", "kernel", "launches", "graph_launches", "time_ns", "name"
)  # fmt: skip


def trace_headings(selection: Selection) -> list[str]:
    """What a selection is of, line by line."""
    trace = selection.trace
    on_cpu = (trace.kernels.device == NONE).all() and not trace.devices
    devices = "CPU" if on_cpu else ", ".join(sorted(set(trace.devices.values()))) or "unknown GPU"
    lines = [f"{trace.source}, {devices}: {plural(len(trace.kernels), 'kernel')}, {_steps_words(trace)}"]
    lines.append(f"Shown: {selection.what}{_pattern_words(selection)}.")
    ranks = selection.ranks
    if len(ranks) > 1:
        named = [f"process {rank.process} device {rank.device} ({plural(rank.steps, 'step')})" for rank in ranks]
        lines.append(
            f"Ranks: {listed(named, RANKS)}. Figures are over all of them; --show ranks holds them side by side."
        )
    lost, lost_ns = outside(trace)
    if lost:
        lines.append(f"Outside the steps: {plural(lost, 'kernel')}, {format_ns(lost_ns)}.")
    return lines


def _steps_words(trace: Trace) -> str:
    """How many steps a trace has by kind; where several processes have steps, of each."""
    steps, noun = trace.steps, f"{'inferred ' if trace.steps.inferred.any() else ''}step"
    by_process: dict[int, Counter[str]] = {}
    for process, kind in zip(steps.process.tolist(), steps.kind.tolist(), strict=True):
        by_process.setdefault(process, Counter())[STEP_KINDS[kind]] += 1
    alike = len({tuple(sorted(kinds.items())) for kinds in by_process.values()}) == 1
    kinds = next(iter(by_process.values())) if alike else sum(by_process.values(), Counter[str]())
    shown = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    of = f" of {'each of ' if alike else ''}{len(by_process)} processes" if len(by_process) > 1 else ""
    return f"{plural(kinds.total(), noun)}{of} ({shown or 'none'})"


def _pattern_words(selection: Selection) -> str:
    """How many kernels a step launches, where that is what is shown."""
    counts = patterns(selection)
    if selection.layer is not None or not counts:
        return ""
    if len(counts) == 1:
        return f", {plural(counts[0][0], 'kernel')}{' each' if selection.steps > 1 else ''}"
    shown = ", ".join(f"{launches} in {count}" for launches, count in counts[:5])
    more = f" and {len(counts) - 5} other numbers" if len(counts) > 5 else ""  # noqa: PLR2004 (a line)
    return f"; kernels in a step: {shown}{more}"


def _figure_rows(selection: Selection) -> Rows:
    figures = selection.figures
    rows: Rows = [("", "median", "least", "most", "meaning")]
    for title, name, meaning in FIGURES:
        rows += _spread(title, np.asarray(getattr(figures, name)), meaning, format_ns)
    for number, gap in enumerate(GAPS):
        rows += _spread(f"idle: {gap}", figures.gap_ns[:, number], _GAP_MEANINGS[gap], format_ns)
    rows += _spread("graph coverage", figures.graph_coverage, "share of kernels that CUDA graphs launched", percent)
    rows += _spread("launch calls", figures.calls, "of the host", format_mean)
    for number, kind in enumerate(COPY_KINDS):
        size = format_value(float(np.median(figures.copy_bytes[:, number])), "B")
        rows += _spread(f"copies {kind}", figures.copies[:, number], f"{size} a step", format_mean)
    return rows + _spread("memsets", figures.memsets, "", format_mean)


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
    total = sum(kernel.time_ns for kernel in sums)
    names = selection.trace.names.short
    rows: Rows = [("role", "launches", "time", "share", "from graphs", *(("place", "kernel") if kernels else ()))]
    for kernel in sums:
        figures = (format_mean(kernel.launches / selection.steps), format_ns(kernel.time_ns / selection.steps))
        shares = (percent(kernel.time_ns / total) if total else "-", percent(kernel.graph_launches / kernel.launches))
        rows.append((kernel.role, *figures, *shares, *((kernel.place, names[kernel.name]) if kernels else ())))
    return rows


def _launch_rows(selection: Selection) -> Rows:
    """Every launch in order of start: where it is in the step's stretch, how long nothing ran before it."""
    trace = selection.trace
    kernels = trace.kernels.take(selection.rows)
    rows: Rows = [("start", "gap before", "time", "role", "place", "grid", "block", "kernel")]
    ends = kernels.start_ns + kernels.duration_ns
    reached = np.maximum.accumulate(ends)
    for row in range(min(len(kernels), LISTED)):
        gap = int(kernels.start_ns[row] - reached[row - 1]) if row else 0
        name, shape = int(kernels.name[row]), trace.shapes[kernels.shape[row]].tolist()
        sizes = ("x".join(map(str, shape[:3])), "x".join(map(str, shape[3:]))) if any(shape) else ("-", "-")
        start = kernels.start_ns[row] - kernels.start_ns[0]
        times = map(format_ns, (start, max(gap, 0), kernels.duration_ns[row]))
        rows.append((*times, trace.names.role[name], PLACES[kernels.place[row]], *sizes, trace.names.short[name]))
    return rows


def _known(value: Any) -> int | None:
    return None if value == NO_TIME else int(value)
