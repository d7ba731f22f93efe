"""Traces of other tools become the same table: Ascend's profiler, ONNX Runtime's, TensorRT's profile of layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from other_traces import CHIP, ascend, onnxruntime, onnxruntime_kernels, task, tensorrt

from perfgate.errors import RecordError
from perfgate.trace.breakdown import figures
from perfgate.trace.kernel_table import CALL_KINDS, NONE, Trace, call_kind
from perfgate.trace.scrub import scrub
from perfgate.trace.trace_file import read_trace

US = 1000


def read(folder: Path, events: list[dict[str, Any]]) -> Trace:
    """The table of these events."""
    file = folder / "trace.json"
    file.write_text(json.dumps(events))
    return read_trace(file)


def test_an_ascend_trace_gives_the_figures_that_are_had_by_hand(tmp_path: Path) -> None:
    """Computing 130 us, communication 100 of which 50 are hidden, idle 60 of a span of 250, in each of two steps.

    One operator is one row, whatever number its instance has; waits and parts of collectives are no kernels. A flow
    tells a task's launch; without one the call with its connection does.
    """
    trace = read(tmp_path, ascend())
    assert (trace.source, trace.devices) == ("Ascend profiler", {3: "Ascend NPU"})
    found = figures(trace)
    assert found.device.tolist() == [3, 3]
    assert found.launches.tolist() == [3, 3]
    assert found.kernel_ns.tolist() == [230 * US] * 2
    assert found.span_ns.tolist() == [250 * US] * 2
    assert found.communication_ns.tolist() == [100 * US] * 2
    assert found.hidden_ns.tolist() == [50 * US] * 2
    computing_ns = found.busy_ns - (found.communication_ns - found.hidden_ns) - 5 * US  # the copy is in no union
    assert computing_ns.tolist() == [130 * US] * 2
    assert found.idle_ns.tolist() == [65 * US] * 2
    assert found.copies.sum() == 2
    assert found.calls.tolist() == [3, 3]
    assert found.sync_ns.tolist() == [15 * US] * 2
    assert trace.cautions == ()
    assert dict(zip(trace.names.demangled, trace.names.role, strict=True)) == {
        "Add": "elementwise",
        "aclnnMatmul_MatMulV3Common_MatMulV3": "gemm",
        "hcom_allReduce": "communication",
    }
    assert sorted(trace.kernels.launched_ns.tolist()) == [n * US for n in (5, 10, 15, 1005, 1010, 1015)]


def test_what_an_ascend_trace_does_not_show_is_said(tmp_path: Path) -> None:
    """Tasks of unknown types, and communication that only the profiler's own analysis has, are cautions."""
    events = [event for event in ascend() if event["pid"] != 900]
    events.append(task("Odd", "QUANTUM_CORE", 5000, 1, 99))
    unknown, differs = read(tmp_path, events).cautions
    assert unknown.text.endswith("left out: QUANTUM_CORE (1 tasks)")
    assert differs.text.startswith("its Overlap Analysis has 200.0 us of communication, its tasks have 0 us")


def test_an_ascend_trace_without_kernels_is_refused(tmp_path: Path) -> None:
    """Host work alone is no kernel table."""
    with pytest.raises(RecordError, match="Ascend trace without a kernel among 0 tasks of Ascend Hardware"):
        read(tmp_path, [event for event in ascend() if event["pid"] not in (CHIP, 900)])


def test_operators_of_onnx_runtime(tmp_path: Path) -> None:
    """Each run is a step, each operator has its role, and it is said that kernels are not in the file."""
    trace = read(tmp_path, onnxruntime())
    assert len(trace.steps) == 2
    assert trace.devices == {NONE: "CPU"}
    assert dict(zip(trace.names.demangled, trace.names.role, strict=True)) == {
        "GroupQueryAttention": "attention",
        "MatMulNBits": "gemm",
        "Sin": "unlisted",
        "SkipSimplifiedLayerNormalization": "norm",
    }
    assert figures(trace).kernel_ns.tolist() == [555 * US] * 2
    (caution,) = trace.cautions
    assert caution.code == "not-recorded"
    assert "(CPU 8)" in caution.text


def test_kernels_of_onnx_runtime(tmp_path: Path) -> None:
    """Where kernels were recorded they count, and operators do not count twice."""
    trace = read(tmp_path, onnxruntime_kernels())
    assert trace.names.demangled == ("nvjet_tst_64x8",)
    assert trace.kernels.step.tolist() == [0, 1]
    assert trace.kernels.stream.tolist() == [7, 7]
    assert [caution.code for caution in trace.cautions] == ["trace-damaged"]


def test_layers_of_a_tensorrt_engine(tmp_path: Path) -> None:
    """One step holds every layer's mean; paths in the model go, layers stay, and a fused region has no role."""
    trace = read(tmp_path, tensorrt())
    assert figures(trace).kernel_ns.tolist() == [245 * US]
    role = dict(zip(trace.names.demangled, trace.names.role, strict=True))
    assert role == {
        "MatMul + MatMul": "gemm",
        "PWN(Sigmoid, Mul)": "elementwise",
        "{ForeignNode[/model/layers.1/input_layernorm/Cast.../lm_head/MatMul]}": "unlisted",
        "Reformatting CopyNode for Output Tensor 0 to MatMul": "copy",
    }
    assert trace.kernels.layer.tolist() == [0, 0, 1, NONE]
    caution, places = trace.cautions
    assert (caution.code, places.code) == ("not-recorded", "steps-unclear")
    assert caution.text.startswith("each layer has its mean over 100 runs")


@pytest.mark.parametrize(
    "row", [{"name": "x"}, {"averageMs": 1}, {"name": "x", "averageMs": -1}, {"name": 3, "timeMs": 1}]
)
def test_a_damaged_layer_is_refused(tmp_path: Path, row: dict[str, Any]) -> None:
    """A layer without a name or a time that can be one is named."""
    with pytest.raises(RecordError, match="holds layer 5 without a name or an average time"):
        read(tmp_path, [*tensorrt(), row])


@pytest.mark.parametrize("make", [ascend, onnxruntime, onnxruntime_kernels, tensorrt])
def test_a_scrubbed_copy_has_the_same_table(tmp_path: Path, make: Any) -> None:
    """Every format is copied as events like PyTorch's, with launches, layers, devices; what looks like a path goes."""
    whole = read(tmp_path, make())
    scrub(tmp_path / "trace.json", tmp_path / "copy.json")
    copy = read_trace(tmp_path / "copy.json")
    assert copy.names.role == whole.names.role
    assert copy.devices == whole.devices
    for column in ("name", "duration_ns", "device", "stream", "step", "layer"):
        assert np.array_equal(getattr(copy.kernels, column), getattr(whole.kernels, column)), column


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("hipExtModuleLaunchKernel", "launch"), ("hipLaunchKernelExC", "launch"), ("hipModuleLaunchKernel", "launch"),
        ("hipGraphLaunch", "graph-launch"), ("hipMemcpyWithStream", "copy"), ("hipMemsetAsync", "copy"),
        ("hipEventSynchronize", "synchronise"), ("hipStreamSynchronize", "synchronise"),
        ("hipDeviceSynchronize", "synchronise"), ("hipStreamWaitEvent", "other"), ("hipLaunchHostFunc", "other"),
        ("urEnqueueKernelLaunch", "launch"), ("urEnqueueUSMMemcpy", "copy"), ("urEventWait", "synchronise"),
        ("zeCommandListAppendLaunchKernel", "launch"), ("zeEventHostSynchronize", "synchronise"),
        ("Node@launch", "launch"), ("AscendCL@aclnnMatmul", "launch"), ("AscendCL@aclrtMemcpyAsync", "copy"),
        ("AscendCL@aclrtSynchronizeStream", "synchronise"), ("AscendCL@aclCreateTensorDesc", "other"),
    ],
)  # fmt: skip
def test_calls_of_other_interfaces(name: str, kind: str) -> None:
    """HIP's, SYCL's and CANN's calls launch, copy and wait as CUDA's do."""
    assert call_kind(name) == kind
    assert kind in CALL_KINDS
