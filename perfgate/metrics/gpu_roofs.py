"""What GPUs can do at best: bandwidth of device memory and dense tensor-core rates, with their sources.

Rates are dense: NVIDIA's datasheets print them with 2:4 sparsity, which is twice as much. They hold at one SM clock; at
another one the roof moves in proportion (:meth:`GpuRoof.peak`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from perfgate.errors import UsageError

Precision = Literal["fp16", "fp8", "int8", "fp4"]
"""What the tensor cores multiply: ``fp16`` represents BF16 too, which runs at the same rate."""
Bound = Literal["memory", "compute", "latency", "unknown"]
"""What a kernel, or a step, is nearest to."""


@dataclass(frozen=True)
class GpuRoof:
    """One GPU's roofs.

    Args:
        name: For people.
        pattern: A regular expression for the names that drivers give it.
        bandwidth: Of device memory, bytes a second.
        peaks: Dense operations a second by precision (a multiplication and an addition are two), at ``sm_hz``. A
            precision that is not there runs as fp16: its weights are widened in registers.
        sm_hz: The SM clock that the peaks imply: fp16 rate / (SMs x operations an SM does in a clock).
        source: Where the figures are printed.
    """

    name: str
    pattern: str
    bandwidth: float
    peaks: Mapping[Precision, float]
    sm_hz: float
    source: str

    def peak(self, precision: Precision, sm_hz: float | None = None) -> float:
        """Dense operations a second, at an SM clock in Hz or at that of the datasheet."""
        return self.peaks.get(precision, self.peaks["fp16"]) * ((sm_hz or self.sm_hz) / self.sm_hz)


_HOPPER: dict[Precision, float] = {"fp16": 989.4e12, "fp8": 1978.9e12, "int8": 1978.9e12}
_HOPPER_HZ = 989.4e12 / (132 * 4096)

GPUS = (
    GpuRoof("H200", r"\bH200\b(?! NVL)", 6016 / 8 * 2 * 3.201e9, _HOPPER, _HOPPER_HZ,
        "rates: H200 datasheet (SXM), halved; bandwidth: 6,016 bits at 3,201 MHz and double rate, as the device's own "
        "attributes say (datasheet: 4.8 TB/s)"),
    GpuRoof("H100 PCIe", r"\bH100 PCIe\b", 2.0e12, {"fp16": 756e12, "fp8": 1513e12, "int8": 1513e12},
        756e12 / (114 * 4096), "H100 datasheet (PCIe), rates halved"),
    GpuRoof("H100 NVL", r"\bH100 NVL\b", 3.9e12, {"fp16": 835.5e12, "fp8": 1671e12, "int8": 1671e12},
        835.5e12 / (132 * 4096), "H100 datasheet (NVL), rates halved"),
    GpuRoof("H100 SXM", r"\bH100\b", 3.35e12, _HOPPER, _HOPPER_HZ, "H100 datasheet (SXM), rates halved"),
    GpuRoof("A100 40GB", r"\bA100\b.*40GB", 1.555e12, {"fp16": 312e12, "int8": 624e12}, 312e12 / (108 * 2048),
        "A100 datasheet"),
    GpuRoof("A100 80GB PCIe", r"\bA100\b.*(80GB PCIe|PCI[eE].*80GB)", 1.935e12, {"fp16": 312e12, "int8": 624e12},
        312e12 / (108 * 2048), "A100 datasheet (80 GB PCIe)"),
    GpuRoof("A100 80GB SXM", r"\bA100\b.*80GB", 2.039e12, {"fp16": 312e12, "int8": 624e12}, 312e12 / (108 * 2048),
        "A100 datasheet (80 GB SXM)"),
    GpuRoof("L40S", r"\bL40S\b", 864e9, {"fp16": 362.05e12, "fp8": 733e12, "int8": 733e12}, 362.05e12 / (142 * 1024),
        "L40S datasheet, dense column"),
    GpuRoof("GB200", r"\bGB200\b", 8.0e12, {"fp16": 2500e12, "fp8": 5000e12, "int8": 5000e12, "fp4": 10000e12},
        2500e12 / (148 * 8192), "Blackwell architecture brief (GB200, 1,200 W), dense; SM count not verified"),
    GpuRoof("B200", r"\bB200\b", 8.0e12, {"fp16": 2250e12, "fp8": 4500e12, "int8": 4500e12, "fp4": 9000e12},
        2250e12 / (148 * 8192), "Blackwell architecture brief (HGX B200, 1,000 W), dense; SM count not verified"),
)  # fmt: skip
"""Tried in this order; the first whose pattern is found in the driver's name."""


def find_gpu(name: str) -> GpuRoof | None:
    """The GPU that a driver calls by this name; ``None`` where the table has none, and for a part of a GPU (MIG)."""
    if re.search(r"\bMIG\b", name):
        return None
    return next((gpu for gpu in GPUS if re.search(gpu.pattern, name)), None)


def gpu_called(name: str) -> GpuRoof:
    """The same, for a name that somebody gave.

    Raises:
        UsageError: The table has none of that name.
    """
    gpu = find_gpu(name)
    if gpu is None:
        names = ", ".join(gpu.name for gpu in GPUS)
        raise UsageError(
            f"peak bandwidth and FLOP/s of {name!r} are not in the table", remedy=f"The table has {names}."
        )
    return gpu
