"""Sections of a page that several scripts write."""

from __future__ import annotations

import re


def merged(page: str, new: str) -> str:
    """A page with new sections in place of those of the same titles; one that it lacks goes behind the one before.

    Args:
        page: Markdown whose sections begin with two number signs; what is before the first is a section as well.
        new: Sections of such a page.
    """
    kept = {part.partition("\n")[0]: part for part in _parts(page)}
    order, place = list(kept), len(kept) - 1
    for part in _parts(new):
        title = part.partition("\n")[0]
        if title not in kept:
            order.insert(place + 1, title)
        kept[title] = part
        place = order.index(title)
    return "\n\n".join(kept[title] for title in order) + "\n"


def _parts(text: str) -> list[str]:
    return [part.strip("\n") for part in re.split(r"(?m)^(?=## )", text) if part.strip()]
