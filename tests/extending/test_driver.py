"""An engine driver is added: docs/extending.md says how."""

from __future__ import annotations

from pathlib import Path

import pytest
from hand_made import scenario_file
from stub_engine import bare_python
from toy_driver import ToyDriver

from perfgate import gate
from perfgate.capture.drivers import DRIVERS
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Trial
from perfgate.record.run_record import read_records, read_run
from perfgate.scenario import workload
from perfgate.scenario.subject import Subject

pytestmark = pytest.mark.usefixtures("no_orphans", "_toy")


@pytest.fixture
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DRIVERS, "toy", ToyDriver)
    monkeypatch.setattr(workload, "DRIVERS", [*workload.DRIVERS, "toy"])


def finish(folder: Path, **head: int) -> gate.Finished:
    """A whole run of toys of 1,000 us a step, but for what is said of the head."""
    base = Subject(python=bare_python(folder / "env"), args={"step_us": 1000})
    subjects: dict[Side, Subject] = {"base": base, "head": base.model_copy(update={"args": {**base.args, **head}})}
    gates = "{metric: itl_median, ignorable: 0.2%, must_catch: 1%}"
    file = scenario_file(folder, gates=gates)
    file.write_text(file.read_text().replace("engine: {", "engine: {driver: toy, "))
    return gate.run([file], subjects, runs=folder / "runs", seed=1)


def trials(finished: gate.Finished) -> tuple[Trial, ...]:
    """What the run measured."""
    (record,) = read_records(finished.folder, read_run(finished.folder))
    return record.trials


@pytest.mark.parametrize(("step_us", "verdict"), [(1000, "pass"), (1020, "regressed")])
def test_a_driver_takes_a_run_to_its_verdict(tmp_path: Path, step_us: int, verdict: str) -> None:
    """Under its own name, from a scenario on disk over trials with timelines to a verdict that is found again."""
    finished = finish(tmp_path, step_us=step_us)

    assert finished.outcome.verdict == verdict
    assert gate.judge_folder(finished.folder) == finished.outcome
    assert [cell.engine.driver for cell in read_run(finished.folder).plan.cells] == ["toy"]
    assert {trial.versions["toy"] for trial in trials(finished)} == {"1.0"}
    assert all(trial.failure is None and trial.timeline is not None for trial in trials(finished))


def test_a_driver_that_fails_keeps_what_was_measured(tmp_path: Path) -> None:
    """Its error is the trial's failure, and the iterations before it are there."""
    finished = finish(tmp_path, breaks_at=2)

    failed = next(trial for trial in trials(finished) if trial.failure)
    assert finished.outcome.verdict == "not-measured"
    assert failed.failure is not None
    assert (failed.failure.code, failed.failure.text) == ("engine-failed", "the toy broke")
    assert (len(failed.iterations), failed.timeline is not None) == (1, True)


def test_scenarios_name_the_drivers_there_are() -> None:
    """A scenario can name every driver and no other."""
    assert {*workload.DRIVERS} == {*DRIVERS}
