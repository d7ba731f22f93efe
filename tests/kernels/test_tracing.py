"""Traced trials: a profiler around a fresh engine, and what is left of it when it fails."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stub_engine import TRACE, leave_two_traces, write_stub

from perfgate.capture.job import Job
from perfgate.capture.trial_taking import EngineCollector
from perfgate.kernels.tracing import Steady
from perfgate.machine.atomic_files import sha256_hex
from perfgate.metrics.trial import Artifact, Trial
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import Subject
from perfgate.trace.trace_file import read_trace


def collect(job: Job, *, gpu: bool = False) -> Trial:
    """One traced trial."""
    return EngineCollector().collect(dataclasses.replace(job, kind="traced", gpu=gpu), lambda _: None)


@pytest.fixture
def prepare(tmp_path: Path, make_cell: Callable[..., Cell], make_job: Callable[..., Job]) -> Callable[[str], Job]:
    """A function that makes the job of a stand-in engine in some mode."""
    write_stub(tmp_path / "stub")

    def one(mode: str) -> Job:
        subject: dict[str, Any] = {"python": sys.executable, "path": (str(tmp_path / "stub"),)}
        cell = make_cell(limits=", start_timeout: 20s, iteration_timeout: 20s")
        return make_job(cell, Subject(**subject, env={"STUB_MODE": mode}))

    return one


def test_an_engine_without_a_profiler(prepare: Callable[[str], Job]) -> None:
    """A window that cannot be opened fails the trial in the engine's own words."""
    failure = collect(prepare("no profiler")).failure
    assert failure is not None
    assert failure.code == "evidence-missing"
    assert "RuntimeError: Profiling is not enabled." in failure.text


def test_a_profiler_that_leaves_nothing(prepare: Callable[[str], Job]) -> None:
    """An engine that ran well and left no trace is no trial: success without data is none."""
    trial = collect(prepare("none"))
    assert trial.failure is not None
    assert trial.failure.code == "evidence-missing"
    assert len(trial.iterations) == 2


def test_every_rank_counts(prepare: Callable[[str], Job], tmp_path: Path) -> None:
    """PyTorch's profiler leaves a file a rank: the steps of all are pooled, and the trial names each file."""
    job = prepare("none")
    leave_two_traces(tmp_path / "stub")

    trial = collect(job)

    assert trial.failure is None
    assert trial.decode.steps == 2 * 7
    assert trial.decode.held == ()
    assert [pattern.steps for pattern in trial.decode.patterns] == [2 * 7]
    assert [rank.decode.steps for rank in trial.payload("ranks")] == [7, 7]
    assert len(trial.decode.span_ns) == 7
    folder, digest = job.folder.relative_to(job.run_folder), sha256_hex(TRACE.read_bytes())
    assert trial.traces == tuple(
        Artifact(path=f"{folder}/torch/rank{rank}.pt.trace.json.gz", sha256=digest) for rank in range(2)
    )


def test_a_rank_that_leaves_no_trace(prepare: Callable[[str], Job], tmp_path: Path) -> None:
    """Two files of an engine of four ranks are not a measurement of its steps."""
    job = prepare("none")
    leave_two_traces(tmp_path / "stub")
    args = {**job.cell.engine.args, "tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    large = job.cell.model_copy(update={"engine": job.cell.engine.model_copy(update={"args": args})})

    trial = collect(dataclasses.replace(job, cell=large))

    assert trial.failure is not None
    assert trial.failure.code == "trace-damaged"
    assert "decode steps of 2 ranks, and the engine has 4" in trial.failure.text
    assert len(trial.traces) == 2


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that puts an nsys on PATH: a script, then whatever the profile is to start; torch sees a GPU."""

    def put(script: str) -> None:
        program = tmp_path / "bin" / "nsys"
        program.parent.mkdir()
        # Flags end where the worker's words begin, which start the engine.
        words = f'while case $1 in profile|-*) true;; *) false;; esac; do shift; done\n{script}\nexec "$@"\n'
        program.write_text(f'#!/bin/sh\nall="$*"\n{words}')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
        vars_of_torch = tmp_path / "stub" / "torch.py"
        vars_of_torch.write_text(
            vars_of_torch.read_text()
            + "nvtx = types.SimpleNamespace(range_start=lambda name: 1, range_end=lambda handle: None)\n"
            + "cuda = types.SimpleNamespace(is_available=lambda: True, nvtx=nvtx)\n"
        )

    return put


@pytest.mark.parametrize("gpu", [False, True], ids=["torch", "nsys"])
def test_only_under_nsys_the_worker_unloads_everything(
    prepare: Callable[[str], Job], nsys: Callable[[str], None], tmp_path: Path, *, gpu: bool
) -> None:
    """Nsys takes what it has at the exit; torch's profiler has written all of it when its window closes."""
    job = prepare("none")
    nsys("")
    engine = tmp_path / "stub" / "vllm" / "__init__.py"
    engine.write_text(f"{engine.read_text()}\nimport atexit\natexit.register(lambda: open('unloaded', 'w').close())\n")

    assert collect(job, gpu=gpu).failure is not None

    assert (job.folder / "shut-down").exists()
    assert (job.folder / "unloaded").exists() is gpu


@pytest.mark.parametrize(("leaves", "code"), [("", "evidence-missing"), ("an empty report", "evidence-missing")])
def test_nsys_is_believed_by_its_report(
    prepare: Callable[[str], Job], nsys: Callable[[str], None], leaves: str, code: str
) -> None:
    """Nsys ends with 0 whatever became of the trace; only a report that holds decode steps is a trial."""
    job = prepare("none")
    report = 'for word in $all; do case $word in --output=*) touch "${word#--output=}.nsys-rep";; esac; done'
    nsys(report if leaves else "")

    failure = collect(job, gpu=True).failure

    assert failure is not None
    assert failure.code == code


def test_under_nsys_the_worker_is_held_steady(
    prepare: Callable[[str], Job], nsys: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between nsys and the interpreter stand the words that hold it, and its hashes have a seed; nsys runs free."""
    steady = Steady(("/usr/bin/env", "HELD=yes"), {"PYTHONHASHSEED": "0"}, ("hashes",))
    monkeypatch.setattr("perfgate.kernels.tracing.steady_worker", lambda *_: steady)
    job = prepare("none")
    seen = tmp_path / "seen"
    nsys(f'echo "$HELD,$PYTHONHASHSEED,$1,$2,$3" > {seen}')

    trial = collect(job, gpu=True)

    assert seen.read_text().strip() == f",0,/usr/bin/env,HELD=yes,{sys.executable}"
    assert trial.failure is not None
    assert trial.failure.code == "evidence-missing"
    assert len(trial.iterations) == 2


def test_a_report_says_what_was_held(
    prepare: Callable[[str], Job], nsys: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial keeps it with its decode steps, so that whoever compares two hosts knows what they differ by."""
    steady = Steady((), {}, ("hashes", "cores 4,5,6,7"))
    monkeypatch.setattr("perfgate.kernels.tracing.steady_worker", lambda *_: steady)
    reads = "perfgate.kernels.tracing.read_ranks"
    monkeypatch.setattr(reads, lambda files, rules: [(file, read_trace(TRACE, rules)) for file in files])
    job = prepare("none")
    nsys(f"cp {TRACE} {job.folder.resolve()}/trace.nsys-rep")

    trial = collect(job, gpu=True)

    assert trial.decode.held == ("hashes", "cores 4,5,6,7")
