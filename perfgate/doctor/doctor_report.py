"""What ``perfgate doctor`` found."""

from __future__ import annotations

from perfgate.doctor.diagnosis import Diagnosis, Finding
from perfgate.report.document import Document, NoteLine, Section
from perfgate.units import plural


def doctor_document(diagnosis: Diagnosis) -> Document:
    """A line a check; what is not as it should be with its reason and what to do about it."""
    findings = Section(notes=tuple(map(_note, diagnosis.findings)), aligned=True)
    return Document.of([closing(diagnosis)], [findings], is_verdict=True)


def findings_json(diagnosis: Diagnosis) -> str:
    """For programs: ``perfgate schema doctor`` prints the format."""
    return diagnosis.model_dump_json(indent=1) + "\n"


def closing(diagnosis: Diagnosis) -> str:
    """One plain sentence."""
    failed, warnings, skipped = (diagnosis.count(status) for status in ("failed", "warning", "skipped"))
    rest = f"{plural(warnings, 'warning')}, {plural(skipped, 'check')} skipped"
    if failed:
        return f"NOT READY: {plural(failed, 'check')} failed; {rest}."
    return f"READY: no check failed; {rest}."


def _note(finding: Finding) -> NoteLine:
    status = finding.status.upper() if finding.status == "failed" else finding.status
    why = finding.why if finding.status in ("warning", "failed") else ""
    return NoteLine(status, finding.check, "", finding.found, finding.mend, why)
