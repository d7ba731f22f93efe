"""Tables for spreadsheets and programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from perfgate.report.document import printable

_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a formula begins with, also in the wide forms that spreadsheets take for the same."""


def csv_table(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """A line a row; an unknown value is empty, no spreadsheet takes a text for a formula, none steers a terminal."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(map(_cell, row) for row in rows)
    return sink.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return "" if value is None else value
    shown = printable(value)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown
