"""Timed trials of a real engine, and what the plants do to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perfgate.capture.collector import Job
from perfgate.capture.workload import TimedCollector
from perfgate.plan import Cell
from perfgate.record import Trial
from perfgate.subject import Subject

pytestmark = pytest.mark.engine

PLANTS = Path(__file__).with_name("plants")
Take = Callable[..., Trial]


@pytest.fixture
def take(engine_python: str, make_cell: Callable[..., Cell], make_job: Callable[..., Job]) -> Take:
    """A function that takes one trial, with a plant or without."""
    taken = 0

    def one(plant: str = "", env: dict[str, str] | None = None) -> Trial:
        nonlocal taken
        cell = make_cell(batch=4, input_tokens=32, output_tokens=16, iterations=4, limits=", start_timeout: 3min")
        path = (str(PLANTS / plant),) if plant else ()
        # One thread, not bound: as shipped, a single busy process beside the engine makes its steps 14 times as long.
        threads = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
        subject = Subject(python=engine_python, path=path, env={**threads, **(env or {})})
        job = make_job(cell, subject, taken)
        taken += 1
        return TimedCollector().collect(job, lambda _: None)

    return one


def tokens(trial: Trial) -> list[str]:
    """The digests of a trial that has none of its iterations missing."""
    assert trial.failure is None, trial.failure.text
    assert len(trial.iterations) == 4
    return [iteration.tokens_digest for iteration in trial.iterations]


def test_extra_kernel_in_some_layers(take: Take) -> None:
    """The extra kernel in every fourth layer keeps the tokens."""
    assert tokens(take("extra_kernel", env={"PERFGATE_PLANT_EVERY": "4"})) == tokens(take())


def test_engine_that_refuses_its_arguments(
    engine_python: str, make_cell: Callable[..., Cell], make_job: Callable[..., Job]
) -> None:
    """An argument that vLLM does not know fails the trial in vLLM's words."""
    job = make_job(make_cell(), Subject(python=engine_python, args={"max_num_seq": 4}))
    failure = TimedCollector().collect(job, lambda _: None).failure
    assert failure is not None
    assert (failure.code, "max_num_seq" in failure.text) == ("engine-start-failed", True), failure.text
