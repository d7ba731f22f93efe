"""What the host calls, judged exactly: counts that repeat are the same on both sides or they are not.

No alpha is spent. Most changes of a build change what its host runs, so a difference alone blocks nothing: it is priced
by what its calls and lines cost at least, and blocks where that is more than the scenario calls ignorable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from perfgate.calls.call_difference import CallDifference, call_difference, figure_lines
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
        ``pass`` where a step of the head, decode or prefill, costs at most ``ignorable`` more, with what differs as a
        caution; ``regressed`` with the difference where it costs more; ``inconclusive`` where too much does not repeat;
        ``not-comparable`` where the sides were not counted alike; ``not-measured`` where a side was not counted.
    """
    if (unfit := _unfit(sides)) is not None:
        return unfit
    base, head = pooled(sides["base"]), pooled(sides["head"])
    cautions = (*_varying(base, head), *_other_state(base, head))
    if max(base.varying_share, head.varying_share) > MOST_VARYING:
        return Finding("inconclusive", cautions)
    found = [call_difference(base, head, kind) for kind in base.steps]
    told = [(own, _meant(own, declared.ignorable)) for own in found if own.changes]
    told.sort(key=lambda part: not _blocks(part[0], declared.ignorable))
    if told and _blocks(told[0][0], declared.ignorable):
        return Finding("regressed", (priced_note("host-calls-added", *told),), cautions)
    if note := _at_times(found, [base.many(kind) for kind in base.steps], declared.ignorable):
        return Finding("inconclusive", (note,), cautions)
    if told:
        cautions = (priced_note("host-calls-changed", *told), *cautions)
    return Finding("pass", (), cautions)


def _unfit(sides: Mapping[Side, Sequence[HostCalls]]) -> Finding | None:
    """Why nothing can be compared: a side was not counted, is not there, or was not counted alike."""
    if missing := [side for side, trials in sides.items() if not trials]:
        text = f"no called trial of {' and '.join(missing)}"
        return Finding("not-measured", (Note(code="host-calls-missing", text=text),))
    if "base" not in sides:
        return Finding(cautions=(Note(code="no-profile", text="the head's calls were held against nothing"),))
    keys = {side: sorted({trial.key for trial in trials}) for side, trials in sides.items()}
    if len({key for own in keys.values() for key in own}) > 1:
        text = "; ".join(f"{side}: {' and '.join(own)}" for side, own in keys.items())
        return Finding("not-comparable", (Note(code="host-calls-unlike", text=text),))
    return None


def _blocks(difference: CallDifference, ignorable_s: float) -> bool:
    return bool(difference.waiting) or difference.cost_s > ignorable_s


def _meant(difference: CallDifference, ignorable_s: float) -> str:
    if difference.waiting:
        return f"and {', '.join(difference.waiting)} waits for a time, which no count prices"
    return f"{'more than' if _blocks(difference, ignorable_s) else 'within'} {_limit(ignorable_s)}"


def priced_note(code: str, *parts: tuple[CallDifference | LaunchDifference, str]) -> Note:
    """Differences, each with its price, what that means, and its lines as a diff."""
    blocks = ([f"{difference.headline} ({what})", *difference.lines] for difference, what in parts)
    return Note(code=code, text="\n".join(chain.from_iterable(blocks)))


def _limit(ignorable_s: float) -> str:
    return f"the {format_value(ignorable_s, 's')} that are ignorable"


def _at_times(found: Sequence[CallDifference], many: Sequence[float], ignorable_s: float) -> Note | None:
    """Why nothing passes, where what the head runs more at times is worth more than ignorable in the mean step.

    A log line every ten seconds meets a prefill step as it meets any other, so all steps of an iteration share it.

    Args:
        found: Kind by kind.
        many: Steps of each in an iteration.
        ignorable_s: As declared, in seconds.
    """
    at_times_s, changed_s = (
        sum(cost_s * steps for cost_s, steps in zip(costs_s, many, strict=True)) / sum(many)
        for costs_s in ([own.at_times_s for own in found], [own.cost_s for own in found])
    )
    if min(at_times_s, changed_s + at_times_s) <= ignorable_s:
        return None
    functions = [*dict.fromkeys(function for own in found for function, _ in own.at_times)][:NAMED]
    cost = format_value(at_times_s, "s")
    text = f"what the head runs more at times would be {cost} a step, more than {_limit(ignorable_s)}"
    return Note(code="host-calls-vary", text=f"{text}: {', '.join(functions)}")


def _other_state(base: HostCalls, head: HostCalls) -> Iterator[Note]:
    """What the engine's process imports and keeps otherwise, which has no price in a step."""
    if lines := figure_lines(base, head):
        yield Note(code="host-state-changed", text="\n".join(lines))


def _varying(base: HostCalls, head: HostCalls) -> Iterator[Note]:
    """What did not repeat, the most frequent first."""
    both: dict[tuple[str, str], int] = {}
    for steps in (*base.steps.values(), *head.steps.values()):
        both |= {key: max(most, both.get(key, 0)) for key, (_, most) in steps.varying().items()}
    if not both:
        return
    most = sorted(both, key=lambda key: (-both[key], key))
    names = list(dict.fromkeys(function for function, _ in most))
    share = max(base.varying_share, head.varying_share)
    shown = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    yield Note(code="host-calls-vary", text=f"{percent(share)} of all events: {shown}")
