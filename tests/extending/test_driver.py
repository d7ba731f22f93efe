"""An engine driver is added: a toy takes the place of vLLM's, and nothing else changes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

import pytest
from hand_made import scenario_file
from toy_driver import ToyDriver

from perfgate import gate
from perfgate.capture.drivers import DRIVERS
from perfgate.metrics.trial import Role, Trial
from perfgate.record.run_record import read_records, read_run
from perfgate.scenario.subject import Subject
from perfgate.scenario.workload import Engine

pytestmark = pytest.mark.usefixtures("no_orphans")


def finish(folder: Path, **head: int) -> gate.Finished:
    """A whole run of toys of 1,000 us a step, but for what is said of the head."""
    base = Subject(python=sys.executable, args={"step_us": 1000})
    subjects: dict[Role, Subject] = {"base": base, "head": base.model_copy(update={"args": {**base.args, **head}})}
    gates = "{metric: itl_median, ignorable: 0.2%, must_catch: 1%}"
    return gate.run([scenario_file(folder, gates=gates)], subjects, runs=folder / "runs", seed=1)


def trials(finished: gate.Finished) -> tuple[Trial, ...]:
    """What the run measured."""
    (record,) = read_records(finished.folder, read_run(finished.folder))
    return record.trials


@pytest.mark.parametrize(("step_us", "verdict"), [(1000, "pass"), (1020, "regressed")])
def test_a_driver_takes_a_run_to_its_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_us: int, verdict: str
) -> None:
    """From a scenario on disk over trials with timelines to a verdict, through the table of drivers alone."""
    monkeypatch.setitem(DRIVERS, "vllm", ToyDriver())

    finished = finish(tmp_path, step_us=step_us)

    assert finished.outcome.verdict == verdict
    assert {trial.versions["toy"] for trial in trials(finished)} == {"1.0"}
    assert all(trial.failure is None and trial.timeline is not None for trial in trials(finished))


def test_a_driver_that_fails_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is the trial's failure, and the iterations before it are there."""
    monkeypatch.setitem(DRIVERS, "vllm", ToyDriver())

    finished = finish(tmp_path, breaks_at=2)

    failed = next(trial for trial in trials(finished) if trial.failure)
    assert finished.outcome.verdict == "not-measured"
    assert failed.failure is not None
    assert (failed.failure.code, failed.failure.text) == ("iteration-failed", "the toy broke")
    assert (len(failed.iterations), failed.timeline is not None) == (1, True)


def test_scenarios_name_the_drivers_there_are() -> None:
    """A scenario can name every driver and no other."""
    assert {*get_args(Engine.model_fields["driver"].annotation)} == {*DRIVERS}
