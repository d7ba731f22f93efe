"""The pages of the reason codes, one by one for a terminal and all of them as a document."""

from __future__ import annotations

import textwrap

from perfgate.reasons import REASONS, Reason

WIDTH = 100


def render_page(reason: Reason) -> str:
    """One page as plain text."""
    meaning, remedy = (textwrap.fill(text, WIDTH) for text in (reason.meaning, reason.remedy))
    return f"{reason.code}\n\n{meaning}\n\nWhat to do: {remedy}\n"


def render_pages() -> str:
    """Every page as Markdown, ``docs/reasons.md``."""
    head = (
        "# Reason codes\n\n"
        "Why a result is what it is, and what to do about it; `perfgate explain CODE` prints the same page.\n"
        "Written from the tables in `perfgate/reasons.py` and `perfgate/profile_reasons.py` by `make docs`.\n"
    )
    pages = (f"## {page.code}\n\n{page.meaning}\n\n**What to do.** {page.remedy}\n" for page in REASONS.values())
    return "\n".join([head, *pages])
