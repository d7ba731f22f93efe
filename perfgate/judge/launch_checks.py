"""What a decode step launches, judged exactly where nothing is timed: as the work of the host is, by its price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfgate.judge.call_checks import priced_note
from perfgate.judge.outcome import Finding
from perfgate.metrics.trial import Side
from perfgate.models import Note
from perfgate.trace.decode_step import DecodeSteps, pool
from perfgate.trace.launch_difference import launch_difference
from perfgate.units import format_value


def judge_launches(ignorable_s: float, sides: Mapping[Side, Sequence[DecodeSteps]]) -> Finding:
    """Hold the launches of the head's decode step against the base's.

    Args:
        ignorable_s: What the kernels that differ may take more in a step, seconds.
        sides: The traced trials of base and head; nothing is judged where the head has none.

    Returns:
        ``not-comparable`` where there is no base; ``pass``, with what differs as a caution; ``regressed`` where it
        takes more than ``ignorable_s``, where the host copies pageable memory, or where it waits for the device in each
        step and did not.
    """
    if not sides.get("head"):
        return Finding()
    if not sides.get("base"):
        text = "no launches of steps that were traced alike"
        return Finding("not-comparable", (Note(code="launches-without-base", text=text),))
    found = launch_difference(pool(sides["base"]), pool(sides["head"]))
    limit = f"the {format_value(ignorable_s, 's')} that are ignorable"
    if found.pageable:
        what = "and pageable copies make the host wait"
    elif found.waits_more:
        what = "and a wait is in each step, which no price says"
    elif found.cost_s > ignorable_s:
        what = f"more than {limit}"
    else:
        return Finding("pass", (), (priced_note("launches-changed", (found, f"within {limit}")),) if found else ())
    return Finding("regressed", (priced_note("launches-added", (found, what)),))
