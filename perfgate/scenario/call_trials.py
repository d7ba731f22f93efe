"""The ``calls:`` block of a scenario: how what the host runs is counted, and what more of it may cost."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from perfgate.models import Duration
from perfgate.scenario.schedule import Sampling


class CallTrials(Sampling):
    """How the calls and lines of the host are counted: pairs of their own, in which nothing is timed.

    Args:
        ignorable: What the head's host may do more in a decode or prefill step, by what its calls and lines cost.
        iterations: Iterations counted in each trial, after the warm-up; what differs between them is left out.
        looks: Numbers of pairs at which a gate on ``host_calls_per_step`` is tried, increasing.
        spend: Weights of the looks; needed where ``looks`` is not a beginning of 4, 6, 8, 12.
    """

    ignorable: Duration = 10e-6
    iterations: Annotated[int, Field(ge=2, le=100)] = 6
