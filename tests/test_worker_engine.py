"""Timed trials of a real engine, and what the plants do to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfgate.capture.collector import Job
from perfgate.capture.workload import TimedCollector
from perfgate.metrics import METRICS, trial_value
from perfgate.plan import Cell
from perfgate.record import Trial
from perfgate.subject import Subject

pytestmark = pytest.mark.engine

PLANTS = Path(__file__).with_name("plants")
FORWARD_DOMINATES = {
    "hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 8
}  # fmt: skip
Take = Callable[..., Trial]


@pytest.fixture
def take(engine_python: str, make_cell: Callable[..., Cell], make_job: Callable[..., Job]) -> Take:
    """A function that takes one trial, with a plant or without."""
    taken = 0

    def one(plant: str = "", config: dict[str, Any] | None = None, env: dict[str, str] | None = None) -> Trial:
        nonlocal taken
        cell = make_cell(
            batch=4, input_tokens=32, output_tokens=16, iterations=4, config=config, limits=", start_timeout: 3min"
        )
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


def itl_median(trial: Trial) -> float:
    """Seconds of a decode step."""
    value = trial_value("itl_median", trial)
    assert value is not None
    return value


def test_tiny_llama(take: Take) -> None:
    """A 4-layer Llama yields every timed metric of a CPU but its memory, which the CPU's runner keeps for itself."""
    trial = take()
    assert len(set(tokens(trial))) == 4
    timed = [name for name, metric in METRICS.items() if metric.kind == "timed"]
    missing = {name for name in timed if trial_value(name, trial) is None}
    assert missing - {"model_memory"} == {"energy_per_token", "mbu", "mfu"}  # those need a GPU
    assert trial.cautions == ()
    assert {"vllm", "torch", "python"} <= set(trial.versions)
    assert [len(iteration.itl_ns) for iteration in trial.iterations] == [14] * 4


def test_doubled_forward(take: Take) -> None:
    """The doubled forward keeps the tokens and takes at least half as long again where the forward dominates."""
    base, head = take(config=FORWARD_DOMINATES), take("doubled_forward", config=FORWARD_DOMINATES)
    assert tokens(base) == tokens(head)
    assert itl_median(head) / itl_median(base) > 1.5


def test_extra_kernel(take: Take) -> None:
    """The extra kernel keeps the tokens, in every layer or in some."""
    base = tokens(take())
    assert tokens(take("extra_kernel")) == base
    assert tokens(take("extra_kernel", env={"PERFGATE_PLANT_EVERY": "4"})) == base


def test_extra_kernel_refuses_nonsense(take: Take) -> None:
    """A plant that cannot do what it is told ends the engine with its own words."""
    failure = take("extra_kernel", env={"PERFGATE_PLANT_EVERY": "0"}).failure
    assert failure is not None
    assert failure.code == "engine-start-failed"
    assert "extra_kernel: PERFGATE_PLANT_EVERY='0', expected a number from 1" in failure.text


def test_other_tokens(take: Take) -> None:
    """The shifted logits give other tokens in every iteration, with no failure and no caution."""
    base, head = take(), take("other_tokens")
    assert not set(tokens(base)) & set(tokens(head))
    assert head.cautions == ()


def test_engine_that_refuses_its_arguments(
    engine_python: str, make_cell: Callable[..., Cell], make_job: Callable[..., Job]
) -> None:
    """An argument that vLLM does not know fails the trial in vLLM's words."""
    job = make_job(make_cell(), Subject(python=engine_python, args={"max_num_seq": 4}))
    failure = TimedCollector().collect(job, lambda _: None).failure
    assert failure is not None
    assert (failure.code, "max_num_seq" in failure.text) == ("engine-start-failed", True), failure.text
