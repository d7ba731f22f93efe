"""When a sequence of pairs is looked at: the same words and rules for every kind of trial."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from perfgate.models import Duration, FieldError, Listed, Strict
from perfgate.scenario.fields import Weight
from perfgate.stats.sequential import (
    DEFAULT_SCHEDULE,
    EARLY_SCHEDULE,
    FIRST_BLOCKING_PAIRS,
    FIRST_PASSING_PAIRS,
    Schedule,
)

MOST_SPENT = 0.8
"""What the declared looks may spend of either error rate; the rest is for further ones."""


def _increasing(looks: tuple[int, ...]) -> tuple[int, ...]:
    if list(looks) != sorted(set(looks)):
        raise ValueError("looks must increase")
    return looks


Pairs = Annotated[int, Field(ge=FIRST_PASSING_PAIRS, le=1000)]
Looks = Annotated[tuple[Pairs, ...], Field(min_length=1), Listed, AfterValidator(_increasing)]
"""Numbers of pairs at which a decision is tried, increasing; nothing is decided below four, and
of a head whose restarts lie on two levels four pairs pass more than beta says: docs/error-rates.md."""


class Spend(Strict):
    """How the error rates are spent over the looks; each list has an entry a look and sums to at most 0.8.

    Args:
        block: Weights of blocking, of alpha; 0 below six pairs.
    """

    block: Annotated[tuple[Weight, ...], Field(examples=[[0, 0.2, 0.2, 0.4]]), Listed]
    pass_: Annotated[
        tuple[Weight, ...],
        Field(alias="pass", examples=[[0.2, 0.2, 0.2, 0.2]], description="Weights of passing, of beta."),
        Listed,
    ]


def _usual(looks: tuple[int, ...]) -> Schedule | None:
    """The schedule that these looks are a beginning of, where they need no weights of their own."""
    schedules = (DEFAULT_SCHEDULE, EARLY_SCHEDULE)
    return next((usual for usual in schedules if looks == usual.looks[: len(looks)]), None)


def _spent_on(looks: Sequence[int]) -> str:
    """Weights that these looks may have: both error rates in equal parts, none of blocking before it may block."""
    block = [look >= FIRST_BLOCKING_PAIRS for look in looks]
    parts = [[int(100 * MOST_SPENT / max(1, sum(may))) / 100 * allowed for allowed in may]
             for may in (block, [True] * len(looks))]  # fmt: skip
    lists = [", ".join(f"{weight:g}" for weight in weights) for weights in parts]
    return f"spend: {{block: [{lists[0]}], pass: [{lists[1]}]}}"


class Sampling(Strict):
    """When pairs of one kind of trial are looked at.

    Args:
        looks: Numbers of pairs at which a decision is tried, increasing.
        spend: Weights of the looks; needed where ``looks`` is not a beginning of 6, 8, 12 or of 4, 6, 8, 12.
    """

    looks: Looks = DEFAULT_SCHEDULE.looks
    spend: Spend | None = None

    @model_validator(mode="after")
    def _looks_have_weights(self) -> Self:
        looks, spend = self.looks, self.spend
        if spend is None:
            if not _usual(looks):
                text = "looks other than [6, 8, 12], [4, 6, 8, 12] or a beginning of them need their own spend, like "
                raise FieldError(("looks",), text + _spent_on(looks))
            return self
        for name, weights in (("block", spend.block), ("pass", spend.pass_)):
            if len(weights) != len(looks):
                text = f"needs one weight a look: {len(looks)}, not {len(weights)}, like {_spent_on(looks)}"
                raise FieldError(("spend", name), text)
            if sum(weights) > MOST_SPENT + 1e-9:
                raise ValueError(f"spend.{name} sums to {sum(weights):g}, at most {MOST_SPENT} may be spent: the rest "
                                 "is for further looks")  # fmt: skip
        for look, weight in zip(looks, spend.block, strict=True):
            if look < FIRST_BLOCKING_PAIRS and weight > 0:
                raise ValueError(f"spend.block must be 0 at {look} pairs: no look blocks before {FIRST_BLOCKING_PAIRS}")
        return self

    @property
    def schedule(self) -> Schedule:
        """The looks with their weights."""
        if self.spend is not None:
            return Schedule(self.looks, self.spend.block, self.spend.pass_)
        usual, part = _usual(self.looks) or DEFAULT_SCHEDULE, slice(len(self.looks))
        return Schedule(self.looks, usual.block[part], usual.pass_[part])


class CallTrials(Sampling):
    """How the calls and lines of the host are counted: pairs of their own, in which nothing is timed.

    Args:
        ignorable: What the head's host may do more in a decode or prefill step, by what its calls and lines cost.
        iterations: Iterations counted in each trial, after the warm-up; what differs between them is left out.
        looks: Numbers of pairs at which a gate on ``host_calls_per_step`` is tried, increasing.
        spend: Weights of the looks; needed where ``looks`` is not a beginning of 6, 8, 12 or of 4, 6, 8, 12.
    """

    ignorable: Duration = 10e-6
    iterations: Annotated[int, Field(ge=2, le=100)] = 6
