"""The report for a terminal: fixed-width columns, the verdict last."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from perfgate.judge.outcome import Outcome
from perfgate.report.attribution_lines import HEADINGS as ATTRIBUTION
from perfgate.report.attribution_lines import attribution_rows, attribution_sentence
from perfgate.report.outcome_lines import (
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
from perfgate.report.profile import HEADINGS as COUNTED
from perfgate.report.profile import changed, counted_rest, counted_rows
from perfgate.report.setting_lines import cell_setting, next_steps, run_setting

WITH_ITS_UNIT, UNBROKEN = r"(?<=\d) (?=\S{1,5}(?:\s|$))", "\u00a0"
"""The blank between a number and a short word, and what stands for it while lines are broken."""
GIVE_WAY = (5, 6, 4, 1, 2)
"""Columns of the gates' table that move below their row where it is too wide, the least needed first."""
COUNTED_GIVE_WAY = (6, 5, 4, 8, 2)
"""Those of the counted kernels."""
NOTHING = ("", "-")
"""What stands in a cell without a value."""


def render_text(outcome: Outcome, width: int | None = None) -> str:
    """The whole outcome.

    Args:
        outcome: What is shown.
        width: Columns of the terminal; without it nothing is wrapped, and a table is as wide as its content.
    """
    lines: list[str] = []
    for cell in outcome.cells:
        of = cell_setting(cell)
        lines += [*wrapped(cell_heading(cell), width), *(wrapped(f"  {of}", width) if of else []), ""]
        if cell.gates:
            lines += columns([HEADINGS, *(gate_row(gate) for gate in ordered_gates(cell))], width, GIVE_WAY)
        if cell.ungated:
            lines += wrapped(f"  not gated: {ungated_line(cell)}", width)
        if cell.floors:
            lines += wrapped(f"  floor: {floor_line(cell)}", width)
        if cell.gpus:
            lines += wrapped(f"  GPU: {gpu_line(cell)}", width)
        if cell.baseline:
            lines += wrapped(f"  baseline: {baseline_line(cell)}", width)
        if cell.attribution:
            lines += ["", *columns([ATTRIBUTION, *attribution_rows(cell.attribution)], width)]
            lines += [*wrapped(f"  {attribution_sentence(cell.attribution)}", width), ""]
        if cell.counters and cell.counters.rows:
            counted = columns([COUNTED, *counted_rows(cell.counters)], width, COUNTED_GIVE_WAY)
            lines += [*([""] if lines[-1] else []), *counted]
            rest = (counted_rest(cell.counters), *changed(cell.counters))
            lines += [part for line in rest if line for part in wrapped(f"  {line}", width)]
        said = _note_lines(notes(cell), width)
        lines += [*([""] if said and cell.counters else []), *said, ""]
    of_run = _note_lines(run_notes(outcome), width)
    lines += [*of_run, ""] if of_run else []
    facts = [part for name, text in run_setting(outcome) for part in wrapped(f"{name}: {text}", width)]
    lines += [*facts, ""] if facts else []
    steps = next_steps(outcome)  # never broken: they are to be copied
    lines += ["to find out more:", *(f"  {step}" for step in steps), ""] if steps else []
    return "\n".join([*lines, *wrapped(closing(outcome), width), ""])


def columns(rows: Sequence[Sequence[str]], width: int | None = None, give_way: Sequence[int] = ()) -> list[str]:
    """Rows as indented lines; the first and the last column flush left, those between flush right.

    Args:
        rows: The first one is the heading.
        width: Of the terminal; ``None`` for any.
        give_way: Columns that move to a line below their row, empty ones first and then in this order, until the others
            fit.
    """
    below: list[int] = []
    lines = _aligned(rows)
    for column in sorted(give_way, key=lambda n: any(row[n] not in NOTHING for row in rows[1:])):
        if width is None or max(map(len, lines)) <= width:
            break
        below.append(column)
        lines = _aligned([[text for n, text in enumerate(row) if n not in below] for row in rows])
    if not below:
        return lines
    heading, *body = rows
    shown = [lines[0]]
    for line, row in zip(lines[1:], body, strict=True):
        facts = ", ".join(f"{heading[n]} {row[n]}" for n in sorted(below) if row[n] not in NOTHING)
        shown += [line, *(wrapped(f"      {facts}", width) if facts else [])]
    return shown


def wrapped(text: str, width: int | None) -> list[str]:
    """A paragraph in lines of so many columns, what follows the first indented two more; never broken in a word."""
    if width is None or len(text) <= width:
        return [text]
    own = " " * (len(text) - len(text.lstrip()))
    lines = textwrap.wrap(
        re.sub(WITH_ITS_UNIT, UNBROKEN, text.lstrip()), max(width, len(own) + 20), initial_indent=own,
        subsequent_indent=f"{own}  ", break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace(UNBROKEN, " ") for line in lines]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    last = len(widths) - 1
    return [
        "  " + "  ".join(
            text.ljust(width) if n in (0, last) else text.rjust(width)
            for n, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]  # fmt: skip


def _note_lines(found: Iterable[NoteLine], width: int | None) -> list[str]:
    lines = []
    for note in found:
        first, *rest = note.text.splitlines() or [""]
        lines += wrapped(f"  {note.kind} {note.code} ({note.place}): {first}", width)
        lines += [f"      {line}" for line in rest]  # an engine's own lines, as it wrote them
        lines += wrapped(f"    -> {note.remedy}", width)
    return lines
