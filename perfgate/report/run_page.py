"""A run as one page: its story first, then the evidence that it rests on, record by record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from perfgate.judge.cell_verdict import evidence_of_run
from perfgate.judge.evidence import Evidence
from perfgate.judge.outcome import WORST_FIRST, CellOutcome, Outcome
from perfgate.metrics.kinds import parts_of_kinds
from perfgate.record.manifest import read_manifest
from perfgate.record.run_names import RUN
from perfgate.record.run_record import Record, Run, read_records
from perfgate.report.curves import curve_sections
from perfgate.report.document import Document, Section, charted
from perfgate.report.outcome_charts import forest
from perfgate.report.outcome_document import gates_section, heading_section, heads_section
from perfgate.report.outcome_lines import ungated_rows
from perfgate.report.record_charts import iterations_chart, pairs_chart, states_of, telemetry_chart, tokens_chart
from perfgate.report.setting_lines import same_again
from perfgate.report.story import CellStory, next_section, tell

MOST_DETAILED = 12
"""Cells whose pairs, iterations and kernels are shown, the worst first; others have their gates and notes alone."""


@dataclass(frozen=True)
class MeasuredRun:
    """A verdict with what it was judged by."""

    outcome: Outcome  # the verdict
    run: Run | None = None  # the run's manifest; `None` for figures from elsewhere
    records: Mapping[str, Record] = field(default_factory=dict)  # by cell_id, those there are

    @property
    def seed(self) -> int | None:
        """What the order within pairs was drawn by; ``None`` for figures from elsewhere."""
        return self.run.plan.seed if self.run else None

    def evidence(self, cell: CellOutcome) -> Evidence | None:
        """What a cell was judged by; ``None`` for figures from elsewhere."""
        planned = {planned.cell_id: planned for planned in self.run.plan.cells} if self.run else {}
        if self.run is None or cell.cell_id not in planned:
            return None
        return evidence_of_run(self.run, planned[cell.cell_id], self.records.get(cell.cell_id), cell.head)

    @classmethod
    def of(cls, outcome: Outcome, folder: Path) -> Self:
        """A verdict with what its folder holds; a night's has no records of its own.

        Raises:
            RecordError: A record of the run cannot be trusted.
        """
        if not (folder / RUN).exists():
            return cls(outcome)
        run = read_manifest(folder)
        return cls(outcome, run, {record.cell.cell_id: record for record in read_records(folder, run)})


def run_page(measured: MeasuredRun) -> Document:
    """The sentences of its story, then each cell, the worst first, then what was measured and how to do it again."""
    outcome, story = measured.outcome, tell(measured.outcome)
    sections: list[Section | None] = [heads_section(outcome), *curve_sections(outcome, charts=True)]
    ranked = sorted(story.cells, key=lambda cell: list(WORST_FIRST).index(cell.outcome.verdict))
    for n, cell in enumerate(ranked):
        sections += _cell(cell, measured.evidence(cell.outcome) if n < MOST_DETAILED else None)
    sections += [
        Section(notes=story.notes),
        Section(title="The whole run"),
        next_section(story.next),
        Section(lead="to measure it again", lines=tuple(same_again(outcome, measured.seed)), style="commands"),
        Section(lead="measured", lines=(*story.measured, *_versions(outcome)), style="facts"),
    ]
    return replace(Document.of(story.sentences, sections), name=outcome.run, verdict=outcome.verdict)


def _versions(outcome: Outcome) -> Iterator[str]:
    yield f"judged by: perfgate {outcome.perfgate}"
    for cell in outcome.cells:
        for side, versions in cell.versions.items():
            yield f"{side} of {cell.name}: {', '.join(f'{name} {version}' for name, version in versions.items())}"
        if cell.record:
            yield f"record of {cell.name}: sha256 {cell.record}"


def _cell(cell: CellStory, evidence: Evidence | None) -> Iterator[Section | None]:
    facts = dict(cell.facts)
    facts.pop("measured", facts.pop("not gated", None))
    yield heading_section(cell)
    yield replace(gates_section(cell), lead="gates", chart=forest(cell.outcome))
    paired = evidence if evidence is not None and evidence.paired and evidence.sides else None
    states = states_of(paired, cell.outcome) if paired else None
    if paired and cell.lead is not None:
        yield charted(pairs_chart(paired, cell.lead, states), facts.pop("states", ""))
    yield from _of_kinds("before_notes", cell, evidence)
    yield Section(notes=cell.notes, lead="reasons and cautions")
    yield from _of_kinds("after_notes", cell, evidence)
    steps = tuple(gate.steps for gate in cell.gates)
    yield Section(lead="why this verdict, step by step", lines=steps, style="items", folded=True)
    yield Section(lead="what explains it", lines=cell.causes, style="items", folded=True)
    if paired:
        yield charted(iterations_chart(paired, states), folded=True)
        yield charted(tokens_chart(paired), folded=True)
        yield charted(telemetry_chart(paired), folded=True)
        yield from _of_kinds("evidence", cell, paired)
    yield from _of_kinds("end", cell, evidence)
    lines = tuple(f"{name}: {line}" for name, line in facts.items())
    yield Section(lead="other figures", rows=ungated_rows(cell.outcome), lines=lines, style="facts", folded=True)


def _of_kinds(place: str, cell: CellStory, evidence: Evidence | None) -> Iterator[Section | None]:
    """What kinds of trials show in a place of the page."""
    for make in parts_of_kinds("page", place):
        yield from make(cell.outcome, evidence)
