"""What the requests of a server's windows come to: quantiles, throughput, and goodput under an objective.

Requests of one server are correlated: they queue behind each other. So each of these is one number a trial, and a trial
is a fresh start of the server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Annotated, Final, get_args

import numpy as np
from pydantic import Field, model_validator

from perfgate.load.exchange import Counts
from perfgate.metrics.summaries import scaled, times_per_token
from perfgate.metrics.trial import Iteration, Trial
from perfgate.models import Duration, Strict
from perfgate.units import NS_PER_S, parse_quantity, plain_digits

TIMES: Final = ("ttft", "tpot", "e2e")
"""What an objective can bound, for each request."""


class Slo(Strict):
    """What a request must meet: every bound that is named.

    Args:
        ttft: The longest time to first token, from schedule.
        tpot: The longest time per output token after the first.
        e2e: The longest time from schedule to the last token.
    """

    ttft: Annotated[Duration | None, Field(examples=["200ms"])] = None
    tpot: Annotated[Duration | None, Field(examples=["20ms"])] = None
    e2e: Annotated[Duration | None, Field(examples=["2s"])] = None

    @model_validator(mode="after")
    def _a_bound(self) -> Slo:
        if not self.bounds:
            raise ValueError(f"expected at least one of {', '.join(TIMES)}")
        return self

    @property
    def bounds(self) -> dict[str, float]:
        """Those that are named, in seconds."""
        return {name: bound for name in TIMES if (bound := getattr(self, name)) is not None}


COUNTED_BY: Final = "counted_by"
"""The figure of a trial whose tokens were not counted by their ids: the place in :data:`COUNTS` of what says how many
an event of a server carried."""
COUNTS: Final[tuple[Counts, ...]] = get_args(Counts)
MAX_RATE, MAX_RATE_STEP = "max_rate_uhz", "max_rate_step_uhz"
"""Figures of a trial that sought the highest rate: that, and the width of its last bracket; millionths of a request a
second."""

MORE_WARMUP: Final = "more_warmup"
"""The figure of a trial that says how many windows of warm-up there were beyond the declared ones."""


def _figure(name: str, scale: float = 1.0) -> Callable[[Trial], float | None]:
    """One of a trial's figures in another unit."""
    return lambda trial: scaled(trial.figures.get(name), scale)


def _share(part: str, whole: str, scale: float = 1.0) -> Callable[[Trial], float | None]:
    """One of a trial's figures by another; ``None`` where either is missing, or the second is zero."""

    def summarise(trial: Trial) -> float | None:
        over = trial.figures.get(whole)
        return scaled(trial.figures[part] / over, scale) if over and part in trial.figures else None

    return summarise


max_rate = _figure(MAX_RATE, 1e-6)
max_rate_steps = _share(MAX_RATE, MAX_RATE_STEP)
preemptions = _figure("preemptions")
kv_use = _figure("kv_use_ppm", 1e-6)
queue_time = _share("queue_ns", "queued", 1 / NS_PER_S)
prefix_hit_share = _share("prefix_hits", "prefix_queries")
draft_acceptance = _share("drafts_accepted", "drafts")


def _quantile(times: Callable[[Iteration], Iterable[float]]) -> Callable[[Trial, str], float | None]:
    """A quantile over all windows of a trial, in seconds; linear interpolation (Hyndman and Fan 1996, type 7).

    Args:
        times: Those of a window, in nanoseconds.

    Returns:
        A function of a trial and a quantile as it is written, like ``p99.9``.
    """

    def summarise(trial: Trial, part: str) -> float | None:
        pooled = [time for window in trial.iterations for time in times(window)]
        return float(np.percentile(pooled, read_quantile(part))) / NS_PER_S if pooled else None

    return summarise


ttft_quantile = _quantile(lambda window: window.ttft_ns)
itl_quantile = _quantile(lambda window: window.itl_ns)
tpot_quantile = _quantile(times_per_token)
e2e_quantile = _quantile(lambda window: window.e2e_ns)


def write_quantile(quantile: float) -> str:
    """0.999 to ``p99.9``."""
    return f"p{quantile * 100:.10g}"


def read_quantile(part: str) -> float:
    """``p99.9`` to 99.9.

    Raises:
        KeyError: It is not a quantile between 0 and 100.
    """
    match = re.fullmatch(r"p([0-9]{1,2}(?:\.[0-9]{1,4})?)", part)
    if match is None or float(match[1]) <= 0:
        raise KeyError(part)
    return float(match[1])


def write_objective(slo: Slo) -> str:
    """``ttft<=200ms,tpot<=20ms``, in the order of :data:`TIMES`."""
    return ",".join(f"{name}<={plain_digits(Decimal(repr(bound)) * 1000)}ms" for name, bound in slo.bounds.items())


def read_objective(part: str) -> dict[str, float]:
    """The bounds in seconds that :func:`write_objective` wrote.

    Raises:
        KeyError: It is not an objective.
    """
    bounds: dict[str, float] = {}
    for bound in part.split(","):
        name, relation, text = bound.partition("<=")
        try:
            amount, unit = parse_quantity(text)
        except ValueError:
            raise KeyError(part) from None
        if name not in TIMES or name in bounds or not relation or unit != "s" or amount <= 0:
            raise KeyError(part)
        bounds[name] = amount
    return bounds


def goodput(trial: Trial, part: str) -> float | None:
    """Requests a second that met every bound of an objective, over the time that the windows took.

    A request of a single token has no time per output token and meets a bound on it.
    """
    bounds = read_objective(part)
    good = sum(_met(window, bounds) for window in trial.iterations)
    return _a_second(trial, good)


def met_requests(trials: Iterable[Trial], part: str) -> tuple[int, int]:
    """How many requests of these trials met every bound of an objective, and how many there were."""
    windows, bounds = [window for trial in trials for window in trial.iterations], read_objective(part)
    return sum(_met(window, bounds) for window in windows), sum(len(window.ttft_ns) for window in windows)


def met_share(window: Iteration, bounds: Mapping[str, float]) -> float:
    """The share of a window's requests that met every bound, in seconds."""
    return _met(window, bounds) / len(window.ttft_ns)


def request_throughput(trial: Trial) -> float | None:
    """Requests a second that were answered whole; nothing for a trial of batches."""
    return _a_second(trial, sum(len(window.lengths) for window in trial.iterations))


def _a_second(trial: Trial, requests: int) -> float | None:
    elapsed_ns = sum(window.elapsed_ns for window in trial.iterations if window.lengths)
    return requests / (elapsed_ns / NS_PER_S) if elapsed_ns else None


def _met(window: Iteration, bounds: Mapping[str, float]) -> int:
    rows = zip(window.ttft_ns, window.e2e_ns, window.tokens, strict=True)
    return sum(
        all(time <= bounds[name] * NS_PER_S for name, time in _times(*row).items() if name in bounds) for row in rows
    )


def _times(ttft: int, e2e: int, tokens: int) -> dict[str, float]:
    return {"ttft": ttft, "e2e": e2e, "tpot": (e2e - ttft) / (tokens - 1) if tokens > 1 else 0.0}
