"""What GitHub shows of an outcome: annotations at the lines that set the limits, the job's log, a summary that fits.

GitHub cuts nothing itself: a summary beyond its limit is not shown at all, an eleventh annotation is dropped. So what
does not fit is left out here, the least important first, and the reader is told.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from perfgate.judge.outcome import CellOutcome, GateOutcome, Outcome
from perfgate.report.markdown import Block, blocks
from perfgate.report.outcome_lines import gate_row, notes, printable, run_notes, signed_percent
from perfgate.report.text import render_text

SUMMARY_BYTES = 1024 * 1024
"""A step's summary; a larger one is dropped whole (GitHub's documentation, "Workflow commands", job summaries)."""
COMMENT_BYTES = 65_536
"""A comment may have so many characters; bytes are counted here, which are never fewer."""
ANNOTATIONS = 10
"""Of each level in a step; GitHub drops further ones."""
CUT = "_Shortened to fit GitHub's limit, the least important first: the whole report is in the run's artifact._"

Level = Literal["error", "warning", "notice"]


@dataclass(frozen=True)
class Annotation:
    """A message on a line of a file.

    Args:
        level: How GitHub shows it.
        title: Shown in bold.
        text: What was found.
        file: The file, from the repository's root; empty where there is none.
        line: From 1; 0 for the file as a whole.
    """

    level: Level
    title: str
    text: str
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        """The workflow command."""
        place = {"file": self.file, "line": str(self.line) if self.line else ""} if self.file else {}
        properties = ",".join(f"{k}={_property(v)}" for k, v in {**place, "title": self.title}.items() if v)
        return f"::{self.level} {properties}::{_data(self.text)}"


def render_github(outcome: Outcome) -> str:
    """For a job's log: the annotations, then the text report, in which GitHub is told to obey no command."""
    report = render_text(outcome)
    # Whoever wrote into the report cannot have foreseen the digest of the whole.
    token = hashlib.sha256(report.encode(errors="replace")).hexdigest()
    commands = "".join(f"{annotation}\n" for annotation in annotate(outcome))
    return f"{commands}::stop-commands::{token}\n{report}::{token}::\n"


def render_within(outcome: Outcome, limit_bytes: int, before: Sequence[str] = ()) -> str:
    """The Markdown report in at most so many bytes of UTF-8.

    Args:
        outcome: What is shown.
        limit_bytes: At least 1,000.
        before: Blocks of Markdown to stand right after the verdict; as important as it, so they must be short.
    """
    verdict, *others = blocks(outcome)
    parts = [verdict, *(Block(text, 0) for text in before), *others]
    sizes = [_size(part.text) + 2 for part in parts]
    if sum(sizes) <= limit_bytes:
        return "\n\n".join(part.text for part in parts) + "\n"
    room = limit_bytes - _size(CUT) - 3
    kept: dict[int, str] = {}
    for n in sorted(range(len(parts)), key=lambda n: (parts[n].importance, n)):
        kept[n] = _cut(parts[n].text, room - 2)
        room -= _size(kept[n]) + 2 if kept[n] else 0
    return "\n\n".join([*(kept[n] for n in sorted(kept) if kept[n]), CUT]) + "\n"


def annotate(outcome: Outcome) -> list[Annotation]:
    """What is not a pass, worst first, at most ten of each level; the tenth speaks for all that follow."""
    levels: dict[Level, list[Annotation]] = defaultdict(list)
    for annotation in _all_annotations(outcome):
        levels[annotation.level].append(annotation)
    shown: list[Annotation] = []
    for level, found in levels.items():
        shown += found[: ANNOTATIONS - (len(found) > ANNOTATIONS)]
        if len(found) > ANNOTATIONS:
            text = f"{len(found) - ANNOTATIONS + 1} more like these; the report names all of them"
            shown.append(Annotation(level, "perfgate", text))
    return shown


def _all_annotations(outcome: Outcome) -> Iterator[Annotation]:
    rank = {"regressed": 0, "internal-error": 1, "not-measured": 2, "not-comparable": 3, "inconclusive": 4}
    gates = [(cell, gate) for cell in outcome.cells for gate in cell.gates]
    for cell, gate in sorted(gates, key=lambda pair: rank.get(pair[1].verdict, 5)):
        if gate.verdict not in ("pass", "improved"):
            yield _of_gate(cell, gate)
    for cell in outcome.cells:
        level: Level = "warning" if cell.verdict in ("inconclusive", "advisory") else "error"
        for note in notes(cell):
            if note.kind == "reason" and note.place == printable(cell.name):
                first = note.text.partition("\n")[0]
                yield Annotation(level, f"{note.place}: {note.code}", f"{first}\n{note.remedy}", *_place(cell))
    for note in run_notes(outcome):
        yield Annotation("warning" if outcome.exit_status in (0, 20) else "error", note.code, note.text)


def _of_gate(cell: CellOutcome, gate: GateOutcome) -> Annotation:
    level: Level = "warning" if gate.verdict in ("inconclusive", "advisory") else "error"
    _, base, head, _, interval, margins, *_ = gate_row(gate)
    figures = f"{signed_percent(gate.change)} ({base} to {head}), interval {interval}, margins {margins}"
    text = figures if gate.change is not None else "; ".join(note.text for note in gate.reasons) or "no values"
    title = f"{cell.name}: {gate.metric} {gate.verdict}"
    return Annotation(level, printable(title), printable(text), *_split(gate.where))


def _place(cell: CellOutcome) -> tuple[str, int]:
    """The scenario that a cell comes from, as its gates name it."""
    return (_split(cell.gates[0].where)[0], 1) if cell.gates else ("", 0)


def _split(where: str) -> tuple[str, int]:
    """``file:line``; what has another form, like ``--gate ...``, is no place in a file."""
    file, _, line = where.rpartition(":")
    return (file, int(line)) if file and line.isascii() and line.isdigit() and len(line) < 8 else ("", 0)  # noqa: PLR2004


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))


def _cut(text: str, room: int) -> str:
    """As many whole lines as fit, a fence closed again; a single line that is too long loses its end."""
    if _size(text) <= room:
        return text
    lines = text.split("\n")
    kept: list[str] = []
    fence, left = "", room
    for line in lines:
        opened = line.removesuffix("text") if not fence and re.fullmatch("`{3,}text", line) else fence
        left -= _size(line) + 1
        if left < len(opened) + 1:
            break
        kept.append(line)
        fence = "" if line == fence else opened
    if not kept and room > len(CUT):  # one line, like a verdict that names a thousand gates
        return lines[0].encode(errors="replace")[:room].decode(errors="ignore")
    return "\n".join([*kept, fence] if fence else kept)
