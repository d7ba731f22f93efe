"""Counted trials: ncu around a fresh engine, and what becomes of it when it fails."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from decode_steps import decode
from hypothesis import given
from hypothesis import strategies as st
from stub_engine import write_stub

from perfgate.capture.job import Job
from perfgate.capture.trial_taking import EngineCollector
from perfgate.kernels.counting import usual_step
from perfgate.metrics.catalogue import METRICS
from perfgate.metrics.trial import Trial
from perfgate.scenario.counter_trials import Launches
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import Subject
from perfgate.scenario.workload import Workload
from perfgate.trace.decode_step import DecodeSteps, summarise
from perfgate.trace.trace_file import read_trace

FIXTURES = Path(__file__).parents[1] / "fixtures"
PAGE = FIXTURES / "h200-llama-8b-window.ncu.csv.gz"
"""36 launches that ncu 2025.3 counted on an H200: a layer and all outside the layers, in a rarer kind of step."""
WHOLE = (Launches(profile="layer"), Launches(profile="outside"))

NCU = """#!{python}
import gzip, pathlib, subprocess, sys
words = sys.argv[1:]
folder = pathlib.Path({folder!r})
if "--version" in words:
    print("NVIDIA (R) Nsight Compute Command Line Profiler\\nVersion 2025.3.1.0 (build 36398880)")
elif "--import" in words:
    print(gzip.open(folder / "page.gz", "rt").read(), end="")
else:
    (folder / "flags").write_text("\\n".join(words))
    start = words.index({python!r})
    log = pathlib.Path(words[words.index("--log-file") + 1])
    says = (folder / "says").read_text()
    log.write_text(says)
    if "Failed to find metric" in says:
        sys.exit(1)
    status = subprocess.run(words[start:], close_fds=False).returncode
    if "No kernels" not in says:
        pathlib.Path(words[words.index("--export") + 1]).touch()
    sys.exit(status)
"""
"""A stand-in for ncu: it runs the program, and counts what a page says."""


@pytest.fixture(scope="module")
def trace() -> DecodeSteps:
    """What an H200's decode step ran."""
    return summarise(read_trace(FIXTURES / "h200-llama-8b-decode.sqlite.gz"))


@pytest.fixture
def prepare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_cell: Callable[..., Cell], make_job: Callable[..., Job]
) -> Callable[..., Job]:
    """A function that makes a job of a stand-in engine, with a stand-in for ncu on PATH that says this."""
    write_stub(tmp_path / "stub")
    torch = tmp_path / "stub" / "torch.py"
    ranges = "nvtx = types.SimpleNamespace(range_start=lambda name: 1, range_end=lambda handle: None)\n"
    torch.write_text(f"{torch.read_text()}{ranges}cuda = types.SimpleNamespace(is_available=lambda: True, nvtx=nvtx)\n")
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ncu").write_text(NCU.format(python=sys.executable, folder=str(folder)))
    (folder / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def one(decode: DecodeSteps | None, says: str = "", page: bytes = PAGE.read_bytes(), **changes: Any) -> Job:
        (folder / "says").write_text(says)
        (folder / "page.gz").write_bytes(page)
        cell = make_cell(output_tokens=12, limits=", start_timeout: 20s, iteration_timeout: 20s")
        cell = cell.model_copy(update={"counters": WHOLE, **changes})
        subject = Subject(python=sys.executable, path=(str(tmp_path / "stub"),), env={"STUB_MODE": "none"})
        return dataclasses.replace(make_job(cell, subject), decode=decode)

    return one


def collect(job: Job, *, gpu: bool = True) -> Trial:
    """One counted trial."""
    return EngineCollector().collect(dataclasses.replace(job, kind="counted", gpu=gpu, architecture=90), lambda _: None)


def test_launches_find_their_places(prepare: Callable[..., Job], trace: DecodeSteps) -> None:
    """Each launch has role, layer and place of the traced step; one that only a rarer step runs moves no other."""
    trial = collect(prepare(trace))

    assert trial.failure is None
    launches = trial.counted.launches
    assert [launch.key.place for launch in launches if launch.key.role == "gemm"] == [
        "qkv", "out", "gate-up", "down", "lm-head",
    ]  # fmt: skip
    assert [launch.key.name for launch in launches if launch.position is None] == [
        "_bias_kernel",
        "_apply_write_kernel",
    ]
    assert {launch.layer for launch in launches} == {None, 31}
    assert trial.counted.of("gemm", "qkv").read("dram_bytes") == [52_951_552.0]
    assert trial.counted.of("attention").mean("registers") is not None
    assert (trial.counted.source, trial.counted.passes) == ("ncu 2025.3.1.0", 12)
    assert trial.counted.device.name == "NVIDIA H200"
    ((code, text),) = trial.counted.cautions
    assert code == "counters-missing"
    assert text.endswith("2 of which the trace does not have there: _bias_kernel, _apply_write_kernel")
    assert [Path(artifact.path).name for artifact in trial.traces] == ["counters.ncu-rep", "counters.csv.gz"]
    assert {name for name, metric in METRICS.items() if metric.summarise(trial) is not None} == set()


def test_the_version_of_ncu_is_not_taken_from_its_page(prepare: Callable[..., Job], trace: DecodeSteps) -> None:
    """A line of the counted program among the rows of the page names a version too, and is not ncu's."""
    page = gzip.compress(b"vLLM API server version 0.25.1\n" + gzip.decompress(PAGE.read_bytes()))
    trial = collect(prepare(trace, page=page))
    assert trial.counted.source == "ncu 2025.3.1.0"


def test_a_window_counted_in_part_is_no_trial(prepare: Callable[..., Job], trace: DecodeSteps) -> None:
    """A page with fewer launches than were asked for fails the trial: a part would be judged as the whole."""
    lines = gzip.decompress(PAGE.read_bytes()).decode().splitlines()[:12]
    failure = collect(prepare(trace, page=gzip.compress("\n".join(lines).encode()))).failure
    assert failure is not None
    assert failure.code == "counters-missing"
    assert "10 of the 35 launches" in failure.text


def test_what_ncu_is_asked_for(prepare: Callable[..., Job], trace: DecodeSteps, tmp_path: Path) -> None:
    """The window's place in the step, both steps that it touches, graphs by node, clocks left alone."""
    collect(prepare(trace))

    flags = (tmp_path / "bin" / "flags").read_text().splitlines()
    pairs = list(itertools.pairwise(flags))
    steps = [value for flag, value in pairs if flag == "--nvtx-include"]
    assert ("--launch-skip", "413") in pairs
    assert ("--launch-count", "35") in pairs
    assert ("--graph-profiling", "node") in pairs
    assert ("--clock-control", "none") in pairs
    assert ("--cache-control", "all") in pairs
    assert steps == ["perfgate.step.4", "perfgate.step.5"]
    assert "launch__registers_per_thread" in dict(pairs)["--metrics"].split(",")


@pytest.mark.parametrize(
    ("says", "code"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "counters-no-permission"),
        ('==ERROR== Failed to find metric "dram__bytes_reed.sum"', "counters-not-countable"),
        ("==WARNING== No kernels were profiled.", "counters-missing"),
    ],
)
def test_ncu_says_why(prepare: Callable[..., Job], trace: DecodeSteps, says: str, code: str) -> None:
    """Ncu's own account is the reason, not the engine that ended or the report that is missing (quoted from it)."""
    page = gzip.compress(b"") if "PERM" not in says else gzip.compress(says.encode())
    failure = collect(prepare(trace, says, page)).failure
    assert failure is not None
    assert failure.code == code


@pytest.mark.parametrize(
    ("gpu", "roles", "code"),
    [
        (False, ["gemm"], "counters-not-countable"),
        (True, None, "counters-missing"),
        (True, ["gemm", "communication"], "counters-not-countable"),
        (True, ["gemm"], "counters-not-countable"),
    ],
)
def test_what_cannot_be_counted(prepare: Callable[..., Job], *, gpu: bool, roles: list[str] | None, code: str) -> None:
    """Nothing is started where there is no GPU, no trace, a kernel that would hang, or nothing of what is asked for."""
    trace = None if roles is None else decode([(role, f"{role}_kernel", 1000) for role in roles])
    trial = collect(prepare(trace, counters=(Launches(role="moe"),)), gpu=gpu)
    assert trial.failure is not None
    assert trial.failure.code == code
    assert trial.startup is None


def test_a_step_that_is_another(prepare: Callable[..., Job]) -> None:
    """Where most launches are not what the trace has there, the step was no decode step: not measured."""
    failure = collect(prepare(decode([("gemm", "gemm_kernel", 1000)] * 4), counters=(Launches(profile=2),))).failure
    assert failure is not None
    assert failure.code == "counters-missing"


@given(st.integers(1, 5000), st.integers(8, 4000))
def test_the_usual_step(input_tokens: int, output_tokens: int) -> None:
    """The step counted by default is a decode step with room behind it, in the middle of a cache block if it can be."""
    step = usual_step(Workload(batch=1, input_tokens=input_tokens, output_tokens=output_tokens))
    assert 1 <= step <= output_tokens
    if output_tokens >= 40:
        assert (input_tokens + step) % 16 == 8
        assert abs(step - output_tokens // 2) <= 8
