"""A timer of the kernel that an event loop can wait for: asyncio's own are rounded up to whole milliseconds.

``epoll_wait`` takes milliseconds, so ``loop.call_at`` is up to one late by construction. A timer descriptor
(``timerfd_create(2)``) becomes readable at a nanosecond of the monotonic clock. Python wraps it from 3.13 on.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import random
import time
from collections.abc import Callable
from typing import Final

from perfgate.load.exchange import nearest_rank

_ABSOLUTE = 1  # TFD_TIMER_ABSTIME
_NS_PER_S = 1_000_000_000


class _Time(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Time), ("value", _Time))


class Alarm:
    """Calls back at a time of the monotonic clock.

    Args:
        loop: The running event loop.
        ring: What is called, once for each :meth:`set`.

    Raises:
        OSError: The kernel gives no timer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._ring = ring
        self._descriptor = self._checked(
            self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)  # as TFD_NONBLOCK, _CLOEXEC
        )
        self._loop = loop
        loop.add_reader(self._descriptor, self._due)

    def set(self, at_ns: int) -> None:
        """Ring at ``at_ns``, at once where that is past; an earlier setting is forgotten."""
        at_ns = max(1, at_ns)  # 0 would turn it off
        setting = _Setting(_Time(0, 0), _Time(at_ns // _NS_PER_S, at_ns % _NS_PER_S))
        self._checked(self._libc.timerfd_settime(self._descriptor, _ABSOLUTE, ctypes.byref(setting), None))

    def close(self) -> None:
        """Ring no more."""
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _due(self) -> None:
        with contextlib.suppress(BlockingIOError):  # set anew since it rang
            os.read(self._descriptor, 8)
        self._ring()

    @staticmethod
    def _checked(result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result


EVERY_NS: Final = 2_000_000
"""The mean time between two looks: 500 in a window of a second, at 0.3 % of a core."""
SHARE: Final = 0.95
"""So many looks were on time, or no later than what is told. A client with a backlog is late at each step; one that its
machine held up once, for a hundredth of a short window, is late then alone."""


class Backlog:
    """A timer that rings at random times and waits for its turn in the event loop, as what a server sends does.

    It proves that the client's stamps are those of the server. How late requests are sent does not: one that is due is
    sent between two reads, so it overtakes what waits to be read; and in a closed loop an answer that is read late
    makes the next request due late.

    Times of a Poisson process see the client as it is on average. Those that pass while it is busy count too, each by
    how late its turn comes, so a long backlog weighs as long as it lasts.

    Args:
        begin_ns: Looks are after this.
    """

    def __init__(self, begin_ns: int) -> None:
        self._gaps = random.Random(0)  # noqa: S311 (no secret)
        self._late_ns: list[int] = []
        self._due_ns = begin_ns
        self._alarm = Alarm(asyncio.get_running_loop(), self._look)
        self._alarm.set(begin_ns)

    def _look(self) -> None:
        now_ns = time.monotonic_ns()
        while self._due_ns <= now_ns:
            self._late_ns.append(now_ns - self._due_ns)
            self._due_ns += round(self._gaps.expovariate(1) * EVERY_NS)
        self._alarm.set(self._due_ns)

    def close(self) -> int:
        """Look a last time.

        Returns:
            The p95 of how late turns came, nanoseconds by nearest rank; 0 where the window ended before it began.
        """
        self._look()
        self._alarm.close()
        return nearest_rank(self._late_ns, SHARE) if self._late_ns else 0
