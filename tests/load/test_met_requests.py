"""The share of requests that met an objective is shown beside goodput, and judges nothing."""

from __future__ import annotations

import pytest
from hand_made import BOTH, cell, gate, iteration, judged, trial
from scipy.stats import binomtest

from perfgate.metrics.trial import Iteration
from perfgate.report.outcome_lines import met_line

MS = 1_000_000


def window(slow: int) -> Iteration:
    """Forty requests, of which so many have their first token too late."""
    ttft = tuple((300 if n < slow else 100) * MS for n in range(40))
    return iteration(ttft_ns=ttft, e2e_ns=tuple(time + 90 * MS for time in ttft), lengths=(10,) * 40, output_tokens=0,
                     elapsed_ns=10**10)  # fmt: skip


def test_the_share_of_requests_has_an_exact_interval() -> None:
    """That of scipy, over all trials of a side, with the word that it would need independence."""
    slow = {"base": 2, "head": 4}
    taken = [trial(2 * n + place, n, side, iterations=(window(slow[side]),))
             for n in range(12) for place, side in enumerate(BOTH)]  # fmt: skip
    (found,) = judged(taken, cell(gates=[gate("goodput", "10%", "50%", slo={"ttft": "200ms"})])).cells

    assert found.verdict == "pass"
    assert {side: (row.met, row.requests) for side, row in found.met["goodput[ttft<=200ms]"].items()} == {
        "base": (456, 480), "head": (432, 480),
    }  # fmt: skip
    interval = binomtest(456, 480).proportion_ci(0.95, "exact")
    assert (interval.low, interval.high) == pytest.approx((0.9265, 0.9677), abs=1e-4)
    assert met_line(found) == (
        "goodput[ttft<=200ms]: of 480 requests of the base 95.0 % met it (92.7 % to 96.8 %) and of 480 requests of the "
        "head 90.0 % met it (87.0 % to 92.5 %), if requests were independent, which they are not"
    )


def test_nothing_is_shown_without_an_objective() -> None:
    """Other cells have no such line, and their verdicts no such key."""
    (found,) = judged([trial(0, 0, "base"), trial(1, 0, "head")]).cells

    assert met_line(found) == ""
    assert "met" not in found.model_dump()
