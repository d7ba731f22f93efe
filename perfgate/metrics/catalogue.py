"""The metrics perfgate knows: name, unit, direction, meaning, and how a trial is summarised as one number.

A timed trial holds iterations in integer nanoseconds; what others hold say the rooms that bring them. Each metric
turns one trial into one float in the metric's base unit (seconds, bytes, tokens, tokens per second). That number is
what the statistics see: the trial is the unit of replication, iterations and tokens only sharpen its summary
(docs/design.md).

Beside them the quantities as people write and read them: ``1ms``, ``0.5%``, ``5.357 ms``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from perfgate import rooms
from perfgate.errors import UsageError
from perfgate.metrics.kinds import of_kinds
from perfgate.metrics.summaries import (
    elapsed_ns,
    energy_per_token,
    energy_steps,
    held,
    in_steps,
    itl_median,
    nested_median,
    output_throughput,
    pooled_percentile,
    scaled,
    startup,
    tpot_mean,
    utilisation,
)
from perfgate.metrics.trial import KINDS, Kind, Trial
from perfgate.units import NS_PER_S, Unit

DecodeShare = Literal["none", "part", "mean", "steps"]
PAGE_BYTES = 4096
"""In such steps the kernel counts what a process holds."""


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
        averages: True where a trial's value is the mean over its iterations, so that each counts that was disturbed;
            otherwise about their median.
        needs_floor: True where a trial without a floor has no value.
        kind: The kind of trial that it is read from.
        signed: True where zero and negative values are real measurements, though they have no ratio.
        zeros: True where zero is a real measurement, though it has no ratio, and no value is negative.
        steps: A trial to the number of its instrument's smallest steps that the value rests on; ``None`` for what is
            counted exactly, where equal values are equal in fact.
        of_gpu: True where trials of an engine on the CPU have no value.
        driver: The driver whose trials alone carry it; empty where that does not matter.
        met: How many requests of trials met what it counts, and how many there were; ``None`` for other metrics.
    """

    name: str
    unit: Unit
    better: Literal["lower", "higher"]
    meaning: str
    summarise: Callable[[Trial], float | None]
    decode: DecodeShare = "none"
    averages: bool = False
    needs_floor: bool = False
    kind: Kind = "timed"
    signed: bool = False
    zeros: bool = False
    steps: Callable[[Trial], float | None] | None = None
    of_gpu: bool = False
    driver: str = ""
    met: Callable[[Iterable[Trial]], tuple[int, int]] | None = None

    @property
    def sign(self) -> int:
        """+1 where larger is worse, -1 where larger is better."""
        return 1 if self.better == "lower" else -1

    def known_pairs(self, pairs: Iterable[tuple[Trial, Trial]]) -> list[tuple[int, float, float]]:
        """Number, base and head of each pair that has a ratio: both have a value, and it is positive."""
        values = [(self.summarise(base), self.summarise(head)) for base, head in pairs]
        return [(n, base, head) for n, (base, head) in enumerate(values) if base and head and min(base, head) > 0]

    def resolution(self, trial: Trial) -> float:
        """The smallest step by which the value of this trial could differ, as a share of it; 0 for exact counts."""
        steps = self.steps(trial) if self.steps else None
        return 1 / abs(steps) if steps else 0.0


def _time(name: str, meaning: str, summarise: Callable[[Trial], float | None], **more: Any) -> Metric:
    """A time by the host's clock, which counts nanoseconds."""
    return Metric(name, "s", "lower", meaning, summarise, steps=in_steps(1, summarise), **more)


COLD_START: Final = "start_time_cold"
"""A metric, and the figure of a trial that began with empty caches for its sake, in nanoseconds."""


def _with_brought(declared: Iterable[Metric]) -> dict[str, Metric]:
    """Metrics by name, those that rooms bring (``metrics`` of their tables) behind the one that they say, or all.

    A time that a room brings is one by the host's clock, unless it says its ``steps``.
    """
    declared = tuple(declared)
    brought: dict[str, list[Metric]] = {}
    for name, entry in rooms.entries("metrics").items():
        if "key" in entry:
            continue
        fields = _imported({key: value for key, value in entry.items() if key != "after"})
        if entry["unit"] == "s":
            fields.setdefault("steps", in_steps(1, fields["summarise"]))
        after = entry.get("after", "")
        if after not in {"", *(metric.name for metric in declared)}:
            raise UsageError(f"a room is broken: metrics.{name}: after: there is no metric {after!r}")
        brought.setdefault(after, []).append(Metric(name=name, **fields))
    for behind in brought.values():
        behind.sort(key=lambda metric: KINDS.index(metric.kind))
    ordered = [metric for leader in declared for metric in (leader, *brought.get(leader.name, ()))]
    return {metric.name: metric for metric in (*ordered, *brought.get("", ()))}


def _imported(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry of a table with the functions that it names."""
    named = ("summarise", "steps", "met", "read", "write")
    return entry | {key: rooms.bring(entry[key]) for key in named if key in entry}


METRICS: dict[str, Metric] = _with_brought(
    (
        _time("ttft_median", "time to first token: submission of the batch to a request's first token",
              nested_median(lambda i: i.ttft_ns)),
        _time("ttft_p95", "95th percentile of the time to first token over all requests of a trial",
              pooled_percentile(lambda i: i.ttft_ns, 95)),
        _time("itl_median", "inter-token latency: median time of a pure decode step", itl_median, decode="steps"),
        _time("itl_p95", "95th percentile of the decode step time over all steps of a trial",
              pooled_percentile(lambda i: i.itl_ns, 95), decode="steps"),
        _time("itl_p99", "99th percentile of the decode step time over all steps of a trial",
              pooled_percentile(lambda i: i.itl_ns, 99), decode="steps"),
        _time("tpot_mean", "time per output token after the first, mean over requests and iterations", tpot_mean,
              decode="mean", averages=True),
        Metric("output_throughput", "tok/s", "higher", "tokens generated by the batch per second of elapsed time",
               output_throughput, decode="part", averages=True, steps=elapsed_ns),
        _time("e2e_median", "submission of the batch to a request's last token", nested_median(lambda i: i.e2e_ns),
              decode="part"),
        _time("start_time", "start of the worker process to an engine ready for requests",
              startup(lambda s: s.ready_ns, NS_PER_S)),
        _time(COLD_START, "start of the worker process to an engine ready for requests, with empty compile caches",
              lambda t: scaled(t.figures.get(COLD_START), 1 / NS_PER_S)),
        Metric("model_memory", "B", "lower", "memory that the model's weights take",
               startup(lambda s: s.model_memory_bytes)),
        Metric("kv_token_capacity", "tok", "higher", "tokens that the KV cache holds",
               startup(lambda s: s.kv_token_capacity)),
        Metric("kv_memory", "B", "lower", "memory that the KV cache takes", startup(lambda s: s.kv_memory_bytes)),
        Metric("peak_memory", "B", "lower", "the most GPU memory that tensors take while iterations run",
               held(lambda m: m.peak_device), of_gpu=True),
        Metric("activation_memory", "B", "lower", "the most GPU memory that an iteration takes for a while, above what "
               "was left of the iteration before", held(lambda m: m.activations), of_gpu=True),
        Metric("memory_fragmentation", "ratio", "lower", "GPU memory that torch's allocator holds at most, by the most "
               "that tensors take", held(lambda m: m.fragmentation), of_gpu=True),
        Metric("device_memory_growth", "ratio", "lower", "GPU memory that tensors take after the last iteration, by "
               "that after the first", held(lambda m: m.device_growth), of_gpu=True),
        Metric("host_memory", "B", "lower", "the most memory of the host that the engine's processes hold",
               held(lambda m: m.peak_resident), steps=held(lambda m: m.peak_resident / PAGE_BYTES)),
        Metric("host_memory_growth", "ratio", "lower", "memory of the host that the engine's processes hold after the "
               "last iteration, mapped files left out, by that after the first", held(lambda m: m.host_growth),
               steps=held(lambda m: m.resident[0] / PAGE_BYTES)),
        Metric("energy_per_token", "J/tok", "lower", "energy that the GPUs took over the measured iterations, by token",
               energy_per_token, steps=energy_steps, of_gpu=True),
        Metric("mbu", "ratio", "higher", "model bandwidth utilisation: bytes that a decode step must move, by those "
               "that the GPU's memory can move in the time of the median step", utilisation(lambda f: f.memory_ns),
               decode="steps", needs_floor=True, steps=in_steps(1, itl_median), of_gpu=True),
        Metric("mfu", "ratio", "higher", "model FLOP utilisation: operations that a decode step must do, by those that "
               "the GPU can do in the time of the median step", utilisation(lambda f: f.compute_ns),
               decode="steps", needs_floor=True, steps=in_steps(1, itl_median), of_gpu=True),
    )
)  # fmt: skip
"""Every metric with one value a trial. A new one is an entry here and a test (docs/extending.md)."""


@dataclass(frozen=True, kw_only=True)
class PartMetric:
    """A metric with a value for each role of kernels, perhaps at one place of a layer; a gate names these beside it.

    Args:
        name: As written in ``gates[].metric``.
        unit: Base unit of every stored value.
        better: The direction that is better.
        meaning: One sentence for tables and reports.
        summarise: A trial, a role and a place (or nothing) to the value in ``unit``; ``None`` where the trial has none.
        roles: The roles that a trial has a value for.
        kind: The kind of trial that it is read from.
        steps: A trial and a role to steps of the instrument, as in :class:`Metric`.
        placed: Whether a gate may name a place, too.
        of_gpu: As in :class:`Metric`.
    """

    name: str
    unit: Unit
    better: Literal["lower", "higher"]
    meaning: str
    summarise: Callable[[Trial, str, str], float | None]
    roles: Callable[[Trial], Iterable[str]]
    kind: Kind
    steps: Callable[[Trial, str], float | None] | None = None
    placed: bool = False
    of_gpu: bool = False

    def of(self, part: str) -> Metric:
        """The metric of one role, ``name[role]``, or of one place of it, ``name[role/place]``."""
        role, _, place = part.partition("/")
        name, meaning, counts = f"{self.name}[{part}]", f"{self.meaning}, for {part}", self.steps
        return Metric(
            name, self.unit, self.better, meaning, lambda t: self.summarise(t, role, place), decode="steps",
            kind=self.kind, steps=counts and (lambda t: counts(t, role)), of_gpu=self.of_gpu,
        )  # fmt: skip


PART_METRICS: dict[str, PartMetric] = {
    name: PartMetric(name=name, kind=kind, **metric)
    for kind, metrics in of_kinds("parts").items()
    for name, metric in metrics.items()
}
"""Every metric with a value for each role, by name, as kinds of trials bring them."""

PLACED_METRICS: tuple[str, ...] = tuple(name for name, metric in PART_METRICS.items() if metric.placed)
"""Those with a value for each place of a layer, too."""


def by_role(kind: Kind, trials: Sequence[Trial]) -> Iterator[Metric]:
    """Those of a kind, for each role that trials have a value for."""
    metrics = [metric for metric in PART_METRICS.values() if metric.kind == kind]
    roles = {role for metric in metrics for trial in trials for role in metric.roles(trial)}
    return (metric.of(role) for role in sorted(roles) for metric in metrics)


@dataclass(frozen=True, kw_only=True)
class KeyedMetric:
    """A metric with a parameter, which a gate gives in a key of its own; the tables of rooms bring them.

    Args:
        name: As written in ``gates[].metric``.
        unit: Base unit of every stored value.
        better: The direction that is better.
        meaning: One sentence for tables and reports.
        summarise: A trial and the parameter, as it is between the brackets of the name, to the value in ``unit``.
        key: The gate's key that holds the parameter.
        read: Reads the parameter.
        write: Writes it, as a gate holds it; :func:`read` reads that.
        like: A gate's key with a parameter, for people.
        kind: The kind of trial that it is read from.
        zeros: True where zero is a real measurement, though it has no ratio.
        decode: How decode steps enter it, as in :class:`Metric`.
        driver: The driver whose trials alone carry it.
        met: Trials and the parameter to how many requests met it, and how many there were.
    """

    name: str
    unit: Unit
    better: Literal["lower", "higher"]
    meaning: str
    summarise: Callable[[Trial, str], float | None]
    key: Literal["quantile", "slo"]
    read: Callable[[str], object]
    write: Callable[[Any], str]
    like: str
    kind: Kind = "timed"
    zeros: bool = False
    decode: DecodeShare = "none"
    driver: str = ""
    met: Callable[[Iterable[Trial], str], tuple[int, int]] | None = None

    def of(self, part: str) -> Metric:
        """The metric with its parameter, ``ttft_quantile[p99]``.

        Raises:
            KeyError: The parameter is not one.
        """
        self.read(part)

        def value(trial: Trial) -> float | None:
            return self.summarise(trial, part)

        count = self.met
        return Metric(
            f"{self.name}[{part}]", self.unit, self.better, f"{self.meaning}, {part}", value, decode=self.decode,
            zeros=self.zeros, steps=in_steps(1, value) if self.unit == "s" else elapsed_ns, driver=self.driver,
            met=(lambda trials: count(trials, part)) if count else None,
        )  # fmt: skip


KEYED_METRICS: dict[str, KeyedMetric] = {
    name: KeyedMetric(name=name, **_imported(entry))
    for name, entry in rooms.entries("metrics").items()
    if "key" in entry
}
"""Every metric that needs a parameter."""


def metric_names() -> tuple[str, ...]:
    """What a gate can name."""
    return (*METRICS, *PART_METRICS, *KEYED_METRICS)


def needs_floor(name: str) -> bool:
    """Whether the metric of that name needs the floor of a trial; false for a name that is not known."""
    return name in METRICS and METRICS[name].needs_floor


def metric_family(name: str) -> Metric | PartMetric | KeyedMetric:
    """The entry that a gate names by its metric, whatever the role.

    Raises:
        KeyError: There is none.
    """
    return METRICS.get(name) or KEYED_METRICS.get(name) or PART_METRICS[name]


def split_name(name: str) -> tuple[str, str | None]:
    """``kernel_time_per_step[gemm]`` as metric and role; a name without brackets has no role."""
    metric, bracket, role = name.partition("[")
    return (metric, role.removesuffix("]")) if bracket and role.endswith("]") else (name, None)


def find_metric(name: str) -> Metric:
    """The metric of that name, a role's as ``kernel_time_per_step[gemm]``, a quantile as ``ttft_quantile[p99]``.

    Raises:
        KeyError: There is none.
        UsageError: Its room was removed.
    """
    metric, role = split_name(name)
    if role is None and name in METRICS:
        return METRICS[name]
    entry = KEYED_METRICS.get(metric) or PART_METRICS.get(metric)
    if role is not None and entry is not None:
        return entry.of(role)
    if metric not in metric_names():
        rooms.refuse_removed("metrics", metric, metric)
    raise KeyError(name)


def trial_value(name: str, trial: Trial) -> float | None:
    """The value of metric ``name`` for one trial, in base units; ``None`` where the trial does not carry it.

    Raises:
        KeyError: There is no such metric.
    """
    return find_metric(name).summarise(trial)
