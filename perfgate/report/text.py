"""A report for a terminal: fixed-width columns, a verdict last."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from perfgate.report.document import Document, NoteLine, Section

WITH_ITS_UNIT, UNBROKEN = r"(?<=\d) (?=\S{1,5}(?:\s|$))", "\u00a0"
"""The blank between a number and a short word, and what replaces it while lines are broken."""
STATUS_WIDTH = len("skipped")  # of a check's status
NOTHING = ("", "-")  # what is in a cell without a value


def to_text(document: Document) -> str:
    """The whole document; without a width nothing is wrapped, and a table is as wide as its content."""
    width, said = document.width, document.headline
    said = (*said[1:], *said[:1]) if document.is_verdict else said
    headline = [part for line in said for part in wrapped(line, width)]
    lines = [] if document.is_verdict else headline
    for section in document.sections:
        lines = [*lines, *([""] if lines and not section.close else []), *_section_lines(section, width)]
    if document.is_verdict:
        lines = [*lines, *([""] if lines else []), *headline]
    return "\n".join([*lines, ""])


def _section_lines(section: Section, width: int | None) -> Iterator[str]:
    yield from wrapped(section.title, width) if section.title else ()
    if section.spelled:
        yield from (part for line in section.spelled for part in wrapped(f"  {line}", width))
    elif section.rows:
        yield from columns(section.rows, width, section.give_way)
    if section.style == "commands":
        yield from (f"{section.lead}:", *(f"  {line}" for line in section.lines))
    else:
        start = "" if section.style == "facts" else f"  {section.lead}: " if section.lead else "  "
        yield from (part for line in section.lines for part in wrapped(f"{start}{line}", width))
    yield from _note_lines(section, width)


def columns(rows: Sequence[Sequence[str]], width: int | None = None, give_way: Sequence[int] = ()) -> list[str]:
    """Rows as indented lines; the first and the last column flush left, those between flush right.

    Where that is too wide, columns of ``give_way`` move to a line below their row, empty ones first, then in order.
    """
    below: list[int] = []
    lines = _aligned(rows)
    for column in sorted(give_way, key=lambda n: any(row[n] not in NOTHING for row in rows[1:])):
        if width is None or max(map(len, lines)) <= width:
            break
        below.append(column)
        lines = _aligned([[text for n, text in enumerate(row) if n not in below] for row in rows])
    if not below:
        return lines
    heading, *body = rows
    shown = [lines[0]]
    for line, row in zip(lines[1:], body, strict=True):
        facts = ", ".join(f"{heading[n]} {row[n]}" for n in sorted(below) if row[n] not in NOTHING)
        shown += [line, *(wrapped(f"      {facts}", width) if facts else [])]
    return shown


def wrapped(text: str, width: int | None) -> list[str]:
    """A paragraph in lines of so many columns, what follows the first indented two more; never broken in a word."""
    if width is None or len(text) <= width:
        return [text]
    indent = " " * (len(text) - len(text.lstrip()))
    lines = textwrap.wrap(
        re.sub(WITH_ITS_UNIT, UNBROKEN, text.lstrip()), max(width, len(indent) + 20), initial_indent=indent,
        subsequent_indent=f"{indent}  ", break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace(UNBROKEN, " ") for line in lines]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    last = len(widths) - 1
    return [
        "  " + "  ".join(
            text.ljust(width) if n in (0, last) else text.rjust(width)
            for n, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]  # fmt: skip


def _note_lines(section: Section, width: int | None) -> Iterator[str]:
    longest = max((len(note.code) for note in section.notes), default=0)
    for note in section.notes:
        first, *rest = note.text.splitlines() or [""]
        head = f"  {note.kind:<{STATUS_WIDTH}}  {note.code:<{longest}}  " if section.aligned else _head(note)
        yield from wrapped(f"{head}{first}", width)
        yield from (f"      {line}" for line in rest)  # a program's own lines, as it wrote them
        yield from wrapped(f"      why: {note.why}", width) if note.why else ()
        indent = "    " if section.aligned or note.about else "  "
        yield from wrapped(f"{indent}-> {note.remedy}", width) if note.remedy else ()


def _head(note: NoteLine) -> str:
    return f"  {note.kind} {note.code} ({note.about}): " if note.about else f"{note.kind} {note.code}: "
