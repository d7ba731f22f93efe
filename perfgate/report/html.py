"""A report as one HTML file that opens from disk: charts are SVG in the page, and nothing is loaded from anywhere.

Whatever came from elsewhere is escaped by the templates. No script is in the page, and its policy (CSP) allows none.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from typing import Any

import jinja2
from markupsafe import Markup

from perfgate.judge.outcome import Outcome
from perfgate.report.document import Document, Section, printable
from perfgate.report.run_page import MeasuredRun, run_page

TONES = {"regressed": "bad", "internal-error": "bad", "pass": "good", "improved": "good"}
"""Of a verdict's badge; all others are undecided."""


@functools.cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("perfgate.report", "page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _shown(value: Any) -> Any:
    """Text without characters that reorder a line; figures with a tenth of a unit, which is finer than a screen."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value)
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value


def to_html(document: Document) -> str:
    """The page of any report."""
    style = _environment().get_template("page.css").render()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return _environment().get_template("page.html").render(
        document=document,
        tone=TONES.get(document.verdict, "warn" if document.verdict else ""),
        parts=_parts(document),
        style=Markup(style),  # noqa: S704 (our own file)
        style_digest=digest,
    )  # fmt: skip


def _parts(document: Document) -> list[tuple[str, list[Section]]]:
    """Sections by the title that they are under."""
    parts: list[tuple[str, list[Section]]] = []
    for section in document.sections:
        if section.title or not parts:
            parts.append((section.title, []))
        parts[-1][1].append(section)
    return parts


def run_html(judged: Outcome | MeasuredRun) -> str:
    """The page of a verdict; with its records where there are any."""
    return to_html(run_page(judged if isinstance(judged, MeasuredRun) else MeasuredRun(judged)))
