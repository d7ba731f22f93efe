"""Order, warm-up trials, dropped pairs, and what is on disk when."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from fake_collector import FakeCollector, FakeSpec
from fake_nvml import FakeMachine, fake_uuid
from hand_made import BASE, BOTH, HEAD, cell, run

from perfgate.capture.engine import LONGEST_SOCKETS, visit_environment
from perfgate.capture.job import Job
from perfgate.capture.pace import Step
from perfgate.capture.session import Session
from perfgate.machine.cpu_load import CpuLoad
from perfgate.machine.processes import Orphan
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Failure, Trial
from perfgate.models import Frozen
from perfgate.record.run_record import Record, read_record, record_file
from perfgate.scenario.declaration import Choose, Expect
from perfgate.scenario.plan import Cell, Orders, Plan, head_first
from perfgate.scenario.subject import Subject

pytestmark = pytest.mark.usefixtures("no_orphans")

WORDS = "head: the engine said\n  one\n\n  two"


class Watched(FakeCollector):
    """A fake that notes its jobs and runs ``before`` in front of each.

    Args:
        before: Called with every job; what it raises the collector raises.
        spec: What the builds are like.
        failing: Sides whose judged trials fail.
    """

    def __init__(
        self, before: Callable[[Job], None] = lambda _: None, spec: FakeSpec | None = None, failing: Iterable[Side] = ()
    ) -> None:
        super().__init__(spec)
        self.before = before
        self.failing = tuple(failing)
        self.jobs: list[Job] = []

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """A fake trial, or a failed one."""
        self.jobs.append(job)
        self.before(job)
        trial = super().collect(job, progress)
        if job.side in self.failing and job.pair is not None:
            failure = Failure(code="engine-failed", text=f"{job.side} died")
            trial = trial.model_copy(update={"failure": failure, "iterations": ()})
        return trial

    @property
    def places(self) -> list[tuple[int | None, Side]]:
        """Pair and side of every trial, in the order they were taken."""
        return [(job.pair, job.side) for job in self.jobs]


def raising(error: BaseException, at: int) -> Callable[[Job], None]:
    """Raise ``error`` in front of the trial of that index."""

    def before(job: Job) -> None:
        if job.index == at:
            raise error

    return before


def session(folder: Path, collector: FakeCollector, steps: list[Step] | None = None, **manifest: Any) -> Session:
    """A session on ``folder`` for a run of one cell."""
    folder.mkdir(parents=True, exist_ok=True)

    def note(step: Step | str) -> None:
        if steps is not None and isinstance(step, Step):
            steps.append(step)

    return Session(folder, run([cell()], **manifest), collector, note)


def measure(
    folder: Path, collector: FakeCollector, pairs: int = 4, measured: Cell | None = None, **manifest: Any
) -> Record:
    """The record of one cell after one session."""
    with session(folder, collector, **manifest) as open_session:
        return open_session.measure(measured or cell(), pairs)


def on_disk(folder: Path, measured: Cell | None = None) -> Record:
    """The record as a reader finds it."""
    return read_record(record_file(folder, measured or cell()))


# --- order


def test_warm_up_trials_come_first(tmp_path: Path) -> None:
    """Before the first pair one trial a subject is taken, recorded and never judged."""
    collector = Watched()

    record = measure(tmp_path, collector, pairs=2)

    assert collector.places[:2] == [(None, "base"), (None, "head")]
    assert [t.pair for t in record.trials[:2]] == [None, None]
    assert [t.index for t in record.judged_trials("base") + record.judged_trials("head")] == [
        t.index for side in ("base", "head") for t in record.trials[2:] if t.subject == side
    ]


def test_models_are_built_before_stations_are_threads(tmp_path: Path) -> None:
    """A model that nobody used so far is built by a session, as two threads may not do that at once."""

    class Unused(Frozen):
        value: int

    before = Unused.__pydantic_complete__
    with session(tmp_path, FakeCollector(FakeSpec())):
        built = Unused.__pydantic_complete__

    assert (before, built) == (False, True)


def test_caches_are_one_folder_a_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines run in their trials' folders, so a run folder named relatively must still give absolute caches."""
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    collector = Watched()

    measure(Path("run"), collector, pairs=1)

    caches = {(job.side, job.cache_folder) for job in collector.jobs}
    assert len(caches) == 2
    assert all(folder.is_absolute() for _, folder in caches)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("orders", ["blocks", "coins"])
def test_order_of_pairs(tmp_path: Path, seed: int, orders: Orders) -> None:
    """Sides take turns as the seed draws it in the way of the plan; both are kept in the record."""
    collector = Watched()
    manifest = run([cell()])
    manifest = manifest.model_copy(update={"plan": manifest.plan.model_copy(update={"seed": seed, "orders": orders})})

    with Session(tmp_path, manifest, collector, lambda _: None) as open_session:
        record = open_session.measure(cell(), 8)

    places = collector.places[2:]
    assert [pair for pair, _ in places] == [n for n in range(8) for _ in range(2)]
    firsts = [side for _, side in places[::2]]
    assert firsts == ["head" if head_first(seed, "cell", n, orders) else "base" for n in range(8)]
    assert [t.position for t in record.trials[2:]] == [0, 1] * 8
    assert (record.seed, record.orders) == (seed, orders)


def test_further_look(tmp_path: Path) -> None:
    """Measuring for the next look takes only what is missing, without warming up again."""
    collector = Watched()

    with session(tmp_path, collector) as open_session:
        assert len(open_session.measure(cell(), 4).pairs()) == 4
        taken = len(collector.jobs)
        assert len(open_session.measure(cell(), 6).pairs()) == 6

    assert [pair for pair, _ in collector.places[taken:]] == [4, 4, 5, 5]


def test_second_visit(tmp_path: Path) -> None:
    """A later session goes on with the record: a visit more, warm-up trials again, pairs numbered on."""
    measure(tmp_path, Watched(), pairs=2)
    collector = Watched()

    record = measure(tmp_path, collector, pairs=3)

    assert collector.places[:2] == [(None, "base"), (None, "head")]
    assert {pair for pair, _ in collector.places[2:]} == {2}
    assert len(record.visits) == 2
    assert [t.visit for t in record.trials] == [0] * 6 + [1] * 4
    assert [t.index for t in record.trials] == list(range(10))


def test_half_a_pair_is_not_completed(tmp_path: Path) -> None:
    """A pair whose second trial was never taken is left behind; the next visit starts a new one."""
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path, Watched(raising(KeyboardInterrupt(), at=3)))

    record = measure(tmp_path, Watched(), pairs=1)

    assert [base.pair for base, _ in record.pairs()] == [1]


def test_one_side(tmp_path: Path) -> None:
    """With the base alone its trials are counted, one after another."""
    collector = Watched()

    record = measure(tmp_path, collector, pairs=3, subjects={"base": BASE})

    assert collector.places == [(None, "base"), (0, "base"), (1, "base"), (2, "base")]
    assert len(record.judged_trials("base")) == 3


def test_quick(tmp_path: Path) -> None:
    """A quick run takes no warm-up trial."""
    collector = Watched()

    measure(tmp_path, collector, pairs=1, quick=True)

    assert [pair for pair, _ in collector.places] == [0, 0]


def test_what_a_job_says(tmp_path: Path) -> None:
    """Each trial gets an empty folder of its own, its subject, and the cache folder of its side."""
    folders: list[list[Path]] = []
    collector = Watched(lambda job: folders.append(list(job.folder.iterdir())))

    measure(tmp_path, collector, pairs=1)

    assert folders == [[]] * 4
    assert [job.folder for job in collector.jobs] == [tmp_path / "trials" / f"{n:03}" for n in range(4)]
    assert all(job.subject == BOTH[job.side] for job in collector.jobs)
    caches = {job.side: job.cache_folder for job in collector.jobs}
    assert len({*caches.values()}) == 2
    assert not any(cache.parent.exists() for cache in caches.values())


@pytest.mark.parametrize("ranks", [1, 2])
def test_gpus(tmp_path: Path, fake_nvml: FakeMachine, ranks: int) -> None:
    """A trial names the GPUs that its engine took, the visit's machine all that its cells use."""
    FakeMachine.build(fake_nvml.file, {}, {}, {})
    parallel = cell()
    engine = parallel.engine.model_copy(update={"args": {"tensor_parallel_size": ranks}})

    parallel = parallel.model_copy(update={"engine": engine})
    record = measure(tmp_path, Watched(), pairs=1, measured=parallel, plan=Plan(cells=(parallel,), seed=0))

    uuids = tuple(fake_uuid(number) for number in range(ranks))
    assert {t.gpus for t in record.trials} == {uuids}
    assert [gpu.gpu for gpu in record.trials[0].telemetry] == list(uuids)
    machine = record.visits[0].machine
    assert [(gpu.name, gpu.uuid) for gpu in machine.gpus] == [("NVIDIA H200", uuid) for uuid in uuids]
    assert (machine.driver, machine.cuda) == ("580.159.04", "13.0")


def test_names_of_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The visit records the names of the variables that reached the engines, and no value."""
    monkeypatch.setenv("LANG", "C.SECRET")
    collector = Watched()

    record = measure(tmp_path, collector, pairs=1)

    assert collector.jobs[0].environment["LANG"] == "C.SECRET"
    assert "LANG" in record.visits[0].environment
    assert "C.SECRET" not in record_file(tmp_path, cell()).read_text()


@pytest.mark.parametrize(("why", "kept"), [("no cgroup v2 is mounted here", "subreaper"), ("", "cgroup")])
def test_what_ends_the_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str, kept: str) -> None:
    """The visit records whether its trials had cgroups."""
    monkeypatch.setattr("perfgate.capture.session.why_none", lambda: why)

    assert measure(tmp_path, Watched(), pairs=1).visits[0].processes == kept


# --- failures


@pytest.mark.parametrize(("fails", "next_index"), [(2, 3), (3, 4)])
def test_failed_pair_is_replaced(tmp_path: Path, fails: int, next_index: int) -> None:
    """A failed trial drops its pair whole: a partner not yet taken is not, one taken does not count."""
    collector = Watched(spec=FakeSpec(failures={fails: "engine-failed"}))

    record = measure(tmp_path, collector, pairs=3)

    assert [base.pair for base, _ in record.pairs()] == [1, 2, 3]
    assert {pair: t.index for pair, t in record.dropped_pairs().items()} == {0: fails}
    assert [t.pair for t in record.trials if t.index == next_index] == [1]
    assert record.stopped is None


@pytest.mark.parametrize(
    ("failing", "cap", "code"),
    [
        (["head"], 0, "one-sided-failures"),
        (["head"], 2, "one-sided-failures"),
        (["base"], 2, "one-sided-failures"),
        (["base", "head"], 1, "dropped-pairs"),
        (["base", "head"], 2, "dropped-pairs"),
    ],
)
def test_cap(tmp_path: Path, failing: list[Side], cap: int, code: str) -> None:
    """More dropped pairs than allowed stop the cell, after one side's failures under a code of their own."""
    capped = cell(max_dropped_pairs=cap)

    record = measure(tmp_path, Watched(failing=failing), measured=capped)

    assert len(record.dropped_pairs()) == cap + 1
    assert record.stopped is not None
    assert record.stopped.code == code
    assert f"{cap + 1} dropped, failing on {' and '.join(failing)}" in record.stopped.text
    assert f"the last in trial {record.trials[-1].index}: engine-failed: " in record.stopped.text
    assert on_disk(tmp_path, capped) == record


def test_more_drops_than_chance_puts_on_one_side(tmp_path: Path) -> None:
    """Below the cap a cell ends once its drops are too many on one side for a fair machine: the ninth of nine."""
    record = measure(tmp_path, Watched(failing=["head"]), measured=cell(max_dropped_pairs=20))

    assert len(record.dropped_pairs()) == 9
    assert record.stopped is not None
    assert record.stopped.code == "one-sided-failures"
    assert "9 dropped, failing on head (9 on head: chance alone does that in 0.39 % of runs)" in record.stopped.text


def test_drops_of_an_earlier_visit_count(tmp_path: Path) -> None:
    """What was dropped in an earlier visit counts in the next, and what a cell ended for stays so without a trial."""
    throttled = cell(max_dropped_pairs=3)
    plan = Plan(cells=(throttled,), seed=0)
    with pytest.raises(KeyboardInterrupt):
        measure(
            tmp_path,
            Watched(failing=["head"], before=raising(KeyboardInterrupt(), at=6)),
            measured=throttled,
            plan=plan,
        )
    assert 0 < len(on_disk(tmp_path, throttled).dropped_pairs()) < 4
    measure(tmp_path, Watched(failing=["head"]), measured=throttled, plan=plan)
    third = Watched()

    record = measure(tmp_path, third, measured=throttled, plan=plan)

    assert len(record.dropped_pairs()) == 4
    assert record.stopped is not None
    assert record.stopped.code == "one-sided-failures"
    assert [place for place in third.places if place[0] is not None] == []


def test_refused_starts_count_for_their_visit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no engine was started nothing of a subject can have chosen the pair: the next visit goes on."""
    orphan = Orphan(pid=4242, name="python", mark="old-run:1:100")
    left: list[Orphan] = []
    monkeypatch.setattr("perfgate.capture.station.find_orphans", lambda _: tuple(left))
    first = measure(tmp_path, Watched(lambda job: left.append(orphan) if job.index == 3 else None))
    left.clear()

    second = measure(tmp_path, Watched())

    assert first.stopped is not None
    assert first.stopped.code == "dropped-pairs"
    assert [trial.started for trial in first.dropped_pairs().values()] == [False] * 3
    assert (len(second.pairs()), second.stopped) == (4, None)


def test_one_side_alone_fails(tmp_path: Path) -> None:
    """Where only one side is measured, its failures are no matter of sides."""
    record = measure(tmp_path, Watched(failing=["base"]), subjects={"base": BASE})

    assert record.stopped is not None
    assert record.stopped.code == "dropped-pairs"


@pytest.mark.parametrize(("index", "side"), [(0, "base"), (1, "head")])
def test_failed_warm_up_trial(tmp_path: Path, index: int, side: str) -> None:
    """A failed warm-up trial stops the cell before any pair and names the side."""
    collector = Watched(spec=FakeSpec(failures={index: "engine-start-failed"}))

    record = measure(tmp_path, collector)

    assert len(collector.jobs) == index + 1
    assert record.stopped is not None
    assert record.stopped.code == "engine-start-failed"
    assert record.stopped.text.startswith(f"{side}: ")
    assert on_disk(tmp_path) == record


@pytest.mark.parametrize("code", ["client-late", "gpu-busy"])
def test_a_warm_up_trial_that_was_disturbed_has_warmed_up(tmp_path: Path, code: str) -> None:
    """What says nothing of the build stops nothing: its caches are filled, and pairs are taken."""
    record = measure(tmp_path, Watched(spec=FakeSpec(failures={1: code})), pairs=2)

    assert record.stopped is None
    assert record.measured() == 2


class Unstarted(Watched):
    """A fake whose engines do not start, each with the next of these errors; it starts once there is none left."""

    def __init__(self, *errors: str) -> None:
        super().__init__()
        self.errors = list(errors)

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """A trial whose engine raised, or a fake one."""
        self.jobs.append(job)
        if not self.errors:
            return FakeCollector.collect(self, job, progress)
        failure = Failure(code="engine-start-failed", text=self.errors.pop(0))
        return job.trial(t0_utc="2026-01-01T00:00:00+00:00", duration_ns=1, failure=failure)


TYPING = "TypeError: EngineArgs.__init__() got an unexpected keyword argument 'max_num_seq'"
FULL = "ValueError: Available memory on node 0 (16.81/23.54 GiB) is less than desired"


def stops(folder: Path, collector: Watched, cells: int) -> list[Failure | None]:
    """What stopped each of several cells of one engine, in one visit."""
    measured = [cell(f"cell-{number}") for number in range(cells)]
    with session(folder, collector) as open_session:
        return [open_session.measure(one, 2).stopped for one in measured]


@pytest.mark.parametrize(
    ("errors", "starts"),
    [
        ([TYPING] * 4, 1),
        (["ValidationError: 1 validation error for SchedulerConfig"] * 4, 1),
        ([FULL] * 4, 2),
        ([FULL, FULL.replace("16.81", "16.90"), FULL.replace("16.81", "16.94"), FULL], 4),
    ],
    ids=["unknown argument", "refused value", "twice the same", "each another"],
)
def test_a_start_that_can_only_fail_again(tmp_path: Path, errors: list[str], starts: int) -> None:
    """The engine of several cells is not started again after an error of its arguments, or one seen twice."""
    collector = Unstarted(*errors)

    found = stops(tmp_path, collector, 4)

    assert len(collector.jobs) == starts
    assert [one.code for one in found if one] == ["engine-start-failed"] * 4
    assert all(one.text.startswith(f"base: {error[:10]}") for one, error in zip(found, errors, strict=True) if one)


def test_why_it_is_not_started_again(tmp_path: Path) -> None:
    """The text says the engine's own error and why nothing was started."""
    first, second = stops(tmp_path, Unstarted(TYPING), 2)

    assert first == Failure(code="engine-start-failed", text=f"base: {TYPING}")
    assert second is not None
    assert second.text == f"base: {TYPING} (the engine refuses its arguments, so it is not started again)"


def test_another_engine_is_started(tmp_path: Path) -> None:
    """What one engine refused is no matter of a cell with other arguments."""
    collector = Unstarted(TYPING)
    other = cell("other")
    other = other.model_copy(update={"engine": other.engine.model_copy(update={"args": {"max_num_seqs": 4}})})

    with session(tmp_path, collector) as open_session:
        open_session.measure(cell(), 1)
        record = open_session.measure(other, 1)

    assert (record.stopped, len(record.pairs())) == (None, 1)


def test_pairs_that_do_not_start(tmp_path: Path) -> None:
    """Below the cap too, a pair is not begun again once two starts of a side ended in one error."""

    class Late(Unstarted):
        def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
            if job.pair is None or job.side == "base":
                return Watched.collect(self, job, progress)
            return super().collect(job, progress)

    record = measure(tmp_path, Late(*[FULL] * 9), measured=cell(max_dropped_pairs=8))

    assert len(record.dropped_pairs()) == 2
    assert record.stopped is not None
    assert record.stopped.text == f"head: {FULL} (2 starts ended in this error, so there is no other)"


def test_a_start_that_fails_now_and_then(tmp_path: Path) -> None:
    """An engine that started in between can start: the same error some pairs later is a dropped pair, no end."""

    class NowAndThen(Unstarted):
        def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
            if job.side == "head" and job.pair in (0, 3):
                return super().collect(job, progress)
            return Watched.collect(self, job, progress)

    record = measure(tmp_path, NowAndThen(FULL, FULL), pairs=4)

    assert (record.stopped, len(record.dropped_pairs()), record.measured()) == (None, 2, 4)


def test_a_metric_that_no_trial_has(tmp_path: Path) -> None:
    """A side whose warm-up trial has no value of a gated metric stops the cell before any pair is taken."""

    class Stepless(Watched):
        def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
            trial = super().collect(job, progress)
            without = tuple(one.model_copy(update={"itl_ns": ()}) for one in trial.iterations)
            return trial.model_copy(update={"iterations": without}) if job.side == "head" else trial

    collector = Stepless()

    record = measure(tmp_path, collector)

    assert collector.places == [(None, "base"), (None, "head")]
    assert record.stopped == Failure(code="metric-missing", text="head: its warm-up trial has no value of itl_median")


def test_words_stay_whole(tmp_path: Path) -> None:
    """What a probe says goes into the record line by line, after the side; no engine is started for it."""

    class Unready(Watched):
        def probe(self, cell: Cell, subject: Subject) -> Failure | None:  # noqa: ARG002 (the protocol's shape)
            return Failure(code="subject-not-found", text=WORDS) if subject == HEAD else None

    collector = Unready()

    record = measure(tmp_path, collector)

    assert record.stopped == Failure(code="subject-not-found", text=f"head: {WORDS}")
    assert collector.places == [(None, "base")]


def test_orphan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a process of an earlier trial lives no engine is started, and the failure names the process."""
    orphan = Orphan(pid=4242, name="python", mark="old-run:1:100")
    monkeypatch.setattr("perfgate.capture.station.find_orphans", lambda _: (orphan,))
    collector = Watched()

    record = measure(tmp_path, collector)

    assert collector.jobs == []
    assert record.stopped is not None
    assert record.stopped.code == "process-left"
    assert "base: still alive: python (pid 4242, of run old-run)" in record.stopped.text


@pytest.mark.parametrize(
    ("load", "told"),
    [
        (
            CpuLoad(1.9, 2, "pytest (process 7, 1.8)"),
            ["warning: 1.9 of 2 usable cores are busy, most by pytest (process 7, 1.8)"],
        ),
        (CpuLoad(0.1, 2), []),
        (None, []),
    ],
    ids=["busy", "idle", "not counted"],
)
def test_a_busy_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: CpuLoad | None, told: list[str]) -> None:
    """A visit of real engines that begins beside other work says so, and who uses most."""
    monkeypatch.setattr("perfgate.capture.session.look_at_cores", lambda: load)
    steps: list[Step | str] = []
    with Session(tmp_path, run([cell()]), None, steps.append):
        pass
    assert [str(step).partition(": what")[0] for step in steps] == told


@pytest.mark.parametrize("index", [0, 1, 2, 5])
def test_unknown_error(tmp_path: Path, index: int) -> None:
    """An error that no protocol names stops its cell with the traceback; what was measured stays, others go on."""
    other = cell("other")
    collector = Watched(raising(ValueError("no such thing"), at=index))

    with session(tmp_path, collector) as open_session:
        record = open_session.measure(cell(), 4)
        assert len(open_session.measure(other, 4).pairs()) == 4

    assert len(record.trials) == index + 1
    assert record.stopped is not None
    assert record.stopped.code == "internal-error"
    first, *rest = record.stopped.text.splitlines()
    assert first.endswith("ValueError: no such thing")
    assert rest[0] == "Traceback (most recent call last):"
    assert "in before" in record.stopped.text
    assert on_disk(tmp_path) == record


def test_unknown_error_of_a_probe(tmp_path: Path) -> None:
    """An unknown error of the probe stops the cell as one of a trial does."""

    class Broken(Watched):
        def probe(self, cell: Cell, subject: Subject) -> Failure | None:
            raise LookupError(cell.name, subject.python)

    record = measure(tmp_path, Broken())

    assert record.stopped is not None
    assert record.stopped.code == "internal-error"
    assert record.stopped.text.startswith("base: LookupError")


def test_full_disk(tmp_path: Path) -> None:
    """An error of the file system ends the run; the trials before it are on disk."""
    with pytest.raises(OSError, match="No space left"):
        measure(tmp_path, Watched(raising(OSError(28, "No space left on device"), at=4)))

    assert [t.index for t in on_disk(tmp_path).trials] == [0, 1, 2, 3]
    assert list(tmp_path.glob("cache-*")) == []


# --- on disk


def test_record_after_every_trial(tmp_path: Path) -> None:
    """When a trial begins, all earlier ones are in the record on disk."""
    found: list[int] = []

    def look(job: Job) -> None:
        if job.index:
            found.append(len(on_disk(tmp_path).trials))

    record = measure(tmp_path, Watched(look, FakeSpec(failures={3: "preempted"})), pairs=2)

    assert found == list(range(1, len(record.trials)))
    assert on_disk(tmp_path) == record


@pytest.mark.parametrize("stop", [None, KeyboardInterrupt])
def test_sockets_of_engines_go_with_the_visit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: type[BaseException] | None
) -> None:
    """They are in a folder of the visit, alike for both sides, and nothing stays where temporary files are."""
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")  # noqa: S108 (short enough for a socket)
    seen: list[Path] = []

    def look(job: Job) -> None:
        seen.append(Path(job.environment["VLLM_RPC_BASE_PATH"]))
        with socket.socket(socket.AF_UNIX) as own:
            own.bind(str(seen[-1] / str(uuid.uuid4())))
        if stop is not None and job.pair is not None:
            raise stop

    with pytest.raises(stop) if stop else contextlib.nullcontext():
        measure(tmp_path, Watched(look), pairs=1)
    assert len(seen) == (3 if stop else 4)
    assert len({*seen}) == 1
    assert not seen[0].exists()


def test_files_of_engines_go_with_the_visit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's temporary files too, and where Ray keeps what it finds its cluster by stays as it is."""
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")  # noqa: S108 (short enough for a socket)
    program = "import tempfile; print(tempfile.gettempdir())"
    with visit_environment({}) as environment, visit_environment({"TMPDIR": str(tmp_path)}) as named:
        folder = Path(environment["VLLM_RPC_BASE_PATH"])
        places = [
            subprocess.run([sys.executable, "-c", program], env=own, capture_output=True, text=True, check=True).stdout
            for own in (environment, named)
        ]
        (folder / "vllm_dist_0").write_text("")
        assert "TMPDIR" not in environment
        assert named["TMPDIR"] == str(tmp_path)
    assert places == [f"{folder}\n", f"{tmp_path}\n"]
    assert not folder.exists()


def test_sockets_are_left_to_the_engine_where_a_folder_would_be_too_deep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system refuses longer paths of sockets, of which it counts bytes: no engine of several processes starts."""
    deep = tmp_path / ("d" * LONGEST_SOCKETS)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with visit_environment({"LANG": "C"}) as environment:
        assert environment == {"LANG": "C"}


def test_sockets_are_left_to_the_engine_where_no_folder_can_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full or unwritable place for temporary files stops no visit."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with visit_environment({"LANG": "C"}) as environment:
        assert environment == {"LANG": "C"}


@pytest.mark.parametrize("index", [1, 2, 5])
def test_interrupt(tmp_path: Path, index: int) -> None:
    """Ctrl-C passes through, keeps every finished trial and takes the caches away."""
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path, Watched(raising(KeyboardInterrupt(), at=index)))

    assert [t.index for t in on_disk(tmp_path).trials] == list(range(index))
    assert list(tmp_path.glob("cache-*")) == []


# --- progress


def test_steps(tmp_path: Path) -> None:
    """Progress tells the cell, trial, side, pair and target at every phase, and hands over each finished trial."""
    steps: list[Step] = []

    with session(tmp_path, Watched(), steps) as open_session:
        record = open_session.measure(cell(), 2)

    assert [s.finished for s in steps if s.finished] == list(record.trials)
    assert [(s.trial, s.side, s.pair, s.done) for s in steps if s.finished] == [
        (t.index, t.subject, t.pair, max(t.index - 1, 0) // 2) for t in record.trials
    ]
    assert {(s.cell, s.target) for s in steps} == {("cell", 2)}
    assert steps[0].phase == "iteration 1 of 1"


def test_time_left(tmp_path: Path) -> None:
    """The time left is the median trial times the trials left, known as soon as one has ended, and none at the end."""
    steps: list[Step] = []

    with session(tmp_path / "run", Watched(spec=FakeSpec(restart_sd=0, iteration_sd=0)), steps) as open_session:
        record = open_session.measure(cell(), 3)

    trial_s = record.trials[0].duration_ns / 1e9
    assert [s.seconds_left for s in steps if s.finished] == [
        pytest.approx(n * trial_s, rel=1e-6) for n in (7, 6, 5, 4, 3, 2, 1, 0)
    ]


def test_time_left_from_the_first_step(tmp_path: Path) -> None:
    """What the scenario expects of a trial, or an earlier run's record shows, gives the time left before any ends."""
    expecting = cell(expect=Expect.model_validate({"trial_s": 10.0, "pair_sd": "1%"}))

    def first_step(folder: Path, measured: Cell) -> Step:
        steps: list[Step] = []
        with session(folder, Watched(), steps) as open_session:
            open_session.measure(measured, 2)
        return steps[0]

    unknown = first_step(tmp_path / "runs" / "a", cell())
    known = first_step(tmp_path / "elsewhere" / "b", expecting)
    earlier = first_step(tmp_path / "runs" / "c", cell())

    assert unknown.seconds_left is None
    assert known.seconds_left == pytest.approx(6 * 10.0, abs=1.0)
    assert earlier.seconds_left == pytest.approx(6 * 25.0, rel=0.1)


# --- iterations that are chosen


def _open_number() -> Cell:
    """A cell whose number of iterations is left open."""
    plain = cell()
    measure = {"iterations": 6, "choose": Choose(least=2, most=30)}
    return plain.model_copy(update={"measure": plain.measure.model_copy(update=measure)})


def _measured(folder: Path, collector: FakeCollector, pairs: int = 4, **manifest: Any) -> Record:
    plan = Plan(cells=(_open_number(),), seed=0)
    return measure(folder / "run", collector, pairs, _open_number(), plan=plan, **manifest)


def test_iterations_are_chosen_before_the_first_pair(tmp_path: Path) -> None:
    """Warm-up trials have the declared number, and all that are judged one that follows from them, on both sides."""
    collector = Watched()
    record = _measured(tmp_path, collector)

    assert record.chosen is not None
    assert record.chosen.iterations != 6
    assert [job.iterations for job in collector.jobs[:2]] == [None, None]
    assert {job.iterations for job in collector.jobs[2:]} == {record.chosen.iterations}
    assert {len(t.iterations) for t in record.trials[2:]} == {record.chosen.iterations}
    assert on_disk(tmp_path / "run", _open_number()).chosen == record.chosen


def test_a_number_that_was_chosen_stays(tmp_path: Path) -> None:
    """A later visit of the run, whose warm-up trials may tell otherwise, goes on with the first one's."""
    first = _measured(tmp_path, Watched(), 1)
    later = _measured(tmp_path, Watched(spec=FakeSpec(iteration_sd=0.2)), 3)

    assert later.chosen == first.chosen is not None
    assert {len(t.iterations) for t in later.trials if t.pair is not None} == {first.chosen.iterations}


def test_nothing_is_chosen_for_runs_of_a_fixed_size(tmp_path: Path) -> None:
    """A quick run, and one side alone, have what the scenario declares: there is no look to decide soonest at."""
    alone: Side = "base"
    quick = _measured(tmp_path / "quick", Watched(), 1, quick=True)
    one = _measured(tmp_path / "alone", Watched(), 2, subjects={alone: BASE})
    assert quick.chosen is None
    assert one.chosen is None
    assert {len(t.iterations) for t in (*quick.trials, *one.trials)} == {6}
