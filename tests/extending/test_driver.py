"""An engine driver is added: a folder of two files brings it; nothing else changes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from removed_rooms import ROOT, called, without
from stub_engine import bare_python

TABLE = """
[drivers.toy]
place = 9
starts = "perfgate.toy.toy_driver:ToyDriver"
"""
RUN = """
import json, pathlib, sys
sys.path.insert(0, "tests")
from hand_made import scenario_file
from perfgate import gate
from perfgate.record.run_record import read_records, read_run
from perfgate.scenario.subject import Subject

folder, python, head = pathlib.Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
file = scenario_file(folder, gates="{metric: itl_median, ignorable: 0.2%, must_catch: 1%}")
file.write_text(file.read_text().replace("engine: {", "engine: {driver: toy, "))
base = Subject(python=python, args={"step_us": 1000})
builds = {"base": base, "head": base.model_copy(update={"args": {**base.args, **head}})}
finished = gate.run([file], builds, runs=folder / "runs", seed=1)
assert gate.judge_folder(finished.folder) == finished.outcome
run = read_run(finished.folder)
assert [cell.engine.driver for cell in run.plan.cells] == ["toy"]
(record,) = read_records(finished.folder, run)
trials = [(trial.versions, trial.timeline is not None, len(trial.iterations)) for trial in record.trials]
told = {"folder": str(finished.folder), "verdict": finished.outcome.verdict}
failures = [trial.failure and [trial.failure.code, trial.failure.text] for trial in record.trials]
print(json.dumps(told | {"trials": [(*of, why) for of, why in zip(trials, failures)]}))
"""
JUDGE = "import pathlib, sys; from perfgate import gate; gate.judge_folder(pathlib.Path(sys.argv[1]))"

pytestmark = pytest.mark.usefixtures("no_orphans")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of perfgate with the room."""
    copied = without((), tmp_path_factory.mktemp("tree") / "tree")
    room = copied / "perfgate" / "toy"
    room.mkdir()
    (room / "room.toml").write_text(TABLE)
    shutil.copy(ROOT / "tests" / "toy_driver.py", room)
    return copied


def finish(tree: Path, folder: Path, **head: int) -> dict[str, Any]:
    """What a whole run of toys tells, of 1,000 us a step but for what is said of the head."""
    ran = called(tree, "-c", RUN, str(folder), bare_python(folder / "env"), json.dumps(head))
    assert ran.returncode == 0, ran.stderr
    told: dict[str, Any] = json.loads(ran.stdout)
    return told


def test_a_driver_takes_a_run_to_its_verdict(tree: Path, tmp_path: Path) -> None:
    """From a scenario on disk over trials with timelines to a verdict; without its folder the record is refused."""
    told = finish(tree, tmp_path, step_us=1020)

    assert told["verdict"] == "regressed"
    assert all(trial[:2] == [{"toy": "1.0"}, True] and trial[3] is None for trial in told["trials"])
    without_it = called(ROOT, "-c", JUDGE, told["folder"])
    assert without_it.returncode == 1
    assert "engine.driver: Input should be 'vllm' or 'server'" in without_it.stderr


def test_a_driver_that_fails_keeps_what_was_measured(tree: Path, tmp_path: Path) -> None:
    """Its error is the trial's failure, and the iterations before it are there."""
    told = finish(tree, tmp_path, breaks_at=2)

    assert told["verdict"] == "not-measured"
    assert [{"toy": "1.0"}, True, 1, ["engine-failed", "the toy broke"]] in told["trials"]
