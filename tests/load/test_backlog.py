"""A client that cannot keep up says so, though each of its requests left on time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from null_server import serving

from perfgate.load.arrivals import window
from perfgate.load.backlog import EVERY_NS, Backlog
from perfgate.load.event_stream import EventStream
from perfgate.load.exchange import LATEST_READ_NS, Answers, Target
from perfgate.load.shape import Load
from perfgate.load.window_run import WindowRun

BUSY_NS = 3_000_000


def slow_client(monkeypatch: pytest.MonkeyPatch, arrival: dict[str, Any]) -> Answers:
    """What a client finds that takes 3 ms for what it reads, where 32 answers come at once."""
    feed = EventStream.feed

    def busy(stream: EventStream, data: bytes) -> int:
        end_ns = time.monotonic_ns() + BUSY_NS
        while time.monotonic_ns() < end_ns:
            pass
        return feed(stream, data)

    monkeypatch.setattr(EventStream, "feed", busy)
    load = Load.model_validate({"arrival": arrival, "requests": 128, "input_tokens": 1})
    with serving() as url:
        return asyncio.run(WindowRun(window(load, 0, 64), Target(url=url, model="null")).run())


@pytest.mark.parametrize("arrival", [{"closed": {"concurrency": 32}}, {"constant": 1000}])
def test_a_client_with_a_backlog_voids_the_window(monkeypatch: pytest.MonkeyPatch, arrival: dict[str, Any]) -> None:
    """In a closed loop each request leaves when it is due, for what is due waits for the backlog too."""
    found = slow_client(monkeypatch, arrival)
    assert not [answer.error for answer in found.answers if answer.error]
    assert found.reading_ns > LATEST_READ_NS
    assert found.void is not None
    assert found.void.code == "client-late"


def test_all_of_a_backlog_counts() -> None:
    """Looks that were due while nobody looked are each as late as they are, not the first of them alone."""

    async def late() -> int:
        return Backlog(time.monotonic_ns() - 500 * EVERY_NS).close()

    assert asyncio.run(late()) > 450 * EVERY_NS


def test_a_window_that_has_not_begun_has_no_backlog() -> None:
    """There is nothing to be late for."""

    async def before() -> int:
        return Backlog(time.monotonic_ns() + 10**12).close()

    assert asyncio.run(before()) == 0
