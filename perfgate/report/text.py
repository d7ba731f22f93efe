"""The report for a terminal: fixed-width columns, the verdict last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perfgate.outcome import Outcome
from perfgate.report.attribution import HEADINGS as ATTRIBUTION
from perfgate.report.attribution import attribution_rows, attribution_sentence
from perfgate.report.counted import HEADINGS as COUNTED
from perfgate.report.counted import changed, counted_rest, counted_rows
from perfgate.report.lines import (
    HEADINGS,
    NoteLine,
    baseline_line,
    cell_heading,
    closing,
    floor_line,
    gate_row,
    gpu_line,
    notes,
    ordered_gates,
    run_notes,
    ungated_line,
)


def render_text(outcome: Outcome) -> str:
    """The whole outcome; columns are as wide as their content and never cut."""
    lines: list[str] = []
    for cell in outcome.cells:
        lines += [cell_heading(cell), ""]
        if cell.gates:
            lines += columns([HEADINGS, *(gate_row(gate) for gate in ordered_gates(cell))])
        if cell.ungated:
            lines.append(f"  not gated: {ungated_line(cell)}")
        if cell.floors:
            lines.append(f"  floor: {floor_line(cell)}")
        if cell.gpus:
            lines.append(f"  GPU: {gpu_line(cell)}")
        if cell.baseline:
            lines.append(f"  baseline: {baseline_line(cell)}")
        if cell.attribution:
            lines += ["", *columns([ATTRIBUTION, *attribution_rows(cell.attribution)])]
            lines += [f"  {attribution_sentence(cell.attribution)}", ""]
        if cell.counters and cell.counters.rows:
            lines += [*([""] if lines[-1] else []), *columns([COUNTED, *counted_rows(cell.counters)])]
            lines += [f"  {line}" for line in (counted_rest(cell.counters), *changed(cell.counters)) if line]
        said = _note_lines(notes(cell))
        lines += [*([""] if said and cell.counters else []), *said, ""]
    of_run = _note_lines(run_notes(outcome))
    lines += [*of_run, ""] if of_run else []
    return "\n".join([*lines, closing(outcome), ""])


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as indented lines; the first and the last column flush left, those between flush right."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    last = len(widths) - 1
    return [
        "  " + "  ".join(
            text.ljust(width) if n in (0, last) else text.rjust(width)
            for n, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]  # fmt: skip


def _note_lines(found: Iterable[NoteLine]) -> list[str]:
    lines = []
    for note in found:
        first, *rest = note.text.splitlines() or [""]
        lines.append(f"  {note.kind} {note.code} ({note.place}): {first}")
        lines += [f"      {line}" for line in rest]
        lines.append(f"    -> {note.remedy}")
    return lines
