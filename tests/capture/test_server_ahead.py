"""A server of vLLM imports ahead of its trial, is stopped while another one is measured, and then becomes a server."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from conftest import CONFIG
from perfgate_process import marked_processes

from perfgate.capture.job import Job
from perfgate.capture.parking import SWITCH, hides_imports
from perfgate.capture.server_driver import ServerDriver
from perfgate.capture.server_process import VLLM
from perfgate.capture.trial_taking import INSTRUMENTS, take_trial
from perfgate.machine.processes import AHEAD, is_alive
from perfgate.metrics.trial import Trial
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
if __name__ == "__main__":
    with open("words.json", "w") as stream:
        json.dump(sys.argv, stream)
    sys.argv = [{str(STUB)!r}, "--port", sys.argv[sys.argv.index("--port") + 1]]
    runpy.run_path({str(STUB)!r}, run_name="__main__")
"""
TORCH = """
import os, types
cuda = types.SimpleNamespace(is_initialized=lambda: os.environ.get("STUB_MODE") == "touches a GPU")
"""

Jobs = Callable[..., list[Job]]


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A busy machine makes no client late here, and no server is there after the test, ahead or not."""
    monkeypatch.setattr("perfgate.load.exchange.LATEST_NS", 10**10)
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

    def make(*modes: str) -> list[Job]:
        path = (str(tmp_path / "stub"),)
        subjects = [Subject(python=sys.executable, path=path, env={"STUB_MODE": mode}) for mode in modes]
        made = [make_job(cell, subject, index) for index, subject in enumerate(subjects)]
        parked = [replace(job, folder=tmp_path / "run" / f"parked-{job.index}") for job in made]
        return [replace(job, ahead=tuple(parked[index + 1 :])) for index, job in enumerate(made)]

    return make


def servers(folder: Path) -> list[psutil.Process]:
    """Live processes below a folder that are the program of a server, or became one."""
    found = []
    for one in marked_processes("tests"):
        with contextlib.suppress(psutil.Error):
            if is_alive(one) and str(VLLM) in one.cmdline() and Path(one.cwd()).is_relative_to(folder):
                found.append(one)
    return found


def taken(driver: ServerDriver, job: Job, say: Callable[[str], None] = lambda _: None) -> Trial:
    """A timed trial."""
    return take_trial(job, driver, INSTRUMENTS["timed"](job), say)


def test_the_next_server_has_imported_when_its_trial_begins(jobs: Jobs, tmp_path: Path) -> None:
    """It serves in the folder of its trial, with its own words; its wait is no start time, and its import is told."""
    driver, (first, second) = ServerDriver(), jobs("", "")

    trials = [taken(driver, first), taken(driver, second)]
    driver.release()

    assert [trial.failure for trial in trials] == [None, None]
    alone, ahead = (trial.startup for trial in trials)
    assert alone is not None
    assert ahead is not None
    assert (alone.parked_ns, alone.import_ns) == (0, 0)
    assert ahead.parked_ns > 0
    assert 0 < ahead.import_ns < ahead.ready_ns < trials[0].duration_ns + trials[1].duration_ns - ahead.parked_ns
    words = [json.loads((job.folder / "words.json").read_text()) for job in (first, second)]
    assert words[0][:2] == words[1][:2] == ["api_server", "--model"]
    assert "stopped" in (second.folder / "engine.log").read_text()
    assert list(tmp_path.glob("run/parked-*")) == []


def test_a_server_ahead_is_stopped_while_another_is_measured(jobs: Jobs, tmp_path: Path) -> None:
    """From the first window on no thread of it runs."""
    driver, (first, _) = ServerDriver(), jobs("", "")
    states: list[list[str]] = []

    def look(phase: str) -> None:
        if phase.startswith("iteration"):
            states.append([str(one.status()) for one in servers(tmp_path) if one.cwd().endswith("parked-1")])

    assert taken(driver, first, look).failure is None
    driver.release()

    assert states == [["stopped"]] * 2


@pytest.mark.parametrize("mode", ["import fails", "touches a GPU", "import dies ahead"])
def test_a_server_that_cannot_be_ahead_starts_for_its_trial(jobs: Jobs, mode: str) -> None:
    """And fails there by itself, if it must, with what it said; the trial before does not know of it."""
    driver, (first, second) = ServerDriver(), jobs("", mode)

    trials = [taken(driver, first), taken(driver, second)]
    driver.release()

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


def test_nobody_starts_the_server_of_somebody_else_ahead(jobs: Jobs, tmp_path: Path) -> None:
    """A subject by its URL runs already."""
    driver, (first, second) = ServerDriver(), jobs("", "")
    running = replace(second, subject=Subject(python="", url="http://127.0.0.1:1"))

    assert taken(driver, replace(first, ahead=(running,))).failure is None

    assert list(tmp_path.glob("run/parked-*")) == []
    driver.release()


def test_a_command_of_its_own_starts_when_its_trial_does(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes its port and its GPU at once; that of vLLM is told both when it has imported."""
    monkeypatch.delenv(SWITCH)
    own = cell.model_copy(update={"engine": cell.engine.model_copy(update={"command": ("llama-server",)})})

    assert [hides_imports(one, 64) for one in (cell, own)] == [True, False]
