"""The page of a reason code, for a terminal."""

from __future__ import annotations

import textwrap

from perfgate.reasons import Reason

WIDTH = 100


def render_page(reason: Reason) -> str:
    """One page as plain text."""
    meaning, remedy = (textwrap.fill(text, WIDTH) for text in (reason.meaning, reason.remedy))
    return f"{reason.code}\n\n{meaning}\n\nWhat to do: {remedy}\n"
