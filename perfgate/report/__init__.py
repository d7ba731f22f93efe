"""Outcomes, profiles and findings as text, Markdown, JSON, JUnit and annotations.

It may import everything that it shows, never capture.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from perfgate.errors import UsageError
from perfgate.judge.outcome import Outcome, verdict_json
from perfgate.report.github_markdown import render_github
from perfgate.report.junit import render_junit
from perfgate.report.markdown import render_markdown
from perfgate.report.text import render_text

FORMATS: dict[str, Callable[[Outcome], str]] = {
    "text": render_text,
    "markdown": render_markdown,
    "json": verdict_json,
    "junit": render_junit,
    "github": render_github,
}
"""Every format by the name that ``--format`` takes."""

SUFFIXES = {".txt": "text", ".md": "markdown", ".json": "json", ".xml": "junit"}
"""The format that ``--output FILE`` means by its suffix."""


def format_of(file: Path) -> str:
    """The format of an output file.

    Raises:
        UsageError: The suffix is none of :data:`SUFFIXES`.
    """
    if file.suffix not in SUFFIXES:
        raise UsageError(f"--output {file}: unknown suffix {file.suffix!r}, expected one of {', '.join(SUFFIXES)}")
    return SUFFIXES[file.suffix]
