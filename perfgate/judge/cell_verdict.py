"""From data to an outcome, by the rule of docs/design.md; recomputable anywhere, byte for byte.

Nothing here measures, and nothing is random: an outcome is a function of the run's manifest and its records.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from perfgate.judge.cautions import (
    cell_cautions,
    clocks_differ,
    floors,
    gpu_outcomes,
    launches_differ,
    side_cautions,
    why_missing,
)
from perfgate.judge.counter_checks import count_one_side, judge_counters
from perfgate.judge.envelope import judge_envelope
from perfgate.judge.outcome import (
    WORST_FIRST,
    CellOutcome,
    CountersOutcome,
    GateOutcome,
    GpuOutcome,
    MetricOutcome,
    Note,
    Outcome,
    Verdict,
    worst,
)
from perfgate.judge.rule import Series, both_sides, judge_series
from perfgate.judge.setting import placed
from perfgate.metrics.catalogue import METRICS, trial_value
from perfgate.metrics.trial import KINDS, Failure, Kind, Role, Trial
from perfgate.project.subjects import revisions
from perfgate.record.run_record import Record, Run, record_digest
from perfgate.scenario.plan import Cell, GatePlan, Plan
from perfgate.trace.attribution import Attribution, attribute
from perfgate.trace.decode_step import DecodeSteps


def judge(run: Run, records: Mapping[str, Record], perfgate: str) -> Outcome:
    """Judge a run from its manifest and the records there are, by cell_id; ``perfgate`` is the version judging."""
    cells = run.plan.cells
    found = [records.get(cell.cell_id) for cell in cells]
    if run.alone is not None:
        outcomes = tuple(one_sided(cell, record) for cell, record in zip(cells, found, strict=True))
    else:
        both = zip(cells, found, strict=True)
        series = [_paired_series(gate, record) for cell, record in both for gate in cell.gates]
        judged = iter(judge_series(series, run.plan.alpha, run.plan.beta))
        outcomes = tuple(
            _cell_outcome(cell, record, tuple(next(judged) for _ in cell.gates), traced=not run.quick)
            for cell, record in zip(cells, found, strict=True)
        )
    outcomes = tuple(
        placed(one, {role: (record, role) for role in record.subjects} if record else {}, run.name)
        for one, record in zip(outcomes, found, strict=True)
    )
    if not run.quick:
        return judge_cells(run.name, perfgate, run.plan, outcomes)
    closed = tuple(
        cell.model_copy(update={"next_look": None, "next_traced_look": None, "next_counted_look": None})
        for cell in outcomes
    )
    reason = Note(code="quick-run", text=f"one trial a subject was measured{_implausible(closed)}")
    return judge_cells(run.name, perfgate, run.plan, closed, (reason,))


def _implausible(cells: Sequence[CellOutcome]) -> str:
    """Names the metric in which two single trials differ by more than a factor of two: rather a disturbance."""
    rows = [
        (abs(math.log(row.head) - math.log(row.base)), row.metric, row.change)
        for cell in cells
        for row in (*cell.gates, *cell.ungated)
        if row.change is not None and row.base and row.head
    ]
    distance, metric, change = max(rows, default=(0.0, "", 0.0))
    if distance < math.log(2):
        return ""
    return f"; {metric} differs by {change * 100:+.0f} %, which a disturbed trial explains as well as a build"


def judge_cells(
    name: str, perfgate: str, plan: Plan, cells: tuple[CellOutcome, ...], reasons: tuple[Note, ...] = ()
) -> Outcome:
    """The outcome of a run whose cells are judged: the worst of them."""
    verdict = worst(cell.verdict for cell in cells)
    return Outcome(
        run=name, perfgate=perfgate, verdict=verdict, exit_status=WORST_FIRST[verdict], alpha=plan.alpha,
        beta=plan.beta, cells=cells, reasons=reasons,
    )  # fmt: skip


def judge_advisory(name: str, perfgate: str, plan: Plan, cells: tuple[CellOutcome, ...], reason: Note) -> Outcome:
    """Wrap comparisons whose data were not taken in pairs: the verdict is printed and never blocks."""
    cells = tuple(cell.model_copy(update={"gates": tuple(map(_unpaired, cell.gates))}) for cell in cells)
    advisory = [c if c.verdict == "not-measured" else c.model_copy(update={"verdict": "advisory"}) for c in cells]
    outcome = judge_cells(name, perfgate, plan, tuple(advisory), (reason,))
    if outcome.verdict != "advisory":
        return outcome
    return outcome.model_copy(update={"would_be": worst(cell.verdict for cell in cells)})


def _unpaired(gate: GateOutcome) -> GateOutcome:
    """A gate whose way on is not that of a run: no pair can be added to what was measured apart."""
    code = {"undecided": "undecided-unpaired"}
    notes = (note.model_copy(update={"code": code.get(note.code, note.code)}) for note in gate.reasons)
    return gate.model_copy(update={"reasons": tuple(notes)})


def compare_sides(base: tuple[Record, Role], head: tuple[Record, Role], plan: Plan) -> CellOutcome:
    """One side of one record against one side of another, unpaired; the caller has checked that they are comparable."""
    timed, traced, counted = (
        (base[0].judged_trials(base[1], kind), head[0].judged_trials(head[1], kind)) for kind in KINDS
    )
    cell = head[0].cell
    gates = judge_series([_unpaired_series(gate, base, head) for gate in cell.gates], plan.alpha, plan.beta)
    gpus = gpu_outcomes(*timed)
    gates, reasons = at_the_same_clocks(gates, {"timed": gpus, "traced": gpu_outcomes(*traced)})
    found: list[Verdict] = []
    cautions = list(side_cautions(timed, traced))
    if cell.kernels is not None and all(traced):
        envelope = judge_envelope(cell.kernels, *map(_decoded, traced))
        reasons, cautions = (*reasons, *envelope.reasons), [*cautions, *envelope.cautions]
        found.append(envelope.verdict)
    due = all(counted) or any(one.metrics for one in cell.counters)
    counters = _counters(cell, counted) if due else None
    if counters is not None:
        reasons, cautions = (*reasons, *counters.reasons), [*cautions, *counters.cautions]
        found.append(counters.verdict)
    b, h = ([*one, *other] for one, other in zip(timed, traced, strict=True))
    stops = (Note(code=r.stopped.code, text=r.stopped.text) for r, _ in (base, head) if r.stopped)
    compared = CellOutcome(
        name=cell.name,
        cell_id=cell.cell_id,
        record=f"{record_digest(base[0])}:{base[1]} {record_digest(head[0])}:{head[1]}",
        verdict=worst([*(gate.verdict for gate in gates), *found]),
        pairs=0,
        next_look=None,
        versions={"base": _versions(b), "head": _versions(h)},
        built_from=revisions({"base": base[0].subjects[base[1]], "head": head[0].subjects[head[1]]}),
        gates=gates,
        ungated=tuple(_ungated(cell, b, h)),
        gpus=gpus,
        counters=counters,
        floors=floors(*timed),
        reasons=(*stops, *reasons),
        cautions=tuple(cautions),
    )
    return placed(compared, {"base": base, "head": head})


def _paired_series(gate: GatePlan, record: Record | None) -> Series:
    """A look added later widens the schedule of every gate of its cell; the weights still sum to at most 1."""
    metric = gate.gate.measured
    if record is None:
        return Series(gate, missing=Note(code="not-started", text="no trial of this cell was taken"))
    schedule = record.schedule(metric.kind)
    pairs = record.pairs(metric.kind)
    differ = launches_differ(metric, [b for b, _ in pairs], [h for _, h in pairs]) if pairs else None
    if differ is not None:
        return Series(gate, schedule=schedule, missing=differ)
    values = [(metric.summarise(base), metric.summarise(head)) for base, head in pairs]
    whole = [(base, head) for base, head in values if base is not None and head is not None]
    if len(whole) < len(values):
        text = f"{len(values) - len(whole)} of {len(values)} pairs carry no {metric.name}"
        missing = why_missing(metric, *zip(*pairs, strict=True)) or Note(code="metric-missing", text=text)
        return Series(gate, schedule=schedule, missing=missing)
    step = max((metric.resolution(trial) for pair in pairs for trial in pair), default=0.0)
    return Series(gate, tuple(b for b, _ in whole), tuple(h for _, h in whole), schedule, resolution=step)


def _unpaired_series(gate: GatePlan, base: tuple[Record, Role], head: tuple[Record, Role]) -> Series:
    metric = gate.gate.measured
    sides = [record.judged_trials(role, metric.kind) for record, role in (base, head)]
    b, h = (tuple(v for trial in side if (v := metric.summarise(trial)) is not None) for side in sides)
    if not all(sides):
        return Series(gate, missing=Note(code="metric-missing", text=f"a side has no valid {metric.kind} trial"))
    if (differ := launches_differ(metric, *sides)) is not None:
        return Series(gate, missing=differ)
    if (len(b), len(h)) != tuple(map(len, sides)):
        missing = Note(code="metric-missing", text=f"some trials carry no {metric.name}")
        return Series(gate, missing=why_missing(metric, *sides) or missing)
    return Series(gate, b, h, resolution=max(metric.resolution(trial) for side in sides for trial in side))


def _cell_outcome(cell: Cell, record: Record | None, gates: tuple[GateOutcome, ...], *, traced: bool) -> CellOutcome:
    """One cell of a paired run; ``traced``: whether traced trials are due where it has a ``kernels:`` block."""
    if record is None:
        reason = Note(code="not-started", text="no trial of this cell was taken")
        return _empty_cell(cell, "not-measured", tuple(map(_unmeasured, gates)), reason)
    pairs, traced_pairs = record.pairs("timed"), record.pairs("traced")
    base, head = [b for b, _ in pairs], [h for _, h in pairs]
    traced_sides = [b for b, _ in traced_pairs], [h for _, h in traced_pairs]
    gpus = gpu_outcomes(base, head)
    gates, reasons = at_the_same_clocks(gates, {"timed": gpus, "traced": gpu_outcomes(*traced_sides)})
    found: list[Verdict] = []
    cautions = list(cell_cautions(record, base, head))
    if record.stopped is not None:
        gates = tuple(gate if gate.pairs else _unmeasured(gate) for gate in gates)
        reasons = (*reasons, Note(code=record.stopped.code, text=record.stopped.text))
        found.append(_verdict_of_stop(record.stopped))
    if cell.kernels is not None and traced and not (record.stopped and not traced_pairs):
        envelope = judge_envelope(cell.kernels, *map(_decoded, traced_sides))
        reasons, cautions = (*reasons, *envelope.reasons), [*cautions, *envelope.cautions]
        found.append(envelope.verdict)
    counted_pairs = record.pairs("counted")
    counters = None
    if cell.counters and traced and not (record.stopped and not counted_pairs):
        counters = _counters(cell, ([b for b, _ in counted_pairs], [h for _, h in counted_pairs]))
        reasons, cautions = (*reasons, *counters.reasons), [*cautions, *counters.cautions]
        found.append(counters.verdict)
    outcome = CellOutcome(
        name=cell.name,
        cell_id=cell.cell_id,
        record=record_digest(record),
        verdict=worst([*(gate.verdict for gate in gates), *found]),
        pairs=len(pairs),
        next_look=None,
        traced_pairs=len(traced_pairs),
        counted_pairs=len(counted_pairs),
        versions={role: _versions([t for t in record.trials if t.subject == role]) for role in record.subjects},
        built_from=revisions(record.subjects),
        gates=gates,
        ungated=tuple(_ungated(cell, base + traced_sides[0], head + traced_sides[1])),
        gpus=gpus,
        floors=floors(base, head),
        attribution=_attribution(pairs, traced_pairs),
        counters=counters,
        reasons=reasons,
        cautions=tuple(cautions),
    )
    looks = {
        "next_look": _next_look(record, outcome, "timed"),
        "next_traced_look": _next_look(record, outcome, "traced"),
        "next_counted_look": _next_look(record, outcome, "counted"),
    }
    return outcome.model_copy(update=looks)


def _counters(cell: Cell, sides: tuple[Sequence[Trial], Sequence[Trial]]) -> CountersOutcome:
    base, head = ([trial.counted for trial in side if trial.counted] for side in sides)
    return judge_counters(cell.counters, base, head)


def _decoded(side: Sequence[Trial]) -> list[DecodeSteps]:
    return [trial.decode for trial in side if trial.decode]


def _next_look(record: Record, outcome: CellOutcome, kind: Kind) -> int | None:
    """The next look at pairs of a kind; ``None`` where it could decide nothing, or none is left."""
    if record.stopped is not None or not outcome.undecided_in(kind):
        return None
    return next((look for look in record.schedule(kind).looks if look > record.measured(kind)), None)


def _attribution(pairs: Sequence[tuple[Trial, Trial]], traced: Sequence[tuple[Trial, Trial]]) -> Attribution | None:
    """Where the steps' difference comes from, beside the one measured in timed trials."""
    steps = [(trial_value("itl_median", base), trial_value("itl_median", head)) for base, head in pairs]
    known = [head - base for base, head in steps if base is not None and head is not None]
    measured_s = math.fsum(known) / len(known) if known else None
    return attribute([(base.decode, head.decode) for base, head in traced if base.decode and head.decode], measured_s)


def at_the_same_clocks(
    gates: tuple[GateOutcome, ...], gpus: Mapping[Kind, Mapping[Role, GpuOutcome]]
) -> tuple[tuple[GateOutcome, ...], tuple[Note, ...]]:
    """The gates as they are; not comparable, with the reason, where the sides' trials of a kind had other clocks."""
    notes = []
    for kind, sides in gpus.items():
        note, looked_at = clocks_differ(sides), [gate for gate in gates if gate.kind == kind and gate.pairs]
        if note is not None and looked_at:
            spoilt: dict[str, object] = {"verdict": "not-comparable", "reasons": ()}
            gates = tuple(gate.model_copy(update=spoilt) if gate in looked_at else gate for gate in gates)
            notes.append(note)
    return gates, tuple(notes)


def _unmeasured(gate: GateOutcome) -> GateOutcome:
    """A gate of a cell that could not be measured: the cell's own reason says why, once."""
    own = tuple(note for note in gate.reasons if note.code not in ("too-few-pairs", "not-started"))
    return gate.model_copy(update={"verdict": "not-measured", "reasons": own})


def _verdict_of_stop(stopped: Failure) -> Verdict:
    return "internal-error" if stopped.code == "internal-error" else "not-measured"


def one_sided(cell: Cell, record: Record | None) -> CellOutcome:
    """One side's cell by itself: what was measured, and nothing to compare it with; or why it was not measured."""
    if record is None:
        return _empty_cell(cell, "not-measured", (), Note(code="not-started", text="no trial of this cell was taken"))
    role = record.alone or "base"
    trials, traced = record.judged_trials(role), record.judged_trials(role, "traced")
    counted = [trial.counted for trial in record.judged_trials(role, "counted") if trial.counted]
    words = "".join(f" and {len(taken)} {kind}" for kind, taken in (("traced", traced), ("counted", counted)) if taken)
    note = Note(code="no-counterpart", text=f"{len(trials)} trials{words} of one subject were measured")
    verdict: Verdict = "not-comparable"
    if record.stopped is not None:
        note = Note(code=record.stopped.code, text=record.stopped.text)
        verdict = _verdict_of_stop(record.stopped)
    seen = trials or traced
    found = {
        "record": record_digest(record),
        "versions": {role: _versions([*trials, *traced])},
        "built_from": revisions(record.subjects),
        "ungated": tuple(_ungated(cell, [*trials, *traced] if role == "base" else (), ())),
        "gpus": gpu_outcomes(seen, ()) if role == "base" else gpu_outcomes((), seen),
        "counters": count_one_side(counted) if counted else None,
        "floors": floors(trials, ()) if role == "base" else floors((), trials),
    }
    return _empty_cell(cell, verdict, (), note).model_copy(update=found)


def _empty_cell(cell: Cell, verdict: Verdict, gates: tuple[GateOutcome, ...], reason: Note) -> CellOutcome:
    return CellOutcome(
        name=cell.name, cell_id=cell.cell_id, record="", verdict=verdict, pairs=0, next_look=None, versions={},
        gates=gates, ungated=(), reasons=(reason,),
    )  # fmt: skip


def _ungated(cell: Cell, base: Sequence[Trial], head: Sequence[Trial]) -> Iterator[MetricOutcome]:
    """Every metric that no gate names, each from the trials of its kind."""
    gated = {gate.gate.metric for gate in cell.gates} if head else set()
    for name, metric in METRICS.items():
        if name not in gated:
            sides = [[metric.summarise(trial) for trial in side if trial.kind == metric.kind] for side in (base, head)]
            row = both_sides(metric, *([v for v in side if v is not None] for side in sides))
            if row.base is not None:
                yield row


def _versions(trials: Sequence[Trial]) -> dict[str, str]:
    return next((dict(trial.versions) for trial in trials if trial.versions), {})
