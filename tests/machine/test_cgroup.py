"""A cgroup for each trial: on systems that permit one, and what is said and done on those that do not."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from perfgate_process import DEADLINE_S, wait_for

from perfgate.machine import cgroup, orphans, processes
from perfgate.machine.cgroup import Group, groups, own_folder, why_none
from perfgate.machine.children import Child, spawn
from perfgate.machine.orphans import end_orphans, find_orphans
from perfgate.machine.processes import owner_mark

MARK = "run a/b:12:34"
HYBRID = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw"
UNIFIED = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
FIRST_VERSION = "34 31 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
DOCKER = "900 899 0:26 /docker/1f /sys/fs/cgroup ro - cgroup2 cgroup rw"


@pytest.mark.parametrize(
    ("memberships", "mounts", "folder"),
    [
        (["0::/user.slice/run-1.scope"], [UNIFIED], "/sys/fs/cgroup/user.slice/run-1.scope"),
        (["4:memory:/x", "0::/"], [FIRST_VERSION, HYBRID], "/sys/fs/cgroup/unified"),
        (["0::/docker/1f/job"], [DOCKER], "/sys/fs/cgroup/job"),
        (["0::/system.slice/a:b"], [DOCKER, UNIFIED], "/sys/fs/cgroup/system.slice/a:b"),
        (["0::/../1e"], [UNIFIED], None),
        (["0::/docker/2e"], [DOCKER], None),
        (["4:memory:/x"], [FIRST_VERSION], None),
        (["0::/"], [FIRST_VERSION], None),
        (None, None, None),
    ],
)
def test_own_folder(
    tmp_path: Path, memberships: list[str] | None, mounts: list[str] | None, folder: str | None
) -> None:
    """Our cgroup is found where its hierarchy is shown, in containers too, and nothing is guessed elsewhere."""
    for name, lines in (("cgroup", memberships), ("mountinfo", mounts)):
        if lines is not None:
            (tmp_path / name).write_text("\n".join(lines) + "\n")

    assert own_folder(tmp_path) == (Path(folder) if folder else None)


# --- where none can be had


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is taken for our own cgroup and is none: the kernel does nothing there."""
    monkeypatch.setattr(cgroup, "own_folder", lambda: tmp_path / "own")
    monkeypatch.setattr(cgroup, "EMPTY_S", 0.0)
    (tmp_path / "own").mkdir()
    return tmp_path / "own"


def test_a_folder_without_cgroup_kill(elsewhere: Path) -> None:
    """A kernel that is too old is named, and what was made to find out is removed."""
    assert why_none() == "this kernel has no cgroup.kill (Linux 5.14)"
    assert list(elsewhere.iterdir()) == []


def test_a_folder_in_which_no_cgroup_may_be_made(elsewhere: Path) -> None:
    """The system's own words say why."""
    elsewhere.rmdir()
    assert why_none() == f"none can be made below {elsewhere}: No such file or directory"


@pytest.mark.parametrize(
    ("member", "why"),
    [
        (cgroup._MEMBER, "no process can join "),
        ('echo $$ > "$0" && echo in && read -r line', "a process in .* outlives"),
    ],
)
def test_a_folder_that_is_no_cgroup(elsewhere: Path, monkeypatch: pytest.MonkeyPatch, member: str, why: str) -> None:
    """That the files are there is not believed: a process must be seen to join, and to end by cgroup.kill."""
    make = Group.make.__func__  # type: ignore[attr-defined]

    def with_files(cls: type[Group], mark: str, token: str, below: Path) -> Group:
        group: Group = make(cls, mark, token, below)
        for name in ("cgroup.kill", "cgroup.procs"):
            (group.path / name).touch()
        return group

    monkeypatch.setattr(Group, "make", classmethod(with_files))
    monkeypatch.setattr(cgroup, "_MEMBER", member)
    assert re.match(why, why_none())
    assert str(elsewhere) in why_none()


def test_a_start_without_a_cgroup(elsewhere: Path, tmp_path: Path) -> None:
    """The program runs and ends below its supervisor, as on every such system."""
    child = spawn(["true"], environment={"PATH": os.environ["PATH"]}, owner=owner_mark("tests"),
                  log=tmp_path / "log", folder=tmp_path)  # fmt: skip
    assert child.wait(DEADLINE_S) == 0
    assert child.end() == ()
    assert list(elsewhere.iterdir()) == []


def test_names(elsewhere: Path) -> None:
    """A mark survives in the name of a folder; folders of other pid namespaces and other names are left alone."""
    made = Group.make(MARK, "0a", elsewhere)
    for name in ("perfgate-1-x%3A1%3A1-0a", "perfgate-", "perfgate-x", "system.slice"):
        (elsewhere / name).mkdir()

    assert [(group.path, group.mark) for group in groups()] == [(made.path, MARK)]


@pytest.mark.usefixtures("elsewhere", "orphans_alone")
def test_folders_of_dead_runs_are_removed(elsewhere: Path) -> None:
    """Those of living owners stay; with a run named, only that run's goes."""
    living = Group.make(f"other:{os.getppid()}:{processes.start_ticks(os.getppid())}", "01", elsewhere)
    dead = [Group.make(f"{run}:{os.getppid()}:1", "02", elsewhere) for run in ("one", "two")]

    assert end_orphans("one") == ()
    assert [group.path.exists() for group in (living, *dead)] == [True, False, True]


# --- where one can


@pytest.fixture
def own() -> Path:
    """Perfgate's own cgroup, on a system that permits cgroups below it."""
    if why := why_none():
        pytest.skip(f"no cgroup here: {why}")
    folder = own_folder()
    assert folder is not None
    return folder


@pytest.fixture
def apart(own: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What this process starts is in a cgroup of its own, where no perfgate of another test looks for dead runs."""
    folder = own / f"tests-{os.getpid()}"
    folder.mkdir()
    monkeypatch.setattr(cgroup, "own_folder", lambda: folder)
    yield
    folder.rmdir()


Start = Callable[..., tuple[Child, int]]


@pytest.fixture
def start(own: Path, tmp_path: Path) -> Iterator[Start]:
    """A function that starts a Python program and returns it when it is ready, with the end of a pipe.

    The pipe ends with the last process that came of the program, whatever became of its parents.
    """
    children = []

    def one(program: str, owner: str | None = None) -> tuple[Child, int]:
        ended, held = os.pipe()
        begun, ready = os.pipe()
        words = [sys.executable, "-c", f"import os, sys, time; own, ready = {str(own)!r}, {ready}\n{program}"]
        child = spawn(words, environment={"PATH": os.environ["PATH"]}, owner=owner or owner_mark("tests"),
                      log=tmp_path / "log", folder=tmp_path, pass_fds=(held, ready))  # fmt: skip
        children.append(child)
        os.close(held)
        os.close(ready)
        assert os.read(begun, 1) == b"!", (tmp_path / "log").read_text()
        os.close(begun)
        return child, ended

    yield one
    for child in children:
        child.end()


RELAY = """
if os.fork():
    os._exit(0)
os.setsid()
os.write(ready, b"!")
for _ in range(100_000):
    if os.fork():
        os._exit(0)
"""
"""A daemon of which every process starts the next one and ends."""


def all_ended(pipe: int) -> bool:
    """Whether nobody holds the other end any more, as soon as that is so."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(20_000)) and os.read(pipe, 1) == b""


def test_a_daemon_that_forks_without_end(start: Start, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with its trial, though no look ever finds a process of it, and its cgroup is removed."""
    before = set(own.iterdir())
    child, pipe = start(RELAY)
    assert set(own.iterdir()) - before
    monkeypatch.setattr(child, "_members", list)

    assert child.end() == ()

    assert all_ended(pipe)
    assert child._group is not None
    assert not child._group.path.exists()


def test_the_supervisor_stays_outside(start: Start) -> None:
    """The program is in the cgroup from its start; its supervisor is not, so it tells how the program was killed."""
    child, _ = start('os.write(ready, b"!"); time.sleep(600)')
    assert child._group is not None
    assert child._group.pids() == (child.pid,)

    child._group.kill()

    assert child.wait(DEADLINE_S) == -signal.SIGKILL
    assert child.end() == ()


def test_cgroups_that_the_program_makes(start: Start) -> None:
    """What it puts into a cgroup below its own is listed and ended with the rest."""
    child, pipe = start("""
below = own + "/" + os.path.basename(open("/proc/self/cgroup").read().split("0::")[1].strip()) + "/below"
os.mkdir(below)
open(below + "/cgroup.procs", "w").write("0")
os.write(ready, b"!")
time.sleep(600)
""")
    assert child._group is not None
    assert child._group.pids() == (child.pid,)

    assert child.end() == ()

    assert all_ended(pipe)
    assert not child._group.path.exists()


def test_a_program_that_leaves_its_cgroup(start: Start) -> None:
    """Whoever may make cgroups may leave them; it is found below its supervisor."""
    child, pipe = start("""
if os.fork():
    os._exit(0)
os.setsid()
open(own + "/cgroup.procs", "w").write("0")
os.write(ready, b"!")
time.sleep(600)
""")
    assert child._group is not None
    group = child._group
    wait_for(lambda: not group.pids())  # the first one may not have gone quite yet

    assert child.end() == ()

    assert all_ended(pipe)


@pytest.mark.usefixtures("apart", "orphans_alone")
def test_what_a_dead_run_left(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes are found and ended by their cgroup alone, though they show no mark and have no supervisor."""
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    mark = f"old-run:{gone.pid}:100"
    child, pipe = start('if not os.fork(): os.write(ready, b"!")\ntime.sleep(600)', mark)
    (left,) = psutil.Process(child.pid).children()
    child._supervisor.kill()  # and with it the program
    monkeypatch.setattr(orphans, "environment_of", lambda _: {})

    (found,) = [orphan for orphan in find_orphans() if orphan.pid == left.pid]

    assert found.mark == mark
    assert found in end_orphans("old-run")
    assert all_ended(pipe)
    assert [group for group in groups() if group.mark == mark] == []
