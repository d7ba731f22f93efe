"""The sides of a comparison, and what heads are called."""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

from pydantic import Field

Side = Literal["base", "head"]
"""Which of the two subjects of a comparison."""

SIDES: tuple[Side, ...] = get_args(Side)

HEAD_NAME: Final = "[A-Za-z0-9][A-Za-z0-9._-]{0,39}"
HeadName = Annotated[str, Field(pattern=f"^{HEAD_NAME}$")]
"""What one of several heads of a run is called."""
