"""Runs that failed at their start, measured nothing or are being measured: none is the latest, or has a verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fake_collector import FakeCollector, FakeSpec
from hand_made import scenario_file

from perfgate.cli.main import main
from perfgate.machine.locks import hold
from perfgate.record.run_state import measured_anything
from perfgate.record.stop import read_stop

pytestmark = pytest.mark.usefixtures("no_orphans")

SAME = FakeSpec(restart_sd=0.0003)
TWO_SIDES = ("--base", "python=/bin/true", "--head", "env.BUILD=new", "--seed", "1")

Invoke = Callable[..., Result]


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Invoke a command in a project with one scenario and engines that never fail."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))
    scenario_file(tmp_path)
    return lambda *words: CliRunner().invoke(main, words, obj=FakeCollector(SAME))


@pytest.fixture
def passed(invoke: Invoke) -> Path:
    """The folder of a run that passed, begun some days ago."""
    assert invoke("run", "tiny.yaml", *TWO_SIDES).exit_code == 0
    (folder,) = Path("runs").iterdir()
    return folder.rename("runs/tiny-20260101T000000Z-abc")


@pytest.fixture
def failed(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run that failed at its start: what should be the host's folder of locks is a file."""
    before = {*Path("runs").glob("*")}
    Path("no-folder").touch()
    with monkeypatch.context() as patched:
        patched.setenv("PERFGATE_STATE", "no-folder")
        assert invoke("run", "tiny.yaml", *TWO_SIDES).exit_code == 22
    (folder,) = {*Path("runs").iterdir()} - before
    return folder


def state(invoke: Invoke, folder: Path) -> str:
    """What ``perfgate list`` says of a run between its time and its base."""
    (row,) = (row for row in invoke("list").stdout.splitlines() if row.split()[0] == folder.name)
    return " ".join(row.partition("python=")[0].split()[3:])


def test_a_run_that_failed_at_its_start(invoke: Invoke, passed: Path, failed: Path) -> None:
    """It is listed as that with the cause, is not the latest, and judged by its name it has no verdict."""
    assert state(invoke, failed) == "failed at start (storage failed)"
    assert state(invoke, passed) == "pass"

    latest, named = invoke("judge", "--format", "json"), invoke("judge", failed.name, "--format", "json")

    assert (latest.exit_code, json.loads(latest.stdout)["verdict"]) == (0, "pass")
    told = f"the latest run that measured anything is {passed.name}; newer: {failed.name}, failed at start"
    assert latest.stderr.count(f"perfgate: {told} (storage failed)\n") == 1
    outcome = json.loads(named.stdout)
    assert (named.exit_code, outcome["verdict"]) == (22, "not-measured")
    assert outcome["reasons"][0]["code"] == "storage-failed"
    assert outcome["reasons"][0]["text"].startswith("failed at start: ")
    assert "is a file, not a folder" in outcome["reasons"][0]["text"]
    assert "FAILED before its end" in invoke("explain", failed.name).stdout


@pytest.mark.needs("verify")
def test_no_run_has_measured_anything(invoke: Invoke, failed: Path) -> None:
    """Then there is no latest run, and whatever asks for it says what became of the newest."""
    for words in (("judge",), ("explain", "latest"), ("report",), ("verify", "latest")):
        result = invoke(*words)

        assert result.exit_code == 22, words
        assert f"holds no run that measured anything: {failed.name}, failed at start (storage failed)" in result.stderr


def test_a_failed_run_goes_on(invoke: Invoke, failed: Path) -> None:
    """``--resume latest`` means the newest run, measured or not; once it has measured its failure is forgotten."""
    result = invoke("run", "--resume", "latest")

    assert result.exit_code == 0
    assert f"run folder: {failed}" in result.stderr
    assert read_stop(failed) is None
    assert state(invoke, failed) == "pass"


def test_a_run_without_records(invoke: Invoke, passed: Path) -> None:
    """A run that was killed before its first trial has said nothing, and neither has its folder a verdict."""
    (passed / "verdict.json").unlink()
    assert state(invoke, passed) == "open"
    (record,) = (passed / "records").iterdir()
    content = json.loads(record.read_text())

    record.write_text(json.dumps({**content, "trials": [one for one in content["trials"] if one["pair"] is None]}))
    assert not measured_anything(passed)
    record.unlink()

    assert state(invoke, passed) == "nothing measured"
    assert invoke("judge").exit_code == 22


def test_what_cannot_be_read_is_not_passed_over(passed: Path) -> None:
    """A broken record counts as a measurement: who reads it says what is wrong, and no older run takes its place."""
    (record,) = (passed / "records").iterdir()
    for broken in ("{", "[]", '{"trials": 1}', '{"trials": [1]}', ""):
        record.write_text(broken)

        assert measured_anything(passed), broken


@pytest.mark.needs("verify")
def test_a_run_that_is_being_measured(invoke: Invoke, passed: Path) -> None:
    """While a process holds its lock it is running, has figures and no verdict, and its verdict.json is left alone."""
    kept = (passed / "verdict.json").read_text()
    (passed / "verdict.json").write_text(f"{kept} ")
    with hold(passed):
        listed, said = state(invoke, passed), invoke("judge", "--format", "json")
        text, told = invoke("judge", "--format", "text").stdout, invoke("explain", "latest").stdout
        checked = invoke("verify", "latest").stdout

    assert listed == f"running (process {os.getpid()})"
    outcome = json.loads(said.stdout)
    assert (said.exit_code, outcome["verdict"], outcome["exit_status"]) == (22, "not-measured", 22)
    assert outcome["reasons"][0]["code"] == "run-folder-busy"
    assert outcome["cells"][0]["gates"][0]["change"] is not None
    assert (text.splitlines()[-1][:8], told[:8]) == ("RUNNING:", "RUNNING:")
    assert "unknown  verdict: " in checked
    assert (passed / "verdict.json").read_text() == f"{kept} "
    (passed / "verdict.json").write_text(kept)
    assert state(invoke, passed) == "pass"


@pytest.mark.usefixtures("passed")
def test_a_run_that_has_just_begun(invoke: Invoke, failed: Path) -> None:
    """One that runs and has not measured yet is told beside the latest that has, whatever an earlier visit said."""
    with hold(failed):
        result = invoke("judge")

    assert result.exit_code == 0
    assert f"newer: {failed.name}, running (process {os.getpid()})" in result.stderr


def piped(words: list[str]) -> tuple[int, str]:
    """The status of perfgate whose reader has gone, and what it said on stderr."""
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run(
        [sys.executable, "-m", "perfgate", *words], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    return process.returncode, process.stderr


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["explain"], 141),
        (["explain", "RUN"], 141),
        (["explain", "no-such-code"], 2),
        (["judge", "RUN"], 0),
        pytest.param(["verify", "RUN"], 0, marks=pytest.mark.needs("verify")),
        pytest.param(["judge", "RUN", "--format", "json"], 0, marks=pytest.mark.slow),
        *(
            pytest.param(words, 141, marks=pytest.mark.slow)
            for words in (["explain", "outputs-differ"], ["schema"], ["list"], ["report", "RUN"])
        ),
    ],
)
def test_a_closed_pipe_ends_quietly(passed: Path, words: list[str], status: int) -> None:
    """Whoever reads has seen enough: no word of it, the status of SIGPIPE, and that of a verdict where there is one."""
    ended, said = piped([passed.name if word == "RUN" else word for word in words])

    assert ended == status
    assert "internal error" not in said
    assert "Traceback" not in said
    assert "Exception ignored" not in said
    assert "roken pipe" not in said


@pytest.mark.needs("verify")
def test_a_closed_pipe_takes_no_verdict_away(passed: Path) -> None:
    """A run that is broken ends as that, however much of the checks was read."""
    (passed / "verdict.json").write_text("{}")

    assert piped(["verify", passed.name])[0] == 2
