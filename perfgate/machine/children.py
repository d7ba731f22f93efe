"""Child processes: started in a session of their own, marked, and ended with everything they started.

A program can take the marks (:mod:`perfgate.machine.processes`) out of the environment of what it starts. So each is
started by :mod:`perfgate.machine.supervisor`, below which all that came of it stays, whatever it does to hide. Where
the system allows it, it gets a cgroup too (:mod:`perfgate.machine.cgroup`), which ends even what forks faster than one
can look.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import psutil

from perfgate.machine import cgroup
from perfgate.machine.processes import (
    CHILD,
    LADDER,
    OWNER,
    Orphan,
    climb,
    environment_of,
    in_group,
    interruptions_blocked,
    is_alive,
    name_of,
    with_ids,
)
from perfgate.machine.supervisor import SUPERVISOR

RELEASE_S = 5.0
"""How long a supervisor is given to notice that it has nobody left; it takes milliseconds."""
SAID_BYTES = 4096
"""A supervisor says less; the program can write to the same pipe, by way of ``/proc``."""

_OWN = ("LD_LIBRARY_PATH",)
"""What perfgate's own interpreter may need to start once more."""
_PROGRAM = Path(__file__).with_name("supervisor.py")
_BEGUN = re.compile(rb"(started|failed) (\d{1,9})\n")
_ENDED = re.compile(rb"^ended (-?\d{1,3})\n", re.MULTILINE)


class Child:
    """A program in a session and process group of its own, below its supervisor, which tells how it fares."""

    def __init__(
        self, supervisor: subprocess.Popen[bytes], answers: int, marks: Mapping[str, str], group: cgroup.Group | None
    ) -> None:
        self._supervisor = supervisor
        self._answers = answers
        self._group = group
        self._owner = marks[OWNER]
        self._heard = b""
        self._status: int | None = None
        self.token = marks[CHILD]
        """The ``PERFGATE_CHILD`` of it and all that came of it."""
        self.pid = 0
        """Its process id, which is also that of its group and session."""

    def begin(self, program: str) -> None:
        """Wait until the program runs.

        Raises:
            OSError: It cannot be run.
        """
        while b"\n" not in self._heard and self._hear(None):
            pass
        answer = _BEGUN.match(self._heard)
        if answer is None or answer[1] == b"failed":
            code = int(answer[2]) if answer else errno.ECHILD
            raise OSError(code, os.strerror(code), program)
        self.pid = int(answer[2])

    def poll(self) -> int | None:
        """The exit status, negative for a signal; ``None`` while it runs."""
        return self.wait(0)

    def wait(self, timeout_s: float) -> int | None:
        """The exit status as soon as there is one; ``None`` after ``timeout_s`` seconds without."""
        deadline = time.monotonic() + timeout_s
        while self._status is None and self._hear(max(0.0, deadline - time.monotonic())):
            pass
        return self._status

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to its process group, if there is one, and to what it started outside of that.

        Returns:
            Whether anything was outside. A group is stopped as one, and nothing in it can start more; what is outside
            is found by looking, and may have started something meanwhile.
        """
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)
        outside = [process for process in self.below() if not in_group(process, self.pid)]
        for process in outside:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                process.send_signal(number)
        return bool(outside)

    def holds_file_lock(self) -> bool:
        """Whether it or what it started holds a lock on a file (``/proc/locks``); ``True`` where that is not known."""
        try:
            held = Path("/proc/locks").read_text(encoding="ascii").splitlines()
        except OSError:
            return True
        owners = {line.split()[4] for line in held if " -> " not in line}
        return any(str(process.pid) in owners for process in self.below())

    def end(self, *, gently: bool = True) -> tuple[Orphan, ...]:
        """End it and all that came of it, by SIGINT, SIGTERM and SIGKILL; within 7 s, at once where nothing runs.

        A second Ctrl-C while this waits goes straight to SIGKILL and is then raised.

        Args:
            gently: Whether SIGKILL comes last; else it comes first.

        Returns:
            What is still alive. Where that cannot be known it is the supervisor: that was ended before the others,
            or stays because something below it is never there when it is looked for.

        Raises:
            KeyboardInterrupt: The user was impatient; everything was killed first.
        """
        try:
            if not self.pid:  # interrupted there: what does not run yet cannot be found
                with contextlib.suppress(OSError):
                    self.begin("")
            if gently:
                climb(self._members, LADDER[:-1])
            self._kill()
        except KeyboardInterrupt:
            self._kill()
            raise
        finally:
            self.wait(0.5)
        left = [Orphan(p.pid, name_of(p), self._owner) for p in self._members()]
        if not left and (odd := self._release()):
            left.append(Orphan(self._supervisor.pid, f"the supervisor of this process, {odd},", self._owner))
        if self._group is not None:
            self._group.remove()  # that of a process which does not end is found again by its mark
        return tuple(left)

    def _kill(self) -> None:
        """Kill what is left, seen or not."""
        if self._group is not None:
            self._group.kill()
        climb(self._members, LADDER[-1:])

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

    def below(self) -> list[psutil.Process]:
        """What is below its supervisor, itself included."""
        try:
            return psutil.Process(self._supervisor.pid).children(recursive=True)
        except psutil.NoSuchProcess:  # it ends with the last of them
            return []

    def _members(self) -> list[psutil.Process]:
        """Everything alive that is below the supervisor or in a group of ours, or carries the token."""
        members = {
            p for p in psutil.process_iter() if in_group(p, self.pid) or environment_of(p).get(CHILD) == self.token
        }
        if self._group is not None:
            members |= set(with_ids(self._group.pids()))
        members |= set(self.below())
        return [p for p in members if p.pid != self._supervisor.pid and is_alive(p)]


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
    child = None
    try:
        with interruptions_blocked():  # until it is known what would have to be ended
            child = _supervise(argv, environment, marks, log, folder, pass_fds)
        child.begin(argv[0])
    except BaseException:
        if child is not None:
            child.end()
        raise
    return child


def _supervise(
    argv: Sequence[str], environment: Mapping[str, str], marks: Mapping[str, str], log: Path, folder: Path,
    pass_fds: Sequence[int],
) -> Child:  # fmt: skip
    """Start a supervisor, which has none of the program's variables: a preloaded library would run in it too."""
    group = cgroup.make_group(marks[OWNER], marks[CHILD])
    answers, report = os.pipe()
    try:
        with log.open("ab") as output, _listed({**environment, **marks}) as variables, contextlib.ExitStack() as files:
            door = [files.enter_context(group.door.open("wb", 0)).fileno()] if group is not None else []
            descriptors = (report, variables.fileno(), *(door or [-1]))
            supervisor = subprocess.Popen(  # noqa: S603 (the program is the subject under test, named by the user)
                [sys.executable, "-I", "-S", str(_PROGRAM), *map(str, descriptors), *argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**{name: os.environ[name] for name in _OWN if name in os.environ}, **marks, SUPERVISOR: "1"},
                cwd=folder,
                pass_fds=(report, variables.fileno(), *door, *pass_fds),
                start_new_session=True,
            )
    except BaseException:
        os.close(answers)
        if group is not None:
            group.remove()
        raise
    finally:
        os.close(report)
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
