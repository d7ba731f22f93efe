"""Reading a worker's raw deliveries: from stamps and token counts to an :class:`~perfgate.metrics.trial.Iteration`.

Pure. docs/design.md sets the rules; the worker only stamps, so that they can be applied again to a stored timeline.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from perfgate.errors import NotMeasuredError
from perfgate.metrics.trial import Iteration, Probes
from perfgate.scenario.workload import Workload


class InvalidTrialError(NotMeasuredError):
    """A trial cannot count, for a reason of :mod:`perfgate.reasons`; collectors turn it into a failed trial.

    Args:
        code: The reason code.
        text: What was seen.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text, code=code)


class _Delivery(NamedTuple):
    """One return of ``step()`` that carried tokens; ``first`` tells whether one was some request's first."""

    t_ns: int
    tokens: Sequence[int]
    first: bool


LARGEST = 2**63
"""No stamp or count comes near it; beyond it lie numbers that no record, table or float can hold."""
MOST_RANKS = 1024


class Span(NamedTuple):
    """When the parent asked and when it had the answer, nanoseconds of the monotonic clock that workers stamp with."""

    begin_ns: int
    end_ns: int


ANY_TIME = Span(0, LARGEST)
"""For a stored timeline, of which nobody knows any longer when it was asked for."""


def read_iteration(answer: Mapping[str, Any], workload: Workload, asked: Span = ANY_TIME) -> Iteration:
    """One iteration of a batch from the worker's answer.

    Time to first token and to the last one run from a request's own submission. A decode step is the gap between two
    consecutive deliveries that both carried tokens for every request and no request's first token; where a request got
    more than one token (mean over the batch), the gap is divided by them. Returns of ``step()`` without tokens are
    skipped: asynchronous scheduling returns nothing first.

    Args:
        answer: ``submitted_ns``, ``deliveries``, ``tokens_digest``, ``finish_reasons``, ``preemptions``, ``probe_ns``
            as :mod:`perfgate.capture.vllm_worker` describes them.
        workload: What was asked for.
        asked: When; the worker's stamps must lie in it, because the engine's code can reach the worker's clock.

    Raises:
        InvalidTrialError: ``engine-failed`` for wrong shapes, types, stamps that do not increase or that the parent's
            clock refutes, ``request-failed`` or ``preempted``.
    """
    submitted = _stamps(answer.get("submitted_ns"), workload.batch)
    deliveries = _deliveries(answer.get("deliveries"), submitted[-1], workload.batch)
    last_ns = deliveries[-1].t_ns if deliveries else submitted[-1]
    if submitted[0] < asked.begin_ns or last_ns > asked.end_ns:
        text = f"stamps from {_short(submitted[0])} to {_short(last_ns)} ns, but the answer was asked for at "
        raise InvalidTrialError("engine-failed", f"{text}{asked.begin_ns} and there at {asked.end_ns}")
    digest = answer.get("tokens_digest")
    if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise InvalidTrialError("engine-failed", f"tokens_digest is not a SHA-256: {_short(digest)}")
    _check_requests(answer, deliveries, workload)
    first, last = _first_and_last(deliveries, workload.batch)
    steps = _steps(deliveries)
    multi_token = any(count > 1 for delivery in deliveries for count in delivery.tokens)
    return Iteration(
        ttft_ns=tuple(t - s for t, s in zip(first, submitted, strict=True)),
        e2e_ns=tuple(t - s for t, s in zip(last, submitted, strict=True)),
        itl_ns=tuple(round(ns * workload.batch / tokens) for ns, tokens in steps),
        output_tokens=workload.output_tokens,
        elapsed_ns=max(last) - submitted[0],
        tokens_digest=digest,
        begin_ns=submitted[0],
        multi_token=multi_token,
        step_ns=round(statistics.median(ns for ns, _ in steps)) if multi_token and steps else None,
        probe_ns=_probes(answer.get("probe_ns")),
    )


def _stamps(stamps: Any, batch: int) -> list[int]:
    if not isinstance(stamps, list) or len(stamps) != batch or not all(type(t) is int for t in stamps):
        raise InvalidTrialError("engine-failed", f"submitted_ns: expected {batch} integers, found {_short(stamps)}")
    if any(later < earlier for earlier, later in pairwise(stamps)):
        raise InvalidTrialError("engine-failed", f"submitted_ns runs backwards: {_short(stamps)}")
    return stamps


def _deliveries(entries: Any, submitted_ns: int, batch: int) -> list[_Delivery]:
    """The deliveries that carried tokens, in order."""
    if not isinstance(entries, list):
        raise InvalidTrialError("engine-failed", f"deliveries: expected a list, found {_short(entries)}")
    deliveries = []
    begun = [False] * batch
    before_ns = submitted_ns
    for entry in entries:
        t_ns, tokens = _entry(entry, batch)
        if t_ns <= before_ns:
            raise InvalidTrialError("engine-failed", f"a delivery's stamp does not increase: {before_ns}, then {t_ns}")
        before_ns = t_ns
        if any(tokens):
            first = any(count and not b for count, b in zip(tokens, begun, strict=True))
            begun = [b or count > 0 for count, b in zip(tokens, begun, strict=True)]
            deliveries.append(_Delivery(t_ns, tokens, first))
    return deliveries


def _entry(entry: Any, batch: int) -> tuple[int, list[int]]:
    match entry:
        case [int(t_ns), [*tokens]] if type(t_ns) is int and len(tokens) == batch:
            if all(type(count) is int and 0 <= count < LARGEST for count in tokens):
                return t_ns, tokens
    raise InvalidTrialError("engine-failed", f"a delivery: expected [t_ns, {batch} counts], found {_short(entry)}")


def _check_requests(answer: Mapping[str, Any], deliveries: Sequence[_Delivery], workload: Workload) -> None:
    """Every request ran to its declared length, undisturbed."""
    reasons = answer.get("finish_reasons")
    if not isinstance(reasons, list) or len(reasons) != workload.batch:
        raise InvalidTrialError("engine-failed", f"finish_reasons: expected {workload.batch}, found {_short(reasons)}")
    for index, reason in enumerate(reasons):
        if reason != "length":
            raise InvalidTrialError("request-failed", f"request {index} ended by {reason!r}, expected 'length'")
    for index in range(workload.batch):
        count = sum(delivery.tokens[index] for delivery in deliveries)
        if count != workload.output_tokens:
            text = f"request {index} got {count} tokens, expected {workload.output_tokens}"
            raise InvalidTrialError("request-failed", text)
    preemptions = answer.get("preemptions")
    if preemptions is not None and type(preemptions) is not int:
        raise InvalidTrialError("engine-failed", f"preemptions: expected an integer, found {_short(preemptions)}")
    if preemptions:
        raise InvalidTrialError("preempted", f"the scheduler preempted requests {preemptions} times in one iteration")


def _probes(readings: Any) -> Probes | None:
    """The readings of each rank before and after; ``None`` where the worker has none."""
    match readings:
        case None:
            return None
        case [[*before], [*after]] if 0 < len(before) == len(after) <= MOST_RANKS:
            if all(type(reading) is int and 0 < reading < LARGEST for reading in (*before, *after)):
                return Probes(tuple(before), tuple(after))
    text = f"probe_ns: expected a reading a rank before and after, found {_short(readings)}"
    raise InvalidTrialError("engine-failed", text)


def _first_and_last(deliveries: Sequence[_Delivery], batch: int) -> tuple[list[int], list[int]]:
    """Per request, the stamps of its first and last tokens; every request has some by now."""
    stamps = [[d.t_ns for d in deliveries if d.tokens[index]] for index in range(batch)]
    return [row[0] for row in stamps], [row[-1] for row in stamps]


def _steps(deliveries: Sequence[_Delivery]) -> list[tuple[int, int]]:
    """How long each pure decode step took, and how many tokens all requests got in it."""
    return [
        (later.t_ns - earlier.t_ns, sum(later.tokens))
        for earlier, later in pairwise(deliveries)
        if not (earlier.first or later.first) and all(earlier.tokens) and all(later.tokens)
    ]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."  # noqa: PLR2004 (a line of an error)
