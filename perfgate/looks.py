"""When a sequence of pairs is looked at: the same words and rules for timed trials and for traced ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from perfgate.fields import Listed, Weight
from perfgate.stats import DEFAULT_SCHEDULE, FIRST_BLOCKING_PAIRS, Schedule

MOST_SPENT = 0.8
"""What the declared looks may spend of either error rate; the rest is for further ones."""


def _increasing(looks: tuple[int, ...]) -> tuple[int, ...]:
    if list(looks) != sorted(set(looks)):
        raise ValueError("looks must increase")
    return looks


Looks = Annotated[
    tuple[Annotated[int, Field(ge=2, le=1000)], ...], Field(min_length=1), Listed, AfterValidator(_increasing)
]
"""Numbers of pairs at which a decision is tried, increasing."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


class Spend(_Strict):
    """How the error rates are spent over the looks; each list has an entry a look and sums to at most 0.8."""

    block: Annotated[tuple[Weight, ...], Listed]
    pass_: Annotated[tuple[Weight, ...], Field(alias="pass"), Listed]


def check_weights(looks: Sequence[int], spend: Spend | None) -> None:
    """Refuse looks that have no weights, and weights that do not fit them.

    Raises:
        ValueError: With what is wrong, in the words of a scenario.
    """
    if spend is None:
        if tuple(looks) != DEFAULT_SCHEDULE.looks[: len(looks)]:
            raise ValueError("looks other than [4, 6, 8, 12] or a beginning of it need their own spend")
        return
    for name, weights in (("block", spend.block), ("pass", spend.pass_)):
        if len(weights) != len(looks):
            raise ValueError(f"spend.{name} needs one weight a look: {len(looks)}, not {len(weights)}")
        if sum(weights) > MOST_SPENT + 1e-9:
            raise ValueError(f"spend.{name} sums to {sum(weights):g}, at most {MOST_SPENT} may be spent: the rest is "
                             "for further looks")  # fmt: skip
    for look, weight in zip(looks, spend.block, strict=True):
        if look < FIRST_BLOCKING_PAIRS and weight > 0:
            raise ValueError(f"spend.block must be 0 at {look} pairs: no look blocks before {FIRST_BLOCKING_PAIRS}")


def schedule_of(looks: tuple[int, ...], spend: Spend | None) -> Schedule:
    """The looks with their weights, which :func:`check_weights` has accepted."""
    if spend is not None:
        return Schedule(looks, spend.block, spend.pass_)
    return Schedule(looks, DEFAULT_SCHEDULE.block[: len(looks)], DEFAULT_SCHEDULE.pass_[: len(looks)])
