"""The table of formats and the table of reports: every format by the name that ``--format`` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from perfgate.errors import UsageError

Renderer = str | Callable[[Any], str]
"""A function, or ``module:function`` for one that is imported when it is used, so that ``--help`` answers at once."""


@dataclass(frozen=True)
class Format:
    """How reports are written.

    Args:
        document: Writes any report from its :class:`~perfgate.report.document.Document`; ``None`` where ``of`` says
            which reports have this format.
        of: Writes a report from what it is about, by the report's name; in place of ``document`` where both are there.
        suffix: Of files that ``--output`` writes in it; empty for a format that is only printed.
    """

    document: Renderer | None = None
    of: Mapping[str, Renderer] = field(default_factory=dict)
    suffix: str = ""


FORMATS: dict[str, Format] = {
    "text": Format("perfgate.report.text:to_text", suffix=".txt"),
    "markdown": Format("perfgate.report.markdown:to_markdown", suffix=".md"),
    "json": Format(
        of={
            "outcome": "perfgate.judge.outcome:verdict_json",
            "kernels": "perfgate.report.kernel_report:kernels_json",
            "answer": "perfgate.report.answer:answer_json",
            "counters": "perfgate.report.counter_table:counters_json",
            "joined": "perfgate.report.joined_counters:joined_json",
            "doctor": "perfgate.report.doctor_report:findings_json",
            "drill": "perfgate.drill.board_document:board_json",
            "replay": "perfgate.drill.replay_document:replay_json",
            "bisect": "perfgate.bisect.bisect_document:bisect_json",
            "drift": "perfgate.report.drift_page:drift_json",
        },
        suffix=".json",
    ),
    "csv": Format(
        of={
            "kernels": "perfgate.report.kernel_report:kernels_csv",
            "answer": "perfgate.report.answer:answer_csv",
            "joined": "perfgate.report.joined_counters:joined_csv",
        }
    ),
    "junit": Format(of={"outcome": "perfgate.report.junit:render_junit"}, suffix=".xml"),
    "github": Format(of={"outcome": "perfgate.report.github_markdown:render_github"}),
    "html": Format("perfgate.report.html:to_html", of={"outcome": "perfgate.report.html:run_html"}, suffix=".html"),
}
"""A new format is one entry."""

REPORTS: dict[str, str] = {
    "outcome": "perfgate.report.outcome_document:outcome_document",
    "kernels": "perfgate.report.kernel_report:kernels_document",
    "answer": "perfgate.report.answer:answer_document",
    "counters": "perfgate.report.counter_table:counters_document",
    "joined": "perfgate.report.joined_counters:joined_document",
    "doctor": "perfgate.report.doctor_report:doctor_document",
    "drill": "perfgate.drill.board_document:board_document",
    "replay": "perfgate.drill.replay_document:replay_document",
    "bisect": "perfgate.bisect.bisect_document:bisect_document",
    "drift": "perfgate.report.drift_page:drift_document",
}
"""What makes the document of each report."""


def formats_of(report: str) -> tuple[str, ...]:
    """The names of the formats that a report can have."""
    return tuple(name for name, entry in FORMATS.items() if entry.document is not None or report in entry.of)


def render(report: str, form: str, about: object, width: int | None = None) -> str:
    """A report in a format.

    Args:
        report: A name in :data:`REPORTS`.
        form: One of :func:`formats_of`.
        about: What is reported: an outcome, a selection of a trace, what ncu counted, both joined, a diagnosis.
        width: Columns of the terminal that shows it; ``None`` for any.
    """
    own = FORMATS[form].of.get(report)
    renderer = own or FORMATS[form].document
    if renderer is None:
        raise UsageError(f"--format {form}: this report has only {', '.join(formats_of(report))}")
    if own is None:
        about = replace(resolve_name(REPORTS[report])(about), width=width)
    function = resolve_name(renderer) if isinstance(renderer, str) else renderer
    return str(function(about))


def format_of(file: Path, report: str = "outcome") -> str:
    """The format of an output file.

    Raises:
        UsageError: No format of the report has its suffix.
    """
    suffixes = {FORMATS[name].suffix: name for name in formats_of(report) if FORMATS[name].suffix}
    if file.suffix not in suffixes:
        raise UsageError(f"--output {file}: unknown suffix {file.suffix!r}, expected one of {', '.join(suffixes)}")
    return suffixes[file.suffix]
