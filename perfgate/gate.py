"""The use cases: run and judge, go on with a run, judge again, compare. The command line and scripts call these.

Example:
    >>> from pathlib import Path
    >>> from perfgate import gate
    >>> from perfgate.subject import Role, Subject
    >>> python = "/path/to/engine/bin/python"
    >>> subjects = {"base": Subject(python=python), "head": Subject(python=python, args={"max_num_seqs": 2})}
    >>> finished = gate.run([Path("scenarios/cpu-tiny.yaml")], subjects)  # doctest: +SKIP
    >>> finished.outcome.verdict  # doctest: +SKIP
    'pass'
"""

from __future__ import annotations

import contextlib
import math
import secrets
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from perfgate import __version__, stats
from perfgate.capture.collector import Collector
from perfgate.capture.session import Progress, Session
from perfgate.durable import sha256_hex, write_atomically
from perfgate.envelope import learn, union
from perfgate.environment import comparable
from perfgate.errors import InterruptedRunError, NotComparableError, NotMeasuredError, RecordError, UsageError
from perfgate.expectation import Expectation
from perfgate.judge import compare_sides, judge, judge_advisory, judge_cells
from perfgate.lock import hold
from perfgate.margins import Gate
from perfgate.metrics import KINDS, Kind, split_name
from perfgate.outcome import CellOutcome, Note, Outcome, verdict_json, worst
from perfgate.plan import Cell, GatePlan, Plan, make_plan, resolve_cells
from perfgate.record import (
    Record,
    Run,
    read_record,
    read_records,
    read_run,
    record_file,
    write_record,
    write_run,
)
from perfgate.rule import Series, judge_series
from perfgate.scenario import LoadedScenario, load, with_kernels
from perfgate.subject import Role, Subject
from perfgate.table import read_table


@dataclass(frozen=True)
class Finished:
    """A run that came to an end: its folder, which holds everything, and its outcome."""

    folder: Path
    outcome: Outcome


def run(  # noqa: PLR0913 (options by name, all but two with a default)
    scenarios: Sequence[Path],
    subjects: dict[Role, Subject],
    *,
    runs: Path = Path("runs"),
    seed: int | None = None,
    quick: bool = False,
    collector: Collector | None = None,
    traced_collector: Collector | None = None,
    counted_collector: Collector | None = None,
    progress: Progress = lambda _: None,
    budget_s: float = math.inf,
    kernels_only: bool = False,
) -> Finished:
    """Measure every cell of the scenarios until it is decided, and judge the run.

    Args:
        scenarios: Scenario files.
        subjects: ``base`` and ``head``; ``base`` alone measures one side, for a later comparison.
        runs: Where the run's folder is made.
        seed: Draws the order within pairs; drawn itself where not given, and kept in the manifest.
        quick: One trial a subject and no verdict.
        collector: Takes the timed trials; the real engine where not given.
        traced_collector: Takes the traced trials of scenarios with a ``kernels:`` block, likewise.
        counted_collector: Takes the counted trials of scenarios with a ``counters:`` block, likewise.
        progress: Called at every step, and with a sentence where something else is worth telling.
        budget_s: No pair is begun that would not end within so many seconds.
        kernels_only: Take traced trials alone and judge only what the decode steps run, not how long they take.

    Raises:
        ScenarioError: A scenario is wrong.
        UsageError: Two cells are the same.
        InterruptedRunError: Stopped by a signal, or out of budget; the run folder holds every finished trial.
        NotMeasuredError: ``storage-failed``: the run folder cannot be written; ``gpu-busy`` or a code of the clocks:
            the machine is not fit to measure on.
    """
    deadline_s = time.monotonic() + budget_s
    loaded = tuple(load(file) for file in scenarios)
    plan = make_plan(loaded, secrets.randbits(32) if seed is None else seed)
    if kernels_only:
        plan = plan.model_copy(update={"cells": tuple(map(_without_gates, plan.cells))})
    name = _run_name(loaded)
    manifest = Run(name=name, plan=plan, subjects=subjects, quick=quick, perfgate=__version__)
    folder = runs / name
    with _storage_failures(folder, "Mend that, or name another place with --runs."), _interruptions(folder):
        _make_folder(folder, loaded)
        write_run(folder, manifest)
    given = _given(collector, traced_collector, counted_collector)
    return _visit(folder, manifest, Session(folder, manifest, given, progress, deadline_s))


def resume(  # noqa: PLR0913 (options by name, all but one with a default)
    folder: Path,
    *,
    more: int | None = None,
    collector: Collector | None = None,
    traced_collector: Collector | None = None,
    counted_collector: Collector | None = None,
    progress: Progress = lambda _: None,
    budget_s: float = math.inf,
    prepare: Callable[[Run], None] = lambda _: None,
) -> Finished:
    """Go on with the open cells of a run by its own manifest, in a new visit; decided cells stay as they are.

    A cell that was stopped is taken up again. Finished trials count; half a pair of an earlier visit does not.

    Args:
        folder: The run folder.
        more: Cells inconclusive at their last look get a further one, so many pairs after it.
        collector: As of :func:`run`.
        traced_collector: As of :func:`run`.
        counted_collector: As of :func:`run`.
        progress: As of :func:`run`.
        budget_s: As of :func:`run`.
        prepare: Called before anything is measured, if anything is: has what the subjects need put in its place.

    Raises:
        UsageError: ``more`` is less than a further look needs.
        RecordError: The folder is no run folder, or a record in it cannot be trusted.
        NotComparableError: ``different-machines``: the run was begun on another machine.
        InterruptedRunError: As of :func:`run`.
        NotMeasuredError: ``run-folder-busy``, or ``storage-failed``.
    """
    deadline_s = time.monotonic() + budget_s
    if more is not None and more < stats.FURTHER_LOOK_PAIRS:
        raise UsageError(f"--more {more}: a further look needs at least {stats.FURTHER_LOOK_PAIRS} pairs")
    manifest = read_run(folder)
    given = _given(collector, traced_collector, counted_collector)
    return _visit(folder, manifest, Session(folder, manifest, given, progress, deadline_s), more, prepare)


def check_envelope(scenarios: Sequence[Path], subjects: dict[Role, Subject], **options: Any) -> Finished:
    """Trace a pair of each cell and hold both sides' decode steps against its envelope; no latency is judged.

    Args:
        scenarios: Scenario files; each must declare an envelope.
        subjects: ``base`` and ``head``.
        options: As of :func:`run`.

    Raises:
        UsageError: There is nothing to hold the steps against, or no head.
    """
    for file in scenarios:
        expected = load(file).scenario.kernels
        if expected is None or not (expected.per_decode_step.patterns or expected.per_decode_step.names):
            raise UsageError(
                f"{file} declares no envelope, so nothing could be checked",
                remedy=f"Learn one first: perfgate envelope learn {shlex.quote(str(file))} --base ...",
            )
    if "head" not in subjects:
        raise UsageError("no head to check", remedy="Name it: --head python=..., or whatever differs from the base.")
    return run(scenarios, subjects, kernels_only=True, **options)


def learn_envelope(scenario: Path, folder: Path) -> str:
    """The scenario's text with a ``kernels:`` block that the traced pairs of a run folder fit.

    Args:
        scenario: The scenario file, which is not written.
        folder: A run of it, one build on both sides.

    Raises:
        NotMeasuredError: ``no-decode-steps``: not every cell was traced; the text tells why.
        NotComparableError: It is a run of other cells, or its trials did not run the same: nothing can be learnt.
        RecordError: The folder is no run folder.
    """
    loaded, manifest = load(scenario), read_run(folder)
    cells, measured = resolve_cells(loaded), {cell.cell_id for cell in manifest.plan.cells}
    others = [cell.name for cell in cells if cell.cell_id not in measured]
    if others:
        text = f"is no run of {scenario} as it is now: it does not measure {', '.join(others)}"
        raise NotComparableError(text, where=str(folder), code="different-cells")
    records = {record.cell.cell_id: record for record in read_records(folder, manifest)}
    blocks = []
    for cell in cells:
        record = records.get(cell.cell_id)
        traced = [trial.decode for pair in record.pairs("traced") for trial in pair if trial.decode] if record else []
        if not traced:
            stopped = record.stopped if record else None
            code, text = (stopped.code, stopped.text) if stopped else ("no-decode-steps", "no traced pair was taken")
            remedy = "Mend that (is --base right?) and learn again." if stopped else _way_on(folder)
            raise NotMeasuredError(text, where=f"{folder}: {cell.name}", remedy=remedy, code=code)
        blocks.append(learn(traced, loaded.scenario.kernels))
    return with_kernels(loaded, union(blocks))


def _without_gates(cell: Cell) -> Cell:
    return cell.model_copy(update={"gates": (), "kernels": cell.kernels or Expectation(), "counters": ()})


def _given(*collectors: Collector | None) -> dict[Kind, Collector]:
    """The collectors that were given, in the order of the kinds."""
    return {kind: one for kind, one in zip(KINDS, collectors, strict=True) if one is not None}


def _visit(
    folder: Path,
    manifest: Run,
    session: Session,
    more: int | None = None,
    prepare: Callable[[Run], None] = lambda _: None,
) -> Finished:
    """Measure what is open while nobody else does, then judge."""
    with _storage_failures(folder, f"Mend that. {_way_on(folder)}"), _interruptions(folder):
        with hold(folder):
            records = _reopened(folder, manifest)
            added = _with_further_looks(manifest, records, more) if more is not None else {}
            records |= added
            if any(_next_target(manifest, cell, records, kind) for cell in manifest.plan.cells for kind in KINDS):
                prepare(manifest)
                with session:
                    for record in added.values():  # before the first of their pairs is taken
                        write_record(record_file(folder, record.cell), record)
                    _measure(manifest, session, records)
        return Finished(folder, judge_folder(folder))


def _way_on(folder: Path) -> str:
    return f"Go on with: perfgate run --resume {shlex.quote(str(folder))}"


@contextlib.contextmanager
def _interruptions(folder: Path) -> Iterator[None]:
    """Whatever stops a run on request, what was measured is judged, and the error says how to go on."""
    try:
        yield
    except (KeyboardInterrupt, InterruptedRunError) as error:
        if not (folder / "run.json").exists():
            raise
        judge_folder(folder)
        stopped = (
            error if isinstance(error, InterruptedRunError) else InterruptedRunError("stopped", code="interrupted")
        )
        text = f"{stopped.text}; what was measured is in {folder}"
        raise InterruptedRunError(text, remedy=_way_on(folder), code=stopped.code) from error


@contextlib.contextmanager
def _storage_failures(folder: Path, remedy: str) -> Iterator[None]:
    """An error of the file system is no measurement: it gets a reason code, its own words and the way on."""
    try:
        yield
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
        raise NotMeasuredError(what, where=str(folder), remedy=remedy, code="storage-failed") from error


def _reopened(folder: Path, manifest: Run) -> dict[str, Record]:
    """The records of earlier visits by cell_id; why one stopped then does not hold any longer."""
    return {
        record.cell.cell_id: record.model_copy(update={"stopped": None}) for record in read_records(folder, manifest)
    }


def _with_further_looks(manifest: Run, records: dict[str, Record], more: int) -> dict[str, Record]:
    """The records of the cells that are inconclusive at their last look, with one look more at that kind of pair."""
    added: dict[str, Record] = {}
    for cell in () if manifest.quick else judge(manifest, records, __version__).cells:
        record = records.get(cell.cell_id)
        if record is None:  # interrupted before it began: its own looks come first
            continue
        for kind in KINDS:
            if cell.undecided_in(kind) and cell.next_look_at(kind) is None:
                record = added[cell.cell_id] = record.with_look(kind, record.schedule(kind).looks[-1] + more)
    return added


def _measure(manifest: Run, session: Session, records: dict[str, Record]) -> None:
    """Measure each cell look by look until it is decided, cannot be measured, or has used up its looks."""
    for cell in manifest.plan.cells:
        for kind in KINDS:
            while (target := _next_target(manifest, cell, records, kind)) is not None:
                records[cell.cell_id] = session.measure(cell, target, kind)


def _next_target(manifest: Run, cell: Cell, records: dict[str, Record], kind: Kind) -> int | None:
    """How many pairs of a kind the cell is to have next."""
    if kind == "timed":
        return _next_timed(manifest, cell, records)
    if (cell.kernels if kind == "traced" else cell.counters or None) is None:
        return None
    return _next_profiled(manifest, cell, records, kind)


def _next_profiled(manifest: Run, cell: Cell, records: dict[str, Record], kind: Kind) -> int | None:
    """One pair tells what the steps run, or what their kernels count; more are taken only where a gate rests on it."""
    record = records.get(cell.cell_id)
    kinds = {gate.gate.measured.kind for gate in cell.gates}
    if record is not None and record.stopped is not None:
        return None
    taken = record.measured(kind) if record else 0
    if manifest.quick:  # a look at the numbers: at traced ones only where there are no others
        return 1 if kind == "traced" and "timed" not in kinds and not taken else None
    schedule = cell.schedule(kind)
    if kind not in kinds:
        return None if taken else 1
    if "head" not in manifest.subjects:
        wanted, _ = schedule.first_blocking or (schedule.looks[-1], 0.0)
        return wanted if taken < wanted else None
    if not taken:
        return schedule.looks[0]
    outcome = judge(manifest, records, __version__)
    return next(one.next_look_at(kind) for one in outcome.cells if one.cell_id == cell.cell_id)


def _next_timed(manifest: Run, cell: Cell, records: dict[str, Record]) -> int | None:
    """One side alone, or a quick run, has nothing to decide; without a gate on times there is nothing to time."""
    record = records.get(cell.cell_id)
    if not any(gate.gate.measured.kind == "timed" for gate in cell.gates):
        return None
    schedule = cell.measure.schedule
    if manifest.quick or "head" not in manifest.subjects:
        # One side is measured for a comparison, which fewer trials than the first look that blocks could never lose.
        blocking, _ = schedule.first_blocking or (schedule.looks[-1], 0.0)
        wanted = 1 if manifest.quick else blocking
        return wanted if record is None or (record.measured() < wanted and record.stopped is None) else None
    if record is None:
        return schedule.looks[0]
    outcome = judge(manifest, records, __version__)
    return next(one.next_look_at("timed") for one in outcome.cells if one.cell_id == cell.cell_id)


def judge_folder(folder: Path, warn: Callable[[str], None] | None = None) -> Outcome:
    """Judge what a run folder holds, and write ``verdict.json`` into it.

    Args:
        folder: The run folder.
        warn: Gets a sentence where ``verdict.json`` cannot be written; without it that is an error.

    Raises:
        RecordError: The folder is no run folder, or a record in it cannot be trusted.
        OSError: ``verdict.json`` cannot be written, and ``warn`` was not given.
    """
    manifest = read_run(folder)
    records = {record.cell.cell_id: record for record in read_records(folder, manifest)}
    outcome = judge(manifest, records, __version__)
    try:
        write_atomically(folder / "verdict.json", verdict_json(outcome))
    except OSError as error:
        if warn is None:
            raise
        warn(f"{folder / 'verdict.json'} could not be written: {error.strerror}")
    return outcome


def compare_records(base: str, head: str) -> Outcome:
    """Compare one side of one record with one side of another; unpaired, hence advisory.

    Args:
        base: A record file, or ``FILE:base`` or ``FILE:head`` where it holds both sides.
        head: Likewise; its gates are the ones judged.

    Raises:
        RecordError: A file is no record.
        UsageError: A record holds two sides and the word does not say which.
        NotComparableError: The cells or the machines differ.
    """
    sides = (_read_side(base), _read_side(head))
    (a, _), (b, _) = sides
    if a.cell.cell_id != b.cell.cell_id:
        raise NotComparableError(
            f"{base} holds {a.cell.name} ({a.cell.cell_id[:12]}), {head} holds {b.cell.name} ({b.cell.cell_id[:12]})",
            code="different-cells",
        )
    if any(gate.gate.measured.kind == "traced" for gate in b.cell.gates) and _tracing(a.cell) != _tracing(b.cell):
        text = f"{base} and {head} were traced with other roles, or for another number of iterations"
        raise NotComparableError(text, code="different-cells")
    differences = [d for x in a.visits for y in b.visits for d in comparable(x.machine, y.machine)]
    if differences:
        raise NotComparableError("; ".join(dict.fromkeys(differences)), code="different-machines")
    plan = Plan(cells=(b.cell,), seed=b.seed)
    reason = Note(code="advisory-unpaired", text=f"{base} against {head}")
    return judge_advisory(f"{base} {head}", __version__, plan, compare_sides(*sides, plan), reason)


def _tracing(cell: Cell) -> object:
    """What of tracing decides kernel times, beside what the cell's id says."""
    return cell.kernels and (cell.kernels.rules, cell.kernels.traced.iterations)


def compare_table(file: Path, gates: Sequence[GatePlan]) -> Outcome:
    """Compare the two sides of a CSV: by the rule at one look where it is paired, else advisory.

    One look spends both error rates whole, which is right when the number of pairs was fixed before they were seen.

    Raises:
        RecordError: The file is no such CSV, or has no values for a gate.
    """
    table = read_table(file)
    series = []
    for gate in gates:
        values = table.metrics.get(gate.gate.measured.name)
        if values is None:
            raise RecordError(f"has no values of {gate.gate.measured.name}, which {gate.where} gates", where=str(file))
        paired = table.paired and len(values.base) > 1
        series.append(Series(gate, values.base, values.head, stats.one_look(len(values.base)) if paired else None))
    plan = Plan(cells=(), seed=0)
    judged = judge_series(series, plan.alpha, plan.beta)
    cell = CellOutcome(
        name=file.stem, cell_id="", record=sha256_hex(file.read_bytes()), verdict=worst(g.verdict for g in judged),
        pairs=max((g.pairs for g in judged), default=0) if table.paired else 0, next_look=None, versions={},
        gates=judged, ungated=(),
    )  # fmt: skip
    if table.paired:
        return judge_cells(file.name, __version__, plan, (cell,))
    return judge_advisory(file.name, __version__, plan, cell, Note(code="advisory-unpaired", text="no pair column"))


def parse_gate(word: str) -> GatePlan:
    """A gate from ``metric:ignorable:must_catch``: ``itl_median:0.1%:0.5%``, ``kernel_time_per_step[gemm]:1%:5%``.

    Raises:
        UsageError: The word has another form, or the gate is not possible.
    """
    parts = word.split(":")
    if len(parts) != 3:  # noqa: PLR2004 (metric, ignorable, must_catch)
        raise UsageError(f"--gate {word}: expected METRIC:IGNORABLE:MUST_CATCH, like itl_median:0.1%:0.5%")
    try:
        metric, role = split_name(parts[0])
        gate = Gate.model_validate({"metric": metric, "role": role, "ignorable": parts[1], "must_catch": parts[2]})
    except ValidationError as error:
        raise UsageError(f"--gate {word}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error
    return GatePlan(gate=gate, where=f"--gate {word}")


def _read_side(word: str) -> tuple[Record, Role]:
    path, _, role = word.rpartition(":")
    if role not in ("base", "head"):
        path, role = word, ""
    record = read_record(Path(path))
    if not role:
        if len(record.subjects) > 1:
            raise UsageError(f"{word} holds base and head", remedy=f"Say which: {word}:base or {word}:head.")
        role = next(iter(record.subjects))
    if role not in record.subjects:
        raise UsageError(f"{word}: the record holds no {role}")
    return record, "head" if role == "head" else "base"


def _run_name(loaded: Sequence[LoadedScenario]) -> str:
    more = f"+{len(loaded) - 1}" if len(loaded) > 1 else ""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return f"{loaded[0].scenario.name}{more}-{stamp}-{secrets.token_hex(3)}"


def _make_folder(folder: Path, loaded: Sequence[LoadedScenario]) -> None:
    for name in ("scenario", "trials", "records"):
        (folder / name).mkdir(parents=True)
    for scenario in loaded:
        write_atomically(folder / "scenario" / f"{scenario.scenario.name}.yaml", scenario.text)
