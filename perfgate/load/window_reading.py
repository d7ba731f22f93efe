"""Reading what came of a window of load: from the client's stamps to an iteration. Pure.

As :mod:`perfgate.capture.timeline` does for a batch, so that it can be done again from a stored timeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from perfgate.capture.timeline import ANY_TIME, Span
from perfgate.errors import NotMeasuredError
from perfgate.load.arrival_kinds import MOST_REQUESTS
from perfgate.load.exchange import CANCELLED, Answer, Answers, Counts
from perfgate.load.served import MOST_GAPS
from perfgate.load.shape import Load
from perfgate.machine.atomic_files import sha256_hex
from perfgate.metrics.trial import Iteration, Probes
from perfgate.models import Frozen

AS_ASKED: Final = "length"
MOST_SENT_TWICE: Final = 0.01
"""Of a window's requests, and one in any case. A server with an idle timeout meets a request that is on its way in one
of thousands; one that closes more often does so because of what it was sent."""
REFUSED: Final = ("status 429", "status 503")
"""How a client's error begins where a server says that it has too much to do."""


class OverloadedError(NotMeasuredError):
    """A server that runs refused requests, or did not end them in time, and nothing else was wrong."""


class RefusedError(OverloadedError):
    """It said so of each request that failed."""


class WindowAnswer(Frozen):
    """What a driver of servers returns of a window, and a timeline keeps.

    Args:
        asked: Tokens that each request asked for.
        limit_ns: How long a request was given.
        may_stop: Numbers of the requests that may end before their length, as their output was held to a grammar; in
            timelines before 2026-11-27 whether any of the window's was.
        answers: What the client saw.
        ended: How the server ended meanwhile, in words; empty where it runs.
        counted: By how much its own counters grew.
        kv_use_ppm: The highest reading of its KV cache's use, in millionths; ``None`` where none was taken.
        shares_cores: Whether the client had no core of its own.
        counts: What says how many tokens an event carried, see :class:`perfgate.load.exchange.Target`.
        probe_ns: In which state the server's GPUs were before and after; ``None`` where its ranks do not tell.
    """

    model_config = ConfigDict(extra="ignore")  # a timeline's line has more

    asked: Annotated[tuple[PositiveInt, ...], Field(min_length=1, max_length=MOST_REQUESTS)]
    limit_ns: PositiveInt
    may_stop: bool | tuple[NonNegativeInt, ...] = ()
    answers: Answers
    ended: str = ""
    counted: dict[str, int] = {}
    kv_use_ppm: int | None = None
    shares_cores: bool = False
    counts: Counts = "ids"
    probe_ns: Probes | None = None


def read_served(answer: Mapping[str, Any], _load: Load, _asked: Span = ANY_TIME) -> Iteration:
    """A window as a timeline kept it, see :func:`read_window`."""
    return read_window(answer)


def read_window(answer: Mapping[str, Any], *, may_be_late: bool = False) -> Iteration:
    """One window of load.

    Every time of a request runs from when it was scheduled. The time between two tokens of a request is the gap between
    two events, divided by the tokens that the later one carried. Requests that the load cancels have no times, and
    what they got counts as output.

    Args:
        answer: As :class:`WindowAnswer` describes it.
        may_be_late: Whether the client need not have been in time, because nothing rests on this window.

    Raises:
        NotMeasuredError: ``engine-failed`` for another shape, and for requests without a whole answer,
            ``request-failed`` for one that ended otherwise or was dropped at first, ``client-late``.
    """
    try:
        window = WindowAnswer.model_validate(answer)
    except ValidationError as error:
        raise NotMeasuredError(f"a window of another shape: {str(error)[:200]}", code="engine-failed") from error
    answers = window.answers.answers
    if len(answers) != len(window.asked):
        raise NotMeasuredError(f"{len(answers)} answers to {len(window.asked)} requests", code="engine-failed")
    _check(window)
    if not may_be_late and (void := window.answers.void) is not None:
        raise NotMeasuredError(void.text, code=void.code)
    whole = [request for request in answers if request.finish != CANCELLED]
    if not whole:
        raise NotMeasuredError("every request was cancelled, so none has a time", code="request-failed")
    begin_ns = window.answers.begin_ns
    ends = [f"{request.number} {request.tokens} {request.finish}" for request in whole]
    return Iteration(
        ttft_ns=tuple(request.ttft_ns or 0 for request in whole),
        e2e_ns=tuple(request.e2e_ns or 0 for request in whole),
        itl_ns=evenly(sorted(gap for request in whole for gap in gaps(request)), MOST_GAPS),
        output_tokens=0,
        lengths=tuple(request.tokens for request in whole),
        cancelled_tokens=sum(request.tokens for request in answers if request.finish == CANCELLED),
        elapsed_ns=window.answers.end_ns - begin_ns,
        tokens_digest=sha256_hex("\n".join(ends)),
        begin_ns=begin_ns,
        probe_ns=window.probe_ns,
    )


def gaps(answer: Answer) -> Iterator[int]:
    """The times between the tokens of a request, nanoseconds, one for each token of every event but the first."""
    for (before_ns, now_ns), tokens in zip(pairwise(answer.token_ns), answer.token_counts[1:], strict=True):
        yield from [round((now_ns - before_ns) / tokens)] * tokens


def evenly(ordered: Sequence[int], most: int) -> tuple[int, ...]:
    """At most so many of the values, at even ranks, the first and the last among them."""
    if len(ordered) <= most:
        return tuple(ordered)
    return tuple(ordered[round(place * (len(ordered) - 1) / (most - 1))] for place in range(most))


def _check(window: WindowAnswer) -> None:
    """Every request ran as it was asked to."""
    failed = [answer for answer in window.answers.answers if answer.error]
    if failed:
        raise _failure(window, failed)
    may_stop = {*(range(len(window.asked)) if window.may_stop is True else window.may_stop or ())}
    for answer, asked in zip(window.answers.answers, window.asked, strict=True):
        if answer.finish == CANCELLED:
            continue
        if answer.finish != AS_ASKED and not (answer.number in may_stop and answer.finish == "stop"):
            text = f"request {answer.number} ended by {answer.finish!r}, expected {AS_ASKED!r}"
            raise NotMeasuredError(text, code="request-failed")
        if not answer.tokens or (answer.finish == AS_ASKED and answer.tokens != asked):
            text = f"request {answer.number} got {answer.tokens} tokens, expected {asked}"
            raise NotMeasuredError(text, code="request-failed")
    twice = sum(answer.sent_twice for answer in window.answers.answers)
    if twice > max(1, MOST_SENT_TWICE * len(window.asked)):
        dropped = f"{twice} of {len(window.asked)} requests"
        text = f"the server dropped {dropped}, and answered them when they were sent again"
        raise NotMeasuredError(text, code="request-failed")


def _failure(window: WindowAnswer, failed: Sequence[Answer]) -> NotMeasuredError:
    """What went wrong, in the words of the first request that has no whole answer."""
    first = failed[0]
    what = f"{len(failed)} of {len(window.asked)} requests failed, request {first.number}: {first.error}"
    if window.ended:
        return NotMeasuredError(f"the server {window.ended}; {what}", code="engine-failed")
    kind: type[NotMeasuredError] = NotMeasuredError
    if all(answer.error.startswith(REFUSED) for answer in failed):
        kind = RefusedError
    elif all(_overloaded(window, answer) for answer in failed):
        kind = OverloadedError
    return kind(what, code="engine-failed")


def _overloaded(window: WindowAnswer, answer: Answer) -> bool:
    """Whether a request was refused for too much load, or was given up for its time with no other word."""
    return answer.error.startswith(REFUSED) or (_late(window, answer) and not answer.error.startswith("status"))


def _late(window: WindowAnswer, answer: Answer) -> bool:
    """Whether a request was given up for its time."""
    begun_ns = answer.scheduled_ns if answer.sent_ns is None else answer.sent_ns  # the server may not even accept it
    return answer.end_ns - begun_ns >= window.limit_ns
