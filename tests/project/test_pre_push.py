"""The pre-push hook in real pushes to a real bare remote: what it lets through and what it holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from git_project import GitProject

from perfgate.cli.main import main
from perfgate.errors import ExitStatus

SCENARIO = "scenarios/cpu-tiny.yaml"
HOOK = Path(__file__).parents[2] / "perfgate" / "templates" / "pre-push"


def init(folder: Path) -> Result:
    """``perfgate init --pre-push`` with the scenario of the CPU."""
    return CliRunner().invoke(main, ["init", str(folder), "--scenario", "cpu-tiny", "--pre-push"])


class Project(GitProject):
    """A repository as ``perfgate init --pre-push`` leaves it, nothing committed, with a bare remote."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "a project")
        self.remote = folder / "remote.git"
        self.git("init", "--quiet", "--bare", "--initial-branch=main", str(self.remote))
        self.git("remote", "add", "origin", str(self.remote))
        result = init(self.folder)
        assert result.exit_code == 0, result.output

    def text(self, name: str = SCENARIO) -> str:
        """A file of the working tree."""
        return (self.folder / name).read_text()

    def push(self, *words: str) -> str:
        """What ``git push`` said; it ends with an error where it is refused."""
        git = ["git", "-C", str(self.folder), "push", "--quiet", *(words or ("origin", "main"))]
        ended = subprocess.run(git, capture_output=True, text=True, check=False)
        return ended.stderr if ended.returncode == 0 else f"refused: {ended.stderr}"

    def pushed(self) -> str:
        """Where main is at the remote; empty before it is there."""
        return self.git("ls-remote", str(self.remote), "refs/heads/main").partition("\t")[0]


@pytest.fixture
def project(tmp_path: Path, forked: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A repository whose folder has a space in its name, and a perfgate that starts at once."""
    monkeypatch.setenv("PERFGATE", str(forked))
    return Project(tmp_path)


def test_a_good_push_is_checked_and_goes_through(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario and perfgate.toml are checked in the commit that is pushed, and nothing of the user's is touched.

    The hook calls the perfgate that wrote it.
    """
    monkeypatch.delenv("PERFGATE")
    commit = project.commit({})
    before = project.state()

    assert project.push() == f"perfgate: checked perfgate.toml {SCENARIO}\n"
    assert project.pushed() == commit
    assert [one for one in project.state() if one not in before and "refs/remotes" not in one] == []


@pytest.mark.parametrize(
    ("name", "old", "new", "problem"),
    [
        (SCENARIO, "batch: 8", "bacth: 8", f"{SCENARIO}:16:12: workload.bacth: unknown key (did you mean 'batch'?)"),
        ("perfgate.toml", "python =", "pyton =", "perfgate.toml: subjects.base.pyton: unknown key"),
    ],
)
def test_a_broken_push_is_refused(project: Project, name: str, old: str, new: str, problem: str) -> None:
    """The commit counts: mending the working tree alone does not help. --no-verify goes past the hook."""
    project.commit({})
    project.push()
    good, text = project.pushed(), project.text(name)
    broken = project.commit({name: text.replace(old, new, 1)})
    project.write({name: text})
    said = project.push()

    assert said.startswith("refused: ")
    assert problem in said
    assert project.pushed() == good
    project.push("--no-verify", "origin", "main")
    assert project.pushed() == broken


def test_a_model_concerns_every_scenario(project: Project) -> None:
    """A push that takes a model away is refused, though it touches no scenario."""
    project.commit({})
    project.push()
    project.git("mv", "scenarios/models/llama-tiny", "scenarios/models/llama")
    project.commit({})

    assert f"{SCENARIO}:6:19: engine.model.config: " in project.push()


def test_what_a_push_does_not_touch_is_not_checked(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push of other things needs no perfgate; one that touches a scenario does, and says so where there is none."""
    project.commit({})
    project.push("--no-verify", "origin", "main")
    monkeypatch.setenv("PERFGATE", "/nowhere/perfgate")

    project.commit({"README.md": "words"})
    assert project.push() == ""
    project.git("tag", "-a", "v1", "-m", "a release")
    assert project.push("origin", "v1", "HEAD:refs/heads/topic") == ""
    assert project.push("origin", ":topic") == ""
    project.commit({SCENARIO: project.text() + "# a word\n"})
    assert f"there is no perfgate to check {SCENARIO} with" in project.push()


def test_only_what_a_push_brings_is_checked(project: Project) -> None:
    """Not what goes, nor what is broken already; a new branch answers for the commits that the remote lacks."""
    good = project.text()
    project.commit({"scenarios/broken.yaml": good.replace("batch: 8", "bacth: 8")})
    project.push("--no-verify", "origin", "main")
    (project.folder / SCENARIO).unlink()
    commit = project.commit({})

    assert project.push() == ""
    assert project.pushed() == commit
    project.commit({"scenarios/other.yaml": good})
    assert project.push("origin", "HEAD:refs/heads/topic") == "perfgate: checked scenarios/other.yaml\n"


def test_another_hook_is_left(tmp_path: Path) -> None:
    """A pre-push hook that is there already stays, and so do hooks that other repositories share."""
    project = GitProject(tmp_path / "project")
    hook = project.folder / ".git" / "hooks" / "pre-push"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\n")
    assert f"left     {hook} (there already)" in init(project.folder).output
    assert hook.read_text() == "#!/bin/sh\n"

    project.git("config", "core.hooksPath", str(tmp_path / "shared"))
    result = init(project.folder)
    assert result.exit_code == ExitStatus.USAGE
    assert f"hooks lie outside this repository: {tmp_path / 'shared'}" in result.output


def test_hooks_in_the_working_tree_name_no_machine(tmp_path: Path) -> None:
    """A hook that is committed for everybody finds perfgate on their PATH."""
    project = GitProject(tmp_path)
    project.git("config", "core.hooksPath", ".githooks")
    init(project.folder)
    hook = (tmp_path / ".githooks" / "pre-push").read_text()
    assert "else command perfgate " in hook
    assert sys.prefix not in hook


def test_the_hook_is_clean_by_shellcheck() -> None:
    """The script holds before shellcheck."""
    shellcheck = Path(sys.executable).with_name("shellcheck")
    if not shellcheck.exists():
        pytest.skip("shellcheck comes with the development group")
    ended = subprocess.run([shellcheck, HOOK], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
