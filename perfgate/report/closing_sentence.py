"""The sentence that says the verdict of an outcome and what it means: the first of its story."""

from __future__ import annotations

from collections.abc import Iterator

from perfgate.judge.outcome import CellOutcome, Outcome, states_told
from perfgate.judge.running import is_running
from perfgate.metrics.catalogue import METRICS
from perfgate.metrics.kinds import TRIAL_KINDS
from perfgate.report.outcome_lines import detectable_of, figures, gate_name
from perfgate.stats.prediction import FIRST_PASSING_VISITS
from perfgate.units import percent, signed_percent

EXACTLY = {
    "outside-envelope": "kernels outside the envelope",
    "counter-differs": "a counter",
    "counter-out-of-bounds": "a counter",
    "work-added": "the work of a step",
}
"""What has regressed, by the reason that says so."""


def closing(outcome: Outcome) -> str:
    """One plain sentence with the verdict and what it means."""
    reasons = {reason.code for cell in outcome.cells for reason in cell.reasons}
    several = len(outcome.cells) > 1
    blocked = [f"{cell.name} {what}" if several else what for cell in outcome.cells for what in _blocked(cell)]
    kernels_only = not any(cell.gates for cell in outcome.cells)
    if outcome.verdict == "not-comparable" and "no-counterpart" in reasons:
        return "MEASURED ONE SIDE: there is nothing to compare it with yet; give its record to perfgate compare."
    if outcome.verdict == "not-comparable" and "no-baseline" in reasons:
        return "NOT COMPARABLE: there is no baseline yet; perfgate baseline promote makes this run the first."
    if is_running(outcome):
        return "RUNNING: these are figures so far, and no verdict."
    stored = any(cell.baseline for cell in outcome.cells)
    running = any(note.code == "running-server" for note in outcome.reasons)
    apart = "each trial had started a server of its own" if running else "the trials had been taken in pairs"
    lacking = f"the baseline had {FIRST_PASSING_VISITS} visits" if stored else apart
    if outcome.verdict in ("advisory", "inconclusive") and (worse := [*_would_regress(outcome)]):
        clause = f"{', '.join(worse)} would regress by the baseline's visits, which never block; pairs decide"
        return f"{outcome.verdict.upper()}: {clause}."
    heads = len({cell.head for cell in outcome.cells})
    each = f" of each of {heads} heads, not of all together" if heads > 1 else ""
    rates = f"alpha {percent(outcome.alpha)} a run, beta {percent(outcome.beta)} a gate{each}"
    sentences = {
        "regressed": f"REGRESSED: {', '.join(blocked)} ({'exact' if kernels_only else rates}).",
        "pass": f"PASS{_exactly(outcome)}"
        if kernels_only
        else f"PASS: every gate excludes a slowdown of its must_catch margin{_within(outcome)} ({rates})."
        f"{_blunt(outcome)}",
        "improved": "PASS, IMPROVED: no gate is slower, at least one is faster beyond its ignorable margin"
        f"{_alone(outcome)} ({rates}).",
        "inconclusive": "INCONCLUSIVE: neither a regression nor its absence is established; this is not a pass.",
        "not-measured": "NOT MEASURED: there is no verdict, and no data is never a pass.",
        "not-comparable": "NOT COMPARABLE: the sides must not be compared, for the reasons listed.",
        "internal-error": "INTERNAL ERROR: perfgate failed; this is not a verdict.",
        "advisory": f"ADVISORY: would be {outcome.would_be} if {lacking}; nothing is blocked.",
    }
    return sentences[outcome.verdict]


def _would_regress(outcome: Outcome) -> Iterator[str]:
    """The gates that the visits of a baseline would block."""
    several = len(outcome.cells) > 1
    for cell in outcome.cells:
        for gate in cell.gates:
            if any(reason.code == "would-regress" for reason in gate.reasons):
                yield f"{cell.name if several else ''} {gate.metric} {signed_percent(gate.change)}".strip()


def _within(outcome: Outcome) -> str:
    """Where a pass holds, if it is not everywhere."""
    apart = any(cell.states and not cell.states.everywhere for cell in outcome.cells)
    return _alone(outcome) or (" in each state of the machine" if apart else "")


def _alone(outcome: Outcome) -> str:
    """In which state a pass holds, where that is one: the other has too few pairs for a word about it."""
    by_cell = {cell.name: [*states_told(cell.gates)] for cell in outcome.cells if cell.states}
    alone = {name: states[0] for name, states in by_cell.items() if len(states) == 1}
    if not alone:
        return ""
    if len(outcome.cells) == 1:
        return f" in the {next(iter(alone.values()))} state of the machine alone"
    named = (f"of {name} in the {state} state of the machine alone" for name, state in alone.items())
    return f", {', '.join(named)}"


def _exactly(outcome: Outcome) -> str:
    """What a pass without gates says."""
    cautions = {caution.code for cell in outcome.cells for caution in cell.cautions}
    if "work-changed" in cautions:
        return ", CHANGED: a step runs something else, at a price that the scenario ignores."
    if "engine-state-changed" in cautions:
        return ", CHANGED: the engine holds something else, which has no price in a step."
    rows = (row for cell in outcome.cells for row in cell.ungated)
    told_by = {METRICS[row.metric].kind for row in rows if row.metric in METRICS}
    exact = [kind for name, kind in TRIAL_KINDS.items() if kind.checks and name in told_by]
    return exact[0].closing if len(exact) == 1 and exact[0].closing else ": what repeats exactly is the same."


def _blocked(cell: CellOutcome) -> list[str]:
    """What regressed in a cell: its gates, then what is judged exactly."""
    gates = [f"{gate_name(gate)} {figures(gate)}" for gate in cell.gates if gate.verdict == "regressed"]
    return [*gates, *dict.fromkeys(EXACTLY[reason.code] for reason in cell.reasons if reason.code in EXACTLY)]


def _blunt(outcome: Outcome) -> str:
    """What passed gates could not have blocked reliably, though they would not have passed it either."""
    gates = [
        f"{gate_name(gate)} {percent(gate.must_catch)} to {detectable_of(gate)}"
        for cell in outcome.cells
        for gate in cell.gates
        if gate.detectable is not None and gate.detectable > gate.must_catch
    ]
    return f" Between must_catch and detectable a slowdown may end inconclusive: {', '.join(gates)}." if gates else ""
