"""Coming to rest: which GPUs are waited for before a trial is measured, and how long (docs/states.md).

A GPU that is slow only gets faster, so warm-up goes on for a while until it is: how long tells the probe, never a step
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from perfgate.metrics.trial import Trial, tells_states
from perfgate.record.run_record import Record
from perfgate.units import NS_PER_S

SETTLE_S = 12
"""How long warm-up goes on for a GPU that is slow: 86 of 87 became fast by then (docs/states.md)."""
SLOWER = 1.1
"""What the probe takes more than its shortest reading where a GPU is slow: 1.2 times on an H200, readings of one state
are 1 % apart."""
SETTLED = "settle_ns"
"""The figure of a trial that says how long its warm-up went on."""


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
    here = [trial for trial in record.trials if trial.gpus == tuple(uuids) and trial.visit == len(record.visits) - 1]
    timed = [trial for trial in here if trial.kind == "timed"]
    if len({len(own) for trial in timed for own in _readings(trial)}) != 1:
        return ()
    in_vain = any(trial.label == label and trial.figures.get(SETTLED, 0) >= SETTLE_S * NS_PER_S for trial in timed)
    known = [own for trial in timed if trial.label == label or not in_vain for own in _readings(trial)]
    return tuple(map(min, zip(*known, strict=True)))


def is_slow(readings: Sequence[int], fastest: Sequence[int]) -> bool:
    """Whether some rank's reading is that of a slow GPU; never where the fastest are of other ranks, or unknown."""
    if len(readings) != len(fastest):
        return False
    return any(own > SLOWER * least for own, least in zip(readings, fastest, strict=True))


def state_after(trial: Trial, fastest: Sequence[int]) -> Literal["", "slow", "fast"]:
    """The state of the GPUs after the last iteration of a trial, by what :func:`fastest_probe_ns` knew before it."""
    last = _readings(trial)[-1:]
    if not fastest or not last or len(last[0]) != len(fastest):
        return ""
    return "slow" if is_slow(last[0], fastest) else "fast"


def _readings(trial: Trial) -> list[tuple[int, ...]]:
    return [iteration.probe_ns.after if iteration.probe_ns else () for iteration in trial.iterations]
