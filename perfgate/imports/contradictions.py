"""Figures of one result that cannot all be right: rates beside counts, quantiles beside each other, TPOT beside E2E.

Only what follows from how the tools make their figures is held against each other: a rate is a count by a duration; of
one quantity no quantile is below a lower one, and half of the values cannot be above twice the mean; a request ends
after its first token. TPOT is the mean over requests of ``(E2E - TTFT) / (tokens - 1)``, so the means of E2E, TTFT and
tokens give its mean over tokens. Both lie between the fastest and the slowest request, and differ by no more than
these do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

import numpy as np

from perfgate.imports.load_tools import ABSENT, ROUNDED, Content, Format, at

Times = Mapping[str, Mapping[str, float]]

FEWEST_TOKENS: Final = 8  # below so many tokens an answer the first ones, which TPOT leaves out, are too much of it
# Means over requests and over tokens may be so far apart, beyond what the quantiles say of the requests
UNEVEN: Final = 1.25
HIGH_QUANTILE: Final = 90.0  # without a quantile from this one on nobody knows how far apart requests are


def contradictions(tool: Format, content: Content, times: Times, tokens: Mapping[str, float]) -> list[str]:
    """What contradicts what, in words; nothing where a file says too little."""
    sentences = [*_rates(tool, content), *_latencies(content, times.get("e2e", {}))]
    for of, values in times.items():
        sentences += _one_quantity(of.upper(), values)
    end = times.get("e2e", {})
    for name, value in times.get("ttft", {}).items():
        if name in end and end[name] < value * (1 - ROUNDED):
            sentences.append(f"{name} of E2E is {_ms(end[name])}, below that of TTFT, {_ms(value)}")
    return [*sentences, *_time_per_token(times, tokens.get("output", 0.0))]


def _rates(tool: Format, content: Content) -> Iterator[str]:
    for path, (left, how, right, rounding) in tool.rates.items():
        rate, first, second = (_positive(at(content, place)) for place in (path, left, right))
        if rate is None or first is None or second is None:
            continue
        made = first / second if how == "/" else first * second
        if abs(rate / made - 1) > rounding:
            yield f"{path} is {rate:.6g}, and {left} {how} {right} is {made:.6g}"


def _positive(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and 0 < value < float("inf") else None


def _latencies(content: Content, e2e: Mapping[str, float]) -> Iterator[str]:
    """``vllm bench latency`` keeps every latency, so that all its figures can be made again."""
    kept = at(content, "latencies")
    if "percentiles" not in content or kept is ABSENT or not isinstance(kept, list) or not kept:
        return
    if any(_positive(value) is None for value in kept):
        yield "latencies are not all positive numbers"
        return
    for statistic, value in e2e.items():
        quantile = _quantile(statistic)
        made = float(np.mean(kept) if quantile is None else np.percentile(kept, quantile))
        if abs(value / made - 1) > ROUNDED:
            place = "avg_latency" if quantile is None else f"percentiles.{statistic}"
            yield f"{place} is {value:.6g}, by E2E latencies {made:.6g}"


def _quantile(statistic: str) -> float | None:
    """The quantile in percent that a statistic is: ``median``, ``p99``, ``99``."""
    if statistic == "median":
        return 50.0
    number = statistic.removeprefix("p")
    return float(number) if number.replace(".", "", 1).isdecimal() else None


def _quantiles(values: Mapping[str, float]) -> dict[float, tuple[str, float]]:
    """Names and values by quantile, in order."""
    rows = ((_quantile(name), name, value) for name, value in values.items())
    return {quantile: (name, value) for quantile, name, value in sorted((q, n, v) for q, n, v in rows if q is not None)}


def _mean(values: Mapping[str, float]) -> float | None:
    return next((values[name] for name in ("mean", "avg") if name in values), None)


def _one_quantity(of: str, values: Mapping[str, float]) -> Iterator[str]:
    ordered = [*_quantiles(values).values()]
    for (low, lower), (high, higher) in pairwise(ordered):
        if higher < lower * (1 - ROUNDED):
            yield f"{high} of {of} is {_ms(higher)}, below its {low} of {_ms(lower)}"
    mean, (name, median) = _mean(values), _quantiles(values).get(50.0, ("", 0.0))
    if mean and median > 2 * mean * (1 + ROUNDED):
        yield f"{name} of {of} is {_ms(median)}, more than twice its mean of {_ms(mean)}"


def _time_per_token(times: Times, tokens: float) -> Iterator[str]:
    mean, first, end = (_mean(times.get(of, {})) for of in ("tpot", "ttft", "e2e"))
    quantiles = _quantiles(times.get("tpot", {}))
    slowest = max(quantiles, default=0.0)
    if mean is None or first is None or end is None or end <= first or tokens < FEWEST_TOKENS or 50.0 not in quantiles:  # noqa: PLR2004 (the median)
        return
    if slowest < HIGH_QUANTILE:
        return
    high, median, low = (quantiles[quantile][1] for quantile in (slowest, 50.0, min(quantiles)))
    if min(quantiles) == 50.0:  # noqa: PLR2004 (as far below the median as the slow ones are above it)
        low = median**2 / high
    over_tokens = (end - first) / (tokens - 1)
    if max(mean / over_tokens, over_tokens / mean) > UNEVEN * max(high / low, 1.0):
        yield (
            f"the mean of TPOT is {_ms(mean)}, and E2E less TTFT is {_ms(over_tokens)} for each of {tokens:.6g} tokens "
            "but the first"
        )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"
