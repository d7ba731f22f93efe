"""Starts a program and stays until all that came of it has ended; run by perfgate's interpreter, on its own.

``python -I -S supervisor.py ANSWERS VARIABLES CGROUP PROGRAM [WORD...]``

Of a process whose parent has ended this one becomes the parent (``PR_SET_CHILD_SUBREAPER``, prctl(2)). So everything
that the program started is found below it, whatever session, group and environment that gave itself. It is a process of
its own because perfgate's may have children that are none of the program's.

When perfgate ends, however it does, the program is killed, and this process stays for the sake of the others: whoever
looks for them finds them below it. When this process is killed, so is the program: who ends perfgate may end its
children beside it, as Ray does with those of a worker that lost its node
(https://github.com/ray-project/ray/pull/38439).

The first three are descriptors. To ANSWERS it writes ``started PID`` or ``failed ERRNO``, and later ``ended STATUS``,
negative for a signal. VARIABLES is a file with the program's, ``NAME=VALUE`` and a NUL character each. This process
gets none of them, for what they preload would run in it too. CGROUP is the file by which the program, and not this
process, joins a cgroup; -1 where there is none.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

SUPERVISOR = "PERFGATE_SUPERVISOR"
"""The variable that tells this process from those it looks after."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""By which a user or the system asks a program to end."""


def main(answers: int, variables: int, cgroup: int, command: list[str]) -> None:
    """Start the program, tell how it ended, and wait for the last of its descendants."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in INTERRUPTIONS:
        signal.signal(number, signal.SIG_IGN)  # it ends with the last process it looks after, not before
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who has it ignored is not told how its children ended
    os.set_inheritable(answers, False)
    failure, report = os.pipe()
    supervisor = os.getpid()
    program = os.fork()
    if program == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # kept over exec: prctl(2)
        if os.getppid() != supervisor:  # it ended before that
            os._exit(127)
        become(command, variables, cgroup, report)
    os.close(report)
    if failed := os.read(failure, 16):
        tell(answers, f"failed {failed.decode()}")
        return
    close_others(answers)  # what the program inherits must end with it
    os.chdir("/")
    signal.signal(signal.SIGUSR1, lambda *_: os.kill(program, signal.SIGKILL))
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGUSR1, 0, 0, 0)
    if not tell(answers, f"started {program}"):  # perfgate ended before it could be told of
        os.kill(program, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # there are none left
        while True:
            ended, status = os.wait()
            if ended == program:
                signal.signal(signal.SIGUSR1, signal.SIG_IGN)
                tell(answers, f"ended {os.waitstatus_to_exitcode(status)}")


def become(command: list[str], variables: int, cgroup: int, report: int) -> None:
    """Be the program, in a session and a cgroup of its own and with signals as a new process has them."""
    try:
        if cgroup >= 0:
            os.write(cgroup, b"0")  # itself
            os.close(cgroup)
        with open(variables, "rb") as file:
            given = dict(entry.split(b"=", 1) for entry in file.read().split(b"\0")[:-1])
        os.setsid()
        for number in (*INTERRUPTIONS, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvpe(command[0], command, given)  # noqa: S606 (the program is the subject under test, named by the user)
    except OSError as error:
        os.write(report, str(error.errno).encode())
    finally:
        os._exit(127)


def close_others(kept: int) -> None:
    """Close every file but one and the standard streams.

    Those that are open are asked for: where their number has no bound worth the name, trying each takes minutes.
    """
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 (each start would wait for pathlib)
        if number > 2 and number != kept:  # noqa: PLR2004 (standard error)
            with contextlib.suppress(OSError):  # the one through which they were listed
                os.close(number)


def tell(answers: int, line: str) -> bool:
    """Write a line; ``False`` where perfgate is gone."""
    try:
        os.write(answers, f"{line}\n".encode())
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
