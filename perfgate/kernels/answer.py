"""An answer to one question about a trace: tables whose columns know their names, units and words."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from perfgate.models import Note
from perfgate.report.csv_rows import csv_table
from perfgate.report.document import Document, NoteLine, Section, printable
from perfgate.units import format_mean, format_ns, format_value, percent

LISTED = 2000
"""Rows of a table that a reader is shown; JSON and CSV hold all."""


@dataclass(frozen=True)
class Column:
    """A column of figures or words.

    Args:
        key: Its name for programs, with its unit.
        title: Its name for people; empty where only programs are told.
        shown: How a value is written for people.
    """

    key: str
    title: str
    shown: Callable[[Any], str] = str


def time(key: str, title: str) -> Column:
    """A duration in nanoseconds."""
    return Column(f"{key}_ns", title, format_ns)


def difference_of(key: str, title: str) -> Column:
    """A difference of durations in nanoseconds, with its sign."""
    return Column(f"{key}_ns", title, lambda value: f"{'+' if value > 0 else ''}{format_ns(value)}")


def count(key: str, title: str) -> Column:
    """How many, or a mean of that."""
    return Column(key, title, format_mean)


def share(key: str, title: str) -> Column:
    """A part of a whole, from 0 to 1."""
    return Column(key, title, percent)


def size(key: str, title: str) -> Column:
    """Bytes."""
    return Column(f"{key}_bytes", title, lambda value: format_value(value, "B"))


def word(key: str, title: str = "") -> Column:
    """A name, or a number that is one."""
    return Column(key, title)


@dataclass(frozen=True)
class Table:
    """Rows of one sort.

    Args:
        key: Its name for programs.
        title: Its name for people.
        rows: A value a column; ``None`` where it is not known.
    """

    key: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[tuple[Any, ...]]

    @property
    def for_people(self) -> bool:
        """Whether it has a row, and a column that people are shown."""
        return bool(self.rows) and any(column.title for column in self.columns)


@dataclass(frozen=True)
class Answer:
    """What a question about a trace is answered with.

    Args:
        headings: What it is about, and the answer in a sentence.
        about: The same for programs: the profiler, the selection.
        tables: The first one is what CSV holds.
    """

    headings: Sequence[str]
    about: dict[str, Any]
    tables: Sequence[Table]
    notes: Sequence[Note] = ()


def answer_document(answer: Answer) -> Document:
    """The tables with their headings, then the cautions."""
    sections = [Section(title=table.title, rows=_shown(table)) for table in answer.tables if table.for_people]
    notes = Section(notes=tuple(NoteLine.of("caution", "", note) for note in answer.notes))
    return Document.of(answer.headings, [*sections, notes])


def answer_json(answer: Answer) -> str:
    """Everything, for programs, in the units that the keys name."""
    content = answer.about | {
        table.key: [dict(zip((column.key for column in table.columns), row, strict=True)) for row in table.rows]
        for table in answer.tables
    }
    content["cautions"] = [{"code": note.code, "text": printable(note.text)} for note in answer.notes]
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def answer_csv(answer: Answer) -> str:
    """The first table, a line a row."""
    table = answer.tables[0]
    return csv_table([column.key for column in table.columns], table.rows)


def _shown(table: Table) -> list[tuple[str, ...]]:
    kept = [(number, column) for number, column in enumerate(table.columns) if column.title]
    rows = [tuple("-" if row[n] is None else column.shown(row[n]) for n, column in kept) for row in table.rows[:LISTED]]
    return [tuple(column.title for _, column in kept), *rows]
