"""The report for a pipe, a step summary or a comment: GitHub Markdown, the verdict first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

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

NAME = re.compile(r"[A-Za-z0-9]+(?:_[A-Za-z0-9]+)+(?:\[[A-Za-z0-9_-]+\])?")
"""A metric, with its role where it has one: nothing in it could end a code span or a table's cell."""


class Block(NamedTuple):
    """A part of the report.

    Args:
        text: Markdown.
        importance: What must be read first has 0; where there is no room for all, the largest goes first.
    """

    text: str
    importance: int


def render_markdown(outcome: Outcome) -> str:
    """The whole outcome; everything that came from an engine is escaped or fenced."""
    return "\n\n".join(block.text for block in blocks(outcome)) + "\n"


def blocks(outcome: Outcome) -> Iterator[Block]:
    """The outcome in the order of the report: the verdict, what is red, its reasons, its details, then what passed."""
    yield Block(f"**{escape(closing(outcome))}**", 0)
    for cell in outcome.cells:
        first = 4 if cell.verdict in ("pass", "improved") else 1
        yield Block(f"### {escape(cell_heading(cell))}", first)
        yield from (Block(escape(line), first + 1) for line in (cell_setting(cell),) if line)
        if cell.gates:
            rows = [HEADINGS, *(gate_row(gate) for gate in ordered_gates(cell))]
            yield Block("\n".join(table(rows)), first)
        if cell.ungated:
            yield Block(f"Not gated: {escape(ungated_line(cell))}", first + 2)
        if cell.floors:
            yield Block(f"Floor: {escape(floor_line(cell))}", first + 2)
        if cell.gpus:
            yield Block(f"GPU: {escape(gpu_line(cell))}", first + 2)
        if cell.baseline:
            yield Block(f"Baseline: {escape(baseline_line(cell))}", first)
        if cell.attribution:
            yield Block("\n".join(table([ATTRIBUTION, *attribution_rows(cell.attribution)])), first + 2)
            yield Block(escape(attribution_sentence(cell.attribution)), first + 2)
        if cell.counters and cell.counters.rows:
            yield Block("\n".join(table([COUNTED, *counted_rows(cell.counters)])), first + 2)
            lines = (counted_rest(cell.counters), *changed(cell.counters))
            yield from (Block(escape(line), first + 2) for line in lines if line)
        yield from (Block(text, first + 1) for text in _note_blocks(notes(cell)))
    yield from (Block(text, 1) for text in _note_blocks(run_notes(outcome)))
    yield from _setting_blocks(outcome)


def _setting_blocks(outcome: Outcome) -> Iterator[Block]:
    if facts := run_setting(outcome):
        yield Block("\n".join(["Measured:", "", *(f"- {name}: {escape(text)}" for name, text in facts)]), 2)
    if steps := next_steps(outcome):
        yield Block(f"To find out more:\n\n{fenced(chr(10).join(steps))}", 2)


def escape(text: str) -> str:
    """Text that Markdown shows as it is: no markup, no HTML, no mention, no table cell broken.

    An underscore between letters or digits opens nothing (CommonMark 0.31, rules 2 and 6 of emphasis), so that names
    like ``itl_median`` stay as they are and can be searched for.
    """
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|[\\`*\[\]|~#$]", r"\\\g<0>", text)
    return text.replace("@", "@\u200b").replace("\n", " ")


def fenced(text: str) -> str:
    """Text in a code block whose fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def name(text: str) -> str:
    """A name in a code span, ``kernel_time_per_step[gemm]`` as it is written elsewhere; other text escaped."""
    return f"`{text}`" if NAME.fullmatch(text) else escape(text)


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Rows as a table, the first one its heading: names in the first column, figures flush right, all text escaped."""
    heading, *body = rows
    alignment = ["---", *["---:"] * (len(heading) - 2), "---"]
    shown = ([name(first), *map(escape, others)] for first, *others in body)
    return [f"| {' | '.join(cells)} |" for cells in (heading, alignment, *shown)]


def _note_blocks(found: Iterable[NoteLine]) -> list[str]:
    blocks = []
    for note in found:
        first, *rest = note.text.splitlines() or [""]
        stop = "" if first.endswith((".", ":", "!", "?")) else "."
        head = f"- {note.kind} `{note.code}` ({name(note.place)}): {escape(first)}{stop} _{escape(note.remedy)}_"
        blocks.append(head if not rest else head + "\n\n" + fenced("\n".join(rest)))
    return ["\n".join(blocks)] if blocks else []
