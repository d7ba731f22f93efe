"""The metrics perfgate knows: name, unit, direction, meaning, and how a trial is summarised as one number.

A timed trial holds iterations, a traced one decode steps; both hold integer nanoseconds.
A called one holds counts. Each metric turns one trial
into one float in the metric's base unit (seconds, bytes, tokens, tokens per second). That number is what the statistics
see: the trial is the unit of replication, iterations and tokens only sharpen its summary (docs/design.md).

Beside them the quantities as people write and read them: ``1ms``, ``0.5%``, ``5.357 ms``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from perfgate.counters.launch_table import COUNTERS, Counter
from perfgate.counters.roofline_bound import Floor
from perfgate.metrics.trial import Iteration, Kind, Startup, Trial
from perfgate.units import NS_PER_S, Unit

ENERGY_STEP_UJ = 1000
"""NVML counts energy in millijoules."""


@dataclass(frozen=True)
class Metric:
    """A quantity measured once a trial.

    Args:
        name: As written in ``gates[].metric``.
        unit: Base unit of every stored value.
        better: The direction that is better.
        meaning: One sentence for tables and reports.
        summarise: A trial to its value in ``unit``; ``None`` where this trial does not carry the metric.
        decode: How decode steps enter it: not at all, as a ``part`` of what is timed, as their ``mean``, or as single
            pure ``steps``, which give every request of the batch a token; the latter two need three output tokens.
        needs_floor: True where a trial without a floor has no value.
        kind: The kind of trial that it is read from.
        signed: True where zero and negative values are real measurements, though they have no ratio.
        steps: A trial to the number of its instrument's smallest steps that the value rests on; ``None`` for what is
            counted exactly, where equal values are equal in fact.
    """

    name: str
    unit: Unit
    better: Literal["lower", "higher"]
    meaning: str
    summarise: Callable[[Trial], float | None]
    decode: Literal["none", "part", "mean", "steps"] = "none"
    needs_floor: bool = False
    kind: Kind = "timed"
    signed: bool = False
    steps: Callable[[Trial], float | None] | None = None

    @property
    def sign(self) -> int:
        """+1 where larger is worse, -1 where larger is better."""
        return 1 if self.better == "lower" else -1

    def resolution(self, trial: Trial) -> float:
        """The smallest step by which the value of this trial could differ, as a share of it; 0 for exact counts."""
        steps = self.steps(trial) if self.steps else None
        return 1 / abs(steps) if steps else 0.0


def _time(name: str, meaning: str, summarise: Callable[[Trial], float | None], **more: Any) -> Metric:
    """A time by the host's clock, which counts nanoseconds."""
    return Metric(name, "s", "lower", meaning, summarise, steps=_in(1, summarise), **more)


def _in(step_ns: float, seconds: Callable[[Trial], float | None]) -> Callable[[Trial], float | None]:
    """A time in steps of so many nanoseconds."""

    def steps(trial: Trial) -> float | None:
        value = seconds(trial)
        return None if value is None else value * NS_PER_S / step_ns

    return steps


def _in_device_steps(seconds: Callable[[Trial], float | None]) -> Callable[[Trial], float | None]:
    return lambda trial: _in(trial.decode.tick_ns if trial.decode else 1, seconds)(trial)


def _nested_median(values: Callable[[Iteration], Sequence[int]]) -> Callable[[Trial], float | None]:
    """Median of each iteration, then of the trial, in seconds: one disturbed iteration cannot move it."""

    def summarise(trial: Trial) -> float | None:
        medians = [float(np.median(values(i))) for i in trial.iterations if len(values(i))]
        return float(np.median(medians)) / NS_PER_S if medians else None

    return summarise


def _pooled_percentile(values: Callable[[Iteration], Sequence[int]], percent: float) -> Callable[[Trial], float | None]:
    """A percentile over all values of the trial, in seconds; linear interpolation (Hyndman and Fan 1996, type 7)."""

    def summarise(trial: Trial) -> float | None:
        pooled = [v for i in trial.iterations for v in values(i)]
        return float(np.percentile(pooled, percent)) / NS_PER_S if pooled else None

    return summarise


_itl_median = _nested_median(lambda i: i.itl_ns)


def _tpot_mean(trial: Trial) -> float | None:
    """Mean over requests of (e2e - ttft) / (n - 1), as ``vllm bench serve`` defines TPOT; mean over iterations."""
    means = [
        float(np.mean(np.subtract(i.e2e_ns, i.ttft_ns))) / (i.output_tokens - 1)
        for i in trial.iterations
        if i.output_tokens > 1
    ]
    return float(np.mean(means)) / NS_PER_S if means else None


def _output_throughput(trial: Trial) -> float | None:
    elapsed_ns = _elapsed_ns(trial)
    tokens = sum(i.output_tokens * len(i.ttft_ns) for i in trial.iterations)
    return tokens / (elapsed_ns / NS_PER_S) if elapsed_ns else None


def _elapsed_ns(trial: Trial) -> int:
    return sum(i.elapsed_ns for i in trial.iterations)


def _energy_per_token(trial: Trial) -> float | None:
    """Energy of all GPUs over the measured iterations, prefill included, by the tokens generated in them."""
    energy_uj = _energy_uj(trial)
    tokens = sum(i.output_tokens * len(i.ttft_ns) for i in trial.iterations)
    return energy_uj / 1e6 / tokens if tokens and energy_uj is not None else None


def _energy_uj(trial: Trial) -> int | None:
    energies = [gpu.energy_uj for gpu in trial.telemetry]
    known = [energy for energy in energies if energy is not None]
    return sum(known) if energies and len(known) == len(energies) else None


def _energy_steps(trial: Trial) -> float | None:
    energy_uj = _energy_uj(trial)
    return energy_uj / ENERGY_STEP_UJ if energy_uj is not None else None


def _startup(read: Callable[[Startup], int | None], scale: float = 1.0) -> Callable[[Trial], float | None]:
    def summarise(trial: Trial) -> float | None:
        value = read(trial.startup) if trial.startup else None
        return None if value is None else value / scale

    return summarise


def _host_slack(trial: Trial) -> float | None:
    known = [slack for slack in trial.decode.slack_ns if slack is not None] if trial.decode else []
    return float(np.median(known)) / NS_PER_S if known else None


def _utilisation(needed_ns: Callable[[Floor], int]) -> Callable[[Trial], float | None]:
    """The floor's share of the median decode step: the model's bytes, or operations, by what could have been done."""

    def summarise(trial: Trial) -> float | None:
        step_s = _itl_median(trial) if trial.floor else None
        return needed_ns(trial.floor) / NS_PER_S / step_s if trial.floor and step_s else None

    return summarise


def _host_work(trial: Trial) -> float | None:
    """The 10th percentile: whatever interrupts the host (other threads, the kernel, the tracer) only adds to its work.

    What is left is how fast the CPU is at the moment, by which engines of one build differ by 3 % and more
    (docs/measurements.md).
    """
    known = [work for work in trial.decode.work_ns if work is not None] if trial.decode else []
    return float(np.percentile(known, 10)) / NS_PER_S if known else None


def _host_calls(trial: Trial) -> float | None:
    return float(np.median(trial.calls.step_calls)) if trial.calls else None


def _kernel_time(trial: Trial, role: str, _place: str = "") -> float | None:
    steps = trial.decode.role_ns.get(role, ()) if trial.decode else ()
    return float(np.median(steps)) / NS_PER_S if len(steps) else None


def _kernel_throughput(trial: Trial, role: str, _place: str = "") -> float | None:
    """A pure decode step generates a token for each request of the batch."""
    seconds = _kernel_time(trial, role)
    batch = len(trial.iterations[0].ttft_ns) if trial.iterations else 0
    return batch / seconds if batch and seconds else None


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        _time("ttft_median", "time to first token: submission of the batch to a request's first token",
              _nested_median(lambda i: i.ttft_ns)),
        _time("ttft_p95", "95th percentile of the time to first token over all requests of a trial",
              _pooled_percentile(lambda i: i.ttft_ns, 95)),
        _time("itl_median", "inter-token latency: median time of a pure decode step", _itl_median, decode="steps"),
        _time("itl_p95", "95th percentile of the decode step time over all steps of a trial",
              _pooled_percentile(lambda i: i.itl_ns, 95), decode="steps"),
        _time("itl_p99", "99th percentile of the decode step time over all steps of a trial",
              _pooled_percentile(lambda i: i.itl_ns, 99), decode="steps"),
        _time("tpot_mean", "time per output token after the first, mean over requests and iterations", _tpot_mean,
              decode="mean"),
        Metric("output_throughput", "tok/s", "higher", "tokens generated by the batch per second of elapsed time",
               _output_throughput, decode="part", steps=_elapsed_ns),
        _time("e2e_median", "submission of the batch to a request's last token", _nested_median(lambda i: i.e2e_ns),
              decode="part"),
        _time("start_time", "start of the worker process to an engine ready for requests",
              _startup(lambda s: s.ready_ns, NS_PER_S)),
        Metric("model_memory", "B", "lower", "memory that the model's weights take",
               _startup(lambda s: s.model_memory_bytes)),
        Metric("kv_token_capacity", "tok", "higher", "tokens that the KV cache holds",
               _startup(lambda s: s.kv_token_capacity)),
        Metric("energy_per_token", "J/tok", "lower", "energy that the GPUs took over the measured iterations, by token",
               _energy_per_token, steps=_energy_steps),
        Metric("mbu", "ratio", "higher", "model bandwidth utilisation: bytes that a decode step must move, by those "
               "that the GPU's memory can move in the time of the median step", _utilisation(lambda f: f.memory_ns),
               decode="steps", needs_floor=True, steps=_in(1, _itl_median)),
        Metric("mfu", "ratio", "higher", "model FLOP utilisation: operations that a decode step must do, by those that "
               "the GPU can do in the time of the median step", _utilisation(lambda f: f.compute_ns),
               decode="steps", needs_floor=True, steps=_in(1, _itl_median)),
        Metric("host_work_per_step", "s", "lower", "how long the host works in a decode step, its waits for the device "
               "left out; the 10th percentile of the steps, because interruptions only add", _host_work,
               decode="steps", kind="traced", steps=_in(1, _host_work)),
        Metric("host_slack_per_step", "s", "higher", "how much longer the host could work in a decode step before the "
               "device waits for it; the median step, negative where the device does wait", _host_slack,
               decode="steps", kind="traced", signed=True, steps=_in_device_steps(_host_slack)),
        Metric("host_calls_per_step", "count", "lower", "Python and C functions that the host calls in the median "
               "decode step, counted in trials of their own", _host_calls, decode="steps", kind="called"),
    )
}  # fmt: skip
"""Every metric with one value a trial. A new one is an entry here and a test (docs/extending.md)."""


@dataclass(frozen=True)
class RoleMetric:
    """A metric with a value for each role of kernels, perhaps at one place of a layer; a gate names these beside it.

    Args:
        name: As written in ``gates[].metric``.
        unit: Base unit of every stored value.
        better: The direction that is better.
        meaning: One sentence for tables and reports.
        summarise: A trial, a role and a place (or nothing) to the value in ``unit``; ``None`` where the trial has none.
        kind: The kind of trial that it is read from.
    """

    name: str
    unit: Unit
    better: Literal["lower", "higher"]
    meaning: str
    summarise: Callable[[Trial, str, str], float | None]
    kind: Kind = "traced"

    def of(self, part: str) -> Metric:
        """The metric of one role, ``name[role]``, or of one place of it, ``name[role/place]``."""
        role, _, place = part.partition("/")
        name, meaning = f"{self.name}[{part}]", f"{self.meaning}, for {part}"
        steps = _in_device_steps(lambda t: _kernel_time(t, role)) if self.kind == "traced" else None
        return Metric(
            name, self.unit, self.better, meaning, lambda t: self.summarise(t, role, place), decode="steps",
            kind=self.kind, steps=steps,
        )  # fmt: skip


def _counted(counter: Counter) -> RoleMetric:
    """A counter as a metric; see :data:`COUNTER_METRICS`."""

    def summarise(trial: Trial, role: str, place: str) -> float | None:
        return trial.counted.of(role, place).mean(counter.name) if trial.counted else None

    meaning = f"{counter.meaning.removesuffix('.')}: the mean of a launch"
    better: Any = counter.better
    unit: Any = counter.unit
    return RoleMetric(counter.name, unit, better, meaning, summarise, kind="counted")


ROLE_METRICS: dict[str, RoleMetric] = {
    metric.name: metric
    for metric in (
        RoleMetric("kernel_time_per_step", "s", "lower", "time that a role's kernels take on the device in the median "
                   "decode step", _kernel_time),
        RoleMetric("kernel_throughput", "tok/s", "higher", "tokens generated per second of a role's kernel time: the "
                   "batch by kernel_time_per_step", _kernel_throughput),
    )
}  # fmt: skip
"""Every metric that needs a role. They are medians over the steps of a trial, on each device."""

COUNTER_METRICS: dict[str, RoleMetric] = {
    counter.name: _counted(counter)
    for counter in COUNTERS.values()
    if counter.tier != "noisy" and counter.better != "neither" and counter.name != "spills"
}
"""Counters on which a gate with margins may rest: those that repeat exactly or tightly (docs/counters.md). Spills are
zero in a healthy kernel, which has no ratio: a bound or ``same`` holds them."""

PART_METRICS = ROLE_METRICS | COUNTER_METRICS
"""Every metric with a value for each role."""


def metric_names() -> tuple[str, ...]:
    """What a gate can name."""
    return (*METRICS, *PART_METRICS)


def needs_floor(name: str) -> bool:
    """Whether the metric of that name needs the floor of a trial; false for a name that is not known."""
    return name in METRICS and METRICS[name].needs_floor


def metric_family(name: str) -> Metric | RoleMetric:
    """The entry that a gate names by its metric, whatever the role.

    Raises:
        KeyError: There is none.
    """
    return METRICS[name] if name in METRICS else PART_METRICS[name]


def split_name(name: str) -> tuple[str, str | None]:
    """``kernel_time_per_step[gemm]`` as metric and role; a name without brackets has no role."""
    metric, bracket, role = name.partition("[")
    return (metric, role.removesuffix("]")) if bracket and role.endswith("]") else (name, None)


def find_metric(name: str) -> Metric:
    """The metric of that name, a role's as ``kernel_time_per_step[gemm]``.

    Raises:
        KeyError: There is none.
    """
    metric, role = split_name(name)
    return METRICS[name] if role is None else PART_METRICS[metric].of(role)


def trial_value(name: str, trial: Trial) -> float | None:
    """The value of metric ``name`` for one trial, in base units; ``None`` where the trial does not carry it.

    Raises:
        KeyError: There is no such metric.
    """
    return find_metric(name).summarise(trial)
