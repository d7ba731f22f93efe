"""Judge one measured side against stored baselines: unpaired, one look, the same margins and verdicts.

The unit is the visit (:mod:`perfgate.stats.prediction`). From four visits on a gate can block; with two or three its
verdict is advice by the same figures, with one it is advice that takes restarts for visits, as if machines never
shifted. All gates of a run are one family of Holm's; those that only advise stay in it with p = 1, so that they
loosen no other.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perfgate import __version__, stats
from perfgate.baseline.lineage import Baseline, Build, outputs
from perfgate.baseline.store import find
from perfgate.judge.cautions import cell_cautions, gpu_outcomes, side_cautions, why_missing
from perfgate.judge.cell_verdict import at_the_same_clocks, judge_cells, one_sided
from perfgate.judge.comparison import _read_sides
from perfgate.judge.counter_checks import judge_counters_alone
from perfgate.judge.envelope import judge_alone
from perfgate.judge.outcome import (
    BaselineOutcome,
    CellOutcome,
    GateOutcome,
    GpuOutcome,
    MetricOutcome,
    Note,
    Outcome,
    Verdict,
    VisitsOutcome,
    worst,
)
from perfgate.judge.rule import Series, both_sides, judge_series
from perfgate.judge.setting import placed
from perfgate.machine.fingerprint import anonymous, comparable
from perfgate.metrics.catalogue import METRICS, split_name
from perfgate.metrics.trial import KINDS, Kind, Role, Trial
from perfgate.record.identity import Measured, profiled_otherwise
from perfgate.record.run_record import Record, Run
from perfgate.scenario.plan import Cell, GatePlan, Plan
from perfgate.stats.prediction import FIRST_BLOCKING_VISITS, Prediction, predict
from perfgate.units import plural


@dataclass(frozen=True)
class Side:
    """One side of a record, held against a baseline.

    Args:
        record: Its record.
        role: Which side.
    """

    record: Record
    role: Role

    def trials(self, kind: Kind) -> list[Trial]:
        """Its valid trials of a kind."""
        return self.record.judged_trials(self.role, kind)

    @property
    def short_of(self) -> tuple[tuple[Kind, int, int], ...]:
        """Kinds of which fewer trials were taken than are due: taken and due; empty where it was measured to its end.

        A quick look and a run that was cut short, before its traced or counted trials too, have some.
        """
        cell = self.record.cell
        due = cell.due_in_pairs if self.record.alone is None else cell.due_alone
        found = ((kind, self.record.measured(kind), due(kind)) for kind in KINDS)
        return tuple(one for one in found if one[1] < one[2])


@dataclass(frozen=True)
class VisitSeries(Series):
    """A gated metric of one visit against those of a baseline's visits: ``base`` holds a mean a visit.

    Args:
        visits: The restarts of each of the baseline's visits.
    """

    visits: tuple[tuple[float, ...], ...] = ()

    def predictions(self, margin: float | None = None) -> list[Prediction]:
        """How far the head lies off, or off each margin that binds; none with one visit, or values beyond judging."""
        if self.fault or len(self.visits) < 2 or not self.head:  # noqa: PLR2004 (one visit has no spread)
            return []
        restarts = [value for visit in self.visits for value in visit]
        ends = np.cumsum([len(visit) for visit in self.visits])[:-1]
        rows = np.zeros((1, len(restarts))) if margin is None else self.slower_by(margin, restarts)
        head, sign = stats.logs(self.head), self.metric.sign
        return [predict(np.split(stats.logs(restarts) + sign * row, ends), head, sign, self.resolution) for row in rows]

    def looks(self) -> tuple[stats.Look, ...]:
        """The one look, which spends both error rates whole; with one visit that at its restarts."""
        gate = self.gate.gate
        off, over, under = (
            [one.estimate() for one in self.predictions(margin)] for margin in (None, gate.ignorable, gate.must_catch)
        )
        if off:
            return (stats.single_look(len(self.visits), off[0], over, under, (1.0, 1.0)),)
        if self.fault or len(self.visits) != 1:
            return ()
        return Series(self.gate, self.visits[0], self.head, resolution=self.resolution).looks()

    @property
    def advises(self) -> bool:
        """Whether there are too few visits for a verdict that blocks."""
        return len(self.visits) < FIRST_BLOCKING_VISITS

    @property
    def in_the_family(self) -> Series:
        """As Holm's family counts it: what only advises, without data."""
        return (
            Series(self.gate, missing=self.missing or Note(code="advisory-few-visits", text="it only advises"))
            if self.advises
            else self
        )


@dataclass(frozen=True)
class _Held:
    """A cell's side, the baseline found for it, and what is said where there is none that fits."""

    cell: Cell
    side: Side | None
    baseline: Baseline | None
    outcome: CellOutcome | None


def judge_against(
    run: Run, records: Mapping[str, Record], baselines: Mapping[str, Sequence[Baseline]], perfgate: str
) -> Outcome:
    """Judge a run of one side against the baselines that it keeps, by cell_id; ``perfgate`` is the version judging."""
    sides = {cell_id: Side(record, record.alone or "head") for cell_id, record in records.items()}
    return judge_sides(run.name, perfgate, run.plan, sides, baselines)


def judge_sides(
    name: str,
    perfgate: str,
    plan: Plan,
    sides: Mapping[str, Side],
    baselines: Mapping[str, Sequence[Baseline]],
) -> Outcome:
    """Judge sides of records against baselines, both by cell_id.

    A side that was cut short gets no verdict, lest somebody stops where it suits.

    Args:
        name: What the outcome is of.
        perfgate: Version that judges.
        plan: Cells and error rates; a cell without a side was not started.
        sides: What was measured.
        baselines: What each may be held against: of other machines too.
    """
    held = [_hold(cell, sides.get(cell.cell_id), baselines.get(cell.cell_id, ())) for cell in plan.cells]
    series = [
        _series(gate, one.side, one.baseline) if one.side and one.baseline else VisitSeries(gate)
        for one in held
        for gate in one.cell.gates
    ]
    judged = iter(_judge(series, plan))
    cells = tuple(
        placed(
            _cell(one, tuple(next(judged) for _ in one.cell.gates)),
            {"head": (one.side.record, one.side.role)} if one.side else {},
            name,
        )
        for one in held
    )
    outcome = judge_cells(name, perfgate, plan, cells)
    if outcome.verdict != "advisory":
        return outcome
    return outcome.model_copy(update={"would_be": worst(_would_be(gate) for cell in cells for gate in cell.gates)})


def _would_be(gate: GateOutcome) -> Verdict:
    return gate.would_be or gate.verdict


def _judge(series: Sequence[VisitSeries], plan: Plan) -> Iterator[GateOutcome]:
    blocking = judge_series([one.in_the_family for one in series], plan.alpha, plan.beta)
    advice = judge_series(series, plan.alpha, plan.beta)
    for one, verdict, word in zip(series, blocking, advice, strict=True):
        found = word if one.advises else verdict
        if found.verdict in ("not-measured", "not-comparable"):
            yield found
            continue
        reach = _reach(one, found, plan)
        # More pairs are no remedy here.
        reasons = tuple(
            note.model_copy(update={"code": "undecided-by-baseline"}) if note.code == "undecided" else note
            for note in found.reasons
        )
        blind: dict[str, object] = {} if reach.visit_sd is not None else {"detectable": None}
        found = found.model_copy(update={"visits": reach, "reasons": reasons, **blind})
        advisory: dict[str, object] = {"verdict": "advisory", "would_be": found.verdict}
        yield found.model_copy(update=advisory) if one.advises else found


def _reach(series: VisitSeries, gate: GateOutcome, plan: Plan) -> VisitsOutcome:
    predictions = series.predictions(series.gate.gate.ignorable)
    if not predictions:
        return VisitsOutcome(visits=len(series.visits))
    prediction = max(predictions, key=lambda one: one.estimate().p_above(0.0))  # the one that is tested
    rates = (gate.block_level, series.ignorable, 1 - plan.beta)
    return VisitsOutcome(
        visits=prediction.visits,
        visit_sd=prediction.visit_sd,
        visits_to_halve=prediction.visits_to_halve(*rates),
        least_detectable=prediction.least_detectable(*rates),
    )


def _hold(cell: Cell, side: Side | None, baselines: Sequence[Baseline]) -> _Held:
    """Find the baseline that fits, or say why none does."""
    if side is None or side.record.stopped is not None:
        return _Held(cell, side, None, one_sided(cell, side.record if side else None))
    if side.short_of:
        short = " and ".join(f"{taken} of {due} {kind}" for kind, taken, due in side.short_of)
        of = "pairs" if side.record.alone is None else f"trials of the {side.role}"
        note = Note(code="too-few-pairs", text=f"{short} {of}, cut short")
        return _Held(cell, side, None, _without_baseline(cell, side, "not-measured", note))
    misfits = [(one, _misfits(cell, side, one)) for one in baselines]
    fitting = next((one for one, found in misfits if not found), None)
    if fitting is not None:
        return _Held(cell, side, fitting, None)
    if not misfits:
        note = Note(code="no-baseline", text=f"{cell.name} has none yet, on any machine")
    else:
        elsewhere = all(_elsewhere(side, one) and not one.cell.differences(Measured.of(cell)) for one in baselines)
        code = "different-machines" if elsewhere else "different-cells"
        lines = [f"{one.machine_class}: {'; '.join(found)}" for one, found in misfits]
        note = Note(code=code, text="\n".join([f"none of {len(misfits)} baselines fits:", *lines]))
    return _Held(cell, side, None, _without_baseline(cell, side, "not-comparable", note))


def _misfits(cell: Cell, side: Side, baseline: Baseline) -> tuple[str, ...]:
    """Why a side must not be held against a baseline, in words: baseline first, then what was measured here."""
    here = Measured.of(cell)
    found = [
        *baseline.cell.differences(here),
        *_elsewhere(side, baseline),
    ]
    kinds = [gate.gate.measured.kind for gate in cell.gates]
    return tuple(dict.fromkeys([*found, *profiled_otherwise(kinds, baseline.cell, here)]))


def _elsewhere(side: Side, baseline: Baseline) -> list[str]:
    """What tells the machines apart; nothing where they may be compared."""
    return [text for visit in side.record.visits for text in comparable(baseline.machine, anonymous(visit.machine))]


def _series(gate: GatePlan, side: Side, baseline: Baseline) -> VisitSeries:
    metric = gate.gate.measured
    trials = side.trials(metric.kind)
    visits = baseline.values(metric.name)
    values = [metric.summarise(trial) for trial in trials]
    head = tuple(value for value in values if value is not None)
    if not visits:
        return VisitSeries(gate, missing=Note(code="no-baseline", text=f"no visit carries {metric.name}"))
    if not trials or len(head) < len(values):
        _, role = split_name(metric.name)
        gone = role is not None and bool(trials)
        text = f"the baseline runs kernels of role {role}, the head none" if gone else f"trials carry no {metric.name}"
        missing = Note(code="role-gone" if gone else "metric-missing", text=text)
        return VisitSeries(gate, missing=why_missing(metric, (), trials) or missing)
    means = tuple(_mean(visit) for visit in visits)
    # A baseline keeps values and no trials: its instrument is taken for the one at hand.
    step = max(map(metric.resolution, trials))
    return VisitSeries(gate, means, head, visits=tuple(visits), resolution=step)


def _mean(values: Sequence[float]) -> float:
    """Geometric, so that the mean of visits is that of their logarithms; what has no logarithm is its own fault."""
    if min(values) <= 0:
        return min(values)
    return statistics.geometric_mean(values)


def _cell(held: _Held, gates: tuple[GateOutcome, ...]) -> CellOutcome:
    if held.outcome is not None or held.baseline is None or held.side is None:
        assert held.outcome is not None  # noqa: S101 (one of the two)
        return held.outcome
    cell, side, baseline = held.cell, held.side, held.baseline
    trials = side.trials("timed"), side.trials("traced")
    gpus = gpu_outcomes((), trials[0] or trials[1])
    before = _usual_gpu(baseline)
    if before is not None:
        gpus = {"base": before, **gpus}
    gates, reasons = at_the_same_clocks(
        tuple(map(_absent, gates)), {"timed": gpus, "traced": gpus if not trials[0] else {}}
    )
    clear: dict[str, object] = {"would_be": None}
    gates = tuple(gate if gate.verdict == "advisory" else gate.model_copy(update=clear) for gate in gates)
    found: list[Verdict] = [gate.verdict for gate in gates]
    cautions = [*_cautions(side, baseline)]
    if cell.kernels is not None and (trials[1] or cell.kernels.declares_envelope):
        envelope = judge_alone(cell.kernels, [trial.decode for trial in trials[1] if trial.decode])
        reasons, cautions = (*reasons, *envelope.reasons), [*cautions, *envelope.cautions]
        found.append(envelope.verdict)
    counted = [trial.counted for trial in side.trials("counted") if trial.counted]
    due = counted or any(one.metrics for one in cell.counters)
    counters = judge_counters_alone(cell.counters, counted) if due else None
    if counters is not None:
        reasons, cautions = (*reasons, *counters.reasons), [*cautions, *counters.cautions]
        found.append(counters.verdict)
    few = [gate for gate in gates if gate.verdict == "advisory"]
    if few:
        least = min(gate.visits.visits for gate in few if gate.visits)
        reasons = (*reasons, Note(code="advisory-few-visits", text=_too_few(least)))
    measured = one_sided(cell, side.record).model_copy(update={"reasons": ()})
    return measured.model_copy(
        update={
            "verdict": worst(found),
            "versions": {"base": baseline.build.versions, "head": Build.of(side.record, side.role).versions},
            "gates": gates,
            "ungated": tuple(_ungated(cell, side, baseline)),
            "gpus": gpus,
            "counters": counters,
            "baseline": BaselineOutcome(
                digest=baseline.tip,
                machine_class=baseline.machine_class,
                visits=len(baseline.visits),
                first_utc=min(visit.t0_utc for visit in baseline.visits),
                last_utc=max(visit.t0_utc for visit in baseline.visits),
            ),
            "reasons": reasons,
            "cautions": tuple(cautions),
        }
    )


def _absent(gate: GateOutcome) -> GateOutcome:
    """A gate that the baseline knows nothing of has nothing to be compared with; that is no fault of measuring."""
    if any(reason.code == "no-baseline" for reason in gate.reasons):
        return gate.model_copy(update={"verdict": "not-comparable"})
    return gate


def _too_few(visits: int) -> str:
    more = f"{plural(visits, 'visit')} of the {FIRST_BLOCKING_VISITS} that a verdict needs"
    alone = "; from one visit nobody knows how far visits spread, so only restarts are counted"
    return more + alone * (visits == 1)


def _without_baseline(cell: Cell, side: Side, verdict: Verdict, note: Note) -> CellOutcome:
    """What was measured all the same."""
    rows = tuple(
        both_sides(metric, (), found)
        for metric in METRICS.values()
        if (found := [v for t in side.trials(metric.kind) if (v := metric.summarise(t)) is not None])
    )
    measured = one_sided(cell, side.record)
    gpus = gpu_outcomes((), side.trials("timed") or side.trials("traced"))
    update = {"verdict": verdict, "ungated": rows, "reasons": (note,), "gpus": gpus}
    return measured.model_copy(update=update)


def _ungated(cell: Cell, side: Side, baseline: Baseline) -> Iterator[MetricOutcome]:
    gated = {gate.gate.metric for gate in cell.gates}
    for name, metric in METRICS.items():
        values = [metric.summarise(trial) for trial in side.trials(metric.kind)]
        visits = baseline.values(name)
        known = [value for value in values if value is not None]
        if name not in gated and visits and known:
            yield both_sides(metric, [_mean(visit) for visit in visits], known)


def _usual_gpu(baseline: Baseline) -> GpuOutcome | None:
    """What the GPUs did in the visit whose clock lies in the middle."""
    known = sorted((visit.gpu for visit in baseline.visits if visit.gpu), key=lambda gpu: gpu.sm_mhz)
    return known[(len(known) - 1) // 2] if known else None


def _cautions(side: Side, baseline: Baseline) -> Iterator[Note]:
    timed, traced = side.trials("timed"), side.trials("traced")
    if side.record.alone and timed:
        yield from cell_cautions(side.record, [], timed)
    else:
        yield from side_cautions(([], timed), ([], traced))
    before = {visit.outputs for visit in baseline.visits if visit.outputs}
    now = outputs(timed or traced)
    if before and now and now not in before:
        yield Note(code="outputs-differ", text="the head generated other tokens than any visit of the baseline")
    if baseline.build.same(Build.of(side.record, side.role)):
        yield Note(code="same-subject", text="by all that can be told, the build that was promoted last")


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
    read = _read_sides(word)
    cells = tuple(record.cell for record, _ in read.values())
    found = find(file, cells)
    baselines = {cell_id: [one.baseline for one in stored] for cell_id, stored in found.items()}
    plan = Plan(cells=cells, seed=next(iter(read.values()))[0].seed)
    sides = {cell_id: Side(record, role) for cell_id, (record, role) in read.items()}
    return judge_sides(f"{word} {file}", __version__, plan, sides, baselines)
