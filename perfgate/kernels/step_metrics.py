"""Metrics of traced and counted trials: how far the host keeps up, kernel time by role, counters by role."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from perfgate.counters.launch_table import COUNTERS, Counter
from perfgate.metrics.summaries import in_steps
from perfgate.metrics.trial import Trial
from perfgate.units import NS_PER_S


def host_slack(trial: Trial) -> float | None:
    """Of the median decode step, in seconds."""
    slacks = [slack for slack in trial.decode.slack_ns if slack is not None] if trial.decode else []
    return float(np.median(slacks)) / NS_PER_S if slacks else None


def slack_ticks(trial: Trial) -> float | None:
    """The same in steps of the device's clock."""
    return in_steps(trial.decode.tick_ns, host_slack)(trial) if trial.decode else None


def host_work(trial: Trial) -> float | None:
    """The 10th percentile: whatever interrupts the host (other threads, the kernel, the tracer) only adds to its work.

    What is left is how fast the CPU is at the moment, by which engines of one build differ by 3 % and more
    (docs/measurements.md).
    """
    works = [work for work in trial.decode.work_ns if work is not None] if trial.decode else []
    return float(np.percentile(works, 10)) / NS_PER_S if works else None


work_ns = in_steps(1, host_work)
"""The same in steps of the host's clock, which counts nanoseconds."""


def kernel_time(trial: Trial, role: str, _place: str = "") -> float | None:
    """Of a role in the median decode step, in seconds."""
    steps = trial.decode.role_ns.get(role, ()) if trial.decode else ()
    return float(np.median(steps)) / NS_PER_S if len(steps) else None


def kernel_throughput(trial: Trial, role: str, _place: str = "") -> float | None:
    """A pure decode step generates a token for each request of the batch."""
    seconds = kernel_time(trial, role)
    batch = len(trial.iterations[0].ttft_ns) if trial.iterations else 0
    return batch / seconds if batch and seconds else None


def _roles_traced(trial: Trial) -> Iterable[str]:
    return trial.decode.role_ns if trial.decode else ()


def _kernel_ticks(trial: Trial, role: str) -> float | None:
    return in_steps(trial.decode.tick_ns, lambda trial: kernel_time(trial, role))(trial) if trial.decode else None


_TRACED: Final = {"roles": _roles_traced, "steps": _kernel_ticks}
ROLE_METRICS: Final[Mapping[str, Mapping[str, Any]]] = {
    "kernel_time_per_step": {
        "unit": "s", "better": "lower", "summarise": kernel_time,
        "meaning": "time that a role's kernels take on the device in the median decode step", **_TRACED,
    },
    "kernel_throughput": {
        "unit": "tok/s", "better": "higher", "summarise": kernel_throughput,
        "meaning": "tokens generated per second of a role's kernel time: the batch by kernel_time_per_step", **_TRACED,
    },
}  # fmt: skip
"""Medians over the steps of a traced trial, on each device."""


def _counted(counter: Counter) -> Mapping[str, Any]:
    """A counter as a metric; see :data:`COUNTER_METRICS`."""

    def summarise(trial: Trial, role: str, place: str) -> float | None:
        mean: float | None = trial.counted.of(role, place).mean(counter.name) if trial.counted else None
        return mean

    meaning = f"{counter.meaning.removesuffix('.')}: the mean of a launch"
    return {"unit": counter.unit, "better": counter.better, "meaning": meaning, "summarise": summarise,
            "roles": _roles_counted, "placed": True, "of_gpu": True}  # fmt: skip


def _roles_counted(trial: Trial) -> Iterable[str]:
    return {launch.key.role for launch in trial.counted.launches} if trial.counted else ()


COUNTER_METRICS: Final[Mapping[str, Mapping[str, Any]]] = {
    counter.name: _counted(counter)
    for counter in COUNTERS.values()
    if counter.tier != "noisy" and counter.better != "neither" and counter.name != "spills"
}
"""Counters on which a gate with margins may rest: those that repeat exactly or tightly (docs/counters.md). Spills are
zero in a healthy kernel, which has no ratio: a bound or ``same`` holds them."""
