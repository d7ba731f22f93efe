"""What the host calls, judged exactly: counts that repeat are the same on both sides or they are not.

No alpha is spent. Most changes of a build change what its host runs, so a difference alone blocks nothing: it is priced
by what its calls and lines cost at least, and blocks where that is more than the scenario calls ignorable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from perfgate.calls.call_difference import CallDifference, call_difference
from perfgate.calls.host_calls import HostCalls, pooled
from perfgate.judge.outcome import Finding
from perfgate.metrics.trial import Side
from perfgate.models import Note
from perfgate.scenario.call_trials import CallTrials
from perfgate.trace.launch_difference import LaunchDifference
from perfgate.units import format_value, percent

MOST_VARYING = 0.02
"""Share of all events that need not repeat."""
NAMED = 5
"""Functions that vary and are named."""


def judge_calls(declared: CallTrials, sides: Mapping[Side, Sequence[HostCalls]]) -> Finding:
    """Hold what the head's host calls against what the base's does.

    Args:
        declared: The scenario's ``calls:`` block.
        sides: The called trials of base and head; of the head alone nothing is judged, which is a caution.

    Returns:
        ``pass`` where the head's decode step costs at most ``ignorable`` more, with what differs as a caution;
        ``regressed`` with the difference where it costs more; ``inconclusive`` where too much does not repeat;
        ``not-comparable`` where the sides were not counted alike; ``not-measured`` where a side was not counted.
    """
    missing = [side for side, trials in sides.items() if not trials]
    if missing:
        text = f"no called trial of {' and '.join(missing)}"
        return Finding("not-measured", (Note(code="host-calls-missing", text=text),))
    if "base" not in sides:
        return Finding(cautions=(Note(code="no-profile", text="the head's calls were held against nothing"),))
    keys = {side: sorted({trial.key for trial in trials}) for side, trials in sides.items()}
    if len({key for own in keys.values() for key in own}) > 1:
        text = "; ".join(f"{side}: {' and '.join(own)}" for side, own in keys.items())
        return Finding("not-comparable", (Note(code="host-calls-unlike", text=text),))
    base, head = pooled(sides["base"]), pooled(sides["head"])
    cautions = tuple(_varying(base, head))
    if max(base.varying_share, head.varying_share) > MOST_VARYING:
        return Finding("inconclusive", cautions)
    return _held(call_difference(base, head), declared.ignorable, cautions)


def _held(difference: CallDifference, ignorable_s: float, cautions: tuple[Note, ...]) -> Finding:
    """What a difference means."""
    limit = f"the {format_value(ignorable_s, 's')} that are ignorable"
    if difference.waiting:
        what = f"and {', '.join(difference.waiting)} waits for a time, which no count prices"
    elif difference.cost_s > ignorable_s:
        what = f"more than {limit}"
    elif min(difference.at_times_s, difference.cost_s + difference.at_times_s) > ignorable_s:
        return Finding("inconclusive", (_at_times(difference, limit),), cautions)
    elif difference.changes:
        return Finding("pass", (), (priced_note("host-calls-changed", difference, f"within {limit}"), *cautions))
    else:
        return Finding("pass", (), cautions)
    return Finding("regressed", (priced_note("host-calls-added", difference, what),), cautions)


def priced_note(code: str, difference: CallDifference | LaunchDifference, what: str) -> Note:
    """A difference with its price, and what that means, as a diff."""
    return Note(code=code, text="\n".join([f"{difference.headline} ({what})", *difference.lines]))


def _at_times(difference: CallDifference, limit: str) -> Note:
    functions = [function for function, _ in difference.at_times[:NAMED]]
    cost = format_value(difference.at_times_s, "s")
    text = f"what the head runs more at times would be {cost} a step, more than {limit}: {', '.join(functions)}"
    return Note(code="host-calls-vary", text=text)


def _varying(base: HostCalls, head: HostCalls) -> Iterator[Note]:
    """What did not repeat, the most frequent first."""
    both = {**base.varying(), **head.varying()}
    if not both:
        return
    most = sorted(both, key=lambda key: (-both[key][1], key))
    names = list(dict.fromkeys(function for function, _ in most))
    share = max(base.varying_share, head.varying_share)
    shown = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    yield Note(code="host-calls-vary", text=f"{percent(share)} of all events: {shown}")
