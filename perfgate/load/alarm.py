"""A timer of the kernel that an event loop can wait for: asyncio's own are rounded up to whole milliseconds.

``epoll_wait`` takes milliseconds, so ``loop.call_at`` is up to one late by construction. A timer descriptor
(``timerfd_create(2)``) becomes readable at a nanosecond of the monotonic clock. Python wraps it from 3.13 on.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import time
from collections.abc import Callable

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
