"""The two kinds of pydantic models, what perfgate writes itself and what a user writes, and quantities in them."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

from perfgate.reasons import current
from perfgate.units import format_percent, parse_percent, parse_quantity, plain_digits

FieldPath = tuple[str | int, ...]
"""Where a field is: keys, and numbers in lists."""
LARGEST = 10_000_000
"""Of any count or duration in seconds; more is a slip."""


def absent(value: object) -> bool:
    """Whether a field has no value; one that came later is not written then, so that older files keep their digest."""
    return value is None


class Frozen(BaseModel):
    """A value that cannot be changed; a key that it does not have is an error.

    Each is built when it is first used: most commands use few of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Strict(Frozen):
    """What a user writes: no value is converted to another type, and a field may be given by its own name."""

    model_config = ConfigDict(strict=True, populate_by_name=True)


def build_models(kind: type[Frozen] = Frozen) -> None:
    """Build every model that was not used yet: before version 2.14 pydantic may not do that in two threads at once."""
    for model in kind.__subclasses__():
        model.model_rebuild()
        build_models(model)


CurrentCode = Annotated[str, AfterValidator(current)]
"""A reason code of this version, also where an earlier one wrote it."""


class Note(Frozen):
    """A reason or caution: a code of :mod:`perfgate.reasons` and what was seen."""

    code: CurrentCode
    text: str


class FieldError(ValueError):
    """What a validator of a whole model finds wrong with one field of it.

    Args:
        path: The field, from the model.
        text: What is wrong.
    """

    def __init__(self, path: FieldPath, text: str) -> None:
        super().__init__(text)
        self.path = path


def _parse_seconds(value: Any) -> float:
    try:
        amount, unit = parse_quantity(value)
    except ValueError:
        amount, unit = 0.0, ""
    if unit != "s" or not 0 < amount <= LARGEST:
        raise ValueError('expected a positive duration with its unit, like "90s" or "15min"')
    return amount


QUANTITY = r"^\s*[0-9]+(\.[0-9]+)?\s*[A-Za-zµ/%]+\s*$"
Percent = Annotated[
    float,
    BeforeValidator(parse_percent),
    PlainSerializer(format_percent),
    WithJsonSchema({"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*%\s*$", "examples": ["0.5%"]}),
]
Duration = Annotated[
    float,
    BeforeValidator(_parse_seconds),
    PlainSerializer(lambda seconds: f"{plain_digits(Decimal(repr(seconds)))}s"),
    WithJsonSchema(
        {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*(ns|us|µs|ms|s|min)\s*$", "examples": ["90s"]}
    ),
]
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Listed = Field(strict=False)
"""YAML knows lists only; a strict model would refuse them for its tuples."""
