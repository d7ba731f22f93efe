"""From a load to requests: the same on both sides, different in each window, and of the shape declared."""

from __future__ import annotations

from itertools import pairwise
from statistics import mean, median
from typing import Any

import pytest
from pydantic import ValidationError

from perfgate.load.arrival_kinds import APART_NS
from perfgate.load.arrivals import Arrived, crowded, window
from perfgate.load.exchange import Window
from perfgate.load.shape import Load

VOCABULARY = 32_000


def load(**declared: Any) -> Load:
    """A load of short requests, 400 of them where nothing else is said."""
    lengths = {"input_tokens": 4, "output_tokens": 4}
    count = {} if "duration" in declared else {"requests": 400}
    return Load.model_validate({"arrival": {"poisson": 100}, **lengths, **count, **declared})


def times(requests: Window) -> list[float]:
    """When requests are due, seconds."""
    return [request.at_ns / 1e9 for request in requests.requests if request.at_ns is not None]


def test_a_window_is_the_same_whenever_it_is_asked_for() -> None:
    """Both sides get the same requests; the next window, and another seed, give others."""
    one = load(seed=7)
    assert window(one, 3, VOCABULARY) == window(load(seed=7), 3, VOCABULARY)
    others = [window(one, 4, VOCABULARY), window(load(seed=8), 3, VOCABULARY)]
    for other in others:
        pairs = zip(window(one, 3, VOCABULARY).requests, other.requests, strict=True)
        assert not any(a.at_ns == b.at_ns or a.prompt == b.prompt for a, b in pairs)


def test_a_new_key_keeps_prompts_and_times() -> None:
    """What is random has a stream of its own."""
    plain, cancelled = load(), load(cancel={"share": "50%", "after_tokens": 2}, sampling={"temperature": 1})
    assert [(r.at_ns, r.prompt) for r in window(plain, 0, VOCABULARY).requests] == [
        (r.at_ns, r.prompt) for r in window(cancelled, 0, VOCABULARY).requests
    ]


def test_tokens_are_of_the_vocabulary() -> None:
    """The first ids, which are often special, are left out."""
    tokens = {token for request in window(load(), 0, 40).requests for token in request.prompt}
    assert tokens == {*range(16, 40)}
    assert {token for request in window(load(), 0, 8).requests for token in request.prompt} == {*range(8)}


def test_poisson_arrivals_are_exponential() -> None:
    """Their gaps have the mean of the rate, and its standard deviation."""
    at = times(window(load(requests=20_000, input_tokens=1), 0, VOCABULARY))
    gaps = [b - a for a, b in pairwise(at)]
    assert mean(gaps) == pytest.approx(0.01, rel=0.03)
    assert median(gaps) == pytest.approx(0.00693, rel=0.03)


def test_constant_arrivals_are_even() -> None:
    """Each window begins at another phase."""
    at = times(window(load(arrival={"constant": 50}), 0, VOCABULARY))
    assert {round(b - a, 6) for a, b in pairwise(at)} == {0.02}
    assert at[0] != times(window(load(arrival={"constant": 50}), 1, VOCABULARY))[0]


def test_bursts_come_as_fast_as_a_client_can_send() -> None:
    """Groups of the declared size, at the declared rate over all; one that begins in another follows it."""
    at = times(window(load(arrival={"bursts": {"rate": 100, "size": 8}}, requests=8000), 0, VOCABULARY))
    apart = APART_NS / 1e9
    assert all(at[k + n] == pytest.approx(at[k] + n * apart) for k in range(0, 8000, 8) for n in range(8))
    assert all(after - before > 0.99 * apart for before, after in pairwise(at))
    assert at[-1] == pytest.approx(80, rel=0.1)


def test_users_of_a_closed_loop_begin_one_after_another() -> None:
    """A client cannot send for all of them at one instant; what follows is when their answers come."""
    users: dict[str, Any] = {"arrival": {"closed": {"concurrency": 64}}, "output_tokens": {"uniform": [4, 40]}}
    begun = window(load(**users, requests=200), 0, VOCABULARY)
    assert begun.think_ns == (*range(0, 64 * APART_NS, APART_NS), *[0] * 136)
    few = window(load(**users, requests=3), 0, VOCABULARY)
    assert few.think_ns == (0, APART_NS, 2 * APART_NS)


def test_a_ramp_goes_from_one_rate_to_the_other() -> None:
    """The first and the last tenth of the time hold requests as of these rates."""
    at = times(window(load(arrival={"ramp": {"start": 10, "end": 190}}, duration="50s"), 0, VOCABULARY))
    assert len([t for t in at if t < 5]) == pytest.approx(5 * 19, rel=0.35)
    assert len([t for t in at if t >= 45]) == pytest.approx(5 * 181, rel=0.1)
    assert len(at) == pytest.approx(5000, rel=0.06)


def test_a_duration_ends_the_window() -> None:
    """All requests are due within it."""
    at = times(window(load(duration="3s"), 0, VOCABULARY))
    assert len(at) == pytest.approx(300, rel=0.2)
    assert at[-1] < 3


def test_a_window_in_which_nothing_is_due_has_a_request() -> None:
    """At a low rate some windows would be empty, and could not be measured."""
    declared = load(arrival={"poisson": 0.01}, duration="1s")
    assert [times(window(declared, number, VOCABULARY)) for number in range(20)] == [[0]] * 20


def test_a_closed_loop_thinks() -> None:
    """It has no times, and waits of the declared mean."""
    closed = window(load(arrival={"closed": {"concurrency": 8, "think": "400ms"}}), 0, VOCABULARY)
    assert closed.concurrency == 8
    assert {request.at_ns for request in closed.requests} == {None}
    assert mean(closed.think_ns) == pytest.approx(4e8, rel=0.15)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [(7, (7, 7, 7)), ({"uniform": [10, 30]}, (10, 20, 30)), ({"lognormal": {"median": 50, "sigma": 1, "most": 200}},
                                                               (1, 50, 200))],
)  # fmt: skip
def test_lengths_are_as_declared(lengths: Any, expected: tuple[int, int, int]) -> None:
    """Within their range, about their median."""
    requests = window(load(output_tokens=lengths, requests=2000), 0, VOCABULARY).requests
    found = [request.max_tokens for request in requests]
    low, middle, high = expected
    assert low <= min(found) <= max(found) <= high
    assert median(found) == pytest.approx(middle, rel=0.1)


def test_a_share_of_prompts_begins_alike() -> None:
    """With one of the declared number of prefixes; those prompts are longer than it."""
    prefixed = load(prefix={"share": "50%", "tokens": 6, "groups": 2}, input_tokens=8)
    requests = window(prefixed, 0, VOCABULARY).requests
    begins = [request.prompt[:6] for request in requests]
    shared = [begin for begin in begins if begins.count(begin) > 1]
    assert len({*shared}) == 2
    assert len(shared) / len(requests) == pytest.approx(0.5, abs=0.1)
    assert {len(request.prompt) for request in requests} == {8}
    short = load(prefix={"share": "100%", "tokens": 6})
    assert {len(request.prompt) for request in window(short, 0, VOCABULARY).requests} == {7}


def test_a_share_is_long_and_a_share_hangs_up() -> None:
    """Each as declared, drawn apart from the other."""
    mixed = load(
        long_prefill={"share": "10%", "input_tokens": 64}, cancel={"share": "20%", "after_tokens": {"uniform": [1, 3]}}
    )
    requests = window(mixed, 0, VOCABULARY).requests
    assert len([r for r in requests if len(r.prompt) == 64]) / 400 == pytest.approx(0.1, abs=0.05)
    cancelled = [r.cancel_after for r in requests if r.cancel_after is not None]
    assert len(cancelled) / 400 == pytest.approx(0.2, abs=0.06)
    assert {*cancelled} == {1, 2, 3}


def test_a_request_asks_for_what_is_declared() -> None:
    """Sampling, grammars and adapters are fields of the API; what is held to a grammar may end by itself."""
    plain = window(load(), 0, VOCABULARY).requests[0]
    assert plain.body == {"temperature": 0.0, "ignore_eos": True}
    drawn = window(load(sampling={"temperature": 0.7, "presence_penalty": 0.5}), 0, VOCABULARY).requests
    assert drawn[0].body.items() >= {"temperature": 0.7, "presence_penalty": 0.5}.items()
    assert len({str(request.body["seed"]) for request in drawn}) == 400
    held = window(load(structured={"regex": "[a-z]+"}), 0, VOCABULARY).requests[0]
    assert held.body == {"temperature": 0.0, "structured_outputs": {"regex": "[a-z]+"}}
    schema = {"type": "object"}
    asked = window(load(structured={"json": schema}), 0, VOCABULARY).requests[0].body["response_format"]
    assert asked == {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}
    adapted = window(load(lora={"names": ["a", "b"], "share": "50%"}), 0, VOCABULARY).requests
    assert {request.body.get("model") for request in adapted} == {None, "a", "b"}


TRACE = (
    Arrived(at_ns=0, input_tokens=600, output_tokens=3, blocks=(1, 2)),
    Arrived(at_ns=2_000_000_000, input_tokens=700, output_tokens=5, blocks=(1, 3)),
    Arrived(at_ns=9_000_000_000, input_tokens=5, output_tokens=1, blocks=(4,)),
)


def test_a_server_that_may_have_seen_the_prompts_gets_others() -> None:
    """At the same times, of the same lengths, and with shares of the same size."""
    declared = load(prefix={"share": "50%", "tokens": 20}, cancel={"share": "50%", "after_tokens": 2})
    known, again, other = (window(declared, 0, VOCABULARY, words=words).requests for words in ("", "run 0", "run 1"))
    assert not {request.prompt for request in known} & {request.prompt for request in again}
    assert not {request.prompt for request in other} & {request.prompt for request in again}
    for one, same in zip(known, again, strict=True):
        assert same.model_copy(update={"prompt": one.prompt}) == one
        assert len(same.prompt) == len(one.prompt)


REPLAYED = {"arrival": {"replay": {"file": "chat.jsonl", "speed": 2}}}


def test_a_trace_is_replayed() -> None:
    """With its times over the speed, its lengths, and prompts that share the blocks it says they share."""
    first, second, third = window(Load.model_validate(REPLAYED), 0, VOCABULARY, TRACE).requests
    assert [first.at_ns, second.at_ns, third.at_ns] == [0, 1_000_000_000, 4_500_000_000]
    assert [len(r.prompt) for r in (first, second, third)] == [600, 700, 5]
    assert [r.max_tokens for r in (first, second, third)] == [3, 5, 1]
    assert first.prompt[:512] == second.prompt[:512]
    assert first.prompt[512:] != second.prompt[512:600]
    cut = window(Load.model_validate({**REPLAYED, "duration": "2s"}), 0, VOCABULARY, TRACE)
    assert len(cut.requests) == 2
    shaped = window(Load.model_validate({**REPLAYED, "input_tokens": 4, "output_tokens": 2}), 0, VOCABULARY, TRACE)
    assert {(len(r.prompt), r.max_tokens) for r in shaped.requests} == {(4, 2)}
    with pytest.raises(ValueError, match="empty"):
        window(Load.model_validate(REPLAYED), 0, VOCABULARY)


def test_requests_of_one_time_of_a_trace_come_one_after_another() -> None:
    """As those of a burst do, and what is due while they come follows them; later ones keep their times."""
    at_ns = (0, 0, 0, 400_000, 5_000_000)
    trace = tuple(Arrived(at_ns=at, input_tokens=4, output_tokens=2) for at in at_ns)
    replayed = window(Load.model_validate(REPLAYED), 0, VOCABULARY, trace)
    assert [request.at_ns for request in replayed.requests] == [0, 100_000, 200_000, 300_000, 2_500_000]


@pytest.mark.parametrize(
    ("every_ns", "rate"), [(0, None), (200_000, None), (199_000, pytest.approx(10_050, rel=0.001))]
)
def test_a_trace_that_cannot_come_so_fast_is_known(every_ns: int, rate: float | None) -> None:
    """At its speed of 2; what comes all at one time is a burst."""
    trace = tuple(Arrived(at_ns=number * every_ns, input_tokens=4, output_tokens=2) for number in range(50))
    assert crowded(Load.model_validate(REPLAYED), trace) == rate


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"arrival": {"bursts": {"rate": 20_000, "size": 64}}}, "less than or equal to 10000"),
        ({"arrival": {}}, "exactly one of poisson, constant"),
        ({"arrival": {"poisson": 1, "constant": 1}}, "exactly one of poisson, constant"),
        ({"arrival": {"poisson": 0}}, "greater than or equal to 0.001"),
        ({"duration": "3s", "requests": 3}, "one of requests, duration"),
        ({"arrival": {"closed": {"concurrency": 2, "think": "1s"}}, "duration": "3s"}, "give requests instead"),
        (
            {"arrival": {"closed": {"concurrency": 2}}},
            r"in step for ever.*uniform: \[2, 6\]}, or give a think: of 0\.1s",
        ),
        ({"arrival": {"closed": {"concurrency": 2, "think": "99ms"}}}, "in step for ever"),
        ({"arrival": {"replay": {"file": "../chat.jsonl"}}}, "below the scenario's folder"),
        ({"arrival": {"replay": {"file": "chat.txt"}}}, "Azure"),
        ({"duration": "1000000s"}, "more than 100000 requests"),
        ({"output_tokens": {"uniform": [9, 3]}}, "shorter length first"),
        ({"output_tokens": {"uniform": [3, 9], "fixed": 3}}, "exactly one of fixed"),
        ({"prefix": {"share": "0%", "tokens": 3}}, "above 0%"),
        ({"structured": {}}, "exactly one of json, regex"),
        ({"structured": {"regex": "("}}, "invalid regular expression"),
    ],
)
def test_a_load_that_cannot_be_is_refused(declared: dict[str, Any], said: str) -> None:
    """With what was expected."""
    with pytest.raises(ValidationError, match=said):
        load(**declared)


def test_the_longest_request_is_known_before() -> None:
    """It must fit in the model's context."""
    assert load().longest == 8
    assert load(prefix={"share": "1%", "tokens": 100}).longest == 105
    assert load(long_prefill={"share": "1%", "input_tokens": 900}).longest == 904
    assert Load.model_validate(REPLAYED).longest is None
