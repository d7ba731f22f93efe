"""Processes of this machine: what is alive, whose it is, and how it is ended.

Every process that perfgate starts carries two environment variables that its descendants inherit:

* ``PERFGATE_OWNER=<run name>:<pid of perfgate>:<its start in clock ticks since boot>``: whose it is. A process whose
  owner is gone is an orphan. A process without the mark, or with one that another version made, is never touched.
* ``PERFGATE_CHILD=<random>``: which start it stems from, so that a descendant which left the process group and lost its
  parents is still found.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from perfgate.machine.supervisor import INTERRUPTIONS

OWNER = "PERFGATE_OWNER"
CHILD = "PERFGATE_CHILD"
AHEAD: Final[set[str]] = set()
"""The ``PERFGATE_CHILD`` of what this process has started for a later trial: no earlier one left it behind."""

Ladder = Sequence[tuple[signal.Signals, float]]
LADDER: Final[Ladder] = ((signal.SIGINT, 3.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 1.5))
"""Signals in order, each with the seconds it is given; 6.5 s in all."""
LAID_OUT_S = 0.2
"""How long a child that has just been started is given to show its variables; it takes microseconds."""


def owner_mark(run_name: str) -> str:
    """The mark of processes started by this process for a run."""
    return f"{run_name}:{os.getpid()}:{start_ticks(os.getpid())}"


def carries_mark(pid: int, owner: str) -> bool:
    """Whether a process was started, at any remove, under this mark; ``False`` where that may not be seen."""
    try:
        return environment_of(psutil.Process(pid)).get(OWNER) == owner
    except psutil.NoSuchProcess:
        return False


@dataclass(frozen=True)
class Orphan:
    """A process that an earlier trial or run left behind, with its program's name and its ``PERFGATE_OWNER``."""

    pid: int
    name: str
    mark: str

    def __str__(self) -> str:
        """For people: ``python (pid 4711, of run NAME)``."""
        return f"{self.name} (pid {self.pid}, of run {self.mark.split(':', maxsplit=1)[0]})"


def owner_of(mark: str) -> tuple[int, int | None]:
    """Pid and start of the owner in a mark; no start where the mark is malformed."""
    try:
        _, pid, ticks = mark.rsplit(":", 2)
        return int(pid), int(ticks)
    except ValueError:
        return -1, None


def start_ticks(pid: int) -> int | None:
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


def climb(members: Callable[[], list[psutil.Process]], ladder: Ladder) -> None:
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
            # Soon after all of these have ended, in any case after a quarter of a second: to look for new ones.
            wait_until(lambda: not any(map(is_alive, alive)), min(deadline - time.monotonic(), 0.25))
        else:
            return


def wait_until(holds: Callable[[], bool], limit_s: float, poll_s: float = 0.02) -> bool:
    """Look again and again whether something holds, at least once; whether it does, at the latest after ``limit_s``."""
    until_s = time.monotonic() + limit_s
    while not (held := holds()) and time.monotonic() < until_s:
        time.sleep(poll_s)
    return held


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    # Gone meanwhile is what was wanted; one that may not be signalled stays alive, and callers look at that. psutil
    # compares create times, so a reused pid is never hit.
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        process.send_signal(number)
        if number != signal.SIGKILL:
            process.send_signal(signal.SIGCONT)  # one that is stopped heeds nothing else


def with_ids(pids: Iterable[int]) -> Iterator[psutil.Process]:
    """Processes by their numbers, without those that have ended."""
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)


def is_alive(process: psutil.Process) -> bool:
    """Running and no zombie: a zombie holds nothing, and only its parent can bury it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def in_group(process: psutil.Process, group: int) -> bool:
    """Whether a process is in that process group; of none where ``group`` is 0."""
    try:
        return group > 0 and os.getpgid(process.pid) == group
    except (ProcessLookupError, PermissionError):
        return False


def environment_of(process: psutil.Process) -> Mapping[str, str]:
    """The variables a process started with; none where they may not be read.

    One that has only just been started shows none for a moment: the kernel closes the pipe that tells of the start
    before it has laid out the new program's variables.
    """
    try:
        while not (variables := process.environ()) and _is_young(process.pid) and is_alive(process):
            time.sleep(0.002)
    except (psutil.Error, OSError):
        return {}
    return variables


def _is_young(pid: int) -> bool:
    """Whether a process was started within :data:`LAID_OUT_S`; once the machine was suspended more pass for young."""
    ticks = start_ticks(pid)
    return ticks is not None and ticks / os.sysconf("SC_CLK_TCK") > time.monotonic() - LAID_OUT_S


@contextlib.contextmanager
def interruptions_blocked() -> Iterator[None]:
    """A block that no signal which asks perfgate to end interrupts: it takes effect at the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # One that came just before raises from this very call, which has blocked them by then.
        signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTIONS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def name_of(process: psutil.Process) -> str:
    """The name of its program; ``?`` where it is gone."""
    try:
        return process.name()
    except psutil.Error:
        return "?"


def pid_namespace(pid: int | str = "self") -> int | None:
    """The namespace in which a process's id has its meaning; ``None`` where that may not be seen, or it is gone."""
    try:
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino
    except OSError:
        return None
