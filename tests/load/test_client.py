"""The client against servers that answer well, badly, or not at all."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from null_server import DONE, END, HEAD, LAST, NEXT, NullServer, at_once, chunk, event, serving

from perfgate.errors import NotMeasuredError, UsageError
from perfgate.load import window_run
from perfgate.load.client import Client
from perfgate.load.exchange import Answer, Answers, Request, Target, Window


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """One process for all tests: what one server does to it must not reach the next."""
    with Client(tmp_path_factory.mktemp("client"), "test") as started:
        yield started


def requests(count: int = 1, every_ns: int | None = 1_000_000, **fields: Any) -> tuple[Request, ...]:
    """Requests for three tokens, a millisecond apart."""
    whole = {"prompt": (1, 2, 3), "max_tokens": 3, **fields}
    return tuple(
        Request(number=number, at_ns=None if every_ns is None else number * every_ns, **whole)
        for number in range(count)
    )


def write(*parts: bytes, close: bool = False) -> Callable[[NullServer, dict[str, Any]], None]:
    """An answer of these bytes, and perhaps the end of the connection."""

    def answer(connection: NullServer, _: dict[str, Any]) -> None:
        connection.transport.write(b"".join(parts))
        if close:
            connection.transport.close()

    return answer


def ask(
    client: Client, answer: Callable[[NullServer, dict[str, Any]], None], timeout_s: float = 30.0, **fields: Any
) -> Answer:
    """What becomes of one request to a server that answers so."""
    with serving(answer) as url:
        target = Target(url=url, model="null", timeout_s=timeout_s)
        return client.drive(Window(requests=requests(**fields)), target).answers[0]


def test_every_request_is_sent_on_time_and_answered(client: Client) -> None:
    """All stamps are on this process's clock, in order, and each token is counted."""
    before_ns = time.monotonic_ns()
    with serving() as url:
        found = client.drive(Window(requests=requests(200)), Target(url=url, model="null"))
    assert before_ns < found.begin_ns < found.end_ns < time.monotonic_ns()
    assert [answer.number for answer in found.answers] == [*range(200)]
    for answer in found.answers:
        assert answer.scheduled_ns == found.begin_ns + answer.number * 1_000_000
        assert answer.sent_ns is not None
        stamps = (answer.scheduled_ns, answer.sent_ns, *answer.token_ns, answer.end_ns)
        assert sorted(stamps) == [*stamps]
        assert (answer.tokens, answer.finish, answer.error) == (3, "length", "")
    assert found.cpu_ns > 0


def test_the_server_gets_what_was_planned(client: Client) -> None:
    """Prompt, length and further fields; a field of the request goes before the target's."""
    seen = []

    def answer(connection: NullServer, request: dict[str, Any]) -> None:
        seen.append((connection.head.split(b"\r\n")[0], request))
        at_once(connection, request)

    ask(client, answer, body={"temperature": 0.5, "model": "adapter"})
    assert seen == [(b"POST /v1/completions HTTP/1.1", {
        "model": "adapter", "prompt": [1, 2, 3], "max_tokens": 3, "stream": True, "return_token_ids": True,
        "temperature": 0.5,
    })]  # fmt: skip
    with serving(answer) as url:
        target = Target(url=f"{url}/behind/", model="null", counts="usage")
        client.drive(Window(requests=requests()), target)
    assert seen[1][0] == b"POST /behind/v1/completions HTTP/1.1"
    assert seen[1][1]["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_an_event_may_carry_several_tokens(client: Client) -> None:
    """Chunks are not tokens: token ids are counted, else the difference in usage."""
    two = write(HEAD, event(2), event(1, "length"), DONE)
    assert ask(client, two).tokens == 3
    usage = [
        event(2, choices=[{"text": "a"}], usage={"completion_tokens": 2}),
        event(1, choices=[{"text": "", "finish_reason": "stop"}], usage={"completion_tokens": 3}),
        event(0, choices=[], usage={"completion_tokens": 3}),
    ]
    answer = ask(client, write(HEAD, *usage, DONE))
    assert (answer.tokens, answer.finish, answer.error) == (3, "stop", "")


def test_a_user_hangs_up(client: Client) -> None:
    """After the declared tokens, and only where more were to come."""
    unfinished = write(HEAD, NEXT)
    cancelled = ask(client, unfinished, cancel_after=1)
    assert (cancelled.tokens, cancelled.finish, cancelled.error) == (1, "cancelled", "")
    assert ask(client, at_once, cancel_after=3).finish == "length"


def test_a_closed_loop_keeps_its_concurrency(client: Client) -> None:
    """No more requests than places are there at once; each is due when its user has thought."""
    waiting: list[tuple[NullServer, dict[str, Any]]] = []
    most = 0

    def answer(connection: NullServer, request: dict[str, Any]) -> None:
        """Hold answers back until there are three."""
        nonlocal most
        waiting.append((connection, request))
        most = max(most, len(waiting))
        if len(waiting) >= 3:
            asyncio.get_running_loop().call_later(0.002, answer_all)

    def answer_all() -> None:
        for each in waiting:
            at_once(*each)
        waiting.clear()

    think_ns = tuple(1_000_000 * number for number in range(12))
    with serving(answer) as url:
        window = Window(requests=requests(12, None), concurrency=3, think_ns=think_ns)
        found = client.drive(window, Target(url=url, model="null"))
    ends = sorted(a.end_ns for a in found.answers)
    assert most == 3
    assert not [a for a in found.answers if a.error]
    for answer_ in found.answers[3:]:
        assert answer_.scheduled_ns - think_ns[answer_.number] in ends


class ImpatientServer(NullServer):
    """A server that closes a connection on which nothing came for 120 ms; it may say so."""

    says = b""

    def connection_made(self, transport: Any) -> None:
        """Called by the loop."""
        super().connection_made(transport)
        asyncio.get_running_loop().call_later(0.12, self.give_up)

    def give_up(self) -> None:
        """It has waited long enough."""
        if not self._received and not self.head:
            self.transport.write(self.says)
            self.transport.close()


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n"])
def test_a_connection_that_was_closed_while_it_was_idle_is_opened_anew(
    client: Client, monkeypatch: pytest.MonkeyPatch, says: bytes
) -> None:
    """In a closed loop it is opened long before it is needed, and a server need not keep it."""
    monkeypatch.setattr("null_server.NullServer", ImpatientServer)
    monkeypatch.setattr(ImpatientServer, "says", says)
    asked = Window(requests=requests(4, None), concurrency=2, think_ns=(0, 0, 500_000_000, 300_000_000))
    with serving() as url:
        answers = client.drive(asked, Target(url=url, model="null")).answers
    assert [(answer.tokens, answer.error, answer.sent_twice) for answer in answers] == [(3, "", False)] * 4


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Callable[[Window, str], Answers]:
    """The client in this process, with time enough on a busy machine to open a connection and to see its end."""
    monkeypatch.setattr(window_run, "AHEAD_NS", 30 * 10**9)
    monkeypatch.setattr(window_run, "LEAD_NS", 5 * 10**8)
    return lambda window, url: asyncio.run(window_run.WindowRun(window, Target(url=url, model="null")).run())


def test_a_request_that_meets_the_end_of_its_connection_is_sent_once_more(
    patient: Callable[[Window, str], Answers],
) -> None:
    """A server may close an idle connection as the request is on its way; the time counts from schedule."""
    asked: list[int] = []
    closed_ns: dict[int, int] = {}

    def answer(connection: NullServer, request: dict[str, Any]) -> None:
        number = request["user"]
        asked.append(number)
        if number in closed_ns:
            at_once(connection, request)
        else:
            closed_ns[number] = time.monotonic_ns()
            connection.transport.abort() if number % 2 else connection.transport.close()

    window = tuple(one.model_copy(update={"body": {"user": one.number}}) for one in requests(4, 20_000_000))
    with serving(answer) as url:
        found = patient(Window(requests=window), url)
    assert [(one.tokens, one.error, one.sent_twice) for one in found.answers] == [(3, "", True)] * 4
    assert sorted(asked) == [0, 0, 1, 1, 2, 2, 3, 3]
    for one in found.answers:
        assert one.sent_ns is not None
        assert one.scheduled_ns == found.begin_ns + one.number * 20_000_000
        assert one.scheduled_ns <= one.sent_ns < closed_ns[one.number] < one.token_ns[0]


def test_a_request_is_sent_no_more_than_twice(patient: Callable[[Window, str], Answers]) -> None:
    """And once where a byte of an answer came."""
    for parts, times in (((), 2), ((HEAD[:9],), 1), ((HEAD, NEXT), 1)):
        asked: list[str] = []

        def answer(
            connection: NullServer, request: dict[str, Any], parts: tuple[bytes, ...] = parts, asked: list[str] = asked
        ) -> None:
            asked.append(request["model"])
            write(*parts, close=True)(connection, request)

        with serving(answer) as url:
            (one,) = patient(Window(requests=requests()), url).answers
        assert "the connection was closed" in one.error
        assert len(asked) == times


def test_a_server_that_closes_every_connection_at_once_is_told(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request gets at most one more connection: in the place of one that was closed before it was due."""
    opened = []

    class Closing(NullServer):
        def connection_made(self, transport: Any) -> None:
            opened.append(transport)
            transport.close()

    monkeypatch.setattr("null_server.NullServer", Closing)
    with serving() as url:
        answers = client.drive(Window(requests=requests(3)), Target(url=url, model="null")).answers
    assert {answer.error.partition(":")[0] for answer in answers} == {"the connection was closed before an answer"}
    assert 3 <= len(opened) <= 6


WRONG: dict[str, tuple[tuple[bytes, ...], bool, str]] = {
    "status": ((b"HTTP/1.1 500 Oh\r\ncontent-length: 4\r\n\r\nfull",), False, "status 500: full"),
    "long status": ((b"HTTP/1.1 503 Oh\r\ncontent-length: 999999\r\n\r\n", b"x" * 999), False, "status 503: xxx"),
    "not http": ((b"SSH-2.0-OpenSSH_9.6\r\n",), False, "invalid HTTP"),
    "endless head": ((b"HTTP/1.1 200 OK\r\n", b"x-a: b\r\n" * 20_000), False, "a head of more than 65536 bytes"),
    "closed at once": ((), True, "the connection was closed before an answer"),
    "half a stream": ((HEAD, NEXT), True, "the connection was closed after 1 tokens"),
    "half an event": ((HEAD, NEXT[:60]), True, "closed after 0 tokens"),
    "ends early": ((HEAD, NEXT, DONE), False, "ended after 1 tokens without a finish_reason"),
    "ends at once": ((HEAD, END), False, "ended after 0 tokens without a finish_reason"),
    "not json": ((HEAD, chunk(b"data: {nope\n\n")), False, "an event that is not JSON: {nope"),
    "no choices": ((HEAD, chunk(b"data: [1]\n\n")), False, "an event without choices: [1]"),
    "an error": ((HEAD, chunk(b'data: {"error": {"message": "out of\x07 memory"}}\n\n')), False, "out of"),
    "too many": ((HEAD, event(4)), False, "4 tokens, 3 were asked for"),
    "uncounted": ((HEAD, event(choices=[{"text": "a"}])), False, "cannot be counted"),
    "huge event": ((HEAD, chunk(b"data: " + b"x" * 9 * 2**20)), False, "an event of more than 8388608 bytes"),
    "endless body": ((HEAD, chunk(b": %s\n\n" % (b"x" * 2**16)) * 300), False, "an answer of more than"),
    "endless trailers": (
        (HEAD, NEXT, event(2, "length"), b"0\r\n", b"x: y\r\n" * 3_000_000),
        False,
        "an answer of more",
    ),
    "deep": ((HEAD, chunk(b"data: " + b"[" * 100_000 + b"\n\n")), False, "not JSON"),
}


def test_wrong_answers_end_as_errors_of_their_requests(client: Client) -> None:
    """In words, never by hanging, and without harm to the requests beside them."""

    def answer(connection: NullServer, request: dict[str, Any]) -> None:
        parts, close, _ = WRONG.get(request["user"], ((HEAD, NEXT, NEXT, LAST), False, ""))
        write(*parts, close=close)(connection, request)

    names = [name for wrong in WRONG for name in (wrong, "right")]
    asked = [Request(number=n, at_ns=n, prompt=(1,), max_tokens=3, body={"user": name}) for n, name in enumerate(names)]
    with serving(answer) as url:
        found = client.drive(Window(requests=tuple(asked)), Target(url=url, model="null"))
    for name, got in zip(names, found.answers, strict=True):
        if name == "right":
            assert (got.tokens, got.finish, got.error) == (3, "length", "")
        else:
            assert WRONG[name][2] in got.error, name
            assert got.error.isprintable()
            assert got.finish == ""
            assert got.sent_ns is not None


def test_a_server_that_falls_silent_is_given_up(client: Client) -> None:
    """After the time limit, wherever it was."""
    silent = iter([(), (HEAD[:20],), (HEAD, NEXT), (HEAD, NEXT, event(2, "length"))])

    def answer(connection: NullServer, request: dict[str, Any]) -> None:
        write(*next(silent))(connection, request)

    with serving(answer) as url:
        found = client.drive(Window(requests=requests(4)), Target(url=url, model="null", timeout_s=0.05))
    for got in found.answers:
        assert got.error == "no end within 0.05 s"
        assert got.end_ns - got.scheduled_ns >= 50_000_000


def test_the_end_of_the_connection_may_be_that_of_the_body(client: Client) -> None:
    """Of a server that sends neither length nor chunks."""
    body = b"".join(
        b"data: %s\n\n" % part for part in (b'{"choices":[{"token_ids":[1],"finish_reason":"stop"}]}', b"[DONE]")
    )
    answer = ask(client, write(b"HTTP/1.1 200 OK\r\n\r\n", body, close=True))
    assert (answer.tokens, answer.finish, answer.error) == (1, "stop", "")


def test_nobody_listens(client: Client) -> None:
    """A refused connection is an error of each request, in a closed loop too."""
    with serving() as url:
        pass
    target = Target(url=url, model="null")
    for window in (Window(requests=requests(3)), Window(requests=requests(3, None), concurrency=2)):
        answers = client.drive(window, target).answers
        assert {answer.error for answer in answers} == {"no connection: Connection refused"}
        assert {answer.sent_ns for answer in answers} == {None}


@pytest.mark.parametrize("url", ["https://host", "ftp://host", "http://", "localhost:80", "http://a b", "http://h/?q=1",
                                 "http://h:99999", "http://[::1", "http://h\r\nx: y"])  # fmt: skip
def test_only_a_url_of_a_server_is_driven(client: Client, url: str) -> None:
    """The client speaks plain HTTP."""
    with pytest.raises(UsageError, match="not the URL of a server"):
        client.drive(Window(requests=requests()), Target(url=url, model="null"))


def test_the_client_goes_first_where_the_system_permits(client: Client) -> None:
    """Then others on its cores do not make it late."""
    policy = os.sched_getscheduler(client._child.pid)
    permitted = True
    try:
        os.sched_setscheduler(client._child.pid, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        permitted = False
    assert policy == (os.SCHED_RR if permitted else os.SCHED_OTHER)


def test_a_client_that_ends_is_told(tmp_path: Path) -> None:
    """By its reason code."""
    with Client(tmp_path, "test") as mine, serving(write(HEAD)) as url:
        mine._child._kill()
        with pytest.raises(NotMeasuredError, match="the client failed: it ended") as caught:
            mine.drive(Window(requests=requests()), Target(url=url, model="null"))
    assert caught.value.code == "client-failed"
