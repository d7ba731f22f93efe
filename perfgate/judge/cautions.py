"""What to know about a cell beside its gates: cautions about its trials, what its GPUs did, and could do at best."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from perfgate import stats
from perfgate.judge.cell_facts import GpuOutcome
from perfgate.judge.trial_cautions import trial_cautions
from perfgate.machine.telemetry import GpuTelemetry
from perfgate.metrics.catalogue import Metric
from perfgate.metrics.kinds import of_kinds
from perfgate.metrics.roofline_bound import Floor
from perfgate.metrics.sides import SIDES, Side
from perfgate.metrics.trial import KINDS, Trial, key_of
from perfgate.models import Note
from perfgate.record.dropped_pairs import unevenness
from perfgate.record.run_record import Record
from perfgate.scenario.subject_words import same_build
from perfgate.scenario.work import Work

SAME_CLOCK = 0.01
"""By how much the sides' SM clocks may differ, as a share; a step bound by memory moves less than its clock does."""
ONE_STATE = timedelta(hours=6)
"""Caches that were filled within so long of each other were filled in one state of the machine."""
CHANCE = 0.01  # two-sided p from which on a difference of clocks may be chance


def record_cautions(record: Record) -> Iterator[Note]:
    """What a record tells beside its valid trials: that both sides are one build, and which pairs were dropped."""
    if same_build(record.subjects.get("base"), record.subjects.get("head")):
        yield Note(code="same-subject", text="an A/A run")
    for kind in KINDS:
        dropped = list(record.dropped_pairs(kind).values())
        if dropped:
            word = key_of(kind, "{}").replace("_", " ")
            yield Note(code="dropped-pairs", text=f"{len(dropped)} {word}dropped: {_causes(dropped)}")


def _causes(dropped: Sequence[Trial]) -> str:
    """What each side failed of, each sentence once with its trials, and what the sides tell."""
    trials_by_cause: dict[tuple[str, Side], list[int]] = {}
    for trial in dropped:
        if trial.failure:
            cause = f"{trial.failure.code}: {trial.failure.sentence}"
            trials_by_cause.setdefault((cause, trial.subject), []).append(trial.index)
    causes = [
        f"{cause} ({side}, trial{'s' * (len(indices) > 1)} {', '.join(map(str, indices))})"
        for (cause, side), indices in trials_by_cause.items()
    ]
    return "; ".join([*causes, *filter(None, [unevenness(dropped)])])


TrialsBySide = Mapping[Side, Sequence[Trial]]  # trials of base and head


def side_cautions(work: Work, timed: TrialsBySide, traced: TrialsBySide) -> Iterator[Note]:
    """What the trials of two sides tell, wherever they come from."""
    # Digests of one kind only: another kind warms up for longer, so that its iterations have other prompts.
    yield from _output_cautions(timed if all(timed.values()) else traced)
    yield from trial_cautions({side: [*timed[side], *traced[side]] for side in SIDES})
    yield from work.cautions(timed)
    if (note := _fills_differ(timed)) is not None:
        yield note


def _output_cautions(sides: TrialsBySide) -> Iterator[Note]:
    """Compare digests of the same iteration, whose prompts are the same on both sides and in every trial."""
    digests = {side: _digests_by_iteration(trials) for side, trials in sides.items()}
    base, head = digests["base"], digests["head"]
    both = base.keys() & head.keys()
    different = [n for n in sorted(both) if not base[n] & head[n]]
    if different:
        text = f"in {len(different)} of {len(both)} iterations no head trial generated what a base trial did"
        yield Note(code="outputs-differ", text=text)
    for side, iterations in digests.items():
        if unstable := sum(len(generated) > 1 for generated in iterations.values()):
            yield Note(code="outputs-unstable", text=f"{side}: {unstable} of {len(iterations)} iterations")


def drawn_once(trials: Iterable[Trial]) -> bool:
    """Whether trials, those of warm-up among them, ran what was compiled and tuned once, together.

    Caches that grew since they were filled hold what each side compiled on its own; of unknown ones nobody can say it.
    Who found them empty filled them: what that drew is told by the trials that ran it.
    """
    draws = {(trial.fill.draw, trial.startup and trial.startup.cache_files) if trial.fill else None
             for trial in trials if trial.fill or trial.pair is not None or not trial.startup
             or trial.startup.cache_files}  # fmt: skip
    return len(draws) == 1 and None not in draws


def _fills_differ(sides: TrialsBySide) -> Note | None:
    """Says so where the sides' compilers and tuners drew in different occupations; one draw for both is none."""
    fills = {side: {trial.fill for trial in trials if trial.fill} for side, trials in sides.items()}
    if not all(fills.values()) or len({fill.draw for side_fills in fills.values() for fill in side_fills}) == 1:
        return None
    first = {side: min(side_fills, key=lambda fill: fill.filled_utc) for side, side_fills in fills.items()}
    base, head = (datetime.fromisoformat(first[side].filled_utc).astimezone(UTC) for side in SIDES)
    if abs(head - base) <= ONE_STATE:
        return None
    return Note(code="fills-differ", text=f"base {base:%Y-%m-%d %H:%M}, head {head:%Y-%m-%d %H:%M} UTC")


def _digests_by_iteration(trials: Iterable[Trial]) -> dict[int, set[str]]:
    digests: dict[int, set[str]] = {}
    for trial in trials:
        for n, iteration in enumerate(trial.iterations):
            digests.setdefault(n, set()).add(iteration.tokens_digest)
    return digests


def clocks_differ(gpus: Mapping[Side, GpuOutcome], trials: TrialsBySide) -> Note | None:
    """Says so where the sides ran at different clocks: a difference in time is then none of the builds.

    Medians over the trials are compared, so that one disturbed pair takes nothing from the others. Clocks that nobody
    locks wander in steps of 15 MHz from trial to trial: where the trials' clocks spread so far that the difference may
    be chance, it is no more than the pairs' own spread, which the test knows. A side without trials was measured
    elsewhere, and its median counts as it is.
    """
    if len(gpus) < 2:  # noqa: PLR2004 (base and head)
        return None
    base, head = gpus["base"], gpus["head"]
    clocks = (("SM clock in decode", base.sm_mhz, head.sm_mhz), ("memory clock", base.memory_mhz, head.memory_mhz))
    apart = [
        f"median {name}: base {base_mhz} MHz, head {head_mhz} MHz"
        for name, base_mhz, head_mhz in clocks
        if base_mhz is not None and head_mhz is not None and abs(head_mhz - base_mhz) > SAME_CLOCK * base_mhz
    ]
    if base.memory_mhz == head.memory_mhz and _wander(trials):
        return None
    return Note(code="clocks-differ", text="; ".join(apart)) if apart else None


def _wander(trials: TrialsBySide) -> bool:
    """Whether the SM clocks of the trials spread so far that the sides' may differ by chance (Welch's t test)."""
    base, head = (_sm_clocks(trials[side]) for side in SIDES)
    if min(len(base), len(head)) < 2 or min(*base, *head) <= 0:  # noqa: PLR2004 (one trial has no spread)
        return False
    difference = stats.difference_estimate(stats.logs(base), stats.logs(head), 1)
    return 2 * min(float(difference.p_above(0.0)), float(difference.p_below(0.0))) > CHANCE


def head_is_favoured(gpus: Mapping[Side, GpuOutcome]) -> bool:
    """Whether no clock of the head's GPUs was below the base's, so that clocks explain no slowdown."""
    base, head = gpus["base"], gpus["head"]
    return head.sm_mhz >= base.sm_mhz and (head.memory_mhz or 0) >= (base.memory_mhz or 0)


def gpu_outcomes(sides: TrialsBySide) -> dict[Side, GpuOutcome]:
    """What the GPUs of each side did; a side without telemetry is left out."""
    return {side: outcome for side, trials in sides.items() if (outcome := gpu_outcome(trials)) is not None}


def gpu_outcome(trials: Sequence[Trial]) -> GpuOutcome | None:
    """One side's GPUs in a few figures; ``None`` where no SM clock is known."""
    gpus = [gpu for trial in trials for gpu in trial.telemetry]
    sm_clocks = _sm_clocks(trials)
    if not sm_clocks:
        return None
    memory_clocks = _slowest(trials, lambda gpu: gpu.memory_mhz.median if gpu.memory_mhz else None)
    powers = [gpu.power_mw.median / 1000 for gpu in gpus if gpu.power_mw]
    return GpuOutcome(
        sm_mhz=statistics.median_low(sm_clocks),
        sm_low_mhz=min(gpu.sm_mhz.low for gpu in gpus if gpu.sm_mhz),
        sm_high_mhz=max(gpu.sm_mhz.high for gpu in gpus if gpu.sm_mhz),
        memory_mhz=statistics.median_low(memory_clocks) if memory_clocks else None,
        power_w=statistics.median(powers) if powers else None,
        temperature_c=max((gpu.temperature_c.high for gpu in gpus if gpu.temperature_c), default=None),
        events=tuple(sorted({name for gpu in gpus for name in gpu.reasons} - {"idle", "clocks-setting"})),
    )


def _sm_clocks(trials: Sequence[Trial]) -> list[int]:
    """The SM clock of each trial in decode; of a whole trial where decode was too short to be read."""
    return _slowest(trials, lambda gpu: gpu.decode_sm_mhz or (gpu.sm_mhz.median if gpu.sm_mhz else None))


def _slowest(trials: Sequence[Trial], clock: Callable[[GpuTelemetry], int | None]) -> list[int]:
    """The clock of each trial's slowest GPU, which the others wait for."""
    readings = [[mhz for gpu in trial.telemetry if (mhz := clock(gpu)) is not None] for trial in trials]
    return [min(clocks) for clocks in readings if clocks]


def floor_by_side(sides: TrialsBySide) -> dict[Side, Floor]:
    """The floor of each side: that of its first trial that has one, since one build on one kind of GPU has one."""
    floors = {side: [trial.floor for trial in trials if trial.floor] for side, trials in sides.items()}
    return {side: side_floors[0] for side, side_floors in floors.items() if side_floors}


def why_missing(metric: Metric, sides: TrialsBySide) -> Note | None:
    """Why trials carry no value of a metric, where they tell."""
    return _no_floor(metric, sides) or why_unusable(metric, sides)


def why_unusable(metric: Metric, sides: TrialsBySide) -> Note | None:
    """Why no gate on a metric is judged, as its kind of trials tells."""
    unusable: Callable[[Metric, TrialsBySide], Note | None] | None = of_kinds("unusable").get(metric.kind)
    return unusable(metric, sides) if unusable else None


def _no_floor(metric: Metric, sides: TrialsBySide) -> Note | None:
    """Why there is no utilisation to judge: the words of the first trial of each side that has no floor."""
    if not metric.needs_floor:
        return None
    sides_by_reason: dict[str, list[str]] = {}
    for side, trials in sides.items():
        if without := [trial.no_floor for trial in trials if trial.floor is None]:
            sides_by_reason.setdefault(without[0] or "its trials keep none", []).append(side)
    text = "; ".join(f"{' and '.join(without)}: {reason}" for reason, without in sides_by_reason.items())
    return Note(code="metric-unusable", text=f"no floor of {text}") if sides_by_reason else None
