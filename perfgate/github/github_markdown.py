"""What GitHub shows of an outcome: annotations at the lines that set the limits, the job's log, a summary that fits.

GitHub cuts nothing itself: a summary beyond its limit is not shown at all, an eleventh annotation is dropped. So what
does not fit is left out here, the least important first, and the reader is told.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from perfgate.judge.outcome import CellOutcome, GateOutcome, Outcome
from perfgate.report.document import Document, Section, printable
from perfgate.report.interval_strip import interval_lines
from perfgate.report.markdown import to_markdown
from perfgate.report.outcome_document import outcome_document
from perfgate.report.outcome_lines import gate_name, gate_row, notes, run_notes, urgency, where
from perfgate.report.text import to_text
from perfgate.units import signed_percent

# A step's summary; a larger one is dropped whole (GitHub's documentation, "Workflow commands", job summaries)
SUMMARY_BYTES = 1024 * 1024
COMMENT_BYTES = 65_536  # a comment may have so many characters; bytes are counted here, which are never fewer
ANNOTATIONS = 10  # of each level in a step; GitHub drops further ones

DRAWN = 3  # how important the intervals are: tables and reasons of what did not pass come first

Level = Literal["error", "warning", "notice"]


@dataclass(frozen=True)
class Annotation:
    """A message on a line of a file."""

    level: Level  # how GitHub shows it
    title: str  # shown in bold
    text: str  # what was found
    file: str = ""  # the file, from the repository's root; empty where there is none
    line: int = 0  # from 1; 0 for the file as a whole

    def __str__(self) -> str:
        """The workflow command."""
        location = {"file": self.file, "line": str(self.line) if self.line else ""} if self.file else {}
        given = {key: _data(value) for key, value in {**location, "title": self.title}.items() if value}
        properties = ",".join(f"{key}={v.replace(':', '%3A').replace(',', '%2C')}" for key, v in given.items())
        return f"::{self.level} {properties}::{_data(self.text)}"


def render_github(outcome: Outcome) -> str:
    """For a job's log: the annotations, then the text report, in which GitHub is told to obey no command."""
    report = to_text(outcome_document(outcome))
    # Whoever wrote into the report cannot have foreseen the digest of the whole.
    token = hashlib.sha256(report.encode(errors="replace")).hexdigest()
    commands = "".join(f"{annotation}\n" for annotation in annotate(outcome))
    return f"{commands}::stop-commands::{token}\n{report}::{token}::\n"


def render_within(outcome: Outcome, limit_bytes: int, before: Sequence[str] = ()) -> str:
    """The Markdown report with each gate's interval drawn in characters, in at most so many bytes of UTF-8.

    Args:
        outcome: What is shown.
        limit_bytes: At least 1,000.
        before: Blocks of Markdown right after the verdict; as important as it, so they must be short.
    """
    document = outcome_document(outcome)
    drawn = Document.of((), [Section(lines=interval_lines(outcome), style="commands", importance=DRAWN)])
    return to_markdown(replace(document, sections=(*drawn.sections, *document.sections)), limit_bytes, before)


def annotate(outcome: Outcome) -> list[Annotation]:
    """What is not a pass, worst first, at most ten of each level; the tenth speaks for all that follow."""
    levels: dict[Level, list[Annotation]] = defaultdict(list)
    for annotation in _all_annotations(outcome):
        levels[annotation.level].append(annotation)
    shown: list[Annotation] = []
    for level, messages in levels.items():
        shown += messages[: ANNOTATIONS - (len(messages) > ANNOTATIONS)]
        if len(messages) > ANNOTATIONS:
            text = f"{len(messages) - ANNOTATIONS + 1} more like these; the report names all of them"
            shown.append(Annotation(level, "perfgate", text))
    return shown


def _all_annotations(outcome: Outcome) -> Iterator[Annotation]:
    gates = [(cell, gate) for cell in outcome.cells for gate in cell.gates]
    for cell, gate in sorted(gates, key=lambda pair: urgency(pair[1])):
        if gate.verdict not in ("pass", "improved"):
            yield _of_gate(cell, gate)
    for cell in outcome.cells:
        level: Level = "warning" if cell.verdict in ("inconclusive", "advisory") else "error"
        scenario = (where(cell.gates[0])[0], 1) if cell.gates else ("", 0)  # where the cell comes from
        for note in notes(cell):
            if note.kind == "reason" and note.about == printable(cell.name):
                first = note.text.partition("\n")[0]
                yield Annotation(level, f"{note.about}: {note.code}", f"{first}\n{note.remedy}", *scenario)
    for note in run_notes(outcome):
        yield Annotation("warning" if outcome.exit_status in (0, 20) else "error", note.code, note.text)


def _of_gate(cell: CellOutcome, gate: GateOutcome) -> Annotation:
    level: Level = "warning" if gate.verdict in ("inconclusive", "advisory") else "error"
    _, base, head, _, interval, margins, *_ = gate_row(gate)
    figures = f"{signed_percent(gate.change)} ({base} to {head}), interval {interval}, margins {margins}"
    shares = f"{base} to {head}" if None not in (gate.base, gate.head) else "no values"
    text = figures if gate.change is not None else "; ".join(note.text for note in gate.reasons) or shares
    title = f"{cell.name}: {gate_name(gate)} {gate.verdict}"
    return Annotation(level, printable(title), printable(text), *where(gate))


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
