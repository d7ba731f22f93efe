"""From data to an outcome, by the rule of docs/design.md; recomputable anywhere, byte for byte.

Nothing here measures, and nothing is random: an outcome is a function of the run's manifest and its records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import chain, islice
from typing import Any

from perfgate import __version__, rooms
from perfgate.errors import Verdict
from perfgate.judge.cautions import clocks_differ, floor_by_side, head_is_favoured
from perfgate.judge.cell_facts import MetRequests
from perfgate.judge.evidence import Evidence, RecordSide
from perfgate.judge.outcome import WORST_FIRST, CellOutcome, Finding, GateOutcome, Outcome, worst
from perfgate.judge.rule import judge_series
from perfgate.judge.setting import setting_of
from perfgate.judge.slow_share import states_outcome
from perfgate.judge.state_cautions import state_cautions
from perfgate.judge.state_series import ignored_states
from perfgate.judge.ungated import ungated
from perfgate.judge.unused_path import idle_plugins
from perfgate.metrics.kinds import TRIAL_KINDS, of_kinds
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import CLOCKED, KINDS, Kind, key_of
from perfgate.models import Note
from perfgate.record.run_record import Record, Run
from perfgate.scenario.part import Part
from perfgate.scenario.plan import Cell, Plan
from perfgate.scenario.subject_words import revisions
from perfgate.units import plural


def judge(run: Run, records: Mapping[str, Record]) -> Outcome:
    """Judge a run from its manifest and the records there are, by cell_id."""
    names = {cell.name for cell in run.cells}
    compared = [
        evidence_of_run(run, cell, records.get(cell.cell_id) if cell.name in names else None, head)
        for cell in run.plan.cells
        for head in run.compared
    ]
    if run.part is not None:
        judged = judge_together(compared, run.plan, partial(judge_series, weights=_declared_shares(compared)))
        cells = tuple(cell for cell, evidence in zip(judged, compared, strict=True) if evidence.cell.name in names)
        return _of_a_part(judge_cells(run.name, run.plan, cells), run, run.part, records)
    cells = judge_together(compared, run.plan)
    if run.of_running_servers and run.alone is None:
        return judge_advisory(run.name, run.plan, cells, ONE_REPLICATE)
    if run.quick:
        told_once = (cell.model_copy(update={"gates": tuple(map(_without_looks, cell.gates))}) for cell in cells)
        return judge_cells(run.name, run.plan, tuple(told_once), (_of_a_quick_run(cells),))
    return judge_cells(run.name, run.plan, cells)


def _declared_shares(compared: Sequence[Evidence]) -> tuple[Fraction, ...]:
    """Each gate's share of alpha where machines measure parts of a plan: as many gates as the plan declares share it.

    A machine with two states has a cell's gates judged once a state. They share what the cell has, so that what is
    found on one machine never loosens or tightens what was decided on another: Holm over all parts rejects whatever
    Holm over one part rejected.
    """
    families = [(len(evidence.cell.gates), len(evidence.family)) for evidence in compared]
    return tuple(Fraction(declared, members) for declared, members in families for _ in range(members))


def _of_a_part(outcome: Outcome, run: Run, part: Part, records: Mapping[str, Record]) -> Outcome:
    """The outcome of a part, or of parts that were joined: missing parts and foreign ones never pass."""
    if not part.joined:
        text = f"{part.words} alone; the gates of the others count as undecided"
        return outcome.model_copy(update={"reasons": (Note(code="one-shard", text=text),)})
    missing = [number for number in range(1, len(part.shards) + 1) if number not in part.numbers]
    absent = {cell.name for cell in run.plan.cells if cell.cell_id not in records}
    notes = [
        Note(
            code="shard-missing", text=f"shard {number} of {len(part.shards)}: {plural(len(names), 'cell')}, {names[0]}"
        )
        for number in missing
        if (names := [name for name in part.shards[number - 1] if name in absent])
    ]
    verdict = worst((outcome.verdict, "not-measured")) if part.faults else outcome.verdict
    changes = {"verdict": verdict, "exit_status": WORST_FIRST[verdict], "reasons": (*part.faults, *notes, *part.aside)}
    return outcome.model_copy(update={**changes, "cells": tuple(_with_other_versions(outcome.cells))})


def _with_other_versions(cells: Iterable[CellOutcome]) -> Iterator[CellOutcome]:
    """The cells; a caution says where the first had other packages or files under one name, as on another machine."""
    first: dict[tuple[bool, str], tuple[str, dict[str, str]]] = {}
    read: dict[tuple[bool, str], tuple[str, str]] = {}
    for cell in cells:
        others = []
        is_served = cell.setting is not None and bool(cell.setting.load)
        for side, versions in cell.versions.items():
            if not versions:  # no trial told any
                continue
            label = cell.head if cell.head and side == "head" else side
            # A server's packages are asked by other means, which write some versions otherwise.
            where, earlier = first.setdefault((is_served, label), (cell.name, versions))
            for package in sorted(earlier.keys() | versions.keys()):
                here, there = versions.get(package, "none"), earlier.get(package, "none")
                if here != there:
                    others.append(f"{label}: {package} {here}, and {there} in {where}")
            files = cell.setting.subjects[side].files if cell.setting and side in cell.setting.subjects else ""
            where, there = read.setdefault((is_served, label), (cell.name, files)) if files else ("", "")
            if files != there:
                others.append(f"{label}: files {files}, and {there} in {where}")
        notes = (Note(code="subject-changed", text="; ".join(others)),) if others else ()
        yield cell.model_copy(update={"cautions": (*cell.cautions, *notes)})


ONE_REPLICATE = Note(code="running-server", text="one trial a subject was measured, of a server that ran already")


def evidence_of_run(run: Run, cell: Cell, record: Record | None, head: str = "") -> Evidence:
    """What a run measured of a cell; of several heads that of one."""
    comparison = record.of(head) if record else None
    sides = {side: RecordSide(comparison, side) for side in comparison.subjects} if comparison else {}
    about: dict[str, Any] = {"run": run.name, "head": head, "kept": record, "exact": run.exact_only}
    return Evidence(cell=cell, sides=sides, paired=run.alone is None, quick=run.quick, **about)


def _without_looks(gate: GateOutcome) -> GateOutcome:
    """A gate of a quick run, which has no look: the run's own reason says so, once."""
    return gate.model_copy(update={"reasons": tuple(note for note in gate.reasons if note.code != "too-few-pairs")})


def _of_a_quick_run(cells: Sequence[CellOutcome]) -> Note:
    """Names the metric in which two single trials differ by more than a factor of two: rather a disturbance."""
    rows = [
        (abs(math.log(row.head) - math.log(row.base)), row.metric, row.change)
        for cell in cells
        for row in (*cell.gates, *cell.ungated)
        if row.change is not None and row.base and row.head
    ]
    distance, metric, change = max(rows, default=(0.0, "", 0.0))
    text = "one trial a subject was measured"
    if distance >= math.log(2):
        text += f"; {metric} differs by {change * 100:+.0f} %, which a disturbed trial explains as well as a build"
    return Note(code="quick-run", text=text)


def judge_cells(
    name: str,
    plan: Plan,
    cells: tuple[CellOutcome, ...],
    reasons: tuple[Note, ...] = (),
    would_be: Verdict | None = None,
) -> Outcome:
    """The outcome of a run whose cells are judged: the worst of them.

    Args:
        name: What was judged.
        plan: Gives alpha and beta.
        cells: In the plan's order.
        reasons: Why the run as a whole is not judged.
        would_be: What an advisory outcome would be if it could block.
    """
    verdict = worst(cell.verdict for cell in cells)
    return Outcome(
        run=name, perfgate=__version__, verdict=verdict, exit_status=WORST_FIRST[verdict], alpha=plan.alpha,
        beta=plan.beta, cells=cells, reasons=reasons, would_be=would_be if verdict == "advisory" else None,
    )  # fmt: skip


def judge_advisory(name: str, plan: Plan, cells: tuple[CellOutcome, ...], reason: Note) -> Outcome:
    """Wrap comparisons whose data were not taken in pairs: the verdict is printed and never blocks."""
    # No pair can be added to what was measured apart, so the way on is not that of a run.
    gates = (tuple(gate.recoded("undecided", "advisory-unpaired") for gate in cell.gates) for cell in cells)
    cells = tuple(cell.model_copy(update={"gates": outcomes}) for cell, outcomes in zip(cells, gates, strict=True))
    advisory = [c if c.verdict == "not-measured" else c.model_copy(update={"verdict": "advisory"}) for c in cells]
    return judge_cells(name, plan, tuple(advisory), (reason,), worst(cell.verdict for cell in cells))


def compare_sides(base: RecordSide, head: RecordSide, plan: Plan) -> CellOutcome:
    """One side of one record against one side of another, unpaired; the caller has checked that they are comparable."""
    (cell,) = judge_together([Evidence(cell=head.record.cell, sides={"base": base, "head": head})], plan)
    return cell


def judge_together(
    cells: Sequence[Evidence],
    plan: Plan,
    judge_gates: Callable[[list[Any], float, float], Iterable[GateOutcome]] = judge_series,
) -> tuple[CellOutcome, ...]:
    """Cells whose gates are one family, which shares the plan's error rates.

    Args:
        cells: What was measured of each.
        plan: Gives alpha and beta.
        judge_gates: Given the series of every gate, alpha and beta; see :func:`perfgate.judge.rule.judge_series`.
    """
    families = [evidence.family for evidence in cells]
    judged = iter(judge_gates([*chain(*families)], plan.alpha, plan.beta))
    return tuple(
        _judge_cell(evidence, tuple(islice(judged, len(family))), plan)
        for evidence, family in zip(cells, families, strict=True)
    )


def _judge_cell(evidence: Evidence, gates: tuple[GateOutcome, ...], plan: Plan) -> CellOutcome:
    """One cell: the worst of its gates and of everything else that is looked at.

    What was measured is told where nothing is judged, too.
    """
    if unjudged := evidence.unjudged:
        gates = tuple(map(_unmeasured, gates)) if evidence.paired else ()
        findings = _as_read(evidence, unjudged)
    else:
        gates, findings = _checked(evidence, gates)
    seen = None
    if evidence.labeller:
        seen = states_outcome(evidence.family, gates, evidence.labeller, plan.beta)
        ignored = ignored_states(evidence.family, evidence.labeller)
        cautions = state_cautions(evidence.labeller, seen, ignored, gates, evidence.orders_bound)
        findings.append(Finding(cautions=tuple(cautions)))
    alike = next((same for of in of_kinds("alike").values() if (same := of(evidence)) is not None), None)
    idle = idle_plugins(evidence.sides, calls_alike=alike)
    notes = () if unjudged else chain(evidence.cautions(), *(finding.cautions for finding in findings))
    of_each: dict[str, Any] = {key_of(kind, "{}pairs"): len(evidence.pairs(kind)) for kind in KINDS}
    made = {name: fact["of"] for kind in TRIAL_KINDS.values() for name, fact in kind.outcome.items() if "of" in fact}
    of_each |= {name: rooms.bring(of)(evidence) for name, of in made.items()}
    of_each |= {name: shown for finding in findings for name, shown in finding.shown.items()}
    outcome = CellOutcome(
        name=f"{evidence.head}: {evidence.cell.name}" if evidence.head else evidence.cell.name,
        cell_id=evidence.cell.cell_id,
        head=evidence.head,
        record=evidence.digest,
        verdict=worst((*(gate.verdict for gate in gates), *(each.verdict for each in findings if each.verdict))),
        **of_each,
        next_look=None,
        versions=evidence.versions,
        built_from=revisions({name: side.record.subjects[side.name] for name, side in evidence.sides.items()}),
        gates=gates,
        ungated=ungated(evidence, plan.alpha, judged=unjudged is None),
        gpus=evidence.gpus("timed"),
        states=seen,
        floors=floor_by_side(evidence.trials("timed")),
        met=_met(evidence),
        spent=_spent(evidence),
        setting=setting_of(evidence),
        reasons=tuple(chain.from_iterable(finding.reasons for finding in findings)),
        cautions=tuple(chain(evidence.unused_paths(), idle, notes)),
    )
    next_looks = {key_of(kind, "next_{}look"): _next_look(evidence, outcome, kind) for kind in KINDS}
    return outcome.model_copy(update=next_looks)


PACE = ("s", "tok/s", "req/s")  # units of metrics that a higher clock only makes better


def _checked(evidence: Evidence, gates: tuple[GateOutcome, ...]) -> tuple[tuple[GateOutcome, ...], list[Finding]]:
    """The gates as far as they may be judged, and what else was found."""
    gates, clocks = _at_the_same_clocks(gates, evidence)
    findings: list[Finding] = [clocks]
    if evidence.paired and evidence.stops:
        gates = tuple(gate if gate.pairs else _unmeasured(gate) for gate in gates)
        findings.append(evidence.stopped)
    elif evidence.stops:
        findings.insert(0, Finding(reasons=evidence.stops))
    for kind, checks in of_kinds("checks").items():
        findings += checks(evidence) if evidence.due(kind) else ()
    return gates, findings


def _as_read(evidence: Evidence, unjudged: Finding) -> list[Finding]:
    """Why nothing is judged, and what can be read of the only side there is."""
    return [unjudged, *chain.from_iterable(read(evidence) for read in of_kinds("alone").values())]


def _at_the_same_clocks(gates: tuple[GateOutcome, ...], evidence: Evidence) -> tuple[tuple[GateOutcome, ...], Finding]:
    """The gates as they are; not comparable, with the reason, where the sides' trials of a kind had other clocks.

    A head that is slower at clocks at least as high as the base's stays blocked: clocks explain no part of that. So
    does one that is slower in pairs whose order was drawn: nothing but the builds differs between their sides, so the
    clocks are the head's own doing. What is open there stays open: more pairs may block it.
    """
    reasons: list[Note] = []
    cautions: list[Note] = []
    for kind in CLOCKED:
        gpus = evidence.gpus(kind)
        note = clocks_differ(gpus, evidence.trials(kind))
        measured = [gate for gate in gates if gate.kind == kind and gate.pairs]
        if note is None or not measured:
            continue
        drawn = evidence.orders_drawn
        blocked = [gate for gate in measured if gate.verdict == "regressed" and (drawn or gate.unit in PACE)]
        kept = blocked if drawn or head_is_favoured(gpus) else []
        kept += [gate for gate in measured if drawn and gate.verdict == "inconclusive"]
        spoilt: dict[str, object] = {"verdict": "not-comparable", "would_be": None, "reasons": ()}
        gates = tuple(
            gate.model_copy(update=spoilt) if gate in measured and gate not in kept else gate for gate in gates
        )
        (cautions if all(gate in kept for gate in measured) else reasons).append(note)
    return gates, Finding(reasons=tuple(reasons), cautions=tuple(cautions))


def _spent(evidence: Evidence) -> float:
    """What the looks of a cell to which some were added may use of either error rate."""
    added = [kind for kind in KINDS if evidence.sides and evidence.paired and evidence.record.looks_added(kind)]
    schedules = [evidence.record.schedule(kind) for kind in added]
    return max((sum(weights) for schedule in schedules for weights in (schedule.block, schedule.pass_)), default=0.0)


def _unmeasured(gate: GateOutcome) -> GateOutcome:
    """A gate of a cell that could not be measured: the cell's own reason says why, once."""
    reasons = tuple(note for note in gate.reasons if note.code not in ("too-few-pairs", "not-started"))
    return gate.model_copy(update={"verdict": "not-measured", "reasons": reasons})


def _next_look(evidence: Evidence, outcome: CellOutcome, kind: Kind) -> int | None:
    """The next look at pairs of a kind; ``None`` where it could decide nothing, or none is left."""
    closed = not evidence.sides or not evidence.paired or evidence.quick or evidence.stops
    if closed or not outcome.undecided_in(kind):
        return None
    record = evidence.record
    return next((look for look in record.schedule(kind).looks if look > record.measured(kind)), None)


def _met(evidence: Evidence) -> dict[str, dict[Side, MetRequests]]:
    """For reading beside goodput, which is judged restart by restart."""
    rows: dict[str, dict[Side, MetRequests]] = {}
    for gate in evidence.cell.gates:
        metric = gate.gate.measured
        if metric.met is None:
            continue
        for side, trials in evidence.trials("timed").items():
            met, requests = metric.met(trials)
            if requests:
                rows.setdefault(metric.name, {})[side] = MetRequests(met=met, requests=requests)
    return rows
