"""From data to an outcome, by the rule of docs/design.md; recomputable anywhere, byte for byte.

Nothing here measures, and nothing is random: an outcome is a function of the run's manifest and its records.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfgate import stats
from perfgate.attribution import Attribution, attribute
from perfgate.cautions import cell_cautions, clocks_differ, gpu_outcomes, side_cautions
from perfgate.envelope import judge_envelope
from perfgate.metrics import KINDS, METRICS, Kind, Metric, split_name, trial_value
from perfgate.outcome import (
    WORST_FIRST,
    CellOutcome,
    GateOutcome,
    GpuOutcome,
    MetricOutcome,
    Note,
    Outcome,
    Verdict,
    worst,
)
from perfgate.pattern import DecodeSteps
from perfgate.plan import Cell, GatePlan, Plan
from perfgate.record import Failure, Record, Run, Trial, record_digest
from perfgate.subject import Role

LEAST_REMAINDER = 1e-6
"""What a throughput floor leaves of the base at least: a floor beyond the base is a huge slowdown, no infinity."""


@dataclass(frozen=True)
class Series:
    """The values of one gated metric, in base units.

    Args:
        gate: Margins and their place.
        base: A value a trial.
        head: Likewise; in a paired series entry i of both belongs to pair i.
        schedule: The looks of a paired series; ``None`` for an unpaired one.
        missing: Why there are no values, where there are none.
    """

    gate: GatePlan
    base: tuple[float, ...] = ()
    head: tuple[float, ...] = ()
    schedule: stats.Schedule | None = None
    missing: Note | None = None

    @property
    def metric(self) -> Metric:
        """The gated metric."""
        return self.gate.gate.measured

    @property
    def fault(self) -> Note | None:
        """Why these values cannot be judged; a value that is zero, negative or not finite has no ratio."""
        code = "no-slack" if self.metric.signed else "non-finite"
        if self.missing is not None:
            return self.missing
        for role, values in (("base", self.base), ("head", self.head)):
            for value in values:
                if not _positive(value):
                    return Note(code=code, text=f"{role} has the value {value}")
        return None

    @property
    def ignorable(self) -> float:
        """The gate's margin, or its floor where that is the larger slowdown: up to a floor nothing is a regression."""
        return max(self.gate.gate.ignorable, self._floor_slowdown())

    @property
    def must_catch(self) -> float:
        """The gate's margin, or its floor where that is the larger slowdown: below a floor nothing need be caught."""
        return max(self.gate.gate.must_catch, self._floor_slowdown())

    def _floor_slowdown(self) -> float:
        """The floor as a ratio minus one; 0 without one."""
        floor = self.gate.gate.floor_value
        if not floor or self.fault or not self.base:
            return 0.0
        # The first look's base fixes the margins for good, so that later pairs cannot move them.
        base = _geometric_mean(self.base[: self.schedule.looks[0]] if self.schedule else self.base)
        if self.metric.better == "lower":
            return floor / base
        return base / max(base - floor, base * LEAST_REMAINDER) - 1


def judge_series(series: Sequence[Series], alpha: float, beta: float) -> tuple[GateOutcome, ...]:
    """Judge all gates of a run together: Holm's family is everything that can block it.

    Gates without data stay in the family with p = 1, so that losing a measurement never loosens another gate.
    """
    looks = [_looks(one) for one in series]
    p = [found[-1].p if found else 1.0 for found in looks]
    rejected = stats.holm(p, alpha)
    return tuple(
        _gate_outcome(one, found, _Levels(rejected[n], stats.holm_level(p, n, alpha), beta))
        for n, (one, found) in enumerate(zip(series, looks, strict=True))
    )


def judge(run: Run, records: Mapping[str, Record], perfgate: str) -> Outcome:
    """Judge a run from its manifest and the records there are, by cell_id; ``perfgate`` is the version judging."""
    cells = run.plan.cells
    found = [records.get(cell.cell_id) for cell in cells]
    if "head" not in run.subjects:
        outcomes = tuple(_one_sided(cell, record) for cell, record in zip(cells, found, strict=True))
    else:
        both = zip(cells, found, strict=True)
        series = [_paired_series(gate, record) for cell, record in both for gate in cell.gates]
        judged = iter(judge_series(series, run.plan.alpha, run.plan.beta))
        outcomes = tuple(
            _cell_outcome(cell, record, tuple(next(judged) for _ in cell.gates), traced=not run.quick)
            for cell, record in zip(cells, found, strict=True)
        )
    if not run.quick:
        return judge_cells(run.name, perfgate, run.plan, outcomes)
    closed = tuple(cell.model_copy(update={"next_look": None, "next_traced_look": None}) for cell in outcomes)
    reason = Note(code="quick-run", text="one trial a subject was measured")
    return judge_cells(run.name, perfgate, run.plan, closed, (reason,))


def judge_cells(
    name: str, perfgate: str, plan: Plan, cells: tuple[CellOutcome, ...], reasons: tuple[Note, ...] = ()
) -> Outcome:
    """The outcome of a run whose cells are judged: the worst of them."""
    verdict = worst(cell.verdict for cell in cells)
    return Outcome(
        run=name, perfgate=perfgate, verdict=verdict, exit_status=WORST_FIRST[verdict], alpha=plan.alpha,
        beta=plan.beta, cells=cells, reasons=reasons,
    )  # fmt: skip


def judge_advisory(name: str, perfgate: str, plan: Plan, cell: CellOutcome, reason: Note) -> Outcome:
    """Wrap a comparison whose data were not taken in pairs: the verdict is printed and never blocks."""
    if cell.verdict == "not-measured":
        return judge_cells(name, perfgate, plan, (cell,), (reason,))
    advisory = cell.model_copy(update={"verdict": "advisory"})
    outcome = judge_cells(name, perfgate, plan, (advisory,), (reason,))
    return outcome.model_copy(update={"would_be": cell.verdict})


def compare_sides(base: tuple[Record, Role], head: tuple[Record, Role], plan: Plan) -> CellOutcome:
    """One side of one record against one side of another, unpaired; the caller has checked that they are comparable."""
    timed, traced = ((base[0].judged_trials(base[1], kind), head[0].judged_trials(head[1], kind)) for kind in KINDS)
    cell = head[0].cell
    gates = judge_series([_unpaired_series(gate, base, head) for gate in cell.gates], plan.alpha, plan.beta)
    gpus = gpu_outcomes(*timed)
    gates, reasons = _at_the_same_clocks(gates, {"timed": gpus, "traced": gpu_outcomes(*traced)})
    found: list[Verdict] = []
    cautions = list(side_cautions(timed, traced))
    if cell.kernels is not None and all(traced):
        envelope = judge_envelope(cell.kernels, *map(_decoded, traced))
        reasons, cautions = (*reasons, *envelope.reasons), [*cautions, *envelope.cautions]
        found.append(envelope.verdict)
    b, h = ([*one, *other] for one, other in zip(timed, traced, strict=True))
    stops = (Note(code=r.stopped.code, text=r.stopped.text) for r, _ in (base, head) if r.stopped)
    return CellOutcome(
        name=cell.name,
        cell_id=cell.cell_id,
        record=f"{record_digest(base[0])}:{base[1]} {record_digest(head[0])}:{head[1]}",
        verdict=worst([*(gate.verdict for gate in gates), *found]),
        pairs=0,
        next_look=None,
        versions={"base": _versions(b), "head": _versions(h)},
        gates=gates,
        ungated=tuple(_ungated(cell, b, h)),
        gpus=gpus,
        reasons=(*stops, *reasons),
        cautions=tuple(cautions),
    )


@dataclass(frozen=True)
class _Levels:
    """What the rule says of one gate given all others: rejected by Holm, at which threshold; and beta."""

    rejected: bool
    block_level: float
    beta: float


def _looks(series: Series) -> tuple[stats.Look, ...]:
    if series.fault or not (series.base and series.head):
        return ()
    if series.schedule is not None:
        d = stats.log_ratios(series.base, series.head, series.metric.sign)
        return stats.looks(d, series.schedule, series.ignorable, series.must_catch)
    fewer = min(len(series.base), len(series.head))
    if fewer < 2:  # noqa: PLR2004 (one trial has no spread)
        return ()
    estimate = stats.difference_estimate(stats.logs(series.base), stats.logs(series.head), series.metric.sign)
    return (stats.unpaired_look(estimate, fewer, series.ignorable, series.must_catch),)


def _gate_outcome(series: Series, looks: tuple[stats.Look, ...], levels: _Levels) -> GateOutcome:
    used = looks[-1].pairs if looks and series.schedule else None
    blank = GateOutcome(
        **_both_sides(series.metric, series.base[:used], series.head[:used]).model_dump(),
        ignorable=series.ignorable,
        must_catch=series.must_catch,
        floor=series.gate.gate.floor_value,
        where=series.gate.where,
        kind=series.metric.kind,
        verdict="inconclusive",
        block_level=levels.block_level,
    )
    if series.fault is not None:
        return blank.model_copy(update={"verdict": "not-measured", "reasons": (series.fault,)})
    if not looks:
        measured = min(len(series.base), len(series.head))
        first = series.schedule.looks[0] if series.schedule else 2
        note = Note(code="too-few-pairs", text=f"{measured} measured, the first look comes at {first}")
        return blank.model_copy(update={"reasons": (note,)})
    return _decide(series, looks, levels, blank)


def _decide(series: Series, looks: tuple[stats.Look, ...], levels: _Levels, blank: GateOutcome) -> GateOutcome:
    """The rule itself: regressed is tested before pass, and neither is inconclusive."""
    look, metric = looks[-1], series.metric
    estimate = look.estimate
    low = estimate.lower(levels.block_level * look.block_weight)
    high = estimate.upper(levels.beta * look.pass_weight)
    verdict: Verdict = "inconclusive"
    if levels.rejected:
        verdict = "regressed"
    elif look.q <= levels.beta:
        verdict = "improved" if stats.to_ratio(high) < -series.ignorable else "pass"
    own_low, own_high = sorted((metric.sign * low, metric.sign * high))
    return blank.model_copy(
        update={
            "verdict": verdict,
            "pairs": look.pairs,
            "passed_at": next((one.pairs for one in looks if one.q <= levels.beta), None),
            "change_low": _ratio_or_none(own_low),
            "change_high": _ratio_or_none(own_high),
            "p": look.p,
            "q": look.q,
            "detectable": _detectable(series, look, levels),
            "pair_sd": estimate.standard_error * math.sqrt(look.pairs) if series.schedule else None,
            "reasons": (_undecided(series, low, high),) if verdict == "inconclusive" else (),
            "cautions": tuple(_gate_cautions(series, look, verdict)),
        }
    )


def _detectable(series: Series, look: stats.Look, levels: _Levels) -> float | None:
    """At this look or, where it cannot block, at the first one that can, with the spread seen so far."""
    estimate, weight = look.estimate, look.block_weight
    if weight == 0 and series.schedule is not None:
        pairs, weight = series.schedule.first_blocking or (look.pairs, 0.0)
        estimate = estimate.with_pairs(look.pairs, pairs)
    return stats.detectable(estimate, levels.block_level * weight, series.ignorable, 1 - levels.beta)


def _undecided(series: Series, low: float, high: float) -> Note:
    blocking = (
        f"its lower bound {_percent(low)} is not above {series.ignorable * 100:.4g} %"
        if math.isfinite(low)
        else f"no look blocks before {stats.FIRST_BLOCKING_PAIRS} pairs"
    )
    passing = f"the slowdown's upper bound {_percent(high)} is not below {series.must_catch * 100:.4g} %"
    return Note(code="undecided", text=f"{passing}, so it does not pass; {blocking}, so it does not block")


def _gate_cautions(series: Series, look: stats.Look, verdict: Verdict) -> Iterator[Note]:
    gate, mean = series.gate.gate, look.estimate.mean
    if verdict == "pass" and mean > math.log1p(series.ignorable):
        text = f"worse by {_percent(mean)}: less than must_catch, more than ignorable"
        yield Note(code="slower-than-ignorable", text=text)
    elif verdict == "pass" and mean > math.log1p(gate.ignorable):
        yield Note(code="below-floor", text=f"worse by {_percent(mean)}, less than the floor of {gate.floor}")
    if series.schedule is None:
        return
    d = stats.log_ratios(series.base, series.head, series.metric.sign)[: look.pairs]
    centre = stats.hodges_lehmann(d)
    if abs(stats.to_ratio(centre) - stats.to_ratio(mean)) > (gate.must_catch - gate.ignorable) / 2:
        text = (
            f"by their mean the pairs are {_percent(mean)} worse, by their Hodges-Lehmann estimate {_percent(centre)}"
        )
        yield Note(code="estimates-disagree", text=text)
    for role, values in (("base", series.base), ("head", series.head)):
        split = stats.two_modes(stats.logs(values[: look.pairs]))
        # Modes closer than this cannot hide a mean at must_catch among restarts that are as fast as the base.
        if split is not None and split[1] >= math.log1p(gate.must_catch) - math.log1p(gate.ignorable):
            size, distance = split
            text = f"{size} of {look.pairs} restarts of {role} lie {_percent(distance)} above the others"
            yield Note(code="mode-share", text=text)


def _paired_series(gate: GatePlan, record: Record | None) -> Series:
    """A look added later widens the schedule of every gate of its cell; the weights still sum to at most 1."""
    metric = gate.gate.measured
    if record is None:
        return Series(gate, missing=Note(code="not-started", text="no trial of this cell was taken"))
    schedule = record.schedule(metric.kind)
    pairs = record.pairs(metric.kind)
    values = [(metric.summarise(base), metric.summarise(head)) for base, head in pairs]
    whole = [(base, head) for base, head in values if base is not None and head is not None]
    if len(whole) < len(values):
        text = f"{len(values) - len(whole)} of {len(values)} pairs carry no {metric.name}"
        missing = _role_gone(metric, *zip(*pairs, strict=True)) or Note(code="metric-missing", text=text)
        return Series(gate, schedule=schedule, missing=missing)
    return Series(gate, tuple(b for b, _ in whole), tuple(h for _, h in whole), schedule)


def _unpaired_series(gate: GatePlan, base: tuple[Record, Role], head: tuple[Record, Role]) -> Series:
    metric = gate.gate.measured
    sides = [record.judged_trials(role, metric.kind) for record, role in (base, head)]
    b, h = (tuple(v for trial in side if (v := metric.summarise(trial)) is not None) for side in sides)
    if not all(sides):
        return Series(gate, missing=Note(code="metric-missing", text=f"a side has no valid {metric.kind} trial"))
    if (len(b), len(h)) != tuple(map(len, sides)):
        missing = Note(code="metric-missing", text=f"some trials carry no {metric.name}")
        return Series(gate, missing=_role_gone(metric, *sides) or missing)
    return Series(gate, b, h)


def _role_gone(metric: Metric, base: Sequence[Trial], head: Sequence[Trial]) -> Note | None:
    """Says which side runs no kernel of the gated role: no fault of the measurement, but what it found.

    A role that no trial runs at all is none that went away.
    """
    _, role = split_name(metric.name)
    without = [[t for t in side if t.decode and role not in t.decode.role_ns] for side in (base, head)]
    if role is None or sum(map(len, without)) in (0, len(base) + len(head)):
        return None
    sides = zip(("base", "head"), without, (base, head), strict=True)
    found = [f"{name} in {len(gone)} of {len(side)} traced trials" for name, gone, side in sides if gone]
    return Note(code="role-gone", text=f"no kernel of role {role} runs on {' and on '.join(found)}")


def _cell_outcome(cell: Cell, record: Record | None, gates: tuple[GateOutcome, ...], *, traced: bool) -> CellOutcome:
    """One cell of a paired run; ``traced``: whether traced trials are due where it has a ``kernels:`` block."""
    if record is None:
        reason = Note(code="not-started", text="no trial of this cell was taken")
        return _empty_cell(cell, "not-measured", tuple(map(_unmeasured, gates)), reason)
    pairs, traced_pairs = record.pairs("timed"), record.pairs("traced")
    base, head = [b for b, _ in pairs], [h for _, h in pairs]
    traced_sides = [b for b, _ in traced_pairs], [h for _, h in traced_pairs]
    gpus = gpu_outcomes(base, head)
    gates, reasons = _at_the_same_clocks(gates, {"timed": gpus, "traced": gpu_outcomes(*traced_sides)})
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
    outcome = CellOutcome(
        name=cell.name,
        cell_id=cell.cell_id,
        record=record_digest(record),
        verdict=worst([*(gate.verdict for gate in gates), *found]),
        pairs=len(pairs),
        next_look=None,
        traced_pairs=len(traced_pairs),
        versions={role: _versions([t for t in record.trials if t.subject == role]) for role in record.subjects},
        gates=gates,
        ungated=tuple(_ungated(cell, base + traced_sides[0], head + traced_sides[1])),
        gpus=gpus,
        attribution=_attribution(pairs, traced_pairs),
        reasons=reasons,
        cautions=tuple(cautions),
    )
    looks = {
        "next_look": _next_look(record, outcome, "timed"),
        "next_traced_look": _next_look(record, outcome, "traced"),
    }
    return outcome.model_copy(update=looks)


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


def _at_the_same_clocks(
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


def _one_sided(cell: Cell, record: Record | None) -> CellOutcome:
    if record is None:
        return _empty_cell(cell, "not-measured", (), Note(code="not-started", text="no trial of this cell was taken"))
    trials, traced = record.judged_trials("base"), record.judged_trials("base", "traced")
    words = f" and {len(traced)} traced" if traced else ""
    note = Note(code="no-counterpart", text=f"{len(trials)} trials{words} of one subject were measured")
    verdict: Verdict = "not-comparable"
    if record.stopped is not None:
        note = Note(code=record.stopped.code, text=record.stopped.text)
        verdict = _verdict_of_stop(record.stopped)
    sides = {
        "record": record_digest(record),
        "versions": {"base": _versions([*trials, *traced])},
        "ungated": tuple(_ungated(cell, [*trials, *traced], ())),
        "gpus": gpu_outcomes(trials or traced, ()),
    }
    return _empty_cell(cell, verdict, (), note).model_copy(update=sides)


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
            row = _both_sides(metric, *([v for v in side if v is not None] for side in sides))
            if row.base is not None:
                yield row


def _both_sides(metric: Metric, base: Sequence[float], head: Sequence[float]) -> MetricOutcome:
    """Geometric means, so that the change of the means is the mean of the pairs' log ratios; else there is none."""
    b, h = (_geometric_mean(side) if side and all(map(_positive, side)) else None for side in (base, head))
    change = h / b - 1 if b and h else None
    if metric.signed and change is None:
        b, h = (math.fsum(side) / len(side) if side else None for side in (base, head))
    return MetricOutcome(metric=metric.name, unit=metric.unit, better=metric.better, base=b, head=h, change=change)


def _versions(trials: Sequence[Trial]) -> dict[str, str]:
    return next((dict(trial.versions) for trial in trials if trial.versions), {})


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(math.log(v) for v in values) / len(values))


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _ratio_or_none(log_ratio: float) -> float | None:
    value = stats.to_ratio(log_ratio)
    return value if math.isfinite(log_ratio) and math.isfinite(value) else None


def _percent(log_ratio: float) -> str:
    return f"{stats.to_ratio(log_ratio) * 100:+.3g} %"
