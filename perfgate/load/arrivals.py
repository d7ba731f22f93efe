"""From a load to the requests of a window: pure, the same wherever and whenever it is asked for.

Each thing that is random has a stream of numbers of its own, drawn with :meth:`random.Random.random` alone, whose
numbers Python keeps the same from version to version. So a load that gains cancelled requests keeps its prompts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, takewhile

from pydantic import JsonValue

from perfgate.load.arrival_kinds import APART_NS, MOST_REQUESTS, Arrival
from perfgate.load.exchange import Request, Window
from perfgate.load.shape import DEFAULT_INPUT, DEFAULT_OUTPUT, Load
from perfgate.units import NS_PER_S

BLOCK_TOKENS = 512
"""Tokens that one entry of a Mooncake trace's ``hash_ids`` covers."""


@dataclass(frozen=True)
class Arrived:
    """One line of a trace.

    Args:
        at_ns: From the first line.
        input_tokens: Length of the prompt.
        output_tokens: Length of the answer.
        blocks: Which content each block of 512 tokens of the prompt has; empty where the trace does not say.
    """

    at_ns: int
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


def window(load: Load, number: int, vocabulary: int, trace: Sequence[Arrived] = (), *, words: str = "") -> Window:
    """The requests of one window.

    Args:
        load: The declaration.
        number: Of the window, from 0: each has times, lengths and tokens of its own. Those of a trace alone repeat.
        vocabulary: Token ids are below it. The first 16 are left out where it is large enough: they are often special.
        trace: What ``arrival.replay`` names, as :func:`perfgate.load.arrival_trace.read_arrivals` reads it.
        words: Draws other token ids, at the same times and of the same lengths: for a server that may have seen these.

    Raises:
        ValueError: The load replays a trace, and there is none.
    """
    draw = _Draws(f"load {load.seed} {number}", vocabulary, words)
    if load.arrival.replay is not None and not trace:
        raise ValueError("the trace to replay is empty")
    times = list(islice(_times(load, draw, trace), load.requests or MOST_REQUESTS))
    times = times or [0]  # a window asks for something
    requests = tuple(_request(load, index, at_ns, draw, trace) for index, at_ns in enumerate(times))
    closed = load.arrival.closed
    if closed is None:
        return Window(requests=requests)
    think = draw.stream("think")
    mean_ns = (closed.think or 0.0) * NS_PER_S
    waits = [round(-mean_ns * math.log1p(-next(think))) for _ in requests]
    for user in range(min(closed.concurrency, len(waits))):
        waits[user] += user * APART_NS
    return Window(requests=requests, concurrency=closed.concurrency, think_ns=tuple(waits))


def part(load: Load, trace: Sequence[Arrived]) -> tuple[Arrived, ...]:
    """The entries of a trace that a window of this load replays."""
    speed = load.arrival.replay.speed if load.arrival.replay else 1.0
    end_ns = math.inf if load.duration is None else load.duration * NS_PER_S * speed
    return tuple(islice(takewhile(lambda entry: entry.at_ns < end_ns, trace), load.requests or MOST_REQUESTS))


def longest(load: Load, trace: Sequence[Arrived]) -> int | None:
    """The most tokens that one request can come to, prompt and answer; ``None`` where a trace says it and is empty."""
    replayed = part(load, trace)
    if load.longest is not None or not replayed:
        return load.longest
    inputs, outputs = load.input_tokens, load.output_tokens
    prompt = inputs.longest if inputs else max(entry.input_tokens for entry in replayed)
    answer = outputs.longest if outputs else max(entry.output_tokens for entry in replayed)
    return load.longest_with(prompt, answer)


def crowded(load: Load, trace: Sequence[Arrived]) -> float | None:
    """Requests a second at which a trace is replayed, where its requests cannot come so fast; ``None`` where they can.

    Those that all come at one time are a burst.
    """
    replay, replayed = load.arrival.replay, part(load, trace)
    if replay is None or not replayed or not replayed[-1].at_ns:
        return None
    rate = (len(replayed) - 1) / (replayed[-1].at_ns / replay.speed / NS_PER_S)
    return rate if rate * APART_NS > NS_PER_S else None


class _Draws:
    """The streams of random numbers of one window.

    Args:
        seed: Of all of them.
        vocabulary: Token ids are below it.
        words: Of token ids alone; empty for those that every server gets.
    """

    def __init__(self, seed: str, vocabulary: int, words: str) -> None:
        self._seed = seed
        self._words = f"{seed} {words}" if words else seed
        self._lowest = 16 if vocabulary > 32 else 0  # noqa: PLR2004 (explained above)
        self._span = vocabulary - self._lowest

    def stream(self, purpose: str) -> Iterator[float]:
        """Numbers from 0 up to and without 1."""
        generator = random.Random(f"{self._seed} {purpose}")  # noqa: S311 (no secret)
        return iter(generator.random, None)

    def one(self, purpose: str) -> float:
        """The first number of a stream."""
        return next(self.stream(purpose))

    def tokens(self, purpose: str, count: int) -> list[int]:
        """Token ids."""
        draw = random.Random(f"{self._words} {purpose}").random  # noqa: S311 (no secret)
        lowest, span = self._lowest, self._span
        return [lowest + int(draw() * span) for _ in range(count)]


def _times(load: Load, draw: _Draws, trace: Sequence[Arrived]) -> Iterator[int | None]:
    """When requests are due, nanoseconds; without end where the number of requests is what ends them."""
    if load.arrival.closed is not None:
        return iter(lambda: None, 0)
    if load.arrival.replay is not None:
        return _one_by_one(part(load, trace), load.arrival.replay.speed)
    seconds = _open_loop(load.arrival, draw, load)
    within = seconds if load.duration is None else takewhile(lambda at: at < (load.duration or 0), seconds)
    return (round(at * NS_PER_S) for at in within)


def _open_loop(arrival: Arrival, draw: _Draws, load: Load) -> Iterator[float]:
    """Seconds from the window's beginning, without end."""
    exponential = (-math.log1p(-uniform) for uniform in draw.stream("arrivals"))
    if arrival.constant is not None:
        phase = draw.one("phase")
        return ((phase + index) / arrival.constant for index in range(MOST_REQUESTS))
    if arrival.bursts is not None:
        size, per_second = arrival.bursts.size, arrival.bursts.rate / arrival.bursts.size
        return _grouped((at / per_second for at in accumulate(exponential)), size)
    if arrival.ramp is not None:
        start, end = arrival.ramp.start, arrival.ramp.end
        length = load.duration or 2 * (load.requests or 1) / (start + end)
        return (_ramped(operations, start, end, length) for operations in accumulate(exponential))
    rate = arrival.find.least if arrival.find is not None else arrival.poisson
    return (at / (rate or 1.0) for at in accumulate(exponential))


def _grouped(begins: Iterator[float], size: int) -> Iterator[float]:
    """Seconds of each request of a group, in order: a group begins when the one before is out."""
    free, apart = 0.0, APART_NS / NS_PER_S
    for begin in begins:
        first = max(begin, free)
        yield from (first + place * apart for place in range(size))
        free = first + size * apart


def _one_by_one(entries: Sequence[Arrived], speed: float) -> Iterator[int]:
    """When entries of a trace are due, nanoseconds: those of one time one after another, as the requests of a burst."""
    free_ns = 0
    for entry in entries:
        at_ns = max(round(entry.at_ns / speed), free_ns)
        yield at_ns
        free_ns = at_ns + APART_NS


def _ramped(area: float, start: float, end: float, length: float) -> float:
    """When a rate that goes evenly from ``start`` to ``end`` over ``length`` seconds has come to ``area`` requests.

    Afterwards it stays at ``end``.
    """
    whole = (start + end) / 2 * length
    if area >= whole:
        return length + (area - whole) / end
    slope = (end - start) / length
    return 2 * area / (start + math.sqrt(start * start + 2 * slope * area))  # the quadratic's stable root


def _request(load: Load, index: int, at_ns: int | None, draw: _Draws, trace: Sequence[Arrived]) -> Request:
    recorded = trace[index] if load.arrival.replay is not None else None
    inputs, outputs = load.input_tokens, load.output_tokens
    input_tokens = (
        recorded.input_tokens
        if recorded and inputs is None
        else (inputs or DEFAULT_INPUT).at(draw.one(f"input {index}"))
    )
    max_tokens = (
        recorded.output_tokens
        if recorded and outputs is None
        else (outputs or DEFAULT_OUTPUT).at(draw.one(f"output {index}"))
    )
    if load.long_prefill is not None and draw.one(f"long {index}") < load.long_prefill.share:
        input_tokens = load.long_prefill.input_tokens.at(draw.one(f"long input {index}"))
    cancel_after = None
    if load.cancel is not None and draw.one(f"cancel {index}") < load.cancel.share:
        cancel_after = load.cancel.after_tokens.at(draw.one(f"cancel after {index}"))
    return Request(
        number=index,
        at_ns=at_ns,
        prompt=tuple(_prompt(load, index, input_tokens, draw, recorded)),
        max_tokens=max_tokens,
        cancel_after=cancel_after,
        body=_body(load, index, draw),
    )


def _prompt(load: Load, index: int, length: int, draw: _Draws, recorded: Arrived | None) -> list[int]:
    begin: list[int] = []
    if recorded is not None and recorded.blocks and load.input_tokens is None:
        for block in recorded.blocks:
            begin += draw.tokens(f"block {block}", BLOCK_TOKENS)
        begin = begin[:length]
    elif load.prefix is not None and draw.one(f"prefix {index}") < load.prefix.share:
        group = int(draw.one(f"group {index}") * load.prefix.groups)
        begin = draw.tokens(f"group prefix {group}", load.prefix.tokens)
        length = max(length, len(begin) + 1)
    return begin + draw.tokens(f"prompt {index}", length - len(begin))


def _body(load: Load, index: int, draw: _Draws) -> dict[str, JsonValue]:
    body: dict[str, JsonValue] = load.sampling.model_dump(exclude_none=True)
    if load.sampling.temperature > 0:
        body["seed"] = int(draw.one(f"seed {index}") * 2**31)
    structured = load.structured
    if structured is None or draw.one(f"structured {index}") >= structured.share:
        body["ignore_eos"] = True
    elif structured.regex is not None:
        body["structured_outputs"] = {"regex": structured.regex}
    else:
        schema: JsonValue = {"name": "output", "schema": structured.json_schema}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    if load.lora is not None and draw.one(f"lora {index}") < load.lora.share:
        body["model"] = load.lora.names[int(draw.one(f"adapter {index}") * len(load.lora.names))]
    return body
