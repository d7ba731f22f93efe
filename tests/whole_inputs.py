"""A small whole input for each reader of what comes from outside, by the name of its file."""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from fake_hosts import host_calls
from hand_made import BOTH, cell, judged, record, run, spread, trials
from nsys_builder import PID, ExportBuilder, global_id
from null_server import HEAD, LAST, NEXT, chunk, event
from other_results import GUIDELLM_LATER, VLLM
from other_traces import ascend, onnxruntime, tensorrt
from stored import lineage

from perfgate.baseline.exact_profile import Accepted, Profile
from perfgate.calls.host_calls import FunctionCalls
from perfgate.drill.board import Board, BoardRow
from perfgate.drill.campaign import Drill, Exercise, LeftOut
from perfgate.drill.plants import load_plant
from perfgate.fleet.nightly import Night
from perfgate.github.workflow_job import JobPlan
from perfgate.judge.outcome import verdict_json
from perfgate.machine.clock_lease import Lease
from perfgate.record.identity import Measured
from perfgate.record.run_record import write_record, write_run

FIXTURES = Path(__file__).with_name("fixtures")
REPOSITORY, SHA = "owner/engine", "a" * 40

SCENARIO = """schema: 1
name: small
engine:
  model: {config: models/llama-tiny}
  args: {dtype: bfloat16, max_model_len: 256}
  env: {OMP_NUM_THREADS: "1"}
workload: {batch: 8, input_tokens: 32, output_tokens: 16}
measure: {iterations: 4, looks: [4, 6], expect: {trial_s: 12, pair_sd: 7%}}
matrix: {batch: [1, 8]}
kernels:
  traced: {iterations: 2}
  roles: {mine: {match: "my_op"}}
  per_decode_step:
    patterns:
    - {launches: 3, roles: {gemm: 2, norm: 1}, outside_graphs: 0, copies: {}}
counters:
- {role: gemm, place: qkv, metrics: {registers: same, dram_throughput: ">= 55"}}
gates:
- {metric: itl_median, ignorable: 10%, must_catch: 50%, floor: 1ms}
"""
CONFIG = """[subjects.patched]
python = "envs/main/bin/python"
path = ["my-plugin"]
env = {N = 1}
args = {max_num_seqs = 8}
[build]
commands = [["python3", "-m", "venv", "{env}"]]
python = "{env}/bin/python"
inputs = ["*.txt"]
timeout = "15min"
"""
TABLE = """pair,subject,metric,unit,value
1,base,itl_median,ms,5.2
1,head,itl_median,ms,5.3
2,head,itl_median,ms,5.1
2,base,itl_median,ms,5.2
"""
PAGE = (
    '==PROF== Connected to process 7\n"ID","Process ID","Kernel Name","Block Size","Grid Size","Device","CC",'
    '"device__attribute_display_name","device__attribute_global_memory_bus_width","dram__bytes.sum",'
    '"dram__cycles_elapsed.avg.per_second","gpu__time_duration.sum","sm__throughput.avg.pct_of_peak_sustained_elapsed"\n'
    '"","","","","","","","","","Kbyte","cycle/nsecond","us","%"\n'
    '"0","7","first(int, char)","(64, 1, 1)","(2, 3, 4)","0","9.0","NVIDIA H200","6,016","1,234.5","3.2","10","12"\n'
    '"1","7","second","(32, 1, 1)","(1, 1, 1)","0","9.0","NVIDIA H200","6,016","0 (4; 8)","3.2","2","n/a"\n'
)


EVENTS: list[dict[str, Any]] = [
    {"ph": "X", "cat": "user_annotation", "name": "perfgate.step.1.decode", "ts": 0, "dur": 9, "pid": 9, "tid": 9},
    {"ph": "X", "cat": "user_annotation", "name": "model.layers.3.mlp", "ts": 1, "dur": 4, "pid": 9, "tid": 9},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1.25, "dur": 2, "pid": 9, "tid": 9},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1, "dur": 1, "pid": 9, "tid": 9,
     "args": {"correlation": 3, "stream": "0x0"}},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaStreamSynchronize", "ts": 5, "dur": 1, "pid": 9, "tid": 9},
    {"ph": "X", "cat": "kernel", "name": "void gemm<(int)4>(T1 *)", "ts": 1.5, "dur": 2.25, "pid": 0, "tid": 7,
     "args": {"device": 0, "stream": 7, "correlation": 3, "grid": [1, 2, 3], "block": [4, 5, 6], "graph node id": 8}},
    {"ph": "X", "cat": "kernel", "name": "flash::fwd", "ts": 4, "dur": 2, "pid": 0, "tid": 7,
     "args": {"device": 0, "stream": 7, "correlation": 3}},
    {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "ts": 4, "dur": 1, "pid": 0, "tid": 7,
     "args": {"device": 0, "stream": 7, "correlation": 3, "bytes": 96}},
    {"ph": "X", "cat": "overhead", "name": "Buffer Flush", "ts": 2, "dur": 1, "pid": -1, "tid": 0},
]  # fmt: skip
CHROME: dict[str, Any] = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
    "cuda_runtime_version": 13000,
    "traceEvents": EVENTS,
}


def export() -> bytes:
    """A small whole export with a row in every table."""
    builder = ExportBuilder("2024.2")
    for n in range(3):
        begin = n * 1000
        builder.span(f"perfgate.step.{n}", begin, begin + 900, registered=n == 1)
        builder.span("execute_context_0(0)_generation_8(8)", begin + 1, begin + 800)
        builder.launch("void gemm<(int)4>(T1 *)", begin, 9000 + begin, 9050 + begin)
        builder.graph(begin + 20, [("flash::fwd", 9100 + begin, 9200 + begin), ("gemm", 9300 + begin, 9400 + begin)])
        builder.copy(1, begin + 10, 9060 + begin, 9070 + begin, 64)
    tid, pid = global_id(PID, PID), global_id(PID)
    memset = {"start": 9080, "end": 9090, "deviceId": 0, "streamId": 7, "correlationId": 1, "bytes": 4}
    builder.add("CUPTI_ACTIVITY_KIND_MEMSET", globalPid=pid, **memset)
    builder.add("PROFILER_OVERHEAD", start=50, end=60, globalTid=tid, nameId=builder.string("CUPTI: Buffer flush"))
    builder.add("DIAGNOSTIC_EVENT", timestamp=1, source=1, severity=3, text="Range capture ended late.")
    builder.add("TARGET_INFO_GPU", vmId=1, id=0, name="NVIDIA H200", cuDevice=0)
    with tempfile.TemporaryDirectory() as folder:
        file = builder.write(Path(folder) / "export.sqlite")
        with contextlib.closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA page_size = 512")
            connection.execute("VACUUM")
        return file.read_bytes()


EXPORT = export()


def _of_run() -> dict[str, bytes]:
    """The manifest and a record of a run of three pairs."""
    measured = cell()
    with tempfile.TemporaryDirectory() as scratch:
        write_run(Path(scratch), run([measured]))
        write_record(Path(scratch) / "record.json", record(measured, trials([0.001, 0.0, 0.002])))
        return {file.name: file.read_bytes() for file in Path(scratch).iterdir()}


def _job_plan() -> bytes:
    plan = JobPlan(
        repository=REPOSITORY, pull_request=12, base_branch="main", base="b" * 40, merge_base="b" * 40, head=SHA,
        policy=Path("/policy"), scenarios=("scenarios/a.yaml",), changed=(), artifact="perfgate-run-0", words=(),
        runs=Path("/runs"),
    )  # fmt: skip
    return plan.model_dump_json().encode()


def _archive(**members: bytes) -> bytes:
    with io.BytesIO() as packed:
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name.replace("_", "."), content)
        return packed.getvalue()


def _lines(*answers: Any) -> bytes:
    return b"".join(json.dumps(answer).encode() + b"\n" for answer in answers)


_TIMES = {
    "submitted_ns": [5], "deliveries": [[10, [1]], [20, [1]], [30, [1]]], "tokens_digest": "0" * 64,
    "finish_reasons": ["length"], "preemptions": 0, "probe_ns": [[7, 8], [9, 7]], "decode_begins": 1,
    "host_calls": {
        "python": "3.11", "instrument": "settrace", "costs": {"line": 15, "call": 30, "c_call": 20, "timing": 200},
        "calls": [9, 3, 4],
        "functions": {"f": {"()": [9, 3], ":": [9, 7], "len": [0, 4], "#len": [0, 4], "~len": [0, 900]}},
    },
}  # fmt: skip
_STARTED = {
    "versions": {"vllm": "1.0"}, "vocabulary": 100, "import_ns": 1, "engine_ns": 1, "model_memory_bytes": 5,
    "kv_token_capacity": None,
}  # fmt: skip
_CONFIG_JSON = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "vocab_size": 2048,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}, "sliding_window": 64,
}  # fmt: skip
_REQUEST = {"number": 12, "state": "open", "head": {"ref": "pull-request/12", "sha": SHA},
            "base": {"ref": "main", "sha": SHA}}  # fmt: skip
_EVENT = {
    "repository": {"full_name": REPOSITORY, "default_branch": "main"},
    "pull_request": _REQUEST,
    "merge_group": {"base_ref": "refs/heads/main", "base_sha": SHA},
    "workflow_run": {"id": 7, "head_sha": SHA, "head_branch": "pull-request/12", "conclusion": "success",
                     "event": "push", "head_repository": {"full_name": REPOSITORY}},
}  # fmt: skip
_ANSWERS: tuple[Any, ...] = (
    {"artifacts": []},
    _REQUEST,
    [{"filename": "perfgate.toml", "previous_filename": "baselines/a.json"}],
    [{"id": 3, "body": "<!-- perfgate: one comment, kept up to date -->", "user": {"login": "github-actions[bot]"}}],
    {},
)
"""What a comment asks for: artifacts, the pull request, its files, its comments; and what a change is answered with."""
_VERDICT = verdict_json(judged(trials(spread(0.01, 0.0002, 6)))).encode()
_BASELINE = lineage([[1.0, 1.0], [1.0, 1.1]]).text.encode()
_OF_RUN = _of_run()

_PLANT = load_plant(FIXTURES.parents[1] / "drills" / "host_work")
_DRILL = Drill(
    name="drill-20261122T070000Z-abcdef", scenario=Path("a.yaml"), cells=("0" * 64,), base=BOTH["base"], device="cpu",
    exercises=(Exercise(name="same-build-1"), Exercise(name="host_work-10000", plant=_PLANT, size="10000")),
    left_out=(LeftOut(code="padded_rows", text="runs on cuda only"),), seed=1,
)  # fmt: skip
_BOARD = Board(
    perfgate="0.2.0", name=_DRILL.name, scenario=("a",), machine_class="cpu-x2-observe-9c01de", alpha=0.01, beta=0.05,
    rows=(
        BoardRow(exercise="same-build-1", result="as-expected", verdict="pass", pairs=4, minutes=1.5),
        BoardRow(
            exercise="host_work-10000", plant="host_work", family="host-work", size="10000 us", expected="itl_median",
            result="as-expected", verdict="regressed", gate="itl_median", true_size=0.5, change=0.51, change_low=0.4,
            change_high=0.6, must_catch=0.5, pair_sd=0.07, pairs=6, minutes=2.5, cause=True, told="host",
        ),
    ),
)  # fmt: skip


_PROFILE = Profile(
    cell=Measured.of(cell()),
    gpu="NVIDIA H200",
    calls=host_calls(f=FunctionCalls(calls=(3, 4), lines=(7, 7), c_calls={"len": (4, 4)}, c_ps={"len": 50})),
    accepted=(Accepted(time_utc="2026-01-01T00:00:00+00:00", reason="first", run="r", record="0", versions={}),),
)
AZURE = b"""TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:46.7325310,396,109
2023-11-16 18:15:46.7791200,879,55
"""
"""Arrivals as Azure publishes them."""

MOONCAKE = b"""{"timestamp": 0, "input_length": 600, "output_length": 500, "hash_ids": [0, 1]}
{"timestamp": 0, "input_length": 1100, "output_length": 490, "hash_ids": [0, 14, 15]}
{"timestamp": 3000, "input_length": 5, "output_length": 3, "hash_ids": [46]}
"""
"""Arrivals as Mooncake publishes them."""

WHOLE: dict[str, bytes] = {
    "scenario.yaml": SCENARIO.encode(),
    "perfgate.toml": CONFIG.encode(),
    "run.json": _OF_RUN["run.json"],
    "record.json": _OF_RUN["record.json"],
    "sealed-record.json": _OF_RUN["record.json"],
    "night.json": Night(name="n", scenarios=(Path("a.yaml"),), subjects=BOTH, seed=1).model_dump_json().encode(),
    "drill.json": _DRILL.model_dump_json().encode(),
    "board.json": _BOARD.model_dump_json().encode(),
    "baseline.json": _BASELINE,
    "sealed-baseline.json": _BASELINE,
    "profile.json": _PROFILE.model_dump_json().encode(),
    "verdict.json": _VERDICT,
    "artifact.zip": _archive(verdict_json=_VERDICT, job_json=_job_plan()),
    "job.json": _job_plan(),
    "event.json": json.dumps(_EVENT).encode(),
    "github.jsonl": _lines(*_ANSWERS),
    "engine.jsonl": _lines(
        {"v": 1, "id": 1, "ok": True},
        {"v": 1, "id": 2, "ok": True, **_STARTED},
        {"v": 1, "id": 3, "ok": True, **_TIMES},
    ),
    "engine.log": b"INFO\n[rank0]: ValueError: no room\n\x1b[31mtorch.OutOfMemoryError: 3 GiB\x1b[0m\n",
    "lease.json": Lease(uuid="GPU-1", run="r", pid=1, sm_mhz=1500).model_dump_json().encode(),
    "config.json": json.dumps(_CONFIG_JSON).encode(),
    "arrivals.csv": AZURE,
    "arrivals.jsonl": MOONCAKE,
    "results.json": GUIDELLM_LATER.text.encode(),
    "results.jsonl": f"{VLLM.text}\n{VLLM.changed(date='20260802-000000')}".encode(),
    "server.http": HEAD + NEXT + event(2) + chunk(b": ping\n\n") + LAST,
    "times.csv": TABLE.encode(),
    "counted.csv": PAGE.encode(),
    "counted.ncu-rep": (FIXTURES / "ncu-2022.3.ncu-rep").read_bytes(),
    "trace.json": json.dumps(CHROME).encode(),
    "ascend.json": json.dumps(ascend()).encode(),
    "onnxruntime.json": json.dumps(onnxruntime()).encode(),
    "layers.json": json.dumps(tensorrt()).encode(),
    "export.sqlite": EXPORT,
}
