"""Whole runs of servers that somebody else started: a stub with OpenAI's API, which stays."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import CONFIG
from hand_made import scenario_file
from stub_engine import bare_python

from perfgate import gate as use_cases
from perfgate.baseline.promotion import promote
from perfgate.errors import NotMeasuredError, RecordError, ScenarioError, UsageError
from perfgate.load.server_http import is_ready
from perfgate.metrics.catalogue import trial_value
from perfgate.record.run_record import Run, read_records, read_run
from perfgate.report.closing_sentence import closing
from perfgate.scenario.subject import Subject
from perfgate.scenario.subject_words import resolve, words

STUB = Path(__file__).parents[1] / "stub_server.py"
TEXT = """
schema: 1
name: tiny
engine: {driver: server, model: {config: model}}
workload: {arrival: {constant: 200}, requests: 10, input_tokens: 5, output_tokens: 4}
measure: {warmup_iterations: 1, iterations: 2, iteration_timeout: 5s}
gates: [{metric: itl_median, ignorable: 10%, must_catch: 50%}]
"""

pytestmark = pytest.mark.usefixtures("no_orphans", "never_late")


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """A load for a server."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "perfgate.toml").touch()
    file = tmp_path / "tiny.yaml"
    file.write_text(TEXT)
    return file


@pytest.fixture(scope="module")
def running() -> Iterator[Subject]:
    """A server that runs already."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen([sys.executable, STUB, "--port", str(port)], stdout=subprocess.DEVNULL) as server:
        try:
            while not is_ready(f"http://127.0.0.1:{port}"):
                assert server.poll() is None
            yield Subject(python="", url=f"http://127.0.0.1:{port}")
            assert server.poll() is None, "perfgate ended a server that is not its own"
        finally:
            server.terminate()


def test_a_server_that_runs_already_is_measured_once_and_advises(scenario: Path, running: Subject) -> None:
    """One trial a side of all its windows, no version believed, nothing to promote; the server is still there."""
    finished = use_cases.run([scenario], {"base": running, "head": running}, runs=scenario.parent / "runs")

    outcome, run = finished.outcome, read_run(finished.folder)
    assert (outcome.verdict, outcome.would_be, outcome.exit_status) == ("advisory", "inconclusive", 20)
    assert [note.code for note in outcome.reasons] == ["running-server"]
    assert closing(outcome) == (
        "ADVISORY: would be inconclusive if each trial had started a server of its own; nothing is blocked."
    )
    (record,) = read_records(finished.folder, run)
    assert [(len(trial.iterations), trial.versions, trial.startup, trial.failure) for trial in record.trials] == [
        (2, {}, None, None)
    ] * 2
    assert all(trial_value("queue_time", trial) == pytest.approx(0.004) for trial in record.trials)
    with pytest.raises(NotMeasuredError, match="one replicate of a build that nobody knows"):
        promote(finished.folder, scenario.parent / "baselines", reason="why not")


def test_it_is_measured_beside_a_server_of_our_own(scenario: Path, running: Subject) -> None:
    """That one has versions; the verdict advises all the same."""
    command = f'["{{python}}", "{STUB}", --port, "{{port}}"]'
    scenario.write_text(TEXT.replace("{config: model}", f"{{config: model}}, command: {command}"))
    subjects = {"base": Subject(python=bare_python(scenario.parent / "env")), "head": running}
    finished = use_cases.run([scenario], subjects, runs=scenario.parent / "runs")

    assert finished.outcome.verdict == "advisory"
    versions = finished.outcome.cells[0].versions
    assert (versions["base"]["server"], versions["head"]) == ("9.9.stub", {})


def test_one_side_alone_is_for_a_later_comparison(scenario: Path, running: Subject) -> None:
    """As with every other build."""
    finished = use_cases.run([scenario], {"base": running}, runs=scenario.parent / "runs")
    assert finished.outcome.verdict == "not-comparable"
    assert closing(finished.outcome).startswith("MEASURED ONE SIDE")


def test_nobody_at_the_url_is_not_measured(scenario: Path) -> None:
    """The text names the URL; nothing waits for a server that perfgate did not start."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    nobody = Subject(python="", url=f"http://127.0.0.1:{port}")
    finished = use_cases.run([scenario], {"base": nobody, "head": nobody}, runs=scenario.parent / "runs")

    assert finished.outcome.exit_status == 22
    (reason, *_) = finished.outcome.cells[0].reasons
    assert reason.code == "engine-start-failed"
    assert f"no server says at {nobody.url} that it is ready" in reason.text


def test_what_a_running_server_cannot_be(scenario: Path, running: Subject, tmp_path: Path) -> None:
    """It is held against no baseline, drives no engine loop, and no manifest makes it more than one replicate."""
    runs = tmp_path / "runs"
    with pytest.raises(UsageError, match="nor of a server that runs already"):
        use_cases.run([scenario], {"head": running}, runs=runs, against=tmp_path / "baselines")
    (tmp_path / "batch").mkdir()
    with pytest.raises(ScenarioError, match=r"a server that runs already \(url=\) is measured with driver: server"):
        use_cases.run([scenario_file(tmp_path / "batch")], {"base": running}, runs=runs)
    finished = use_cases.run([scenario], {"base": running}, runs=runs)
    manifest = finished.folder / "run.json"
    manifest.write_text(manifest.read_text().replace('"quick": true', '"quick": false'))
    with pytest.raises(RecordError, match="one replicate: expected quick"):
        read_run(finished.folder)
    assert Run.model_fields["quick"].default is False


SERVER = "http://127.0.0.1:8000"


def test_a_server_that_runs_already_is_a_subject() -> None:
    """It inherits nothing, and a head beside one is the same server unless it names an interpreter."""
    running = Subject(python="", url=SERVER)
    assert resolve([f"url={SERVER}/"], [], {}) == {"base": running}
    assert resolve(["python=/a", "args.n=3"], [f"url={SERVER}"], {})["head"] == running
    assert resolve([f"url={SERVER}"], ["python=/b"], {})["head"] == Subject(python="/b")
    assert resolve(["old"], ["new"], {"old": {"url": SERVER}, "new": {"url": "http://b"}})["head"].url == "http://b"
    assert (words(running), words(running, running)) == ((f"url={SERVER}",), ())
    assert "url" not in Subject(python="/a").model_dump()


@pytest.mark.parametrize(
    ("base", "head", "problem"),
    [
        (
            ["url=https://example.org"],
            [],
            "'https://example.org' is not the URL of a server: expected one like http://",
        ),
        (["url=http://host:8000/v1"], [], "is not the URL of a server"),
        (["url=http://user:word@host/?key=sk-1"], [], "'http://host/' is not the URL of a server"),
        (["url=HTTP://host:8000"], [], "is not the URL of a server"),
        (["url=file:///etc/passwd"], [], "is not the URL of a server"),
        ([f"url={SERVER}", "python=/a"], [], "python cannot be given beside url"),
        ([f"url={SERVER}"], ["args.n=3"], "args cannot be given beside url"),
    ],
)
def test_a_server_that_runs_already_has_a_url_and_nothing_else(base: list[str], head: list[str], problem: str) -> None:
    """Nothing here starts it, so there is nothing to be started with."""
    with pytest.raises(UsageError) as caught:
        resolve(base, head, {})
    assert problem in str(caught.value)
    assert "word@" not in str(caught.value)
    assert "sk-1" not in str(caught.value)
