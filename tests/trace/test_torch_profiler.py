"""Traces of PyTorch's profiler: a real one of vLLM on the CPU, and GPU traces as Kineto writes them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from perfgate.errors import RecordError
from perfgate.scenario.kernel_names import COPY_KINDS
from perfgate.trace.breakdown import figures
from perfgate.trace.kernel_table import NO_TIME, NONE, STEP_KINDS
from perfgate.trace.scrub import scrub
from perfgate.trace.selection import by_kernel, by_role, select
from perfgate.trace.torch_profiler import read_torch
from perfgate.trace.trace_file import read_trace

CPU = Path(__file__).parents[1] / "fixtures" / "cpu-tiny.torch-2.13.json.gz"


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


@pytest.mark.parametrize(("waiting", "work_ns"), [("outputs", 10_000), ("main", 7000)])
def test_a_thread_that_only_waits_is_not_the_host(tmp_path: Path, waiting: str, work_ns: int) -> None:
    """Threads are the same in ranges and calls, also where they are words."""
    events = [
        event("user_annotation", "perfgate.step.0", 0, 10) | {"tid": "main"},
        event("cuda_runtime", "cudaLaunchKernel", 1, 1, correlation=1) | {"tid": "main"},
        event("kernel", "gemm", 3, 6, correlation=1, device=0, stream=7),
        event("cuda_runtime", "cudaEventSynchronize", 5, 3) | {"tid": waiting},
        event("cuda_runtime", "cudaMemcpyAsync", 9, 0.5, correlation=2) | {"tid": "main"},
    ]
    assert figures(read_torch(write(tmp_path, events))).work_ns.tolist() == [work_ns]


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


def test_a_trace_of_rocm(tmp_path: Path) -> None:
    """Calls of HIP launch, copy and wait; streams are pointers, and a device may be given as the process alone."""
    events = [
        event("user_annotation", "perfgate.step.0.decode", 1000, 500),
        event("cuda_runtime", "hipExtModuleLaunchKernel", 1010, 5, correlation=1, stream="0x0", cid=3),
        event("cuda_runtime", "hipGraphLaunch", 1020, 5, correlation=2, stream="0x55d0c8a0"),
        event("cuda_runtime", "hipMemcpyWithStream", 1030, 5, correlation=3, stream="0x0", bytes="512"),
        event("cuda_runtime", "hipDeviceSynchronize", 1040, 100, correlation=4),
        event("cuda_runtime", "hipGetDevice", 1190, 1, correlation=5),
        event("kernel", "Cijk_Ailk_Bljk_gemm", 1100, 20, correlation=1, device=2, stream="0x0", kind="Dispatch Kernel"),
        event("kernel", "attention", 1120, 10, correlation=2) | {"pid": 2, "tid": 0},
        event(
            "gpu_memcpy", "Memcpy HtoD (Host -> Device)", 1130, 1, correlation=3, device=2, stream="0x7f00", bytes="512"
        ),
    ]  # fmt: skip
    trace = read_torch(write(tmp_path, events, hip_runtime_version=60342134))
    found = figures(trace)
    assert trace.source == "torch profiler on HIP runtime 60342134"
    assert (trace.kernels.step.tolist(), trace.kernels.device.tolist()) == ([0, 0], [2, 2])
    assert (trace.kernels.stream.tolist(), trace.copies.stream.tolist()) == ([0, 0], [0x7F00])
    assert (found.calls[0], found.syncs[0], found.sync_ns[0]) == (2, 1, 100_000)
    assert found.copy_bytes[0].sum() == 512
    assert trace.cautions == ()


def numbered(*numbers: int, later_ns: int = 0) -> list[dict[str, Any]]:
    """A call and its kernel 2 us later for each number, 10 us apart."""
    made = []
    for place, number in enumerate(numbers):
        made.append(event("cuda_runtime", "cudaLaunchKernel", 10 * place, 1, correlation=number))
        made.append(
            event("kernel", "gemm", 10 * place + 2 - later_ns / 1000, 1, correlation=number, device=0, stream=7)
        )
    return made


def test_one_number_of_several_calls(tmp_path: Path) -> None:
    """It does not tell which of them launched a kernel; a call within another is one launch."""
    trace = read_torch(write(tmp_path, numbered(3, 3, 3, 4)))
    assert [at == NO_TIME for at in trace.kernels.launched_ns.tolist()] == [True, True, True, False]
    assert trace.kernels.correlation.tolist() == [NONE, NONE, NONE, 4]
    texts = [note.text for note in trace.cautions if note.code == "trace-damaged"]
    assert texts == [
        "3 kernels, copies or memsets have the number of several calls, so what launched them is not known",
        "3 of 4 kernels have no launching call in the trace and belong to no step",
    ]
    within = [*numbered(3), event("cuda_driver", "cuLaunchKernel", 0.5, 0.25, correlation=3)]
    assert read_torch(write(tmp_path, within)).kernels.launched_ns.tolist() == [0]


def test_kernels_before_their_calls(tmp_path: Path) -> None:
    """What cannot be is said with how far it goes."""
    trace = read_torch(write(tmp_path, [*numbered(1, 2, later_ns=5000), *numbered(7)]))
    (text,) = (note.text for note in trace.cautions if note.code == "trace-damaged")
    assert text == "2 of 3 kernels begin before the call that launched them, by up to 3.000 us"


def test_times_as_text(tmp_path: Path) -> None:
    """Numbers written as text are numbers, to the nanosecond."""
    one = event("kernel", "a", 0, 0, correlation="7") | {"ts": "1790857026000000.001", "dur": "0.003"}
    kernels = read_torch(write(tmp_path, [one])).kernels
    assert (kernels.start_ns[0], kernels.duration_ns[0]) == (1790857026000000001, 3)
    assert kernels.correlation.tolist() == [7]


OPERATOR = event("cpu_op", "aten::mm", 0, 1)
LAUNCH = event("cuda_runtime", "cudaLaunchKernel", 0, 1, correlation=1)
UNKNOWN = event("mtia_workload", "gemm", 0, 1, device=0, stream=1)


@pytest.mark.parametrize(
    ("beside", "words"),
    [
        (UNKNOWN, "holds work of a device in 'mtia_workload' \\(1 event\\), but no event of category kernel"),
        (event("mtia_ccp_events", "add", 0, 1, sqid=1), "holds work of a device in 'mtia_ccp_events' \\(1 event\\)"),
        (LAUNCH, "holds calls that launch kernels \\('cudaLaunchKernel'\\), but no event of category kernel"),
        (event("gpu_memset", "Memset (Device)", 0, 1, device=0, stream=1), "holds copies of a device, but no event"),
    ],
)
def test_operators_do_not_stand_for_kernels_of_a_device(beside: dict[str, Any], words: str, tmp_path: Path) -> None:
    """Where a device worked, the CPU's operators are not what ran: the trace is refused."""
    with pytest.raises(RecordError, match=words):
        read_torch(write(tmp_path, [OPERATOR, beside]))


def test_what_to_do_about_a_device_that_is_not_read(tmp_path: Path) -> None:
    """The device is named, and those that are read."""
    with pytest.raises(RecordError, match="read") as caught:
        read_torch(write(tmp_path, [OPERATOR, event("mtia_ccp_events", "add", 0, 1)]))
    assert str(caught.value.remedy).startswith("Work of Meta's MTIA is not read: trace the program on a GPU with CUDA")


def test_work_of_an_unknown_category_beside_kernels(tmp_path: Path) -> None:
    """It is left out with a caution that names it."""
    trace = read_torch(write(tmp_path, [LAUNCH, UNKNOWN, event("kernel", "gemm", 2, 1, correlation=1)]))
    assert [caution.code for caution in trace.cautions] == ["trace-damaged", "steps-unclear"]
    assert "left out: 'mtia_workload' (1 event)" in trace.cautions[0].text


KERNEL = '{"ph": "X", "name": "a", "cat": "kernel", "ts": 1, "dur": 1, "tid": 1, "pid": 1, "args": {%s}}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (KERNEL.replace('"ts": 1', '"ts": 1e999990') % "", "event 0: ts is 1E[+]999990"),
        (KERNEL.replace('"ts": 1', f'"ts": "{"9" * 2_000_000}"') % "", "event 0: ts is '9{59}[.][.][.]"),
        (KERNEL.replace('"ts": 1', f'"ts": {"9" * 5000}') % "", "invalid JSON: Exceeds the limit"),
        (KERNEL.replace('"ts": 1', '"ts": 1e99999999999999999999') % "", "holds a number beyond all bounds"),
        (KERNEL.replace('"dur": 1', '"dur": NaN') % "", "event 0: dur is nan"),
        (KERNEL.replace('"dur": 1', '"dur": null') % "", "event 0: dur is None"),
        (KERNEL.replace('"ts": 1', '"ts": true') % "", "event 0: ts is True"),
        (KERNEL.replace('"name": "a"', '"name": ["a"]') % "", r"event 0: name is \['a'\]"),
        (KERNEL.replace('"dur": 1', '"dur": 1e13') % "", "kernels with a duration_ns outside"),
        (KERNEL.replace('"a"', f'"{"a" * 20_000}"') % "", "a kernel's name of 20000 characters"),
        (KERNEL % '"device": 70000', "device 70000 does not fit into 16 bits"),
        (KERNEL % '"device": -5', "kernels with a device outside -1 to 32767"),
        (KERNEL % '"device": [0]', "event 0: device is not a whole number"),
        (KERNEL % '"correlation": 1e400', "event 0: correlation is not a whole number"),
        (KERNEL % '"grid": [1, 1, "x"], "block": [1, 1, 1]', "event 0: grid or block is not a launch shape"),
        (KERNEL % '"grid": [1, 1, true], "block": [1, 1, 1]', "event 0: grid or block is not a launch shape"),
        (KERNEL % '"grid": [1, 1, -1], "block": [1, 1, 1]', "event 0: grid or block is not a launch shape"),
    ],
)  # fmt: skip
def test_numbers_that_no_trace_has(text: str, words: str, tmp_path: Path) -> None:
    """They are refused by event, key and value, and cost neither time nor memory."""
    file = tmp_path / "trace.json"
    file.write_text(f'{{"traceEvents": [{text}]}}')
    with pytest.raises(RecordError, match=words) as caught:
        read_torch(file)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("properties", [None, 5, "x", [1], [{"id": "x"}], [{"id": [1]}], {"id": 0}])
def test_device_properties_of_any_make(properties: Any, tmp_path: Path) -> None:
    """They only name devices: what is not understood names none."""
    trace = read_torch(write(tmp_path, [OPERATOR | {"tid": ["x"], "args": [1]}], deviceProperties=properties))
    assert trace.devices == {}
    assert trace.kernels.stream.tolist() == [NONE]


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


def test_a_process_that_is_no_number(tmp_path: Path) -> None:
    """Whatever a trace gives as a process beside its number names no other one."""
    events = [event("cpu_op", "aten::mm", 0, 1), event("cpu_op", "aten::mm", 2, 1) | {"pid": True, "tid": True}]
    trace = read_torch(write(tmp_path, events))
    assert trace.processes == (9,)
    assert trace.kernels.stream.tolist() == [9, NONE]


def ranks(*owners: Any) -> list[dict[str, Any]]:
    """Two steps of SGLang on each rank, correlation ids alike: a process and its device each."""
    made = []
    for number, (process, device) in enumerate(owners):
        for step in range(2):
            at = 100 * step + number
            host = [
                event("user_annotation", f"step[DECODE bs={number + 1}]", at, 50),
                event("cuda_runtime", "cudaLaunchKernel", at + 5, 2, correlation=step),
            ]
            work = event("kernel", f"gemm_{number}", at + 20, 10, correlation=step, device=number, stream=7)
            made += [*({**one, "pid": process} for one in host), {**work, "pid": device}]
    return made


def test_a_merged_trace_of_sglang(tmp_path: Path) -> None:
    """Its merger writes the rank beside each process: steps are each rank's own, before and after a scrub."""
    file = write(tmp_path, ranks(("[TP00-DP00] 83", "[TP00-DP00] 0"), ("[TP01-DP00] 84", "[TP01-DP00] 1")))
    scrub(file, tmp_path / "copy.json")
    for path in (file, tmp_path / "copy.json"):
        trace = read_torch(path)
        assert trace.processes == (83, 84)
        assert trace.steps.process.tolist() == [0, 0, 1, 1]
        assert [STEP_KINDS[kind] for kind in trace.steps.kind] == ["decode"] * 4
        names = [trace.names.short[name] for name in trace.kernels.name]
        assert sorted(zip(trace.kernels.step.tolist(), names, strict=True)) == [
            (0, "gemm_0"), (1, "gemm_0"), (2, "gemm_1"), (3, "gemm_1"),
        ]  # fmt: skip


def test_devices_of_several_processes(tmp_path: Path) -> None:
    """Where no rank is written, a device belongs to the only process whose calls launched what it ran."""
    events = ranks((9, 0), (10, 1))
    for one in events[6:]:
        one["args"] = {name: value + 10 * (name == "correlation") for name, value in one["args"].items()}
    trace = read_torch(write(tmp_path, events))
    assert sorted(zip(trace.kernels.process.tolist(), trace.kernels.device.tolist(), strict=True)) == [
        (0, 0), (0, 0), (1, 1), (1, 1),
    ]  # fmt: skip
    assert (trace.steps.process[trace.kernels.step] == trace.kernels.process).all()


def test_a_merged_trace_that_does_not_tell_its_ranks(tmp_path: Path) -> None:
    """Correlation ids collide, and nothing else tells who launched what: the trace is refused."""
    with pytest.raises(RecordError, match="not which of them device 0 belongs to: 9, 10"):
        read_torch(write(tmp_path, ranks((9, 0), (10, 0))))


def test_several_processes_on_the_cpu(tmp_path: Path) -> None:
    """Operators are in their own process."""
    events = [event("cpu_op", "aten::mm", 0, 1), event("cpu_op", "aten::mm", 0, 1) | {"pid": 10}]
    trace = read_torch(write(tmp_path, events))
    assert (trace.processes, trace.kernels.process.tolist()) == ((9, 10), [0, 1])


def test_categories_of_old_releases(tmp_path: Path) -> None:
    """PyTorch before 1.12 wrote capitals, and its profiler's steps among the operators."""
    events = [
        event("Operator", "ProfilerStep#5", 0, 100),
        event("Runtime", "cudaLaunchKernel", 10, 2, correlation=1),
        event("Runtime", "cudaMemcpyAsync", 14, 2, correlation=2),
        event("Kernel", "gemm", 200, 10, correlation=1, device=0, stream=7),
        event("Memcpy", "Memcpy DtoH (Device -> Pageable)", 220, 10, correlation=2, device=0, stream=7),
        event("Memset", "Memset (Device)", 240, 1, correlation=2, device=0, stream=7),
    ]
    trace = read_torch(write(tmp_path, events))
    assert (trace.steps.index.tolist(), trace.kernels.step.tolist(), trace.copies.step.tolist()) == ([5], [0], [0])
    assert (COPY_KINDS[trace.copies.kind[0]], len(trace.memsets), trace.cautions) == ("d2h-pageable", 1, ())


def test_a_trace_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that would not fit into memory is refused before it is read."""
    monkeypatch.setattr("perfgate.trace.chrome_events.MAX_JSON_BYTES", 10)
    with pytest.raises(RecordError, match="Trace fewer iterations"):
        read_torch(write(tmp_path, []))


def test_a_trace_larger_than_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON takes ten times its size: a file that would end the process is refused, with what to do."""
    monkeypatch.setattr("perfgate.trace.limits.available_bytes", lambda: 1000)
    file = write(tmp_path, [LAUNCH] * 10)
    with pytest.raises(RecordError, match=r"of memory to read, and 0\.0 GiB is available"):
        read_torch(file)


def one_device(*, first: int, second: int, later: float) -> list[dict[str, Any]]:
    """Six steps of two ranks that both number their device 0, as in containers: graphs and kernels, numbers alike."""
    made = []
    for step in range(6):
        for process, after in ((first, 0.0), (second, later)):
            at = 100 * step + after
            host = [
                event("user_annotation", "execute_context_0(0)_generation_8(8)", at, 40),
                event("cuda_runtime", "cudaGraphLaunch", at + 1, 2, correlation=2 * step + 1),
                event("cuda_runtime", "cudaLaunchKernel", at + 5, 2, correlation=2 * step + 2),
            ]
            where = {"device": 0, "stream": 7}
            work = [
                event("kernel", "gemm", at + 10, 10, correlation=2 * step + 1, **{"graph node id": 5}, **where),
                event("kernel", "sampler", at + 20, 1, correlation=2 * step + 2, **where),
            ]
            made += [*(one | {"pid": process, "tid": process} for one in host), *(one | {"pid": 0} for one in work)]
    return made


@pytest.mark.parametrize("later", [0, 0.5, 30])
@pytest.mark.parametrize(("first", "second"), [(100, 200), (200, 100), (100, 100)])
def test_ranks_that_share_a_device_number_are_refused(first: int, second: int, later: float, tmp_path: Path) -> None:
    """Whichever comes first and however much later the other one is: its kernels are not the first one's."""
    several = "6 of 6 calls that launch a kernel have several: ranks of one process number"
    words = several if first == second else "not which of them device 0 belongs to: 100, 200"
    with pytest.raises(RecordError, match=words) as caught:
        read_torch(write(tmp_path, one_device(first=first, second=second, later=later)))
    assert caught.value.remedy == "Give one trace a rank."


def test_a_process_beside_the_ranks_that_launches_nothing_is_none_of_them(tmp_path: Path) -> None:
    """A front end that asks for its device, and one whose calls came after all of their numbers ran, share nothing."""
    beside = [
        event("cuda_runtime", "cudaDeviceSynchronize", 1, 2, correlation=0) | {"pid": 5, "tid": 5},
        event("cuda_runtime", "cudaLaunchKernel", 150, 2, correlation=0) | {"pid": 6, "tid": 6},
    ]
    trace = read_torch(write(tmp_path, [*ranks((9, 0)), *beside]))
    assert {trace.processes[process] for process in trace.kernels.process.tolist()} == {9}
