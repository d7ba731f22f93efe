"""An answer byte by byte: it says the same however it is cut, and whatever is in it nothing else is raised."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from null_server import DONE, END, HEAD, LAST, NEXT, chunk, event

from perfgate.load.event_stream import LINES_A_TOKEN, MOST_LINES, MOST_PARTS, WORDS, EventStream, StreamError

PARTS = st.sampled_from([
    HEAD, NEXT, LAST, DONE, event(2), event(3, "stop"), chunk(b": ping\n\n"), chunk(b'data: {"choices": []}\r\n\r\n'),
    chunk(b'data: {"error": 1}\n\n'), chunk(b'data: {"choices": [{"token_ids": 5, "text": 5}], "usage": [1]}\n\n'),
    chunk(b'data: {"choices": [{"finish_reason": 5}], "usage": {"completion_tokens": -1}}\n\n'), END,
    chunk(b"data:\ndata\n"), b"HTTP/1.1 404 No\r\n", b"content-length: 5\r\n\r\n",
    b"HTTP/1.1 101 Yes\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n",
])  # fmt: skip


def told(data: bytes, cuts: list[int]) -> tuple[int, str, bool, str]:
    """What a stream says of an answer that comes in these pieces: tokens, finish, whether complete, and the error."""
    stream, error = EventStream(max_tokens=8), ""
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    try:
        for begin, end in pairwise(edges):
            if begin < end:
                stream.feed(data[begin:end])
            if stream.done:
                break
        else:
            stream.end()
    except StreamError as raised:
        error = str(raised)
    return stream.tokens, stream.finish, stream.done, error


@given(answer=st.lists(PARTS, max_size=8).map(b"".join), cuts=st.lists(st.integers(0, 10**6), max_size=8))
def test_pieces_do_not_matter(answer: bytes, cuts: list[int]) -> None:
    """But for the tokens that came before an error in the same piece."""
    whole, pieces = told(HEAD + answer, []), told(HEAD + answer, cuts)
    assert whole[1:3] == pieces[1:3]
    assert bool(whole[3]) == bool(pieces[3])
    if not whole[3]:
        assert whole == pieces


@given(data=st.binary(max_size=200), head=st.booleans())
def test_nothing_else_is_raised(data: bytes, head: bool) -> None:  # noqa: FBT001 (drawn)
    """Whatever a server sends; its words are short and printable."""
    error = told((HEAD if head else b"") + data, [])[3]
    assert error.isprintable()
    assert len(error) <= WORDS + 100


@pytest.mark.parametrize("interim", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"])
def test_a_server_may_say_that_it_goes_on(interim: bytes) -> None:
    """Before the answer itself, which is read as without it; alone it is no answer."""
    answer = HEAD + event(2) + event(3, "stop") + DONE + END
    assert told(interim + interim + answer, []) == told(answer, []) == (5, "stop", True, "")
    assert told(interim, [])[3] == "the connection was closed before an answer"
    assert told(interim + b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n", [])[3] == "status 500"


def test_only_a_client_cancels() -> None:
    """A server that ends a request by that word, as TensorRT-LLM may, would have its times left out with it."""
    assert told(HEAD + event(2) + event(1, "cancelled") + DONE + END, [])[3] == (
        "the server says that it cancelled the request"
    )


def test_a_number_without_end_is_told_short() -> None:
    """Of what a server says no more than some words are kept."""
    said = b'data: {"choices": [{"text": "w", "finish_reason": null}], "usage": {"completion_tokens": %b}}\n\n'
    error = told(HEAD + chunk(said % (b"9" * 4000)), [])[3]
    assert error == "over 1000000000 tokens, 8 were asked for"

    stream = EventStream(max_tokens=8, by_events=True)
    stream.feed(HEAD + chunk(b'data: {"choices": [{"text": "w", "finish_reason": "length"}]}\n\n'))
    stream.feed(chunk(b'data: {"choices": [], "usage": {"completion_tokens": -%b}}\n\n' % (b"9" * 4000)))
    with pytest.raises(StreamError, match=r"^1 events with text, and the usage at the end does not say how many"):
        stream.feed(DONE + END)


@pytest.mark.parametrize("line", [b"\n", b"\r\n", b":\n", b"data:\n", b"data:\n\n", b"event: a\n"])
def test_lines_without_tokens_have_an_end(line: bytes) -> None:
    """A server that sends nothing but lines holds the client for no more of them than an answer may have."""
    error = told(HEAD + chunk(line * (2**24 // len(line))), [])[3]
    assert error == f"an answer of more than {MOST_LINES + 8 * LINES_A_TOKEN} lines"


@pytest.mark.parametrize("status", [b"200 OK", b"500 No"])
def test_parts_without_tokens_have_an_end(status: bytes) -> None:
    """Nor do chunks of a byte."""
    error = told(HEAD.replace(b"200 OK", status) + chunk(b"x") * 2**18, [])[3]
    assert error == (f"an answer in more than {MOST_PARTS + 8 * LINES_A_TOKEN} parts" if b"OK" in status else
                     f"status 500: {'x' * WORDS}")  # fmt: skip


def test_a_long_answer_has_as_many_lines_as_it_needs() -> None:
    """Events with fields beside their data, a comment after each, and each line in a part of its own."""
    stream, tokens = EventStream(max_tokens=8192), 0
    stream.feed(HEAD)
    lines = (
        b"id: 1\n",
        b"event: token\n",
        b": ping\n",
        b": ping\n",
        b'data: {"choices": [{"token_ids": [1]}]}\n',
        b"\n",
    )
    for _ in range(8192):
        tokens += stream.feed(b"".join(map(chunk, lines)))
    assert tokens == 8192


@pytest.mark.parametrize("count", [b"true", b"1.0", b'"1"', b"[1]", b"null"])
@pytest.mark.parametrize("by_events", [False, True])
def test_what_is_no_number_counts_nothing(count: bytes, by_events: bool) -> None:  # noqa: FBT001 (a case)
    """A truth value is one in Python; as a number of tokens it is not taken, neither beside a text nor at the end."""
    stream = EventStream(max_tokens=8, by_events=by_events)
    said = b'data: {"choices": [%b], "usage": {"completion_tokens": ' + count + b"}}\n\n"
    with pytest.raises(StreamError, match=r"neither token ids nor usage|does not say how many tokens"):
        stream.feed(HEAD + chunk(said % b'{"text": "w", "finish_reason": "stop"}') + chunk(said % b"") + DONE)


def test_the_tokens_of_a_piece_are_told() -> None:
    """Several events may come at once."""
    stream = EventStream(max_tokens=8)
    assert [stream.feed(part) for part in (HEAD, NEXT + event(2), LAST)] == [0, 3, 1]
    assert (stream.tokens, stream.finish, stream.done) == (4, "length", True)


def usage(tokens: int) -> bytes:
    """What a server says at the end of a stream."""
    return chunk(b'data: {"choices": [], "usage": {"completion_tokens": %d}}\n\n' % tokens)


TEXT = chunk(b'data: {"choices": [{"text": "w"}]}\n\n')
FINISH = chunk(b'data: {"choices": [{"text": "", "finish_reason": "length"}]}\n\n')


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (usage(2), ""),
        (usage(3), "2 events with text, and the usage at the end says 3 tokens"),
        (b"", "2 events with text, and the usage at the end does not say how many tokens"),
        (
            chunk(b'data: {"choices": [{"text": ""}], "usage": {"completion_tokens": 8}}\n\n'),
            "2 events with text, and the usage at the end says 8 tokens",
        ),
    ],
)
def test_events_are_tokens_where_the_usage_agrees(told: bytes, said: str) -> None:
    """An event is a token only where the server counted as many; else one of them carried several, or none."""
    stream, error = EventStream(max_tokens=8, by_events=True), ""
    try:
        stream.feed(HEAD + TEXT + TEXT + FINISH + told + END)
    except StreamError as problem:
        error = str(problem)

    assert stream.tokens == 2
    assert (error.partition(":")[0], stream.done) == (said, not said)
