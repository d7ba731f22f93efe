"""A server of vLLM imports ahead of its trial, is stopped while another one is measured, and then becomes a server."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from conftest import CONFIG
from perfgate_process import DEADLINE_S, marked_processes

from perfgate.capture.driver_protocol import Launch
from perfgate.capture.job import Job
from perfgate.capture.parking import SWITCH, hides_imports
from perfgate.capture.trial_taking import take_trial, timed
from perfgate.load import server_driver
from perfgate.load.server_driver import ServerDriver
from perfgate.load.server_http import DEVELOPMENT, EXTENSION, METHOD
from perfgate.load.server_process import IN_PROCESS, VLLM
from perfgate.machine.processes import AHEAD, is_alive, wait_until
from perfgate.metrics.trial import Probes, Trial
from perfgate.scenario.declaration import loads
from perfgate.scenario.plan import Cell, resolve_cells
from perfgate.scenario.subject import Subject

STUB = Path(__file__).parents[1] / "stub_server.py"
SCENARIO = """
schema: 1
name: tiny
engine: {driver: server, model: {config: model}}
workload: {arrival: {constant: 200}, requests: 10, input_tokens: 5, output_tokens: 4}
measure: {warmup_iterations: 1, iterations: 1, start_timeout: 20s, iteration_timeout: 5s}
gates: [{metric: itl_median, ignorable: 10%, must_catch: 50%}]
"""
API_SERVER = f"""
import json, os, runpy, sys
if os.environ.get("STUB_MODE") == "import fails":
    raise ImportError("libcudart.so.99: cannot open shared object file")
if os.environ.get("STUB_MODE") == "import dies ahead" and "/parked-" in os.getcwd():
    os._exit(3)
def main():
    seen = {{"words": sys.argv, "cores": sorted(os.sched_getaffinity(0)), "environment": dict(os.environ)}}
    with open("seen.json", "w") as stream:
        json.dump(seen, stream)
    sys.argv = [{str(STUB)!r}, "--port", sys.argv[sys.argv.index("--port") + 1]]
    runpy.run_path({str(STUB)!r}, run_name="__main__")
if __name__ == "__main__":
    main()
"""
TORCH = """
import os, types
cuda = types.SimpleNamespace(is_initialized=lambda: os.environ.get("STUB_MODE") == "touches a GPU")
"""

Jobs = Callable[..., list[Job]]

pytestmark = pytest.mark.usefixtures("never_late")


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    """No server is there after the test, ahead or not."""
    yield
    assert set() == AHEAD
    assert servers(tmp_path) == []


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    """A cell whose server is ``vllm serve``."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "perfgate.toml").touch()
    (cell,) = resolve_cells(loads(SCENARIO, tmp_path / "tiny.yaml"))
    return cell


@pytest.fixture
def jobs(tmp_path: Path, cell: Cell, make_job: Callable[..., Job]) -> Jobs:
    """A function that makes jobs of a stand-in for vLLM, each of which foresees the ones behind it."""
    folder = tmp_path / "stub" / "vllm" / "entrypoints" / "openai"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.py").touch()
    (folder / "api_server.py").write_text(API_SERVER)
    (tmp_path / "stub" / "torch.py").write_text(TORCH)

    command = folder.parent / "cli" / "main.py"
    command.parent.mkdir()
    command.write_text("import vllm.entrypoints.openai.api_server as server\nmain = server.main\n")

    def make(*modes: str) -> list[Job]:
        path = (str(tmp_path / "stub"),)
        subjects = [Subject(python=sys.executable, path=path, env={"STUB_MODE": mode}) for mode in modes]
        made = [make_job(cell, subject, index) for index, subject in enumerate(subjects)]
        parked = [replace(job, folder=tmp_path / "run" / f"parked-{job.index}") for job in made]
        return [replace(job, ahead=tuple(parked[index + 1 :])) for index, job in enumerate(made)]

    return make


@pytest.fixture
def driver(nothing_is_left: None) -> Iterator[ServerDriver]:  # noqa: ARG001 (looks once all is let go of)
    """A driver, which lets go of what it has started whatever becomes of the test."""
    driver = ServerDriver()
    yield driver
    driver.release()


def servers(folder: Path) -> list[psutil.Process]:
    """Live processes below a folder that are the program of a server, or became one."""
    found = []
    for one in marked_processes("tests"):
        with contextlib.suppress(psutil.Error):
            if is_alive(one) and str(VLLM) in one.cmdline() and Path(one.cwd()).is_relative_to(folder):
                found.append(one)
    return found


def seen(job: Job) -> dict[str, Any]:
    """What the server of a trial was told and given."""
    found: dict[str, Any] = json.loads((job.folder / "seen.json").read_text())
    return found


def taken(driver: ServerDriver, job: Job, say: Callable[[str], None] = lambda _: None) -> Trial:
    """A timed trial."""
    return take_trial(job, driver, timed(job), say)


@dataclass(frozen=True)
class Two:
    """Two trials, the second of a server that imported ahead; with one core for both servers."""

    jobs: Sequence[Job]
    trials: Sequence[Trial]
    core: int
    parked: Sequence[Path]


TWO: list[Two] = []
"""Those that tests look at, once they were taken."""


@pytest.fixture
def two(jobs: Jobs, driver: ServerDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Two:
    """Those."""
    if not TWO:
        core = min(os.sched_getaffinity(0))
        monkeypatch.setattr("perfgate.load.server_driver.apart", lambda: contextlib.nullcontext(((core,), ())))
        made = jobs("", "")
        trials = [taken(driver, job) for job in made]
        TWO.append(Two(made, trials, core, [*tmp_path.glob("run/parked-*")]))
    return TWO[0]


def test_the_next_server_has_imported_when_its_trial_begins(two: Two) -> None:
    """It serves in the folder of its trial, with its own words; its wait is no start time, and its import is told."""
    trials = two.trials
    assert [trial.failure for trial in trials] == [None, None]
    alone, ahead = (trial.startup for trial in trials)
    assert alone is not None
    assert ahead is not None
    assert (alone.parked_ns, alone.import_ns) == (0, 0)
    assert ahead.parked_ns > 0
    assert 0 < ahead.import_ns < ahead.ready_ns < trials[0].duration_ns + trials[1].duration_ns - ahead.parked_ns
    words = [seen(job)["words"] for job in two.jobs]
    assert words[0][:2] == words[1][:2] == ["api_server", "--model"]
    log = (two.jobs[1].folder / "engine.log").read_text()
    assert "RuntimeWarning" not in log
    assert "stopped" in log
    assert two.parked == []


def test_the_ranks_of_a_server_are_asked(two: Two) -> None:
    """Around each window, by a class that vLLM adds to its workers and calls in its development mode."""
    for job, trial in zip(two.jobs, two.trials, strict=True):
        assert [window.probe_ns for window in trial.iterations] == [Probes((179_000,), (179_000,))]
        words = seen(job)["words"]
        assert words[words.index("--worker-extension-cls") + 1] == EXTENSION
        assert seen(job)["environment"][DEVELOPMENT] == "1"


@pytest.mark.parametrize("name", ["__main__", "__mp_main__"])
def test_a_rank_finds_the_class_that_reads_the_probe(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """In the process that serves, whose forks have it, and in one that is spawned, which runs the file first."""
    monkeypatch.setitem(sys.modules, "torch", cast("Any", SimpleNamespace(cuda=SimpleNamespace(is_initialized=bool))))
    monkeypatch.setattr(sys, "path", [*sys.path])
    module, _, known = EXTENSION.partition(".")
    monkeypatch.delitem(sys.modules, module, raising=False)
    told, answered = os.pipe(), os.pipe()
    os.close(told[1])  # nobody tells it to serve
    monkeypatch.setattr(sys, "argv", [str(VLLM), str(told[0]), str(answered[1])])
    runpy.run_path(str(VLLM), run_name=name)
    extended = type("Worker", (vars(sys.modules[module])[known],), {})()
    for _ in range(2):
        assert getattr(extended, METHOD)() > 0
    monkeypatch.delitem(sys.modules, module)


def test_a_rank_in_which_the_probe_fails_is_tried_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says why in the server's log, where the reason's text sends the reader."""
    tried: list[None] = []

    def broken() -> bool:
        tried.append(None)
        raise RuntimeError("CUDA error")

    monkeypatch.setitem(sys.modules, "torch", cast("Any", SimpleNamespace(cuda=SimpleNamespace(is_initialized=broken))))
    module, _, known = EXTENSION.partition(".")
    monkeypatch.delitem(sys.modules, module, raising=False)
    runpy.run_path(str(VLLM), run_name="__mp_main__")
    extended = type("Worker", (vars(sys.modules[module])[known],), {})()
    assert [getattr(extended, METHOD)() for _ in range(3)] == ["RuntimeError: CUDA error"] * 3
    assert len(tried) == 1
    assert capsys.readouterr().err == "perfgate: no probe: RuntimeError: CUDA error\n"
    monkeypatch.delitem(sys.modules, module)


def test_ranks_are_asked_by_instruments_that_want_it(jobs: Jobs, driver: ServerDriver) -> None:
    """And only then: others send the same windows."""
    (job,) = jobs("")
    with driver.start(job, Launch()) as engine:
        told = [engine.iterate(job.cell.workload, number, probe=number > 0)[0]["probe_ns"] for number in range(2)]
        engine.stop()
    assert told == [None, [[179_000], [179_000]]]


def test_a_late_client_tells_nothing_of_the_cache(
    jobs: Jobs, driver: ServerDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server was not given the load that was declared, so what its cache held then is not that of the load."""
    (job,) = jobs("")
    work = job.cell.workload.model_copy(update={"requests": 400})
    known: list[int | None] = []
    with driver.start(job, Launch()) as engine:
        for latest_ns in (10**10, 0):
            monkeypatch.setattr("perfgate.load.exchange.LATEST_NS", latest_ns)
            known.append(engine.iterate(work, 0)[0]["kv_use_ppm"])
        engine.stop()
    assert known == [250_000, None]


def test_a_build_with_the_command_is_served_by_it(jobs: Jobs, driver: ServerDriver, tmp_path: Path) -> None:
    """As nearly all are; one for the CPU alone has another name, and no command that works."""
    installed = tmp_path / "stub" / "vllm-9.9.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 9.9\n")
    (first, second) = jobs("", "")

    trials = [taken(driver, first), taken(driver, second)]

    assert [trial.failure for trial in trials] == [None, None]
    assert [trial.startup is not None and trial.startup.parked_ns > 0 for trial in trials] == [False, True]
    assert [seen(job)["words"][:2] for job in (first, second)] == [["vllm", "serve"]] * 2


def test_what_a_server_gets_is_the_same_ahead_and_alone(two: Two) -> None:
    """Cores but the client's, and the variables of an engine but the one that keeps its loop in one process."""
    alone, ahead = (seen(job) for job in two.jobs)
    assert alone["cores"] == ahead["cores"] == [two.core]
    own = {"PERFGATE_CHILD", "PWD"}
    assert {k: v for k, v in alone["environment"].items() if k not in own} == {
        k: v for k, v in ahead["environment"].items() if k not in own
    }
    assert IN_PROCESS not in alone["environment"]


def test_what_is_done_for_a_server_before_it_is_told_is_no_start(
    jobs: Jobs, driver: ServerDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its wait for that, and for its trial, is in no figure of its start."""
    waited: list[int] = []
    versions = server_driver.package_versions

    def late(job: Job) -> dict[str, str]:
        begin_ns = time.monotonic_ns()
        for _ in range(6):
            versions(job)
        waited.append(time.monotonic_ns() - begin_ns)
        return {}

    monkeypatch.setattr(server_driver, "package_versions", late)
    (first, second) = jobs("", "")
    trials = [taken(driver, first), taken(driver, second)]

    ahead = trials[1].startup
    assert ahead is not None
    assert ahead.parked_ns > waited[1]
    assert ahead.ready_ns < trials[1].duration_ns - waited[1] + ahead.import_ns


@pytest.mark.parametrize("error", [KeyboardInterrupt, pytest.param(OSError, marks=pytest.mark.slow)])
@pytest.mark.parametrize("raises", [
    "perfgate.load.server_driver.package_versions", "perfgate.load.server_driver.own_port",
    "perfgate.load.server_process.served_words", "perfgate.load.server_driver.Client",
    "perfgate.capture.worker.Worker.request", "perfgate.load.server_process.is_ready",
])  # fmt: skip
def test_nothing_is_left_whatever_is_raised(
    jobs: Jobs, driver: ServerDriver, monkeypatch: pytest.MonkeyPatch, raises: str, error: type[BaseException]
) -> None:
    """No server, no folder and no descriptor, of the trial and of what it foresaw."""
    (first, second) = jobs("", "")
    before = len([*Path("/proc/self/fd").iterdir()])
    assert taken(driver, first).failure is None

    def fail(*_arguments: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(raises, fail)
    with pytest.raises(error):
        taken(driver, second)
    driver.release()

    assert len([*Path("/proc/self/fd").iterdir()]) <= before


def test_a_warm_up_trial_ends_with_nobody_importing(jobs: Jobs, driver: ServerDriver, tmp_path: Path) -> None:
    """What it leaves in its caches is kept first; any other has what comes next import while its server ends."""
    made = jobs("", "", "")
    first = replace(made[0], pair=None)

    assert taken(driver, first).failure is None
    assert [path.name for path in tmp_path.glob("run/parked-*")] == ["parked-1"]
    assert taken(driver, replace(first, pair=0, folder=made[1].folder, ahead=made[0].ahead)).failure is None
    assert sorted(path.name for path in tmp_path.glob("run/parked-*")) == ["parked-1", "parked-2"]


def test_a_server_ahead_is_stopped_while_another_is_measured(jobs: Jobs, driver: ServerDriver, tmp_path: Path) -> None:
    """From the first window on no thread of it runs."""
    (first, _) = jobs("", "")
    stopped: list[bool] = []

    def look(phase: str) -> None:
        if phase.startswith("iteration"):
            (ahead,) = (one for one in servers(tmp_path) if one.cwd().endswith("parked-1"))
            stopped.append(wait_until(lambda: ahead.status() == psutil.STATUS_STOPPED, DEADLINE_S))

    assert taken(driver, first, look).failure is None

    assert stopped == [True] * 2


@pytest.mark.parametrize(
    "mode",
    ["touches a GPU", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("import fails", "import dies ahead"))],
)
def test_a_server_that_cannot_be_ahead_starts_for_its_trial(jobs: Jobs, driver: ServerDriver, mode: str) -> None:
    """And fails there by itself, if it must, with what it said; the trial before does not know of it."""
    (first, second) = jobs("", mode)

    trials = [taken(driver, first), taken(driver, second)]

    assert trials[0].failure is None
    failure = trials[1].failure
    assert (failure is None) is (mode != "import fails")
    if failure is not None:
        assert failure.code == "engine-start-failed"
        assert "the server ended with status 1" in failure.text
        assert "libcudart.so.99" in failure.text
    else:
        assert trials[1].startup is not None
        assert trials[1].startup.parked_ns == 0


def test_nobody_starts_the_server_of_somebody_else_ahead(jobs: Jobs, driver: ServerDriver, tmp_path: Path) -> None:
    """A subject by its URL runs already."""
    (first, second) = jobs("", "")
    running = replace(second, subject=Subject(python="", url="http://127.0.0.1:1"))

    assert taken(driver, replace(first, ahead=(running,))).failure is None

    assert list(tmp_path.glob("run/parked-*")) == []


def test_a_command_of_its_own_starts_when_its_trial_does(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes its port and its GPU at once; that of vLLM is told both when it has imported."""
    monkeypatch.delenv(SWITCH)
    own = cell.model_copy(update={"engine": cell.engine.model_copy(update={"command": ("llama-server",)})})

    assert [hides_imports(one, 64) for one in (cell, own)] == [True, False]
