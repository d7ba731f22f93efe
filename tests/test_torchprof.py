"""Traces of PyTorch's profiler: a real one of vLLM on the CPU, and GPU traces as Kineto writes them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from perfgate.breakdown import figures
from perfgate.capture.torchprof import read_torch
from perfgate.capture.tracefile import read_trace
from perfgate.errors import RecordError
from perfgate.kernels import COPY_KINDS, NONE, STEP_KINDS
from perfgate.selection import by_kernel, by_role, select

CPU = Path(__file__).with_name("fixtures") / "cpu-tiny.torch-2.13.json.gz"


def test_a_real_engine_on_the_cpu() -> None:
    """Eight steps of a 4-layer Llama: operators stand for kernels, in their steps, layers and places."""
    trace = read_trace(CPU)
    assert [STEP_KINDS[kind] for kind in trace.steps.kind] == ["prefill", *["decode"] * 7]
    decode = select(trace)
    assert decode.what == "7 decode steps"
    assert set(decode.figures.launches.tolist()) == {311}
    places = {one.place: one.launches / decode.steps for one in by_kernel(decode) if one.role == "gemm"}
    assert places == {"qkv": 4, "out": 4, "gate-up": 4, "down": 4, "lm-head": 1}
    assert by_role(decode)[0].role == "gemm"
    assert {one.role for one in by_role(decode)} >= {"attention", "kv-write", "rope", "activation", "sampler"}
    assert sorted(set(trace.kernels.layer.tolist())) == [NONE, 0, 1, 2, 3]
    assert trace.cautions == ()


def test_operators_are_counted_once() -> None:
    """The time of a step's operators is the union of all operators in it: none inside another counts again."""
    events = [e for e in json.loads(gzip.decompress(CPU.read_bytes()))["traceEvents"] if e["cat"] == "cpu_op"]
    union, reached = 0.0, 0.0
    for event in sorted(events, key=lambda one: one["ts"]):
        end = event["ts"] + event["dur"]
        union += max(end - max(reached, event["ts"]), 0)
        reached = max(reached, end)
    total = int(read_trace(CPU).kernels.duration_ns.sum())
    assert total == pytest.approx(union * 1000, abs=len(events))


def event(category: str, name: str, ts: float, dur: float, **arguments: Any) -> dict[str, Any]:
    """A complete event of process 9."""
    return {"ph": "X", "cat": category, "name": name, "pid": 9, "tid": 9, "ts": ts, "dur": dur, "args": arguments}


def write(folder: Path, events: list[dict[str, Any]], **head: Any) -> Path:
    """A trace file."""
    file = folder / "trace.json"
    file.write_text(json.dumps({"schemaVersion": 1, **head, "traceEvents": events}))
    return file


def test_a_gpu_trace(tmp_path: Path) -> None:
    """Kernels go to the step of their launch, also from a graph; copies, memsets and waits are there too."""
    where = {"device": 0, "stream": 7}
    events = [
        event("user_annotation", "perfgate.step.5", 1000, 500),
        event("user_annotation", "execute_context_0(0)_generation_8(8)", 1001, 300),
        event("cpu_op", "aten::mm", 1002, 10),
        event("cuda_runtime", "cudaLaunchKernel", 1003.5, 4, correlation=11),
        event("cuda_runtime", "cudaGraphLaunch", 1020, 30, correlation=12),
        event("cuda_runtime", "cudaMemcpyAsync", 1060, 3, correlation=13),
        event("cuda_runtime", "cudaMemsetAsync", 1070, 2, correlation=14),
        event("cuda_runtime", "cudaStreamSynchronize", 1100, 100, correlation=15),
        event(
            "kernel", "void gemm<4>(float*)", 2000, 10.25, correlation=11, grid=[4, 1, 1], block=[128, 1, 1], **where
        ),
        event("kernel", "flash_fwd", 2011, 20, correlation=12, **{"graph node id": 77}, **where),
        event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 2040, 2, correlation=13, bytes=96, **where),
        event("gpu_memset", "Memset (Device)", 2045, 1, correlation=14, bytes=4, **where),
    ]
    trace = read_torch(
        write(tmp_path, events, deviceProperties=[{"id": 0, "name": "NVIDIA H200"}], cuda_runtime_version=13000)
    )
    found = figures(trace)
    assert trace.source == "torch profiler on CUDA runtime 13000"
    assert trace.devices == {0: "NVIDIA H200"}
    assert (trace.steps.index.tolist(), STEP_KINDS[trace.steps.kind[0]]) == ([5], "decode")
    assert trace.kernels.duration_ns.tolist() == [10_250, 20_000]
    assert trace.kernels.graph.tolist() == [False, True]
    assert trace.kernels.launched_ns.tolist() == [1_003_500, 1_020_000]
    assert trace.shapes[trace.kernels.shape[0]].tolist() == [4, 1, 1, 128, 1, 1]
    assert (found.span_ns[0], found.idle_ns[0], found.memsets[0]) == (46_000, 750 + 9000 + 3000, 1)
    assert found.copy_bytes[0].tolist() == [96 if kind == "h2d-pageable" else 0 for kind in COPY_KINDS]
    assert (found.calls[0], found.call_ns[0], found.sync_ns[0]) == (2, 34_000, 100_000)


def test_times_since_1970_keep_their_nanoseconds(tmp_path: Path) -> None:
    """Microseconds of today with three decimals have more digits than a float."""
    text = """{"traceEvents": [
      {"ph": "X", "cat": "kernel", "name": "a", "ts": 1790857026000000.001, "dur": 0.003},
      {"ph": "X", "cat": "kernel", "name": "a", "ts": 1790857026000000.007, "dur": 1}]}"""
    file = tmp_path / "trace.json"
    file.write_text(text)
    kernels = read_torch(file).kernels
    assert kernels.start_ns.tolist() == [1790857026000000001, 1790857026000000007]
    assert kernels.duration_ns.tolist() == [3, 1000]


def test_wrappers_give_way_to_what_they_call(tmp_path: Path) -> None:
    """A compiled region is no operator; what runs inside it is, and threads do not hide each other's."""
    other = event("cpu_op", "aten::add", 15, 5) | {"tid": 10}
    events = [
        event("cpu_op", "aten::empty", 10, 1),
        event("cpu_op", "Torch-Compiled Region: 0/0", 0, 100),
        event("cpu_op", "aten::mm", 10, 20),
        event("cpu_op", "aten::silu", 40, 20),
        other,
    ]
    trace = read_torch(write(tmp_path, events))
    assert [trace.names.demangled[name] for name in trace.kernels.name] == ["aten::mm", "aten::add", "aten::silu"]


def test_a_merged_trace_is_refused(tmp_path: Path) -> None:
    """Traces of several ranks in one file have correlation ids that collide."""
    events = [event("cpu_op", "aten::mm", 0, 1), event("cpu_op", "aten::mm", 0, 1) | {"pid": 10}]
    with pytest.raises(RecordError, match=r"holds several processes: \[9, 10\]"):
        read_torch(write(tmp_path, events))


def test_a_trace_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that would not fit into memory is refused before it is read."""
    monkeypatch.setattr("perfgate.capture.torchprof.MAX_BYTES", 10)
    with pytest.raises(RecordError, match="Trace fewer iterations"):
        read_torch(write(tmp_path, []))
