"""A window as it is sent and answered: requests leave when they are due, whatever the answers before them do.

Runs in the client's own process. Connections are opened ahead of time, so that a request that is due is one write.
Whatever is read, the clock is looked at first: in a burst of answers a request still leaves on time. How late
those are read is seen by a timer of its own (:class:`perfgate.load.alarm.Backlog`).
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import deque
from heapq import heappop, heappush
from typing import Any, Final, cast
from urllib.parse import urlsplit

from perfgate.load.alarm import Alarm, Backlog
from perfgate.load.event_stream import EventStream, StreamError, clean
from perfgate.load.exchange import CANCELLED, Answer, Answers, Request, Target, Window

AHEAD_NS: Final = 100_000_000
"""So long before a request is due its connection is opened."""
LEAD_NS: Final = 2 * AHEAD_NS
"""From the start of a run to the beginning of its window."""
AWAKE_NS: Final = 4_000_000
"""So long before a request is due the client stays awake and looks at the clock: a core that sleeps may be woken late,
on hosts of H100s now and then by 1 to 12 ms, in 29 of 34 cases by less than this (docs/measurements.md)."""
AWAKE_SHARE: Final = 10
"""One part in so many of its time at most: what has real-time priority and never sleeps is stopped (sched(7))."""

_COUNTED: Final[dict[str, dict[str, Any]]] = {
    "ids": {"return_token_ids": True},
    "usage": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "events": {"stream_options": {"include_usage": True}},
}


def request_bytes(request: Request, target: Target) -> bytes:
    """A request as it is sent: HTTP/1.1, a connection of its own."""
    body: dict[str, Any] = {
        "model": target.model, "prompt": request.prompt, "max_tokens": request.max_tokens, "stream": True,
        **_COUNTED[target.counts], **request.body,
    }  # fmt: skip
    data = json.dumps(body, separators=(",", ":")).encode()
    url = urlsplit(target.url)
    head = (
        f"POST {url.path.rstrip('/')}/v1/completions HTTP/1.1\r\nhost: {url.netloc}\r\nconnection: close\r\n"
        f"content-type: application/json\r\naccept: text/event-stream\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def awake_ns(window: Window) -> int:
    """How long before each request of a window the client stays awake, from 0 to :data:`AWAKE_NS`."""
    if window.concurrency is None:
        times = [request.at_ns or 0 for request in window.requests]
        apart_ns = (times[-1] - times[0]) // len(times)
    else:
        apart_ns = sum(window.think_ns) // max(len(window.think_ns), 1) // window.concurrency
    return min(AWAKE_NS, apart_ns // AWAKE_SHARE)


class Exchange(asyncio.Protocol):
    """One request on its own connection.

    Args:
        request: What is asked.
        data: The same in bytes.
        run: The window that it belongs to.
    """

    def __init__(self, request: Request, data: bytes, run: WindowRun) -> None:
        self.request = request.model_copy(update={"prompt": request.prompt[:1]})  # in its bytes, which are a tenth
        self._data = data
        self._run = run
        self._stream = EventStream(request.max_tokens, by_events=run.by_events)
        self._transport: asyncio.Transport | None = None
        self._limit: asyncio.TimerHandle | None = None
        self._failure = ""
        self._scheduled_ns = 0
        self._sent_ns: int | None = None
        self._token_ns: list[int] = []
        self._token_counts: list[int] = []
        self._opening: asyncio.Task[None] | None = None
        self._opened_ns = 0
        self._heard = False
        self._answered = False
        self._sent_twice = False

    def open(self) -> None:
        """Begin to connect; what goes wrong is told when the request is due."""
        self._opening = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self, *self._run.address)
        except OSError as error:
            text = os.strerror(error.errno) if error.errno else clean(str(error))
            self._fail(f"no connection: {text}")

    def send(self, scheduled_ns: int, timeout_s: float) -> None:
        """It is due."""
        self._scheduled_ns = scheduled_ns
        self._sent_ns = time.monotonic_ns()
        if self._failure:
            self._sent_ns = None
            self._answer("", self._failure)
            return
        self._limit = asyncio.get_running_loop().call_later(timeout_s, self._give_up, timeout_s)
        if self._transport is not None:
            self._transport.write(self._data)
        elif self._opening is not None and self._opening.done():  # closed as soon as it was open: once more
            self.open()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast("asyncio.Transport", transport)
        self._opened_ns = time.monotonic_ns()
        if self._answered:
            self._transport.abort()
        elif self._sent_ns is not None:  # it has been waiting for the server to accept this
            self._transport.write(self._data)

    def data_received(self, data: bytes) -> None:
        """Called by the loop: the stamp of what it brings, and a look at what is due."""
        now_ns = time.monotonic_ns()
        self._run.look(now_ns)
        if self._answered:
            return
        if self._sent_ns is None:  # no answer; some say so before they close what is idle
            if self._transport is not None:
                self._transport.abort()
            return
        self._heard = True
        try:
            if tokens := self._stream.feed(data):
                self._token_ns.append(now_ns)
                self._token_counts.append(tokens)
        except StreamError as error:
            self._fail(str(error))
            return
        cancel_after = self.request.cancel_after
        if self._stream.done:
            self._answer(self._stream.finish)
        elif cancel_after is not None and self._stream.tokens >= cancel_after and not self._stream.finish:
            self._answer(CANCELLED)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        if self._answered:
            return
        if self._sent_ns is None:
            self._transport = None
            if time.monotonic_ns() - self._opened_ns >= AHEAD_NS:
                self.open()  # the server closes what is idle: a new one is there when it is due
            return
        unread = not self._heard and self._opened_ns < self._sent_ns
        if unread and time.monotonic_ns() - self._sent_ns < AHEAD_NS:  # later it is a server that gave up on it
            self._transport = None
            self._sent_twice = True
            self.open()  # its end may have been on the way when this was sent: once more, at the cost of the server
            return
        try:
            self._stream.end()
        except StreamError as error:
            self._fail(f"{error}: {clean(str(exc))}" if exc else str(error))
        else:
            self._answer(self._stream.finish)

    def _give_up(self, timeout_s: float) -> None:
        said = self._stream.problem and f"{self._stream.problem}, and "
        self._fail(f"{said}no end within {timeout_s:g} s")

    def _fail(self, text: str) -> None:
        if self._sent_ns is None:
            self._failure = text
        elif not self._answered:
            self._answer("", text)

    def _answer(self, finish: str, error: str = "") -> None:
        self._answered = True
        if self._limit is not None:
            self._limit.cancel()
        if self._transport is not None:
            (self._transport.abort if error else self._transport.close)()
        if self._opening is not None and error:
            self._opening.cancel()
        end_ns = time.monotonic_ns()
        self._run.answered(
            Answer.model_construct(
                number=self.request.number,
                scheduled_ns=self._scheduled_ns,
                sent_ns=self._sent_ns if self._transport is not None else None,
                token_ns=tuple(self._token_ns),
                token_counts=tuple(self._token_counts),
                end_ns=end_ns,
                finish=finish,
                error=error,
                sent_twice=self._sent_twice,
            ),
            end_ns,
        )


class WindowRun:
    """One window, sent to one server.

    Args:
        window: The requests.
        target: The server.
    """

    def __init__(self, window: Window, target: Target) -> None:
        url = urlsplit(target.url)
        self.address = (url.hostname or "127.0.0.1", url.port or 80)
        self._target = target
        self.by_events = target.counts == "events"
        self._think_ns = window.think_ns
        self._concurrency = window.concurrency
        self._exchanges = [Exchange(request, request_bytes(request, target), self) for request in window.requests]
        self._due: list[tuple[int, int]] = []  # a heap: when, which
        self._unopened = deque(self._exchanges)
        self._unplanned = deque(self._exchanges)
        self._answers: list[Answer] = []
        self._begin_ns = 0
        self._finished = asyncio.Event()
        self._awake_ns = awake_ns(window)
        self._stays_awake = False

    async def run(self) -> Answers:
        """Send every request when it is due, and wait until each has ended."""
        self._alarm = Alarm(asyncio.get_running_loop(), self._ring)
        cpu_ns = time.process_time_ns()
        self._begin_ns = time.monotonic_ns() + LEAD_NS
        if self._concurrency is None:
            self._due = [(self._begin_ns + (e.request.at_ns or 0), e.request.number) for e in self._exchanges]
        else:
            for _ in range(min(self._concurrency, len(self._exchanges))):
                self._plan(self._begin_ns)
                self._open()
        self._ring()
        backlog = Backlog(self._begin_ns)
        try:
            await self._finished.wait()
        finally:
            reading_ns = backlog.close()
            self._alarm.close()
        answers = tuple(sorted(self._answers, key=lambda answer: answer.number))
        return Answers.model_construct(
            begin_ns=self._begin_ns,
            end_ns=max(answer.end_ns for answer in answers),
            cpu_ns=time.process_time_ns() - cpu_ns,
            reading_ns=reading_ns,
            answers=answers,
        )

    def look(self, now_ns: int) -> None:
        """Send what is due by now."""
        while self._due and self._due[0][0] <= now_ns:
            scheduled_ns, number = heappop(self._due)
            self._exchanges[number].send(scheduled_ns, self._target.timeout_s)
            if self._concurrency is not None:
                self._open()  # that of the request which follows, while this one runs

    def answered(self, answer: Answer, now_ns: int) -> None:
        """A request has ended; in a closed loop its place is free."""
        self._answers.append(answer)
        if self._concurrency is not None and self._unplanned:
            self._plan(now_ns)
            self._set()
        if len(self._answers) == len(self._exchanges):
            self._finished.set()

    def _plan(self, free_ns: int) -> None:
        """The next request of a closed loop is due once its user has thought."""
        number = self._unplanned.popleft().request.number
        think_ns = self._think_ns[number] if self._think_ns else 0
        heappush(self._due, (free_ns + think_ns, number))

    def _open(self) -> None:
        if self._unopened:
            self._unopened.popleft().open()

    def _ring(self) -> None:
        """Send what is due, open what soon will be, and set the alarm for what comes next."""
        now_ns = time.monotonic_ns()
        self.look(now_ns)
        if self._concurrency is None:
            while self._unopened and self._opens_ns(self._unopened[0]) <= now_ns:
                self._open()
        self._set()

    def _opens_ns(self, exchange: Exchange) -> int:
        return self._begin_ns + (exchange.request.at_ns or 0) - AHEAD_NS

    def _set(self) -> None:
        """Sleep until something is near, or stay awake where a request is: what comes is read meanwhile."""
        times = [self._due[0][0] - self._awake_ns] if self._due else []
        if times and self._awake_ns and times[0] <= time.monotonic_ns():
            if not self._stays_awake:
                self._stays_awake = True
                asyncio.get_running_loop().call_soon(self._look_again)
            return
        if self._concurrency is None and self._unopened:
            times.append(self._opens_ns(self._unopened[0]))
        if times:
            self._alarm.set(min(times))

    def _look_again(self) -> None:
        self._stays_awake = False
        self._ring()
