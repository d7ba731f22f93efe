"""Findings: what ``perfgate doctor`` saw of a machine, check by check, and how that is told.

A finding says what was seen, why it matters and what fixes it. ``failed`` means that what was asked for cannot work
here; ``warning`` that it works, but worse, or not for everything; ``skipped`` that nothing was looked at, and why.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final, Literal

from perfgate import __version__
from perfgate.errors import ExitStatus
from perfgate.models import Frozen
from perfgate.report.document import Document, NoteLine, Section
from perfgate.scenario.yaml_document import draft_07
from perfgate.units import plural

FORMAT: Final = "perfgate-doctor/1"

Status = Literal["ok", "warning", "failed", "skipped"]


class Finding(Frozen):
    """What one check found.

    Args:
        check: The check's name, lower case with dashes.
        status: How it ended.
        found: What was seen, in a sentence; the words of the program that failed are on lines of their own.
        why: Why it matters.
        mend: The command or step that fixes it; empty where nothing has to be fixed.
    """

    check: str
    status: Status
    found: str
    why: str
    mend: str = ""


class Diagnosis(Frozen):
    """All findings of one look at a machine, in the order of the checks.

    Args:
        format: Name and version of this format.
        perfgate: Version of perfgate.
        deep: Whether the profilers were really run.
        findings: The findings; a check that looks at several things has one for each.
    """

    format: Literal["perfgate-doctor/1"] = FORMAT
    perfgate: str = __version__
    deep: bool
    findings: tuple[Finding, ...]

    def count(self, status: Status) -> int:
        """How many findings have that status."""
        return sum(finding.status == status for finding in self.findings)

    @property
    def exit_status(self) -> ExitStatus:
        """``NOT_MEASURED`` where a check failed."""
        return ExitStatus.NOT_MEASURED if self.count("failed") else ExitStatus.PASS


@dataclass(frozen=True)
class Check:
    """A check by its name, with the reason for it; makes its findings.

    Args:
        name: Lower case with dashes.
        why: Why it matters.
        about: What it looks at, where it looks at several things; each finding begins with it.
    """

    name: str
    why: str
    about: str = ""

    def of(self, about: object) -> Check:
        """The same check of one thing."""
        return dataclasses.replace(self, about=f"{about}: ")

    def ok(self, text: str) -> Finding:
        """All is well."""
        return self._finding("ok", text)

    def warning(self, text: str, remedy: str) -> Finding:
        """It works, but worse than it could, or not for everything."""
        return self._finding("warning", text, remedy)

    def failed(self, text: str, remedy: str) -> Finding:
        """What was asked for cannot work here."""
        return self._finding("failed", text, remedy)

    def skipped(self, text: str, remedy: str = "") -> Finding:
        """Nothing was looked at, because of what ``text`` says; ``remedy`` says how it would be."""
        return self._finding("skipped", text, remedy)

    def _finding(self, status: Status, text: str, remedy: str = "") -> Finding:
        return Finding(check=self.name, status=status, found=self.about + text, why=self.why, mend=remedy)


def diagnosis_schema() -> dict[str, Any]:
    """The format of ``perfgate doctor --format json`` as JSON Schema draft-07."""
    return {**draft_07(Diagnosis, "serialization"), "title": "perfgate doctor"}


def doctor_document(diagnosis: Diagnosis) -> Document:
    """A line a check; what is not as it should be with its reason and what to do about it."""
    notes = []
    for finding in diagnosis.findings:
        status = finding.status.upper() if finding.status == "failed" else finding.status
        why = finding.why if finding.status in ("warning", "failed") else ""
        notes.append(NoteLine(status, finding.check, "", finding.found, finding.mend, why))
    failed, warnings, skipped = (diagnosis.count(status) for status in ("failed", "warning", "skipped"))
    ready = f"NOT READY: {plural(failed, 'check')} failed" if failed else "READY: no check failed"
    closing = f"{ready}; {plural(warnings, 'warning')}, {plural(skipped, 'check')} skipped."
    return Document.of([closing], [Section(notes=tuple(notes), aligned=True)], is_verdict=True)


def findings_json(diagnosis: Diagnosis) -> str:
    """For programs: ``perfgate schema doctor`` prints the format."""
    return diagnosis.model_dump_json(indent=1) + "\n"
