"""Kernels against their roofs, and the floor of a decode step."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfgate.counters.launch_table import Device, KernelLaunch
from perfgate.counters.report_file import read_counters
from perfgate.counters.roofline import kernel_roof
from perfgate.errors import UsageError
from perfgate.metrics.gpu_roofs import GPUS, GpuRoof, find_gpu, gpu_called
from perfgate.metrics.roofline_bound import Floor
from perfgate.metrics.transformer import read_config, step_demand
from perfgate.trace.decode_step import KernelKey

ROOT = Path(__file__).parents[2]
CAPTURE = ROOT / "tests/fixtures/h200-llama-8b-decode.ncu.csv.gz"
LLAMA = read_config(ROOT / "scenarios/models/llama-8b")
LAYER = slice(11, 24)
"""One whole layer in the recording, from its qkv gemm to the norm before the next one's."""


def h200(**metrics: float) -> KernelLaunch:
    """A launch on an H200; metrics by their names with dots as ``_dot_``."""
    units = {"gpu__time_duration.sum": "s", "dram__bytes.sum": "B", "smsp__cycles_elapsed.avg.per_second": "Hz",
             "dram__cycles_elapsed.avg.per_second": "Hz"}  # fmt: skip
    values = {name.replace("_dot_", "."): value for name, value in metrics.items()}
    return KernelLaunch(
        key=KernelKey(role="gemm", name="k"),
        values=values,
        units={name: units.get(name, "%") for name in values},
        gpu=Device.of(values, "NVIDIA H200", 90),
    )


def test_the_roof_is_the_one_that_ncu_divides_by() -> None:
    """Over all kernels that move a megabyte, our share of the memory roof and ncu's differ by less than 1 %."""
    big = [kernel for kernel in read_counters(CAPTURE).launches if (kernel.read("dram_bytes") or 0) > 1e6]
    assert len(big) > 15
    for kernel in big:
        theirs = kernel.read("dram_throughput")
        ours = kernel_roof(kernel).memory_share
        assert theirs is not None
        assert ours == pytest.approx(theirs / 100, rel=0.01)


def test_classes_in_the_recording() -> None:
    """The large gemms are bound by memory; attention at this batch and the small kernels by latency."""
    kernels = read_counters(CAPTURE).launches
    gate_up, qkv, attention, norm = (kernel_roof(kernels[n]) for n in (19, 11, 14, 10))
    assert [gate_up.bound, qkv.bound, attention.bound, norm.bound] == ["memory", "memory", "latency", "latency"]
    assert gate_up.distance == pytest.approx(1.17, abs=0.01)
    assert qkv.memory_share == pytest.approx(52_708_864 / 16_736e-9 / 4.814304e12)


def test_a_layer_moves_what_the_model_says() -> None:
    """DRAM bytes of a recorded layer agree within 10 % with the count from config.json at that step's context."""
    measured = sum(kernel.read("dram_bytes") or 0 for kernel in read_counters(CAPTURE).launches[LAYER])
    two, one = (
        step_demand({**LLAMA, "num_hidden_layers": layers}, {}, batch=8, input_tokens=512, output_tokens=20)
        for layers in (2, 1)
    )
    assert measured == pytest.approx(two.bytes_moved - one.bytes_moved, rel=0.1)


def test_intensity_ridge_and_compute() -> None:
    """With tensor operations counted: their intensity, the ridge, and the share of the compute roof at that clock."""
    flops, moved, time_s = 9e11, 1e9, 1e-3
    roof = kernel_roof(
        h200(
            gpu__time_duration_dot_sum=time_s,
            dram__bytes_dot_sum=moved,
            sm__ops_path_tensor_src_bf16_dst_fp32_dot_sum=flops,
            smsp__cycles_elapsed_dot_avg_dot_per_second=gpu_called("H200").sm_hz,
        )
    )
    assert roof.bound == "compute"
    assert roof.intensity == pytest.approx(900)
    assert roof.ridge == pytest.approx(989.4e12 / 4.814304e12)
    assert roof.compute_share == pytest.approx(flops / time_s / 989.4e12)
    assert roof.memory_share == pytest.approx(moved / time_s / 4.814304e12)


def test_roofs_move_with_the_clocks() -> None:
    """At half the clocks the roofs are half as high, so that the same work is twice as near to them."""
    work = {"gpu__time_duration_dot_sum": 1e-3, "dram__bytes_dot_sum": 1e9}
    work["sm__ops_path_tensor_src_fp8_dst_fp32_dot_sum"] = 1e11
    full, half = (
        kernel_roof(
            h200(
                **work,
                smsp__cycles_elapsed_dot_avg_dot_per_second=1.8e9 / divisor,
                dram__cycles_elapsed_dot_avg_dot_per_second=3.201e9 / divisor,
                device__attribute_global_memory_bus_width=6016,
            )
        )
        for divisor in (1, 2)
    )
    assert full.compute_share is not None
    assert full.memory_share is not None
    assert half.compute_share == pytest.approx(2 * full.compute_share)
    assert half.memory_share == pytest.approx(2 * full.memory_share)


@pytest.mark.parametrize(
    ("memory", "compute", "bound"),
    [
        (60.0, 59.0, "memory"),
        (59.9, 59.9, "latency"),
        (61.0, 80.0, "compute"),
        (None, 80.0, "compute"),
        (None, 30.0, "unknown"),
        (30.0, None, "unknown"),
        (None, None, "unknown"),
    ],
)
def test_the_rule(memory: float | None, compute: float | None, bound: str) -> None:
    """The larger share of at least 60 % names the bound; less of both is latency; one alone below it says nothing."""
    shares = {"dram__throughput": memory, "sm__throughput": compute}
    metrics = {f"{k}_dot_avg_dot_pct_of_peak_sustained_elapsed": v for k, v in shares.items() if v is not None}
    assert kernel_roof(h200(**metrics)).bound == bound


def test_bytes_read_and_written_stand_for_both() -> None:
    """A file that has reads and writes apart, like ncu 2022.3's sample, has a bandwidth too; no tensor work is none."""
    (kernel,) = read_counters(ROOT / "tests/fixtures/ncu-2022.3-base.csv").launches
    roof = kernel_roof(kernel)
    assert roof.bandwidth == pytest.approx(204_358_280_894.36)
    assert roof.bandwidth_roof == pytest.approx(192 / 8 * 2 * 5.79461775338e9)
    assert roof.intensity is None


def test_the_floor_of_llama_8b_on_an_h200() -> None:
    """A step need not read the whole embedding table of 16.1 GB of weights, but reads the KV cache on top."""
    demand = step_demand(LLAMA, {"dtype": "bfloat16"}, batch=8, input_tokens=512, output_tokens=128)
    floor = Floor.of(demand, gpu_called("NVIDIA H200"), "NVIDIA H200")

    assert demand.weights_held == 2 * 8_030_261_248
    assert demand.weights_read == demand.weights_held - 2 * (128_256 - 8) * 4096
    assert demand.kv_read == 8 * 576 * 32 * 2 * 8 * 128 * 2
    assert floor.bound == "memory"
    assert floor.floor_s == pytest.approx(demand.bytes_moved / 4.814304e12, abs=1e-9)
    assert floor.floor_s == pytest.approx(3.243e-3, abs=0.0005e-3)
    assert floor.memory_ns / 5.357e6 == pytest.approx(0.6055, abs=0.0005)
    assert floor.compute_ns / 5.357e6 == pytest.approx(0.0231, abs=0.0001)


def test_a_large_batch_is_bound_by_compute() -> None:
    """The roof that takes longer is the floor."""
    demand = step_demand(LLAMA, {}, batch=4096, input_tokens=8, output_tokens=8)
    floor = Floor.of(demand, gpu_called("NVIDIA H200"), "NVIDIA H200")
    assert floor.bound == "compute"
    assert floor.floor_s == floor.compute_ns / 1e9 > floor.memory_ns / 1e9


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA L40", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA H200 MIG 1g.18gb", None),
    ],
)
def test_gpus_by_the_names_that_drivers_give(name: str, found: str | None) -> None:
    """Each name is its own GPU; a relative that is another GPU is not taken for it."""
    gpu = find_gpu(name)
    assert (gpu.name if gpu else None) == found


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_roofs_are_plausible(gpu: GpuRoof) -> None:
    """Eight bits are not slower than sixteen, an absent precision runs as fp16, the clock is one that GPUs run at."""
    assert gpu.peak("fp16") <= gpu.peak("fp8")
    assert gpu.peak("fp4") == gpu.peaks.get("fp4", gpu.peak("fp16"))
    assert 1e9 < gpu.sm_hz < 3e9
    assert gpu.source


def test_an_unknown_gpu() -> None:
    """A GPU without roofs is named, with those that have some."""
    with pytest.raises(UsageError, match="RTX 9999") as caught:
        gpu_called("NVIDIA RTX 9999")
    assert "H200" in caught.value.remedy
