"""A report as one HTML file that opens from disk: charts are SVG in the page, and nothing is loaded from anywhere.

Whatever came from elsewhere is escaped by the templates. A page is whole without its script, and the page's policy
(CSP) allows no other, by its digest.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from dataclasses import replace
from typing import Any

import jinja2
from markupsafe import Markup, escape

from perfgate.judge.outcome import Outcome
from perfgate.report.chart import Chart, Rows
from perfgate.report.document import Document, NoteLine, Section, cut, printable
from perfgate.report.run_page import MeasuredRun, run_page

TONES = {"regressed": "bad", "internal-error": "bad", "pass": "good", "improved": "good"}
"""Of a verdict's badge; all others are undecided."""


MOST_ROWS, MOST_LINES = 400, 200  # of a table and of a list; what is not shown is counted
LONGEST_TEXT, LONGEST_CELL = 4000, 300  # characters; a longer text loses its end
_FIGURE = re.compile(r"(?:(?:above|below) )?[-+\u2212]?\d.*|-|", re.DOTALL)
"""What a column of figures holds, with its unit or an interval."""
_PATH = re.compile(r"[^MLVHhlvz0-9. -]")
_UNIT = re.compile(r"(?<=\d) (?=(?:%|[nmu]?s|[kMGT]?i?B|W|MHz|C|J/tok|tok(?:/s)?)(?!\w))")
"""The space between a figure and its unit, where no line may end."""


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("perfgate.report", "page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["figures"] = _columns_of_figures
    environment.filters["unbroken"] = _unbroken
    environment.filters["figures_alone"] = _figures_alone
    return environment


def _shown(value: Any) -> Any:
    """Text without characters that reorder a line; figures with a tenth of a unit, which is finer than a screen."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return cut(printable(value), LONGEST_TEXT)
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value


def to_html(document: Document) -> str:
    """The page of any report."""
    style = _environment().get_template("page.css").render()
    scripts = ["page.js", *(["compare.js"] if document.comparable else [])]
    script = "".join(_environment().get_template(name).render() for name in scripts)
    return _environment().get_template("page.html").render(
        document=document,
        tone=TONES.get(document.verdict, "warn" if document.verdict else ""),
        parts=_parts(document),
        style=Markup(style),  # noqa: S704 (our own file)
        style_digest=_digest(style),
        script=Markup(script),  # noqa: S704 (our own file)
        script_digest=_digest(script),
    )  # fmt: skip


def _digest(text: str) -> str:
    """As a policy names what it allows."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _parts(document: Document) -> list[tuple[str, list[Section]]]:
    """Sections by the title that they are under."""
    parts: list[tuple[str, list[Section]]] = []
    for section in document.sections:
        if section.title or not parts:
            parts.append((section.title, []))
        parts[-1][1].append(_bounded(section))
    return parts


def _bounded(section: Section) -> Section:
    """A section that a page can hold, whatever a record says."""
    lines, notes = section.lines[:MOST_LINES], section.notes[:MOST_LINES]
    if (left := len(section.lines) - MOST_LINES) > 0:
        lines = (*lines, f"and {left} more")
    if (left := len(section.notes) - MOST_LINES) > 0:
        notes = (*notes, NoteLine("more", "", "", f"verdict.json has {left} more", ""))
    chart = section.chart and _bounded_chart(section.chart)
    return replace(section, rows=_first_rows(section.rows), lines=lines, notes=notes, chart=chart)


def _bounded_chart(chart: Chart) -> Chart:
    marks = tuple(
        replace(mark, text=cut(mark.text, LONGEST_CELL), about=cut(mark.about, LONGEST_CELL)) for mark in chart.marks
    )
    narrow = chart.narrow and _bounded_chart(chart.narrow)
    return replace(chart, marks=marks, rows=_first_rows(chart.rows), narrow=narrow)


def _first_rows(rows: Rows) -> Rows:
    shown = [tuple(cut(cell, LONGEST_CELL) for cell in row) for row in rows[: MOST_ROWS + 1]]
    if (left := len(rows) - len(shown)) > 0:
        shown.append((f"and {left} more", *[""] * (len(rows[0]) - 1)))
    return shown


def _figures_alone(path: str) -> Markup:
    """A path whole, however long: cut anywhere, it could not be drawn."""
    return Markup(_PATH.sub("", path))  # noqa: S704 (nothing but commands and figures is left)


def _unbroken(text: str) -> Markup:
    """Text whose figures keep their units in their line."""
    return Markup(_UNIT.sub("\u00a0", str(escape(cut(printable(text), LONGEST_TEXT)))))  # noqa: S704 (escaped)


def _columns_of_figures(rows: Rows) -> list[bool]:
    """Which columns of a table hold figures alone: they are flush right and never broken."""
    return [all(_FIGURE.fullmatch(cell) for cell in column) for column in zip(*rows[1:], strict=True)]


def run_html(judged: Outcome | MeasuredRun) -> str:
    """The page of a verdict; with its records where there are any."""
    return to_html(run_page(judged if isinstance(judged, MeasuredRun) else MeasuredRun(judged)))
