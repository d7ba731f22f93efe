"""How long prompts and answers are, as a scenario declares it."""

from __future__ import annotations

import math
from statistics import NormalDist, mean, pstdev
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from perfgate.models import FieldError, Listed, Strict

MOST_TOKENS = 1_000_000
"""Of one prompt or answer; no model reads more."""

Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]


class LogNormal(Strict):
    """Lengths whose logarithm is normal: many short, few long ones.

    Args:
        median: Half of the lengths are below it.
        sigma: Standard deviation of the natural logarithm; 1 spans a factor of 7 from the 2.5th percentile to median.
        most: Longer ones are cut to this.
    """

    median: Annotated[Tokens, Field(examples=[512])]
    sigma: Annotated[float, Field(gt=0, le=4, strict=False, examples=[0.8])]
    most: Annotated[Tokens, Field(examples=[4096])]


class Lengths(Strict):
    """How long something is, in tokens: exactly one of these. A plain number means ``fixed``.

    Args:
        fixed: Always so long.
        uniform: From the first to the second, all equally likely.
        lognormal: Many short, few long ones.
    """

    fixed: Tokens | None = None
    uniform: Annotated[tuple[Tokens, Tokens], Listed] | None = None
    lognormal: LogNormal | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Lengths:
        if sum(getattr(self, name) is not None for name in type(self).model_fields) != 1:
            raise ValueError(f"expected a number, or exactly one of {', '.join(type(self).model_fields)}")
        if self.uniform is not None and self.uniform[0] > self.uniform[1]:
            raise FieldError(("uniform",), "expected the shorter length first")
        return self

    @property
    def range(self) -> tuple[int, int]:
        """The shortest and the longest there can be, tokens."""
        if self.lognormal is not None:
            return 1, self.lognormal.most
        return self.uniform or (self.fixed or 0, self.fixed or 0)

    def at(self, quantile: float) -> int:
        """The length that this share of all do not exceed, tokens; the share is from 0 up to and without 1."""
        if self.lognormal is not None:
            median, sigma = self.lognormal.median, self.lognormal.sigma
            normal = NormalDist().inv_cdf(min(max(quantile, 1e-12), 1 - 1e-12))
            return max(1, min(self.lognormal.most, round(median * math.exp(sigma * normal))))
        low, high = self.range
        return low + int(quantile * (high - low + 1))

    @property
    def spread(self) -> float:
        """Standard deviation over mean, of a thousand even quantiles."""
        return pstdev(self.quantiles) / mean(self.quantiles)

    @property
    def quantiles(self) -> list[int]:
        """A thousand even ones, tokens."""
        return [self.at((place + 0.5) / 1000) for place in range(1000)]

    @property
    def longest(self) -> int:
        """The longest there can be, tokens."""
        return self.range[1]


def _plain_number(value: Any) -> Any:
    return {"fixed": value} if type(value) is int else value


LengthsField = Annotated[Lengths, BeforeValidator(_plain_number, json_schema_input_type=Tokens | Lengths)]
