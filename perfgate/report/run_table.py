"""The runs in a folder as a table."""

from __future__ import annotations

from collections.abc import Sequence

from perfgate.project.subjects import words
from perfgate.report.outcome_lines import printable
from perfgate.report.run_folders import ListedRun
from perfgate.report.text import columns

HEADINGS = ("run", "begun (UTC)", "verdict", "base", "head")
GIVE_WAY = (3, 4)
"""Columns that move below their row on a narrow terminal."""


def render_runs(found: Sequence[ListedRun], width: int | None = None) -> str:
    """A row a run: its name, when it began, its verdict, and what was measured.

    Args:
        found: The newest first.
        width: Columns of the terminal; ``None`` for any.
    """
    return "\n".join([*columns([HEADINGS, *map(_row, found)], width, GIVE_WAY), ""])


def _row(run: ListedRun) -> tuple[str, ...]:
    base, head = run.subjects.get("base"), run.subjects.get("head")
    sides = (
        " ".join(words(base)) if base else "-",
        "-" if head is None else " ".join(words(head, base)) or "the same",
    )
    return tuple(map(printable, (run.name, f"{run.begun:%Y-%m-%d %H:%M}", run.fault or run.verdict or "open", *sides)))
