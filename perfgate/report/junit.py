"""The outcome as JUnit XML, for systems that show tests: a suite a cell, a case a gate, one for envelope and counters.

A verdict that is not a pass is never shown as one: regressed is a failure; not measured, not comparable and an internal
error are errors; inconclusive and advisory are skipped, which is the nearest that JUnit has. XML 1.0 cannot hold the
characters that are not printable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from xml.etree import ElementTree as ET

from perfgate.errors import Verdict
from perfgate.judge.outcome import Outcome, worst
from perfgate.report.document import NoteLine, printable
from perfgate.report.story import CellStory, tell

Tag = Literal["failure", "error", "skipped"]
TAGS: dict[Verdict, Tag | None] = {
    "regressed": "failure", "internal-error": "error", "not-measured": "error", "not-comparable": "error",
    "inconclusive": "skipped", "advisory": "skipped", "pass": None, "improved": None,
}  # fmt: skip
ENVELOPE = ("outside-envelope", "envelope-stale")


def render_junit(outcome: Outcome) -> str:
    """The whole outcome as one ``testsuites`` document."""
    story = tell(outcome)
    root = ET.Element("testsuites", name=printable(outcome.run))
    for cell in story.cells:
        _suite(root, cell)
    if outcome.reasons or not outcome.cells:
        suite = ET.SubElement(root, "testsuite", name="run")
        _case(suite, "run", outcome.verdict, " ".join(story.sentences), story.notes)
    for suite in root:
        _count(suite, suite)
    _count(root, *root)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(root: ET.Element, cell: CellStory) -> None:
    outcome, of_cell = cell.outcome, cell.own_notes
    suite = ET.SubElement(root, "testsuite", name=printable(outcome.name))
    shown = [gate.outcome.verdict for gate in cell.gates]
    for gate in cell.gates:
        message = f"{gate.sentence}; detectable {gate.row.detectable}; {gate.row.verdict.removesuffix(' !')}"
        case = _case(suite, gate.row.metric, gate.outcome.verdict, message, gate.notes)
        file, line = gate.place
        if file:
            case.attrib.update(file=printable(file), line=str(line))
    outside = [note for note in of_cell if note.code in ENVELOPE and note.kind == "reason"]
    if outcome.traced_pairs or outside:
        shown.append("regressed" if outside else "pass")
        _case(suite, "envelope", shown[-1], cell.title, outside)
    if counted := outcome.counters:
        shown.append(counted.verdict)
        notes = {(note.code, printable(note.text)) for note in (*counted.reasons, *counted.cautions)}
        _case(suite, "counters", counted.verdict, cell.title, [n for n in of_cell if (n.code, n.text) in notes])
    if not shown or worst((outcome.verdict, worst(shown))) != worst(shown):
        _case(suite, "cell", outcome.verdict, cell.title, of_cell)
    elif of_cell:
        ET.SubElement(suite, "system-out").text = printable(_lines(of_cell))


def _case(suite: ET.Element, name: str, verdict: Verdict, message: str, lines: Sequence[NoteLine]) -> ET.Element:
    case = ET.SubElement(suite, "testcase", classname=suite.attrib["name"], name=printable(name))
    if tag := TAGS[verdict]:
        child = ET.SubElement(case, tag, message=printable(message))
        if tag != "skipped":
            child.set("type", verdict)
        child.text = printable(_lines(lines))
    else:
        ET.SubElement(case, "system-out").text = printable("\n".join(filter(None, (message, _lines(lines)))))
    return case


def _lines(lines: Sequence[NoteLine]) -> str:
    return "\n".join(f"{note.kind} {note.code}: {note.text}\n  {note.remedy}" for note in lines)


def _count(element: ET.Element, *suites: ET.Element) -> None:
    for attribute, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(attribute, str(sum(len(list(suite.iter(tag))) for suite in suites)))
