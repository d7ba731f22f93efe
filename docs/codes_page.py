"""Writes docs/reasons.md, the pages of the reason codes, from the tables that hold them."""

from __future__ import annotations

from perfgate.reasons import REASONS


def render_codes_page() -> str:
    """Every page as Markdown, ``docs/reasons.md``."""
    head = (
        "# Reason codes\n\n"
        "Why a result is what it is, and what to do about it; `perfgate explain CODE` prints the same page.\n"
        "Written from the tables in `perfgate/reasons.py` and `perfgate/profile_reasons.py` by `make docs`.\n"
    )
    pages = (f"## {page.code}\n\n{page.meaning} **What to do.** {page.remedy}\n" for page in REASONS.values())
    return "\n".join([head, *pages])


if __name__ == "__main__":
    print(render_codes_page(), end="")
