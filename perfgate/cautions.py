"""What to know about a cell beside its gates: cautions about its trials, and what its GPUs did."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from perfgate import stats
from perfgate.metrics import Kind, format_value, trial_value
from perfgate.outcome import GpuOutcome, Note
from perfgate.record import Record, Trial
from perfgate.subject import Role, same_build
from perfgate.telemetry import GpuTelemetry, Spread

SLACK = "host_slack_per_step"
SLACK_LOSS_S = 20e-6
"""A smaller loss of slack is not worth a word: a handful of launching calls, of a few microseconds each."""
SLACK_LEVEL = 0.01
"""One-sided level of the paired t bound that a loss of slack must exceed: said of one A/A run in a hundred at most."""
SLACK_SHARE = 0.1
"""What few pairs must lose of the base's slack: traced A/A pairs on an H200 spread by 2.3 % (docs/measurements.md)."""
FEW_PAIRS = 4
"""Fewer pairs than this have no spread worth a bound."""
SAME_CLOCK = 0.01
"""By how much the sides' SM clocks may differ, as a share; a step bound by memory moves less than its clock does."""


def cell_cautions(record: Record, base: Sequence[Trial], head: Sequence[Trial]) -> Iterator[Note]:
    """Everything about the trials of a paired record that a reader of its verdict should know."""
    if same_build(record.subjects.get("base"), record.subjects.get("head")):
        yield Note(code="same-subject", text="an A/A run")
    kinds: tuple[tuple[Kind, str], ...] = (("timed", ""), ("traced", "traced ones "), ("counted", "counted ones "))
    for kind, word in kinds:
        dropped = list(record.dropped_pairs(kind).values())
        if dropped:
            causes = ", ".join(f"{t.failure.code} in trial {t.index} ({t.subject})" for t in dropped if t.failure)
            yield Note(code="dropped-pairs", text=f"{len(dropped)} {word}dropped: {causes}")
    traced = record.pairs("traced")
    yield from side_cautions((base, head), ([b for b, _ in traced], [h for _, h in traced]))
    yield from _trace_cautions(traced)


def _trace_cautions(pairs: Sequence[tuple[Trial, Trial]]) -> Iterator[Note]:
    """What the traces themselves say, in the words of the first that does, and what became of the host's slack."""
    traces = [trial.decode for pair in pairs for trial in pair if trial.decode]
    said: dict[str, list[str]] = {}
    for trace in traces:
        for code, words in dict(trace.cautions).items():
            said.setdefault(code, []).append(words)
    for code, texts in sorted(said.items()):
        yield Note(code=code, text=f"in {len(texts)} of {len(traces)} traces, the first: {texts[0]}")
    lost = _slack_lost(pairs)
    if lost is not None:
        yield lost


def _slack_lost(pairs: Sequence[tuple[Trial, Trial]]) -> Note | None:
    """The caution of a head whose host is less far ahead, by more than :data:`SLACK_LOSS_S` and than chance.

    Where a gate rests on traces there are pairs enough for a t bound; else there is one, and only a loss counts that no
    A/A pair comes near.
    """
    slacks = [(trial_value(SLACK, base), trial_value(SLACK, head)) for base, head in pairs]
    known = [(base, head) for base, head in slacks if base is not None and head is not None]
    losses = [base - head for base, head in known]
    if not losses or not _beyond_chance(losses, statistics.fmean(base for base, _ in known)):
        return None
    shown = [format_value(statistics.fmean(side), "s") for side in zip(*known, strict=True)]
    left = "which no step shows yet" if min(head for _, head in known) > 0 else "and the device now waits for it"
    less = format_value(statistics.fmean(losses), "s")
    text = f"base {shown[0]}, head {shown[1]}: the host has {less} a step less to spare"
    pairs_taken = f"{len(known)} traced pair{'s' * (len(known) > 1)}"
    return Note(code="host-slack-lost", text=f"{text} ({pairs_taken}), {left}")


def _beyond_chance(losses: Sequence[float], slack: float) -> bool:
    if len(losses) < FEW_PAIRS:
        return statistics.fmean(losses) > max(SLACK_LOSS_S, SLACK_SHARE * slack)
    loss = stats.mean_estimate(losses)
    return loss.mean > SLACK_LOSS_S and loss.lower(SLACK_LEVEL) > 0


Sides = tuple[Sequence[Trial], Sequence[Trial]]
"""Trials of the base and of the head."""


def side_cautions(timed: Sides, traced: Sides) -> Iterator[Note]:
    """What the trials of two sides tell, wherever they come from."""
    # Digests of one kind only: another kind warms up for longer, so that its iterations have other prompts.
    yield from _output_cautions(*(timed if all(timed) else traced))
    yield from _trial_cautions(*([*one, *other] for one, other in zip(timed, traced, strict=True)))


def _output_cautions(base: Sequence[Trial], head: Sequence[Trial]) -> Iterator[Note]:
    """Compare digests of the same iteration, whose prompts are the same on both sides and in every trial."""
    sides = [_digests_by_iteration(side) for side in (base, head)]
    both = sides[0].keys() & sides[1].keys()
    different = [n for n in sorted(both) if not sides[0][n] & sides[1][n]]
    if different:
        text = f"in {len(different)} of {len(both)} iterations no head trial generated what a base trial did"
        yield Note(code="outputs-differ", text=text)
    for role, side in zip(("base", "head"), sides, strict=True):
        unstable = sum(len(digests) > 1 for digests in side.values())
        if unstable:
            yield Note(code="outputs-unstable", text=f"{role}: {unstable} of {len(side)} iterations")


def _digests_by_iteration(trials: Iterable[Trial]) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for trial in trials:
        for n, iteration in enumerate(trial.iterations):
            found.setdefault(n, set()).add(iteration.tokens_digest)
    return found


def _trial_cautions(base: Sequence[Trial], head: Sequence[Trial]) -> Iterator[Note]:
    for code, count in sorted(Counter(code for t in (*base, *head) for code in t.cautions).items()):
        yield Note(code=code, text=f"in {count} of {len(base) + len(head)} trials")
    for role, side in (("base", base), ("head", head)):
        changed = _changed_versions(side)
        if changed:
            yield Note(code="subject-changed", text=f"{role}: {changed}")


def _changed_versions(trials: Sequence[Trial]) -> str:
    """``vllm 1.0, then 1.1`` for every package that was not the same in all trials; empty where all were."""
    names = sorted({name for trial in trials for name in trial.versions})
    seen = {name: list(dict.fromkeys(trial.versions.get(name, "none") for trial in trials)) for name in names}
    return "; ".join(f"{name} {', then '.join(found)}" for name, found in seen.items() if len(found) > 1)


def clocks_differ(gpus: Mapping[Role, GpuOutcome]) -> Note | None:
    """Says so where the sides ran at different clocks: a difference in time is then none of the builds.

    Medians over the trials are compared, so that one disturbed pair takes nothing from the others.
    """
    if len(gpus) < 2:  # noqa: PLR2004 (base and head)
        return None
    base, head = gpus["base"], gpus["head"]
    clocks = (("SM clock in decode", base.sm_mhz, head.sm_mhz), ("memory clock", base.memory_mhz, head.memory_mhz))
    apart = [
        f"median {name}: base {one} MHz, head {other} MHz"
        for name, one, other in clocks
        if one is not None and other is not None and abs(other - one) > SAME_CLOCK * one
    ]
    return Note(code="clocks-differ", text="; ".join(apart)) if apart else None


def gpu_outcomes(base: Sequence[Trial], head: Sequence[Trial]) -> dict[Role, GpuOutcome]:
    """What the GPUs of each side did; a side without telemetry is left out."""
    sides: tuple[tuple[Role, Sequence[Trial]], ...] = (("base", base), ("head", head))
    found = ((role, _gpu_outcome([trial.telemetry for trial in side])) for role, side in sides)
    return {role: outcome for role, outcome in found if outcome is not None}


def _gpu_outcome(trials: Sequence[Sequence[GpuTelemetry]]) -> GpuOutcome | None:
    """One side's GPUs in a few figures; ``None`` where no SM clock is known.

    A trial's clock is that of its slowest GPU, which the others wait for.
    """
    seen = [one for gpus in trials for one in gpus]
    decode = [_slowest(one.decode_sm_mhz or _median(one.sm_mhz) for one in gpus) for gpus in trials]
    memory = [_slowest(_median(one.memory_mhz) for one in gpus) for gpus in trials]
    known = [mhz for mhz in decode if mhz is not None]
    if not known:
        return None
    powers = [one.power_mw.median / 1000 for one in seen if one.power_mw]
    known_memory = [mhz for mhz in memory if mhz is not None]
    return GpuOutcome(
        sm_mhz=statistics.median_low(known),
        sm_low_mhz=min(one.sm_mhz.low for one in seen if one.sm_mhz),
        sm_high_mhz=max(one.sm_mhz.high for one in seen if one.sm_mhz),
        memory_mhz=statistics.median_low(known_memory) if known_memory else None,
        power_w=statistics.median(powers) if powers else None,
        temperature_c=max((one.temperature_c.high for one in seen if one.temperature_c), default=None),
        events=tuple(sorted({name for one in seen for name in one.reasons} - {"idle", "clocks-setting"})),
    )


def _median(spread: Spread | None) -> int | None:
    return None if spread is None else spread.median


def _slowest(clocks: Iterable[int | None]) -> int | None:
    return min((mhz for mhz in clocks if mhz is not None), default=None)
