"""A run under guard: what happens to it when the machine is not what a measurement needs. NVML is a fake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner, Result
from fake_collector import FakeCollector, FakeSpec
from fake_nvml import FakeMachine
from hand_made import scenario_file

from perfgate.capture.job import Job
from perfgate.cli.main import main
from perfgate.machine.clock_lease import find_leases
from perfgate.machine.locks import state_folder
from perfgate.machine.nvml import Nvml
from perfgate.machine.sampler import Sampler
from perfgate.metrics.trial import Trial
from perfgate.record.run_record import Record, read_records, read_run

pytestmark = pytest.mark.usefixtures("no_orphans", "readings_by_hand")

LOCK = "clocks: {mode: lock, sm_mhz: 1500}\n"
READINGS = 10
"""How many a trial has."""
HOSTS = 4_000_001
"""A pid that does not exist here: the host's, seen from a container."""


class ByHand(Sampler):
    """A sampler without a thread: the trial takes the readings, at moments of its own invented time."""

    newest: ClassVar[ByHand | None] = None
    """That of the trial under way."""

    def __init__(self, nvml: Nvml, uuids: Sequence[str], is_ours: Callable[[int], bool]) -> None:
        super().__init__(nvml, uuids, is_ours, clock_ns=lambda: self.now_ns)
        self.now_ns = 0
        ByHand.newest = self

    def _watch(self) -> None:
        """Nothing is read on its own."""


@pytest.fixture
def readings_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here depends on how fast the machine is, and GPUs that are not free are not waited for."""
    monkeypatch.setattr("perfgate.capture.gpus.IDLE_WAIT_S", 0.0)
    monkeypatch.setattr("perfgate.capture.gpus.Sampler", ByHand)
    monkeypatch.setattr(ByHand, "newest", None)


Acts = dict[int, Callable[[], None]]


class Acted(FakeCollector):
    """A fake whose trials have :data:`READINGS`, and during which something happens to the machine.

    Args:
        acts: By number of the trial, called at its start.
        after: Likewise, at its end.
        midst: Likewise, in the midst of it.
    """

    def __init__(self, acts: Acts | None = None, after: Acts | None = None, midst: Acts | None = None) -> None:
        super().__init__(FakeSpec(restart_sd=0.0003))
        self._acts = [acts or {}, midst or {}, after or {}]

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """A fake trial with what happens meanwhile."""
        begin, midst, end = (acts.get(job.index, lambda: None) for acts in self._acts)
        begin()
        trial = super().collect(job, progress)
        begin_ns, end_ns = trial.iterations[0].window.begin_ns, trial.iterations[-1].window.end_ns
        for number in range(READINGS):
            if number == READINGS // 2:
                midst()
            if ByHand.newest is not None:
                ByHand.newest.now_ns = begin_ns + (end_ns - begin_ns) * (2 * number + 1) // (2 * READINGS)
                ByHand.newest.take()
        end()
        return trial


WORDS = ("--base", "python=/bin/true", "--seed", "1", "--format", "json")
Measure = Callable[..., tuple[Result, Any]]


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """A function that runs ``perfgate run`` and returns its result and the record, or ``None``."""
    monkeypatch.chdir(tmp_path)

    def run(collector: Acted | None = None, more: str = "", head: str = "env.BUILD=new") -> tuple[Result, Any]:
        words = ["run", scenario_file(tmp_path, more=more).name, "--head", head, *WORDS]
        result = CliRunner().invoke(main, words, obj=collector or Acted())
        folders = list((tmp_path / "runs").glob("*"))
        return result, next((record for one in folders for record in read_records(one, read_run(one))), None)

    return run


def dropped(record: Record) -> list[tuple[int, str]]:
    """The trials that dropped their pair, with the reason."""
    return [(t.index, t.failure.code) for t in record.trials if t.failure]


def test_a_lock_that_holds(measure: Measure, fake_nvml: FakeMachine) -> None:
    """A run at locked clocks passes, shows the clock, and leaves neither lock nor lease."""
    result, record = measure(more=LOCK)

    assert result.exit_code == 0, result.output
    assert {gpu.decode_sm_mhz for trial in record.trials for gpu in trial.telemetry} == {1500}
    verdict = json.loads(result.stdout)
    assert verdict["cells"][0]["gpus"]["head"]["sm_mhz"] == 1500
    assert fake_nvml.gpu().locked == (None, None)
    assert find_leases([fake_nvml.gpu().uuid]) == ()


def test_a_lock_that_power_does_not_allow(measure: Measure, fake_nvml: FakeMachine) -> None:
    """A clock below its lock is not measured at: the run ends 22, says so, and keeps what the clock was."""
    fake_nvml.gpu().update(power_cap_mhz=1395)

    result, record = measure(more=LOCK)

    assert result.exit_code == 22
    assert "median 1395 MHz in decode, locked at 1500 MHz (clocks-setting, power-cap)" in result.stdout
    assert dropped(record) == [(0, "clock-not-held")]
    assert fake_nvml.gpu().locked == (None, None)


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"permission": False}, "clock-no-permission"),
        ({"supported": False}, "clock-not-supported"),
        ({"supported_clocks_mhz": {"3201": [345, 1410, 15]}}, "clock-not-supported"),
    ],
)
def test_a_lock_that_cannot_be(measure: Measure, fake_nvml: FakeMachine, facts: dict[str, object], code: str) -> None:
    """Without right or means to lock nothing is started; the reason says what to do."""
    fake_nvml.gpu().update(**facts)

    result, record = measure(more=LOCK)

    assert result.exit_code == 22
    assert code in {reason["code"] for reason in json.loads(result.stdout)["cells"][0]["reasons"]}
    assert record.trials == ()
    assert find_leases([fake_nvml.gpu().uuid]) == ()


def test_a_lock_without_a_gpu(measure: Measure) -> None:
    """A machine without a GPU has no clocks to lock, and says so before anything is started."""
    result, record = measure(more=LOCK)

    assert result.exit_code == 22
    assert "clocks cannot be locked: there is no GPU here, or none that is visible" in result.stdout
    assert record.trials == ()


@pytest.mark.parametrize("seen", ["by a reading", "by the driver's counter"])
def test_thermal_slowdown_in_one_trial(measure: Measure, fake_nvml: FakeMachine, seen: str) -> None:
    """The pair goes whole, stays in the record, is replaced, and the verdict says so; a counter sees what is short."""
    gpu = fake_nvml.gpu()
    hot, cool = (lambda: gpu.update(reasons=0x40), lambda: gpu.update(reasons=0))
    braked = Acted(midst={4: lambda: gpu.update(slowdown_ns={"269": 0, "270": 0, "271": 9_000_000})})

    result, record = measure(Acted({4: hot}, {4: cool}) if seen == "by a reading" else braked)

    assert result.exit_code == 0, result.output
    assert dropped(record) == [(4, "gpu-throttled")]
    assert record.measured() == 4
    assert "dropped-pairs" in {note["code"] for note in json.loads(result.stdout)["cells"][0]["cautions"]}


def test_heat_that_does_not_end(measure: Measure, fake_nvml: FakeMachine) -> None:
    """More dropped pairs than the scenario allows end the run 22, with everything in the record."""
    result, record = measure(Acted({2: lambda: fake_nvml.gpu().update(reasons=0x20)}))

    assert result.exit_code == 22
    assert "dropped-pairs" in result.stdout
    assert {code for _, code in dropped(record)} == {"gpu-throttled"}


def test_a_lost_gpu(measure: Measure, fake_nvml: FakeMachine) -> None:
    """A GPU that falls off the bus ends the run 22 at once; finished trials stay."""
    result, record = measure(Acted({5: lambda: fake_nvml.gpu().update(lost=True)}), more=LOCK)

    assert result.exit_code == 22
    assert dropped(record) == [(5, "gpu-lost")]
    assert record.stopped is not None
    assert record.stopped.code == "gpu-lost"
    assert len(record.pairs()) == 1
    assert "perfgate: GPU" in result.stderr
    assert "the clocks are still locked" in result.stderr
    assert json.loads(result.stdout)["verdict"] == "not-measured"
    assert [lease.uuid for lease in find_leases([fake_nvml.gpu().uuid])] == [fake_nvml.gpu().uuid]


def test_a_foreign_process_comes_and_goes(measure: Measure, fake_nvml: FakeMachine) -> None:
    """Its pair is dropped and replaced; the record names it with its pid and memory."""
    gpu = fake_nvml.gpu()
    come = lambda: gpu.update(processes=[{"pid": os.getpid(), "memory_bytes": 2**31}])  # noqa: E731 (a step of the story)
    go = lambda: gpu.update(processes=[])  # noqa: E731

    result, record = measure(Acted({3: come}, {3: go}))

    assert result.exit_code == 0, result.output
    assert dropped(record) == [(3, "gpu-busy")]
    (stranger,) = record.trials[3].telemetry[0].foreign
    assert (stranger.pid, stranger.memory_bytes) == (os.getpid(), 2**31)


def test_in_a_container_a_second_process_is_foreign(
    measure: Measure, fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the driver reports the host's pids, one process beside the engine's is seen by being one too many."""
    monkeypatch.setattr("perfgate.machine.sampler.sees_host_pids", lambda: False)
    gpu = fake_nvml.gpu()
    engine, stranger = ({"pid": HOSTS + n, "memory_bytes": 2**30} for n in range(2))
    acts = {n: lambda: gpu.update(processes=[engine]) for n in range(12)}
    acts[3] = lambda: gpu.update(processes=[engine, stranger])
    gone = {n: lambda: gpu.update(processes=[]) for n in range(12)}

    result, record = measure(Acted(acts, gone))

    assert result.exit_code == 0, result.output
    assert dropped(record) == [(3, "gpu-busy")]
    assert record.trials[3].failure is not None
    assert "a process not visible from here (pid" in record.trials[3].failure.text


def test_a_foreign_process_that_stays(measure: Measure, fake_nvml: FakeMachine) -> None:
    """No engine is started beside it any more, and the run ends 22."""
    stay = {4: lambda: fake_nvml.gpu().update(processes=[{"pid": os.getpid(), "memory_bytes": None}])}

    result, record = measure(Acted(stay))

    assert result.exit_code == 22
    assert {code for _, code in dropped(record)} == {"gpu-busy"}
    assert [t.duration_ns for t in record.trials[5:]] == [0] * len(record.trials[5:])


@pytest.mark.parametrize(
    "facts", [{"processes": [{"pid": os.getpid(), "memory_bytes": 2**31}]}, {"memory_reserved_bytes": 20 * 2**30}],
    ids=["process", "memory"],
)  # fmt: skip
def test_a_busy_gpu(measure: Measure, fake_nvml: FakeMachine, facts: dict[str, object]) -> None:
    """Where somebody else computes, or holds memory, nothing is measured: 22."""
    fake_nvml.gpu().update(**facts)

    result, record = measure()

    assert result.exit_code == 22
    assert "perfgate: gpu-busy: " in result.stderr
    assert record is None


def test_the_lock_of_a_killed_run_is_undone_at_the_next_start(measure: Measure, fake_nvml: FakeMachine) -> None:
    """A run killed while it holds clocks leaves a lease; the next one frees the clocks and says so."""
    program = (
        "import os, signal, sys\n"
        "from perfgate.machine.clocks import ClockGuard\n"
        "from perfgate.machine.nvml import Nvml\n"
        "ClockGuard(Nvml(), 'killed').apply([sys.argv[1]], 1200)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    uuid = fake_nvml.gpu().uuid
    subprocess.run([sys.executable, "-c", program, uuid], env={**os.environ, **fake_nvml.environment}, check=False)
    assert fake_nvml.gpu().locked == (1200, None)

    result, record = measure()

    assert result.exit_code == 0, result.output
    assert f"perfgate: released the clocks of {uuid}, left locked: SM at 1200 MHz, by run killed" in result.stderr
    assert {gpu.decode_sm_mhz for trial in record.trials for gpu in trial.telemetry} == {1980}


@pytest.mark.parametrize(
    ("clock", "base", "head", "words"),
    [("sm_mhz", 1980, 1950, "median SM clock in decode"), ("memory_mhz", 3201, 2201, "median memory clock")],
)
def test_sides_at_different_clocks_are_not_compared(
    measure: Measure, fake_nvml: FakeMachine, clock: str, base: int, head: int, words: str
) -> None:
    """Observed clocks that differ by more than 1 % between the sides make the run not comparable: 21."""

    class Slower(Acted):
        def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
            fake_nvml.gpu().update(**{clock: head if job.side == "head" else base})
            return super().collect(job, progress)

    result, _ = measure(Slower())

    assert result.exit_code == 21
    assert f"{words}: base {base} MHz, head {head} MHz" in result.stdout


def test_a_cell_that_cannot_be_locked_takes_nothing_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_nvml: FakeMachine
) -> None:
    """A regression of one cell stands although the next cell's clocks cannot be held; both are in the verdict."""
    monkeypatch.chdir(tmp_path)
    fake_nvml.gpu().update(sm_mhz=1980)
    first = scenario_file(tmp_path, "first")
    second = scenario_file(tmp_path, "second", more="clocks: {mode: lock, sm_mhz: 1501}\n")
    slower = FakeCollector(FakeSpec(head_ratio={"step": 1.1}, restart_sd=0.0003))

    result = CliRunner().invoke(main, ["run", first.name, second.name, "--head", "env.BUILD=new", *WORDS], obj=slower)

    verdict = json.loads(result.stdout)
    assert result.exit_code == 10
    assert [cell["verdict"] for cell in verdict["cells"]] == ["regressed", "not-measured"]
    assert verdict["cells"][1]["reasons"][0]["code"] == "clock-not-supported"


def test_the_larger_engine_decides_how_many_gpus_are_guarded(measure: Measure, fake_nvml: FakeMachine) -> None:
    """A head that takes two GPUs by an argument of its own has both held, locked and watched in every trial."""
    FakeMachine.build(fake_nvml.file, {}, {}, {})
    uuids = tuple(fake_nvml.gpu(index).uuid for index in range(3))
    seen = []

    class Looking(Acted):
        def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
            held = [uuid for uuid in uuids if (state_folder() / f"{uuid}.holder").exists()]
            seen.append((held, [fake_nvml.gpu(index).locked[0] for index in range(3)]))
            return super().collect(job, progress)

    result, record = measure(Looking(), LOCK, "args.tensor_parallel_size=2")

    assert result.exit_code == 0, result.output
    assert seen == [([*uuids[:2]], [1500, 1500, None])] * 10
    assert {trial.gpus for trial in record.trials} == {uuids[:2]}
    assert {tuple(gpu.gpu for gpu in trial.telemetry) for trial in record.trials} == {uuids[:2]}


@pytest.mark.parametrize("visible", ["7", "MIG-1234", "GPU-1234"])
def test_gpus_that_cannot_be_watched(
    measure: Measure, fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    """Where CUDA_VISIBLE_DEVICES names no whole GPU, nothing is measured unguarded: 22."""
    assert fake_nvml.gpu().uuid
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    result, record = measure()

    assert result.exit_code == 22
    assert (
        f"perfgate: gpu-missing: the largest engine takes 1 GPUs, and CUDA_VISIBLE_DEVICES={visible}" in result.stderr
    )
    assert record is None


@pytest.mark.parametrize(("more", "status"), [("", 0), (LOCK, 22)])
def test_gpus_hidden_on_purpose(
    measure: Measure, fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch, more: str, status: int
) -> None:
    """An empty CUDA_VISIBLE_DEVICES means the CPU: nothing to guard, and nothing that could be locked."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    result, record = measure(more=more)

    assert result.exit_code == status
    assert {trial.gpus for trial in record.trials} <= {()}
    assert fake_nvml.calls == []


def test_company_that_was_never_listed(measure: Measure, fake_nvml: FakeMachine) -> None:
    """Memory that somebody holds after the engine's end was there in its trial: the pair is dropped."""
    gpu = fake_nvml.gpu()
    come, go = (lambda: gpu.update(memory_reserved_bytes=9 * 2**30), lambda: gpu.update(memory_reserved_bytes=2**29))

    result, record = measure(Acted({3: come, 4: go}))

    assert result.exit_code in (0, 22), result.output
    assert dropped(record)[0] == (3, "gpu-busy")


def test_a_disturbed_warm_up_trial(measure: Measure, fake_nvml: FakeMachine) -> None:
    """It is never judged and has shown that the engine runs: the run goes on."""
    gpu = fake_nvml.gpu()

    result, record = measure(Acted({0: lambda: gpu.update(reasons=0x40)}, {0: lambda: gpu.update(reasons=0)}))

    assert result.exit_code == 0, result.output
    assert record.trials[0].failure is not None
    assert record.trials[0].pair is None
