"""What stations do to one another: measured once on a host, refused where it is too much."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fake_collector import FakeCollector, FakeSpec
from fake_nvml import FakeMachine, fake_uuid
from hand_made import cell, gate, iteration, run, trial
from perfgate_process import DEADLINE_S

from perfgate.capture.gpus import VISIBLE
from perfgate.capture.job import Job
from perfgate.capture.neighbours import FOLDER, Neighbours, _figures
from perfgate.capture.session import Session
from perfgate.cli.main import main
from perfgate.errors import InterruptedRunError, NotMeasuredError
from perfgate.machine.locks import state_folder
from perfgate.machine.versioned_json import read_model, write_model
from perfgate.metrics.trial import Failure, Probes, Trial
from perfgate.record.run_record import Record
from perfgate.scenario.declaration import Expect
from perfgate.scenario.plan import Cell

pytestmark = pytest.mark.usefixtures("no_orphans")

TEN_SECONDS = Expect.model_validate({"trial_s": 10, "pair_sd": {"itl_median": "0.1%"}})
DIED = Failure(code="engine-failed", text="died")
BESIDE = (2, 3)
"""Numbers of the first station's trials that are taken while others work."""
IN_A_CHECK = 5
"""How many it takes in one check."""


class Host(FakeCollector):
    """A host on which trials of the first station are longer while others are at work.

    Args:
        longer: By this factor.
        broken: The GPU on which the trials of the check fail.
        later: The first token comes later by this one.
    """

    def __init__(self, longer: float = 1.0, broken: str = "", later: float = 1.0) -> None:
        super().__init__(FakeSpec(restart_sd=0.0, iteration_sd=0.0))
        self.longer, self.broken, self.later = longer, broken, later
        self.others_at_work = threading.Event()
        self.checked: list[str] = []

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """A trial of the check waits for its neighbours where it has some; others are as ever."""
        trial = super().collect(job, progress)
        if FOLDER not in job.folder.parts:
            return trial
        own = sum(number == "0" for number in self.checked) % IN_A_CHECK
        self.checked.append(job.environment[VISIBLE])
        if own == 0 and not job.station:
            self.others_at_work.clear()
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
            own.model_copy(
                update={
                    "itl_ns": tuple(round(ns * self.longer) for ns in own.itl_ns),
                    "ttft_ns": tuple(round(ns * self.later) for ns in own.ttft_ns),
                }
            )
            for own in trial.iterations
        ]
        return trial.model_copy(update={"iterations": tuple(slow)})


@pytest.fixture
def two_gpus(fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeMachine:
    """A host with two GPUs on which nothing was measured."""
    monkeypatch.delenv(VISIBLE, raising=False)
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))
    return FakeMachine.build(fake_nvml.file, {}, {})


def measure(
    folder: Path, host: Host, gpus: str = "all", measured: Cell | None = None, **more: Any
) -> tuple[Record, list[str]]:
    """A visit, and the sentences that were said in it."""
    folder.mkdir()
    said: list[Any] = []
    measured = measured or cell()
    with Session(folder, run([measured]), host, said.append, gpus=gpus, **more) as opened:
        record = opened.measure(measured, 4)
    return record, [text for text in said if isinstance(text, str)]


@pytest.mark.usefixtures("two_gpus")
def test_a_noisy_host_is_refused(tmp_path: Path) -> None:
    """Where neighbours make a trial 3 % longer no pair is taken, and the figure is named."""
    record, _ = measure(tmp_path / "run", Host(1.03))
    assert record.stopped is not None
    assert record.stopped.code == "gpu-busy"
    assert "itl_median of a trial changed by 3 % (5.459 ms, alone 5.300 ms), at most 1 %" in record.stopped.text
    assert not record.trials
    alone, _ = measure(tmp_path / "alone", Host(1.03), "1")
    assert len(alone.pairs()) == 4


@pytest.mark.usefixtures("two_gpus")
def test_a_trial_that_differs_by_itself_refuses_no_host(tmp_path: Path) -> None:
    """What a second check does not show again is not the neighbours' doing: the run goes on, and both were told."""

    class Once(Host):
        def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
            self.longer = 1.03 if self.checked.count("0") < IN_A_CHECK else 1.0
            return super().collect(job, progress)

    record, said = measure(tmp_path / "run", Once())
    assert len(record.pairs()) == 4
    assert [text for text in said if text.startswith("once more, as a trial may differ by itself: itl_median")]
    assert [text for text in said if "itl_median of a trial changed by 0 %" in text]


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(("longer", "warned"), [(1.0, False), (1.005, True)])
def test_a_quiet_host_is_measured_on(tmp_path: Path, longer: float, *, warned: bool) -> None:
    """The figure is told, with a warning from 0.3 % on, and the run goes on."""
    record, said = measure(tmp_path / "run", Host(longer))
    assert len(record.pairs()) == 4
    (told,) = [text for text in said if "GPUs at work itl_median of a trial changed by" in text]
    assert told.startswith("warning: ") is warned


@pytest.mark.usefixtures("two_gpus")
def test_each_gate_has_its_own_margin(tmp_path: Path) -> None:
    """The metric that comes closest to what its gate accepts decides, by figures of another cell on this host too."""
    wide = gate("ttft_median", "2%", "8%")
    both = cell("both", [gate(), wide])
    host = Host(longer=1.002, later=1.06)
    record, said = measure(tmp_path / "both", host, measured=both)
    assert len(record.pairs()) == 4
    (told,) = [text for text in said if "GPUs at work" in text]
    assert told.startswith("warning: beside 2 GPUs at work ttft_median of a trial changed by 6 %")
    assert "at most 8 % is accepted" in told
    host.checked.clear()
    for name, gates, refused in (
        ("itl", [gate()], False),
        ("floor", [gate("ttft_median", "1%", "5%", floor="1s")], False),
        ("narrow", [gate(), gate("ttft_median", "1%", "5%")], True),
        ("narrow-again", [gate(), gate("ttft_median", "1%", "5%")], True),
    ):
        record, _ = measure(tmp_path / name, host, measured=cell(name, gates))
        assert (record.stopped is not None) is refused
        assert bool(host.checked) is refused  # what refuses is seen twice, and not kept
        host.checked.clear()
    unknown = cell("unknown", [gate(), gate("kv_memory", "1%", "5%")])
    for name, checks in (("first", True), ("again", False)):
        host = Host()
        measure(tmp_path / name, host, measured=unknown)
        assert bool(host.checked) is checks  # no value of it was kept; that there is none is known then


@pytest.mark.usefixtures("two_gpus")
def test_every_cell_of_a_visit_is_held_against_its_own_gates(tmp_path: Path) -> None:
    """That stations may measure one cell at once says nothing of another."""
    cells = [cell("itl"), cell("ttft", [gate("ttft_median", "1%", "5%")])]
    (tmp_path / "run").mkdir()
    with Session(tmp_path / "run", run(cells), Host(later=2.0), lambda _: None, gpus="all") as opened:
        one, other = (opened.measure(measured, 4) for measured in cells)
    assert len(one.pairs()) == 4
    assert other.stopped is not None
    assert "ttft_median of a trial changed by 100 %" in other.stopped.text


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
@pytest.mark.parametrize("text", ["", "{}", '{"format": "perfgate-neighbours/1", "alone": [1.0], "beside": [1.0]}'])
def test_a_broken_file_is_measured_anew(tmp_path: Path, text: str) -> None:
    """What cannot be read tells nothing."""
    measure(tmp_path / "one", Host())
    (file,) = state_folder().glob("neighbours-*.json")
    file.write_text(text)
    host = Host()
    measure(tmp_path / "two", host)
    assert host.checked
    assert read_model(Neighbours, file).worst(()).share == 0.0


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("left_s", "expected", "checked", "said"),
    [
        (60, True, 0, "that and a first pair take about 100 s, more than is left"),
        (1000, True, 5, "about 60 s"),
        (60, False, 2, "that and a first pair take about 80 s, more than is left"),
        (1000, False, 5, "some minutes"),
        (-1, False, 0, "has to be measured; nothing is left"),
    ],
)
def test_the_check_has_to_fit_the_budget(
    tmp_path: Path, left_s: int, checked: int, said: str, *, expected: bool
) -> None:
    """It is priced with a first pair, by what the scenario expects of a trial or its own first one takes: 10 s each."""

    class Slow(Host):
        def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
            return super().collect(job, progress).model_copy(update={"duration_ns": 10**10})

    host, told = Slow(), list[Any]()
    measured = cell(expect=TEN_SECONDS if expected else None)
    (tmp_path / "run").mkdir()
    with (
        Session(tmp_path / "run", run([measured]), host, told.append, time.monotonic() + left_s, gpus="all") as opened,
        contextlib.suppress(InterruptedRunError),
    ):
        opened.measure(measured, 4)
    assert host.checked.count("0") == checked
    assert [text for text in told if isinstance(text, str) and said in text]
    alone = [text for text in told if isinstance(text, str) and text.startswith("cell is measured on GPU 0 alone: ")]
    assert len(alone) == (checked < 5)


@pytest.mark.usefixtures("two_gpus")
def test_where_the_check_does_not_fit_one_station_measures(tmp_path: Path) -> None:
    """Pairs are taken there, at this look and the next, and it is said once."""
    measured = cell(expect=TEN_SECONDS)
    (tmp_path / "run").mkdir()
    told = list[Any]()
    with Session(tmp_path / "run", run([measured]), Host(), told.append, time.monotonic() + 60, gpus="all") as opened:
        opened.measure(measured, 2)
        record = opened.measure(measured, 4)
    assert len(record.pairs()) == 4
    assert {trial.gpus for trial in record.trials} == {(fake_uuid(0),)}
    assert len([text for text in told if isinstance(text, str) and "GPU 0 alone" in text]) == 1


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
        found = _figures(cell(), [*map(in_states, alone)], [in_states(own, longer) for own in others], H200)
        for metric in ("itl_median", "elapsed"):
            usual = found[metric].alone[0]
            assert all(value / usual == pytest.approx(1.0, abs=1e-6) for value in found[metric].alone)
            assert all(value / usual == pytest.approx(longer, abs=1e-6) for value in found[metric].beside)
        assert len(found["ttft_median"].alone) == len(alone)  # no jump touches that: of whole trials


def test_states_that_trials_do_not_share() -> None:
    """Nothing is known of decode steps then, as where only some beside others are slow; without a probe all count."""
    alone, beside = [in_states("ssss"), in_states("ssss")], [in_states("ffff"), in_states("sfff")]
    for one, others in ((alone, beside), (beside, [in_states("ffff"), in_states("ssss")])):
        with pytest.raises(NotMeasuredError, match="no GPU state in common"):
            _figures(cell(), one, others, H200)
        prefill = _figures(cell(gates=[gate("ttft_median")]), one, others, H200)
        assert "ttft_median" in prefill
        assert not {"itl_median", "elapsed"} & {*prefill}
    assert len(_figures(cell(), alone, beside, ("NVIDIA A100",))["itl_median"].beside) == 2


@pytest.mark.usefixtures("two_gpus")
def test_doctor_tells(tmp_path: Path) -> None:
    """What was measured is among the findings, and a figure above the limit is a warning."""
    words = ["doctor", "--format", "text"]
    assert "not measured since the last boot" in CliRunner().invoke(main, words).output
    measure(tmp_path / "run", Host(1.002))
    assert "beside 2 GPUs at work itl_median of a trial changed by 0.2 %" in CliRunner().invoke(main, words).output
    (file,) = state_folder().glob("neighbours-*.json")
    found = read_model(Neighbours, file)
    itl = found.figures["itl_median"]
    twice = itl.model_copy(update={"beside": tuple(2 * value for value in itl.beside)})
    write_model(file, found.model_copy(update={"figures": {**found.figures, "itl_median": twice}}))
    assert "Measure on one GPU, or on fewer at once." in CliRunner().invoke(main, words).output
