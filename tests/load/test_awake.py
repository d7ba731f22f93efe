"""The client is awake when a request is due, and asleep most of the time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from null_server import serving

from perfgate.load.alarm import Alarm
from perfgate.load.arrivals import window
from perfgate.load.exchange import Target
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
