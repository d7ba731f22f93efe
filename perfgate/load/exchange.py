"""What the client is given and what it answers: requests in, stamps out.

All times are integer nanoseconds. Stamps are on the host's monotonic clock (``CLOCK_MONOTONIC``), which the parent
and the client share.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from annotated_types import MinLen
from pydantic import Field, JsonValue, NonNegativeInt, PositiveInt

from perfgate.models import Frozen, Note
from perfgate.units import format_ns, percent

CANCELLED: Final = "cancelled"
"""How a request ended on which the client hung up, as the load asked for."""
Counts = Literal["ids", "usage", "events"]
"""What says how many tokens an event of a server carries, see :class:`Target`."""
LATEST_NS: Final = 1_000_000
"""A window counts only if 99 of 100 requests, of fewer all but one (:data:`HELD_UP_NS`), were sent
within this of their schedule: 1 ms."""
MANY: Final = 20
HELD_UP_NS: Final = 10_000_000
"""That one may be 10 ms late, in a window of twenty requests or more: on the host of an H100 the latest was that by 1.3
to 6.6 ms in a tenth of the windows (docs/measurements.md). Its time counts from schedule, and has them in it."""
LATEST_READ_NS: Final = 3_000_000
"""And only if the client read what came within this, at 19 of 20 times: 3 ms. Events of a step come together and are
read one by one: at 200 requests a second of 512 + 128 tokens a client at 39 % of its core is 1.6 ms late
(``benchmarks/client_rate.py``). One that falls behind in every step is beyond: 4.1 ms at 40 % of a core, 7.5 ms at 75 %
(docs/load.md)."""


class Request(Frozen):
    """One request of a window.

    Args:
        number: Its place in the window, from 0; the order in which a closed loop sends.
        at_ns: When it is due, from the window's beginning; ``None`` in a closed loop.
        prompt: Token ids.
        max_tokens: Tokens asked for.
        cancel_after: The client hangs up once it has so many tokens; ``None``: it waits for the end.
        body: Further fields of the API's request: sampling, structured output, another model's name.
    """

    number: NonNegativeInt
    at_ns: NonNegativeInt | None
    prompt: Annotated[tuple[NonNegativeInt, ...], MinLen(1)]
    max_tokens: PositiveInt
    cancel_after: PositiveInt | None = None
    body: dict[str, JsonValue] = {}


class Window(Frozen):
    """The requests of one window: an open loop where they have times, else a closed one.

    Args:
        requests: By number; in an open loop in order of time.
        concurrency: Requests that a closed loop has in flight at once; ``None`` in an open loop.
        think_ns: By request, how long a closed loop waits before it, from when a place was free.
    """

    requests: Annotated[tuple[Request, ...], MinLen(1)]
    concurrency: PositiveInt | None = None
    think_ns: tuple[NonNegativeInt, ...] = ()


class Target(Frozen):
    """The server that is driven.

    Args:
        url: Where its API begins, ``http://127.0.0.1:8000``; ``/v1/completions`` is added.
        model: The name under which it serves the model.
        timeout_s: A request that has not ended so long after it was sent ends as an error.
        counts: What says how many tokens an event carries: ``ids`` asks for token ids (``return_token_ids`` of vLLM),
            ``usage`` for usage statistics in each event (``continuous_usage_stats``). An event may carry several.
            ``events`` takes each for one, and asks for the usage at the end, which must agree.
    """

    url: str
    model: str
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    counts: Counts = "ids"


class Answer(Frozen):
    """What became of one request.

    Args:
        number: Of the request.
        scheduled_ns: When it was due: latency counts from here, so that a server that is late pays for what waits.
        sent_ns: When the client let go of it: from here on it waited for the server alone, also where that had yet to
            accept the connection. ``None`` where no connection came about.
        token_ns: When each event with tokens was there.
        token_counts: How many tokens each of these carried.
        end_ns: When the answer was complete, or given up.
        finish: The server's ``finish_reason``; ``cancelled`` where the client hung up on purpose; empty after an error.
        error: What went wrong, in words; empty where nothing did.
        sent_twice: The server closed the connection once it was sent, so it was sent again on another one.
    """

    number: NonNegativeInt
    scheduled_ns: NonNegativeInt
    sent_ns: NonNegativeInt | None
    token_ns: tuple[NonNegativeInt, ...] = ()
    token_counts: tuple[PositiveInt, ...] = ()
    end_ns: NonNegativeInt
    finish: str = ""
    error: str = ""
    sent_twice: bool = False

    @property
    def tokens(self) -> int:
        """Tokens received."""
        return sum(self.token_counts)

    @property
    def ttft_ns(self) -> int | None:
        """From schedule to the first token; ``None`` where none came."""
        return self.token_ns[0] - self.scheduled_ns if self.token_ns else None

    @property
    def e2e_ns(self) -> int | None:
        """From schedule to the last token; ``None`` where none came."""
        return self.token_ns[-1] - self.scheduled_ns if self.token_ns else None


class Answers(Frozen):
    """What became of a window.

    Args:
        begin_ns: The window's beginning; ``at_ns`` counts from it.
        end_ns: When the last request had ended.
        cpu_ns: Processor time that the client took meanwhile.
        reading_ns: The p95 of how late the client read what came, see :class:`perfgate.load.alarm.Backlog`; 0 in
            windows of versions that did not look.
        answers: One a request, by number.
    """

    begin_ns: NonNegativeInt
    end_ns: NonNegativeInt
    cpu_ns: NonNegativeInt
    reading_ns: NonNegativeInt = 0
    answers: tuple[Answer, ...]

    @property
    def lateness_ns(self) -> int:
        """The p99 of how late requests were sent, by nearest rank; 0 where none was sent.

        Of fewer than 100 the p99 is the latest. Where there are :data:`MANY` of them that one does not count if it was
        less than :data:`HELD_UP_NS` late: a client that its machine held up once is not late.
        """
        late = sorted(answer.sent_ns - answer.scheduled_ns for answer in self.answers if answer.sent_ns is not None)
        if not late:
            return 0
        p99 = nearest_rank(late, 0.99)
        return late[-2] if len(late) >= MANY and p99 == late[-1] < HELD_UP_NS else p99

    @property
    def void(self) -> Note | None:
        """Why the window cannot count: the client was late; ``None`` where it was not."""
        sent_ns, read_ns = self.lateness_ns, self.reading_ns
        late = [f"requests were sent {format_ns(sent_ns)} after schedule (p99)"] if sent_ns >= LATEST_NS else []
        late += [f"answers were read {format_ns(read_ns)} after they came (p95)"] if read_ns >= LATEST_READ_NS else []
        if not late:
            return None
        share = self.cpu_ns / max(1, self.end_ns - self.begin_ns)
        return Note(code="client-late", text=f"{', '.join(late)}; the client used {percent(share)} of a core")


def is_url(url: str) -> bool:
    """Whether this is the URL of a server that the client can speak to: plain HTTP, and nothing behind a path."""
    try:
        parts = urlsplit(url)
        fine = url.startswith("http://") and parts.hostname and parts.port != 0 and url.isprintable() and url.isascii()
    except ValueError:
        return False
    return bool(fine) and not (parts.query or parts.fragment or parts.username or " " in url)


def server_url(url: str) -> str:
    """The URL of a server that runs already, as a subject names it, without a slash at its end.

    Raises:
        ValueError: It is none.
    """
    if not is_url(url) or urlsplit(url).path.strip("/"):
        shown = without_secrets(url)
        raise ValueError(
            f"{shown!r} is not the URL of a server: expected one like http://127.0.0.1:8000, without user or query"
        )
    return url.rstrip("/")


def without_secrets(url: str) -> str:
    """What may be shown of a URL: nothing before its host, where a password is, and no query, where a key may be."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{re.split('[?#]', rest.rpartition('@')[2])[0]}" if mark else re.split("[?#@]", url)[0]


def nearest_rank(values: Sequence[int], quantile: float) -> int:
    """The smallest value that at least this share of the values does not exceed.

    Raises:
        IndexError: There are no values.
    """
    return sorted(values)[max(0, math.ceil(quantile * len(values)) - 1)]
