"""A report for a pipe, a step summary or a comment: GitHub Markdown, the headline first.

GitHub cuts nothing itself: a summary beyond its limit is not shown at all. So what does not fit is left out here, the
least important first, and the reader is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from perfgate.report.document import Document, NoteLine, Section

NAME = re.compile(r"[A-Za-z0-9]+(?:_[A-Za-z0-9]+)+(?:\[[A-Za-z0-9_-]+\])?")
"""A metric, with its role where it has one: nothing in it could end a code span or a table's cell."""
CUT = "_Shortened to fit GitHub's limit, the least important first: the whole report is in the run's artifact._"


class _Block(NamedTuple):
    text: str
    importance: int


def to_markdown(document: Document, limit_bytes: int | None = None, before: Sequence[str] = ()) -> str:
    """The document with everything that came from elsewhere escaped or fenced, in at most so many bytes of UTF-8.

    ``before`` are blocks of Markdown right after the verdict; as important as it, so they must be short.
    """
    verdict, said = document.headline[:1], document.headline[1:]
    headline = (*(f"**{escape(line)}**" for line in verdict), *before, *map(escape, said))
    blocks = [_Block(text, 0) for text in headline]
    blocks += [_Block(text, section.importance) for section in document.sections for text in _section_blocks(section)]
    if limit_bytes is not None and sum(_size(block.text) + 2 for block in blocks) > limit_bytes:
        blocks = [*_fitting(blocks, limit_bytes - _size(CUT) - 3), _Block(CUT, 0)]
    return "\n\n".join(block.text for block in blocks) + "\n"


def _section_blocks(section: Section) -> Iterator[str]:
    if section.title:
        yield f"### {escape(section.title)}"
    if section.rows:
        yield "\n".join(table(section.rows))
    lead = f"{section.lead[:1].upper()}{section.lead[1:]}:" if section.lead else ""
    if section.style == "paragraphs":
        yield from (f"{lead} {escape(line)}".lstrip() for line in section.lines)
    elif section.lines:
        items = "\n".join(f"- {escape(line)}" for line in section.lines)
        yield f"{lead}\n\n{fenced(chr(10).join(section.lines)) if section.style == 'commands' else items}".lstrip()
    notes = [_note(note) for note in section.notes]
    about_parts = notes and section.notes[0].about
    yield from ["\n".join(notes)] if about_parts else notes


def _note(note: NoteLine) -> str:
    first, *rest = note.text.splitlines() or [""]
    about = f" ({name(note.about)})" if note.about else ""
    more = [escape(note.why)] * bool(note.why) + [f"_{escape(note.remedy)}_"] * bool(note.remedy)
    stop = "." if more and not first.endswith((".", ":", "!", "?")) else ""
    line = " ".join([f"- {note.kind} `{note.code}`{about}: {escape(first)}{stop}", *more])
    return f"{line}\n\n{fenced(chr(10).join(rest))}" if rest else line


def _fitting(blocks: Sequence[_Block], room: int) -> list[_Block]:
    """The blocks that fit, the most important ones first served, in the order that they had."""
    kept: dict[int, _Block] = {}
    for n in sorted(range(len(blocks)), key=lambda n: (blocks[n].importance, n)):
        text = _cut(blocks[n].text, room - 2)
        if text:
            kept[n] = _Block(text, blocks[n].importance)
            room -= _size(text) + 2
    return [kept[n] for n in sorted(kept)]


def escape(text: str) -> str:
    """Text that Markdown shows as it is: no markup, no HTML, no mention, no table cell broken.

    An underscore between letters or digits opens nothing (CommonMark 0.31, rules 2 and 6 of emphasis), so that names
    like ``itl_median`` stay as they are and can be searched for.
    """
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|[\\`*\[\]|~#$]", r"\\\g<0>", text)
    return text.replace("@", "@\u200b").replace("\n", " ")


def fenced(text: str) -> str:
    """Text in a code block whose fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def name(text: str) -> str:
    """A name in a code span, ``kernel_time_per_step[gemm]`` as it is written elsewhere; other text escaped."""
    return f"`{text}`" if NAME.fullmatch(text) else escape(text)


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Rows as a table, the first one its heading: names in the first column, figures flush right, all text escaped."""
    heading, *body = rows
    alignment = ["---", *["---:"] * (len(heading) - 2), "---"]
    shown = ([name(first), *map(escape, others)] for first, *others in body)
    return [f"| {' | '.join(cells)} |" for cells in (heading, alignment, *shown)]


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))


def _cut(text: str, room: int) -> str:
    """As many whole lines as fit, a fence closed again; a single line that is too long loses its end."""
    if _size(text) <= room:
        return text
    lines = text.split("\n")
    kept: list[str] = []
    fence, left = "", room
    for line in lines:
        opened = line.removesuffix("text") if not fence and re.fullmatch("`{3,}text", line) else fence
        left -= _size(line) + 1
        if left < len(opened) + 1:
            break
        kept.append(line)
        fence = "" if line == fence else opened
    if not kept and room > len(CUT):  # one line, like a verdict that names a thousand gates
        return lines[0].encode(errors="replace")[:room].decode(errors="ignore")
    return "\n".join([*kept, fence] if fence else kept)
