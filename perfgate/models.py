"""The two kinds of pydantic models: what perfgate writes itself, and what a user writes."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A value that cannot be changed; a key that it does not have is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Strict(Frozen):
    """What a user writes: no value is converted to another type, and a field may be given by its own name."""

    model_config = ConfigDict(strict=True, populate_by_name=True)


class Note(Frozen):
    """A reason or caution: a code of :mod:`perfgate.reasons` and what was seen."""

    code: str
    text: str
