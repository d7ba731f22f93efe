"""What to know about the traced trials of a cell: what traces say, work added to the host, roles that are gone."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from perfgate import stats
from perfgate.judge.cautions import TrialsBySide
from perfgate.judge.evidence import Evidence
from perfgate.metrics.catalogue import Metric, split_name, trial_value
from perfgate.metrics.trial import Trial
from perfgate.models import Note
from perfgate.trace.decode_step import STEADY
from perfgate.units import format_value, plural

WORK, SLACK = "host_work_per_step", "host_slack_per_step"
WORK_ADDED_S = 20e-6
"""Less work added is not worth a word: a handful of launching calls, of a few microseconds each."""
WORK_LEVEL = 0.01
"""One-sided level of the bound that added work must exceed: said of one A/A run in a hundred at most."""
STEADY_SHARE = 0.15
"""What few pairs must add to the base's work where workers were held steady: pairs of one build then spread by 4.5 % on
an H200 (docs/measurements.md), because the CPU is not always as fast."""
LOOSE_SHARE = 0.4
"""The same where they were not: there two engines of one build differ by a tenth."""
FEW_PAIRS = 4
"""Fewer pairs than this have no spread worth a bound."""


def of_traces(evidence: Evidence) -> Iterator[Note]:
    """What the traces themselves say, in the words of the first that does, and what became of the host's slack."""
    pairs = evidence.pairs("traced")
    traces = [trial.decode for pair in pairs for trial in pair if trial.decode]
    texts_by_place: dict[tuple[str, int], list[str]] = {}
    for trace in traces:
        seen: Counter[str] = Counter()
        for code, text in trace.cautions:  # of one code a trace may tell several things, in the same order as others
            texts_by_place.setdefault((code, seen[code]), []).append(text)
            seen[code] += 1
    for (code, _), texts in sorted(texts_by_place.items()):
        yield Note(code=code, text=f"in {len(texts)} of {len(traces)} traces, the first: {texts[0]}")
    yield from _slack_lost(pairs)


def _slack_lost(pairs: Sequence[tuple[Trial, Trial]]) -> Iterator[Note]:
    """The caution of a head whose host works longer a step, by more than chance, or for which the device now waits.

    What the host works more is what it has less to spare. It is read from the work itself, because the slack is the
    small difference of two things that vary with every restart.
    """
    work, slack = _known(WORK, pairs), _known(SLACK, pairs)
    waits = bool(slack) and min(head for _, head in slack) <= 0
    added = [head - base for base, head in work]
    if work and _beyond_chance(added, pairs, _mean(work)[0]):
        (base, head), more = _shown(work), format_value(statistics.fmean(added), "s")
        spare = f", so much less of {_shown(slack)[0]} to spare" if slack and _mean(slack)[0] > 0 else ""
        left = ", and the device now waits for it" if waits else ", which no step shows yet" if slack else ""
        text = f"base {base}, head {head}: the host works {more} a step longer{spare} ({_traced(work)}){left}"
    elif waits and max(head for _, head in slack) <= 0 < min(base for base, _ in slack):
        base, head = _shown(slack)
        text = f"base {base} to spare, head {head} ({_traced(slack)}): the device now waits for the host"
    else:
        return
    yield Note(code="host-slack-lost", text=text)


_Values = Sequence[tuple[float, float]]


def _mean(values: _Values) -> tuple[float, float]:
    base, head = (statistics.fmean(side) for side in zip(*values, strict=True))
    return base, head


def _shown(values: _Values) -> tuple[str, str]:
    base, head = (format_value(value, "s") for value in _mean(values))
    return base, head


def _traced(values: _Values) -> str:
    return plural(len(values), "traced pair")


def _known(metric: str, pairs: Sequence[tuple[Trial, Trial]]) -> _Values:
    """A metric's values in the pairs that have it on both sides."""
    values = ((trial_value(metric, base), trial_value(metric, head)) for base, head in pairs)
    return [(base, head) for base, head in values if base is not None and head is not None]


def _beyond_chance(added: Sequence[float], pairs: Sequence[tuple[Trial, Trial]], work: float) -> bool:
    """Whether work was added: by a bound where there are pairs enough, else by what engines of one build differ by."""
    if len(added) < FEW_PAIRS:
        held = all(trial.decode and {*STEADY} <= {*trial.decode.held} for pair in pairs for trial in pair)
        return statistics.fmean(added) > max(WORK_ADDED_S, (STEADY_SHARE if held else LOOSE_SHARE) * work)
    estimate = _at_one_speed(pairs)
    return float(estimate.mean) > WORK_ADDED_S and estimate.lower(WORK_LEVEL) > 0


def _at_one_speed(pairs: Sequence[tuple[Trial, Trial]]) -> stats.Estimate:
    """The work added as it were with a CPU of one speed: launching calls, which no build changes, tell how fast it was.

    On an H200 their time explains all but 18 us of the 79 us by which engines of one build differ.
    """
    complete = [pair for pair in pairs if _known(WORK, [pair])]
    work = zip(*_known(WORK, complete), strict=True)
    calls = ([_launching(pair[n]) for pair in complete] for n in (0, 1))
    return stats.adjusted_difference(*work, *calls)


def _launching(trial: Trial) -> float:
    """What the calls that launch kernels take in a step, the 10th percentile, as for the work."""
    calls = sorted(trial.decode.call_ns) if trial.decode else []
    return calls[len(calls) // 10] / 1e9 if calls else 0.0


def role_gone(metric: Metric, sides: TrialsBySide) -> Note | None:
    """Says which side runs no kernel of the gated role: no fault of the measurement, but what it found.

    A role that no trial runs at all is none that went away.
    """
    _, role = split_name(metric.name)
    without = {side: [t for t in trials if t.decode and role not in t.decode.role_ns] for side, trials in sides.items()}
    if role is None or sum(map(len, without.values())) in (0, sum(map(len, sides.values()))):
        return None
    counts = [f"{side} in {len(gone)} of {len(sides[side])} traced trials" for side, gone in without.items() if gone]
    return Note(code="metric-unusable", text=f"no kernel of role {role} runs on {' and on '.join(counts)}")
