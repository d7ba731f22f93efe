"""From a trial to one number: the functions behind the metrics of :mod:`perfgate.metrics.catalogue`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from perfgate.metrics.memory import Memory
from perfgate.metrics.roofline_bound import Floor
from perfgate.metrics.trial import Iteration, Startup, Trial
from perfgate.units import NS_PER_S

ENERGY_STEP_UJ = 1000
"""NVML counts energy in millijoules."""


def nested_median(values: Callable[[Iteration], Sequence[int]]) -> Callable[[Trial], float | None]:
    """Median of each iteration, then of the trial, in seconds: one disturbed iteration cannot move it."""

    def summarise(trial: Trial) -> float | None:
        medians = [float(np.median(values(i))) for i in trial.iterations if len(values(i))]
        return float(np.median(medians)) / NS_PER_S if medians else None

    return summarise


def pooled_percentile(values: Callable[[Iteration], Sequence[int]], percent: float) -> Callable[[Trial], float | None]:
    """A percentile over all values of the trial, in seconds; linear interpolation (Hyndman and Fan 1996, type 7)."""

    def summarise(trial: Trial) -> float | None:
        pooled = [v for i in trial.iterations for v in values(i)]
        return float(np.percentile(pooled, percent)) / NS_PER_S if pooled else None

    return summarise


itl_median = nested_median(lambda i: i.itl_ns)


def step_median(trial: Trial) -> float | None:
    """The decode step behind :func:`itl_median`, in seconds, whole where a request gets several tokens in one.

    ``None`` as well where that was not recorded.
    """
    if any(i.multi_token and i.itl_ns and i.step_ns is None for i in trial.iterations):
        return None
    return nested_median(lambda i: i.itl_ns if i.step_ns is None else (i.step_ns,))(trial)


def tpot_mean(trial: Trial) -> float | None:
    """Mean over requests of (e2e - ttft) / (n - 1), as ``vllm bench serve`` defines TPOT; mean over iterations."""
    means = [mean for i in trial.iterations if (mean := _tpot(i)) is not None]
    return float(np.mean(means)) / NS_PER_S if means else None


def _tpot(i: Iteration) -> float | None:
    if i.lengths:
        each = [*times_per_token(i)]
        return float(np.mean(each)) if each else None
    return float(np.mean(np.subtract(i.e2e_ns, i.ttft_ns))) / (i.output_tokens - 1) if i.output_tokens > 1 else None


def times_per_token(i: Iteration) -> Iterator[float]:
    """Of each request the time per output token after the first, ns; a request of a single token has none."""
    for ttft, e2e, tokens in zip(i.ttft_ns, i.e2e_ns, i.tokens, strict=True):
        if tokens > 1:
            yield (e2e - ttft) / (tokens - 1)


def output_throughput(trial: Trial) -> float | None:
    """Tokens generated a second of elapsed time."""
    ns = elapsed_ns(trial)
    tokens = sum(i.generated for i in trial.iterations)
    return tokens / (ns / NS_PER_S) if ns else None


def elapsed_ns(trial: Trial) -> int:
    """Time of all iterations together."""
    return sum(i.elapsed_ns for i in trial.iterations)


def energy_per_token(trial: Trial) -> float | None:
    """Energy of all GPUs over the measured iterations, prefill included, by the tokens generated in them."""
    energy_uj = _energy_uj(trial)
    tokens = sum(i.generated for i in trial.iterations)
    return energy_uj / 1e6 / tokens if tokens and energy_uj is not None else None


def _energy_uj(trial: Trial) -> int | None:
    energies = [gpu.energy_uj for gpu in trial.telemetry]
    readings = [energy for energy in energies if energy is not None]
    return sum(readings) if energies and len(readings) == len(energies) else None


def energy_steps(trial: Trial) -> float | None:
    """The energy in the steps that NVML counts."""
    energy_uj = _energy_uj(trial)
    return energy_uj / ENERGY_STEP_UJ if energy_uj is not None else None


def startup(read: Callable[[Startup], int | None], scale: float = 1.0) -> Callable[[Trial], float | None]:
    """A figure of the start of the engine."""

    def summarise(trial: Trial) -> float | None:
        value = read(trial.startup) if trial.startup else None
        return None if value is None else value / scale

    return summarise


def in_steps(step_ns: float, seconds: Callable[[Trial], float | None]) -> Callable[[Trial], float | None]:
    """A time in steps of so many nanoseconds."""

    def steps(trial: Trial) -> float | None:
        value = seconds(trial)
        return None if value is None else value * NS_PER_S / step_ns

    return steps


def scaled(value: float | None, scale: float = 1.0) -> float | None:
    """A value in another unit."""
    return None if value is None else value * scale


def held(read: Callable[[Memory], float | None]) -> Callable[[Trial], float | None]:
    """A figure of what the engine holds between iterations."""
    return lambda trial: read(trial.memory) if trial.memory else None


def utilisation(needed_ns: Callable[[Floor], int]) -> Callable[[Trial], float | None]:
    """The floor's share of the median decode step: the model's bytes, or operations, by what could have been done."""

    def summarise(trial: Trial) -> float | None:
        step_s = itl_median(trial) if trial.floor else None
        return needed_ns(trial.floor) / NS_PER_S / step_s if trial.floor and step_s else None

    return summarise
