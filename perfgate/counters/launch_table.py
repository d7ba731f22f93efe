"""Hardware counters of single kernels: what ncu read, and the table that says what each counter means.

Names of ncu metrics differ between architectures and versions, so each counter has a list that is tried in order.
Stability tiers say what a comparison may rest on: ``exact`` counters repeat to the last digit, ``tight`` ones within
0.3 % where a kernel moves a megabyte or more, ``noisy`` ones follow clocks, caches and what ncu itself does
(docs/counters.md has what was seen).
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from perfgate.errors import RecordError
from perfgate.models import Frozen
from perfgate.trace.decode_step import KernelKey

_Key = TypeVar("_Key", bound=Hashable)

Better = Literal["higher", "lower", "neither"]
Tier = Literal["exact", "tight", "noisy"]

OF_THE_LAUNCH = "launch__"
"""Names of what ncu knows of a launch without replaying it, on every architecture."""
ARCHITECTURES = (80, 86, 89, 90, 100, 120)
"""Compute capabilities times ten: A100, A10 and RTX 30, L4/L40S and RTX 40, H100/H200, B200, RTX 50 and RTX PRO."""
CHECKED = (80, 86, 89, 90)
"""Where a name was found in ``ncu --query-metrics --chips ga100,ga102,ad102,gh100`` of ncu 2022.3, the newest chips it
knows; what is newer is expected to keep it, unverified."""


class Device(Frozen):
    """A GPU as ncu describes it; what it does not say is ``None``.

    Args:
        name: As the driver shows it.
        architecture: Compute capability times ten, 90 for 9.0.
        bus_bits: Width of the bus of device memory.
        memory_hz: Its highest clock.
        sm_hz: The SMs' highest clock.
    """

    name: str = ""
    architecture: int | None = None
    bus_bits: float | None = None
    memory_hz: float | None = None
    sm_hz: float | None = None

    @classmethod
    def of(cls, values: Mapping[str, float], name: str, architecture: int | None) -> Device:
        """The GPU that these values of a launch tell of, and where it is not given their architecture."""
        figures = {field: values[metric] * to for field, (metric, to) in _FIGURES.items() if metric in values}
        major, minor = (values.get(f"device__attribute_compute_capability_{part}", 0.0) for part in ("major", "minor"))
        return cls(name=name, architecture=architecture or int(10 * major + minor) or None, **figures)


GPU_NAME = "device__attribute_display_name"
_FIGURES = {
    "bus_bits": ("device__attribute_global_memory_bus_width", 1.0),
    "memory_hz": ("device__attribute_max_mem_frequency_khz", 1e3),
    "sm_hz": ("device__attribute_clock_rate", 1e3),
}


class KernelLaunch(Frozen):
    """One launch of a kernel with what ncu read of it, in a file of ncu and in a record.

    A record keeps what is its own; unit and GPU it keeps once for all, and the rest is of the file alone.

    Args:
        key: The kernel. In a file its demangled name, and the role by the shipped list; in a record as the traced step
            has it, the place only where the launch is at that step's position of the kernel.
        position: Of the launch in the traced step, from 0; ``None`` for one that the trace does not have there.
        layer: Of the model; ``None`` outside the layers, or where they are not known.
        grid: Blocks in x, y, z; empty where that is not known.
        block: Threads of a block in x, y, z; empty where that is not known.
        values: Every metric that is a number, by ncu's name, in base units: s, B, B/s, Hz, %, and counts by the word
            that ncu uses (``inst``).
        units: The unit of each.
        gpu: What it ran on.
        number: ncu's own number of it, from 0 in order of launch.
        device: Ordinal of the GPU.
        ranges: The NVTX ranges open around the launch, as ncu writes them; empty where it was not asked for them.
    """

    key: KernelKey
    position: int | None = None
    layer: int | None = None
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    values: dict[str, float]
    units: Annotated[dict[str, str], Field(exclude=True)] = {}
    gpu: Annotated[Device, Field(exclude=True)] = Device()
    number: Annotated[int, Field(exclude=True)] = 0
    device: Annotated[int, Field(exclude=True)] = 0
    ranges: Annotated[tuple[str, ...], Field(exclude=True)] = ()

    def read(self, counter: str) -> float | None:
        """Its value of a counter of :data:`COUNTERS`, see :meth:`Counter.read`."""
        return COUNTERS[counter].read(self)

    @property
    def moved(self) -> float | None:
        """Bytes of device memory, read and written; ``None`` where they were not collected."""
        both = self.read("dram_bytes")
        if both is not None:
            return both
        loaded, stored = self.read("dram_read"), self.read("dram_written")
        return loaded + stored if loaded is not None and stored is not None else None


@dataclass(frozen=True)
class LaunchGroup:
    """Launches that are looked at as one, as a rule of one kernel.

    Args:
        launches: In the order counted.
    """

    launches: tuple[KernelLaunch, ...]

    def read(self, counter: str) -> list[float]:
        """A counter's values of those launches that have it."""
        return [value for launch in self.launches if (value := launch.read(counter)) is not None]

    def mean(self, counter: str) -> float | None:
        """Mean of a launch; ``None`` where there is no launch, or one that lacks the counter."""
        return self._mean(self.read(counter))

    @property
    def moved(self) -> float | None:
        """Bytes of device memory, mean of a launch; ``None`` where one of them lacks the counter."""
        return self._mean([launch.moved for launch in self.launches if launch.moved is not None])

    def _mean(self, values: list[float]) -> float | None:
        return statistics.fmean(values) if values and len(values) == len(self.launches) else None

    @property
    def median(self) -> KernelLaunch:
        """The median launch by what ncu took for it."""
        ranked = sorted(self.launches, key=lambda launch: launch.read("duration") or 0.0)
        return ranked[len(ranked) // 2]


def grouped(launches: Iterable[tuple[_Key, KernelLaunch]]) -> dict[_Key, LaunchGroup]:
    """Launches that agree in a key, in the order in which they first come."""
    groups: dict[_Key, list[KernelLaunch]] = {}
    for key, launch in launches:
        groups.setdefault(key, []).append(launch)
    return {key: LaunchGroup(tuple(group)) for key, group in groups.items()}


@dataclass(frozen=True)
class NcuReport:
    """What one file of ncu holds.

    Args:
        source: The file.
        launches: In the file's order; never empty.
        messages: Warnings and errors that ncu wrote among the rows.
    """

    source: str
    launches: tuple[KernelLaunch, ...]
    messages: tuple[str, ...] = ()


@dataclass(frozen=True)
class MetricName:
    """One name that ncu has for a counter.

    Args:
        metric: With its suffix, as it is in the raw page.
        on: Architectures that have it.
        verified: Those of them for which a real ncu listed or wrote it.
    """

    metric: str
    on: tuple[int, ...] = ARCHITECTURES
    verified: tuple[int, ...] = CHECKED


@dataclass(frozen=True)
class Counter:
    """One line of the table.

    Args:
        name: perfgate's name.
        unit: In base units.
        better: The direction that is better while the same work is done.
        tier: How well it repeats.
        names: ncu's names, the first that is there counts.
        meaning: What is counted, in a sentence.
        cause: What usually makes it bad.
        action: What usually fixes it.
    """

    name: str
    unit: str
    better: Better
    tier: Tier
    names: tuple[MetricName, ...] = field(repr=False)
    meaning: str
    cause: str
    action: str

    def names_on(self, architecture: int | None) -> tuple[MetricName, ...]:
        """The names to try on an architecture, all of them on one that the table does not know."""
        listed = architecture in ARCHITECTURES
        return tuple(name for name in self.names if not listed or architecture in name.on)

    def is_known_on(self, architecture: int | None) -> bool:
        """Whether a real ncu listed or wrote its first name there; anywhere, where the architecture is not known.

        What ncu knows of a launch without replaying it (``launch__``) it knows everywhere, and lists nowhere.
        """
        first = next(iter(self.names_on(architecture)), None)
        if first is None or first.metric.startswith(OF_THE_LAUNCH):
            return first is not None
        return bool(first.verified) if architecture is None else architecture in first.verified

    def read(self, launch: KernelLaunch) -> float | None:
        """Its value for a launch in ``unit``; ``None`` where none of its names was collected.

        Raises:
            RecordError: ``counters-unreadable``: the value is there, in a unit that is none of this counter's.
        """
        metric = next((n.metric for n in self.names_on(launch.gpu.architecture) if n.metric in launch.values), None)
        if metric is None:
            return None
        unit = launch.units[metric]
        if self.unit in _CHECKED_UNITS and unit != self.unit:
            raise RecordError(
                f"{metric} is in {unit or 'no unit'}, expected {self.unit}",
                where=f"kernel {launch.number}",
                code="counters-unreadable",
            )
        return launch.values[metric]


_CHECKED_UNITS = {"s", "B", "B/s", "Hz", "%"}
"""Counts go by many words (inst, warp, none at all), and the name says what is counted; of these the scale matters."""


def _all(*metrics: str) -> tuple[MetricName, ...]:
    return tuple(MetricName(metric) for metric in metrics)


_TABLE = (
    Counter("duration", "s", "lower", "noisy", _all("gpu__time_duration.sum"),
            "Time of the kernel alone, as ncu ran it: serialised, caches flushed unless told otherwise.",
            "Replay and cold caches make it longer than in a decode step.",
            "Never compare it with traced or timed figures; use it beside the counters of the same file only."),
    Counter("dram_bytes", "B", "lower", "tight", _all("dram__bytes.sum"),
            "Bytes read from and written to device memory.",
            "More than the algorithm needs: padded shapes, a fusion lost, tiles read twice, a cache that spills.",
            "Hold it against weights, KV cache and activations that this kernel must move; find the padding or copy."),
    Counter("dram_read", "B", "lower", "tight",
            (MetricName("dram__bytes_read.sum", (80, 86, 89, 90, 100)),
             MetricName("dram__bytes_op_read.sum", (120,), ())),
            "Bytes read from device memory.",
            "Weights or KV cache read more than once.",
            "Look at tile shapes and the order of blocks; a larger tile reads its operands fewer times."),
    Counter("dram_written", "B", "lower", "noisy",
            (MetricName("dram__bytes_write.sum", (80, 86, 89, 90, 100)),
             MetricName("dram__bytes_op_write.sum", (120,), ())),
            "Bytes written to device memory.",
            "Split-K partial sums, unfused epilogues; results that stay in L2 are not counted.",
            "Fuse the epilogue or choose a kernel without split-K."),
    Counter("dram_throughput", "%", "higher", "noisy",
            _all("dram__throughput.avg.pct_of_peak_sustained_elapsed",
                 "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"),
            "How busy device memory was, of the most it can sustain at the clock of the measurement.",
            "Low in a kernel that moves much: too few loads in flight, too few blocks, a tail of half a wave.",
            "More bytes in flight: more blocks (split-K), deeper pipelines, wider loads."),
    Counter("sm_throughput", "%", "higher", "noisy", _all("sm__throughput.avg.pct_of_peak_sustained_elapsed"),
            "How busy the busiest unit of the SMs was, of the most it can sustain.",
            "Low together with memory: the kernel waits (latency), or it is too small to fill the GPU.",
            "See the stalls, occupancy and waves for what it waits on."),
    Counter("tensor_pipe", "%", "higher", "noisy",
            (MetricName("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"),
             MetricName("sm__pipe_tensor_cycles_active_v2.avg.pct_of_peak_sustained_active", (100, 120), ()),
             MetricName("sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active", (80, 86, 89, 90)),
             MetricName("sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active", (80, 86, 89, 90))),
            "Share of active cycles in which the tensor cores worked.",
            "Low is normal for decode at small batch; zero in a gemm means another path was chosen.",
            "Check the data types and shapes that dispatch rests on, and the kernel's name."),
    Counter("occupancy", "%", "neither", "noisy", _all("sm__warps_active.avg.pct_of_peak_sustained_active"),
            "Warps resident on active SMs, of the most that fit.",
            "Registers, shared memory or too few blocks limit it; gemms with deep pipelines run well at 12 %.",
            "Raise it only where long-scoreboard stalls are high and device memory is not busy."),
    Counter("l1_hit_rate", "%", "higher", "noisy", _all("l1tex__t_sector_hit_rate.pct"),
            "Share of the sectors asked of L1 that were there.",
            "Low is normal for weights, which are read once.",
            "Matters for gathers and attention over shared prefixes."),
    Counter("l2_hit_rate", "%", "higher", "noisy", _all("lts__t_sector_hit_rate.pct"),
            "Share of the sectors asked of L2 that were there; a tiny kernel, counted in several passes, may show more "
            "than 100 %.",
            "A flushed cache (ncu's default), or data that no longer fits.",
            "Compare only files of one --cache-control."),
    Counter("bank_conflicts", "count", "lower", "noisy", _all("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"),
            "Extra passes over shared memory, because lanes of a warp wanted one bank.",
            "A layout without swizzle or padding.",
            "Swizzle or pad the shared tile."),
    Counter("registers", "count", "lower", "exact",
            (MetricName("launch__registers_per_thread", verified=(86, 90)),),
            "Registers a thread.",
            "Another compiler, larger tiles, more unrolling.",
            "Compare with the base's kernel: more registers mean fewer resident warps."),
    Counter("spills", "count", "lower", "exact", _all("smsp__sass_inst_executed_op_local.sum"),
            "Warp instructions on local memory: spilled registers and indexed local arrays.",
            "More live values than registers.",
            "Smaller tiles, or a launch bound that leaves more registers."),
    Counter("stall_long_scoreboard", "count", "lower", "noisy",
            _all("smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"),
            "Warps that wait for global or local memory, for each instruction issued.",
            "Loads that come too late or too few at a time, cache misses.",
            "Prefetch or pipeline deeper, more warps, better locality; expected where device memory is busy."),
    Counter("stall_math_throttle", "count", "lower", "noisy",
            _all("smsp__average_warps_issue_stalled_math_pipe_throttle_per_issue_active.ratio"),
            "Warps that wait for an arithmetic pipe, for each instruction issued.",
            "All warps want the same pipe at once.",
            "Expected in compute-bound kernels; else balance the pipes (dequantisation beside the product)."),
    Counter("issued_per_cycle", "inst/cycle", "higher", "noisy",
            _all("sm__inst_issued.avg.per_cycle_active", "sm__inst_executed.avg.per_cycle_active"),
            "Instructions that an SM issued in an active cycle, at most 4.",
            "Low: the warps wait, see the stalls; high without throughput: overhead instructions.",
            "Wider loads and fewer address computations, or more warps."),
    Counter("instructions", "inst", "lower", "tight", _all("smsp__inst_executed.sum", "sm__inst_executed.sum"),
            "Warp instructions executed; kernels that spin on a flag vary by a few hundred.",
            "A lost vector path, a boundary check in the inner loop, more work.",
            "Compare the code of both builds (cuobjdump -sass)."),
    Counter("bf16_operations", "count", "lower", "exact",
            (MetricName("sm__ops_path_tensor_src_bf16_dst_fp32.sum", verified=(90,)),),
            "Operations of the tensor cores on BF16 operands, padding included; a product and its sum are two.",
            "Padding to a larger tile, or a product done twice.",
            "Compare with 2 x rows x columns x depth; for other precisions ask for ncu's own names."),
    Counter("waves", "count", "neither", "exact",
            (MetricName("launch__waves_per_multiprocessor", verified=(86, 90)),),
            "How many times the grid fills the GPU.",
            "Just above a whole number: the last wave is nearly empty. Below 1: SMs are idle.",
            "Another tile size or split-K."),
    Counter("sm_clock", "Hz", "neither", "noisy",
            _all("smsp__cycles_elapsed.avg.per_second", "sm__cycles_elapsed.avg.per_second",
                 "gpc__cycles_elapsed.avg.per_second"),
            "SM clock while it was counted.", "Locked by ncu unless --clock-control none.",
            "Compare only files at one clock."),
    Counter("dram_clock", "Hz", "neither", "noisy", _all("dram__cycles_elapsed.avg.per_second"),
            "Clock of device memory while it was counted.", "Fixed on data-centre GPUs.",
            "Compare only files at one clock."),
)  # fmt: skip

COUNTERS: dict[str, Counter] = {counter.name: counter for counter in _TABLE}
"""Every counter by perfgate's name, in the order shown."""
