"""The story of an outcome as documents: the report, and the explanation of its verdict step by step."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace

from perfgate.judge.outcome import PASSED, CellOutcome, Outcome
from perfgate.metrics.kinds import parts_of_kinds
from perfgate.record.stop import Stop
from perfgate.report.curves import curve_sections
from perfgate.report.document import Document, Section, printable
from perfgate.report.outcome_lines import HEADINGS, by_metric, gate_row, in_brief, loudly, other_states
from perfgate.report.story import CellStory, Story, next_section, tell

GIVE_WAY = (5, 6, 4, 1, 2)
"""Columns of the gates' table that move below their row where it is too wide, the least needed first."""
MOST_COMMANDS = 3
ALWAYS_READ = ("states", "baseline")  # facts about a cell that its gates cannot be read without

Plot = Callable[[CellStory], Section | None]


def outcome_document(outcome: Outcome, plot: Plot = lambda _: None) -> Document:
    """Cell by cell what is red, its reasons and details, with a plot below; then what was measured and is next."""
    story = tell(outcome)
    sections = [heads_section(outcome), *(section for cell in story.cells for section in _cell(cell, plot))]
    sections += [
        *curve_sections(outcome),
        Section(notes=story.notes),
        Section(lead="measured", lines=story.measured, style="facts", importance=2),
        next_section(story.next),
    ]
    return Document.of(story.sentences, sections, is_verdict=True)


def _cell(cell: CellStory, plot: Plot) -> Iterator[Section]:
    """Cells that passed are read last; nothing is close to the heading."""
    first = 4 if cell.outcome.verdict in PASSED else 1
    sections = [heading_section(cell), gates_section(cell), plot(cell)]
    sections += [
        Section(lead=lead, lines=(line,), importance=0 if lead in ALWAYS_READ else 2, close=True)
        for lead, line in cell.facts.items()
    ]
    sections += of_kinds("before_notes", cell.outcome)
    sections.append(Section(notes=cell.notes, close=not (cell.outcome.attribution or cell.outcome.counters)))
    sections += of_kinds("after_notes", cell.outcome)
    for n, section in enumerate(filter(None, sections)):
        yield replace(section, importance=section.importance + first, close=section.close and n > 1)


def of_kinds(place: str, cell: CellOutcome) -> Iterator[Section]:
    """What kinds of trials show in a place of a report."""
    for make in parts_of_kinds("sections", place):
        yield from make(cell)


def heading_section(cell: CellStory) -> Section:
    """The cell by name, with what it is of."""
    return Section(title=cell.title, lines=(cell.setting,) if cell.setting else (), importance=0)


def heads_section(outcome: Outcome) -> Section:
    """Of several heads what each gate found, a column a head; empty where there is one."""
    heads = [*dict.fromkeys(cell.head for cell in outcome.cells if cell.head)]
    if not heads:
        return Section()
    several = len({cell.cell_id for cell in outcome.cells}) > 1
    rows: dict[str, dict[str, str]] = {}
    for cell in outcome.cells:
        name = cell.name.removeprefix(f"{cell.head}: ") if several else ""
        worst = {gate.metric: gate for gate, *_ in by_metric(cell)}
        for metric in dict.fromkeys(gate.metric for gate in cell.gates):
            rows.setdefault(f"{name} {metric}".strip(), {})[cell.head] = in_brief(worst[metric])
        rows.setdefault(f"{name} verdict".strip(), {})[cell.head] = loudly(cell.verdict)
    table = [(metric, *(by_head.get(head, "-") for head in heads)) for metric, by_head in rows.items()]
    return Section(title="Heads beside one base", rows=[("metric", *heads), *table], importance=0)


def gates_section(cell: CellStory) -> Section:
    """A row a metric, what needs reading first; the states of the machine that a row is not of in lines below."""
    rows, others = [gate_row(gate) for gate, *_ in by_metric(cell.outcome)], other_states(cell.outcome)
    return Section(rows=[HEADINGS, *rows] if rows else (), lines=others, give_way=GIVE_WAY, importance=0)


def explanation_document(outcome: Outcome, place: str = "", stop: Stop | None = None) -> Document:
    """How each gate came to its verdict, what explains it, and at most three commands.

    These name ``place`` where the run's name does not find its folder. A run that ``stop`` ended says so first.
    """
    story = tell(outcome)
    sections = []
    for cell in story.cells:
        sections += [
            Section(title=cell.outcome.name),
            Section(lead="step by step", lines=tuple(gate.steps for gate in cell.gates), style="facts"),
            Section(lead="what explains it", lines=cell.causes, style="facts"),
            Section(notes=tuple(note for note in cell.notes if note.kind == "reason")),
        ]
    how = "FAILED" if stop and stop.failed else "STOPPED"
    cut = f"{how} before its end, and can be resumed: {stop.code}: {printable(stop.text)}." if stop else ""
    sections += [Section(notes=story.notes), next_section(commands(story, place, go_on=stop is not None))]
    return Document.of(filter(None, [cut, *story.sentences]), sections)


def commands(story: Story, place: str = "", *, go_on: bool = False) -> tuple[str, ...]:
    """At most three to run next, the way on first; for ``place`` see :func:`explanation_document`."""
    name = story.outcome.run
    codes = {note.code for cell in story.cells for note in cell.notes}
    resumed = [f"perfgate run --resume {shlex.quote(name)}"] if go_on or "not-started" in codes else []
    offered = [*resumed, *story.next, f"perfgate report {shlex.quote(name)}", f"perfgate judge {shlex.quote(name)}"]
    chosen = (*dict.fromkeys(offered),)[:MOST_COMMANDS]
    if not place:
        return chosen
    words = [shlex.split(command) for command in chosen]
    return tuple(shlex.join([*parts[:2], *(place if word == name else word for word in parts[2:])]) for parts in words)
