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

from perfgate.errors import Verdict
from perfgate.judge.outcome import PASSED, Outcome
from perfgate.report.document import Document, Section, printable
from perfgate.report.interval_strip import interval_lines
from perfgate.report.markdown import to_markdown
from perfgate.report.outcome_document import outcome_document
from perfgate.report.outcome_lines import first_line, place_of, urgency
from perfgate.report.story import tell
from perfgate.report.text import to_text

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
    story = tell(outcome)
    gates = [(cell, gate) for cell in story.cells for gate in cell.gates]
    for cell, gate in sorted(gates, key=lambda pair: urgency(pair[1].outcome)):
        if (verdict := gate.outcome.verdict) not in PASSED:
            title = printable(f"{cell.outcome.name}: {gate.row.metric} {verdict}")
            yield Annotation(_level(verdict), title, printable(gate.sentence), *gate.place)
    for cell in story.cells:
        # The scenario that a cell comes from, as its gates name it.
        scenario = (place_of(cell.outcome.gates[0])[0], 1) if cell.gates else ("", 0)
        for note in (note for note in cell.own_notes if note.kind == "reason"):
            text = f"{first_line(note)}\n{note.remedy}"
            yield Annotation(_level(cell.outcome.verdict), f"{note.about}: {note.code}", text, *scenario)
    for note in story.notes:
        yield Annotation("warning" if outcome.exit_status in (0, 20) else "error", note.code, note.text)


def _level(verdict: Verdict) -> Level:
    return "warning" if verdict in ("inconclusive", "advisory") else "error"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
