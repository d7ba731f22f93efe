"""Latency counts from schedule, and users do not march in step: what other load drivers get wrong."""

from __future__ import annotations

import heapq
import time
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from null_server import NullServer, at_once, serving
from pydantic import ValidationError

from perfgate.load.arrival_kinds import Lengths
from perfgate.load.arrivals import window
from perfgate.load.client import Client
from perfgate.load.exchange import Target, Window
from perfgate.load.shape import Load

STEP, PREFILL = 10.0, 15.0
"""Milliseconds of a decode step and of the prefill of one prompt, in the model of a server below."""


def ramp(load: Window) -> float:
    """How much longer the last quarter of a round waits for its first token than the first quarter, in the mean.

    A model of a server: prompts are prefilled one by one, and every answer in progress gets a token a step. A round is
    as many requests as there are users, in the order in which they are sent; the first does not count.
    """
    places = load.concurrency or 1
    begun = [(load.think_ns[n] / 1e6, n) for n in range(places)]
    heapq.heapify(begun)
    following, now = places, 0.0
    running: list[list[int]] = []
    waits: list[float] = []
    while begun or running:
        if not running:
            now = max(now, begun[0][0])
        while begun and begun[0][0] <= now:
            due, number = heapq.heappop(begun)
            now += PREFILL
            waits.append(now - due)
            running.append([load.requests[number].max_tokens])
        now += STEP
        for one in running:
            one[0] -= 1
        for _ in [one for one in running if not one[0]]:
            if following < len(load.requests):
                heapq.heappush(begun, (now + load.think_ns[following] / 1e6, following))
                following += 1
        running = [one for one in running if one[0]]
    by_place = [waits[places + place :: places] for place in range(places)]
    quarter = places // 4
    return mean(map(mean, by_place[-quarter:])) / mean(map(mean, by_place[:quarter]))


def closed(think: str | None = None, **declared: Any) -> dict[str, Any]:
    """A closed loop of 16 users."""
    users = {"concurrency": 16, "think": think}
    return {"arrival": {"closed": users}, "requests": 2400, "input_tokens": 1, **declared}


def test_users_do_not_march_in_step() -> None:
    """With answers of one length, whoever is last in the queue stays last; with the default lengths nobody does."""
    free = Load.model_validate(closed())
    assert ramp(window(free.model_copy(update={"output_tokens": Lengths(fixed=128)}), 0, 64)) > 1.86
    assert ramp(window(free, 0, 64)) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    ("think", "lengths"),
    [
        ("1ms", 128),
        ("700ms", 128),
        (None, {"uniform": [128, 129]}),
        (None, {"uniform": [15, 17]}),
        (None, {"lognormal": {"median": 128, "sigma": 1, "most": 10}}),
    ],
)
def test_a_load_that_would_march_is_refused(think: str | None, lengths: Any) -> None:
    """Be it by a spread that is next to none, or by a pause that is none beside the time of all prefills."""
    with pytest.raises(ValidationError, match="in step for ever"):
        Load.model_validate(closed(think, output_tokens=lengths))


@pytest.mark.parametrize(
    ("think", "lengths"),
    [
        ("800ms", 128),
        ("800ms", 16),
        (None, {"uniform": [106, 150]}),
        (None, {"uniform": [13, 19]}),
        (None, {"lognormal": {"median": 128, "sigma": 0.11, "most": 1000}}),
    ],
)
def test_what_is_just_allowed_does_not_march(think: str | None, lengths: Any) -> None:
    """In the model."""
    loads = (Load.model_validate(closed(think, output_tokens=lengths, seed=seed)) for seed in range(3))
    assert mean(ramp(window(load, 0, 64)) for load in loads) < 1.05


def test_a_pause_of_the_server_is_reported_whole(tmp_path: Path) -> None:
    """Requests leave on time though nothing is answered, and each counts from when it was due."""
    held: list[tuple[NullServer, dict[str, Any]]] = []
    released_ns = 0

    def answer(connection: NullServer, request: dict[str, Any]) -> None:
        """Nothing is answered before the last request is there."""
        nonlocal released_ns
        held.append((connection, request))
        if len(held) == 200:
            released_ns = time.monotonic_ns()
            for each in held:
                at_once(*each)

    load = Load.model_validate({"arrival": {"constant": 1000}, "requests": 200, "output_tokens": 3, "input_tokens": 1})
    with serving(answer) as url, Client(tmp_path, "test") as client:
        found = client.drive(window(load, 0, 64), Target(url=url, model="null"))
    waited = [released_ns - answer.scheduled_ns for answer in found.answers]
    assert max(waited) > 199_000_000
    for got, least in zip(found.answers, waited, strict=True):
        assert got.sent_ns is not None
        assert got.sent_ns < released_ns
        assert got.ttft_ns is not None
        assert got.ttft_ns >= least
        assert got.ttft_ns == got.token_ns[0] - got.scheduled_ns
