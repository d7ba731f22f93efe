"""What ``perfgate doctor`` found, for a terminal, for Markdown and for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from perfgate.doctor.diagnosis import Diagnosis, Finding
from perfgate.report.markdown import escape, fenced
from perfgate.report.outcome_lines import printable


def render_findings(diagnosis: Diagnosis) -> str:
    """For a terminal: a line a check; what is not as it should be with its reason and its mending below."""
    width = max((len(finding.check) for finding in diagnosis.findings), default=0)
    lines = [line for finding in diagnosis.findings for line in _text_lines(finding, width)]
    return "\n".join([*lines, "", closing(diagnosis), ""])


def findings_markdown(diagnosis: Diagnosis) -> str:
    """For a pipe or a step summary; what programs said is escaped or fenced."""
    blocks = [f"**{escape(closing(diagnosis))}**", *(_item(finding) for finding in diagnosis.findings)]
    return "\n\n".join(blocks) + "\n"


def findings_json(diagnosis: Diagnosis) -> str:
    """For programs: ``perfgate schema doctor`` prints the format."""
    return diagnosis.model_dump_json(indent=1) + "\n"


FINDING_FORMATS: dict[str, Callable[[Diagnosis], str]] = {
    "text": render_findings,
    "markdown": findings_markdown,
    "json": findings_json,
}
"""Every format by the name that ``--format`` takes."""


def closing(diagnosis: Diagnosis) -> str:
    """One plain sentence."""
    failed, warnings, skipped = (diagnosis.count(status) for status in ("failed", "warning", "skipped"))
    rest = f"{_number(warnings, 'warning')}, {_number(skipped, 'check')} skipped"
    if failed:
        return f"NOT READY: {_number(failed, 'check')} failed; {rest}."
    return f"READY: no check failed; {rest}."


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _status(finding: Finding) -> str:
    return finding.status.upper() if finding.status == "failed" else finding.status


def _text_lines(finding: Finding, width: int) -> Iterator[str]:
    first, *rest = printable(finding.found).splitlines() or [""]
    yield f"  {_status(finding):<7}  {finding.check:<{width}}  {first}"
    yield from (f"      {line}" for line in rest)
    if finding.status in ("warning", "failed"):
        yield f"      why: {printable(finding.why)}"
    if finding.mend:
        yield f"    -> {printable(finding.mend)}"


def _item(finding: Finding) -> str:
    first, *rest = printable(finding.found).splitlines() or [""]
    line = f"- {_status(finding)} `{finding.check}`: {escape(first)}"
    if finding.status in ("warning", "failed"):
        line += f"{'' if first.endswith(('.', ':')) else '.'} {escape(finding.why)}"
    if finding.mend:
        line += f" _{escape(printable(finding.mend))}_"
    return f"{line}\n\n{fenced(chr(10).join(rest))}" if rest else line
