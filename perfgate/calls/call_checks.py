"""What is judged by its price: what the host calls, and what a decode step launches where nothing is timed.

Counts that repeat are the same on both sides or they are not, so no alpha is spent. Most changes of a build change what
it runs, so a difference alone blocks nothing: it is priced by what it costs at least, and blocks where that is more
than the scenario calls ignorable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from perfgate.calls.call_difference import IN_A_STEP, CallDifference, call_difference, figure_lines
from perfgate.calls.host_calls import HostCalls, pooled
from perfgate.judge.evidence import Evidence
from perfgate.judge.outcome import Finding
from perfgate.metrics.sides import SIDES, Side
from perfgate.metrics.trial import Trial
from perfgate.models import Note
from perfgate.scenario.schedule import CallTrials
from perfgate.trace.decode_step import DecodeSteps
from perfgate.trace.inventory import LaunchDifference, by_rank, launch_difference
from perfgate.trace.rank_steps import each_rank
from perfgate.units import format_value, listed, percent

MOST_VARYING = 0.02
"""Share of all events of a kind of step that need not repeat."""
NAMED = 5
"""Functions that vary and are named."""


def judge_called(evidence: Evidence) -> Iterator[Finding]:
    """What is judged of the called trials of a cell; nothing where it declares none."""
    if (declared := evidence.cell.calls) is None:
        return
    yield judge_calls(declared, evidence.held("calls"))
    # Beside timed trials it is these that say what a kernel costs, and one traced step may not block.
    if evidence.exact:
        yield judge_launches(declared.ignorable, evidence.held("launched", "traced", launches_of))


def launches_of(trial: Trial) -> tuple[DecodeSteps, ...]:
    """What a traced trial launched, rank by rank: it is held against each other by its price."""
    return each_rank(trial.decode, trial.payload("ranks"))


def judge_calls(declared: CallTrials, sides: Mapping[Side, Sequence[HostCalls]]) -> Finding:
    """Hold what the head's host calls against what the base's does.

    Args:
        declared: The scenario's ``calls:`` block.
        sides: The called trials of base and head; of the head alone nothing is judged, which is a caution.

    Returns:
        ``pass`` where a decode step of the head costs at most ``ignorable`` more, and a prefill step at most that
        beside what the decode steps save, with what differs as a caution; ``regressed`` with the difference where it
        costs more, or waits for a time and repeats on the base; ``inconclusive`` where too much else does not repeat;
        ``not-comparable`` where the sides were not counted alike; ``not-measured`` where a side was not counted.
    """
    if (unfit := _unfit(sides)) is not None:
        return unfit
    base, head = pooled(sides["base"]), pooled(sides["head"])
    cautions = (*_varying(base, head), *_other_state(base, head))
    differences = {kind: call_difference(base, head, kind) for kind in base.steps}
    too_varied = max(base.varying_share, head.varying_share) > MOST_VARYING
    if too_varied and not any(_begins_to_wait(difference, base) for difference in differences.values()):
        return Finding("inconclusive", cautions)
    saved_s = (
        differences["decode"].saved_s * base.many("decode") / base.many("prefill") if len(differences) > 1 else 0.0
    )
    parts = [
        _Part(difference, declared.ignorable, saved_s if difference.kind == "prefill" else 0.0)
        for difference in differences.values()
    ]
    parts.sort(key=lambda part: not part.blocks)
    entries = [(part.own, part.meaning) for part in parts if part.own.changes]
    if parts[0].blocks:
        return Finding("regressed", (_priced_note("work-added", *entries),), cautions)
    if notes := tuple(_at_times(differences.values(), declared.ignorable)):
        return Finding("inconclusive", notes, cautions)
    if entries:
        cautions = (_priced_note("work-changed", *entries), *cautions)
    return Finding("pass", (), cautions)


def _unfit(sides: Mapping[Side, Sequence[HostCalls]]) -> Finding | None:
    """Why nothing can be compared: a side was not counted, is not there, or was not counted alike."""
    if missing := [side for side, trials in sides.items() if not trials]:
        text = f"no called trial of {' and '.join(missing)}"
        return Finding("not-measured", (Note(code="evidence-missing", text=text),))
    if "base" not in sides:
        return Finding(cautions=(Note(code="no-profile", text="the head's calls were held against nothing"),))
    keys = {side: sorted({trial.key for trial in trials}) for side, trials in sides.items()}
    if len({key for side_keys in keys.values() for key in side_keys}) > 1:
        text = "; ".join(f"{side}: {' and '.join(side_keys)}" for side, side_keys in keys.items())
        return Finding("not-comparable", (Note(code="different-cells", text=f"calls were counted by {text}"),))
    return None


def calls_alike(evidence: Evidence) -> bool | None:
    """Whether no function differs between the called trials of two sides; ``None`` where that cannot be said."""
    sides: Mapping[Side, Sequence[HostCalls]] = evidence.held("calls")
    if not all(sides.get(side) for side in SIDES) or _unfit(sides) is not None:
        return None
    base, head = pooled(sides["base"]), pooled(sides["head"])
    return not any(call_difference(base, head, kind).changes for kind in base.steps)


def _begins_to_wait(difference: CallDifference, base: HostCalls) -> bool:
    """Whether the head waits for a time in a function that repeats on the base.

    The readings of its clock are then what does not repeat; where both sides wait, more of them may be chance.
    """
    vary = {function for function, _ in base.steps[difference.kind].varying()}
    return any(change.waits and (change.was or change.function) not in vary for change in difference.changes)


@dataclass(frozen=True)
class _Part:
    """The difference in the steps of one kind, and what may be added there.

    Args:
        ignorable_s: As declared, in seconds.
        saved_s: What later steps of the same iteration do less: work may move to where it is done once.
    """

    own: CallDifference
    ignorable_s: float
    saved_s: float

    @property
    def blocks(self) -> bool:
        return bool(self.own.waiting) or self.own.cost_s - self.saved_s > self.ignorable_s

    @property
    def meaning(self) -> str:
        if self.own.waiting:
            return "a wait blocks at any price"
        if self.own.cost_s <= self.ignorable_s:
            return f"within {_limit(self.ignorable_s)}"
        saved = f"the {format_value(self.saved_s, 's')} that the decode steps after it save"
        if self.blocks:
            return f"more than {f'{saved} and ' if self.saved_s else ''}{_limit(self.ignorable_s)}"
        return f"within {saved} and {_limit(self.ignorable_s)}"


def _priced_note(code: str, *parts: tuple[CallDifference | LaunchDifference, str]) -> Note:
    """Differences, each with its price, what that means, and its lines as a diff."""
    blocks = ([f"{difference.headline} ({what})", *difference.lines] for difference, what in parts)
    return Note(code=code, text="\n".join(chain.from_iterable(blocks)))


def _limit(ignorable_s: float) -> str:
    return f"the {format_value(ignorable_s, 's')} that are ignorable"


def _at_times(differences: Iterable[CallDifference], ignorable_s: float) -> Iterator[Note]:
    """Why nothing passes: what the head runs more at times in a step of some kind is worth more than ignorable."""
    for difference in differences:
        if min(difference.at_times_s, difference.cost_s + difference.at_times_s) > ignorable_s:
            cost = f"{format_value(difference.at_times_s, 's')} {IN_A_STEP[difference.kind]}"
            functions = ", ".join(function for function, _ in difference.at_times[:NAMED])
            text = f"what the head runs more at times would be {cost}, more than {_limit(ignorable_s)}: {functions}"
            yield Note(code="counts-vary", text=text)


def _other_state(base: HostCalls, head: HostCalls) -> Iterator[Note]:
    """What the engine's process imports and keeps otherwise, which has no price in a step."""
    if lines := figure_lines(base, head):
        yield Note(code="engine-state-changed", text="\n".join(lines))


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
    yield Note(code="counts-vary", text=f"{percent(share)} of all events vary: {listed(names, NAMED)}")


def judge_launches(ignorable_s: float, sides: Mapping[Side, Sequence[Sequence[DecodeSteps]]]) -> Finding:
    """Hold the launches of the head's decode step against the base's, on the rank where they are worst.

    All ranks wait for one that does more, so what it does is neither halved by the others nor added to what they do.
    How long a rank waits in collectives has no price. The stages of a pipeline add up, which no trace tells: there the
    price is too low.

    Args:
        ignorable_s: What the kernels, copies and memsets that differ may take more in a step, seconds.
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
        return Finding("not-comparable", (Note(code="no-profile", text=text),))
    ranks = [launch_difference(was, now) for was, now in zip(base, head, strict=True)]
    worst = max(ranks, key=lambda rank: (bool(rank.pageable), rank.waits_more, bool(rank), rank.cost_s))
    limit = _limit(ignorable_s)
    where = f"; rank {ranks.index(worst)} of {len(ranks)}" if len(ranks) > 1 else ""
    if worst.pageable:
        what = "and pageable copies make the host wait"
    elif worst.waits_more:
        what = "and a wait is in each step, which no price says"
    elif worst.cost_s > ignorable_s:
        what = f"more than {limit}"
    else:
        notes = (_priced_note("work-changed", (worst, f"within {limit}{where}")),) if worst else ()
        return Finding("pass", (), notes)
    return Finding("regressed", (_priced_note("work-added", (worst, f"{what}{where}")),))
