"""What a reason code is; :mod:`perfgate.reasons` has them all."""

from __future__ import annotations

from dataclasses import dataclass

CODE = r"^[a-z0-9][a-z0-9-]{0,63}$"
"""What a code looks like, also one of another version: reports show codes without marking them as somebody's words."""


@dataclass(frozen=True)
class Reason:
    """A reason code with its page.

    Args:
        code: Stable, lower case, dashes.
        meaning: What happened, in one or two sentences.
        remedy: What the reader can do.
    """

    code: str
    meaning: str
    remedy: str
