"""What the trials of a cell tell of themselves: which are uneven, slow or of other packages, and steps held up."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from perfgate.metrics.roofline_bound import WEIGHTS_APART
from perfgate.metrics.sides import SIDES, Side
from perfgate.metrics.trial import CLOCKED, Trial
from perfgate.models import Note
from perfgate.record.unused_folders import UNUSED
from perfgate.units import format_value, percent, plural

UNEVEN = 2.0
"""An iteration that takes this many times the median of its trial was disturbed: all have the same amount of work."""
SLOW_TRIAL = 1.5
"""A trial whose usual iteration takes this many times that of the same side's other trials. Of 177 trials on H200s the
worst took 1.03 times, of 202 on two cores that others used as well up to 2.87 times. It is told and not dropped:
dropping what is far from the others would drop a build's own slow restarts as well."""
FEW_OTHERS = 2  # of fewer other trials than this none says which is the odd one
HELD_UP: Final = 1.5
"""A decode step of this many times the median of its iteration was held up: all of one have nearly the same work."""
STALLED: Final = 0.01
"""So much of their time both sides must lose by steps that were held up: hosts of H100s that stall lose 1.4 to 2.7 %,
others up to 0.1, seldom 0.3 (docs/measurements.md)."""


def trial_cautions(sides: Mapping[Side, Sequence[Trial]]) -> Iterator[Note]:
    """What trials tell of themselves, and where steps of both sides were held up.

    Args:
        sides: Timed and traced ones of base and head.
    """
    both = [*chain(*sides.values())]
    codes = (code for trial in both for code in trial.cautions if code not in {UNUSED, WEIGHTS_APART})
    for code, count in sorted(Counter(codes).items()):
        yield Note(code=code, text=f"{code.replace('-', ' ')}, in {count} of {len(both)} trials")
    for side, trials in sides.items():
        cautions = [
            ("times-uneven", _uneven(trials)),
            *(("times-uneven", _slow([trial for trial in trials if trial.kind == kind])) for kind in CLOCKED),
            ("subject-changed", _changed_versions(trials)),
        ]
        yield from (Note(code=code, text=f"{side}: {text}") for code, text in cautions if text)
    yield from _weights_apart(sides)
    yield from _stalls([[trial for trial in trials if trial.kind == "timed"] for trials in sides.values()])


def _weights_apart(sides: Mapping[Side, Sequence[Trial]]) -> Iterator[Note]:
    """Says what an engine loaded and what is counted, of each side where these are apart."""
    for side, trials in sides.items():
        if reasons := [trial.no_floor for trial in trials if WEIGHTS_APART in trial.cautions]:
            yield Note(code=WEIGHTS_APART, text=f"{side}, in {plural(len(reasons), 'trial')}: {reasons[0]}")


def _stalls(sides: Sequence[Sequence[Trial]]) -> Iterator[Note]:
    """Says what steps that were held up cost, where both sides lost time by them."""
    lost = [share for trials in sides if (share := _lost(trials)) is not None]
    if len(lost) == len(SIDES) and min(lost) >= STALLED:
        base, head = map(percent, lost)
        text = f"steps of {HELD_UP:g} times the median and more cost base {base} and head {head} of their time"
        yield Note(code="times-uneven", text=text)


def _lost(trials: Sequence[Trial]) -> float | None:
    """The share of the time of decode steps on GPUs that long ones took beyond the median of their iteration.

    ``None`` where there are no such steps in the order that they were taken in, each of all requests.
    """
    lost = whole = 0.0
    for iteration in chain.from_iterable(trial.iterations for trial in trials if trial.gpus):
        if iteration.lengths or iteration.multi_token or not iteration.itl_ns:
            continue
        if not (usual := statistics.median(iteration.itl_ns)):
            continue
        lost += sum(ns - usual for ns in iteration.itl_ns if ns >= HELD_UP * usual)
        whole += sum(iteration.itl_ns)
    return lost / whole if whole else None


def _uneven(trials: Sequence[Trial]) -> str:
    """Which of one side's trials has an iteration far slower than its usual one, the worst first; empty where none."""
    uneven = []
    for trial in trials:
        elapsed = [iteration.elapsed_ns for iteration in trial.iterations]
        usual = statistics.median_low(elapsed) if elapsed else 0
        if usual and max(elapsed) > UNEVEN * usual:
            uneven.append((max(elapsed) / usual, trial.index))
    if not uneven:
        return ""
    times, index = max(uneven)
    how = f"in trial {index} an iteration took {times:.3g} times as long as the median"
    return f"{len(uneven)} of {len(trials)} trials; {how}"


def _slow(trials: Sequence[Trial]) -> str:
    """Which of one side's trials of a kind are slow in every iteration, the worst first; empty where none is.

    They are told and kept: a rule that drops what is far off drops a build's own slow restarts with it.
    """
    usual = [(statistics.median_low(i.elapsed_ns for i in t.iterations), t.index) for t in trials if t.iterations]
    if len(usual) <= FEW_OTHERS:
        return ""
    apart = [
        (took, statistics.median(ns for ns, _ in usual[:n] + usual[n + 1 :]), index)
        for n, (took, index) in enumerate(usual)
    ]
    slow = [(took / others, took, others, index) for took, others, index in apart if took > SLOW_TRIAL * others > 0]
    if not slow:
        return ""
    times, took, others, index = max(slow)
    how = f"{format_value(took / 1e9, 's')} an iteration, {format_value(others / 1e9, 's')} in the others"
    return f"{len(slow)} of {len(usual)} {trials[0].kind} trials; trial {index} took {times:.3g} times as long ({how})"


def _changed_versions(trials: Sequence[Trial]) -> str:
    """``vllm 1.0, then 1.1`` for every package that was not the same in all trials; empty where all were."""
    names = sorted({name for trial in trials for name in trial.versions})
    seen = {name: list(dict.fromkeys(trial.versions.get(name, "none") for trial in trials)) for name in names}
    return "; ".join(f"{name} {', then '.join(versions)}" for name, versions in seen.items() if len(versions) > 1)
