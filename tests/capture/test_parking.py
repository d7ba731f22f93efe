"""Imports hidden: a worker is parked during the trial before its own, and nothing of it is left whatever happens."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from hand_made import gate, run
from perfgate_process import DEADLINE_S, PerfgateProcess, marked_processes, stub_words
from stub_engine import bare_python, leave_two_traces, write_stub

from perfgate.calls.call_difference import figure_lines
from perfgate.capture.driver_protocol import Launch
from perfgate.capture.job import Job
from perfgate.capture.pace import Step
from perfgate.capture.parking import SWITCH, Parking, hides_imports
from perfgate.capture.session import Session
from perfgate.capture.timing import Timed
from perfgate.capture.trial_taking import take_trial
from perfgate.capture.vllm_driver import VllmDriver
from perfgate.capture.worker import Limit, Worker
from perfgate.machine.children import Child, spawn
from perfgate.machine.processes import AHEAD, CHILD, OWNER, environment_of, owner_mark, wait_until
from perfgate.machine.sealed_folders import Seal, Store
from perfgate.machine.supervisor import SUPERVISOR
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Trial
from perfgate.record.run_record import Record, read_records, read_run
from perfgate.scenario.declaration import Choose
from perfgate.scenario.plan import Cell, head_first
from perfgate.scenario.schedule import CallTrials
from perfgate.scenario.subject import Subject

LIMITS = ", start_timeout: 60s, iteration_timeout: 60s"
RUN = "parking"


@pytest.fixture(autouse=True)
def switched_on(nobody_parked: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:  # noqa: ARG001 (goes first)
    """Workers are parked on any machine, and after the test none is."""
    monkeypatch.setenv(SWITCH, "1")
    yield
    assert set() == AHEAD


@pytest.fixture
def subjects(tmp_path: Path) -> Callable[..., dict[Side, Subject]]:
    """A function that makes two builds of the stand-in, the head with a fault."""
    write_stub(tmp_path / "stub")
    python = bare_python(tmp_path / "env")

    def both(mode: str = "") -> dict[Side, Subject]:
        base = Subject(python=python, path=(str(tmp_path / "stub"),), env={"STUB_MODE": ""})
        return {"base": base, "head": base.model_copy(update={"env": {"STUB_MODE": mode}})}

    return both


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What passes between perfgate and its workers: a request or ``parked``, and the worker's process."""
    heard: list[tuple[str, int]] = []
    ask, answer = Worker.ask, Worker.answer

    def asking(worker: Worker, op: str, limit: Limit, **fields: Any) -> None:
        heard.append((op, worker._child.pid))
        ask(worker, op, limit, **fields)

    def answering(worker: Worker, op: str, limit: Limit) -> dict[str, Any]:
        answered = answer(worker, op, limit)
        if op == "imports":
            heard.append(("parked", worker._child.pid))
        return answered

    monkeypatch.setattr(Worker, "ask", asking)
    monkeypatch.setattr(Worker, "answer", answering)
    return heard


Measure = Callable[..., Record]
JUDGED = 2
"""The first trial that is not one of warm-up."""
MEASURED = ("iteration 2", "iteration 3")
"""How phases begin in which an engine is measured; in the first iteration it warms up."""


@pytest.fixture
def measure(tmp_path: Path, make_cell: Callable[..., Cell], subjects: Callable[..., dict[Side, Subject]]) -> Measure:
    """A function that measures some pairs of the stand-in in a session, and returns the record."""
    folder = tmp_path / "run"
    folder.mkdir()

    def taken(
        mode: str = "", pairs: int = 1, tell: Callable[[Step], None] = lambda _: None, cell: Cell | None = None
    ) -> Record:
        measured = cell or make_cell(limits=LIMITS)
        manifest = run([measured], name=RUN, subjects=subjects(mode))

        def note(step: Step | str) -> None:
            if isinstance(step, Step):
                tell(step)

        with Session(folder, manifest, None, note) as session:
            try:
                return session.measure(measured, pairs)
            finally:
                assert [process.pid for process in workers()] == []
                assert list(folder.glob("parked-*")) == []

    return taken


@dataclass(frozen=True)
class Usual:
    """What was heard and seen of two pairs of a build that behaves, with two iterations behind one of warm-up."""

    folder: Path
    record: Record
    talk: Sequence[tuple[str, int]]
    ages: Sequence[tuple[int, int]]
    ahead: Sequence[int]


USUAL: list[Usual] = []
"""The one that tests look at which change nothing, once it was measured."""


@pytest.fixture
def usual(
    measure: Measure, talk: list[tuple[str, int]], configured: Configured, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Usual:  # fmt: skip
    """That one; with the age of each worker at its start and the time that it was stopped, nanoseconds."""
    if not USUAL:
        ages: list[tuple[int, int]] = []

        def note_age(worker: Worker, _: dict[str, Any]) -> None:
            ages.append((time.monotonic_ns() - worker.born_ns, worker.parked_ns + worker.paused_ns))

        note_answers(monkeypatch, "start", note_age)
        USUAL.append(Usual(tmp_path / "run", measure(pairs=2), talk, ages, configured()[0]))
    return USUAL[0]


def workers(run_name: str = RUN) -> list[psutil.Process]:
    """Live processes that this process started for a run of that name."""
    marked = [one for one in marked_processes(run_name) if one.pid != os.getpid()]
    return [one for one in marked if environment_of(one).get(OWNER) == owner_mark(run_name)]


def note_answers(monkeypatch: pytest.MonkeyPatch, asked: str, note: Callable[[Worker, dict[str, Any]], object]) -> None:
    """From here on call ``note`` with each answer of a worker to that request, before anything else sees it."""
    request = Worker.request

    def asking(worker: Worker, op: str, limit: Limit, **fields: Any) -> dict[str, Any]:
        answered = request(worker, op, limit, **fields)
        if op == asked:
            note(worker, answered)
        return answered

    monkeypatch.setattr(Worker, "request", asking)


def _stopped(process: psutil.Process) -> bool:
    return bool(process.status() == psutil.STATUS_STOPPED)


def warmed_up_thrice(make_cell: Callable[..., Cell]) -> Cell:
    """One whose engines run two iterations before later workers are stopped, also in the first trial."""
    cell, counts = make_cell(limits=LIMITS), Choose(least=2, most=8)
    measure = cell.measure.model_copy(update={"warmup_iterations": 3, "choose": counts})
    return cell.model_copy(update={"measure": measure})


def parked(record: Record) -> list[bool]:
    """Of each trial, whether its worker was parked."""
    return [trial.startup is not None and trial.startup.parked_ns > 0 for trial in record.trials]


# --- what happens when


def begun_in_turn(talk: Sequence[tuple[str, int]], warm_up: int) -> None:
    """Each worker but the first imports before it is asked for its trial, and nobody does between iterations."""
    said = [(op, pid) for op, pid in talk if op != "parked"]
    pids = [pid for op, pid in said if op == "hello"]
    assert len(set(pids)) == len(pids) == 6
    for number, present in enumerate(pids):
        own = [op for op, pid in said if pid == present]
        begun = ["imports", "hello"] if number else ["hello", "imports"]
        assert own == [*begun, "start", *["iterate"] * (warm_up + 2), "stop"]
        first = said.index(("iterate", present))
        assert said[first : first + warm_up + 2] == [("iterate", present)] * (warm_up + 2)
    assert said[:3] == [("imports", pids[1]), ("hello", pids[0]), ("imports", pids[0])]


def test_workers_import_from_the_end_of_an_engine_on(usual: Usual) -> None:
    """Each trial but the first is parked. That one imports before its engine is built; none does between iterations."""
    assert [trial.failure for trial in usual.record.trials] == [None] * 6
    assert parked(usual.record) == [False, *[True] * 5]
    begun_in_turn(usual.talk, 1)


@pytest.mark.slow
@pytest.mark.parametrize("warm_up", [0, 3])
def test_workers_import_with_other_warm_up(
    measure: Measure, make_cell: Callable[..., Cell], talk: list[tuple[str, int]], warm_up: int
) -> None:
    """Also where the first iteration is measured, and where there is time in a longer warm-up."""
    cell = make_cell(limits=LIMITS)
    settings = cell.measure.model_copy(update={"warmup_iterations": warm_up})

    assert parked(measure(pairs=2, cell=cell.model_copy(update={"measure": settings}))) == [False, *[True] * 5]
    begun_in_turn(talk, warm_up)


@pytest.mark.parametrize(("cores", "beside"), [(8, 2), (7, 1)])
@pytest.mark.parametrize("pair", [0, None])
def test_so_many_import_beside_an_engine_that_imported_for_itself(
    jobs: list[Job], driver: VllmDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    cores: int, beside: int, pair: int | None,
) -> None:  # fmt: skip
    """Two with cores to spare, and more once it has measured: but not after warm-up, until its caches are kept."""
    monkeypatch.setattr("perfgate.capture.parking.usable_cores", lambda: cores)
    build = jobs[1].subject.model_copy(update={"env": {"STUB_MODE": "import waits"}})
    ahead = [replace(jobs[1], subject=build, folder=tmp_path / "run" / f"parked-{n}") for n in range(3)]
    with driver.start(replace(jobs[0], ahead=tuple(ahead), pair=pair), Launch()) as engine:
        assert len(driver._parking._started) == beside
        engine.stop()
        assert len(driver._parking._started) == (beside if pair is None else 3)


@pytest.mark.parametrize("mode", [pytest.param("", marks=pytest.mark.slow), "import waits"])
def test_a_worker_of_a_later_trial_is_stopped(measure: Measure, tmp_path: Path, mode: str) -> None:
    """Neither a thread that a build starts when it is imported nor an import takes time of the other build's work."""
    seen: list[bool] = []

    def look(step: Step) -> None:
        if step.trial >= JUDGED and step.phase.startswith(MEASURED):
            waiting = [one for one in workers() if environment_of(one).get(CHILD) in AHEAD]
            programs = [one for one in waiting if SUPERVISOR not in environment_of(one)]
            seen.extend(wait_until(partial(_stopped, one), DEADLINE_S) for one in programs)
        if step.phase == "stopping the engine":
            (tmp_path / "run" / "imports-may-end").touch()

    record = measure(mode, pairs=2, tell=look)
    assert [trial.failure for trial in record.trials] == [None] * 6
    assert parked(record) == [False, *[True] * 5]
    assert set(seen) == {True}
    assert len(seen) >= 2 * 3


@pytest.mark.parametrize(("choose", "stopped"), [(None, False), (Choose(least=2, most=8), True)])
def test_imports_go_on_beside_a_warm_up_trial_from_which_nothing_follows(
    measure: Measure, make_cell: Callable[..., Cell], *, choose: Choose | None, stopped: bool
) -> None:
    """They stop beside one from which the number of iterations follows."""
    seen: list[bool] = []

    def look(step: Step) -> None:
        if step.trial == 0 and step.phase.startswith(MEASURED):
            waiting = [one for one in workers() if environment_of(one).get(CHILD) in AHEAD]
            programs = [one for one in waiting if SUPERVISOR not in environment_of(one)]
            seen.extend(
                (wait_until(partial(_stopped, one), DEADLINE_S) if stopped else _stopped(one)) for one in programs
            )

    cell = make_cell(limits=LIMITS)
    declared = cell.measure.model_copy(update={"choose": choose})
    measure(tell=look, cell=cell.model_copy(update={"measure": declared}))
    assert set(seen) == {stopped}


def test_an_import_that_holds_a_lock_is_waited_for(
    measure: Measure, make_cell: Callable[..., Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that wants the lock would wait for a worker that is stopped, until its iteration is too late."""
    found: list[bool] = []
    holds = Child.holds_file_lock

    def asked(child: Child) -> bool:
        found.append(holds(child))
        (tmp_path / "run" / "imports-may-end").touch()
        return found[-1]

    def look(step: Step) -> None:
        if (step.trial, step.phase) == (0, "iteration 1 of 5"):
            assert wait_until((tmp_path / "run" / "parked-0-1" / "imports-wait").exists, DEADLINE_S)
        if step.phase in ("iteration 4 of 5", "iteration 5 of 5"):
            with (tmp_path / "run" / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    monkeypatch.setattr(Child, "holds_file_lock", asked)
    record = measure("import locks", tell=look, cell=warmed_up_thrice(make_cell))

    assert found[0] is True
    assert [trial.failure for trial in record.trials] == [None] * 4
    assert parked(record) == [False, True, True, True]


def test_a_program_that_an_import_starts_is_stopped_with_it(measure: Measure, make_cell: Callable[..., Cell]) -> None:
    """Also one in a session of its own; it ends with the worker."""
    seen: list[bool] = []

    def look(step: Step) -> None:
        if (step.trial, step.phase) == (0, "iteration 1 of 5"):
            assert wait_until(lambda: bool(loops()), DEADLINE_S)
        if (step.trial, step.phase) in ((0, "iteration 4 of 5"), (0, "iteration 5 of 5")):
            seen.extend(wait_until(partial(_stopped, one), DEADLINE_S) for one in loops())

    def loops() -> list[psutil.Process]:
        return [one for one in workers() if "while True: pass" in one.cmdline()]

    record = measure("import starts a program", tell=look, cell=warmed_up_thrice(make_cell))
    assert record.trials[0].failure is None
    assert set(seen) == {True}


@pytest.mark.usefixtures("cache_store")
def test_nothing_imports_while_caches_are_kept(
    measure: Measure, subjects: Callable[..., dict[Side, Subject]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What imports may write there."""
    assert subjects()
    kept, keep = [], Store.keep

    def keeping(store: Store, key: str, folder: Path, by: str, grown_from: Seal | None = None) -> Seal | None:
        beside = [own for own in workers() if SUPERVISOR not in environment_of(own)]
        kept.append([_stopped(own) for own in beside if environment_of(own)["VLLM_CACHE_ROOT"].startswith(str(folder))])
        return keep(store, key, folder, by, grown_from)

    monkeypatch.setattr(Store, "keep", keeping)
    measure(pairs=2)
    assert len(kept) == 1
    assert all(kept[0])


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), pytest.param(OSError(errno.EMFILE, "too many open files"), marks=pytest.mark.slow)]
)
def test_a_worker_ahead_that_cannot_be_started(
    measure: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Ctrl-C there leaves no folder, and an error of the system costs no trial that was measured."""

    def failing(argv: Sequence[str], *, folder: Path, **more: Any) -> Child:
        if folder.name.endswith("-2"):
            raise error
        return spawn(argv, folder=folder, **more)

    monkeypatch.setattr("perfgate.capture.worker.spawn", failing)
    with pytest.raises(KeyboardInterrupt) if isinstance(error, KeyboardInterrupt) else contextlib.nullcontext():
        record = measure(pairs=2)
        assert [trial.failure for trial in record.trials] == [None] * 6
    assert not list((tmp_path / "run").glob("parked-*"))


def test_an_import_that_was_stopped_took_as_long_as_it_ran(
    measure: Measure, make_cell: Callable[..., Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was stopped for meanwhile is neither import nor start, though the worker's own clock went on."""
    claimed: list[tuple[int, int]] = []

    def claim(worker: Worker, answered: dict[str, Any]) -> None:
        claimed.append((answered["import_ns"], worker.paused_ns))

    def look(step: Step) -> None:
        if (step.trial, step.phase) == (0, "iteration 1 of 5"):  # nothing is stopped before the last one of warm-up
            assert wait_until((tmp_path / "run" / "parked-0-1" / "imports-wait").exists, DEADLINE_S)
        if step.phase == "stopping the engine":
            (tmp_path / "run" / "imports-may-end").touch()

    note_answers(monkeypatch, "start", claim)
    record = measure("import waits", tell=look, cell=warmed_up_thrice(make_cell))

    startups = [trial.startup for trial in record.trials if trial.startup is not None]
    assert len(startups) == len(claimed) == 4
    for own, (claimed_ns, paused_ns) in zip(startups, claimed, strict=True):
        assert claimed_ns - paused_ns <= own.import_ns <= claimed_ns
        assert own.import_ns + own.engine_ns < own.ready_ns
    assert startups[0].import_ns == claimed[0][0]
    assert startups[1].import_ns == claimed[1][0] - claimed[1][1] < claimed[1][0]


def test_a_parked_worker_is_at_home_in_the_folder_of_its_trial(usual: Usual) -> None:
    """Log, working directory and timeline of its trial are in the trial's own folder, and no folder is left over."""
    assert sorted(folder.name for folder in (usual.folder / "trials").iterdir()) == [f"{n:03}" for n in range(6)]
    for folder in (usual.folder / "trials").iterdir():
        assert {file.name for file in folder.iterdir()} == {
            "engine.log", "environment.json", "priority.json", "arguments.json", "configured", "dump",
            "shut-down", "timeline.jsonl.gz",
        }  # fmt: skip
        assert "loading weights" in (folder / "engine.log").read_text()


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every build finds compile caches."""
    monkeypatch.setattr("perfgate.capture.parking.count_files", lambda _: 1)


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], tuple[list[int], list[int]]]:
    """A function that tells how often parked workers had configured their engines, and how often trials had at last."""
    ahead: list[int] = []
    note = Worker.note_imported

    def noting(worker: Worker, at_ns: int) -> None:
        ahead.append(times_configured(worker._job.folder))
        note(worker, at_ns)

    monkeypatch.setattr(Worker, "note_imported", noting)
    return lambda: (ahead, [times_configured(folder) for folder in sorted(tmp_path.glob("run/trials/*"))])


def times_configured(folder: Path) -> int:
    """How often the engine of a trial was."""
    file = folder / "configured"
    return len(file.read_text().splitlines()) if file.exists() else 0


Configured = Callable[[], tuple[list[int], list[int]]]


@pytest.mark.usefixtures("warm")
def test_a_parked_worker_has_its_configuration(measure: Measure, configured: Configured, tmp_path: Path) -> None:
    """Each engine is configured once, as its own build asks for that, and a parked one before its trial begins."""
    record = measure()

    ahead, trials = configured()
    assert len(ahead) >= sum(parked(record)) > 0
    assert {*ahead} == {1}
    assert trials == [1] * len(record.trials)
    assert {file.read_text() for file in tmp_path.glob("run/trials/*/configured")} == {"of an engine\n"}


def test_with_empty_caches_an_engine_is_configured_in_its_trial(usual: Usual) -> None:
    """What vLLM writes there meanwhile would make a cold start one that found something."""
    assert {*usual.ahead} == {0}
    assert [times_configured(folder) for folder in (usual.folder / "trials").iterdir()] == [1] * 6
    assert [trial.startup and trial.startup.cache_files for trial in usual.record.trials] == [0] * 6


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    "mode",
    [
        *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("arguments change", "usage changes")),
        "configuration names its folder",
    ],
)
def test_a_configuration_that_would_be_another_is_made_anew(
    measure: Measure, configured: Configured, tmp_path: Path, mode: str
) -> None:
    """A build that changes its arguments gets what it asks for, and what is in the trial's folder is named as there."""
    record = measure(mode)

    _, trials = configured()
    assert [trial.failure for trial in record.trials] == [None] * len(record.trials)
    for trial, times, own in zip(record.trials, trials, parked(record), strict=True):
        assert times == (2 if own and trial.subject == "head" else 1)
        folder = tmp_path / "run" / "trials" / f"{trial.index:03}"
        dump = str(folder / "dump") if mode.endswith("folder") and trial.subject == "head" else ""
        assert (folder / "dump").read_text() == dump


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("mode", [pytest.param("no usage", marks=pytest.mark.slow), "arguments are frozen"])
def test_engines_that_cannot_be_configured_ahead(measure: Measure, mode: str) -> None:
    """They are configured when they start, as other versions of vLLM do."""
    record = measure(mode)

    assert [trial.failure for trial in record.trials] == [None] * len(record.trials)
    assert parked(record)[-1]


@pytest.mark.usefixtures("warm")
def test_a_configuration_ahead_is_import_and_no_wait(measure: Measure) -> None:
    """What it takes is of the start in any case: of the engine in a trial that began by itself."""
    record = measure("configuration takes long")

    takes_ns = 300_000_000
    told = [(own, trial.startup) for own, trial in zip(parked(record), record.trials, strict=True)
            if trial.subject == "head"]  # fmt: skip
    assert any(own for own, _ in told)
    for own, startup in told:
        assert startup is not None
        assert (startup.import_ns >= takes_ns) is own
        assert (startup.engine_ns >= takes_ns) is not own
        assert startup.ready_ns >= startup.import_ns + startup.engine_ns


def test_the_wait_of_a_parked_worker_is_no_start_time(usual: Usual) -> None:
    """Ready is import and engine as ever; that the trial before was measured meanwhile is not in it."""
    assert usual.ages[0][1] == 0
    for trial, (age_ns, stopped_ns) in zip(usual.record.trials[1:], usual.ages[1:], strict=True):
        assert trial.startup is not None
        assert trial.startup.import_ns + trial.startup.engine_ns < trial.startup.ready_ns
        assert stopped_ns > 0
        assert age_ns - stopped_ns <= trial.startup.ready_ns < age_ns - stopped_ns / 2


def test_a_called_trial_after_traced_ones_counts_the_same(
    tmp_path: Path, make_cell: Callable[..., Cell], subjects: Callable[..., dict[Side, Subject]],
    talk: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Its worker counts from before its imports, beside the start of the engine before; all that it counts is equal."""
    counted = make_cell(limits=LIMITS).model_copy(update={"gates": (), "calls": CallTrials()})
    builds: dict[Side, Subject] = {"base": subjects()["base"]}
    leave_two_traces(tmp_path / "stub")
    seen = []
    for switch in ("1", "0"):
        monkeypatch.setenv(SWITCH, switch)
        folder = tmp_path / f"run{switch}"
        folder.mkdir()
        with Session(folder, run([counted], name=RUN, subjects=builds), None, lambda _: None) as session:
            session.measure(counted, 1, "traced", then="called")
            record = session.measure(counted, 1, "called")
        assert workers() == []
        (called,) = [trial.payload("calls") for trial in record.trials if trial.kind == "called"]
        assert called is not None
        seen.append(called)

    hidden, usual = seen
    assert [op for op, _ in talk].count("parked") == 1
    assert [own.counts() for own in hidden.steps.values()] == [own.counts() for own in usual.steps.values()]
    assert not [line for line in figure_lines(hidden, usual) if "modules" in line]


def test_a_worker_that_no_trial_takes_ends_with_the_visit(
    tmp_path: Path, make_cell: Callable[..., Cell], subjects: Callable[..., dict[Side, Subject]]
) -> None:
    """Where the kind that was to come does not come, nothing is left."""
    folder = tmp_path / "run"
    folder.mkdir()
    cell, builds = make_cell(limits=LIMITS), {"base": subjects()["base"]}
    leave_two_traces(tmp_path / "stub")
    with Session(folder, run([cell], name=RUN, subjects=builds), None, lambda _: None) as session:
        session.measure(cell, 1, "traced", then="called")
        assert len(list(folder.glob("parked-*"))) == 1

    assert (workers(), list(folder.glob("parked-*"))) == ([], [])


@pytest.mark.parametrize(("cores", "after_the_look"), [(8, True), pytest.param(7, False, marks=pytest.mark.slow)])
def test_the_trial_after_a_look(
    tmp_path: Path, make_cell: Callable[..., Cell], subjects: Callable[..., dict[Side, Subject]],
    monkeypatch: pytest.MonkeyPatch, cores: int, *, after_the_look: bool,
) -> None:  # fmt: skip
    """With cores to spare it is parked as well, and nothing of it is left where the look is the last thing done."""
    monkeypatch.setattr("perfgate.capture.station.usable_cores", lambda: cores)
    folder = tmp_path / "run"
    folder.mkdir()
    measured = make_cell(limits=LIMITS)
    with Session(folder, run([measured], name=RUN, subjects=subjects()), None, lambda _: None) as session:
        session.measure(measured, 1)
        record = session.measure(measured, 2)
        assert bool(AHEAD) is after_the_look

    assert parked(record) == [False, True, True, True, after_the_look, True]
    assert (workers(), list(folder.glob("parked-*"))) == ([], [])


@pytest.mark.usefixtures("cache_store")
@pytest.mark.parametrize(
    ("other", "warm_ups", "first"),
    [
        ({"OTHER": "build"}, (2, 1), "head"),
        pytest.param({}, (1, 1), "base", marks=pytest.mark.slow),
        pytest.param({"OTHER": "build"}, (2, 1), "base", marks=pytest.mark.slow),
        pytest.param({}, (1, 1), "head", marks=pytest.mark.slow),
    ],
    ids=["kept, head", "of the very build that the base fills, base", "kept, base", "of the very build, head"],
)
def test_the_first_pair_of_a_head_that_is_warm(
    tmp_path: Path, make_cell: Callable[..., Cell], subjects: Callable[..., dict[Side, Subject]], first: Side,
    other: dict[str, str], warm_ups: tuple[int, ...],
) -> None:  # fmt: skip
    """A head without a warm-up trial is not waited for: parked is whichever build begins the first pair."""
    measured, base = make_cell(limits=LIMITS), subjects()["base"]
    head = base.model_copy(update={"env": {**base.env, **other}})
    drawn = run([measured]).plan.orders
    seed = next(n for n in range(99) if head_first(n, measured.cell_id, 0, drawn) is (first == "head"))
    for visit, warm in enumerate(warm_ups):
        folder = tmp_path / f"run{visit}"
        folder.mkdir()
        manifest = run([measured], name=RUN, subjects={"base": base, "head": head})
        manifest = manifest.model_copy(update={"plan": manifest.plan.model_copy(update={"seed": seed})})
        with Session(folder, manifest, None, lambda _: None) as session:
            record = session.measure(measured, 1)
        sides = [(trial.pair, trial.subject) for trial in record.trials]
        assert sides[:warm] == [(None, "base"), (None, "head")][:warm]
        assert sides[warm] == (0, first)
        assert parked(record) == [False, *[True] * (warm + 1)]


# --- whether


@pytest.mark.parametrize(("switch", "cores", "hidden"), [
    ("1", 2, True), ("0", 64, False), ("", 8, True), ("", 7, False),
])  # fmt: skip
def test_where_imports_are_hidden(
    monkeypatch: pytest.MonkeyPatch, make_cell: Callable[..., Cell], switch: str, cores: int, *, hidden: bool
) -> None:
    """From eight usable cores on, unless a variable says otherwise; never where the time of a start is gated."""
    monkeypatch.setenv(SWITCH, switch)
    cell = make_cell()

    assert hides_imports(cell, cores) is hidden
    assert not hides_imports(cell.model_copy(update={"gates": (*cell.gates, gate("start_time"))}), cores)


@pytest.mark.parametrize(("env", "fewest"), [
    ({"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}, 2),
    ({"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "3"}, 4),
    ({"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "64"}, 8),
    ({"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "x"}, 8),
    ({"VLLM_CPU_OMP_THREADS_BIND": "0-1", "OMP_NUM_THREADS": "1"}, 8),
    ({"OMP_NUM_THREADS": "1"}, 8),
])  # fmt: skip
def test_declared_threads_leave_a_core(
    monkeypatch: pytest.MonkeyPatch, make_cell: Callable[..., Cell], env: dict[str, str], fewest: int
) -> None:
    """On the CPU one core more than the unbound threads that a scenario declares is enough."""
    monkeypatch.delenv(SWITCH)
    cell = make_cell()
    cell = cell.model_copy(update={"engine": cell.engine.model_copy(update={"env": env})})

    assert hides_imports(cell, fewest)
    assert not hides_imports(cell, fewest - 1)


def test_switched_off(measure: Measure, monkeypatch: pytest.MonkeyPatch, talk: list[tuple[str, int]]) -> None:
    """Without parking each trial starts its own worker, and the record is written as it was before there was any."""
    monkeypatch.setenv(SWITCH, "0")

    record = measure()

    assert {op for op, _ in talk} == {"hello", "start", "iterate", "stop"}
    assert parked(record) == [False] * 4
    assert "parked_ns" not in record.model_dump_json()


# --- what goes wrong


@pytest.mark.parametrize("mode", ["import fails", pytest.param("import dies", marks=pytest.mark.slow)])
def test_an_import_that_fails_fails_its_own_trial(measure: Measure, mode: str) -> None:
    """The trial it was parked beside is measured; the next one starts anew and says what is wrong."""
    record = measure(mode)

    base, head = record.trials
    assert (base.subject, base.failure, len(base.iterations)) == ("base", None, 2)
    assert head.failure is not None
    assert head.failure.code == ("engine-import-failed" if mode == "import fails" else "engine-start-failed")
    assert record.stopped is not None


@pytest.mark.parametrize(
    "mode",
    [
        "touches a GPU",
        *(pytest.param(f"import answers {what}", marks=pytest.mark.slow) for what in ("rubbish", "the future")),
    ],
)
def test_a_worker_that_cannot_be_parked_is_ended(measure: Measure, mode: str) -> None:
    """One whose imports touch a GPU, or that answers nonsense, is ended before its trial and never tried again."""
    waiting: set[str] = set()

    def look(step: Step) -> None:
        if step.trial > 1 and step.phase.startswith(MEASURED):  # by then a head's worker has answered
            ahead = [one for one in map(environment_of, workers()) if one.get(CHILD) in AHEAD and SUPERVISOR not in one]
            waiting.update(one["STUB_MODE"] for one in ahead)

    record = measure(mode, pairs=2, tell=look)

    assert [trial.failure for trial in record.trials] == [None] * 6
    assert {trial.subject for trial, was in zip(record.trials, parked(record), strict=True) if was} == {"base"}
    assert waiting == {""}


def test_a_failed_trial_leaves_no_worker(measure: Measure) -> None:
    """After a pair that is dropped the next one's own order counts; a worker of the other side is ended."""
    record = measure("step dies")

    assert {trial.failure.code for trial in record.trials if trial.failure} == {"engine-failed"}
    assert record.stopped is not None


@pytest.mark.parametrize(
    "phase", ["starting the engine", "iteration 2 of 3", pytest.param("stopping the engine", marks=pytest.mark.slow)]
)
def test_an_interrupt_with_a_parked_worker(measure: Measure, tmp_path: Path, phase: str) -> None:
    """Ctrl-C at any time ends the parked worker too, and keeps what was measured."""

    def interrupt(step: Step) -> None:
        if (step.trial, step.phase) == (2, phase):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(tell=interrupt)
    (file,) = (tmp_path / "run" / "records").iterdir()
    assert len(json.loads(file.read_text())["trials"]) == 2


def test_a_parked_worker_that_was_killed_is_replaced(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody ends the parked worker during the trial: the next one starts its own and is measured."""
    pause = Parking.pause

    def when_imported(parking: Parking) -> None:  # a worker that ends earlier is the last of its engine
        for own in [*parking._started]:
            if not own.worker.imported_ns:
                parking._has_imported(own)
        pause(parking)

    monkeypatch.setattr(Parking, "pause", when_imported)

    def kill(step: Step) -> None:
        if (step.trial, step.phase) == (0, "iteration 3 of 3"):
            for one in workers():
                if one.cwd().endswith("parked-0-1") and one.name() != "supervisor":
                    one.kill()
            psutil.wait_procs([one for one in workers() if one.cwd().endswith("parked-0-1")], timeout=DEADLINE_S)

    record = measure(tell=kill)

    assert [trial.failure for trial in record.trials] == [None] * 4
    # Whether the third can be parked in time depends on when the kill is seen.
    assert [parked(record)[n] for n in (0, 1, 3)] == [False, False, True]


def test_garbage_is_collected_as_the_engine_has_it(measure: Measure, tmp_path: Path) -> None:
    """In an engine whose worker was parked the collector works, among all objects but those that it has frozen."""
    record = measure("freezes its heap")
    assert parked(record) == [False, *[True] * 3]
    for trial in record.trials:
        told = json.loads((tmp_path / "run" / "trials" / f"{trial.index:03}" / "shut-down").read_text())
        assert told == {"collects": True, "frozen": trial.subject == "head", "collected": False}, (
            "the end needs no search for garbage"
        )


# --- drivers


@pytest.fixture
def jobs(
    make_cell: Callable[..., Cell],
    make_job: Callable[..., Job],
    subjects: Callable[..., dict[Side, Subject]],
    tmp_path: Path,
) -> list[Job]:
    """Two jobs of one build, the second ahead of the first."""
    cell, build = make_cell(limits=LIMITS), subjects()["base"]
    first, second = make_job(cell, build, 0), make_job(cell, build, 1)
    return [replace(first, ahead=(replace(second, folder=tmp_path / "run" / "parked-1"),)), second]


@pytest.fixture
def driver() -> Iterator[VllmDriver]:
    """One that lets go of its workers whatever a test finds."""
    driver = VllmDriver()
    yield driver
    driver.release()


def take(driver: VllmDriver, job: Job) -> Trial:
    """A timed trial."""
    return take_trial(job, driver, Timed(job), lambda _: None)


@pytest.mark.parametrize("other", [
    {"cache_folder": Path("/elsewhere")}, {"environment": {"PATH": "/bin"}}, {"owner": owner_mark("others")},
    {"kind": "traced"}, {"args": {"max_num_seqs": 3}},
])  # fmt: skip
def test_a_worker_is_taken_for_its_engine_alone(jobs: list[Job], other: dict[str, Any], tmp_path: Path) -> None:
    """A job with other caches, variables, arguments or owner, or of another kind, gets a worker of its own."""
    driver, (first, second) = VllmDriver(), jobs
    assert take(driver, first).failure is None
    assert (tmp_path / "run" / "parked-1" / "engine.log").exists()

    own = {"subject": second.subject.model_copy(update=other)} if "args" in other else other
    changed = replace(second, **own)
    with driver.start(changed, Launch()) as engine:
        assert engine.startup
        assert engine.startup.parked_ns == 0
    assert not (tmp_path / "run" / "parked-1").exists()


@pytest.mark.parametrize("launch", [Launch(count_calls=True), Launch(wrapper=("/usr/bin/env",))])
def test_instruments_that_ask_for_something_start_their_own(jobs: list[Job], launch: Launch) -> None:
    """A wrapper has to start the worker itself, and calls are counted from the start."""
    driver, (first, second) = VllmDriver(), jobs
    assert take(driver, first).failure is None

    with driver.start(second, launch) as engine:
        assert engine.startup
        assert engine.startup.parked_ns == 0


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    "mode",
    [
        "configuration fails",
        *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("arguments fail", "configuration exits")),
    ],
)
def test_a_configuration_that_fails_fails_its_own_trial(measure: Measure, mode: str) -> None:
    """The head's trial says what vLLM said, and no base is lost to it."""
    record = measure(mode)

    failures = [(trial.subject, trial.failure and trial.failure.code) for trial in record.trials]
    assert failures == [("base", None), ("head", "engine-start-failed")]
    failure = record.trials[1].failure
    assert failure is not None
    assert ("max_num_seq" if mode == "arguments fail" else "is too small") in failure.text


@pytest.mark.usefixtures("orphans_alone")
def test_so_many_import_at_once(jobs: list[Job], tmp_path: Path) -> None:
    """One that has imported makes room for the next, though nobody has asked it yet."""
    parking = Parking()
    ahead = [replace(jobs[1], folder=tmp_path / "run" / f"parked-{n}") for n in range(3)]
    begun: list[int] = []
    try:
        for most, wanted in ((1, 1), (1, 2), (2, 3)):
            parking.begin(ahead, most)
            begun.append(len(parking._started))
            assert wait_until(lambda: all(own.worker.has_answered() for own in parking._started), DEADLINE_S)
            assert begun[-1] == wanted
    finally:
        parking.release()


def test_nothing_more_is_started_while_one_imports(jobs: list[Job], tmp_path: Path) -> None:
    """As many as may import at once do."""
    build = jobs[1].subject.model_copy(update={"env": {"STUB_MODE": "import waits"}})
    ahead = [replace(jobs[1], subject=build, folder=tmp_path / "run" / f"parked-{n}") for n in range(3)]
    parking = Parking()
    try:
        for most, begun in ((1, 1), (1, 1), (2, 2), (3, 3)):
            parking.begin(ahead, most)
            assert len(parking._started) == begun
    finally:
        parking.release()


def test_release(jobs: list[Job], tmp_path: Path) -> None:
    """Without the trial to come the parked worker is ended with its folder; a second time there is nothing to do."""
    driver, (first, _) = VllmDriver(), jobs
    assert take(driver, first).failure is None

    driver.release()
    driver.release()

    assert not (tmp_path / "run" / "parked-1").exists()
    assert workers("tests") == []


def test_a_failed_start_of_the_present_leaves_the_next_one_whole(jobs: list[Job]) -> None:
    """Where the present engine does not start, the next trial goes on with the worker that imports for it."""
    driver, (first, second) = VllmDriver(), jobs
    broken = first.subject.model_copy(update={"env": {"STUB_MODE": "start fails"}})

    failed = take(driver, replace(first, subject=broken))
    trial = take(driver, second)

    assert failed.failure is not None
    assert (trial.failure, trial.startup is not None and trial.startup.parked_ns > 0) == (None, True)


def test_an_import_goes_on_while_the_engine_before_it_ends(
    driver: VllmDriver, jobs: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was stopped beside the measured iterations gets done before that engine's process is gone."""
    imported, paused, seen = tmp_path / "run" / "parked-1" / "environment.json", list[bool](), list[bool]()

    def let_it_import(_: Worker, __: dict[str, Any]) -> None:
        seen.append(imported.exists())
        (tmp_path / "run" / "imports-may-end").touch()
        seen.append(wait_until(imported.exists, DEADLINE_S))

    note_answers(monkeypatch, "start", lambda worker, _: paused.append(worker.paused_ns > 0))
    waits = jobs[0].subject.model_copy(update={"env": {"STUB_MODE": "import waits"}})
    first, second = (replace(job, subject=waits) for job in jobs)
    with monkeypatch.context() as during:
        note_answers(during, "stop", let_it_import)
        ahead = tuple(replace(job, subject=waits) for job in first.ahead)
        assert take(driver, replace(first, ahead=ahead)).failure is None

    assert seen == [False, True]
    assert take(driver, second).failure is None
    assert paused == [False, True]


@pytest.mark.parametrize(("mode", "again"), [("", False), ("import starts a program", True)])
def test_what_is_stopped_whole_is_stopped_once(
    driver: VllmDriver, jobs: list[Job], monkeypatch: pytest.MonkeyPatch, mode: str, *, again: bool
) -> None:
    """A process group is stopped as one; what an import started outside of it is stopped anew whenever it runs."""
    sent: list[signal.Signals] = []
    send = Child.send

    def sending(child: Child, number: signal.Signals) -> bool:
        sent.append(number)
        return send(child, number)

    def outside() -> list[psutil.Process]:
        return [one for one in workers("tests") if "while True: pass" in one.cmdline()]

    monkeypatch.setattr(Child, "send", sending)
    subject = jobs[1].subject.model_copy(update={"env": {"STUB_MODE": mode}})
    (ahead,) = (replace(job, subject=subject) for job in jobs[0].ahead)
    with driver.start(replace(jobs[0], ahead=(ahead,)), Launch()) as engine:
        assert wait_until((ahead.folder / "environment.json").exists, DEADLINE_S)
        for _ in range(3):
            engine.wait_alone()
            for one in outside():
                assert wait_until(partial(_stopped, one), DEADLINE_S)
                one.send_signal(signal.SIGCONT)

    assert set(sent) == {signal.SIGSTOP}
    assert (len(sent) > 1) is again


# --- kills


@pytest.mark.slow
@pytest.mark.usefixtures("orphans_alone")
def test_a_killed_run_leaves_no_parked_worker(tmp_path: Path) -> None:
    """SIGKILL to perfgate takes the parked worker along; resuming clears its folder away and loses no trial."""
    started = PerfgateProcess(tmp_path, stub_words(tmp_path))
    folder = started.run_folder
    started.wait_for(lambda: any(folder.glob("parked-*/environment.json")) and any(folder.glob("trials/001/*.json")))
    started.process.kill()
    started.process.wait()
    started.wait_for(lambda: not marked_processes(folder.name))
    (before,) = read_records(folder, read_run(folder))

    resumed = PerfgateProcess(tmp_path, ["--resume", str(folder)])

    assert resumed.process.wait(DEADLINE_S) == 0, resumed.stderr
    assert not list(folder.glob("parked-*"))
    (after,) = read_records(folder, read_run(folder))
    assert before.trials
    assert after.trials[: len(before.trials)] == before.trials
    assert [trial.failure for trial in after.trials if trial.failure] == []
