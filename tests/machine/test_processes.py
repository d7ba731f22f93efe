"""Child processes: the ladder, descendants that left, and marks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from perfgate_process import DEADLINE_S, wait_for

from perfgate.machine import cgroup, children, orphans, processes
from perfgate.machine.children import Child, spawn
from perfgate.machine.orphans import end_orphans, find_orphans
from perfgate.machine.processes import CHILD, carries_mark, owner_mark

OWNER = "PERFGATE_TESTED_PROCESSES"
"""The variable that marks processes here: no perfgate of another test ends these as orphans."""
DEAF = """
import pathlib, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path("ready").touch()
time.sleep(600)
"""
SLEEPER = 'import pathlib, time; pathlib.Path("ready").touch(); time.sleep(600)'

Start = Callable[..., Child]


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.fixture(autouse=True)
def no_cgroup(monkeypatch: pytest.MonkeyPatch) -> None:
    """What holds without a cgroup, which few systems let a user have; test_cgroup.py has the rest."""
    monkeypatch.setattr(cgroup, "own_folder", lambda: None)


@pytest.fixture(autouse=True)
def own_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are marked by :data:`OWNER`."""
    for module in (children, orphans, processes):
        monkeypatch.setattr(module, "OWNER", OWNER)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A function that starts a Python program as a marked child and waits until it has written ``ready``."""
    children = []

    def one(program: str, owner: str | None = None) -> Child:
        (tmp_path / "ready").unlink(missing_ok=True)
        child = spawn(
            [sys.executable, "-c", program],
            environment={"PATH": os.environ["PATH"]},
            owner=owner or owner_mark("tests"),
            log=tmp_path / "log",
            folder=tmp_path,
        )
        children.append(child)
        wait_for((tmp_path / "ready").exists)
        return child

    yield one
    for child in children:
        child.end()


def test_child_has_its_own_session(start: Start) -> None:
    """A child leads a session and a group of its own, so that Ctrl-C in the terminal does not reach it."""
    child = start(SLEEPER)
    assert child.pid == os.getsid(child.pid)
    assert child.pid == os.getpgid(child.pid)


def test_child_of_a_background_job_hears_sigint(start: Start) -> None:
    """A shell's background job ignores SIGINT, but the children it starts do not, and it goes on ignoring it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = start(SLEEPER)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)

    child.end()

    assert child.poll() == -signal.SIGINT


def test_deaf_child_is_killed(start: Start) -> None:
    """A child that ignores SIGINT and SIGTERM is killed."""
    child = start(DEAF)
    child.end()
    assert child.poll() == -signal.SIGKILL


def test_order_of_the_ladder(start: Start, tmp_path: Path) -> None:
    """SIGINT comes first and SIGTERM second, each once."""
    program = """
import pathlib, signal, time
def note(number, frame):
    with open("seen", "a") as stream:
        stream.write(signal.Signals(number).name + " ")
    if number == signal.SIGTERM:
        raise SystemExit(7)
signal.signal(signal.SIGINT, note)
signal.signal(signal.SIGTERM, note)
pathlib.Path("ready").touch()
while True:
    time.sleep(0.05)
"""
    child = start(program)
    child.end()
    assert (tmp_path / "seen").read_text().split() == ["SIGINT", "SIGTERM"]
    assert child.poll() == 7


def test_ended_child_costs_nothing(start: Start, tmp_path: Path) -> None:
    """Ending a child that has ended is quick and may be repeated."""
    child = start('import pathlib; pathlib.Path("ready").touch()')
    assert child.wait(DEADLINE_S) == 0
    child.end()
    child.end()
    assert (tmp_path / "log").read_text() == ""


@pytest.mark.parametrize("parent_ends_first", [False, True])
def test_descendant_in_another_session(start: Start, tmp_path: Path, *, parent_ends_first: bool) -> None:
    """A grandchild in a session of its own is ended too, even if nothing but its token tells whose it is."""
    program = f"""
import pathlib, subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
pathlib.Path("pid").write_text(str(grandchild.pid))
pathlib.Path("ready").touch()
if not {parent_ends_first}:
    time.sleep(600)
"""
    child = start(program)
    if parent_ends_first:
        assert child.wait(DEADLINE_S) == 0
    grandchild = int((tmp_path / "pid").read_text())
    assert runs(grandchild)
    child.end()
    wait_for(lambda: not runs(grandchild))


def test_variables_are_the_programs_alone(tmp_path: Path) -> None:
    """The program gets what it was given and its marks; a library to preload is not loaded by the supervisor."""
    given = {"LD_PRELOAD": "/no/such/library", "WITH": "a=b\nc", "BYTES": "\udcff", "PERFGATE_NOTHING": ""}
    child = spawn(["/bin/cat", "/proc/self/environ"], environment=given, owner=owner_mark("x"), log=tmp_path / "log",
                  folder=tmp_path)  # fmt: skip
    assert child.wait(DEADLINE_S) == 0
    child.end()

    complaint, _, shown = (tmp_path / "log").read_bytes().rpartition(b"ignored.\n")
    variables = dict(os.fsdecode(entry).split("=", 1) for entry in shown.split(b"\0")[:-1])
    assert complaint.count(b"/no/such/library") == 1
    assert variables == given | {OWNER: owner_mark("x"), CHILD: variables[CHILD], "SPT_NOENV": "1"}


def test_variable_that_would_be_two(tmp_path: Path) -> None:
    """A NUL character ends a variable, so a value with one is refused."""
    with pytest.raises(ValueError, match="a NUL character in an environment variable"):
        spawn(["true"], environment={"A": "\0B="}, owner=owner_mark("x"), log=tmp_path / "log", folder=tmp_path)


DAEMON = """
import os, pathlib, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        pathlib.Path("pid").write_text(str(os.getpid()))
        program = "import pathlib, time; pathlib.Path('ready').touch(); time.sleep(600)"
        os.execve(sys.executable, ["python", "-c", program], {})
    os._exit(0)
os.wait()
if STAYS:
    time.sleep(600)
"""
"""Leaves its parents, its session and every variable behind."""

RELAY = """
import os, pathlib
pathlib.Path("ready").touch()
if os.fork():
    os._exit(0)
os.setsid()
while os.path.exists("ready"):
    if os.fork():
        os._exit(0)
"""
"""A daemon of which every process starts the next one and ends; it ends with the file ``ready``."""


@pytest.fixture
def daemon(start: Start, tmp_path: Path) -> Iterator[Callable[..., tuple[Child, psutil.Process]]]:
    """A function that starts a child which leaves a daemon; it returns both."""
    daemons = []

    def one(owner: str | None = None, *, stays: bool = False) -> tuple[Child, psutil.Process]:
        child = start(DAEMON.replace("STAYS", str(stays)), owner)
        if not stays:
            assert child.wait(DEADLINE_S) == 0
        daemons.append(psutil.Process(int((tmp_path / "pid").read_text())))
        return child, daemons[-1]

    yield one
    for left in daemons:
        with contextlib.suppress(psutil.NoSuchProcess):
            left.kill()


Daemon = Callable[..., tuple[Child, psutil.Process]]


@pytest.mark.parametrize("stays", [False, True])
def test_daemon_that_hides(daemon: Daemon, *, stays: bool) -> None:
    """A process without mark, parent and session of ours is ended with the program it came from."""
    child, hidden = daemon(stays=stays)
    assert processes.CHILD not in hidden.environ()

    assert child.end() == ()

    wait_for(lambda: not runs(hidden.pid))


@pytest.mark.usefixtures("orphans_alone")
@pytest.mark.parametrize("owner", ["gone", "ours"])
def test_daemon_of_an_owner_that_is_gone(daemon: Daemon, owner: str) -> None:
    """Whoever looks for orphans finds it too, under the name of the run that it came from."""
    mark = dead_owner() if owner == "gone" else owner_mark("tests")
    _, hidden = daemon(mark)

    (found,) = [orphan for orphan in find_orphans() if orphan.pid == hidden.pid]

    assert found.mark == mark
    assert found in end_orphans()
    wait_for(lambda: not runs(hidden.pid))


def test_what_does_not_end_is_named(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may not be signalled, as one of root's, is said to live."""
    child, hidden = daemon()
    with monkeypatch.context() as patched:
        patched.setattr(children, "LADDER", ((signal.SIGKILL, 0.0),))
        patched.setattr(processes, "_signal", lambda *_: None)
        (left,) = child.end()

    assert (left.pid, str(left).startswith(f"{hidden.name()} (pid {hidden.pid}, of run tests")) == (hidden.pid, True)


def test_supervisor_that_was_killed(start: Start) -> None:
    """Whoever kills it, as Ray does where a node is lost, leaves no engine running; what else it had nobody knows."""
    child = start(SLEEPER)
    child._supervisor.kill()
    wait_for(lambda: not runs(child.pid))

    (left,) = child.end()

    assert "the supervisor of this process, ended by signal 9" in str(left)
    assert child.poll() == -signal.SIGKILL


def test_daemon_that_is_never_seen(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """What forks faster than one can look is not there in any look; its supervisor, which stays, is named for it."""
    child, hidden = daemon()
    with monkeypatch.context() as patched:
        patched.setattr(child, "_members", list)
        patched.setattr(children, "RELEASE_S", 0.0)
        (left,) = child.end()

    assert "the supervisor of this process, which still has somebody to look after" in str(left)
    assert runs(left.pid)
    assert child.end() == ()
    assert not runs(hidden.pid)


def test_daemon_that_forks_without_end(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its processes lives for less than a look takes: it is caught by chance, or its trial is told of it."""
    child = start(RELAY)
    with monkeypatch.context() as patched:
        patched.setattr(children, "LADDER", ((signal.SIGKILL, 0.1),))
        patched.setattr(children, "RELEASE_S", 0.1)
        left = child.end()

    assert bool(left) == (child._supervisor.poll() is None)
    (tmp_path / "ready").unlink()
    assert child.end() == ()


def test_program_that_stops_its_supervisor(start: Start) -> None:
    """The supervisor goes on when the program is ended, and no status is lost."""
    child = start("import os, pathlib; os.kill(os.getppid(), 19); pathlib.Path('ready').touch()")
    wait_for(lambda: not runs(child.pid))  # its supervisor, which is stopped, has not buried it

    assert (child.end(), child.poll()) == ((), 0)


SPEAKS = """
import os, pathlib
supervisor = f"/proc/{os.getppid()}/fd"
for number in os.listdir(supervisor):
    if os.readlink(f"{supervisor}/{number}").startswith("pipe:"):
        os.write(os.open(f"{supervisor}/{number}", os.O_WRONLY), b"ended x\\nended " + b"9" * 9999 + b"\\nstarted -\\n")
pathlib.Path("ready").touch()
raise SystemExit(3)
"""


def test_program_that_speaks_for_its_supervisor(start: Start) -> None:
    """What is no answer of a supervisor is passed over, and not kept."""
    child = start(SPEAKS)

    assert child.wait(DEADLINE_S) == 3
    assert len(child._heard) <= children.SAID_BYTES
    assert child.end() == ()


def test_status_where_nobody_asks_for_children(start: Start) -> None:
    """SIGCHLD that is ignored is inherited, and then the kernel tells no parent how a child ended."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        child = start("import pathlib; pathlib.Path('ready').touch(); raise SystemExit(3)")
        assert child.wait(DEADLINE_S) == 3
        child.end()
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_children_of_the_program_that_uses_perfgate(start: Start) -> None:
    """What other parts of this very process start meanwhile is none of the trial's and left alone."""
    child = start(SLEEPER)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True) as other:
        child.end()
        assert other.poll() is None
        other.kill()


def test_second_interrupt_kills(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the ladder waits goes to SIGKILL at once and is raised afterwards."""
    child = start(DEAF)

    def interrupted(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(processes, "wait_until", interrupted)
    with pytest.raises(KeyboardInterrupt):
        child.end()
    assert child.poll() == -signal.SIGKILL


def dead_owner() -> str:
    """The mark of a process that has ended."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    return f"old-run:{gone.pid}:100"


def mark_of(pid: int) -> str:
    """The mark that a perfgate of that process id gives."""
    return f"their-run:{pid}:{processes.start_ticks(pid)}"


@pytest.mark.usefixtures("orphans_alone")
@pytest.mark.parametrize("how", ["gone", "pid reused", "ours"])
def test_orphans_are_found_and_ended(start: Start, how: str) -> None:
    """A marked process whose owner is gone, or that is left from our own trials, is listed, ended and returned."""
    mark = {
        "gone": dead_owner(),
        "pid reused": f"old-run:{os.getppid()}:1",
        "ours": owner_mark("tests"),
    }[how]
    child = start(SLEEPER, mark)
    (found,) = [orphan for orphan in find_orphans() if orphan.pid == child.pid]
    assert found.mark == mark
    assert f"pid {child.pid}" in str(found)
    assert found in end_orphans()
    assert child.wait(DEADLINE_S) == -signal.SIGINT
    assert child.pid not in [orphan.pid for orphan in find_orphans()]


@pytest.mark.usefixtures("orphans_alone")
def test_what_works_beside_is_no_orphan(start: Start) -> None:
    """Of this process only what carries the asker's mark is an orphan; of one that is gone all are."""
    ours, beside, gone = start(SLEEPER, owner_mark("tests:0")), start(SLEEPER, owner_mark("tests:1")), dead_owner()
    left = start(SLEEPER, gone)
    pids = {ours.pid, beside.pid, left.pid}
    assert {orphan.pid for orphan in find_orphans(owner_mark("tests:0"))} & pids == {ours.pid, left.pid}
    assert {orphan.pid for orphan in end_orphans(own=owner_mark("tests:0"))} & pids == {ours.pid, left.pid}
    assert beside.poll() is None


@pytest.mark.usefixtures("orphans_alone")
@pytest.mark.parametrize("mark", ["", "old-run", "old-run:1:1763668800.25", "old-run:one:1"])
def test_foreign_processes_are_left(start: Start, mark: str) -> None:
    """A process without a mark, and one whose owner lives or that another version marked, are left alone."""
    child = start(SLEEPER, mark or mark_of(os.getppid()))
    unmarked = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        assert not {child.pid, unmarked.pid} & {orphan.pid for orphan in find_orphans()}
        assert not {child.pid, unmarked.pid} & {orphan.pid for orphan in end_orphans()}
        assert child.poll() is None
        assert unmarked.poll() is None
    finally:
        unmarked.kill()
        unmarked.wait()


@pytest.mark.usefixtures("orphans_alone")
@pytest.mark.parametrize("jump_s", [-86400.0, 3600.0])
def test_clock_that_jumps(start: Start, monkeypatch: pytest.MonkeyPatch, jump_s: float) -> None:
    """Setting the wall clock, which moves every create time, makes no orphan of a process whose owner lives."""
    child = start(SLEEPER, mark_of(os.getppid()))
    create_time = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda one: create_time(one) + jump_s)
    assert child.pid not in [orphan.pid for orphan in find_orphans()]


@pytest.mark.usefixtures("orphans_alone")
def test_owner_that_nobody_buried(start: Start) -> None:
    """A killed owner that its parent has not waited for yet is gone all the same."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as owner:
        child = start(SLEEPER, mark_of(owner.pid))
        assert child.pid not in [orphan.pid for orphan in find_orphans()]
        owner.kill()
        wait_for(lambda: child.pid in [orphan.pid for orphan in find_orphans()])


def test_start_of_a_process() -> None:
    """The start of a process is the same whenever it is asked for, differs from its parent's, and ends with it."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        started = processes.start_ticks(other.pid)
        assert started is not None
        assert started == processes.start_ticks(other.pid)
        assert started > (processes.start_ticks(os.getpid()) or 0)
    assert processes.start_ticks(other.pid) is None


@pytest.mark.parametrize("when", ["before it is known", "while it is waited for"])
def test_interruption_while_a_child_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """Whenever Ctrl-C comes, nothing that was started goes on."""
    plain = subprocess.Popen

    def interrupted(*words: Any, **named: Any) -> Any:
        started = plain(*words, **named)
        signal.raise_signal(signal.SIGINT)
        return started

    def begin(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    if when == "before it is known":
        monkeypatch.setattr("perfgate.machine.children.subprocess.Popen", interrupted)
    else:
        monkeypatch.setattr(Child, "begin", begin)

    with pytest.raises(KeyboardInterrupt):
        spawn(["sleep", "600"], environment=dict(os.environ), owner=owner_mark("interrupted"), log=tmp_path / "log",
              folder=tmp_path)  # fmt: skip

    assert [orphan for orphan in find_orphans() if orphan.mark.startswith("interrupted:")] == []


def test_missing_program(tmp_path: Path) -> None:
    """A program that does not exist is an OSError that names it."""
    with pytest.raises(FileNotFoundError) as caught:
        spawn(["/no/such/python"], environment={}, owner=owner_mark("x"), log=tmp_path / "log", folder=tmp_path)
    assert caught.value.filename == "/no/such/python"


def test_the_mark_of_a_process_just_started_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child shows no variables for a moment after its start; it is looked at again before it counts as a stranger."""
    child = spawn(["sleep", "600"], environment=dict(os.environ), owner=owner_mark("soon"), log=tmp_path / "log",
                  folder=tmp_path)  # fmt: skip
    monkeypatch.setattr("perfgate.machine.processes.LAID_OUT_S", DEADLINE_S)  # young also on a busy machine
    shown, empty = psutil.Process.environ, iter(range(2))
    monkeypatch.setattr(psutil.Process, "environ", lambda self: {} if next(empty, None) is not None else shown(self))
    try:
        assert carries_mark(child.pid, owner_mark("soon"))
    finally:
        child.end()


def test_an_interruption_on_the_way_blocks_none_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C that came just before is raised by the call that blocks; the next one is heard."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    block = signal.pthread_sigmask

    def interrupted(how: int, mask: Sequence[int]) -> set[int]:
        found = block(how, mask)
        if how == signal.SIG_BLOCK and mask:
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patched:
        patched.setattr(signal, "pthread_sigmask", interrupted)
        with pytest.raises(KeyboardInterrupt), processes.interruptions_blocked():
            pass
    after = signal.pthread_sigmask(signal.SIG_SETMASK, before)

    assert after == before
