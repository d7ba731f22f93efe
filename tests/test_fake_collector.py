"""The collector without an engine."""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from fake_collector import FakeCollector, FakeSpec, FakeStates

from perfgate.capture.job import Collector, Job
from perfgate.capture.timeline import read_iteration
from perfgate.machine.atomic_files import sha256_hex
from perfgate.metrics.catalogue import METRICS, trial_value
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Trial
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import Subject

SUBJECT = Subject(python="python")
Take = Callable[..., Trial]


@pytest.fixture
def take(make_cell: Callable[..., Cell], make_job: Callable[..., Job]) -> Take:
    """A function that takes one fake trial."""

    def one(spec: FakeSpec, index: int = 0, side: Side = "base", seed: int = 0) -> Trial:
        collector: Collector = FakeCollector(spec, seed)
        job = make_job(make_cell(output_tokens=8, iterations=4), SUBJECT, index, side)
        trial = collector.collect(job, lambda _: None)
        for file in job.folder.iterdir():
            file.unlink()
        job.folder.rmdir()
        return trial

    return one


def value(name: str, trial: Trial) -> float:
    """A metric that must be there."""
    found = trial_value(name, trial)
    assert found is not None
    return found


def test_same_seed_same_trial(take: Take) -> None:
    """Seed, side and index fix a trial, whatever was taken before."""
    first = take(FakeSpec(), index=3)
    take(FakeSpec(), index=4)
    assert first == take(FakeSpec(), index=3)
    assert first != take(FakeSpec(), index=3, seed=1)


def test_shape(take: Take) -> None:
    """Batch, iterations and tokens are honoured; no timed metric lacks a value but those of GPU, memory and server."""
    trial = take(FakeSpec())
    assert len(trial.iterations) == 4
    assert [(len(i.ttft_ns), len(i.e2e_ns), len(i.itl_ns)) for i in trial.iterations] == [(2, 2, 6)] * 4
    timed = [name for name, metric in METRICS.items() if metric.kind == "timed"]
    assert [name for name in timed if trial_value(name, trial) is None] == [
        "start_time_cold", "kv_memory", "peak_memory", "activation_memory", "memory_fragmentation",
        "device_memory_growth", "host_memory", "host_memory_growth", "energy_per_token", "mbu", "mfu",
        "max_rate", "request_throughput", "queue_time", "preemptions", "prefix_hit_share", "draft_acceptance", "kv_use",
    ]  # fmt: skip
    assert (trial.kind, trial.decode) == ("timed", None)


def test_truth_without_noise(take: Take) -> None:
    """Without noise a trial shows the declared step, start and ratio."""
    spec = FakeSpec(step_s=0.004, start_s=7.0, head_ratio={"step": 1.25, "start": 2.0}, restart_sd=0, iteration_sd=0)
    base, head = take(spec), take(spec, side="head")
    assert pytest.approx(0.004) == value("itl_median", base)
    assert pytest.approx(0.005) == value("itl_median", head)
    assert pytest.approx(7.0) == value("start_time", base)
    assert pytest.approx(14.0) == value("start_time", head)
    assert value("model_memory", base) == value("model_memory", head)


def probes_and_steps(trial: Trial) -> list[tuple[int, int, int, int]]:
    """For each iteration the readings of its only rank before and after, and its first and last step."""
    return [
        (i.probe_ns.before[0], i.probe_ns.after[0], i.itl_ns[0], i.itl_ns[-1]) for i in trial.iterations if i.probe_ns
    ]


def test_states_lengthen_steps_and_readings(take: Take) -> None:
    """In the slow state steps are longer by the gap and readings by the factor; by default nothing is probed."""
    exact = FakeSpec(step_s=0.004, restart_sd=0, iteration_sd=0)
    slow = FakeStates(gap=0.05, slow_share={"head": 1.0}, probe_s=2e-4, probe_factor=1.5, probe_sd=0)

    assert probes_and_steps(take(exact)) == []
    exact = dataclasses.replace(exact, states=slow)
    assert set(probes_and_steps(take(exact, side="base"))) == {(200_000, 200_000, 4_000_000, 4_000_000)}
    assert set(probes_and_steps(take(exact, side="head"))) == {(300_000, 300_000, 4_200_000, 4_200_000)}
    wrong = dataclasses.replace(exact, states=dataclasses.replace(slow, mislabelled=1.0))
    assert set(probes_and_steps(take(wrong, side="base"))) == {(300_000, 300_000, 4_000_000, 4_000_000)}


def test_a_slow_trial_becomes_fast_inside_an_iteration(take: Take) -> None:
    """It jumps at most once; the readings around that iteration differ."""
    states = FakeStates(gap=0.05, slow_share={"base": 1.0}, leaves=0.25, probe_s=2e-4, probe_factor=1.5, probe_sd=0)
    spec = FakeSpec(step_s=0.004, restart_sd=0, iteration_sd=0, states=states)

    seen = [probes_and_steps(take(spec, index)) for index in range(20)]

    jumps = 0
    for trial in seen:
        readings = [reading for before, after, _, _ in trial for reading in (before, after)]
        assert readings == sorted(readings, reverse=True)
        for before, after, first, last in trial:
            jumps += before > after
            assert first <= 4_200_000
            assert last == (4_200_000 if after == 300_000 else 4_000_000)
    assert 5 < jumps < 20


@pytest.mark.parametrize(("sticky", "changes"), [(0.0, (60, 140)), (0.9, (2, 20)), (1.0, (0, 0))])
def test_trials_begin_as_the_one_before(
    make_cell: Callable[..., Cell], sticky: float, changes: tuple[int, int]
) -> None:
    """The stickier, the rarer does a trial begin in another state than the trial before it."""
    states, cell, folder = FakeStates(sticky=sticky), make_cell(), Path()
    job = Job("timed", cell, "base", SUBJECT, 0, 0, 0, 0, folder, folder, folder, {}, "")

    begun = [states.begins_slow(7, dataclasses.replace(job, index=index)) for index in range(200)]

    assert changes[0] <= sum(one != other for one, other in pairwise(begun)) <= changes[1]


def test_traced(make_cell: Callable[..., Cell], make_job: Callable[..., Job]) -> None:
    """Without noise a traced trial shows the declared roles and slack, the step as their sum, and a waiting device."""
    ratio = {"gemm": 1.5, "slack": -1.0}
    spec = FakeSpec(roles={"gemm": (4, 3e-3), "norm": (8, 1e-3)}, slack_s=2e-3, head_ratio=ratio, restart_sd=0,
                    iteration_sd=0)  # fmt: skip
    collector: Collector = FakeCollector(spec)
    cell = make_cell(output_tokens=8)
    base, head = (
        collector.collect(make_job(cell, SUBJECT, index, side, "traced"), lambda _: None)
        for index, side in enumerate(("base", "head"))
    )

    assert (base.kind, head.kind) == ("traced", "traced")
    assert [value("kernel_time_per_step[gemm]", t) for t in (base, head)] == pytest.approx([3e-3, 4.5e-3])
    assert value("kernel_throughput[norm]", base) == pytest.approx(2 / 1e-3)
    assert [value("host_slack_per_step", t) for t in (base, head)] == pytest.approx([2e-3, -2e-3])
    assert [t.decode.step_ns[0] for t in (base, head) if t.decode] == [4_150_000, 7_650_000]
    assert len(base.decode.step_ns) == 6 * len(base.iterations)
    assert sum(base.decode.key_launches) == 12 * len(base.decode.step_ns)


def test_restart_spread(take: Take) -> None:
    """Restarts spread by the declared standard deviation."""
    logs = [math.log(value("itl_median", take(FakeSpec(restart_sd=0.05, iteration_sd=0), index=n))) for n in range(60)]
    assert 0.035 < np.std(logs, ddof=1) < 0.065


def test_modes(take: Take) -> None:
    """Slow restarts appear on the declared side in about the declared share."""
    spec = FakeSpec(restart_sd=0, iteration_sd=0, mode_ratio=2.0, mode_share={"head": 0.3})
    slow = [value("itl_median", take(spec, index=n, side="head")) > 0.008 for n in range(60)]
    assert 8 <= sum(slow) <= 30
    assert not any(value("itl_median", take(spec, index=n)) > 0.008 for n in range(20))


@pytest.mark.parametrize("differ", [False, True])
def test_tokens(take: Take, *, differ: bool) -> None:
    """The head's tokens differ from the base's where declared, and iterations always differ."""
    spec = FakeSpec(tokens_differ=differ)
    base, head = (take(spec, side=side).iterations for side in ("base", "head"))
    assert differ == (base[0].tokens_digest != head[0].tokens_digest)
    assert base[0].tokens_digest != base[1].tokens_digest


def test_declared_failure(take: Take) -> None:
    """A trial whose index is declared fails with that code, and the next one does not."""
    spec = FakeSpec(failures={2: "engine-failed"})
    failure = take(spec, index=2).failure
    assert failure is not None
    assert failure.code == "engine-failed"
    assert take(spec, index=3).failure is None


@pytest.mark.parametrize(
    "wrong", [{"head_ratio": {"speed": 2.0}}, {"failures": {0: "tired"}}, {"mode_share": {"x": 1}}]
)
def test_unknown_names(wrong: dict[str, dict[object, object]]) -> None:
    """A quantity, side or code that does not exist is refused."""
    with pytest.raises(ValueError, match="a fake has no"):
        FakeSpec(**wrong)  # type: ignore[arg-type]


def test_timeline(make_cell: Callable[..., Cell], make_job: Callable[..., Job]) -> None:
    """The timeline on disk fits its digest and reads to the trial's iterations, warm-up first."""
    job = make_job(make_cell(), SUBJECT)
    trial = FakeCollector().collect(job, lambda _: None)
    assert trial.timeline is not None
    packed = (job.run_folder / trial.timeline.path).read_bytes()
    assert sha256_hex(packed) == trial.timeline.sha256
    lines = [json.loads(line) for line in gzip.decompress(packed).splitlines()]
    assert [line["warmup"] for line in lines] == [True, False, False]
    assert list(trial.iterations) == [read_iteration(line, job.cell.batch) for line in lines[1:]]


def test_missing_subject(make_cell: Callable[..., Cell]) -> None:
    """A subject declared missing is not found by the probe, another one is."""
    collector = FakeCollector(missing=(SUBJECT,))
    failure = collector.probe(make_cell(), SUBJECT)
    assert failure is not None
    assert failure.code == "subject-not-found"
    assert collector.probe(make_cell(), Subject(python="other")) is None
