"""``run --against REF`` as a user has it: in a git repository, on fakes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner, Result
from fake_collector import FakeCollector, FakeSpec
from git_project import GitProject
from hand_made import scenario_file
from perfgate_process import DEADLINE_S, marking

from perfgate.cli.main import main
from perfgate.project.build import CACHE

RECIPE = """
[build]
python = "/bin/true"
path = "{tree}/plugin"
"""

Invoke = Callable[..., Result]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GitProject:
    """The current folder: a repository with a scenario and a plugin, on a branch with a commit of its own."""
    project = GitProject(tmp_path / "project")
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv(CACHE, str(tmp_path / "builds"))
    scenario_file(project.folder)
    project.commit({"perfgate.toml": RECIPE, "plugin/plugin.py": "1\n"})
    project.git("switch", "--quiet", "--create", "topic")
    project.commit({"plugin/plugin.py": "2\n"})
    return project


@pytest.fixture
def invoke(no_orphans: None) -> Invoke:  # noqa: ARG001 (no search of the machine)
    """A function that runs perfgate with a fake that takes the trials; its head is slower where that is said."""

    def one(*words: str, ratio: float = 1.0, sd: float = 0.0003) -> Result:
        spec = FakeSpec(head_ratio={"step": ratio}, restart_sd=sd)
        return CliRunner().invoke(main, words, obj=FakeCollector(spec))

    return one


def verdicts() -> list[dict[str, Any]]:
    """What every run of the project decided, the first one first."""
    files = sorted(Path("runs").glob("*/verdict.json"), key=lambda file: file.stat().st_mtime_ns)
    return [json.loads(file.read_text()) for file in files]


def test_a_branch_is_held_against_where_it_began(project: GitProject, invoke: Invoke) -> None:
    """The base is the merge base, the head the working tree; text, record and verdict say which commits these are."""
    project.git("switch", "--quiet", "main")
    base, _ = project.git("rev-parse", "HEAD"), project.commit({"plugin/plugin.py": "merged meanwhile\n"})
    project.git("switch", "--quiet", "topic")
    head = project.git("rev-parse", "HEAD")

    result = invoke("run", "tiny.yaml", "--against", "main", "--format", "text", "--seed", "1", ratio=1.01)

    assert result.exit_code == 10, result.output
    assert f"base built from {base[:12]}, head built from {head[:12]}" in result.stdout
    (run,) = Path("runs").iterdir()
    subjects = json.loads((run / "run.json").read_text())["subjects"]
    assert {side: one["built_from"]["commit"] for side, one in subjects.items()} == {"base": base, "head": head}
    texts = {side: Path(one["path"][0], "plugin.py").read_text() for side, one in subjects.items()}
    assert texts == {"base": "1\n", "head": "2\n"}


def test_what_is_built_from_is_no_part_of_the_cell(project: GitProject, invoke: Invoke) -> None:
    """Other commits measure the same cell, so that their records can be compared."""
    assert project.git("branch", "--show-current") == "topic"
    invoke("run", "tiny.yaml", "--against", "main", "--quick")
    invoke("run", "tiny.yaml", "--base", "ref=topic", "--head", "args.max_num_seqs=2", "--quick")
    one, other = (verdict["cells"][0] for verdict in verdicts())
    assert one["cell_id"] == other["cell_id"]
    assert one["built_from"] != other["built_from"]
    assert other["built_from"]["base"] == other["built_from"]["head"]


def test_a_dirty_tree_is_named_and_measured(project: GitProject, invoke: Invoke) -> None:
    """Uncommitted changes are the head, under a name of their own; run folders that lie there are none."""
    project.write({"plugin/plugin.py": "3\n"})
    for _ in range(2):
        assert invoke("run", "tiny.yaml", "--against", "main", "--quick").exit_code == 20
    names = [verdict["cells"][0]["built_from"]["head"] for verdict in verdicts()]
    assert names[0] == names[1]
    assert re.fullmatch(rf"{project.git('rev-parse', 'HEAD')[:12]}\+dirty\.[0-9a-f]{{12}}", names[0])
    (run, _) = Path("runs").iterdir()
    head = json.loads((run / "run.json").read_text())["subjects"]["head"]
    assert Path(head["path"][0], "plugin.py").read_text() == "3\n"


def test_the_same_commit_twice_is_an_a_a_run(project: GitProject, invoke: Invoke) -> None:
    """On main itself both sides are one build, whatever words named it, and the report says so."""
    project.git("switch", "--quiet", "main")
    result = invoke("run", "tiny.yaml", "--against", "main", "--format", "text", "--seed", "1")
    assert result.exit_code == 0
    assert f"both sides built from {project.git('rev-parse', 'HEAD')[:12]}" in result.stdout
    assert "caution same-subject" in result.stdout


def test_a_failed_build_ends_22_with_its_log_and_without_a_run(project: GitProject, invoke: Invoke) -> None:
    """Nothing is measured, and the last lines of the log are on stderr."""
    project.write({"perfgate.toml": RECIPE + 'commands = [["sh", "-c", "echo error: no rule; exit 2"]]\n'})
    result = invoke("run", "tiny.yaml", "--against", "main")
    assert (result.exit_code, result.stdout) == (22, "")
    assert "perfgate: build-failed: " in result.stderr
    assert "(merge base of main and HEAD): sh -c 'echo error: no rule; exit 2' ended with 2" in result.stderr
    assert "\nerror: no rule\n" in result.stderr
    assert not Path("runs").exists()


def test_a_wrong_scenario_is_found_before_anything_is_built(project: GitProject, invoke: Invoke) -> None:
    """A build takes an hour, a slip of the pen a second."""
    project.write({"tiny.yaml": "schema: 1\n"})
    assert invoke("run", "tiny.yaml", "--against", "main").exit_code == 2
    assert not Path(os.environ[CACHE]).exists()


def test_going_on_builds_only_what_was_lost_and_is_needed(project: GitProject, invoke: Invoke) -> None:
    """A decided run needs no build; one that goes on gets the same builds in the same places."""
    project.write({"plugin/plugin.py": "3\n"})
    invoke("run", "tiny.yaml", "--against", "main", "--seed", "1", sd=0.02)  # undecided after all looks
    (run,) = Path("runs").iterdir()
    shutil.rmtree(os.environ[CACHE])

    closed = invoke("run", "--resume", str(run))
    assert not Path(os.environ[CACHE]).exists()
    more = invoke("run", "--resume", str(run), "--more", "4", sd=0.02)

    assert (closed.exit_code, more.exit_code) == (20, 20), closed.output + more.output
    assert "16 pairs" in more.stdout
    head = json.loads((run / "run.json").read_text())["subjects"]["head"]
    assert Path(head["path"][0], "plugin.py").read_text() == "3\n"
    assert "--against cannot be given" in invoke("run", "--resume", str(run), "--against", "main").stderr


def test_clean_removes_the_builds_of_long_ago(project: GitProject, invoke: Invoke) -> None:
    """``perfgate clean --builds`` leaves what was used lately, and git's list of worktrees as it was."""
    invoke("run", "tiny.yaml", "--against", "main", "--quick")
    folders = [folder for folder in Path(os.environ[CACHE]).iterdir() if folder.name != "locks"]
    assert len(project.git("worktree", "list").splitlines()) == 3
    os.utime(folders[0] / "build.json", (0, 0))

    swept = invoke("clean", "--builds")

    assert f"removed {folders[0]}" in swept.stdout
    assert not folders[0].exists()
    assert folders[1].exists()
    assert len(project.git("worktree", "list").splitlines()) == 2


def runs(pid: int) -> bool:
    """Whether a process runs: one that has ended and that its new parent has yet to bury does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_build_that_is_interrupted_leaves_nothing_running(project: GitProject, tmp_path: Path) -> None:
    """SIGTERM in the middle of a build ends 130 with the command ended; the next run begins it anew."""
    project.write({"perfgate.toml": RECIPE + 'commands = [["sh", "-c", "echo $$ > pid; exec sleep 600"]]\n'})
    words = [*marking("PERFGATE_TESTED_BUILD"), "run", "tiny.yaml", "--against", "main"]
    with (tmp_path / "stderr").open("w") as stderr:
        process = subprocess.Popen(words, stderr=stderr)
    deadline_s = time.monotonic() + DEADLINE_S
    while not (found := [file for file in tmp_path.glob("builds/*/tree/pid") if file.read_text()]):
        assert process.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)

    assert process.wait(DEADLINE_S) == 130
    assert "perfgate: interrupted" in (tmp_path / "stderr").read_text()
    assert not runs(int(found[0].read_text()))
    assert json.loads((found[0].parents[1] / "build.json").read_text())["finished_utc"] is None


def test_doctor_builds_nothing(project: GitProject, invoke: Invoke) -> None:
    """A subject of perfgate.toml that is a ref is not looked at unasked, and asked for it is an error."""
    project.write({"perfgate.toml": RECIPE + '[subjects.base]\nref = "main"\n'})
    asked, unasked = invoke("doctor", "--base", "base"), invoke("doctor")
    assert (asked.exit_code, asked.stdout) == (2, "")
    assert "ref=main: nothing is built here" in asked.stderr
    assert "no subject named" in unasked.stdout
    assert not Path(os.environ[CACHE]).exists()
