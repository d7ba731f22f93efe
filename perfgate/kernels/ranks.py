"""What each rank of an engine does in a decode step, as an outcome tells it; judged by nothing but the envelope."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from perfgate.judge.evidence import Evidence
from perfgate.kernels.envelope import check, ranks_by_side
from perfgate.kernels.outcomes import RankOutcome, RanksOutcome
from perfgate.metrics.sides import Side
from perfgate.metrics.summaries import step_median
from perfgate.metrics.trial import Trial
from perfgate.scenario.expected_kernels import Expectation
from perfgate.trace.attribution import Attribution, attribute
from perfgate.trace.decode_step import DecodeSteps
from perfgate.trace.rank_steps import Ranks, RankSteps, slowest_waits_as_idle, waits_as_idle
from perfgate.units import NS_PER_S

MOST_PARTS = 3
MOST_LEFT_OUT = 0.25
"""Share of a trial's steps that may not tell waiting; the shortest and the longest quarter do not count either."""
_Pairs = list[tuple[DecodeSteps, DecodeSteps]]


def attribution_of(evidence: Evidence) -> Attribution | None:
    """Where the steps' difference comes from, beside the one measured in timed trials."""
    steps = [[step_median(trial) for trial in pair] for pair in evidence.pairs("timed")]
    differences = [head - base for base, head in steps if base is not None and head is not None]
    measured_s = math.fsum(differences) / len(differences) if differences else None
    traced = evidence.pairs("traced")
    return attribute(
        with_waits_apart(traced), measured_s, of_slowest([(_ranks(base), _ranks(head)) for base, head in traced])
    )


def ranks_of(evidence: Evidence) -> RanksOutcome | None:
    """What each rank of the traced engines does, against the envelope where one is declared."""
    kernels = evidence.cell.kernels
    expected = kernels if kernels is not None and kernels.declares_envelope else None
    pairs = [(_ranks(base), _ranks(head)) for base, head in evidence.pairs("traced")]
    return ranks_outcome(ranks_by_side(evidence), pairs, expected)


def _ranks(trial: Trial) -> Ranks:
    ranks: Ranks = trial.payload("ranks") or ()
    return ranks


def ranks_outcome(
    sides: Mapping[Side, Ranks], pairs: Sequence[tuple[Ranks, Ranks]], expected: Expectation | None
) -> RanksOutcome | None:
    """What the ranks of each side did.

    Args:
        sides: The ranks of the sides that were measured, each over all its traced trials.
        pairs: Those of paired trials, as (base, head).
        expected: What decode steps may run.

    Returns:
        ``None`` where no engine had several ranks.
    """
    pooled = {side: ranks for side, ranks in sides.items() if ranks}
    if not pooled:
        return None
    figures: dict[str, dict[str, dict[Side, float]]] = {}
    for side, ranks in pooled.items():
        for rank in ranks:
            for name, value in _figures(rank, expected).items():
                figures.setdefault(rank.label, {}).setdefault(name, {})[side] = value
    last = pooled[max(pooled, key=lambda side: side == "head")]
    return RanksOutcome(
        skew_s={side: _skew_s(ranks) for side, ranks in pooled.items()},
        worst=max(last, key=lambda rank: rank.slowest).label,
        ranks=tuple(
            RankOutcome(label=label, figures=by_name, **_change(label, pairs)) for label, by_name in figures.items()
        ),
    )


def of_slowest(pairs: Sequence[tuple[Ranks, Ranks]]) -> _Pairs:
    """The steps of one rank on both sides: of the one that is the head's slowest in most steps; none without ranks."""
    slow = Counter[str]()
    for _, head in pairs:
        slow.update({rank.label: rank.slowest for rank in head})
    return _of_rank(max(slow, key=lambda label: slow[label]), pairs, lambda rank: rank.decode) if slow else []


def with_waits_apart(pairs: Sequence[tuple[Trial, Trial]]) -> _Pairs:
    """The steps of traced trials, with what the slowest rank waits for others as idle time.

    Waiting of one side would be transfer of the other. So steps that do not tell it are left out, and where they are
    more than a few of a trial all waiting stays communication, in all trials.
    """
    whole = [(base.decode, head.decode) for base, head in pairs if base.decode and head.decode]
    if not any(_ranks(trial) for pair in pairs for trial in pair):
        return whole
    apart = [
        (slowest_waits_as_idle(base.decode, _ranks(base)), slowest_waits_as_idle(head.decode, _ranks(head)))
        for base, head in pairs
        if base.decode and head.decode
    ]
    return _unless_few_tell(whole, apart)


def _unless_few_tell(whole: _Pairs, apart: _Pairs) -> _Pairs:
    """``apart``, or ``whole`` where many steps of a trial lost their length: what they did chose the others."""
    counts = [
        [sum(ns is not None for ns in side.step_ns) for pair in pairs for side in pair] for pairs in (whole, apart)
    ]
    return apart if all(left >= (1 - MOST_LEFT_OUT) * every for every, left in zip(*counts, strict=True)) else whole


def _of_rank(label: str, pairs: Sequence[tuple[Ranks, Ranks]], steps: Callable[[RankSteps], DecodeSteps]) -> _Pairs:
    chosen = [
        tuple(next((steps(rank) for rank in side if rank.label == label), None) for side in pair) for pair in pairs
    ]
    return [(base, head) for base, head in chosen if base is not None and head is not None]


def _figures(rank: RankSteps, expected: Expectation | None) -> dict[str, float]:
    """Medians over the steps, by name; what is not known is left out. See :class:`RankOutcome`."""
    decode, steps = rank.decode, len(rank.begins_ns)
    waits = [ns for ns in rank.waiting_ns if ns is not None]
    waiting = rank.waiting_ns or (None,) * steps
    times = zip(decode.busy_ns, rank.communication_ns, rank.hidden_ns, strict=True)
    talked = sum(rank.communication_ns)
    figures: dict[str, float | None] = {
        "slowest": rank.slowest / steps,
        "step_s": _seconds(decode.step_ns),
        "own_s": _seconds(busy - (talk - hidden) for busy, talk, hidden in times),
        "transfer_s": _seconds(
            max(talk - waited, 0)
            for talk, waited in zip(rank.communication_ns, waiting, strict=True)
            if waited is not None
        ),
        "waiting_s": _seconds(waits),
        "hidden": sum(rank.hidden_ns) / talked if talked else None,
        "last": rank.last / rank.collectives if rank.collectives else None,
        "work_s": _seconds(decode.work_ns),
        "slack_s": _seconds(decode.slack_ns),
        "begins_s": _seconds(rank.begins_ns),
        "ends_s": _seconds(rank.ends_ns),
        "outside": None if expected is None else _outside_steps(expected, decode) / decode.steps,
    }
    return {name: value for name, value in figures.items() if value is not None}


def _outside_steps(expected: Expectation, decode: DecodeSteps) -> int:
    """Steps that leave the envelope."""
    return sum(entry.pattern.steps for entry in check(expected, decode)[0])


def _change(label: str, pairs: Sequence[tuple[Ranks, Ranks]]) -> dict[str, object]:
    """By how much the rank's steps differ, and the parts that differ most."""
    whole, apart = _of_rank(label, pairs, lambda rank: rank.decode), _of_rank(label, pairs, waits_as_idle)
    change = attribute(_unless_few_tell(whole, apart))
    if change is None:
        return {}
    parts = sorted(change.parts, key=lambda part: -abs(part.difference_s))[:MOST_PARTS]
    return {"change_s": change.difference_s, "parts": {part.name: part.difference_s for part in parts}}


def _seconds(column: Iterable[int | None]) -> float | None:
    times = [ns for ns in column if ns is not None]
    return statistics.median(times) / NS_PER_S if times else None


def _skew_s(ranks: Ranks) -> float:
    skews_ns = [max(begins) for begins in zip(*(rank.begins_ns for rank in ranks), strict=True)]
    return float(statistics.median(skews_ns)) / NS_PER_S
