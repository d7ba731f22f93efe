"""A git ref becomes a subject: once, whole, and with its log where it cannot."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deep_tree import deep_tree
from git_project import GitProject
from perfgate_process import DEADLINE_S, MARKED, wait_for

from perfgate.errors import ExitStatus, NotMeasuredError, UsageError
from perfgate.machine import cgroup
from perfgate.machine.children import Child, spawn
from perfgate.machine.locks import hold_named
from perfgate.machine.orphans import find_orphans
from perfgate.project.build import CACHE, Builder, cache_folder, sweep_builds
from perfgate.project.config import Config, load_config
from perfgate.scenario.subject_words import resolve

COPY = """
[build]
python = "{env}/python"
commands = [["sh", "-ec", "mkdir '{env}'; cp code.py '{env}/python'; echo made >> '{here}/made'"]]
"""
"""A recipe that needs nothing but a shell, and leaves a line for every time it is carried out."""

PROGRAM = f"""{MARKED}
import sys
from pathlib import Path
from perfgate.project.build import Builder
from perfgate.project.config import load_config
print(Builder(load_config(Path(sys.argv[1])), lambda text: print(text, flush=True))(sys.argv[2])["python"], flush=True)
"""
"""perfgate's builder in a process of its own, to be watched and killed."""


class Project:
    """A repository with a recipe, and the cache of its builds."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.repository = GitProject(folder)
        self.folder = folder
        self.cache = cache
        self.told: list[str] = []
        self.recipe(COPY)
        self.repository.commit({"code.py": "one\n", ".gitignore": "/made\n/go\n"})

    def recipe(self, text: str) -> None:
        """Write perfgate.toml."""
        (self.folder / "perfgate.toml").write_text(text)

    @property
    def config(self) -> Config:
        """perfgate.toml as it is now."""
        return load_config(self.folder / "perfgate.toml")

    @property
    def builder(self) -> Builder:
        """A fresh builder."""
        return Builder(self.config, self.told.append)

    def made(self) -> int:
        """How often the recipe was carried out."""
        file = self.folder / "made"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def builds(self) -> list[Path]:
        """The folders of builds."""
        return sorted(folder for folder in self.cache.iterdir() if folder.name != "locks")

    def start(self, ref: str = "main") -> subprocess.Popen[str]:
        """A process that builds a ref."""
        words = [sys.executable, "-c", PROGRAM, str(self.folder / "perfgate.toml"), ref]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose folder has a space in its name, with a cache of its own."""
    monkeypatch.setenv(CACHE, str(tmp_path / "builds"))
    return Project(tmp_path / "a project", tmp_path / "builds")


def failure(make: Callable[[], object]) -> NotMeasuredError:
    """The error that a build fails with."""
    with pytest.raises(NotMeasuredError) as caught:
        make()
    assert caught.value.code == "build-failed"
    assert caught.value.exit_status is ExitStatus.NOT_MEASURED
    return caught.value


def test_a_ref_is_built_once(project: Project) -> None:
    """The second time it is there already; another commit and the uncommitted changes are builds of their own."""
    first = project.builder("main")
    again = project.builder("main")
    project.repository.write({"code.py": "two\n"})
    dirty = project.builder(".")
    project.repository.commit({})
    second = project.builder("main")

    assert first == again
    assert Path(first["python"]).read_text() == "one\n"
    assert Path(dirty["python"]).read_text() == Path(second["python"]).read_text() == "two\n"
    assert project.made() == 3
    assert dirty["built_from"].commit == first["built_from"].commit
    assert dirty["built_from"].name == f"{first['built_from'].name}+dirty.{dirty['built_from'].changes[:12]}"
    assert (first["built_from"].changes, second["built_from"].changes) == ("", "")


def test_a_build_in_a_named_cache_is_trusted(project: Project) -> None:
    """Whoever can write the cache decides what is measured: a build is not looked at again once it is finished."""
    Path(project.builder("main")["python"]).write_text("changed by an earlier job\n")

    assert Path(project.builder("main")["python"]).read_text() == "changed by an earlier job\n"
    assert project.made() == 1


def test_both_sides_of_an_unchanged_tree_are_one_build(project: Project) -> None:
    """--against main on main, with nothing changed, is an A/A run of one build."""
    sides = resolve(["ref=main...HEAD"], ["ref=."], {}, project.builder)
    assert sides["base"].python == sides["head"].python
    assert project.made() == 1


def test_what_is_made_from_elsewhere_is_part_of_the_key(project: Project) -> None:
    """Other commands and other content of inputs build anew; what the subject merely is does not."""
    project.recipe(COPY + 'inputs = ["*.lock"]\n')
    with pytest.raises(UsageError, match=r"build\.inputs: no file is called \*\.lock"):
        project.builder("main")
    (project.folder / "a.lock").write_text("1")
    project.builder("main")
    project.recipe(COPY + 'inputs = ["*.lock"]\nenv = {X = 1}\ntimeout = "1min"\n')
    assert project.builder("main")["env"] == {"X": "1"}
    assert project.made() == 1
    (project.folder / "a.lock").write_text("2")
    project.builder("main")
    assert project.made() == 2
    project.recipe(COPY.replace("mkdir", "mkdir -p") + 'inputs = ["*.lock"]\n')
    project.builder("main")
    assert project.made() == 3


def test_a_package_that_needs_no_build_is_its_tree(project: Project) -> None:
    """Without commands the checkout itself is the subject; a relative python is the one beside perfgate.toml."""
    project.recipe('[build]\npython = "engine/bin/python"\npath = "{tree}"\nenv = {COMMIT = "{commit}", B = "{{}}"}\n')
    said = project.builder("main")
    assert said["python"] == f"{project.folder}/engine/bin/python"
    assert Path(said["path"][0], "code.py").read_text() == "one\n"
    assert said["env"] == {"COMMIT": said["built_from"].commit, "B": "{}"}


def test_which_variables_commands_get(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell's, but no module path, which would hide what engines lack, and nothing to speak to a CI's runner by."""
    for name in ("ENV", "PATH", "OUTPUT", "STATE", "STEP_SUMMARY", "TOKEN", "WORKSPACE"):
        monkeypatch.setenv(f"GITHUB_{name}", "x")
    monkeypatch.setenv("ACTIONS_RUNTIME_TOKEN", "x")
    monkeypatch.setenv("MY_PROXY", "p")
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", "x"))
    project.recipe('[build]\npath = "{env}"\ncommands = [["mkdir", "{env}"], ["sh", "-c", "env > {env}/seen"]]\n')
    seen = Path(project.builder("main")["path"][0], "seen").read_text()
    assert "MY_PROXY=p\n" in seen
    assert "PYTHONPATH=" not in seen
    assert [line for line in seen.splitlines() if line.startswith(("GITHUB_", "ACTIONS_"))] == ["GITHUB_WORKSPACE=x"]


def test_a_word_may_begin_at_home(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """``~/`` at the beginning of a word is the user's home, whatever its name; elsewhere it is a plain sign."""
    home = project.folder / "home {x}"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    program = home / "copy"
    program.write_text('#!/bin/sh\nprintf "%s" "$*" > "$2"\n')
    program.chmod(0o755)
    project.recipe('[build]\npath = "{env}"\ncommands = [["mkdir", "{env}"], ["~/copy", "a~/b", "{env}/said"]]\n')

    build = project.builder("HEAD")
    assert (Path(build["path"][0]) / "said").read_text() == f"a~/b {build['path'][0]}/said"


@pytest.mark.parametrize(
    ("commands", "problem"),
    [
        ('[["sh", "-c", "echo compiling; echo ld: undefined symbol >&2; exit 3"]]', "ended with 3"),
        ('[["no-such-program", "x"]]', "cannot be run: No such file or directory"),
        ('[["./code.py"]]', "cannot be run: Permission denied"),
        ('[["true"]]', "did not create "),
    ],
)
def test_a_build_that_fails_is_not_measured_and_shows_its_log(project: Project, commands: str, problem: str) -> None:
    """The error names the commit, the command and the last lines; nothing of it is used, and mended it is built."""
    project.recipe(f'[build]\npython = "{{env}}/python"\ncommands = {commands}\n')
    error = failure(lambda: project.builder("main"))
    assert problem in str(error)
    assert str(error).startswith(f"{project.repository.git('rev-parse', 'HEAD')[:12]} (main): ")
    if "ended" in problem:
        assert error.text.endswith("compiling\nld: undefined symbol")
        log = Path(error.text.partition("the last lines of ")[2].partition(":\n")[0])
        assert log.read_text().startswith("$ sh -c 'echo compiling")
    assert problem in str(failure(lambda: project.builder("main")))


def test_a_build_that_takes_too_long_is_ended(project: Project) -> None:
    """What it started goes with it, and the reason says which key of perfgate.toml sets the limit."""
    project.recipe('[build]\npath = "{tree}"\ntimeout = "0.3s"\ncommands = [["sh", "-c", "echo slow; sleep 600"]]\n')
    error = failure(lambda: project.builder("main"))
    assert "sleep 600' did not end within [build] timeout" in str(error)
    assert error.text.endswith("slow")
    assert not find_orphans()


def test_hosts_that_share_the_cache_each_fail_once(project: Project) -> None:
    """In whatever turn their builders come; one of another run builds again, and one that succeeds does so for all."""
    project.recipe(COPY.replace("mkdir", "echo tried >> '{here}/made'; test -e '{here}/go'; mkdir"))
    builders = {once_in: Builder(project.config, project.told.append, once_in=once_in) for once_in in ("A", "B", "C")}

    texts = {once_in: failure(partial(builders[once_in], "main")).finding for once_in in "AB"}

    assert {once_in: failure(partial(builders[once_in], "main")).finding for once_in in "ABAB"} == texts
    assert project.made() == 2
    (project.folder / "go").touch()
    assert builders["C"]("main") == builders["A"]("main")


def test_an_interruption_before_the_command_is_known_ends_it(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that was started and not yet handed over when Ctrl-C came does not go on alone."""
    started: list[Child] = []

    def interrupted(*passed: Any, **rest: Any) -> Child:
        started.append(spawn(*passed, **rest))
        raise KeyboardInterrupt

    project.recipe('[build]\npath = "{tree}"\ncommands = [["sleep", "600"]]\n')
    monkeypatch.setattr("perfgate.project.build.spawn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        project.builder("main")
    assert started[0].wait(DEADLINE_S) is not None
    assert started[0].end() == ()


def test_a_virtual_environment_whose_python_went_is_made_again(project: Project) -> None:
    """A cache that has lost a part of a build has lost the build."""
    python = Path(project.builder("main")["python"])
    python.unlink()
    assert Path(project.builder("main")["python"]).read_text() == "one\n"
    assert project.made() == 2


def test_two_builds_of_one_commit_at_once_make_one(project: Project) -> None:
    """The second process waits for the first, says for whom, and uses what it made."""
    project.recipe(COPY.replace("mkdir", "while ! [ -e '{here}/go' ]; do sleep 0.05; done; mkdir"))
    first = project.start()
    wait_for(lambda: [*project.cache.glob("*/build-*.log")])
    second = project.start("main~0")
    assert second.stdout is not None
    told = second.stdout.readline()
    (project.folder / "go").touch()
    ended = [process.communicate(timeout=DEADLINE_S) for process in (first, second)]

    assert [first.returncode, second.returncode] == [0, 0], ended
    assert f"in use by process {first.pid} (building " in told
    assert ended[0][0].splitlines()[-1] == ended[1][0].splitlines()[-1]
    assert "built before" in ended[1][0]
    assert project.made() == 1


def test_a_build_that_was_killed_is_begun_anew(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """After kill -9 the next run ends the command that went on, uses nothing of the half build, and has a whole one."""
    # A mark of its own: any other perfgate of this machine would end the command first.
    monkeypatch.setenv("PERFGATE_TESTS_OWNER", "PERFGATE_KILLED_BUILD")
    monkeypatch.setattr("perfgate.machine.orphans.OWNER", "PERFGATE_KILLED_BUILD")
    # The shell dies with perfgate, which is its supervisor's doing; what it started beside goes on.
    waiting = COPY.replace("mkdir '{env}';", "mkdir '{env}'; echo half > '{env}/python'; "
                           "while ! [ -e '{here}/go' ]; do sleep 0.05; done & wait $!;")  # fmt: skip
    project.recipe(waiting)
    killed = project.start()
    wait_for(lambda: [*project.cache.glob("*/env/python")])
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=DEADLINE_S)
    (folder,) = project.builds()
    assert json.loads((folder / "build.json").read_text())["finished_utc"] is None
    assert not [group for group in cgroup.groups() if folder.name in group.mark], "any other perfgate would end it"
    left = [orphan for orphan in find_orphans() if folder.name in orphan.mark]
    assert left, "the command goes on without its parent"

    next_one = project.start()
    wait_for(lambda: len([*folder.glob("build-*.log")]) == 2)
    assert not {one.pid for one in left} & {one.pid for one in find_orphans()}, "it was ended before"
    (project.folder / "go").touch()
    out, err = next_one.communicate(timeout=DEADLINE_S)

    assert next_one.returncode == 0, err
    assert Path(out.splitlines()[-1]).read_text() == "one\n"
    assert project.made() == 1, "the first one's command was ended"
    assert not [orphan for orphan in find_orphans() if folder.name in orphan.mark]


def test_a_build_that_the_cache_lost_is_restored_in_its_place(project: Project) -> None:
    """A run that goes on finds its subjects where its manifest says, uncommitted changes included; by one recipe."""
    project.repository.write({"code.py": "two\n"})
    subject = resolve(["ref=."], [], {}, project.builder)["base"]
    project.repository.write({"code.py": "three\n"})
    project.builder.restore(subject)
    assert project.made() == 1
    shutil.rmtree(project.cache)

    project.builder.restore(subject)

    assert Path(subject.python).read_text() == "two\n"
    assert project.made() == 2
    project.recipe(COPY.replace("mkdir", "mkdir -p"))
    project.builder.restore(subject)
    shutil.rmtree(project.cache)
    error = failure(lambda: project.builder.restore(subject))
    assert "perfgate.toml has another recipe now" in str(error)


def test_sweeping_removes_half_and_old_builds_with_their_worktrees(project: Project) -> None:
    """Builds in use and in the making stay, and so does everything that is no build."""
    half, new = project.builder("main"), project.repository.commit({"code.py": "two\n"})
    project.builder("main")
    (project.cache / "notes").mkdir()
    state = Path(half["built_from"].folder) / "build.json"
    state.write_text(state.read_text().replace('"finished_utc": "', '"finished_utc": null, "x": "'))
    busy = next(folder for folder in project.builds() if folder.name.startswith(new[:12]))

    swept = list(sweep_builds(project.cache, 14))
    assert [str(one) for one in swept] == [f"removed {half['built_from'].folder}"]
    os.utime(busy / "build.json", (0, 0))
    with hold_named(project.cache / "locks", busy.name, "building", lambda _: None, 0):
        (kept,) = sweep_builds(project.cache, 14)
    assert "is still in use by process" in kept.kept
    assert [one.kept for one in sweep_builds(project.cache, 14)] == [""]

    assert project.builds() == [project.cache / "notes"]
    assert len(project.repository.git("worktree", "list").splitlines()) == 1
    assert list(sweep_builds(project.cache / "absent", 14)) == []


@pytest.mark.parametrize("part", ["tree", "env", "more"])
def test_what_a_recipe_made_does_not_hold_sweeping(project: Project, part: str) -> None:
    """Its commands are the code's that is built; more folders in folders than Python can go down stopped each sweep."""
    folder = Path(project.builder("main")["built_from"].folder)
    (folder / part).mkdir(exist_ok=True)
    with deep_tree(folder / part):
        os.utime(folder / "build.json", (0, 0))
        assert [str(one) for one in sweep_builds(project.cache, 14)] == [f"removed {folder}"]
        assert project.builds() == []


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({CACHE: "/b"}, "/b"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/perfgate/builds"),
        ({"HOME": "/h"}, "/h/.cache/perfgate/builds"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "relative"}, "/h/.cache/perfgate/builds"),
    ],
)
def test_where_builds_are_kept(variables: Mapping[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable goes first, then the user's folder for caches as the XDG specification has it."""
    for name in (CACHE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder(Config()) == Path(expected)


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a home."""
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)


@pytest.mark.usefixtures("homeless")
def test_a_user_without_a_home_builds_where_it_is_told(project: Project) -> None:
    """Only a word that begins with ``~/`` needs a home; it is named."""
    project.builder("main")
    project.recipe('[build]\npath = "{tree}"\ncommands = [["~/copy", "{env}"]]\n')
    with pytest.raises(UsageError, match=r"build\.commands: ~/copy: the user has no home folder"):
        project.builder("main")


@pytest.mark.usefixtures("homeless")
def test_a_user_without_a_home_is_told_to_name_a_folder(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a variable nor a home says where builds are to be: that is said with the variable that does."""
    monkeypatch.delenv(CACHE)
    assert cache_folder(Config()) is None
    with pytest.raises(UsageError, match="no home folder") as caught:
        project.builder("main")
    assert CACHE in caught.value.remedy


def test_perfgate_toml_can_say_where_builds_are_kept(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cache is taken from its own folder, and lying in the working tree it is no change of that."""
    monkeypatch.delenv(CACHE)
    project.recipe(COPY + 'cache = ".builds"\n')
    assert cache_folder(project.config) == project.folder / ".builds"
    commit = project.repository.commit({})
    for _ in range(2):
        assert project.builder(".")["built_from"].name == commit[:12]


def test_a_ref_without_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ref that is not there is told first; then a recipe that can be put into perfgate.toml as it is printed."""
    repository = GitProject(tmp_path)
    repository.commit({"perfgate.toml": '[subjects.base]\npython = "own/bin/python"\n'})
    monkeypatch.chdir(tmp_path)
    builder = Builder(load_config(), lambda _: None)

    with pytest.raises(UsageError, match="there is no commit nope"):
        builder("nope...HEAD")
    with pytest.raises(UsageError, match=r"needs \[build\]") as caught:
        builder("HEAD")

    printed = "\n".join(line.strip() for line in caught.value.remedy.splitlines()[1:])
    with (tmp_path / "perfgate.toml").open("a") as stream:
        stream.write(printed)
    recipe = load_config().build
    assert recipe is not None
    assert (recipe.python, recipe.path) == (str(tmp_path / "own/bin/python"), ("{tree}",))
