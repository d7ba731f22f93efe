"""Sampled trials, taken of the stand-in engine by the real collector: where its thread works, and what is refused."""

from __future__ import annotations

import dataclasses
import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stub_engine import write_stub

from perfgate.calls import host_sampling
from perfgate.calls.host_difference import changed_functions
from perfgate.calls.host_profile import FIGURES, HostProfile
from perfgate.calls.host_sampling import SampledSteps
from perfgate.capture.job import Job
from perfgate.capture.timeline import InvalidTrialError
from perfgate.capture.trial_taking import EngineCollector
from perfgate.metrics.trial import Kind, Trial
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import Subject

Take = Callable[..., Trial]


@pytest.fixture
def take(
    tmp_path: Path, make_cell: Callable[..., Cell], make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> Take:
    """A function that takes a short sampled trial of the stand-in in some mode."""
    write_stub(tmp_path / "stub")
    monkeypatch.setattr(host_sampling, "STEPS", 240)

    def one(mode: str = "", kind: Kind = "sampled") -> Trial:
        number = len([*tmp_path.glob("**/arguments.json")])
        subject = Subject(python=sys.executable, path=(str(tmp_path / "stub"),), env={"STUB_MODE": mode})
        job = dataclasses.replace(make_job(make_cell(), subject, number), kind=kind)
        return EngineCollector().collect(job, lambda _: None)

    return one


def sampled(trial: Trial) -> HostProfile:
    """What a valid trial saw."""
    assert trial.failure is None, trial.failure.text
    profile: HostProfile = trial.payload("host")
    return profile


def test_a_loop_without_a_call_is_named(take: Take) -> None:
    """Work that a head adds to a function that was there is in that function, and in no other."""
    changes = changed_functions(sampled(take()), sampled(take("a loop")))

    assert changes[0].function == "vllm.LLMEngine.schedule"
    assert changes[0].more_s > 0


def test_steps_have_figures_and_stacks(take: Take, tmp_path: Path) -> None:
    """Every decode step is counted with its clocks and waits; stacks begin with the engine's step, and are a file."""
    trial = take("a loop")
    host = sampled(trial)

    assert host.steps >= 240
    assert {*host.figures} == {*FIGURES}
    assert host.figures["wall_ns"] > host.figures["thread_ns"] > 0
    assert host.figures["waits"] >= host.steps  # the stand-in sleeps a millisecond in each
    roots = {node.function for node in host.tree if node.parent == 0}
    assert roots == {"vllm.LLMEngine.step"}
    (artifact,) = trial.traces
    (profile,) = json.loads(gzip.decompress((tmp_path / "run" / artifact.path).read_bytes()))["profiles"]
    assert sum(profile["weights"]) == sum(own.work_ns for own in host.functions.values())


def test_what_the_worker_imports_is_kept(take: Take) -> None:
    """The stand-in for vllm, and the standard library's modules that it needs; no process that it starts adds any."""
    imports = sampled(take()).imports

    assert imports["vllm"][0] >= 1
    assert "json.decoder" in imports


def test_a_sampled_trial_has_no_times(take: Take) -> None:
    """A handler runs in it, so neither iterations nor a start-up can be taken for the workload's."""
    trial = take()

    assert (trial.iterations, trial.startup) == ((), None)


def test_a_timed_trial_is_not_sampled(take: Take) -> None:
    """Nothing of the sampler is in a trial whose times count."""
    trial = take(kind="timed")

    assert trial.payload("host") is None
    assert trial.iterations


ANSWER: dict[str, Any] = {
    "deliveries": [[1, [1]], [2, [1]]],
    "decode_begins": 1,
    "host_samples": {
        "period_ns": 500_000, "frames": ["f", "g"], "stacks": [[0, 1]], "samples": [[1, 0, 500_000, 400_000]],
        "steps": [[5, 4, 4, 0, 0, 1, 0, 2, 0, 0], [6, 5, 5, 1, 0, 1, 0, 3, 1, 2]], "threads": {"python": [1, 2]},
        "cpus": [0, 1],
    },
}  # fmt: skip


def test_what_an_answer_says() -> None:
    """Samples and figures of decode steps alone are summed; a wait is what a tick passed without work."""
    steps = SampledSteps()
    steps.add(ANSWER)
    host = steps.profile()

    assert (host.steps, host.cpus, host.allowed) == (1, (3,), 2)
    assert host.functions["g"].model_dump() == {
        "samples": 1, "work_ns": 400_000, "wait_ns": 100_000, "spread_ns": 400_000
    }  # fmt: skip
    assert [(node.parent, node.function) for node in host.tree] == [(0, "f"), (1, "g")]
    assert (host.mean("moves"), host.mean("collected_ns"), host.mean("wall_ns")) == (1, 2, 6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"samples": [[1, 9, 1, 1]]},
        {"samples": [[1, 0, -1, 1]]},
        {"samples": [[1, 0, 1]]},
        {"stacks": [[7]]},
        {"steps": []},
        {"frames": ["\u001b[31m", "g"]},
        {"threads": {"\n": [1, 2]}},
        {"frames": ["x" * 2000, "g"]},
        {"samples": [[1, 0, 2**62, 2**62]] * 4},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    """An engine that answers nonsense fails its trial, and leaves nothing that a report could not show."""

    def read() -> HostProfile:
        steps = SampledSteps()
        steps.add({**ANSWER, "host_samples": {**ANSWER["host_samples"], **wrong}})
        return steps.profile()

    with pytest.raises(InvalidTrialError) as refused:
        read()
    assert refused.value.code == "engine-failed"


def test_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could fill memory is refused before it is read."""
    monkeypatch.setattr(host_sampling, "MOST_VALUES", 4)

    with pytest.raises(InvalidTrialError, match="at most 4"):
        SampledSteps().add(ANSWER)
