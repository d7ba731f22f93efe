"""An object in a process of its own, for calls that may never return: who waits for one can give it up.

The process is a fork without a new program, so it starts in milliseconds. It holds none of perfgate's files, so that a
call which hangs in the kernel keeps no lock, no lease and no output open once perfgate has ended. It ends with
perfgate, so that nothing is done in the name of one that is gone; the kernel looks at the thread that made it, and not
at the process (prctl(2), PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import pickle
import select
import signal
import socket
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from perfgate.machine.processes import interruptions_blocked, wait_until
from perfgate.machine.supervisor import INTERRUPTIONS, PR_SET_PDEATHSIG, close_others

MESSAGE_BYTES: Final = 1 << 20
END_S: Final = 1.0
"""How long the process is given to end by itself."""


class NoAnswerError(Exception):
    """A call did not return within its limit, or the process is gone; no later call will."""


class Forked:
    """Calls methods of an object in another process, one at a time; several threads and signal handlers may call.

    Make it in a thread that lives as long as it is needed, as the main thread does: with the thread that made it the
    process ends too, and every later call raises :class:`NoAnswerError`.

    Args:
        target: The object, whose state from now on lives there.
    """

    def __init__(self, target: object) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._answers: dict[int, tuple[bool, Any]] = {}
        self._gone = ""
        self._ended = False
        parent = os.getpid()
        with interruptions_blocked(), warnings.catch_warnings():
            # Python 3.12 warns where there are threads. The child uses nothing that they could hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
            if self._pid == 0:
                _serve(target, theirs, parent)
        theirs.close()

    def call(self, name: str, arguments: Sequence[Any], keywords: Mapping[str, Any], limit_s: float) -> Any:
        """What the method of that name returns there, or raises; arguments and result can be pickled.

        Raises:
            NoAnswerError: The limit is over, now or earlier.
        """
        deadline = time.monotonic() + limit_s
        if not self._lock.acquire(timeout=limit_s):
            raise NoAnswerError(self._give_up(f"{name} did not return within {limit_s:g} s"))
        try:
            if self._gone:
                raise NoAnswerError(self._gone)
            number = next(self._numbers)
            with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):  # seen below
                self._ours.send(pickle.dumps((number, name, arguments, keywords)), socket.MSG_DONTWAIT)
            while number not in self._answers:  # a signal handler that calls too may read the answer of this call
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise NoAnswerError(self._give_up(f"{name} did not return within {limit_s:g} s"))
                if not self._receive(left_s):
                    raise NoAnswerError(self._give_up(f"{name} ended its process"))
            good, value = self._answers.pop(number)
        finally:
            self._lock.release()
        if good:
            return value
        raise value

    def close(self) -> None:
        """End the process; one that hangs is killed and not waited for."""
        self._gone = self._gone or "the connection is closed"
        self._ours.close()
        if not wait_until(self._buried, END_S, 0.001):
            os.kill(self._pid, signal.SIGKILL)

    def _receive(self, wait_s: float) -> bool:
        """Take in an answer if one comes in time; ``False`` where none can come any more."""
        poll = select.poll()
        poll.register(self._ours, select.POLLIN)
        if not poll.poll(1000 * wait_s):
            return True
        try:
            data = self._ours.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:  # a signal handler was faster
            return True
        except ConnectionResetError:
            return False
        if data:
            number, good, value = pickle.loads(data)  # noqa: S301 (from a fork of this very process)
            self._answers[number] = good, value
        return bool(data)

    def _give_up(self, why: str) -> str:
        """End the process; why the first call was given up."""
        if not self._gone:
            self._gone = why
            if not self._buried():
                os.kill(self._pid, signal.SIGKILL)
        return self._gone

    def _buried(self) -> bool:
        """Whether the process has ended; its exit status is of no interest."""
        if not self._ended:
            try:
                self._ended = os.waitpid(self._pid, os.WNOHANG)[0] != 0
            except ChildProcessError:  # somebody else in this program waits for every child
                self._ended = True
        return self._ended


def _serve(target: object, channel: socket.socket, parent: int) -> NoReturn:
    """Answer calls until the other end is closed; this is the new process, which never leaves the function."""
    try:
        for number in INTERRUPTIONS:  # perfgate's own: it says when this process ends
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTIONS)
        _let_go(channel.fileno())
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        while data := channel.recv(MESSAGE_BYTES):
            number, name, arguments, keywords = pickle.loads(data)  # noqa: S301 (from the process that this is a fork of)
            if os.getppid() != parent:
                break
            try:
                answer = number, True, getattr(target, name)(*arguments, **keywords)
            except Exception as error:  # noqa: BLE001 (it is raised where the call came from)
                answer = number, False, error
            channel.send(pickle.dumps(answer))
    finally:
        os._exit(0)


def _let_go(kept: int) -> None:
    """Close every file but one: locks, leases, pipes that somebody waits at the end of."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    close_others(kept)
