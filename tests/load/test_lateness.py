"""How late a client may send: what it does at all times voids a window, what its machine did once does not."""

from __future__ import annotations

import pytest

from perfgate.load.exchange import Answer, Answers

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
