"""A run as one page: what a verdict says first, then the evidence that it rests on, record by record."""

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
from perfgate.report.closing_sentence import closing
from perfgate.report.curves import curve_sections
from perfgate.report.document import Document, Section, charted
from perfgate.report.explanation import causes, commands, leading_gate, steps, three_sentences
from perfgate.report.outcome_charts import forest
from perfgate.report.outcome_document import gates_section, heading_section, heads_section, notes_section
from perfgate.report.outcome_lines import (
    baseline_line,
    floor_line,
    gpu_line,
    met_line,
    run_notes,
    states_line,
    ungated_rows,
)
from perfgate.report.record_charts import (
    Looks,
    iterations_chart,
    pairs_chart,
    states_of,
    telemetry_chart,
    tokens_chart,
)
from perfgate.report.setting_lines import edits, run_setting, same_again

MOST_DETAILED = 12
"""Cells whose pairs, iterations and kernels are shown, the worst first; others have their gates and notes alone."""


@dataclass(frozen=True)
class MeasuredRun:
    """A verdict with what it was judged by.

    Args:
        outcome: The verdict.
        run: The run's manifest; ``None`` for figures from elsewhere.
        records: By cell_id, those there are.
    """

    outcome: Outcome
    run: Run | None = None
    records: Mapping[str, Record] = field(default_factory=dict)

    @property
    def seed(self) -> int | None:
        """What the order within pairs was drawn by; ``None`` for figures from elsewhere."""
        return self.run.plan.seed if self.run else None

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
    """Three sentences, then each cell, the worst first, then what was measured and how to do it again."""
    outcome = measured.outcome
    cells = {cell.cell_id: cell for cell in measured.run.plan.cells} if measured.run else {}
    sections: list[Section | None] = [heads_section(outcome), *curve_sections(outcome, charts=True)]
    ranked = sorted(outcome.cells, key=lambda cell: list(WORST_FIRST).index(cell.verdict))
    for n, found in enumerate(ranked):
        evidence = None
        if measured.run is not None and found.cell_id in cells and n < MOST_DETAILED:
            evidence = evidence_of_run(
                measured.run, cells[found.cell_id], measured.records.get(found.cell_id), found.head
            )
        sections += _cell(found, evidence)
    told = commands(outcome, on_page=True)
    sections += [
        Section(notes=tuple(run_notes(outcome))),
        Section(title="The whole run"),
        Section(lead=f"next{edits(told)}", lines=told, style="commands"),
        Section(lead="to measure it again", lines=tuple(same_again(outcome, measured.seed)), style="commands"),
        Section(lead="measured", lines=(*run_setting(outcome), *_versions(outcome)), style="facts"),
    ]
    document = Document.of([closing(outcome), *filter(None, three_sentences(outcome))], sections)
    return replace(document, name=outcome.run, verdict=outcome.verdict)


def _versions(outcome: Outcome) -> Iterator[str]:
    yield f"judged by: perfgate {outcome.perfgate}"
    for cell in outcome.cells:
        for side, versions in cell.versions.items():
            yield f"{side} of {cell.name}: {', '.join(f'{name} {version}' for name, version in versions.items())}"
        if cell.record:
            yield f"record of {cell.name}: sha256 {cell.record}"


def _cell(cell: CellOutcome, evidence: Evidence | None) -> Iterator[Section | None]:
    yield heading_section(cell)
    yield replace(gates_section(cell), lead="gates", chart=forest(cell))
    gate = leading_gate(cell)
    paired = evidence if evidence is not None and evidence.paired and evidence.sides else None
    states = states_of(paired, cell) if paired else None
    if paired and gate is not None:
        yield charted(pairs_chart(paired, gate, states), states_line(cell))
    yield from _brought("before_notes", cell, evidence)
    yield replace(notes_section(cell), lead="reasons and cautions")
    yield from _brought("after_notes", cell, evidence)
    yield Section(lead="why this verdict, step by step", lines=tuple(steps(cell)), style="items", folded=True)
    yield Section(lead="what explains it", lines=causes(cell), style="items", folded=True)
    if paired:
        yield from _evidence(cell, paired, states)
    yield from _brought("end", cell, evidence)
    facts = (("met", met_line), ("floor", floor_line), ("GPU", gpu_line), ("baseline", baseline_line))
    lines = tuple(f"{name}: {line}" for name, line_of in facts if (line := line_of(cell)))
    yield Section(lead="other figures", rows=ungated_rows(cell), lines=lines, style="facts", folded=True)


def _evidence(cell: CellOutcome, evidence: Evidence, states: Looks | None) -> Iterator[Section | None]:
    yield charted(iterations_chart(evidence, states), folded=True)
    yield charted(tokens_chart(evidence), folded=True)
    yield charted(telemetry_chart(evidence), folded=True)
    yield from _brought("evidence", cell, evidence)


def _brought(place: str, cell: CellOutcome, evidence: Evidence | None) -> Iterator[Section | None]:
    """What kinds of trials show in a place of the page."""
    for make in parts_of_kinds("page", place):
        yield from make(cell, evidence)
