"""What a scenario declares under ``workload:`` for a server: when requests come, and what each asks for."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from statistics import fmean
from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue, model_validator

from perfgate.load.arrival_kinds import MOST_REQUESTS, Arrival, Lengths, LengthsField, Share, Size, Tokens
from perfgate.models import Duration, FieldError, Listed, Positive, Strict

MOST_PROMPTS = 64 * 1024**2
"""Tokens in the prompts of a window. A sixteenth of it took 0.34 GiB in a client and 0.26 in perfgate, 2026-11-27."""
MOST_SECONDS = 24 * 3600.0
"""Of a window."""
LEAST_SPREAD = 0.1
"""Of the answers' lengths in a closed loop, standard deviation over mean. In the model of a server of
``tests/load/test_honest_load.py`` 4 to 128 users do not march from here on (ramps below 1.05, of 16 to 512 tokens). At
0.05 of 16 tokens ramps are up to 1.08, at 0.006 of 128 up to 1.17."""
LEAST_THINK_S = 0.05
"""A user, where lengths have no such spread: those who return within the time in which all prompts are prefilled queue
up as before. In that model a mean of 0.27 of this time is enough, so this is for prefills of up to 185 ms."""


def _some_whole(share: float) -> float:
    if share >= 1:
        raise ValueError("expected a share below 100%: a request that is cancelled has no time")
    return share


def _expression(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"invalid regular expression: {error}") from error
    return text


class Prefixes(Strict):
    """Prompts that begin alike, as with a system prompt: what a prefix cache finds.

    Args:
        share: Of requests that begin with one of the shared prefixes.
        tokens: Length of a prefix. The rest of the prompt is ``input_tokens`` less this, and at least one token.
        groups: Different prefixes; each such request draws one.
    """

    share: Annotated[Share, Field(examples=["50%"])]
    tokens: Annotated[Tokens, Field(examples=[256])]
    groups: Size = 1


class LongPrefill(Strict):
    """Now and then a long prompt among the others, whose prefill delays the decoding of the rest.

    Args:
        share: Of requests that are long.
        input_tokens: Their length.
    """

    share: Annotated[Share, Field(examples=["5%"])]
    input_tokens: Annotated[LengthsField, Field(examples=[8192])]


class Cancelled(Strict):
    """Users who hang up.

    Args:
        share: Of requests that are cancelled.
        after_tokens: Tokens after which, at most; those with fewer to come end by themselves.
    """

    share: Annotated[Share, AfterValidator(_some_whole), Field(examples=["5%"])]
    after_tokens: Annotated[LengthsField, Field(examples=[16])]


Penalty = Annotated[float, Field(ge=-2, le=2, strict=False)]


class Sampling(Strict):
    """How tokens are drawn; what is left out is not sent, but for ``temperature``.

    Args:
        temperature: 0 takes the likeliest.
        top_p: Of the likeliest tokens, those up to this probability.
        top_k: Of the likeliest tokens, so many.
        min_p: Tokens at least so likely as this share of the likeliest.
        presence_penalty: Against tokens that occurred.
        frequency_penalty: Against tokens by how often they occurred.
        repetition_penalty: Against tokens that occurred or are in the prompt; 1 is none.
    """

    temperature: Annotated[float, Field(ge=0, le=10, strict=False)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1, strict=False)] | None = None
    top_k: Positive | None = None
    min_p: Annotated[float, Field(ge=0, le=1, strict=False)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10, strict=False)] | None = None


class Structured(Strict):
    """Output held to a grammar: exactly one of ``json`` and ``regex``. Such a request may end before its length.

    Args:
        share: Of requests whose output is held to it.
        json_schema: A JSON schema; ``json`` in the file.
        regex: A regular expression.
    """

    share: Share = 1.0
    json_schema: Annotated[dict[str, JsonValue] | None, Field(alias="json", description="A JSON schema.")] = None
    regex: Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_expression)] | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Structured:
        if (self.json_schema is None) == (self.regex is None):
            raise ValueError("expected exactly one of json, regex")
        return self


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"expected each name once, and {twice[0]} is there more often")
    return names


AdapterName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]


class Adapters(Strict):
    """LoRA adapters that requests ask for, by the names under which the server has them.

    Args:
        names: Adapters; each request that asks for one draws its own.
        share: Of requests that ask for one; the others ask for the model itself.
    """

    names: Annotated[tuple[AdapterName, ...], Field(min_length=1), Listed, AfterValidator(_distinct)]
    share: Share = 1.0


class Load(Strict):
    """What a server is given to do: requests with prompts from seeds, the same on both sides.

    Args:
        arrival: When requests come.
        requests: How many there are in a window.
        duration: How long a window lasts, in place of ``requests``; not for a closed loop. A trace is replayed whole
            where neither is given.
        input_tokens: Length of the prompts. Left out: from the trace, else evenly from 256 to 768.
        output_tokens: Tokens generated. Left out: from the trace, else evenly from 64 to 192.
        prefix: Prompts that begin alike.
        long_prefill: Long prompts among the others.
        cancel: Users who hang up.
        sampling: How tokens are drawn.
        structured: Output held to a grammar.
        lora: Adapters.
        seed: Draws everything that is random; windows differ all the same.
    """

    arrival: Annotated[Arrival, Field(examples=[{"poisson": 4}])]
    requests: Size | None = None
    duration: Duration | None = None
    input_tokens: LengthsField | None = None
    output_tokens: LengthsField | None = None
    prefix: Prefixes | None = None
    long_prefill: LongPrefill | None = None
    cancel: Cancelled | None = None
    sampling: Sampling = Sampling()
    structured: Structured | None = None
    lora: Adapters | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    @model_validator(mode="after")
    def _has_an_end(self) -> Load:
        given = (self.requests is not None) + (self.duration is not None)
        if given > 1 or (not given and self.arrival.replay is None):
            raise ValueError("expected one of requests, duration")
        if self.arrival.closed is not None and self.requests is None:
            raise FieldError(("duration",), "a closed loop lasts as long as its requests: give requests instead")
        ramp = self.arrival.ramp
        if ramp is not None and ramp.end < ramp.start and self.duration is None:
            raise FieldError(
                ("requests",), "the last requests of a ramp that falls may come late: give duration instead"
            )
        if self.most_requests > MOST_REQUESTS:
            raise FieldError(("duration",), f"makes more than {MOST_REQUESTS} requests: shorten it")
        if (lasts_s := self._longest_s) > MOST_SECONDS:
            raise FieldError(
                ("arrival",), f"a window lasts {lasts_s / 3600:.0f} hours: raise the rate, or make it shorter"
            )
        return self

    @model_validator(mode="after")
    def _keeps_out_of_step(self) -> Load:
        closed, output = self.arrival.closed, self.output_tokens
        if not closed or closed.concurrency == 1 or output is None or output.spread >= LEAST_SPREAD:
            return self
        think_s = LEAST_THINK_S * closed.concurrency
        if (closed.think or 0) < think_s:
            text = (
                "answers of about one length keep all users in step for ever: whoever is last in the queue stays last; "
                f"vary the length, like output_tokens: {{uniform: {[*_around(output.longest)]}}}, or give a think: of "
                f"{think_s:g}s or more"
            )
            raise FieldError(("arrival", "closed"), text)
        return self

    @model_validator(mode="after")
    def _fits_in_memory(self) -> Load:
        text = self.too_much(self.most_requests, (self.input_tokens or DEFAULT_INPUT).quantiles)
        if text and self.arrival.replay is None:
            raise FieldError(("requests" if self.requests else "duration",), text)
        return self

    def too_much(self, requests: float, plain: Sequence[int]) -> str:
        """Why the prompts of so many requests are more than a client holds; empty where they are not.

        Args:
            requests: Of a window.
            plain: How long prompts are that are neither long nor have a shared prefix, tokens.
        """
        each = self._with_prefix(plain)
        if self.long_prefill is not None:
            long, share = self._with_prefix(self.long_prefill.input_tokens.quantiles), self.long_prefill.share
            each = (1 - share) * each + share * long
        if requests * each <= MOST_PROMPTS:
            return ""
        held = f"{requests * each / 1e6:.0f} million tokens in the prompts of a window"
        return f"{held}, more than {MOST_PROMPTS / 1e6:.0f}: make it shorter"

    def _with_prefix(self, lengths: Sequence[int]) -> float:
        """The mean of these lengths, of which the declared share has at least a shared prefix and a token."""
        share, least = (self.prefix.share, self.prefix.tokens + 1) if self.prefix else (0.0, 0)
        return fmean((1 - share) * length + share * max(length, least) for length in lengths)

    @property
    def most_per_second(self) -> float:
        """The highest rate that an open loop comes to, requests a second; 0 where a trace or answers decide."""
        arrival = self.arrival
        rates = (arrival.poisson, arrival.constant, arrival.bursts and arrival.bursts.rate)
        ramp = [arrival.ramp.start, arrival.ramp.end] if arrival.ramp else []
        ramp += [arrival.find.most] if arrival.find else []
        return max(0.0, *(rate or 0.0 for rate in rates), *ramp)

    @property
    def most_requests(self) -> float:
        """About so many requests a window comes to at most; 0 where a trace decides."""
        return self.requests or (self.duration or 0) * self.most_per_second

    @property
    def lasts_s(self) -> float | None:
        """How long requests of a window come, seconds; ``None`` where answers or a trace decide."""
        arrival, ramp, bursts = self.arrival, self.arrival.ramp, self.arrival.bursts
        rates = (arrival.poisson, arrival.constant, bursts.rate if bursts else None,
                 (ramp.start + ramp.end) / 2 if ramp else None,
                 math.sqrt(arrival.find.least * arrival.find.most) if arrival.find else None)  # fmt: skip
        rate = next(filter(None, rates), None)
        return self.duration or (self.requests / rate if self.requests and rate else None)

    @property
    def _longest_s(self) -> float:
        """The same of the window that lasts longest, as far as the declaration says it."""
        find, closed, requests = self.arrival.find, self.arrival.closed, self.requests or 0
        if closed is not None:
            return requests * (closed.think or 0.0) / closed.concurrency
        return requests / find.least if find is not None and requests else self.lasts_s or 0.0

    @property
    def longest(self) -> int | None:
        """The most tokens that one request can come to, prompt and answer; ``None`` where a trace says it."""
        if self.arrival.replay is not None and (self.input_tokens is None or self.output_tokens is None):
            return None
        prompt, answer = self.input_tokens or DEFAULT_INPUT, self.output_tokens or DEFAULT_OUTPUT
        return self.longest_with(prompt.longest, answer.longest)

    def longest_with(self, prompt: int, answer: int) -> int:
        """The same where the longest plain prompt and the longest answer are known, tokens."""
        prompts = [prompt]
        prompts += [self.long_prefill.input_tokens.longest] if self.long_prefill else []
        prompts += [self.prefix.tokens + 1] if self.prefix else []
        return max(prompts) + answer

    def at_rate(self, rate: float) -> Load:
        """The load as a Poisson process of so many requests a second."""
        return self.model_copy(update={"arrival": Arrival(poisson=rate)})

    def replaying(self, sha256: str | None) -> Load:
        """The load with the digest of the trace that it replays; as it is where it replays none."""
        if sha256 is None or self.arrival.replay is None:
            return self
        replay = self.arrival.replay.model_copy(update={"sha256": sha256})
        return self.model_copy(update={"arrival": self.arrival.model_copy(update={"replay": replay})})


DEFAULT_INPUT = Lengths(uniform=(256, 768))
DEFAULT_OUTPUT = Lengths(uniform=(64, 192))


def _around(length: int) -> tuple[int, int]:
    return max(1, length // 2), max(2, length + length // 2)
