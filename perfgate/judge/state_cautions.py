"""What a reader of a verdict should know of the states of the machine, beyond the gates."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from statistics import fmean, median

from perfgate.judge.cell_facts import StatesOutcome
from perfgate.judge.machine_states import STATES, Found, Labeller
from perfgate.judge.outcome import PASSED, GateOutcome, states_told
from perfgate.judge.slow_share import LEANS, discordant
from perfgate.metrics.trial import SETTLED, SLOWER, Trial
from perfgate.models import Note
from perfgate.stats import to_ratio, two_states
from perfgate.units import format_ns, percent, plural


def state_cautions(
    labeller: Labeller, seen: StatesOutcome | None, ignored: Found | None, gates: Sequence[GateOutcome], bound: float
) -> Iterator[Note]:
    """Of a cell whose timed trials were taken in pairs.

    Args:
        labeller: Of its pairs.
        seen: The states that were compared apart; ``None`` where none were.
        ignored: See :func:`perfgate.judge.state_series.ignored_states`.
        gates: As they were judged.
        bound: By what a p value of drawn orders is multiplied; nothing leans where orders were not drawn for each pair.
    """
    judged = states_told(gates)
    passed = any(gate.state and gate.verdict in PASSED for gate in gates)
    if seen and passed and not (seen.everywhere and len(judged) == len(STATES)):
        yield within_states(seen, judged)
    if ignored is not None:
        yield _ignored(ignored)
    yield from _many_levels(labeller)
    yield from _waits(labeller, bound)
    if seen is None and labeller.source == "probe":
        yield from _probe_apart(labeller, bound)


def within_states(seen: StatesOutcome, judged: Container[str] = STATES) -> Note:
    """What a pass within states does not exclude.

    Args:
        seen: The states.
        judged: Those of which something is said.
    """
    alone = [f"in the {state} state alone" for state in STATES if state in judged]
    few = [
        f"of the {state} one nothing is said ({plural(pairs, 'pair')} in common)"
        for state, pairs in seen.common.items()
        if state not in judged
    ]
    where = f"unchanged {' and '.join(alone) if few else 'within each state'}"
    still = f"by being slow more often the head could still lose up to {percent(seen.at_most)}"
    return Note(code="two-states", text="; ".join([where, *few, still]))


def _ignored(states: Found) -> Note:
    """States that no gate was split by, how often each build was in the slow one, and in how many pairs one more."""
    rows = states.shares
    base, head = (percent(fmean(row[n] for row in rows)) if rows else "unknown" for n in range(2))
    more, less = discordant(rows)
    often = f"the head more often in {plural(more, 'pair')}, less often in {less}"
    apart = f"{percent(to_ratio(states.gap))} apart, so all is compared as it is"
    text = f"{apart}; base {base} of the time slow, head {head}; {often}"
    return Note(code="two-states", text=text)


def _many_levels(labeller: Labeller) -> Iterator[Note]:
    """The probe reads three levels or more beside one build, of which states are two."""
    many = [
        f"{len(levels)} levels beside the {side}: "
        + ", ".join(f"{format_ns(ns)} in {plural(trials, 'trial')}" for ns, trials in levels)
        for side, levels in labeller.levels.items()
        if len(levels) > len(STATES)
    ]
    if many:
        text = f"of {plural(len(labeller.pairs), 'pair')} the probe reads {'; '.join(many)}"
        yield Note(code="two-states", text=text)


def _waits(labeller: Labeller, bound: float) -> Iterator[Note]:
    """Warm-up that waited for the GPU of one build rather than the other: what is judged shows nothing of it."""
    waited = [tuple(bool(trial.figures.get(SETTLED)) for trial in pair) for pair in labeller.pairs]
    head, base = waited.count((False, True)), waited.count((True, False))
    for side, more, less in (("head", head, base), ("base", base, head)):
        if bound * two_states.sign_test(more, less) <= LEANS:
            text = (
                f"warm-up waited for a fast GPU for the {side} alone in {plural(more, 'pair')}, for the other in {less}"
            )
            yield Note(code="two-states", text=text)


def _probe_apart(labeller: Labeller, bound: float) -> Iterator[Note]:
    """The probe is slower beside all trials of one build than beside any of the other, in more pairs than by chance."""
    base, head = ([_reading(pair[n]) for pair in labeller.pairs] for n in range(2))
    for side, slow, fast in (("head", head, base), ("base", base, head)):
        if bound * two_states.sign_test(len(slow), 0) <= LEANS and min(slow) > SLOWER * max(fast):
            longer, shorter = (format_ns(median(readings)) for readings in (slow, fast))
            text = f"the probe takes {longer} beside each trial of the {side}, and {shorter} beside the other: "
            text += "all is compared as it is"
            yield Note(code="two-states", text=text)


def _reading(trial: Trial) -> float:
    """The median reading of the slowest rank, in nanoseconds."""
    probes = [iteration.probe_ns for iteration in trial.iterations if iteration.probe_ns]
    return median(max(ranks) for probe in probes for ranks in (probe.before, probe.after))
