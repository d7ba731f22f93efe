"""The table of formats and the table of reports: every format by the name that ``--format`` takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfgate import rooms
from perfgate.errors import UsageError

Renderer = str | Callable[[Any], str]
"""A function, or ``module:function`` for one that is imported when it is used, so that ``--help`` answers at once."""


@dataclass(frozen=True)
class Format:
    """How reports are written."""

    # Writes any report from its :class:`~perfgate.report.document.Document`; `None` where only reports whose table says
    # so have this format
    document: Renderer | None = None
    suffix: str = ""  # of files that `--output` writes in it; empty for a format that is only printed
    deliver: str = ""  # called with an outcome and its run folder once the report is printed


FORMATS: dict[str, Format] = {
    "text": Format("perfgate.report.text:to_text", suffix=".txt"),
    "markdown": Format("perfgate.report.markdown:to_markdown", suffix=".md"),
    "json": Format(suffix=".json"),
    "csv": Format(),
    "junit": Format(suffix=".xml"),
    "html": Format("perfgate.report.html:to_html", suffix=".html"),
}
"""Rooms bring more; see :func:`formats`."""

REPORTS: dict[str, dict[str, Renderer]] = {
    "outcome": {
        "document": "perfgate.report.outcome_document:outcome_document",
        "json": "perfgate.judge.outcome:verdict_json",
        "junit": "perfgate.report.junit:render_junit",
        "html": "perfgate.report.html:run_html",
    }
}
"""What makes the document of each report, and by format what writes it without. Rooms bring more."""


def formats() -> dict[str, Format]:
    """Every format by the name that ``--format`` takes; a new one is an entry of a room's ``formats``."""
    return FORMATS | {name: Format(**entry.get("as", {})) for name, entry in rooms.entries("formats").items()}


def writers(report: str) -> dict[str, Renderer]:
    """What writes a report, by format, and its ``document``."""
    renderers = REPORTS.get(report) or rooms.entry("reports", report)
    brought = rooms.entries("formats").items()
    return renderers | {name: entry["of"][report] for name, entry in brought if report in entry.get("of", {})}


def formats_of(report: str) -> tuple[str, ...]:
    """The names of the formats that a report can have."""
    renderers = writers(report)
    return tuple(name for name, entry in formats().items() if entry.document is not None or name in renderers)


def render(report: str, form: str, about: object, width: int | None = None) -> str:
    """A report in a format.

    Args:
        report: Its name, in :data:`REPORTS` or in a room's ``reports``.
        form: One of :func:`formats_of`.
        about: What is reported: an outcome, a selection of a trace, what ncu counted, both joined, a diagnosis.
        width: Columns of the terminal that shows it; ``None`` for any.

    Raises:
        UsageError: The report has no such format.
    """
    renderers = writers(report)
    if form in renderers:
        return str(_function(renderers[form])(about))
    renderer = formats().get(form, Format()).document
    if renderer is None:
        raise UsageError(f"--format {form}: this report has only {', '.join(formats_of(report))}")
    return str(_function(renderer)(replace(_function(renderers["document"])(about), width=width)))


def _function(renderer: Renderer) -> Callable[[Any], Any]:
    return rooms.bring(renderer) if isinstance(renderer, str) else renderer


def format_of(file: Path, report: str = "outcome") -> str:
    """The format of an output file.

    Raises:
        UsageError: No format of the report has its suffix.
    """
    suffixes = {formats()[name].suffix: name for name in formats_of(report) if formats()[name].suffix}
    if file.suffix not in suffixes:
        raise UsageError(f"--output {file}: unknown suffix {file.suffix!r}, expected one of {', '.join(suffixes)}")
    return suffixes[file.suffix]
