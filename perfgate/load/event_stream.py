"""One answer of a server, byte by byte: HTTP/1.1, server-sent events, and what each says of tokens.

Nothing that a server sends is trusted: heads, bodies and events have a largest size, what is not understood ends the
request with an error in words, and no more than those words is kept of it. HTTP is read by httptools (llhttp).
"""

from __future__ import annotations

from typing import Any, Final

import httptools
from pydantic_core import from_json

from perfgate.load.exchange import CANCELLED

MOST_HEAD: Final = 64 * 1024
MOST_EVENT: Final = 8 * 1024**2
"""Bytes; vLLM repeats the prompt's ids in the first event, 7 bytes each."""
MOST_ANSWER: Final = 16 * 1024**2
MOST_A_TOKEN: Final = 4096
"""Bytes of an answer, beside :data:`MOST_ANSWER`, for each token asked for: body, chunks' heads and trailers."""
MOST_LINES: Final = 16 * 1024
"""Of an answer, beside :data:`LINES_A_TOKEN` for each token asked for: an event has two, and servers send comments."""
LINES_A_TOKEN: Final = 16
MOST_PARTS: Final = 128 * 1024
"""In which an answer may come, beside as many for each token as lines: chunks, and what came at once."""
UNCOUNTED: Final = "an event with text tells neither token ids nor usage: its tokens cannot be counted"
MOST_TOLD: Final = 10**9
"""A larger number of tokens is told as more than this."""
WORDS: Final = 300
"""Characters kept of what a server says."""


class StreamError(Exception):
    """A server's answer is wrong; the text says how."""


class EventStream:
    """The answer to one request, fed as it comes.

    Args:
        max_tokens: Tokens asked for; more are an error.
        by_events: An event with text that tells no number counts as a token; the usage at the end must then agree.
    """

    def __init__(self, max_tokens: int, *, by_events: bool = False) -> None:
        self.tokens = 0
        """Tokens so far."""
        self.finish = ""
        """The server's ``finish_reason``; empty before there is one."""
        self.done = False
        """Whether the answer is complete."""
        self._by_events = by_events
        self._all_tokens: int | None = None  # by the server's own count at the end
        self._most_tokens = max_tokens
        self._most_bytes = MOST_ANSWER + MOST_A_TOKEN * max_tokens
        self._parser = httptools.HttpResponseParser(self)
        self._in_head = True
        self._is_interim = False
        self._bytes = 0
        self._lines = 0
        self._most_lines = MOST_LINES + LINES_A_TOKEN * max_tokens
        self._parts = 0
        self._most_parts = MOST_PARTS + LINES_A_TOKEN * max_tokens
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._event_bytes = 0
        self.problem = ""
        """What its head says is wrong; empty where nothing is."""
        self._marked = False  # by "data: [DONE]"

    def feed(self, data: bytes) -> int:
        """Take in what came.

        Returns:
            How many tokens it brought.

        Raises:
            StreamError: It is not an answer to such a request.
        """
        before = self.tokens
        self._bytes += len(data)
        if self._bytes > self._most_bytes:
            raise StreamError(f"an answer of more than {self._most_bytes} bytes")
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.done:  # what comes after the answer is nobody's
                raise self._reason(error) from None
        if self._in_head and self._bytes > MOST_HEAD:
            raise StreamError(f"a head of more than {MOST_HEAD} bytes")
        return self.tokens - before

    @staticmethod
    def _reason(error: Exception) -> StreamError:
        if isinstance(error, httptools.HttpParserUpgrade):
            return StreamError("it wants to speak another protocol")
        cause = error.__context__  # what was raised below, in a call from the parser
        return cause if isinstance(cause, StreamError) else StreamError(f"invalid HTTP: {clean(str(error))}")

    def end(self) -> None:
        """The server has closed the connection.

        Raises:
            StreamError: The answer was not complete.
        """
        if self.problem:
            raise StreamError(self.problem)
        if not (self._marked and self.finish):  # else the end of the connection was that of the body
            where = "before an answer" if self._in_head else f"after {self.tokens} tokens"
            raise StreamError(f"the connection was closed {where}")
        self._agree()

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        if self.done:
            return
        self._in_head = False
        status = self._parser.get_status_code()
        self._is_interim = 100 <= status < 200  # noqa: PLR2004 (the answer is still to come: RFC 9110, 15.2)
        if status != 200 and not self._is_interim:  # noqa: PLR2004 (OK)
            self.problem = f"status {status}"

    def on_body(self, body: bytes) -> None:
        """Called by the parser, with what a chunk holds so far."""
        if self.done:
            return
        self._parts += 1
        if self._parts > self._most_parts:
            raise StreamError(f"an answer in more than {self._most_parts} parts")
        if self.problem:
            self._rest += body[:WORDS]
            if len(self._rest) >= WORDS:
                self._refuse()
            return
        self._event_bytes += len(body)
        self._rest += body
        if ends := body.count(b"\n"):
            self._lines += ends
            if self._lines > self._most_lines:
                raise StreamError(f"an answer of more than {self._most_lines} lines")
            *lines, rest = self._rest.split(b"\n")
            self._rest = rest
            for line in lines:
                self._line(bytes(line))
        if self._event_bytes > MOST_EVENT:
            raise StreamError(f"an event of more than {MOST_EVENT} bytes")

    def on_message_complete(self) -> None:
        """Called by the parser."""
        if self._is_interim:
            self._is_interim, self._in_head = False, True
            return
        if self.problem and not self.done:
            self._refuse()
        if not self.finish:
            raise StreamError(f"the answer ended after {self.tokens} tokens without a finish_reason")
        self._agree()
        self.done = True

    def _agree(self) -> None:
        """Where events were counted, the server must have counted as many tokens."""
        if self._by_events and self._all_tokens != self.tokens:
            says = "does not say how many" if self._all_tokens is None else f"says {_number(self._all_tokens)}"
            raise StreamError(
                f"{self.tokens} events with text, and the usage at the end {says} tokens: they cannot be timed"
            )

    def _refuse(self) -> None:
        raise StreamError(f"{self.problem}: {clean(self._rest.decode(errors='replace'))}".removesuffix(": "))

    def _line(self, line: bytes) -> None:
        """A line of the stream: ``data:`` is collected, an empty one ends an event, all others mean nothing here."""
        if line.startswith(b"data:"):
            self._data.append(line[5:])
        elif line in (b"", b"\r"):
            data = b"\n".join(self._data).strip()
            self._data.clear()
            self._event_bytes = 0
            if data == b"[DONE]":
                self._marked = True
            elif data:
                self._event(data)

    def _event(self, data: bytes) -> None:
        try:
            event = from_json(data)
        except ValueError:
            raise StreamError(f"an event that is not JSON: {clean(data[:WORDS].decode(errors='replace'))}") from None
        match event:
            case {"error": error} if error is not None:
                raise StreamError(f"the server says: {clean(str(error))}")
            case {"choices": [dict(choice), *_]}:
                self._count(choice, event.get("usage"))
            case {"choices": []}:  # usage alone, at the end
                self._total(event.get("usage"))
            case _:
                raise StreamError(f"an event without choices: {clean(data[:WORDS].decode(errors='replace'))}")

    def _total(self, usage: Any) -> None:
        if (tokens := _told(usage)) is not None:
            self._all_tokens = tokens

    def _count(self, choice: dict[str, Any], usage: Any) -> None:
        tokens = _told(usage)
        match choice:
            case {"token_ids": [*ids]}:
                self.tokens += len(ids)
            case _ if tokens is not None and tokens >= self.tokens and not self._by_events:
                self.tokens = self._all_tokens = tokens
            case {"text": str(text)} if text:
                if not self._by_events:
                    raise StreamError(UNCOUNTED)
                self.tokens += 1
        if self._by_events:  # held against the server's own count, wherever that comes
            self._total(usage)
        if self.tokens > self._most_tokens:
            raise StreamError(f"{_number(self.tokens)} tokens, {self._most_tokens} were asked for")
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self.finish = clean(reason)[:40]
            if self.finish == CANCELLED:  # that is the client's word, for what it gave up itself
                raise StreamError("the server says that it cancelled the request")


def _told(usage: Any) -> int | None:
    """How many tokens a server says that it has generated; a truth value does not count."""
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return tokens if type(tokens) is int and tokens >= 0 else None


def _number(count: int) -> str:
    """A count that a server told, in digits that anybody reads."""
    return f"{count}" if count < MOST_TOLD else f"over {MOST_TOLD}"


def clean(text: str) -> str:
    """The beginning of what a server said, in one line of printable characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * WORDS]).split())[:WORDS]
