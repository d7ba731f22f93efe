"""What a subject's interpreter runs works on Python 3.10, the oldest that vLLM supports."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from stub_engine import write_stub

from perfgate.capture.job import Job
from perfgate.capture.trial_taking import EngineCollector
from perfgate.capture.worker import WORKER
from perfgate.doctor.profilers import PROBE
from perfgate.doctor.vllm_source import Located, locate
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import Subject

CALLS = WORKER.parents[1] / "calls"

OLDEST_PYTHON = "PERFGATE_OLDEST_PYTHON"


@pytest.fixture(scope="module")
def oldest() -> str:
    """A Python 3.10: the one named, or that of PATH."""
    python = os.environ.get(OLDEST_PYTHON)
    try:
        said = subprocess.run([python or "python3.10", "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        said = ""
    if python is None and not said:
        pytest.skip(f"no python3.10 on PATH, and {OLDEST_PYTHON} names none")
    assert said.startswith("Python 3.10."), f"{python}: {said}"
    return python or "python3.10"


@pytest.fixture
def subject(oldest: str, tmp_path: Path) -> Subject:
    """The stand-in engine in that interpreter."""
    write_stub(tmp_path / "stub")
    return Subject(python=oldest, path=(str(tmp_path / "stub"),), env={"STUB_MODE": ""})


@pytest.mark.parametrize(
    "file",
    [*WORKER.parents[1].glob("*/vllm_*.py"), CALLS / "call_counter.py", CALLS / "host_sampler.py", PROBE],
    ids=lambda file: file.name,
)
def test_its_grammar(file: Path) -> None:
    """Worker, what is beside it and the probe of doctor parse as Python 3.10."""
    ast.parse(file.read_text(), feature_version=(3, 10))


def test_the_worker_takes_a_trial(
    subject: Subject, make_cell: Callable[..., Cell], make_job: Callable[..., Job]
) -> None:
    """Every request of a trial is answered, and perfgate's modules do not shadow the subject's."""
    trial = EngineCollector().collect(make_job(make_cell(), subject), lambda _: None)

    assert trial.failure is None, trial.failure.text
    assert len(trial.iterations) == 2
    assert trial.versions["python"].startswith("3.10.")


def test_the_probe_finds_vllm(subject: Subject, tmp_path: Path) -> None:
    """It is located without being imported."""
    located = locate(subject, {**os.environ, "PYTHONPATH": subject.path[0]})

    assert isinstance(located, Located), located
    assert located.file == str(tmp_path / "stub" / "vllm" / "__init__.py")


@pytest.mark.parametrize("task", ["import", "trace"])
def test_the_probe_answers(task: str, subject: Subject, tmp_path: Path) -> None:
    """Its other tasks end with an answer from that interpreter; no torch is needed to open ranges."""
    answer = tmp_path / "answer.json"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": subject.path[0] if task == "import" else "", **subject.env}
    command = [subject.python, str(PROBE), task, str(answer)]
    ended = subprocess.run(command, env=environment, cwd=tmp_path, check=False, capture_output=True, text=True)

    assert ended.returncode == 0, ended.stderr
    assert json.loads(answer.read_text())["python"].startswith("3.10.")
