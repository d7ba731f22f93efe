"""Stations: pairs of one cell on several GPUs of a host at once."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from fake_collector import FakeCollector, FakeSpec
from fake_nvml import FakeMachine, fake_uuid
from hand_made import BASE, cell, run
from perfgate_process import DEADLINE_S

from perfgate.capture.engine import APART, BLOCKS, engine_settings
from perfgate.capture.gpus import VISIBLE, find_gpus, stations
from perfgate.capture.job import Job
from perfgate.capture.pace import Step
from perfgate.capture.pinning import shares_of_cores
from perfgate.capture.session import Session
from perfgate.capture.station import at_once, places
from perfgate.errors import InterruptedRunError, NotMeasuredError, RecordError, UsageError
from perfgate.machine.locks import hold_devices, state_folder
from perfgate.machine.processes import AHEAD, Ladder
from perfgate.metrics.trial import Failure, Trial
from perfgate.record.manifest import check_sequence
from perfgate.record.run_record import Record
from perfgate.scenario.declaration import Choose

pytestmark = pytest.mark.usefixtures("no_orphans")


class AtOnce(FakeCollector):
    """A fake that several stations share.

    Args:
        before: Called with each job, in its station's thread.
        failing: A GPU's name and the code that its judged trials fail with.
    """

    def __init__(self, before: Callable[[Job], None] = lambda _: None, failing: dict[str, str] | None = None) -> None:
        super().__init__(FakeSpec(restart_sd=0.0003))
        self.before, self.failing = before, failing or {}
        self.jobs: list[Job] = []

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """A fake trial, or a failed one."""
        self.jobs.append(job)
        self.before(job)
        trial = super().collect(job, progress)
        code = self.failing.get(job.environment[VISIBLE])
        failure = Failure(code=code, text="so it is told") if code and job.pair is not None else trial.failure
        return trial.model_copy(update={"failure": failure})


@pytest.fixture(autouse=True)
def _quiet_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host on which it is known that stations do nothing to one another."""
    monkeypatch.setattr("perfgate.capture.session.check_neighbours", lambda *_: None)


@pytest.fixture
def four_gpus(fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeMachine:
    """A host with four GPUs, of which none is in use."""
    monkeypatch.delenv(VISIBLE, raising=False)
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))
    return FakeMachine.build(fake_nvml.file, {}, {}, {}, {})


def session(
    folder: Path, collector: FakeCollector, gpus: str = "all", said: list[Any] | None = None, **more: Any
) -> Session:
    """A session of one cell on these GPUs."""
    folder.mkdir(exist_ok=True)
    told = [] if said is None else said
    return Session(folder, run([cell()], **more), collector, told.append, gpus=gpus)


def measure(folder: Path, collector: FakeCollector, gpus: str = "all", pairs: int = 4, **more: Any) -> Record:
    """The record of one session."""
    with session(folder, collector, gpus, **more) as opened:
        return opened.measure(cell(), pairs)


def meeting(parties: int) -> Callable[[Job], None]:
    """Have the first trials of so many pairs wait for each other: one that comes late breaks it."""
    barrier = threading.Barrier(parties, timeout=DEADLINE_S)

    def meet(job: Job) -> None:
        if job.pair is not None and job.position == 0:
            barrier.wait()

    return meet


# --- pairs


@pytest.mark.usefixtures("four_gpus")
def test_the_first_look_is_one_round(tmp_path: Path) -> None:
    """Four pairs are under way at once on four GPUs, both trials of each on its own, after a warm-up of either side."""
    collector = AtOnce(meeting(4))

    record = measure(tmp_path / "run", collector)

    assert {base.gpus for base, _ in record.pairs()} == {(fake_uuid(n),) for n in range(4)}
    assert all(base.gpus == head.gpus for base, head in record.pairs())
    for number in range(4):
        here = [job for job in collector.jobs if job.environment[VISIBLE] == str(number)]
        assert [(job.pair is None, job.side) for job in here[:2]] == [(True, "base"), (True, "head")]
        assert len(here) == 4
    assert [[gpu.uuid for gpu in gpus] for gpus in record.visits[0].stations] == [[fake_uuid(n)] for n in range(4)]
    assert sorted(trial.index for trial in record.trials) == list(range(16))
    check_sequence([record])


@pytest.mark.usefixtures("four_gpus")
def test_a_round_of_several_heads_has_one_gpu(tmp_path: Path) -> None:
    """Four rounds are under way at once on four GPUs; a head is compared with the base of its own card."""
    heads = {name: BASE.model_copy(update={"python": f"/envs/{name}/bin/python"}) for name in ("a", "b")}
    folder = tmp_path / "run"
    folder.mkdir()
    collector = AtOnce()

    with Session(
        folder, run([cell()], subjects={"base": BASE}, heads=heads), collector, lambda _: None, gpus="all"
    ) as own:
        record = own.measure(cell(), 4, heads=("a", "b"))

    for head in heads:
        pairs = record.of(head).pairs()
        assert {base.gpus for base, _ in pairs} == {(fake_uuid(n),) for n in range(4)}
        assert all(base.gpus == taken.gpus for base, taken in pairs)
    assert len(record.trials) == 4 * 3 * 2
    check_sequence([record])


@pytest.mark.usefixtures("four_gpus")
def test_only_pairs_that_a_look_needs_are_taken(tmp_path: Path) -> None:
    """For two pairs more two stations go on, those that have warmed up."""
    collector = AtOnce()
    with session(tmp_path / "run", collector) as opened:
        opened.measure(cell(), 4)
        taken = len(collector.jobs)
        record = opened.measure(cell(), 6)
    assert len(record.pairs()) == 6
    assert {job.environment[VISIBLE] for job in collector.jobs[taken:]} <= {"0", "1"}
    assert all(job.pair is not None for job in collector.jobs[taken:])


@pytest.mark.usefixtures("four_gpus")
def test_what_is_a_stations_own(tmp_path: Path) -> None:
    """Engines side by side share no cache, no mark, no port and no folder."""
    collector = AtOnce()
    measure(tmp_path / "run", collector)
    by_station = {job.station: job for job in collector.jobs if job.side == "base"}
    assert len(by_station) == 4
    for of in (
        lambda job: job.cache_folder, lambda job: job.owner, lambda job: job.folder,
        lambda job: engine_settings(job.cache_folder, job.station)["VLLM_PORT"],
    ):  # fmt: skip
        assert len({of(job) for job in by_station.values()}) == 4
    assert len({APART * station % BLOCKS for station in range(8)}) == 8


def test_one_station_is_as_before(tmp_path: Path, four_gpus: FakeMachine) -> None:
    """A GPU that is named alone is measured on in the main thread, and the record lists no stations."""
    threads = set[str]()
    collector = AtOnce(lambda _: threads.add(threading.current_thread().name))
    record = measure(tmp_path / "run", collector, "2", subjects={"base": BASE})
    assert {trial.gpus for trial in record.trials} == {(four_gpus.gpu(2).uuid,)}
    assert threads == {threading.main_thread().name}
    assert "stations" not in record.model_dump(mode="json")["visits"][0]


@pytest.mark.usefixtures("four_gpus")
def test_engines_of_two_gpus(tmp_path: Path) -> None:
    """A tensor-parallel cell takes its GPUs in groups."""
    wide = cell()
    wide = wide.model_copy(update={"engine": wide.engine.model_copy(update={"args": {"tensor_parallel_size": 2}})})
    (tmp_path / "run").mkdir()
    with Session(tmp_path / "run", run([wide]), AtOnce(), lambda _: None, gpus="all") as opened:
        record = opened.measure(wide, 4)
    groups = {(fake_uuid(0), fake_uuid(1)), (fake_uuid(2), fake_uuid(3))}
    assert {base.gpus for base, _ in record.pairs()} == groups


@pytest.mark.parametrize(
    ("gpus", "busy", "groups"),
    [
        ("all", [0], ["1,2", "4,5", "6,7"]),
        ("all", [0, 4], ["1,2", "3,7", "5,6"]),
        ("1,2,3,5,6,7", [], ["1,2", "3,5", "6,7"]),
        ("5,1,4,2", [], ["5,1", "4,2"]),
    ],
)
def test_groups_are_of_one_memory_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_nvml: FakeMachine, gpus: str, busy: list[int],
    groups: list[str],
) -> None:  # fmt: skip
    """What is left over of two nodes makes a group of both, held to cores of both; whoever names GPUs groups them."""
    monkeypatch.delenv(VISIBLE, raising=False)
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))
    machine = FakeMachine.build(fake_nvml.file, *({"numa_node": n // 4} for n in range(8)))
    for number in busy:
        machine.gpu(number).update(processes=[{"pid": os.getpid(), "memory_bytes": 2**30}])
    wide = cell()
    wide = wide.model_copy(update={"engine": wide.engine.model_copy(update={"args": {"tensor_parallel_size": 2}})})
    with contextlib.ExitStack() as stack:
        found = find_gpus(stack, run([wide]), {}, gpus, lambda _: None)
    assert [own.environment[VISIBLE] for own in found] == groups
    assert [own.nodes for own in found] == [tuple(int(n) // 4 for n in group.split(",")) for group in groups]


# --- what goes wrong


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize("code", ["gpu-lost", "gpu-busy"])
def test_a_gpu_that_drops_out_ends_no_run(tmp_path: Path, code: str) -> None:
    """The pair is dropped and replaced on another GPU, and nothing more is taken there."""
    collector, said = AtOnce(failing={"1": code}), list[Any]()
    record = measure(tmp_path / "run", collector, said=said)
    assert record.stopped is None
    assert len(record.pairs()) == 4
    assert fake_uuid(1) not in {base.gpus[0] for base, _ in record.pairs()}
    assert [trial.gpus for trial in record.dropped_pairs().values()] == [(fake_uuid(1),)]
    assert [
        text for text in said if isinstance(text, str) and text.startswith(f"GPU 1 is left out from here on: {code}")
    ]
    check_sequence([record])


@pytest.mark.usefixtures("four_gpus")
def test_where_every_gpu_fails_the_cell_is_stopped(tmp_path: Path) -> None:
    """The last station never leaves: what it meets ends the cell as it would alone."""
    record = measure(tmp_path / "run", AtOnce(failing=dict.fromkeys("01", "gpu-lost")), "0,1")
    assert record.stopped is not None
    assert record.stopped.code == "gpu-lost"
    assert not record.pairs()


def test_a_busy_gpu_is_left_out(tmp_path: Path, four_gpus: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all those that are free are taken, of those named the others; where none is free nothing is measured."""
    monkeypatch.setattr("perfgate.capture.gpus.IDLE_WAIT_S", 0.0)
    four_gpus.gpu(0).update(processes=[{"pid": os.getpid(), "memory_bytes": 2**30}])
    assert stations(1, {}) == ["1", "2", "3"]
    record = measure(tmp_path / "run", AtOnce(), "0,3", pairs=2)
    assert {trial.gpus for trial in record.trials} == {(fake_uuid(3),)}
    for number in range(4):
        four_gpus.gpu(number).update(processes=[{"pid": os.getpid(), "memory_bytes": 2**30}])
    for gpus in ("all", "0,3"):
        with pytest.raises(NotMeasuredError) as refused:
            measure(tmp_path / "again", AtOnce(), gpus)
        assert refused.value.code == "gpu-busy"


def test_another_model_of_gpu_is_left_out(tmp_path: Path, fake_nvml: FakeMachine) -> None:
    """Stations are alike: pairs of another kind of GPU would be of another machine."""
    FakeMachine.build(fake_nvml.file, {}, {"name": "NVIDIA L4"}, {})
    record = measure(tmp_path / "run", AtOnce())
    assert {trial.gpus[0] for trial in record.trials} == {fake_uuid(0), fake_uuid(2)}


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("gpus", "environment", "words"),
    [
        ("0,0", "", "named twice"),
        ("0,5", "0,1", "does not have all"),
        ("0,1", "", "against other visits"),
    ],
)
def test_what_cannot_be_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: str, environment: str, words: str
) -> None:
    """Names that are not there, and several stations for one side alone, are refused before a trial."""
    if environment:
        monkeypatch.setenv(VISIBLE, environment)
    with pytest.raises(UsageError, match=words):
        measure(tmp_path / "run", AtOnce(), gpus, subjects={"base": BASE})


@pytest.mark.usefixtures("four_gpus")
def test_two_names_of_one_gpu(tmp_path: Path) -> None:
    """Its number and its UUID would make two stations of it."""
    with pytest.raises(UsageError, match=f"{fake_uuid(0)} has two of these names"):
        measure(tmp_path / "run", AtOnce(), f"0,1,{fake_uuid(0)}")


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no space left")])
def test_what_ends_one_station_ends_all(tmp_path: Path, error: BaseException) -> None:
    """An interruption or a full disk ends the visit; trials that are on disk stay, and a later visit goes on."""

    def before(job: Job) -> None:
        if job.pair == 1:
            raise error

    with pytest.raises(type(error)):
        measure(tmp_path / "run", AtOnce(before))
    record = measure(tmp_path / "run", AtOnce(), "3")
    assert len(record.pairs()) == 4
    assert len(record.visits) == 2
    check_sequence([record])


@pytest.mark.usefixtures("four_gpus")
def test_a_second_interruption_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one asks all engines to end, those of later trials too; no station begins another trial."""
    at_work, ended = threading.Barrier(4, timeout=DEADLINE_S), threading.Event()
    asked: list[Any] = []

    def before(job: Job) -> None:
        if job.pair is None:
            return
        AHEAD.add(f"parked for {job.station}")
        at_work.wait()
        if job.station == 3:
            raise KeyboardInterrupt
        ended.wait(DEADLINE_S)

    def end(own: str = "", ladder: Ladder = ()) -> None:
        if own:  # a station, before its trial
            return
        asked.append((len(ladder), {*AHEAD}))
        if len(asked) == 1:
            raise KeyboardInterrupt
        ended.set()

    collector = AtOnce(before)
    with session(tmp_path / "run", collector) as opened:
        monkeypatch.setattr("perfgate.capture.station.end_orphans", end)
        with pytest.raises(KeyboardInterrupt):
            opened.measure(cell(), 8)
    assert asked[:2] == [(3, set()), (1, set())]
    assert sum(job.pair is not None for job in collector.jobs) == 4
    assert not any(thread.name.startswith("perfgate GPU") for thread in threading.enumerate())


def test_an_error_is_told_rather_than_the_end_of_the_budget() -> None:
    """Where one station has no time left and another meets a full disk, the disk is what the user has to know of."""
    one, other = (SimpleNamespace(name=f"GPU {n}", place=SimpleNamespace(held=frozenset())) for n in range(2))
    first: list[threading.Thread] = []
    known = threading.Event()

    def work(station: Any) -> None:
        if station is one:
            first.append(threading.current_thread())
            known.set()
            raise InterruptedRunError("no time left", code="out-of-budget")
        assert known.wait(DEADLINE_S)
        first[0].join(DEADLINE_S)
        raise OSError("no space left")

    both: Any = [one, other]
    with pytest.raises(OSError, match="no space left"):
        at_once(both, work)


@pytest.mark.usefixtures("four_gpus")
def test_budget(tmp_path: Path) -> None:
    """No station begins a pair that would not end in time; those under way are kept."""
    folder = tmp_path / "run"
    folder.mkdir()
    opened = Session(folder, run([cell()]), AtOnce(), lambda _: None, deadline_s=0.0, gpus="all")
    with opened, pytest.raises(InterruptedRunError) as stopped:
        opened.measure(cell(), 4)
    assert (stopped.value.code, stopped.value.text) == ("out-of-budget", "nothing is left of the budget")


def test_locks_of_all(tmp_path: Path, four_gpus: FakeMachine) -> None:
    """Every GPU of the run is held against other runs, and given back."""
    uuids = [four_gpus.gpu(n).uuid for n in (0, 2)]

    def held() -> set[str]:
        return {file.name.removesuffix(".holder") for file in state_folder().glob("*.holder")}

    with session(tmp_path / "run", AtOnce(), "0,2"):
        assert held() == set(uuids)
    assert not held()
    with hold_devices(uuids, "next", lambda _: None, 0.0):
        pass


def test_clocks_of_all(tmp_path: Path, four_gpus: FakeMachine) -> None:
    """Clocks are locked on every GPU of the run, and on no other, and given free."""
    locked = cell()
    locked = locked.model_copy(update={"clocks": locked.clocks.model_copy(update={"mode": "lock", "sm_mhz": 1500})})
    seen: list[list[int | None]] = []
    collector = AtOnce(lambda _: seen.append([four_gpus.gpu(n).locked[0] for n in range(4)]))
    folder = tmp_path / "run"
    folder.mkdir()
    with Session(folder, run([locked]), collector, lambda _: None, gpus="0,2") as opened:
        opened.measure(locked, 2)
    assert seen
    assert all(clocks == [1500, None, 1500, None] for clocks in seen)
    assert all(four_gpus.gpu(n).locked == (None, None) for n in range(4))


@pytest.mark.parametrize("gpus", ["all", "0,1"])
def test_without_a_gpu(tmp_path: Path, gpus: str) -> None:
    """Where there is none, several stations are refused: engines on one CPU would disturb each other."""
    with pytest.raises(NotMeasuredError) as refused:
        measure(tmp_path / "run", AtOnce(), gpus)
    assert refused.value.code == "gpu-missing"


# --- records


@pytest.mark.usefixtures("four_gpus")
def test_pairs_that_a_killed_visit_had_begun(tmp_path: Path) -> None:
    """Numbers without a trial may be as many as other stations had under way, and a later visit takes these first."""
    record = measure(tmp_path / "run", AtOnce())
    killed = record.model_copy(update={"trials": tuple(t for t in record.trials if t.pair not in (0, 2))})
    check_sequence([killed])
    alone = killed.visits[0].model_copy(update={"stations": ()})
    with pytest.raises(RecordError, match="timed pair 0 is missing"):
        check_sequence([killed.model_copy(update={"visits": (alone,)})])


@pytest.mark.usefixtures("four_gpus")
def test_no_pair_is_missing_before_a_look(tmp_path: Path) -> None:
    """When a look was reached nothing was under way, so a gap below it was made afterwards."""
    record = measure(tmp_path / "run", AtOnce(), pairs=5)
    edited = record.model_copy(update={"trials": tuple(t for t in record.trials if t.pair != 1)})
    with pytest.raises(RecordError, match="timed pair 1 is missing"):
        check_sequence([edited])


@pytest.mark.usefixtures("four_gpus")
def test_all_pairs_have_as_many_iterations(tmp_path: Path) -> None:
    """Where the first station's warm-up tells nothing, what a later one's could tell chooses nothing any more."""
    begun = threading.Event()
    warmed_up = threading.Barrier(2, timeout=DEADLINE_S)

    class Disturbed(AtOnce):
        def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
            if job.station == 0 and job.pair is not None and not begun.is_set():
                begun.set()
                warmed_up.wait()
            if job.station == 1 and job.pair is None:
                assert begun.wait(DEADLINE_S)
            if job.station == 1 and job.pair is not None and job.position == 0 and not self.seen:
                self.seen.append(job)
                warmed_up.wait()
            trial = super().collect(job, progress)
            spoilt = Failure(code="gpu-throttled", text="so it is told") if job.station == 0 else None
            return trial.model_copy(update={"failure": spoilt}) if job.pair is None else trial

        seen: ClassVar[list[Job]] = []

    chosen = cell(choose=Choose(least=2, most=50))
    chosen = chosen.model_copy(update={"measure": chosen.measure.model_copy(update={"iterations": 4})})
    folder = tmp_path / "run"
    folder.mkdir()
    with Session(folder, run([chosen]), Disturbed(), lambda _: None, gpus="0,1") as opened:
        record = opened.measure(chosen, 4)
    assert {len(trial.iterations) for pair in record.pairs() for trial in pair} == {4}


# --- what people see


@pytest.mark.usefixtures("four_gpus")
def test_progress_names_the_station(tmp_path: Path) -> None:
    """Each step says on which GPU; of one station alone nothing is said."""
    said = list[Any]()
    measure(tmp_path / "run", AtOnce(), said=said)
    assert {step.station for step in said if isinstance(step, Step)} == {f"GPU {n}" for n in range(4)}
    said.clear()
    measure(tmp_path / "alone", AtOnce(), "1", said=said)
    assert {step.station for step in said if isinstance(step, Step)} == {""}


# --- cores


def nodes(folder: Path, lists: Collection[str]) -> Path:
    """A description of processors whose threads 0 and 8, 1 and 9 and so on share a core."""
    for number, cores in enumerate(lists):
        node = folder / "node" / f"node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(f"{cores}\n")
    for number in range(16):
        topology = folder / "cpu" / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{number % 8},{number % 8 + 8}\n")
    return folder


def test_cores_are_of_the_gpus_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stations of one node share its cores, whole ones, by their GPUs, and none is in two stations."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    folder = nodes(tmp_path, ["0-3,8-11", "4-7,12-15"])
    halves = [{0, 1, 8, 9}, {2, 3, 10, 11}]
    assert shares_of_cores([[0], [0], [1]], folder) == [*halves, {*range(4, 8), *range(12, 16)}]
    assert shares_of_cores([[None], [0, 0]], folder) == [frozenset(), {*range(4), *range(8, 12)}]
    assert shares_of_cores([[0], [0], [0]], folder) == [frozenset()] * 3
    assert shares_of_cores([[5]], folder) == [frozenset()]
    assert shares_of_cores([[0, 1], [0, 1]], folder) == [
        {0, 1, 8, 9, 4, 5, 12, 13},
        {2, 3, 10, 11, 6, 7, 14, 15},
    ]
    assert shares_of_cores([[0, None], [0], [1]], folder)[1:] == [
        {*range(4), *range(8, 12)},
        {*range(4, 8), *range(12, 16)},
    ]


@pytest.mark.parametrize(("usable", "cores"), [(16, 4), (4, 2)])
def test_cores_that_a_station_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_nvml: FakeMachine, usable: int, cores: int
) -> None:
    """Two stations on one of two nodes have the cores of that one, and no more than a cgroup allows."""
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr("perfgate.capture.station.usable_cores", lambda: usable)
    folder = nodes(tmp_path, ["0-3,8-11", "4-7,12-15"])
    monkeypatch.setattr("perfgate.capture.station.shares_of_cores", lambda own: shares_of_cores(own, folder))
    FakeMachine.build(fake_nvml.file, {}, {})
    with contextlib.ExitStack() as stack:
        found = find_gpus(stack, run([cell()]), {}, "0,1", lambda _: None)
        assert [place.cores for place in places("run", found)] == [cores] * 2


@pytest.mark.usefixtures("four_gpus")
def test_engines_are_held_to_their_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a station starts runs on its cores; perfgate itself stays where it was."""
    held = threading.local()
    monkeypatch.setattr("os.sched_setaffinity", lambda _, cores: setattr(held, "cores", cores))
    monkeypatch.setattr("perfgate.capture.station.shares_of_cores", lambda all_: [frozenset({7})] * len(all_))
    seen = set[object]()
    with session(tmp_path / "run", AtOnce(lambda _: seen.add(getattr(held, "cores", None)))) as opened:
        opened.measure(cell(), 4)
        opened.measure(cell(), 5)  # one of them alone
    assert seen == {frozenset({7})}
    assert not hasattr(held, "cores")
