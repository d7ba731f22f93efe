"""Judge one measured side against stored baselines: unpaired, one look, the same margins.

Visits never block: from four on a gate says that the head would regress, and pairs with the build that was promoted
last decide that (:mod:`perfgate.baseline.confirming`). They pass from eight on. Everything else is advice by the same
figures, with one visit advice that takes restarts for visits, as if machines never shifted. All gates of a run are one
family of Holm's; those with fewer than four visits stay in it with p = 1, so that they loosen no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from perfgate.baseline.exact_profile import Profile
from perfgate.baseline.lineage import Baseline
from perfgate.baseline.store import find, is_baseline
from perfgate.baseline.visit_evidence import VisitEvidence
from perfgate.baseline.visit_series import VisitSeries
from perfgate.judge.cell_facts import BaselineOutcome
from perfgate.judge.cell_verdict import judge_cells, judge_together
from perfgate.judge.comparison import read_sides
from perfgate.judge.evidence import RecordSide
from perfgate.judge.machine_states import follows_states
from perfgate.judge.outcome import PASSED, CellOutcome, GateOutcome, Outcome, VisitsOutcome, worst
from perfgate.judge.rule import judge_series
from perfgate.judge.state_cautions import within_states
from perfgate.models import Note
from perfgate.record.run_record import Record, Run
from perfgate.scenario.plan import Plan
from perfgate.stats.prediction import FIRST_PASSING_VISITS
from perfgate.units import plural

WOULD_REGRESS: Final = "would-regress"


def judge_against(
    run: Run,
    records: Mapping[str, Record],
    baselines: Mapping[str, Sequence[Baseline]],
    profiles: Mapping[str, Sequence[Profile]] = MappingProxyType({}),
) -> Outcome:
    """Judge a run of one side, or of heads beside their anchor, against the baselines that it keeps, by cell_id.

    What its host calls is held against the profiles that it keeps.
    """
    evidence, stores = [], {"baselines": baselines, "profiles": profiles}
    for cell in run.cells:
        record = records.get(cell.cell_id)
        held: dict[str, Any] = {name: stored.get(cell.cell_id, ()) for name, stored in stores.items()}
        for head in run.compared:
            if record is not None:
                held["sides"] = {"head": RecordSide(record.of(head), record.alone or "head", fixed=True)}
            evidence.append(VisitEvidence(cell=cell, run=run.name, head=head, kept=record, **held))
    return _judge_visits(run.name, run.plan, evidence)


def judge_sides(
    name: str,
    plan: Plan,
    sides: Mapping[str, RecordSide],
    baselines: Mapping[str, Sequence[Baseline]],
) -> Outcome:
    """Judge sides of records against baselines, both by cell_id."""
    evidence = []
    for cell in plan.cells:
        side, held = sides.get(cell.cell_id), baselines.get(cell.cell_id, ())
        evidence.append(VisitEvidence(cell=cell, sides={"head": side} if side else {}, run=name, baselines=held))
    return _judge_visits(name, plan, evidence)


def _judge_visits(name: str, plan: Plan, evidence: Sequence[VisitEvidence]) -> Outcome:
    judged = judge_together(evidence, plan, _judge)
    cells = tuple(
        _beside_its_baseline(piece, _in_states(piece, cell, plan.beta))
        for piece, cell in zip(evidence, judged, strict=True)
    )
    would_be = worst(gate.would_be or gate.verdict for cell in cells for gate in cell.gates)
    return judge_cells(name, plan, cells, would_be=would_be)


def _judge(series: Sequence[VisitSeries], alpha: float, beta: float) -> Iterator[GateOutcome]:
    blocking = judge_series([gated.in_the_family for gated in series], alpha, beta)
    advice = judge_series(series, alpha, beta)
    for gated, blocked, advised in zip(series, blocking, advice, strict=True):
        gate = advised if gated.advises else blocked
        if any(reason.code == "no-baseline" for reason in gate.reasons):
            # Nothing to be compared with: the measurement is not at fault.
            gate = gate.model_copy(update={"verdict": "not-comparable"})
        if gate.verdict in ("not-measured", "not-comparable"):
            yield gate
            continue
        changes: dict[str, object] = {"visits": (reach := _reach(gated, gate, beta))}
        if reach.visit_sd is None:
            changes["detectable"] = None
        final = gate.verdict == "inconclusive" or (gate.verdict in PASSED and gated.may_pass)
        if gated.advises or not final:
            changes |= {"verdict": "advisory", "would_be": gate.verdict}
        if gate.verdict == "regressed" and not gated.advises:
            text = f"by {plural(len(gated.visits), 'visit')} of the baseline, and visits alone never block"
            changes["reasons"] = (*gate.reasons, Note(code=WOULD_REGRESS, text=text))
        # More pairs would not help here.
        yield gate.recoded("undecided", "advisory-unpaired").model_copy(update=changes)


def would_regress(gate: GateOutcome) -> bool:
    """Whether visits say that a gate regressed, so that pairs must decide."""
    return any(reason.code == WOULD_REGRESS for reason in gate.reasons)


def _reach(series: VisitSeries, gate: GateOutcome, beta: float) -> VisitsOutcome:
    predictions = series.predictions(series.gate.gate.ignorable)
    if not predictions:
        return VisitsOutcome(visits=len(series.visits))
    prediction = max(
        predictions, key=lambda forecast: float(forecast.estimate().p_above(0.0))
    )  # the one that is tested
    rates = (gate.block_level, series.ignorable, 1 - beta)
    return VisitsOutcome(
        visits=prediction.visits,
        visit_sd=float(prediction.visit_sd),
        visits_to_halve=prediction.visits_to_halve(*rates),
        least_detectable=prediction.least_detectable(*rates),
    )


def _beside_its_baseline(evidence: VisitEvidence, cell: CellOutcome) -> CellOutcome:
    """The outcome with what it was held against, and why its verdict only advises."""
    if (baseline := evidence.baseline) is None:
        return cell
    advisory = [gate for gate in cell.gates if gate.verdict == "advisory" and not would_regress(gate)]
    few = [(gate.visits.visits, gate.metric) for gate in advisory if gate.visits]
    advice = (Note(code="advisory-unpaired", text=_too_few(*min(few), evidence)),) if few else ()
    held = BaselineOutcome(
        digest=baseline.tip,
        machine_class=baseline.machine_class,
        visits=len(baseline.occupations),
        first_utc=min(visit.t0_utc for visit in baseline.visits),
        last_utc=max(visit.t0_utc for visit in baseline.visits),
        anchor=evidence.anchor.title if evidence.anchor else "",
    )
    return cell.model_copy(update={"baseline": held, "reasons": (*cell.reasons, *advice)})


def _in_states(evidence: VisitEvidence, cell: CellOutcome, beta: float) -> CellOutcome:
    """The outcome with the states that its pairs were compared in; a head that they lean to does not pass."""
    limits = [plan.gate.must_catch for plan in evidence.cell.gates if follows_states(plan.gate.measured)]
    if (pairs := evidence.in_states) is None or not cell.gates or not limits:
        return cell
    seen = pairs.outcome(min(limits), beta)
    passes = any((gate.would_be or gate.verdict) in PASSED for gate in cell.gates)
    notes = (within_states(seen),) if passes and not seen.everywhere else ()
    fields: dict[str, object] = {"states": seen, "cautions": (*cell.cautions, *notes)}
    if (lean := pairs.lean) is not None:
        open_ = {"would_be": "inconclusive"}
        advised = tuple(gate.model_copy(update=open_) if gate.would_be in PASSED else gate for gate in cell.gates)
        verdict = cell.verdict if cell.verdict == "advisory" else worst((cell.verdict, "inconclusive"))
        fields |= {"verdict": verdict, "gates": advised, "reasons": (*cell.reasons, lean)}
    return cell.model_copy(update=fields)


def _too_few(visits: int, metric: str, evidence: VisitEvidence) -> str:
    seen = evidence.baseline.occupations if evidence.baseline else ()
    carry = sum(bool(occupation.values(metric, evidence.anchor)) for occupation in seen)
    more = f"{plural(visits, 'visit')} of the {FIRST_PASSING_VISITS} that a pass needs"
    cards = f"; {carry - visits} more share a card or a day with them, and those of this card count, or one of each"
    without = f"; {len(seen) - carry} more say nothing of {metric}"
    alone = "; from one visit nobody knows how far visits spread, so only restarts are counted"
    return more + cards * (carry > visits) + without * (len(seen) > carry) + alone * (visits == 1)


def compare_files(word: str, file: Path, finder: Callable[[str], str]) -> Outcome | None:
    """:func:`compare_with_baseline`, as one of the comparisons of ``perfgate compare``; ``None`` of another file."""
    return compare_with_baseline(finder(word), file) if is_baseline(file) else None


def compare_with_baseline(word: str, file: Path) -> Outcome:
    """Hold one side of what was measured against a stored baseline; from four visits on the verdict can block.

    Args:
        word: A record file or a run folder, with ``:base`` or ``:head`` behind it where it holds both sides; its gates
            are judged.
        file: The baseline's file.

    Raises:
        RecordError: The record cannot be read, or the baseline is broken.
        UsageError: There are two sides and the word does not say which.
    """
    sides = read_sides(word)
    cells = tuple(side.record.cell for side in sides.values())
    baselines = {cell_id: [entry.baseline for entry in stored] for cell_id, stored in find(file, cells).items()}
    plan = Plan(cells=cells, seed=next(iter(sides.values())).record.seed)
    return judge_sides(f"{word} {file}", plan, sides, baselines)
