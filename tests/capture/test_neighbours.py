"""What stations do to one another: measured once on a host, refused where it is too much."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fake_collector import FakeCollector, FakeSpec
from fake_nvml import FakeMachine, fake_uuid
from hand_made import cell, iteration, run, trial

from perfgate.capture.gpus import VISIBLE
from perfgate.capture.job import Job
from perfgate.capture.neighbours import FOLDER, Neighbours, _in_one_state
from perfgate.capture.session import Session
from perfgate.cli.main import main
from perfgate.errors import NotMeasuredError
from perfgate.machine.locks import state_folder
from perfgate.machine.versioned_json import read_model, write_model
from perfgate.metrics.trial import Failure, Probes, Trial
from perfgate.record.run_record import Record

pytestmark = pytest.mark.usefixtures("no_orphans")

DEADLINE_S = 20.0
DIED = Failure(code="engine-died", text="died")
BESIDE = (2, 3)
"""Numbers of the first station's trials that are taken while others work."""


class Host(FakeCollector):
    """A host on which trials of the first station are longer while others are at work.

    Args:
        longer: By this factor.
        broken: The GPU on which the trials of the check fail.
    """

    def __init__(self, longer: float = 1.0, broken: str = "") -> None:
        super().__init__(FakeSpec(restart_sd=0.0, iteration_sd=0.0))
        self.longer, self.broken = longer, broken
        self.others_at_work = threading.Event()
        self.checked: list[str] = []

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """A trial of the check waits for its neighbours where it has some; others are as ever."""
        trial = super().collect(job, progress)
        if FOLDER not in job.folder.parts:
            return trial
        own = sum(number == "0" for number in self.checked)
        self.checked.append(job.environment[VISIBLE])
        if job.station:
            self.others_at_work.set()
        if job.environment[VISIBLE] == self.broken:
            return trial.model_copy(update={"failure": Failure(code="gpu-lost", text="fell off the bus")})
        if job.station:
            return trial
        if own not in BESIDE:
            assert not self.others_at_work.is_set() or own > max(BESIDE)
            return trial
        assert self.others_at_work.wait(DEADLINE_S)
        slow = [
            iteration.model_copy(update={"itl_ns": tuple(round(ns * self.longer) for ns in iteration.itl_ns)})
            for iteration in trial.iterations
        ]
        return trial.model_copy(update={"iterations": tuple(slow)})


@pytest.fixture
def two_gpus(fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeMachine:
    """A host with two GPUs on which nothing was measured."""
    monkeypatch.delenv(VISIBLE, raising=False)
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))
    return FakeMachine.build(fake_nvml.file, {}, {})


def measure(folder: Path, host: Host, gpus: str = "all") -> tuple[Record, list[str]]:
    """A visit, and the sentences that were said in it."""
    folder.mkdir()
    said: list[Any] = []
    with Session(folder, run([cell()]), host, said.append, gpus=gpus) as opened:
        record = opened.measure(cell(), 4)
    return record, [text for text in said if isinstance(text, str)]


@pytest.mark.usefixtures("two_gpus")
def test_a_noisy_host_is_refused(tmp_path: Path) -> None:
    """Where neighbours make a trial 3 % longer no pair is taken, and the figure is named."""
    record, _ = measure(tmp_path / "run", Host(1.03))
    assert record.stopped is not None
    assert record.stopped.code == "stations-interfere"
    assert "changed by 3 %" in record.stopped.text
    assert not record.trials
    alone, _ = measure(tmp_path / "alone", Host(1.03), "1")
    assert len(alone.pairs()) == 4


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(("longer", "warned"), [(1.0, False), (1.005, True)])
def test_a_quiet_host_is_measured_on(tmp_path: Path, longer: float, *, warned: bool) -> None:
    """The figure is told, with a warning from 0.3 % on, and the run goes on."""
    record, said = measure(tmp_path / "run", Host(longer))
    assert len(record.pairs()) == 4
    (told,) = [text for text in said if "GPUs at work a trial changed by" in text]
    assert told.startswith("warning: ") is warned


def test_it_is_measured_once(tmp_path: Path, two_gpus: FakeMachine) -> None:
    """A later run on the same GPUs takes the figure; another driver, or another GPU, has it measured again."""
    measure(tmp_path / "one", Host())
    again = Host()
    measure(tmp_path / "two", again)
    assert not again.checked
    two_gpus.update(driver="590.1")
    measure(tmp_path / "three", again)
    assert again.checked
    FakeMachine.build(two_gpus.file, {}, {}, {})
    more = Host()
    measure(tmp_path / "four", more)
    assert set(more.checked) == {"0", "1", "2"}
    fewer = Host()
    measure(tmp_path / "five", fewer, "1,2")
    assert not fewer.checked


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("text", ["", "{}", '{"format": "perfgate-neighbours/1", "alone": []}'])
def test_a_broken_file_is_measured_anew(tmp_path: Path, text: str) -> None:
    """What cannot be read tells nothing."""
    measure(tmp_path / "one", Host())
    (file,) = state_folder().glob("neighbours-*.json")
    file.write_text(text)
    host = Host()
    measure(tmp_path / "two", host)
    assert host.checked
    assert read_model(Neighbours, file).change == 0.0


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_that_is_lost_meanwhile_is_left_out(tmp_path: Path) -> None:
    """The run goes on with the others."""
    record, said = measure(tmp_path / "run", Host(broken="1"))
    assert {trial.gpus for trial in record.trials} == {(fake_uuid(0),)}
    assert len(record.pairs()) == 4
    assert any("GPU 1 is left out from here on: gpu-lost" in text for text in said)


@pytest.mark.usefixtures("two_gpus")
def test_a_trial_that_fails_after_that_is_one_that_failed(tmp_path: Path) -> None:
    """A check that ended early has ended nothing else: the pair is dropped and replaced."""

    class Failing(Host):
        def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
            trial = super().collect(job, progress)
            return trial.model_copy(update={"failure": DIED}) if job.pair == 0 else trial

    record, _ = measure(tmp_path / "run", Failing(broken="1"))
    assert [trial.pair for trial in record.trials if trial.failure == DIED] == [0]
    assert len(record.pairs()) == 4


@pytest.mark.usefixtures("two_gpus")
def test_alone_and_beside_others_on_the_same_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a station is held to is no doing of its neighbours."""
    held = threading.local()
    monkeypatch.setattr("os.sched_setaffinity", lambda _, cores: setattr(held, "cores", cores))
    monkeypatch.setattr("perfgate.capture.station.shares_of_cores", lambda all_: [frozenset({7})] * len(all_))
    seen = set[object]()

    class Looking(Host):
        def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
            seen.add(getattr(held, "cores", None))
            return super().collect(job, progress)

    measure(tmp_path / "run", Looking())
    assert seen == {frozenset({7})}


H200 = ("NVIDIA H200",)


def in_states(states: str, beside: float = 1.0) -> Trial:
    """A trial that is slow (s) or fast (f) iteration by iteration, and longer beside others by a factor."""
    known = {"s": (5.3e-3, 215_000), "f": (5.13e-3, 179_000)}
    own = [known[state] for state in states]
    return trial(0, 0, "base", iterations=tuple(
        iteration(step_s * beside, probe_ns=Probes(before=(ns,), after=(ns,))) for step_s, ns in own
    ))  # fmt: skip


@pytest.mark.parametrize(
    ("alone", "others"),
    [
        (("ssss", "ssff"), ("ssff", "ffff")),
        (("ffff", "ffff"), ("ssff", "sfff")),
        (("ssss", "ssss"), ("ssss", "ssff")),
        (("f", "f"), ("f", "f")),
    ],
)
def test_a_jump_of_the_gpu_is_no_neighbours_doing(alone: tuple[str, ...], others: tuple[str, ...]) -> None:
    """Trials are compared in a state that all beside others have; what neighbours do there is seen as before."""
    for longer in (1.0, 1.005):
        found = _in_one_state([*map(in_states, alone)], [in_states(own, longer) for own in others], H200)
        assert all(value / found[0][0] == pytest.approx(1.0, abs=1e-6) for value in found[0])
        assert all(value / found[0][0] == pytest.approx(longer, abs=1e-6) for value in found[1])


def test_states_that_trials_do_not_share() -> None:
    """Nothing is known then, as where only some beside others are slow; without a probe all are compared."""
    alone, beside = [in_states("ssss"), in_states("ssss")], [in_states("ffff"), in_states("sfff")]
    for one, others in ((alone, beside), (beside, [in_states("ffff"), in_states("ssss")])):
        with pytest.raises(NotMeasuredError, match="no GPU state in common"):
            _in_one_state(one, others, H200)
    assert len(_in_one_state(alone, beside, ("NVIDIA A100",))[1]) == 2


@pytest.mark.usefixtures("two_gpus")
def test_doctor_tells(tmp_path: Path) -> None:
    """What was measured is among the findings, and a figure above the limit is a warning."""
    words = ["doctor", "--format", "text"]
    assert "not measured since the last boot" in CliRunner().invoke(main, words).output
    measure(tmp_path / "run", Host(1.002))
    assert "beside 2 GPUs at work a trial changed by 0.2 %" in CliRunner().invoke(main, words).output
    (file,) = state_folder().glob("neighbours-*.json")
    found = read_model(Neighbours, file)
    write_model(file, found.model_copy(update={"beside": tuple(2 * value for value in found.beside)}))
    assert "Measure on one GPU, or on fewer at once." in CliRunner().invoke(main, words).output
