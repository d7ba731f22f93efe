"""How far from the hardware single kernels are, by their counters.

A roof is the less of two: the bandwidth of device memory times the arithmetic intensity (operations a byte), and the
peak rate of the tensor cores (Williams, Waterman and Patterson, CACM 52(4), 2009). Where both meet is the ridge. Pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from perfgate.counters.gpu_roofs import Gpu, Precision, find_gpu
from perfgate.counters.launch_table import Counted, CountedKernel, Counter, read
from perfgate.trace.families import classify, short_name

Bound = Literal["memory", "compute", "latency", "unknown"]

BUSY = 0.6
"""A kernel below this share of both roofs is bound by latency; the threshold of ncu's own speed-of-light rule."""

RULES: dict[Bound, str] = {
    "memory": "device memory is at least 60 % busy, and its share of its roof is the larger one",
    "compute": "the SMs are at least 60 % busy, and their share of their roof is the larger one",
    "latency": "neither device memory nor the SMs reach 60 % of their roofs: it waits, or does not fill the GPU",
    "unknown": "too little was collected: bytes and time, or the throughputs of device memory and SMs",
}
"""What each bound rests on, in words."""

_TENSOR: dict[str, Precision] = {
    "sm__ops_path_tensor_src_bf16_dst_fp32.sum": "fp16",
    "sm__ops_path_tensor_src_fp16_dst_fp16.sum": "fp16",
    "sm__ops_path_tensor_src_fp16_dst_fp32.sum": "fp16",
    "sm__ops_path_tensor_src_fp8_dst_fp16.sum": "fp8",
    "sm__ops_path_tensor_src_fp8_dst_fp32.sum": "fp8",
    "sm__ops_path_tensor_src_int8.sum": "int8",
    "sm__ops_path_tensor_src_fp4_dst_fp32.sum": "fp4",
}
"""Tensor-core operations by source type, disjoint. Newer than ncu 2022.3, so unverified here."""


@dataclass(frozen=True)
class KernelRoof:
    """A kernel against its roofs; ``None`` where a counter for it was not collected.

    Args:
        bound: What bounds it, by :data:`RULES`.
        memory_share: Of the memory roof that it reached, as a ratio.
        compute_share: Of the compute roof that it reached, as a ratio.
        distance: Its time over what the nearer roof allows, at least about 1; 1 / the larger share.
        bandwidth: Bytes a second that it moved.
        bandwidth_roof: Bytes a second that device memory can move at the clock of the measurement.
        intensity: Tensor-core operations for each byte of device memory.
        ridge: The intensity from which on the compute roof is the lower one.
    """

    bound: Bound
    memory_share: float | None
    compute_share: float | None
    distance: float | None
    bandwidth: float | None
    bandwidth_roof: float | None
    intensity: float | None
    ridge: float | None


def kernel_roof(kernel: CountedKernel) -> KernelRoof:
    """A kernel against the roofs of its GPU at the clocks it was counted at.

    Shares are bytes and operations over time and roof where these were collected, else ncu's own throughput figures
    (which also count units other than the pins of the memory and the tensor cores).
    """
    gpu = find_gpu(kernel.attributes.get("device__attribute_display_name", ""))
    time_s, moved = read("duration", kernel), _moved(kernel)
    bandwidth = moved / time_s if moved is not None and time_s else None
    memory_roof = bandwidth_roof(kernel, gpu)
    memory = (
        bandwidth / memory_roof if bandwidth is not None and memory_roof else _ratio(read("dram_throughput", kernel))
    )
    operations = _operations(kernel)
    needed_s = sum(n / gpu.peak(kind, _sm_hz(kernel)) for kind, n in operations.items()) if gpu and operations else None
    compute = needed_s / time_s if needed_s is not None and time_s else _ratio(read("sm_throughput", kernel))
    total = sum(operations.values())
    shares = [share for share in (memory, compute) if share is not None]
    return KernelRoof(
        bound=_bound(memory, compute),
        memory_share=memory,
        compute_share=compute,
        distance=1 / max(shares) if shares and max(shares) > 0 else None,
        bandwidth=bandwidth,
        bandwidth_roof=memory_roof,
        intensity=total / moved if operations and moved else None,
        ridge=total / needed_s / memory_roof if needed_s and memory_roof else None,
    )


def bandwidth_roof(kernel: CountedKernel, gpu: Gpu | None) -> float | None:
    """Bytes a second that device memory can move: width of its bus, times its clock, at double rate.

    The clock is the one counted, else the highest that the device's attributes name; without these the table's figure.
    On an H200 this is the roof that ncu's own throughput is a share of (4.81 TB/s, within 0.2 % over its gemms).
    """
    bits = kernel.readings.get("device__attribute_global_memory_bus_width")
    fastest = kernel.readings.get("device__attribute_max_mem_frequency_khz")
    clock = read("dram_clock", kernel) or (fastest.value * 1e3 if fastest else None)
    if bits and bits.value > 0 and clock and clock > 0:
        return bits.value / 8 * 2 * clock
    return gpu.bandwidth if gpu else None


def _moved(kernel: CountedKernel) -> float | None:
    both = read("dram_bytes", kernel)
    if both is not None:
        return both
    loaded, stored = read("dram_read", kernel), read("dram_written", kernel)
    return loaded + stored if loaded is not None and stored is not None else None


def _operations(kernel: CountedKernel) -> dict[Precision, float]:
    found: dict[Precision, float] = {}
    for name, precision in _TENSOR.items():
        if name in kernel.readings and kernel.readings[name].value > 0:
            found[precision] = found.get(precision, 0.0) + kernel.readings[name].value
    return found


def _sm_hz(kernel: CountedKernel) -> float | None:
    """The SM clock counted, else the highest of the device: then the roof is at its highest too."""
    fastest = kernel.readings.get("device__attribute_clock_rate")
    return read("sm_clock", kernel) or (fastest.value * 1e3 if fastest else None)


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _bound(memory: float | None, compute: float | None) -> Bound:
    if memory is None and compute is None:
        return "unknown"
    if max(memory or 0.0, compute or 0.0) < BUSY:
        return "latency" if memory is not None and compute is not None else "unknown"
    return "memory" if (memory or 0.0) >= (compute or 0.0) else "compute"


@dataclass(frozen=True)
class LaunchGroup:
    """Launches of one kernel that are shown as one, as a rule of one shape of grid and block.

    Args:
        role: The kernel's family.
        kernels: In the order counted; at least one.
    """

    role: str
    kernels: tuple[CountedKernel, ...]

    @property
    def name(self) -> str:
        """The function's own name."""
        return short_name(self.kernels[0].name)

    @property
    def shape(self) -> str:
        """Grid and block of the first launch, as far as they are known."""
        sizes = (self.kernels[0].grid, self.kernels[0].block)
        return "/".join("x".join(map(str, size)) for size in sizes if size)

    @property
    def moved(self) -> float | None:
        """Bytes of device memory, mean of a launch; ``None`` where one of them lacks the counter."""
        return _mean([_moved(kernel) for kernel in self.kernels])

    def mean(self, counter: Counter) -> float | None:
        """Mean of a counter over its launches; ``None`` where one of them lacks it."""
        return _mean([counter.read(kernel) for kernel in self.kernels])

    def roof(self) -> KernelRoof:
        """The roofline of the median launch by ncu's time."""
        ranked = sorted(self.kernels, key=lambda kernel: read("duration", kernel) or 0.0)
        return kernel_roof(ranked[len(ranked) // 2])


def launch_groups(counted: Counted) -> tuple[LaunchGroup, ...]:
    """Launches by name and shape, in the order in which they first come."""
    found: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[CountedKernel]] = {}
    for kernel in counted.kernels:
        found.setdefault((kernel.name, kernel.grid, kernel.block), []).append(kernel)
    roles = classify([name for name, _, _ in found])
    return tuple(LaunchGroup(role, tuple(kernels)) for role, kernels in zip(roles, found.values(), strict=True))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None
