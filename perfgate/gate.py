"""The use cases: run and judge, judge again, compare. The command line and scripts call these.

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

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from perfgate import __version__, stats
from perfgate.capture.collector import Collector
from perfgate.capture.session import Session, Step
from perfgate.capture.workload import TimedCollector
from perfgate.environment import comparable
from perfgate.errors import InterruptedRunError, NotComparableError, RecordError, UsageError
from perfgate.judge import Series, compare_sides, judge, judge_advisory, judge_cells, judge_series
from perfgate.outcome import CellOutcome, Note, Outcome, verdict_json, worst
from perfgate.plan import Cell, GatePlan, Plan, make_plan
from perfgate.record import Record, Run, read_record, read_records, read_run, sha256_hex, write_atomically, write_run
from perfgate.scenario import Gate, LoadedScenario, load
from perfgate.subject import Role, Subject
from perfgate.table import read_table


@dataclass(frozen=True)
class Finished:
    """A run that came to an end: its folder, which holds everything, and its outcome."""

    folder: Path
    outcome: Outcome


def run(
    scenarios: Sequence[Path],
    subjects: dict[Role, Subject],
    *,
    runs: Path = Path("runs"),
    seed: int | None = None,
    quick: bool = False,
    collector: Collector | None = None,
    progress: Callable[[Step], None] = lambda _: None,
) -> Finished:
    """Measure every cell of the scenarios until it is decided, and judge the run.

    Args:
        scenarios: Scenario files.
        subjects: ``base`` and ``head``; ``base`` alone measures one side, for a later comparison.
        runs: Where the run's folder is made.
        seed: Draws the order within pairs; drawn itself where not given, and kept in the manifest.
        quick: One trial a subject and no verdict.
        collector: Takes the trials; the real engine where not given.
        progress: Called at every step.

    Raises:
        ScenarioError: A scenario is wrong.
        UsageError: Two cells are the same.
        InterruptedRunError: Stopped by a signal; the run folder holds every finished trial.
        OSError: The run folder cannot be written.
    """
    loaded = tuple(load(file) for file in scenarios)
    plan = make_plan(loaded, secrets.randbits(32) if seed is None else seed)
    name = _run_name(loaded)
    manifest = Run(name=name, plan=plan, subjects=subjects, quick=quick, perfgate=__version__)
    folder = _make_folder(runs / name, loaded)
    write_run(folder, manifest)
    records: dict[str, Record] = {}
    try:
        with Session(folder, manifest, collector or TimedCollector(), progress) as session:
            for cell in plan.cells:
                _measure_cell(session, manifest, cell, records)
    except KeyboardInterrupt as error:
        judge_folder(folder)
        raise InterruptedRunError(f"stopped; what was measured is in {folder}", code="interrupted") from error
    return Finished(folder, judge_folder(folder))


def _measure_cell(session: Session, manifest: Run, cell: Cell, records: dict[str, Record]) -> None:
    """Measure look by look until the cell is decided; one side alone, or a quick run, has nothing to decide."""
    looks = cell.measure.looks
    if manifest.quick:
        looks = (1,)
    elif "head" not in manifest.subjects:
        looks = looks[:1]
    for look in looks:
        records[cell.cell_id] = session.measure(cell, look)
        outcome = judge(manifest, records, __version__)
        if next(c for c in outcome.cells if c.cell_id == cell.cell_id).next_look is None:
            break


def judge_folder(folder: Path) -> Outcome:
    """Judge what a run folder holds, and write ``verdict.json`` into it.

    Raises:
        RecordError: The folder is no run folder, or a record in it cannot be trusted.
    """
    manifest = read_run(folder)
    records = {record.cell.cell_id: record for record in read_records(folder, manifest)}
    outcome = judge(manifest, records, __version__)
    write_atomically(folder / "verdict.json", verdict_json(outcome))
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
    differences = [d for x in a.visits for y in b.visits for d in comparable(x.machine, y.machine)]
    if differences:
        raise NotComparableError("; ".join(dict.fromkeys(differences)), code="different-machines")
    plan = Plan(cells=(b.cell,), seed=b.seed)
    reason = Note(code="advisory-unpaired", text=f"{base} against {head}")
    return judge_advisory(f"{base} {head}", __version__, plan, compare_sides(*sides, plan), reason)


def compare_table(file: Path, gates: Sequence[GatePlan]) -> Outcome:
    """Compare the two sides of a CSV: by the rule at one look where it is paired, else advisory.

    One look spends both error rates whole, which is right when the number of pairs was fixed before they were seen.

    Raises:
        RecordError: The file is no such CSV, or has no values for a gate.
    """
    table = read_table(file)
    series = []
    for gate in gates:
        values = table.metrics.get(gate.gate.metric)
        if values is None:
            raise RecordError(f"has no values of {gate.gate.metric}, which {gate.where} gates", where=str(file))
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
    """A gate from ``metric:ignorable:must_catch``, for example ``itl_median:0.1%:0.5%``.

    Raises:
        UsageError: The word has another form, or the gate is not possible.
    """
    parts = word.split(":")
    if len(parts) != 3:  # noqa: PLR2004 (metric, ignorable, must_catch)
        raise UsageError(f"--gate {word}: expected METRIC:IGNORABLE:MUST_CATCH, like itl_median:0.1%:0.5%")
    try:
        gate = Gate.model_validate(dict(zip(("metric", "ignorable", "must_catch"), parts, strict=True)))
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


def _make_folder(folder: Path, loaded: Sequence[LoadedScenario]) -> Path:
    for name in ("scenario", "trials", "records"):
        (folder / name).mkdir(parents=True)
    for scenario in loaded:
        write_atomically(folder / "scenario" / f"{scenario.scenario.name}.yaml", scenario.text)
    return folder
