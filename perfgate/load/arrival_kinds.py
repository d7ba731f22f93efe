"""When requests come and how long they are, as a scenario declares it."""

from __future__ import annotations

import math
from pathlib import PurePosixPath
from statistics import NormalDist, mean, pstdev
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from perfgate.load.under_load import Slo
from perfgate.models import Duration, FieldError, Listed, Percent, Strict, absent

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


MOST_REQUESTS = 100_000
"""Of one window."""


def _share(share: float) -> float:
    if not 0 < share <= 1:
        raise ValueError("expected a share above 0% and up to 100%")
    return share


def _no_truth(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("expected a number")  # noqa: TRY004 (pydantic tells of no other error)
    return value


def _below_here(text: str) -> str:
    if "\0" in text or PurePosixPath(text).is_absolute() or ".." in PurePosixPath(text).parts or not text.strip("./"):
        raise ValueError("expected a file below the scenario's folder, like traces/chat.jsonl")
    return text


Share = Annotated[Percent, AfterValidator(_share)]
APART_NS = 100_000
"""So far apart are requests that come together: those of a burst or of one time of a trace, and the first ones of a
closed loop's users. A client sends one after another, each in 17 to 20 us with 512 tokens, so 64 that are due at one
instant cannot be in time."""
LEAST_RATE = 0.001
"""One request in 17 minutes."""
Rate = Annotated[float, Field(ge=LEAST_RATE, le=100_000, strict=False), BeforeValidator(_no_truth)]
"""Requests a second."""
Size = Annotated[int, Field(ge=1, le=MOST_REQUESTS)]


class Bursts(Strict):
    """Groups of requests, 100 us apart in a group, with the gaps of a Poisson process between groups.

    Args:
        rate: Requests a second, over all: no more than come 100 us apart.
        size: Requests of a burst.
    """

    rate: Annotated[float, Field(ge=LEAST_RATE, le=10_000, strict=False, examples=[4]), BeforeValidator(_no_truth)]
    size: Annotated[Size, Field(examples=[8])]


class Ramp(Strict):
    """A Poisson process whose rate changes evenly over the window.

    Args:
        start: Requests a second at the beginning.
        end: Requests a second at the end.
    """

    start: Annotated[Rate, Field(examples=[1])]
    end: Annotated[Rate, Field(examples=[8])]


class Closed(Strict):
    """A fixed number of users, each sending its next request after the answer to the last. They begin 100 us apart.

    Args:
        concurrency: Users.
        think: The mean of how long a user waits first; drawn from an exponential distribution. Left out: not at all.
    """

    concurrency: Annotated[Size, Field(examples=[8])]
    think: Duration | None = None


class Replay(Strict):
    """A recorded trace: times and lengths, and in Mooncake's format which prompts begin alike.

    Args:
        file: Below the scenario's folder. ``.csv`` is read as Azure's format of LLM inference traces, ``.jsonl`` as
            Mooncake's.
        speed: By how much faster than recorded it is replayed.
        sha256: Of the file: with another content it is refused. A run fills it in, so that the trace is part of its
            cell.
    """

    file: Annotated[str, AfterValidator(_below_here), Field(examples=["traces/chat.jsonl"])]
    speed: Annotated[float, Field(ge=0.001, le=1000, strict=False), BeforeValidator(_no_truth)] = 1.0
    sha256: Annotated[str | None, Field(pattern="^[0-9a-f]{64}$", exclude_if=absent)] = None

    @field_validator("file")
    @classmethod
    def _known_format(cls, file: str) -> str:
        if not file.endswith((".csv", ".jsonl")):
            raise ValueError("expected a .csv (Azure) or .jsonl (Mooncake) file")
        return file


class Find(Strict):
    """The highest rate at which enough requests meet an objective, sought by bisection in each start of the server.

    Requests come as a Poisson process. Warm-up is at the lowest rate; then come the windows of the search, and what is
    measured last is at the highest rate that met the objective.

    Args:
        least: A rate at which the objective is met, requests a second.
        most: A rate at which it is not.
        slo: What a request must meet.
        share: Of a window's requests that must meet it.
        steps: Windows of the search; each halves the distance between the bounds, as a ratio.
    """

    least: Annotated[Rate, Field(examples=[1])]
    most: Annotated[Rate, Field(examples=[32])]
    slo: Annotated[Slo, Field(examples=[{"ttft": "500ms", "tpot": "50ms"}])]
    share: Share = 0.99
    steps: Annotated[int, Field(ge=1, le=16)] = 6

    @model_validator(mode="after")
    def _some_between(self) -> Find:
        if not self.least < self.most:
            raise FieldError(("most",), "must be above least")
        return self


class Arrival(Strict):
    """When requests come: exactly one of these. All but ``closed`` are open loops: a slow server delays no request.

    Args:
        poisson: Requests a second, independent of each other.
        constant: Requests a second, evenly spaced.
        bursts: Groups of requests.
        ramp: A rate that changes over the window.
        closed: A fixed number of users.
        replay: A recorded trace.
        find: The highest rate that meets an objective, for a gate on ``max_rate``.
    """

    poisson: Annotated[Rate, Field(examples=[4])] | None = None
    constant: Rate | None = None
    bursts: Bursts | None = None
    ramp: Ramp | None = None
    closed: Closed | None = None
    replay: Replay | None = None
    find: Annotated[Find | None, Field(exclude_if=absent)] = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Arrival:
        if sum(getattr(self, name) is not None for name in type(self).model_fields) != 1:
            raise ValueError(f"expected exactly one of {', '.join(type(self).model_fields)}")
        return self
