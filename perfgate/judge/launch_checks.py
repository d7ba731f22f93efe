"""What a decode step launches, judged exactly where nothing is timed: as the work of the host is, by its price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfgate.judge.call_checks import priced_note
from perfgate.judge.outcome import Finding
from perfgate.metrics.trial import SIDES, Side
from perfgate.models import Note
from perfgate.trace.decode_step import DecodeSteps
from perfgate.trace.launch_difference import by_rank, launch_difference
from perfgate.units import format_value


def judge_launches(ignorable_s: float, sides: Mapping[Side, Sequence[Sequence[DecodeSteps]]]) -> Finding:
    """Hold the launches of the head's decode step against the base's, on the rank where they are worst.

    All ranks wait for one that does more, so what it does is neither halved by the others nor added to what they do.
    How long a rank waits in collectives has no price. The stages of a pipeline add up, which no trace tells: there the
    price is too low.

    Args:
        ignorable_s: What the kernels that differ may take more in a step, seconds.
        sides: The traced trials of base and head, each rank by rank; nothing is judged where the head has none.

    Returns:
        ``not-comparable`` where there is no base with as many ranks; ``pass``, with what differs as a caution;
        ``regressed`` where it takes more than ``ignorable_s``, where the host copies pageable memory, or where it waits
        for the device in each step and did not.
    """
    if not sides.get("head"):
        return Finding()
    base, head = (by_rank(sides.get(side, ())) for side in SIDES)
    if len(base) != len(head):
        text = "no launches of steps that were traced alike"
        return Finding("not-comparable", (Note(code="launches-without-base", text=text),))
    ranks = [launch_difference(was, now) for was, now in zip(base, head, strict=True)]
    worst = max(ranks, key=lambda own: (bool(own.pageable), own.waits_more, bool(own), own.cost_s))
    limit = f"the {format_value(ignorable_s, 's')} that are ignorable"
    where = f"; rank {ranks.index(worst)} of {len(ranks)}" if len(ranks) > 1 else ""
    if worst.pageable:
        what = "and pageable copies make the host wait"
    elif worst.waits_more:
        what = "and a wait is in each step, which no price says"
    elif worst.cost_s > ignorable_s:
        what = f"more than {limit}"
    else:
        told = (priced_note("launches-changed", (worst, f"within {limit}{where}")),) if worst else ()
        return Finding("pass", (), told)
    return Finding("regressed", (priced_note("launches-added", (worst, f"{what}{where}")),))
