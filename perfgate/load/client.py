"""The client as perfgate sees it: a process that sends windows of requests to a server and says what came of them.

It is perfgate's own and the same for both sides. What it says is read with bounds all the same, because a server's
words are in it.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import ValidationError

from perfgate.errors import NotMeasuredError, UsageError
from perfgate.load.client_process import PROTOCOL
from perfgate.load.exchange import Answer, Answers, Target, Window, is_url, without_secrets
from perfgate.machine.children import spawn

LOG = "client.log"
START_TIMEOUT_S = 60.0
MARGIN_S = 60.0
"""Beyond the latest time at which a window can end: for passing requests and answers on."""
MAX_LINE_BYTES = 64 * 1024**2
"""An answer of a million tokens takes 25 MB."""
POLL_S = 0.25
END_S = 2.0


class Client:
    """A client process: started on entry, ended on exit.

    Args:
        folder: Where it works and leaves ``client.log``.
        owner: Whose it is, see :mod:`perfgate.machine.processes`.
        cores: The cores it is pinned to; empty for any. The server should not have them.
    """

    def __init__(self, folder: Path, owner: str, cores: Collection[int] = ()) -> None:
        self._folder = folder
        self._owner = owner
        self.cores = sorted(cores)
        self._buffer = bytearray()
        self._id = 0

    def __enter__(self) -> Self:
        """Start the process and wait until it is ready.

        Raises:
            NotMeasuredError: ``client-failed``: it does not start.
        """
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        words = [sys.executable, "-m", "perfgate.load.client_process", str(orders), str(answers)]
        path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        try:
            self._child = spawn(
                [*words, *map(str, self.cores)],
                environment={"PATH": os.environ.get("PATH", ""), "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
                owner=self._owner,
                log=self._folder / LOG,
                folder=self._folder,
                pass_fds=(orders, answers),
            )
        except OSError:
            os.close(self._orders)
            os.close(self._answers)
            raise
        finally:
            os.close(orders)
            os.close(answers)
        os.set_blocking(self._orders, False)
        try:
            self._line(time.monotonic() + START_TIMEOUT_S)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End it; one that waits for orders ends by itself, once there can be no more."""
        os.close(self._orders)
        try:
            if error is None:
                self._child.wait(END_S)
            self._child.end()
        finally:
            os.close(self._answers)

    def drive(self, window: Window, target: Target) -> Answers:
        """Send a window to a server, and wait until each request has been answered or given up.

        Whether it counts is for the caller to ask, :attr:`~perfgate.load.exchange.Answers.void`.

        Raises:
            NotMeasuredError: ``client-failed``: the client ended, is late, or says what it should not.
            UsageError: ``target.url`` is not the URL of a server.
        """
        if not is_url(target.url):
            text = f"{without_secrets(target.url)!r} is not the URL of a server"
            raise UsageError(text, remedy="Give one like http://127.0.0.1:8000.")
        self._id += 1
        order = {"v": PROTOCOL, "id": self._id, "window": window.model_dump(), "target": target.model_dump()}
        deadline = time.monotonic() + longest_s(window, target) + MARGIN_S
        data = json.dumps(order, separators=(",", ":")).encode() + b"\n"
        del order  # a copy of all prompts
        self._send(data, deadline)
        del data
        try:
            head = json.loads(self._line(deadline))
            if head.pop("v") != PROTOCOL or head.pop("id") != self._id:
                raise self._failed(f"it answers another order than {self._id}")
            answers = [Answer.model_validate_json(self._line(deadline)) for _ in window.requests]
            outcome = Answers.model_validate({**head, "answers": answers})
        except (ValueError, RecursionError, KeyError, AttributeError, ValidationError) as error:
            raise self._failed(f"it answers what cannot be read: {str(error)[:300]}") from error
        if [answer.number for answer in outcome.answers] != [request.number for request in window.requests]:
            raise self._failed("it answers other requests than it was given")
        return outcome

    def _send(self, data: bytes, deadline: float) -> None:
        rest = memoryview(data)
        while rest:
            self._wait(self._orders, select.POLLOUT, deadline)
            try:
                rest = rest[os.write(self._orders, rest) :]
            except BrokenPipeError:
                raise self._ended() from None

    def _line(self, deadline: float) -> bytes:
        seen = 0
        while (end := self._buffer.find(b"\n", seen)) < 0:
            seen = len(self._buffer)
            if seen > MAX_LINE_BYTES:
                raise self._failed(f"it answers more than {MAX_LINE_BYTES} bytes in a line")
            self._wait(self._answers, select.POLLIN, deadline)
            data = os.read(self._answers, 1 << 20)
            if not data:
                raise self._ended()
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _wait(self, descriptor: int, event: int, deadline: float) -> None:
        """Return when the descriptor is ready, and never after the deadline."""
        poll = select.poll()
        poll.register(descriptor, event)
        while True:
            ended = self._child.poll() is not None  # asked first, so that what it wrote last is still read
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise self._failed("it has not answered within the longest that the window can take")
            if poll.poll(0 if ended else 1000 * min(left_s, POLL_S)):
                return
            if ended:
                raise self._ended()

    def _ended(self) -> NotMeasuredError:
        return self._failed(f"it ended with status {self._child.wait(2.0)}; see {LOG}")

    @staticmethod
    def _failed(text: str) -> NotMeasuredError:
        return NotMeasuredError(f"the client failed: {text}", code="client-failed")


def longest_s(window: Window, target: Target) -> float:
    """The longest that a window can take until its last request has ended, in seconds."""
    if window.concurrency is None:
        return (window.requests[-1].at_ns or 0) / 1e9 + target.timeout_s
    rounds = -(-len(window.requests) // window.concurrency)
    return rounds * target.timeout_s + sum(window.think_ns) / 1e9
