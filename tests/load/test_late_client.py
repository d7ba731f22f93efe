"""The client is in time, or says that it was not: with sending, and with reading."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from null_server import serving

from perfgate.load.alarm import EVERY_NS, Alarm, Backlog
from perfgate.load.arrivals import window
from perfgate.load.event_stream import EventStream
from perfgate.load.exchange import LATEST_READ_NS, Answer, Answers, Target
from perfgate.load.shape import Load
from perfgate.load.window_run import AWAKE_NS, WindowRun, awake_ns

MS = 1_000_000


@pytest.mark.parametrize(
    ("arrival", "expected"),
    [
        ({"constant": 10}, AWAKE_NS),
        ({"constant": 100}, 1 * MS),
        ({"constant": 1000}, 100_000),
        ({"closed": {"concurrency": 2, "think": "1s"}}, AWAKE_NS),
        ({"closed": {"concurrency": 64, "think": "640ms"}}, 1 * MS),
        ({"closed": {"concurrency": 2}}, 0),
    ],
    ids=str,
)
def test_a_tenth_of_the_time_at_most(arrival: dict[str, Any], expected: int) -> None:
    """So many requests times so long is no more than that, however many there are."""
    load = Load.model_validate({"arrival": arrival, "requests": 1000, "input_tokens": 1})
    assert awake_ns(window(load, 0, 64)) == pytest.approx(expected, rel=0.1, abs=100)


@pytest.mark.parametrize("arrival", [{"constant": 20}, {"closed": {"concurrency": 2, "think": "200ms"}}], ids=str)
def test_nothing_sleeps_until_a_request_is_due(monkeypatch: pytest.MonkeyPatch, arrival: dict[str, Any]) -> None:
    """Each time for which the client may sleep ends before that, and nothing leaves before its time."""
    rings: list[int] = []
    set_alarm = Alarm.set

    def setting(alarm: Alarm, at_ns: int) -> None:
        rings.append(at_ns)
        set_alarm(alarm, at_ns)

    monkeypatch.setattr(Alarm, "set", setting)
    load = Load.model_validate({"arrival": arrival, "requests": 8, "input_tokens": 1, "output_tokens": 2})
    asked = window(load, 0, 64)
    with serving() as url:
        found = asyncio.run(WindowRun(asked, Target(url=url, model="null")).run())

    assert not [answer.error for answer in found.answers if answer.error]
    assert all(answer.sent_ns is not None and answer.sent_ns >= answer.scheduled_ns for answer in found.answers)
    due = {answer.scheduled_ns for answer in found.answers}
    assert due & {ring + awake_ns(asked) for ring in rings}
    assert not due & set(rings)


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


PUNCTUAL_NS = 60_000


def sent(requests: int, late_ms: list[float]) -> Answers:
    """A window whose requests were sent in time, but for some."""
    lateness_ns = [round(one * 1e6) for one in late_ms] + [PUNCTUAL_NS] * (requests - len(late_ms))
    answers = tuple(
        Answer(number=number, scheduled_ns=number * 10**7, sent_ns=number * 10**7 + own, end_ns=10**10)
        for number, own in enumerate(lateness_ns)
    )
    return Answers(begin_ns=0, end_ns=10**10, cpu_ns=10**9, answers=answers)


# The first five are windows of servers on H100s (docs/measurements.md).
@pytest.mark.parametrize(("requests", "late_ms", "counts"), [
    (96, [4.06, 0.46, 0.40], True),
    (84, [1.37, 0.53], True),
    (99, [1.55, 0.31], True),
    (99, [3.26, 2.80, 1.54], False),
    (96, [6.62, 2.15, 2.05], False),
    (96, [9.9], True),
    (96, [10.0], False),
    (115, [2.0], True),
    (115, [2.0, 2.0], False),
    (250, [2.0, 2.0], True),
    (250, [2.0, 2.0, 2.0], False),
    (20, [2.0], True),
    (19, [2.0], False),
    (1, [2.0], False),
])  # fmt: skip
def test_a_window_counts_with_so_many_late_requests(requests: int, late_ms: list[float], *, counts: bool) -> None:
    """One in a hundred may be late, and of twenty or more one, by less than 10 ms."""
    void = sent(requests, late_ms).void

    assert (void is None) is counts
    assert void is None or void.code == "client-late"
