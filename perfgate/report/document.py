"""A report as sections: what is shown and how important it is. Each format renders it in its own way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from typing import Literal

from perfgate.models import Note
from perfgate.reasons import REASONS
from perfgate.report.chart import Chart, Rows

Style = Literal["paragraphs", "items", "facts", "commands"]
"""Of a section's lines: sentences, a list, a list of named values, or commands to be copied, which are never broken."""


@dataclass(frozen=True)
class NoteLine:
    """A reason, a caution or a finding."""

    kind: str  # `reason`, `caution` or a finding's status
    code: str  # the reason code, or the check
    about: str  # the metric, cell or run concerned; empty for the whole report
    text: str  # what was seen; further lines are a program's own words
    remedy: str  # what to do about it
    why: str = ""  # why that matters, where the code does not say it

    @classmethod
    def of(cls, kind: str, about: str, note: Note) -> NoteLine:
        """A note with the remedy of its code."""
        reason = REASONS.get(note.code)
        remedy = reason.remedy if reason else "This version does not know this reason; the perfgate that measured does."
        return cls(kind, note.code, printable(about), printable(note.text), remedy)


@dataclass(frozen=True)
class Section:
    """A part of a report, shown in the order of these fields; what is empty is left out."""

    title: str = ""  # a heading
    # A table of single lines, its heading first: names in the first column, text in the last, figures between
    rows: Rows = ()
    give_way: tuple[int, ...] = ()  # columns that a narrow terminal shows below their row, the least needed first
    spelled: tuple[str, ...] = ()  # lines in place of `rows` where cells cannot be wrapped, for a table of sentences
    lead: str = ""  # words before the lines
    lines: tuple[str, ...] = ()  # one line each
    style: Style = "paragraphs"  # of the lines
    hrefs: tuple[str, ...] = ()  # where each of the lines leads on a page, by its place; empty for nowhere
    notes: tuple[NoteLine, ...] = ()  # each with its remedy
    aligned: bool = False  # the notes are a list of checks, whose names are columns in a terminal
    importance: int = 1  # what must be read first has 0; where there is no room for all, the largest goes first
    close: bool = False  # it belongs to the section before: no blank line between them in a terminal
    # The same as a picture, for formats that have them; its own table is in the place of `rows` there
    chart: Chart | None = None
    folded: bool = False  # a page shows it when its heading is opened

    def __bool__(self) -> bool:
        """Whether it shows anything."""
        return bool(self.title or self.rows or self.lines or self.notes or self.chart)


def charted(chart: Chart | None, line: str = "", *, folded: bool = False) -> Section | None:
    """A section that is a chart, with a line beside it; ``None`` where there is none."""
    return Section(lead=chart.title, lines=(line,) if line else (), chart=chart, folded=folded) if chart else None


@dataclass(frozen=True)
class Document:
    """A whole report. Build one with :meth:`of`, so that no format needs to distrust its text."""

    headline: tuple[str, ...]  # what must be read, the most important line first
    sections: tuple[Section, ...]  # in the order of the report
    # The headline begins with a verdict: a terminal, which shows the end of what is printed, has it last
    is_verdict: bool = False
    width: int | None = None  # columns of the terminal that shows it; `None` for any
    name: str = ""  # what it is about, where one thing has a name
    verdict: str = ""  # in a word; empty where there is none
    pages: tuple[tuple[str, str], ...] = ()  # others of its site, each with its file
    source: str = "the run's records"  # what a page of it is made from

    @property
    def comparable(self) -> bool:
        """Whether a page lets a reader compare rows."""
        return any(section.chart and section.chart.spread for section in self.sections)

    @classmethod
    def of(cls, headline: Iterable[str], sections: Iterable[Section | None], *, is_verdict: bool = False) -> Document:
        """The sections that show anything, every text of them printable."""
        shown = tuple(_printable_section(section) for section in sections if section)
        return cls(tuple(map(printable, headline)), shown, is_verdict)


def _printable_section(section: Section) -> Section:
    return replace(
        section,
        title=printable(section.title),
        rows=[tuple(" ".join(printable(cell).splitlines()) for cell in row) for row in section.rows],
        spelled=tuple(map(printable, section.spelled)),
        lead=printable(section.lead),
        lines=tuple(map(printable, section.lines)),
        notes=tuple(NoteLine(*map(printable, astuple(note))) for note in section.notes),
    )


def cut(text: str, most: int) -> str:
    """Text of so many characters at most; the last one says that there was more."""
    return text if len(text) <= most else f"{text[: most - 1]}\u2026"


def printable(text: str) -> str:
    """Text without characters that steer a terminal or reorder a line, whoever wrote it; line ends stay."""
    lines = (line.expandtabs(4) for line in text.splitlines())
    return "\n".join("".join(c if c.isprintable() else "\ufffd" for c in line) for line in lines)
