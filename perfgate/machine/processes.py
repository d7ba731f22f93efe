"""Child processes: started in a session of their own, marked, and ended with everything they started.

Every process started here carries two environment variables that its descendants inherit:

* ``PERFGATE_OWNER=<run name>:<pid of perfgate>:<its start in clock ticks since boot>``: whose it is. A process whose
  owner is gone is an orphan. A process without the mark, or with one that another version made, is never touched.
* ``PERFGATE_CHILD=<random>``: which start it stems from, so that a descendant which left the process group and lost its
  parents is still found.

A program can take both out of the environment of what it starts. So each is started by
:mod:`perfgate.machine.supervisor`, below which all that came of it stays, whatever it does to hide. Where the system
allows it, it gets a cgroup too (:mod:`perfgate.machine.cgroup`), which ends even what forks faster than one can look.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import psutil

from perfgate.machine import cgroup
from perfgate.machine.supervisor import SUPERVISOR

OWNER = "PERFGATE_OWNER"
CHILD = "PERFGATE_CHILD"

LADDER = ((signal.SIGINT, 3.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 1.5))
"""Signals in order, each with the seconds it is given; 6.5 s in all."""
RELEASE_S = 5.0
"""How long a supervisor is given to notice that it has nobody left; it takes milliseconds."""
POLL_S = 0.02
LAID_OUT_S = 0.2
"""How long a child that has just been started is given to show its variables; it takes microseconds."""
SAID_BYTES = 4096
"""A supervisor says less; the program can write to the same pipe, by way of ``/proc``."""

_OWN = ("LD_LIBRARY_PATH",)
"""What perfgate's own interpreter may need to start once more."""
_INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PROGRAM = Path(__file__).with_name("supervisor.py")
_BEGUN = re.compile(rb"(started|failed) (\d{1,9})\n")
_ENDED = re.compile(rb"^ended (-?\d{1,3})\n", re.MULTILINE)


def owner_mark(run_name: str) -> str:
    """The mark of processes started by this process for a run."""
    return f"{run_name}:{os.getpid()}:{_start_ticks(os.getpid())}"


def carries_mark(pid: int, owner: str) -> bool:
    """Whether a process was started, at any remove, under this mark; ``False`` where that may not be seen."""
    try:
        return _environment(psutil.Process(pid)).get(OWNER) == owner
    except psutil.NoSuchProcess:
        return False


class Child:
    """A program in a session and process group of its own, below its supervisor.

    Args:
        supervisor: The process just started.
        answers: The descriptor on which it tells how the program fares.
        marks: The variables that descendants carry.
        group: The cgroup that the program joins; ``None`` where there is none.
    """

    def __init__(
        self, supervisor: subprocess.Popen[bytes], answers: int, marks: Mapping[str, str], group: cgroup.Group | None
    ) -> None:
        self._supervisor = supervisor
        self._answers = answers
        self._group = group
        self._owner, self._token = marks[OWNER], marks[CHILD]
        self._heard = b""
        self._status: int | None = None
        self._pid = 0

    def begin(self) -> None:
        """Wait until the program runs.

        Raises:
            OSError: It cannot be run.
        """
        while b"\n" not in self._heard and self._hear(None):
            pass
        said = _BEGUN.match(self._heard)
        if said is not None and said[1] == b"started":
            self._pid = int(said[2])
            return
        code = int(said[2]) if said is not None else errno.ECHILD
        raise OSError(code, os.strerror(code))

    @property
    def pid(self) -> int:
        """Its process id, which is also that of its group and session."""
        return self._pid

    def poll(self) -> int | None:
        """The exit status, negative for a signal; ``None`` while it runs."""
        return self.wait(0)

    def wait(self, timeout_s: float) -> int | None:
        """The exit status as soon as there is one; ``None`` after ``timeout_s`` seconds without."""
        deadline = time.monotonic() + timeout_s
        while self._status is None and self._hear(max(0.0, deadline - time.monotonic())):
            pass
        return self._status

    def end(self) -> tuple[Orphan, ...]:
        """End it and all that came of it, by SIGINT, SIGTERM and SIGKILL; within 7 s, at once where nothing runs.

        A second Ctrl-C while this waits goes straight to SIGKILL and is then raised.

        Returns:
            What is still alive. Where that cannot be told the supervisor stands for it: it was ended before the others,
            or stays because something below it is never there when it is looked for.

        Raises:
            KeyboardInterrupt: The user was impatient; everything was killed first.
        """
        try:
            if not self._pid:  # interrupted there: what does not run yet cannot be found
                with contextlib.suppress(OSError):
                    self.begin()
            _climb(self._members, LADDER[:-1])
            self._kill()
        except KeyboardInterrupt:
            self._kill()
            raise
        finally:
            self.wait(0.5)
        left = [Orphan(p.pid, _name(p), self._owner) for p in self._members()]
        if not left and (odd := self._release()):
            left.append(Orphan(self._supervisor.pid, f"the supervisor of this process, {odd},", self._owner))
        if self._group is not None:
            self._group.remove()  # that of a process which does not end is found again by its mark
        return tuple(left)

    def _kill(self) -> None:
        """Kill what is left, seen or not."""
        if self._group is not None:
            self._group.kill()
        _climb(self._members, LADDER[-1:])

    def _hear(self, timeout_s: float | None) -> bool:
        """Take in what the supervisor says; ``False`` where it says nothing in time, or is gone."""
        if self._answers < 0:
            return False
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        if not poll.poll(None if timeout_s is None else 1000 * timeout_s):
            return False
        data = os.read(self._answers, 1024)
        self._heard = (self._heard + data)[-SAID_BYTES:]
        if not data:  # it has ended, by itself only after all the others
            ended = self._supervisor.wait()
            os.close(self._answers)
            self._answers = -1
            self._status = ended if self._status is None else self._status
        for status in _ENDED.findall(self._heard):
            self._status = int(status)
        return bool(data)

    def _release(self) -> str:
        """See the supervisor off once nothing is left for it to look after; says what is odd about its end."""
        if self._supervisor.poll() is None:
            self._supervisor.send_signal(signal.SIGCONT)  # the program may have stopped it
        while self._hear(RELEASE_S):
            pass
        status = self._supervisor.poll()
        if status is None:
            return "which still has somebody to look after"
        if status < 0:
            return f"ended by signal {-status}"
        return f"ended with status {status}" if status else ""

    def _members(self) -> list[psutil.Process]:
        """Everything alive that is below the supervisor or in a group of ours, or carries the token."""
        members = {p for p in _processes() if _in_group(p, self.pid) or _environment(p).get(CHILD) == self._token}
        if self._group is not None:
            members |= set(_named(self._group.pids()))
        with contextlib.suppress(psutil.NoSuchProcess):  # it ends with the last of them
            members |= set(psutil.Process(self._supervisor.pid).children(recursive=True))
        return [p for p in members if p.pid != self._supervisor.pid and _alive(p)]


def spawn(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    owner: str,
    log: Path,
    folder: Path,
    pass_fds: Sequence[int] = (),
) -> Child:
    """Start a marked process in its own session.

    Args:
        argv: Program and arguments; a program without a slash is sought in the ``PATH`` of ``environment``.
        environment: All variables it gets, beside the marks.
        owner: From :func:`owner_mark`.
        log: File that receives standard output and error, appended to; standard input is empty.
        folder: Working directory.
        pass_fds: Descriptors it inherits under the same numbers.

    Raises:
        OSError: The program cannot be run, or the log cannot be written.
    """
    # Without SPT_NOENV, setproctitle (vLLM names its workers with it) writes over the environment that /proc shows.
    marks = {OWNER: owner, CHILD: secrets.token_hex(8), "SPT_NOENV": "1"}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTIONS)  # until it is known what would have to be ended
    try:
        child = _supervise(argv, environment, marks, log, folder, pass_fds)
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        child.begin()
    except BaseException as error:
        child.end()
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, argv[0]) from error
        raise
    return child


def _supervise(
    argv: Sequence[str], environment: Mapping[str, str], marks: Mapping[str, str], log: Path, folder: Path,
    pass_fds: Sequence[int],
) -> Child:  # fmt: skip
    """Start a supervisor, which has none of the program's variables: a preloaded library would run in it too."""
    group = cgroup.make_group(marks[OWNER], marks[CHILD])
    answers, told = os.pipe()
    try:
        with log.open("ab") as output, _listed({**environment, **marks}) as variables, contextlib.ExitStack() as files:
            door = [files.enter_context(group.door.open("wb", 0)).fileno()] if group is not None else []
            words = (told, variables.fileno(), *(door or [-1]))
            supervisor = subprocess.Popen(  # noqa: S603 (the program is the subject under test, named by the user)
                [sys.executable, "-I", "-S", str(_PROGRAM), *map(str, words), *argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**{name: os.environ[name] for name in _OWN if name in os.environ}, **marks, SUPERVISOR: "1"},
                cwd=folder,
                pass_fds=(told, variables.fileno(), *door, *pass_fds),
                start_new_session=True,
            )
    except BaseException:
        os.close(answers)
        if group is not None:
            group.remove()
        raise
    finally:
        os.close(told)
    return Child(supervisor, answers, marks, group)


def _listed(variables: Mapping[str, str]) -> BinaryIO:
    """A file in memory with these variables as a supervisor reads them."""
    entries = [os.fsencode(f"{name}={value}") for name, value in variables.items()]
    if any(b"\0" in entry for entry in entries):
        raise ValueError("a NUL character in an environment variable")
    file = os.fdopen(os.memfd_create("variables"), "w+b")
    file.write(b"".join(entry + b"\0" for entry in entries))
    file.seek(0)
    return file


@dataclass(frozen=True)
class Orphan:
    """A process that an earlier trial or run left behind.

    Args:
        pid: Its process id.
        name: Its program's name.
        mark: Its ``PERFGATE_OWNER``.
    """

    pid: int
    name: str
    mark: str

    def __str__(self) -> str:
        """For people: ``python (pid 4711, of run NAME)``."""
        return f"{self.name} (pid {self.pid}, of run {self.mark.split(':', maxsplit=1)[0]})"


def find_orphans() -> tuple[Orphan, ...]:
    """Marked processes whose owner is gone, and those of this process's earlier trials.

    To be called between trials: what this process has running now would be listed too. Processes whose environment
    may not be read, and those in another pid namespace (where the owner's pid means something else), are left out.
    """
    return tuple(orphan for _, orphan in _find_orphans())


def end_orphans(run_name: str | None = None) -> tuple[Orphan, ...]:
    """End what :func:`find_orphans` lists, of one run where it is named, and return what ended; within 7 s."""
    found = _find_orphans()
    before = {p: orphan for p, orphan in found if run_name is None or orphan.mark.startswith(f"{run_name}:")}
    groups = [group for group in _left_groups() if run_name is None or group.mark.startswith(f"{run_name}:")]
    _climb(lambda: [p for p in before if _alive(p)], LADDER[:-1])
    for group in groups:
        group.kill()
    _climb(lambda: [p for p in before if _alive(p)], LADDER[-1:])
    for group in groups:
        group.remove()
    return tuple(orphan for process, orphan in before.items() if not _alive(process))


def end_runs(variables: Mapping[str, str]) -> tuple[Orphan, ...]:
    """End runs of perfgate that started with all of these variables and now have processes of their own; within 7 s.

    A CI job is known by its variables. A run ended so gives its clocks free and ends its engines if it is given time;
    what it leaves behind is an orphan then, see :func:`end_orphans`.
    """
    owners = dict(_find_owners(variables))
    if owners:
        _climb(lambda: [p for p in owners if _alive(p)], LADDER)
    return tuple(run for process, run in owners.items() if not _alive(process))


def _find_orphans() -> list[tuple[psutil.Process, Orphan]]:
    found: dict[psutil.Process, Orphan] = {}
    for process in _processes():
        environment = _environment(process)
        mark = environment.get(OWNER)
        if mark is None or not _alive(process) or process.pid == os.getpid() or not _same_namespace(process.pid):
            continue
        if not _left(mark):
            continue
        # A supervisor ends with the last process below it. Those may carry no mark.
        left = _below(process) if SUPERVISOR in environment else [process]
        found |= {one: Orphan(one.pid, _name(one), mark) for one in left if _alive(one)}
    for group in _left_groups():
        found |= {one: Orphan(one.pid, _name(one), group.mark) for one in _named(group.pids()) if _alive(one)}
    return list(found.items())


def _left_groups() -> list[cgroup.Group]:
    """The cgroups of owners that are gone, and of this process's earlier trials."""
    return [group for group in cgroup.groups() if _left(group.mark)]


def _left(mark: str) -> bool:
    """Whether what carries a mark is an orphan, or from an earlier trial of this process."""
    pid, ticks = _owner_of(mark)
    return ticks is not None and (pid == os.getpid() or _start_ticks(pid) != ticks)


def _named(pids: Iterable[int]) -> Iterator[psutil.Process]:
    """Processes by their numbers, without those that have ended."""
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)


def _below(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _find_owners(variables: Mapping[str, str]) -> Iterator[tuple[psutil.Process, Orphan]]:
    marks = {_environment(process).get(OWNER) for process in _processes() if _same_namespace(process.pid)}
    for mark in marks - {None}:
        pid, ticks = _owner_of(str(mark))
        if ticks is None or pid == os.getpid() or _start_ticks(pid) != ticks:
            continue
        with contextlib.suppress(psutil.NoSuchProcess):  # it may end between the two lines
            owner = psutil.Process(pid)
            if variables.items() <= _environment(owner).items():
                yield owner, Orphan(pid, _name(owner), str(mark))


def _owner_of(mark: str) -> tuple[int, int | None]:
    """Pid and start of the owner in a mark; no start where the mark is malformed."""
    try:
        _, pid, ticks = mark.rsplit(":", 2)
        return int(pid), int(ticks)
    except ValueError:
        return -1, None


def _start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; ``None`` for one that has ended, buried or not.

    Not psutil's create time: that adds the boot time, which the kernel reckons back from the wall clock, so that
    setting the clock would make an orphan of every engine.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # proc(5): the name in parentheses may hold anything; state is field 3 and starttime field 22, counted from 1.
    fields = stat.rpartition(b")")[2].split()
    return int(fields[19]) if fields[0] not in (b"Z", b"X") else None


def _climb(members: Callable[[], list[psutil.Process]], ladder: Iterable[tuple[signal.Signals, float]]) -> None:
    """Signal all members, wait for them, and go on with the next signal while any of them lives."""
    for number, grace_s in ladder:
        deadline = time.monotonic() + grace_s
        signalled: set[psutil.Process] = set()
        while alive := members():
            for process in alive:
                # A process is asked once a rung; one that appears late is asked too.
                if process not in signalled:
                    signalled.add(process)
                    _signal(process, number)
            if time.monotonic() > deadline:
                break
            _wait_briefly(alive, deadline)
        else:
            return


def _wait_briefly(processes: list[psutil.Process], deadline: float) -> None:
    """Return soon after all of these have ended, in any case after a quarter of a second, to look for new ones."""
    until = min(deadline, time.monotonic() + 0.25)
    while time.monotonic() < until and any(_alive(process) for process in processes):
        time.sleep(POLL_S)


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    # Gone meanwhile is what was wanted; one that may not be signalled stays alive, and callers look at that. psutil
    # compares create times, so a reused pid is never hit.
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        process.send_signal(number)


def _processes() -> list[psutil.Process]:
    return list(psutil.process_iter())


def _alive(process: psutil.Process) -> bool:
    """Running and no zombie: a zombie holds nothing, and only its parent can bury it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _in_group(process: psutil.Process, group: int) -> bool:
    try:
        return group > 0 and os.getpgid(process.pid) == group
    except (ProcessLookupError, PermissionError):
        return False


def _environment(process: psutil.Process) -> Mapping[str, str]:
    """The variables a process started with; none where they may not be read.

    One that has only just been started shows none for a moment: the kernel closes the pipe that tells of the start
    before it has laid out the new program's variables.
    """
    try:
        while not (found := process.environ()) and _is_young(process.pid) and _alive(process):
            time.sleep(0.002)
    except (psutil.Error, OSError):
        return {}
    return found


def _is_young(pid: int) -> bool:
    """Whether a process was started within :data:`LAID_OUT_S`; once the machine was suspended more pass for young."""
    ticks = _start_ticks(pid)
    return ticks is not None and ticks / os.sysconf("SC_CLK_TCK") > time.monotonic() - LAID_OUT_S


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return "?"


def _same_namespace(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino == Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return False
