"""A server with OpenAI's API that generates nothing: it answers at once, in steps, or as a test has it answer.

``python tests/null_server.py [--step-ms 10] [--core 1]`` prints its port and serves until it is ended. All answers in
progress get one token a step, as those of a real engine do; with ``--step-ms 0`` an answer is sent whole.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from threading import Thread
from typing import Any

from perfgate.load.alarm import Alarm

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """As a part of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(tokens: int = 1, finish: str | None = None, **more: Any) -> bytes:
    """What vLLM sends for some tokens, as a part of the body."""
    choice = {
        "index": 0, "text": " word" * tokens, "logprobs": None, "finish_reason": finish, "stop_reason": None,
        "token_ids": [12345] * tokens, "prompt_logprobs": None, "prompt_token_ids": None,
    }  # fmt: skip
    whole = {
        "id": "cmpl-8d7a4a5a6f0c4f0fb6d5d3a1f9c1b2e3", "object": "text_completion", "created": 1790000000,
        "model": "null", "choices": [choice], "usage": None, **more,
    }  # fmt: skip
    return chunk(b"data: %s\n\n" % json.dumps(whole, separators=(",", ":")).encode())


DONE = chunk(b"data: [DONE]\n\n") + END
NEXT = event()
LAST = event(finish="length") + DONE


MISSING = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


def ending(request: dict[str, Any]) -> bytes:
    """The end of an answer, with what it used where that was asked for."""
    if not (request.get("stream_options") or {}).get("include_usage"):
        return LAST
    used = {"prompt_tokens": len(request["prompt"]), "completion_tokens": request["max_tokens"]}
    return event(finish="length") + event(choices=[], usage=used | {"total_tokens": sum(used.values())}) + DONE


class NullServer(asyncio.Protocol):
    """One connection.

    Args:
        answer: Called with the whole request once it is there.
    """

    def __init__(self, answer: Callable[[NullServer, dict[str, Any]], None]) -> None:
        self._answer = answer
        self._received = b""
        self.head = b""

    def connection_made(self, transport: Any) -> None:
        """Called by the loop."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self._received += data
        self.head, _, body = self._received.partition(b"\r\n\r\n")
        if self.head and b"/v1/completions " not in self.head.split(b"\r\n")[0]:
            self._received = b""
            self.transport.write(MISSING)
            return
        length = self.head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
        if body and len(body) >= int(length):
            self._received = b""
            self._answer(self, json.loads(body))

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""


def at_once(connection: NullServer, request: dict[str, Any]) -> None:
    """The whole answer, a token an event."""
    connection.transport.write(HEAD + NEXT * (request["max_tokens"] - 1) + ending(request))


class Stepping:
    """Answers that grow by a token a step, all of them together."""

    def __init__(self) -> None:
        self._left: dict[NullServer, int] = {}
        self._ends: dict[NullServer, bytes] = {}

    def __call__(self, connection: NullServer, request: dict[str, Any]) -> None:
        """Begin an answer."""
        connection.transport.write(HEAD)
        self._left[connection], self._ends[connection] = request["max_tokens"], ending(request)

    async def run(self, step_s: float) -> None:
        """Step for ever, on time: a step that was late shortens the wait for the next one, but none is made up for."""
        rung = asyncio.Event()
        alarm = Alarm(asyncio.get_running_loop(), rung.set)
        due_ns = time.monotonic_ns()
        while True:
            due_ns = max(due_ns + round(step_s * 1e9), time.monotonic_ns())
            alarm.set(due_ns)
            await rung.wait()
            rung.clear()
            for connection, left in [*self._left.items()]:
                connection.transport.write(NEXT if left > 1 else self._ends[connection])
                self._left[connection] = left - 1
                if left == 1 or connection.transport.is_closing():
                    del self._left[connection], self._ends[connection]


@contextlib.contextmanager
def serving(answer: Callable[[NullServer, dict[str, Any]], None] = at_once) -> Iterator[str]:
    """A server in a thread of this process, for tests; gives its URL."""
    port: Future[int] = Future()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        server = await loop.create_server(lambda: NullServer(answer), "127.0.0.1", 0, backlog=1024)
        port.set_result(server.sockets[0].getsockname()[1])
        await ended.wait()
        server.close()

    ended = asyncio.Event()
    thread = Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        yield f"http://127.0.0.1:{port.result()}"
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


async def main() -> None:
    """Serve from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--step-ms", type=float, default=0)
    parser.add_argument("--core", type=int)
    words = parser.parse_args()
    if words.core is not None:
        os.sched_setaffinity(0, {words.core})
    stepping = Stepping()
    answer = stepping if words.step_ms else at_once
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: NullServer(answer), "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await (stepping.run(words.step_ms / 1e3) if words.step_ms else server.serve_forever())


if __name__ == "__main__":
    asyncio.run(main())
