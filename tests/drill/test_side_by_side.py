"""Exercises side by side: one on each GPU that is free, in processes of their own."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_collector import FakeCollector
from fake_nvml import FakeMachine
from perfgate_process import stub_words

from perfgate.capture.gpus import stations
from perfgate.cli.main import main
from perfgate.errors import ExitStatus


@pytest.fixture
def two_gpus(tmp_path: Path, fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """A machine with two GPUs, here and in processes that are started."""
    machine = FakeMachine.build(fake_nvml.file, {}, {})
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(tmp_path)
    return machine


def test_stations_are_free_gpus(two_gpus: FakeMachine) -> None:
    """Stations are made of the GPUs that may be used and that nobody uses, as many as an engine takes."""
    assert stations(1, {}) == ["0", "1"]
    assert stations(2, {}) == ["0,1"]
    assert stations(1, {"CUDA_VISIBLE_DEVICES": "1"}) == ["1"]
    two_gpus.gpu(0).update(processes=[{"pid": os.getpid(), "memory_bytes": 2**30}])
    assert stations(1, {}) == ["1"]
    assert stations(2, {}) == []


@pytest.mark.slow
@pytest.mark.usefixtures("two_gpus", "orphans_alone")
def test_each_exercise_has_a_gpu(tmp_path: Path) -> None:
    """Exercises run at once, each in a process that sees one GPU, and end on one board; each says in its log how far
    it is, and where the logs are is told first.
    """  # noqa: D205 (one sentence)
    words = stub_words(tmp_path)[:5]
    ended = CliRunner().invoke(main, ["drill", *words, "--no-plants", "--same-build", "3", "--format", "json"])
    assert ended.exit_code == ExitStatus.PASS, ended.output
    board = json.loads(ended.stdout)
    assert [(row["exercise"], row["result"]) for row in board["rows"]] == [
        (f"same-build-{n}", "as-expected") for n in (1, 2, 3)
    ]
    begun = re.findall(r"(same-build-\d) begins on GPU (\d)", ended.stderr)
    assert begun[:2] == [("same-build-1", "0"), ("same-build-2", "1")]
    assert "same-build-3 ended, 0 waiting" in ended.stderr
    assert "nvidia-h200-x1" in board["machine_class"]
    (folder,) = (tmp_path / "runs").glob("drill-*")
    logs = f"{folder.relative_to(tmp_path)}/*/perfgate.log"
    assert f"perfgate: 3 exercises, at most 2 at once; how far each is: tail -f {logs}\n" in ended.stderr
    assert "trial 000 warm-up base" in (folder / "same-build-1" / "perfgate.log").read_text()


@pytest.mark.usefixtures("orphans_alone")
def test_one_free_gpu_is_found(tmp_path: Path, two_gpus: FakeMachine) -> None:
    """Where somebody computes on the first GPU, exercises take the one that is free."""
    two_gpus.gpu(0).update(processes=[{"pid": os.getpid(), "memory_bytes": 2**30}])
    words = [*stub_words(tmp_path)[:5], "--no-plants", "--same-build", "1", "--format", "json"]
    ended = CliRunner().invoke(main, ["drill", *words], obj=FakeCollector())
    assert ended.exit_code == ExitStatus.PASS, ended.output
    assert "same-build-1 begins on GPU 1" in ended.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("two_gpus", "orphans_alone")
def test_a_spent_budget_stops_all(tmp_path: Path) -> None:
    """When the budget is spent nothing more is begun, and the way on is named."""
    words = [*stub_words(tmp_path)[:5], "--no-plants", "--same-build", "4", "--budget", "0.0001"]
    ended = CliRunner().invoke(main, ["drill", *words])
    assert ended.exit_code == ExitStatus.INTERRUPTED, ended.output
    assert "perfgate drill --resume" in ended.stderr
    assert "same-build-4 begins" not in ended.stderr


@pytest.mark.usefixtures("two_gpus")
def test_exercises_on_one_gpu_and_on_two(tmp_path: Path) -> None:
    """A plant whose engines take two GPUs is on the board of a campaign that else takes one."""
    words = stub_words(tmp_path)[:5]
    plant = tmp_path / "drills" / "two"
    plant.mkdir(parents=True)
    said = {"schema": 1, "name": "two", "family": "communication", "what": "Takes two.", "runs_on": ["cuda"], "gpus": 2,
            "base_args": {"tensor_parallel_size": 2}, "args": {"disable_custom_all_reduce": True},
            "expect": {"metric": "itl_median"}}  # fmt: skip
    (plant / "plant.yaml").write_text(json.dumps(said))
    ended = CliRunner().invoke(main, ["drill", *words, "--same-build", "1", "--format", "json"], obj=FakeCollector())
    assert ended.exit_code == ExitStatus.REGRESSED, ended.output
    board = json.loads(ended.stdout)
    assert [(row["exercise"], row["result"]) for row in board["rows"]] == [
        ("same-build-1", "as-expected"), ("two", "missed"),
    ]  # fmt: skip
    assert "nvidia-h200-x1" in board["machine_class"]
