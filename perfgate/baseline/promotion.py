"""Promotion: what a run measured becomes part of the baselines, with a reason, an author and the record's digest.

Free is only what is equivalent to what is there: the same build once more, a head that passed against that build in
pairs, or a visit that passes every gate against the baseline itself. Anything else begins anew and needs a reason.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from perfgate.baseline.lineage import Baseline, Change, Entry, draft
from perfgate.baseline.store import author, baseline_path, changing, commit, read, write
from perfgate.baseline.stored_visit import Build
from perfgate.baseline.visit_comparison import judge_sides
from perfgate.baseline.visit_evidence import misfits
from perfgate.errors import NotMeasuredError, RecordError, UsageError, Verdict
from perfgate.judge.cell_verdict import judge
from perfgate.judge.evidence import RecordSide
from perfgate.judge.outcome import PASSED, CellOutcome, GateOutcome
from perfgate.machine.fingerprint import Machine, as_told_before, comparable, machine_class
from perfgate.metrics.sides import Side
from perfgate.record.manifest import check_sequence, read_manifest, require_scenarios
from perfgate.record.run_record import Record, Run, read_records
from perfgate.scenario.plan import Cell, Plan

Claim = Literal["same-build", "anew"]
DECIDED: tuple[Verdict, ...] = (*PASSED, "regressed")
EXACT = {"outside-envelope", "counter-differs"}
"""Reasons that no spread explains: another build, whatever its times."""
ADVICE = {"advisory-unpaired", "no-baseline"}
"""Reasons of a comparison with a baseline that tell of no difference."""


@dataclass(frozen=True)
class Promoted:
    """What became of one cell.

    Args:
        cell: Its name.
        file: The baseline's file.
        side: The side promoted.
        kind: ``first``, ``equivalent`` or ``changed``.
        why: Why it is of that kind.
        moved: The gated metrics held against the baseline before; empty for the first, and where cells or machines
            differ.
        baseline: As it is now.
    """

    cell: str
    file: Path
    side: Side
    kind: Change
    why: str
    moved: tuple[GateOutcome, ...]
    baseline: Baseline


def promote(
    folder: Path,
    root: Path,
    *,
    reason: str = "",
    cells: Sequence[str] = (),
    side: Side | None = None,
    claim: Claim | None = None,
    scenarios: Sequence[Path] | None = None,
) -> tuple[Promoted, ...]:
    """Add what a run measured to the baselines below ``root``: all of its cells, or none.

    Promoted is the head where there is one and it passed, else the base; ``side`` says otherwise.

    Args:
        folder: The run's folder.
        root: The folder of baselines, made where it is missing.
        reason: Why; needed for a first baseline and for one that is not equivalent to what is there.
        cells: Names of cells; all where none is named.
        side: The side to promote.
        claim: What the caller says, with a reason. ``same-build``: a build with folders or variables of its own is the
            one that was promoted last; what can be told of it must agree. ``anew``: begin anew with this run, whatever
            it is equivalent to, as after a repair of the machine.
        scenarios: Files of which the run's scenarios must be copies; where not given, the run's own word is taken.

    Raises:
        RecordError: The folder is not a run's, a record or baseline cannot be trusted, a record or visit is already in
            it, or a file cannot be written.
        NotMeasuredError: A cell is not decided, so its record is not valid.
        UsageError: A cell or side does not exist, or a reason is needed; the text says what moved.
    """
    if claim and not reason:
        raise UsageError(f"--{claim} needs a reason", remedy='Say why: --reason "...".')
    run = read_manifest(folder)
    run.refuse_several(str(folder))
    records = {record.cell.cell_id: record for record in read_records(folder, run)}
    if scenarios is not None:  # somebody else measured it
        require_scenarios(folder, run, scenarios)
        check_sequence(records.values())
    outcomes = {cell.cell_id: cell for cell in judge(run, records).cells}
    chosen = [cell for cell in run.cells if not cells or cell.name in cells]
    if unknown := set(cells) - {cell.name for cell in chosen}:
        names = ", ".join(cell.name for cell in run.cells)
        raise UsageError(f"the run has no cell {', '.join(sorted(unknown))} (known: {names})")
    candidates = []
    for cell in chosen:
        outcome = outcomes[cell.cell_id]
        measured = _measured_side(folder, run, cell, records.get(cell.cell_id), outcome, side)
        file = _file(root, cell, measured.record.visits[0].machine)
        candidates.append(_Candidate(measured, outcome, file, claim))
    with changing(candidate.file for candidate in candidates):
        drawn = [_draw(candidate, run.plan) for candidate in candidates]
        if not reason and any(promotion.kind != "equivalent" for promotion in drawn):
            raise UsageError(_unexplained(drawn), remedy='Say why: --reason "...".')
        now = datetime.now(UTC).isoformat(timespec="seconds")
        signature = {"author": author(root), "commit": commit(root), "time_utc": now}
        promoted = tuple(_sign(promotion, {**signature, "reason": reason or promotion.why}) for promotion in drawn)
        write({promotion.file: promotion.baseline for promotion in promoted})
    return promoted


@dataclass(frozen=True)
class _Candidate:
    """A side of a cell on its way to a file."""

    side: RecordSide
    outcome: CellOutcome
    file: Path
    claim: Claim | None


def _measured_side(
    folder: Path, run: Run, cell: Cell, record: Record | None, outcome: CellOutcome, side: Side | None
) -> RecordSide:
    """The side to promote, if it was measured to its end: traced and counted trials are part of a visit."""
    where = f"{folder}: {cell.name}"
    if not cell.gates:
        raise NotMeasuredError("only its kernels were looked at", where=where, code="no-baseline")
    if run.of_running_servers:
        text = "a server that ran already is one replicate of a build that nobody knows"
        raise NotMeasuredError(text, where=where, code="running-server")
    if run.quick:
        raise NotMeasuredError("a quick run is a look at the numbers, no baseline", where=where, code="quick-run")
    stopped = record.stopped if record else None
    if record is None or stopped is not None:
        code, text = (stopped.code, stopped.text) if stopped else ("not-started", "no trial was taken")
        raise NotMeasuredError(text, where=where, code=code)
    # Beside an anchor it is not the pairs that decide.
    if record.alone is None and outcome.verdict not in (*DECIDED, *(["inconclusive"] if run.fixed else [])):
        codes = ", ".join(note.code for note in outcome.reasons) or "undecided"
        text = f"the run ended {outcome.verdict} ({codes}), and only a decided one is valid"
        raise NotMeasuredError(text, where=where, code="undecided")
    if side is not None and side not in record.subjects:
        raise UsageError(f"{cell.name}: the run measured no {side}")
    if record.alone is None and run.fixed and side == "base":
        raise UsageError(f"{cell.name}: the base of this run is its anchor", remedy="Leave out --side base.")
    usual: Side = "head" if run.fixed or outcome.verdict in PASSED else "base"
    measured = RecordSide(record, side or record.alone or usual, run.fixed)
    for kind, taken, due in measured.short_of:
        text = f"{taken} of {due} {kind} {'pairs' if record.alone is None else 'trials'} were taken"
        remedy = "Go on with perfgate run --resume."
        raise NotMeasuredError(text, where=where, remedy=remedy, code="too-few-pairs")
    return measured


def _file(root: Path, cell: Cell, machine: Machine) -> Path:
    """Where the baseline of a cell is on machines like this one.

    One that an earlier version put in the file of a wider class is gone on with there, as long as it fits.
    """

    def file_of(machine: Machine) -> Path:
        return root / baseline_path(cell, machine_class(machine, cell.clocks.mode))

    file, wider = file_of(machine), file_of(as_told_before(machine))
    if file.exists():
        there = read(file).baseline.machine
        if file != (meant := file_of(there)) and (differences := comparable(there, machine)):
            text = f"{file}: holds the visits of other machines ({differences[0]}): earlier versions told"
            remedy = f"Move it to where these belong, and promote again: git mv {file} {meant}"
            raise UsageError(f"{text} less apart", remedy=remedy)
        return file
    if not wider.exists() or comparable(read(wider).baseline.machine, machine):
        return file
    return wider


def _draw(candidate: _Candidate, plan: Plan) -> Promoted:
    """The baseline with the candidate's visits, not yet signed."""
    before = read(candidate.file).baseline if candidate.file.exists() else None
    salt = before.salt if before else ""
    side = candidate.side
    beside = side.fixed and side.name == "head" and side.record.alone is None
    anchored = beside and not Build.of(side.record, "base").opaque  # an anchor that can be told from other builds
    entry = draft(side.record, side.name, salt or secrets.token_hex(8), anchored=anchored)
    kind, why, moved = _compare(candidate, entry, before, plan)
    entry = entry.model_copy(update={"salt": "" if salt else entry.salt})
    if kind == "equivalent":
        entry = entry.model_copy(update={"cell": None, "machine": None, "decode": None, "counted": None})
    entries = (*(before.entries if before else ()), entry.model_copy(update={"kind": kind}))
    baseline = Baseline(entries=entries)
    return Promoted(side.record.cell.name, candidate.file, side.name, kind, why, moved, baseline)


def _compare(
    candidate: _Candidate, entry: Entry, before: Baseline | None, plan: Plan
) -> tuple[Change, str, tuple[GateOutcome, ...]]:
    """What kind of promotion this is, why, and the gates held against what is there."""
    if before is None:
        return "first", "there was none for this cell on this class of machines", ()
    name, where = candidate.side.record.cell.name, str(candidate.file)
    if any(earlier.record == entry.record for earlier in before.entries):
        raise RecordError(f"{name}: this record is already in it", where=where)
    # The record may be another since, though the visit is the same: when it was gone on with, or where another version
    # of perfgate reads it with fields of its own.
    visits = [visit for earlier in before.entries for visit in earlier.visits]
    if again := next((visit for visit in entry.visits if any(map(visit.is_the, visits))), None):
        text = f"{name}: the visit of {again.t0_utc} is already in it"
        raise RecordError(text, where=where, remedy="Measure a further visit in a run of its own.")
    if differences := misfits(before, candidate.side):
        return "changed", f"it measures something else: {'; '.join(differences)}", ()
    cell = candidate.side.record.cell
    alone = plan.model_copy(update={"cells": (cell,)})
    held = judge_sides("promotion", alone, {cell.cell_id: candidate.side}, {cell.cell_id: [before]}).cells[0]
    if candidate.claim == "anew":
        return "changed", "it was asked to begin anew", held.gates
    kind, why = _by_its_times(candidate, entry.build, before, held)
    return kind, why, held.gates


def _by_its_times(candidate: _Candidate, build: Build, before: Baseline, held: CellOutcome) -> tuple[Change, str]:
    """Whether the same cell on the same machine is equivalent, and by what evidence."""
    codes = {note.code for note in held.reasons} | {note.code for gate in held.gates for note in gate.reasons}
    # A gate that is newer than the baseline's visits says nothing; the other ones decide.
    deciding = [gate for gate in held.gates if all(note.code != "no-baseline" for note in gate.reasons)]
    verdicts = {gate.would_be or gate.verdict for gate in deciding}
    if codes & EXACT or "not-comparable" in verdicts:
        return "changed", f"it differs in more than time: {', '.join(sorted(codes - ADVICE))}"
    in_pairs = candidate.side.name == "head" and not candidate.side.fixed
    verdict = candidate.outcome.verdict if in_pairs else ""
    # A visit of the same build counts wherever it is, blocked or not: without the far ones the spread would be fake.
    # What is under test in a run that regressed is not the same build, whatever its packages say.
    same = build.same(before.build) or (candidate.claim == "same-build" and build == before.build)
    if same and verdict != "regressed" and "not-measured" not in verdicts:
        return "equivalent", "the build that was promoted last, measured once more"
    if verdict == "pass" and Build.of(candidate.side.record, "base").same(before.build):
        return "equivalent", "it passed in pairs against the build that was promoted last"
    # Within states of the GPU it may still be in the slow one more often.
    everywhere = held.states is None or held.states.everywhere
    if {gate.verdict for gate in deciding} == {"pass"} and everywhere:
        return "equivalent", "it passes every gate against the baseline"
    return "changed", "it is another build, and not shown to be equivalent"


def _unexplained(drawn: Sequence[Promoted]) -> str:
    lines = ["nothing was written:"]
    for promotion in drawn:
        if promotion.kind != "equivalent":
            lines.append(f"{promotion.cell}: {promotion.kind}: {promotion.why}")
            lines += (f"  {line}" for line in moved_lines(promotion.moved))
    return "\n".join(lines)


def moved_lines(gates: Sequence[GateOutcome]) -> Iterator[str]:
    """How far each gated metric moved, a line each: ``itl_median +1.20 % (would be regressed)``."""
    for gate in gates:
        moved = "no figure" if gate.change is None else f"{gate.change * 100:+.2f} %"
        yield f"{gate.metric} {moved} ({gate.would_be or gate.verdict} against the baseline)"


def _sign(promoted: Promoted, signature: Mapping[str, str]) -> Promoted:
    """The newest entry with who, when and why, in its place in the lineage."""
    *before, entry = promoted.baseline.entries
    signed = entry.model_copy(update={**signature, "parent": before[-1].digest if before else ""}).sealed()
    return replace(promoted, baseline=Baseline(entries=(*before, signed)))
