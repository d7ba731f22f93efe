"""What an outcome holds of traced and counted trials: what each rank does, and what ncu counted."""

from __future__ import annotations

from perfgate.errors import Verdict
from perfgate.metrics.sides import Side
from perfgate.models import Frozen, Note


class RankOutcome(Frozen):
    """What one rank does in a traced decode step.

    Args:
        label: ``rank 0`` and so on.
        figures: Medians over the steps by name and side; what is not known is left out. ``slowest``: in which share of
            the steps it is the slowest. ``step_s``: from its first kernel to that of the next step. ``own_s``: busy,
            without communication that nothing hides. ``transfer_s`` and ``waiting_s``: communication, as far as it
            moves data and as far as it waits for other ranks. ``hidden``: the share of communication beside which
            another kernel ran. ``last``: in which share of the collectives it alone arrived last. ``work_s`` and
            ``slack_s``: of its host. ``begins_s``: after the first rank. ``ends_s``: before the last one. ``outside``:
            the share of its steps that leave the envelope, where one is declared.
        change_s: By how much its steps differ, head less base; ``None`` without pairs.
        parts: The parts of a step that differ most, in seconds.
    """

    label: str
    figures: dict[str, dict[Side, float]]
    change_s: float | None = None
    parts: dict[str, float] = {}


class RanksOutcome(Frozen):
    """What the ranks of an engine do beside each other; judged by nothing but the envelope.

    Args:
        skew_s: From the begin of a step on its first rank to that on the last, a median by side.
        worst: The rank that is the slowest in most steps of the head, or of the only side.
        ranks: Each of them.
    """

    skew_s: dict[Side, float]
    worst: str
    ranks: tuple[RankOutcome, ...]


class CounterRow(Frozen):
    """One kernel of the counted step on both sides.

    Args:
        role: Its family.
        place: Where in a layer it is; empty where that is not known.
        kernel: The function's own name.
        launches: How many were counted on each side, over all trials.
        base: Mean of a launch by counter of :data:`perfgate.counters.launch_table.COUNTERS`, in base units; empty
            where the side does not run it.
        head: The same for the head.
        bound: What bounds it on each side, see :data:`perfgate.counters.roofline.RULES`.
        distance: Its time over what the nearer roof allows, by side; ``None`` where too little was read.
    """

    role: str
    place: str
    kernel: str
    launches: dict[Side, int]
    base: dict[str, float] = {}
    head: dict[str, float] = {}
    bound: dict[Side, str] = {}
    distance: dict[Side, float | None] = {}


class CountersOutcome(Frozen):
    """What ncu counted of one decode step; outside the error rates, and no time of the workload.

    Args:
        verdict: ``pass`` where every condition holds; ``regressed`` where only the head breaks one; ``not-comparable``
            where the base does already; ``inconclusive`` where the base's own trials do not agree; ``not-measured``
            where a side was not counted.
        rows: Kernels in the order they ran.
        sentences: What changed by role, in words, the roles that changed most first.
        reasons: Why it is not a pass.
        cautions: What to know all the same.
    """

    verdict: Verdict
    rows: tuple[CounterRow, ...] = ()
    sentences: dict[str, str] = {}
    reasons: tuple[Note, ...] = ()
    cautions: tuple[Note, ...] = ()
