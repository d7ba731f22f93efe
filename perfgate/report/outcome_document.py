"""An outcome as a document: each part of a cell is a function that makes its section."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from perfgate.judge.outcome import CellOutcome, Outcome
from perfgate.metrics.kinds import parts_of_kinds
from perfgate.report.closing_sentence import closing
from perfgate.report.curves import curve_sections
from perfgate.report.document import Document, Section
from perfgate.report.outcome_lines import (
    HEADINGS,
    baseline_line,
    by_metric,
    cell_heading,
    floor_line,
    gate_row,
    gpu_line,
    in_brief,
    loudly,
    met_line,
    notes,
    other_states,
    run_notes,
    states_line,
    ungated_line,
)
from perfgate.report.setting_lines import cell_setting, edits, next_steps, run_setting

Part = Callable[[CellOutcome], Section | None]
GIVE_WAY = (5, 6, 4, 1, 2)
"""Columns of the gates' table that move below their row where it is too wide, the least needed first."""


def outcome_document(outcome: Outcome, plot: Part = lambda _: None) -> Document:
    """Cell by cell what is red, its reasons and its details; then what was measured and what to do next.

    Args:
        outcome: The verdict.
        plot: Makes what is shown under the table of a cell.
    """
    steps = tuple(next_steps(outcome))
    sections = [heads_section(outcome), *(section for cell in outcome.cells for section in _cell(cell, plot))]
    sections += [
        *curve_sections(outcome),
        Section(notes=tuple(run_notes(outcome))),
        Section(lead="measured", lines=tuple(run_setting(outcome)), style="facts", importance=2),
        Section(lead=f"to find out more{edits(steps)}", lines=steps, style="commands", importance=2),
    ]
    return Document.of([closing(outcome)], sections, is_verdict=True)


def _cell(cell: CellOutcome, plot: Part) -> Iterator[Section]:
    """Cells that passed are read last; nothing is close to the heading."""
    first = 4 if cell.verdict in ("pass", "improved") else 1
    sections = [make(cell) for make in (*PARTS[:2], plot, *PARTS[2:])]
    sections += (section for make in parts_of_kinds("sections", "before_notes") for section in make(cell))
    sections.append(notes_section(cell))
    sections += (section for make in parts_of_kinds("sections", "after_notes") for section in make(cell))
    for n, section in enumerate(filter(None, sections)):
        yield replace(section, importance=section.importance + first, close=section.close and n > 1)


def heading_section(cell: CellOutcome) -> Section:
    """The cell by name, with what it is of."""
    return Section(title=cell_heading(cell), lines=_some(cell_setting(cell)), importance=0)


def heads_section(outcome: Outcome) -> Section:
    """Of several heads what each gate found, a column a head; empty where there is one."""
    heads = [*dict.fromkeys(cell.head for cell in outcome.cells if cell.head)]
    if not heads:
        return Section()
    several = len({cell.cell_id for cell in outcome.cells}) > 1
    found: dict[str, dict[str, str]] = {}
    for cell in outcome.cells:
        name = cell.name.removeprefix(f"{cell.head}: ") if several else ""
        worst = {gate.metric: gate for gate, *_ in by_metric(cell)}
        for metric in dict.fromkeys(gate.metric for gate in cell.gates):
            found.setdefault(f"{name} {metric}".strip(), {})[cell.head] = in_brief(worst[metric])
        found.setdefault(f"{name} verdict".strip(), {})[cell.head] = loudly(cell.verdict)
    rows = [(metric, *(by_head.get(head, "-") for head in heads)) for metric, by_head in found.items()]
    return Section(title="Heads beside one base", rows=[("metric", *heads), *rows], importance=0)


def gates_section(cell: CellOutcome) -> Section:
    """A row a metric, what needs reading first; the states of the machine that a row is not of in lines below."""
    rows = [gate_row(gate) for gate, *_ in by_metric(cell)]
    return Section(rows=[HEADINGS, *rows] if rows else (), lines=other_states(cell), give_way=GIVE_WAY, importance=0)


def notes_section(cell: CellOutcome) -> Section:
    """Every reason and caution with its remedy."""
    close = not (cell.attribution or cell.counters)
    return Section(notes=tuple(notes(cell)), importance=1, close=close)


def _fact(lead: str, line_of: Callable[[CellOutcome], str], importance: int) -> Part:
    return lambda cell: Section(lead=lead, lines=_some(line_of(cell)), importance=importance, close=True)


def _ungated(cell: CellOutcome) -> Section:
    """What no gate judged; of one side alone nothing was judged, its gated metrics neither."""
    alone = all(None in (row.base, row.head) for row in cell.ungated)
    lines = _some(ungated_line(cell))
    return Section(lead="measured" if alone else "not gated", lines=lines, importance=2, close=True)


def _some(line: str) -> tuple[str, ...]:
    return (line,) if line else ()


PARTS: tuple[Part, ...] = (
    heading_section,
    gates_section,
    _ungated,
    _fact("met", met_line, 2),
    _fact("floor", floor_line, 2),
    _fact("GPU", gpu_line, 2),
    _fact("states", states_line, 0),
    _fact("baseline", baseline_line, 0),
)
"""Of a cell, in the order of the report, before what kinds of trials show and the notes; importance counts from that of
the cell."""
