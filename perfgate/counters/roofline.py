"""How far from the hardware single kernels are, by their counters.

A roof is the less of two: the bandwidth of device memory times the arithmetic intensity (operations a byte), and the
peak rate of the tensor cores (Williams, Waterman and Patterson, CACM 52(4), 2009). Where both meet is the ridge. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfgate.counters.launch_table import KernelLaunch
from perfgate.metrics.gpu_roofs import Bound, GpuRoof, Precision, find_gpu

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


def kernel_roof(launch: KernelLaunch) -> KernelRoof:
    """A launch against the roofs of its GPU at the clocks it was counted at.

    Shares are bytes and operations over time and roof where these were collected, else ncu's own throughput figures
    (which also count units other than the pins of the memory and the tensor cores).
    """
    gpu = find_gpu(launch.gpu.name)
    time_s, moved = launch.read("duration"), launch.moved
    bandwidth = moved / time_s if moved is not None and time_s else None
    memory_roof = bandwidth_roof(launch, gpu)
    memory = (
        bandwidth / memory_roof if bandwidth is not None and memory_roof else _ratio(launch.read("dram_throughput"))
    )
    operations = _operations(launch)
    needed_s = sum(n / gpu.peak(kind, _sm_hz(launch)) for kind, n in operations.items()) if gpu and operations else None
    compute = needed_s / time_s if needed_s is not None and time_s else _ratio(launch.read("sm_throughput"))
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


def bandwidth_roof(launch: KernelLaunch, gpu: GpuRoof | None) -> float | None:
    """Bytes a second that device memory can move: width of its bus, times its clock, at double rate.

    The clock is the one counted, else the highest that the device's attributes name; without these the table's figure.
    On an H200 this is the roof that ncu's own throughput is a share of (4.81 TB/s, within 0.2 % over its gemms).
    """
    bits, clock = launch.gpu.bus_bits, launch.read("dram_clock") or launch.gpu.memory_hz
    if bits and bits > 0 and clock and clock > 0:
        return bits / 8 * 2 * clock
    return gpu.bandwidth if gpu else None


def _operations(launch: KernelLaunch) -> dict[Precision, float]:
    operations: dict[Precision, float] = {}
    for name, precision in _TENSOR.items():
        if launch.values.get(name, 0.0) > 0:
            operations[precision] = operations.get(precision, 0.0) + launch.values[name]
    return operations


def _sm_hz(launch: KernelLaunch) -> float | None:
    """The SM clock counted, else the highest of the device: then the roof is at its highest too."""
    return launch.read("sm_clock") or launch.gpu.sm_hz


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _bound(memory: float | None, compute: float | None) -> Bound:
    if memory is None and compute is None:
        return "unknown"
    if max(memory or 0.0, compute or 0.0) < BUSY:
        return "latency" if memory is not None and compute is not None else "unknown"
    return "memory" if (memory or 0.0) >= (compute or 0.0) else "compute"
