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
from perfgate.judge.outcome import CellOutcome, GateOutcome, Outcome, worst
from perfgate.report.closing_sentence import closing
from perfgate.report.document import NoteLine, printable
from perfgate.report.outcome_lines import HEADINGS, cell_heading, gate_name, gate_row, notes, run_notes, where

Tag = Literal["failure", "error", "skipped"]
TAGS: dict[Verdict, Tag | None] = {
    "regressed": "failure", "internal-error": "error", "not-measured": "error", "not-comparable": "error",
    "inconclusive": "skipped", "advisory": "skipped", "pass": None, "improved": None,
}  # fmt: skip
ENVELOPE = ("outside-envelope", "envelope-stale")


def render_junit(outcome: Outcome) -> str:
    """The whole outcome as one ``testsuites`` document."""
    root = ET.Element("testsuites", name=printable(outcome.run))
    for cell in outcome.cells:
        _suite(root, cell)
    if outcome.reasons or not outcome.cells:
        suite = ET.SubElement(root, "testsuite", name="run")
        _case(suite, "run", outcome.verdict, closing(outcome), run_notes(outcome))
    for suite in root:
        _count(suite, suite)
    _count(root, *root)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(root: ET.Element, cell: CellOutcome) -> None:
    suite = ET.SubElement(root, "testsuite", name=printable(cell.name))
    lines = list(notes(cell))
    for gate in cell.gates:
        name = gate_name(gate)
        case = _case(suite, name, gate.verdict, _figures(gate), [n for n in lines if n.about == printable(name)])
        file, line = where(gate)
        if file:
            case.attrib.update(file=printable(file), line=str(line))
    of_cell = [note for note in lines if note.about == printable(cell.name)]
    outside = [note for note in of_cell if note.code in ENVELOPE and note.kind == "reason"]
    if cell.traced_pairs or outside:
        _case(suite, "envelope", "regressed" if outside else "pass", cell_heading(cell), outside)
    if cell.counters:
        told = {(note.code, printable(note.text)) for note in (*cell.counters.reasons, *cell.counters.cautions)}
        found_there = [note for note in of_cell if (note.code, note.text) in told]
        _case(suite, "counters", cell.counters.verdict, cell_heading(cell), found_there)
    shown: list[Verdict] = [gate.verdict for gate in cell.gates]
    shown += ["regressed"] if outside else []
    shown += [cell.counters.verdict] if cell.counters else []
    if not shown or worst((cell.verdict, worst(shown))) != worst(shown):
        _case(suite, "cell", cell.verdict, cell_heading(cell), of_cell)
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


def _figures(gate: GateOutcome) -> str:
    return ", ".join(f"{heading} {value}" for heading, value in zip(HEADINGS[1:], gate_row(gate)[1:], strict=True))


def _count(element: ET.Element, *suites: ET.Element) -> None:
    for attribute, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(attribute, str(sum(len(list(suite.iter(tag))) for suite in suites)))
