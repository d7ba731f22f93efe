"""Coming to rest: which GPUs are waited for before a trial is measured, and how long (docs/states.md).

A GPU that is slow only gets faster, so warm-up goes on for a while until it is: how long tells the probe, never a step
time. Where most trials would be in one state without that, or in both, it does not go on: pairs then have a state in
common at once.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from perfgate.metrics.trial import SETTLED, Trial, is_slow, least_iterations, tells_states
from perfgate.record.run_record import Record
from perfgate.units import NS_PER_S

SETTLE_S = 12
"""How long warm-up goes on for a GPU that is slow: 86 of 87 became fast by then (docs/states.md)."""


def fastest_probe_ns(record: Record, label: str, names: Sequence[str], uuids: Sequence[str]) -> tuple[int, ...]:
    """The shortest reading on each rank so far, which the next trial of a build is held against.

    Of any build; and of this one alone once it was waited for in vain, because a build can move the probe as well:
    with another attention kernel it took 193 us in the fast state in place of 175.

    Args:
        record: What was measured so far; what counts is the visit that goes on.
        label: What the build of the next trial is called in its run.
        names: Of the GPUs that it will have.
        uuids: The same GPUs: another card has other readings.

    Returns:
        Nanoseconds; empty where the probe tells no states here, or once a trial had no reading: no build waits alone.
    """
    if not tells_states(names):
        return ()
    timed = _timed_here(record, uuids)
    if len({len(readings) for trial in timed for readings in _readings(trial)}) != 1:
        return ()
    return _fastest(timed, label)


def _fastest(timed: Sequence[Trial], label: str) -> tuple[int, ...]:
    least = tuple(map(min, zip(*(readings for trial in timed for readings in _readings(trial)), strict=True)))
    in_vain = any(trial.label == label and _waited_in_vain(trial, least) for trial in timed)
    rows = [readings for trial in timed if trial.label == label or not in_vain for readings in _readings(trial)]
    return tuple(map(min, zip(*rows, strict=True)))


def _waited_in_vain(trial: Trial, least: Sequence[int]) -> bool:
    """Whether a GPU was slow when it was waited for no longer; windows of load end later than the wait may."""
    first = trial.iterations[0].probe_ns if trial.iterations else None
    waited = trial.figures.get(SETTLED, 0) >= SETTLE_S * NS_PER_S
    return waited and first is not None and is_slow(first.before, least)


def patience_s(record: Record, uuids: Sequence[str], pair: int | None, iterations: int) -> float:
    """How long warm-up may go on for a slow GPU before the trials of a pair, in seconds: 0, or :data:`SETTLE_S`.

    Whichever gives more pairs an hour whose trials have a state in common, by what the trials before this pair showed
    of either side: how long after warm-up each GPU became fast. Some hosts are fast at the start of most trials and
    slow for seconds at the start of others; on some each trial begins slow for 6 to 13 s, and then short ones are alike
    without waiting, and long ones have both states (docs/states.md).

    Args:
        record: What was measured so far; what counts is the visit that goes on.
        uuids: Of the GPUs that the pair will have.
        pair: Its number; its own trials do not count, so that both are treated alike. ``None`` for a warm-up trial.
        iterations: Measured in each of its trials.
    """
    trials = [trial for trial in _timed_here(record, uuids) if pair is None or trial.pair != pair]
    trials = [trial for trial in trials if trial.iterations]
    ranks = {len(readings) for trial in trials for readings in _readings(trial)}
    elapsed_ns = [iteration.elapsed_ns for trial in trials for iteration in trial.iterations]
    if len(ranks) != 1 or 0 in ranks or not statistics.median(elapsed_ns):
        return SETTLE_S
    fastest = {label: _fastest(trials, label) for label in {trial.label for trial in trials}}
    onsets = [_onset_s(trial, fastest[trial.label]) for trial in trials]
    iteration_s = statistics.median(elapsed_ns) / NS_PER_S
    restart_s = statistics.median(map(_restart_ns, trials)) / NS_PER_S
    reckoned = [onset.reckoned_s(onsets) for onset in onsets]

    def pairs_an_hour(waits_s: float) -> float:
        waited = statistics.fmean(min(lag, waits_s) for lag in reckoned)
        alike = _in_one_state([lag - waits_s if lag > waits_s else 0.0 for lag in reckoned], iterations, iteration_s)
        return alike / (restart_s + iterations * iteration_s + waited)

    return SETTLE_S if pairs_an_hour(SETTLE_S) >= pairs_an_hour(0.0) else 0.0


@dataclass(frozen=True)
class _Onset:
    """When a GPU became fast, in seconds after warm-up; where it was not ``seen`` to, for how long it was slow.

    In the middle of the iteration that had one reading of each: then all before it were slow, all behind it fast.
    """

    after_s: float
    seen: bool

    def reckoned_s(self, others: Sequence[_Onset]) -> float:
        """When it would have become fast.

        Where a trial ended before anybody would have stopped waiting it is what those took that were slow for longer
        (Kaplan and Meier 1958 spread it over them), by their median; else the middle of what was left of that wait.
        """
        if self.seen:
            return self.after_s
        if self.after_s >= SETTLE_S:
            return math.inf
        rows = (onset for onset in others if onset.after_s > self.after_s and (onset.seen or onset.after_s >= SETTLE_S))
        longer = [onset.after_s if onset.seen else math.inf for onset in rows]
        return statistics.median_high(longer) if longer else (self.after_s + SETTLE_S) / 2


def _onset_s(trial: Trial, least: Sequence[int]) -> _Onset:
    after_ns = trial.figures.get(SETTLED, 0)
    first = trial.iterations[0].probe_ns
    if first is not None and not is_slow(first.before, least):
        return _Onset(after_ns / NS_PER_S, seen=True)
    for iteration, readings in zip(trial.iterations, _readings(trial), strict=True):
        if not is_slow(readings, least):
            return _Onset((after_ns + iteration.elapsed_ns / 2) / NS_PER_S, seen=True)
        after_ns += iteration.elapsed_ns
    return _Onset(after_ns / NS_PER_S, seen=False)


def _in_one_state(onsets_s: Sequence[float], iterations: int, iteration_s: float) -> float:
    """The share of pairs whose trials both have the state that most trials have.

    Args:
        onsets_s: When the GPU of each trial became fast, in seconds after measuring began.
        iterations: Of a trial.
        iteration_s: What one takes.
    """
    slow = [iterations if math.isinf(onset_s) else min(iterations, onset_s // iteration_s) for onset_s in onsets_s]
    fast = [iterations - count - (onset > 0) for count, onset in zip(slow, onsets_s, strict=True)]  # a change is cut
    least = least_iterations(iterations)
    most = max(sum(count >= least for count in state) for state in (slow, fast))
    return (most / len(onsets_s)) ** 2


def _restart_ns(trial: Trial) -> int:
    """What a trial takes beside measuring and waiting."""
    return (
        trial.duration_ns - trial.figures.get(SETTLED, 0) - sum(iteration.elapsed_ns for iteration in trial.iterations)
    )


def _timed_here(record: Record, uuids: Sequence[str]) -> list[Trial]:
    """Timed trials of the visit that goes on, on these GPUs: another card has other readings."""
    here = [trial for trial in record.trials if trial.gpus == tuple(uuids) and trial.visit == len(record.visits) - 1]
    return [trial for trial in here if trial.kind == "timed"]


def state_after(trial: Trial, fastest: Sequence[int]) -> Literal["", "slow", "fast"]:
    """The state of the GPUs after the last iteration of a trial, by what :func:`fastest_probe_ns` knew before it."""
    last = _readings(trial)[-1:]
    if not fastest or not last or len(last[0]) != len(fastest):
        return ""
    return "slow" if is_slow(last[0], fastest) else "fast"


def _readings(trial: Trial) -> list[tuple[int, ...]]:
    return [iteration.probe_ns.after if iteration.probe_ns else () for iteration in trial.iterations]
