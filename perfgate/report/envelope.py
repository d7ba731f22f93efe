"""What an envelope check found, as text and Markdown: the verdict, why, and the two sides' steps like a code diff."""

from __future__ import annotations

from perfgate.difference import StepDifference
from perfgate.envelope import EnvelopeOutcome
from perfgate.outcome import Note
from perfgate.reasons import REASONS
from perfgate.report.lines import printable
from perfgate.report.markdown import escape, fenced

CLOSING = {
    "pass": "PASS: every decode step of both sides is inside the envelope.",
    "regressed": "REGRESSED: the head's decode leaves the envelope.",
    "not-comparable": "NOT COMPARABLE: the base is outside the envelope itself, which is out of date.",
    "not-measured": "NOT MEASURED: there is no verdict, and no data is never a pass.",
}


def render_text(name: str, outcome: EnvelopeOutcome) -> str:
    """For a terminal; ``name`` is the cell's."""
    lines = [printable(name), *(f"  {line}" for line in _steps(outcome.difference))]
    lines += [f"  {line}" for line in diff_lines(outcome.difference)]
    for kind, note in _notes(outcome):
        lines += [f"  {kind} {note.code}: {_first_line(note)}", f"    -> {REASONS[note.code].remedy}"]
    return "\n".join([*lines, "", CLOSING[outcome.verdict], ""])


def render_markdown(name: str, outcome: EnvelopeOutcome) -> str:
    """For a pipe, a step summary or a comment; everything that came from a trace is escaped or fenced."""
    blocks = [f"**{escape(CLOSING[outcome.verdict])}**", f"### {escape(printable(name))}"]
    blocks += [escape(line) for line in _steps(outcome.difference)]
    lines = diff_lines(outcome.difference)
    if lines:
        blocks.append(fenced("\n".join(lines)).replace("text\n", "diff\n", 1))
    notes = [
        f"- {kind} `{note.code}`: {escape(_first_line(note))}. _{escape(REASONS[note.code].remedy)}_"
        for kind, note in _notes(outcome)
    ]
    return "\n\n".join([*blocks, *(["\n".join(notes)] if notes else [])]) + "\n"


def diff_lines(found: StepDifference | None) -> list[str]:
    """A step of the base beside one of the head; nothing where they are alike."""
    return [printable(line) for line in found.lines] if found else []


def _steps(found: StepDifference | None) -> list[str]:
    """The two steps in a sentence, which the notes go on with; nothing where there are none."""
    if found is None:
        return []
    base = f"{found.base_launches} kernels ({found.base_graph} from graphs)"
    head = f"{found.head_launches} kernels ({found.head_graph} from graphs)"
    alike = "" if found else f": {found.headline}"
    return [f"A decode step, base {base}, head {head}{alike}."]


def _notes(outcome: EnvelopeOutcome) -> list[tuple[str, Note]]:
    return [("reason", note) for note in outcome.reasons] + [("caution", note) for note in outcome.cautions]


def _first_line(note: Note) -> str:
    """The diff below it is shown once, for all notes."""
    return printable(note.text.partition("\n")[0])
