"""Joining: the run folders of the parts of one plan become one run folder, which is judged once.

Whoever measured a part may have written anything, so a part is read as any run folder is: its plan is resolved again
from its scenarios, its records must be of it. What is not one part of the plan is left out, and then nothing passes.
Trials stay with their parts; records are all that a verdict needs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from perfgate.errors import NotMeasuredError, PerfgateError, UsageError
from perfgate.judge.outcome import Verdict
from perfgate.machine.atomic_files import canonical_json, write_atomically
from perfgate.metrics.trial import Side
from perfgate.models import Note
from perfgate.record.manifest import SCENARIOS, check_sequence, kept_scenarios, read_manifest
from perfgate.record.run_names import RUN
from perfgate.record.run_record import Record, Run, read_records, read_run, record_file, write_record, write_run
from perfgate.record.shards import ShardPlan
from perfgate.scenario.part import Part, plan_digest
from perfgate.scenario.subject import Subject

DECIDED: tuple[Verdict, ...] = ("pass", "improved", "regressed", "inconclusive", "internal-error")
"""Verdicts of a cell that was measured: it is not measured again, so that no gate has two chances."""


@dataclass(frozen=True)
class MeasuredPart:
    """One part of a plan as it was measured.

    Args:
        folder: Its run folder.
        run: Its manifest.
        part: Which one it is.
        records: What was measured.
    """

    folder: Path
    run: Run
    part: Part
    records: tuple[Record, ...]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The part in a run folder.

        Raises:
            NotMeasuredError: ``shard-foreign``: it is a run of its own, or one that pairs do not decide.
            RecordError: It is not a run folder, or cannot be trusted.
        """
        run = read_manifest(folder)
        if run.part is None:
            raise NotMeasuredError("is a run of its own", where=str(folder), code="shard-foreign")
        if run.against is not None or run.profiles is not None or run.quick:
            text = "was quick, or is held against what is stored: only parts measured in pairs make one run"
            raise NotMeasuredError(text, where=str(folder), code="shard-foreign")
        records = tuple(read_records(folder, run))
        check_sequence(records)
        return cls(folder, run, run.part, records)

    @property
    def digest(self) -> str:
        """That of the whole plan."""
        return plan_digest(self.run.plan, self.part.run, self.part.shards)

    @property
    def agreed(self) -> dict[str, str]:
        """What all parts of one run have in common, by what it is called."""
        kind = self.run.model_dump(mode="json", include={"kernels_only", "exact_only"})
        return {
            "plan": self.digest,
            "seed": str(self.run.plan.seed),
            "builds": _builds(self.run.built),
            "kind of run": canonical_json(kind),
        }


def _builds(built: Mapping[Any, Subject]) -> str:
    return canonical_json({label: _portable(subject) for label, subject in built.items()})


def _portable(subject: Subject) -> Any:
    """A build without the place of the cache that it is in: each machine makes it in its own."""
    text = canonical_json(subject.model_dump(mode="json"))
    if subject.built_from is not None:
        text = text.replace(json.dumps(subject.built_from.folder)[1:-1], "{build}")
    return json.loads(text)


def part_in(folder: Path) -> Path:
    """The one run folder that a folder is, or holds: an artifact holds the folder of runs.

    Raises:
        NotMeasuredError: ``shard-missing``: it holds none, or several.
    """
    found = [folder] if (folder / RUN).is_file() else [file.parent for file in _runs_in(folder, 1)]
    if len(found) != 1:
        text = f"holds {len(found)} folders with {RUN}, expected one"
        raise NotMeasuredError(text, where=str(folder), code="shard-missing")
    return found[0]


def join(
    folders: Sequence[Path],
    runs: Path,
    declared: Mapping[str, str] | None = None,
    subjects: Mapping[Side, Subject] | None = None,
) -> Path:
    """Make one run folder of the parts of a plan; parts that were joined before are made anew.

    Args:
        folders: Run folders of the parts, or folders that hold one each.
        runs: Where the joined run's folder is made.
        declared: What parts must agree in, as :func:`agreed_in` has it. What differs is left out then, and the outcome
            says so; without it that is an error, because nobody knows which part is right.
        subjects: The builds that the joined run names; by default those of its first part.

    Raises:
        NotMeasuredError: ``shard-foreign``: the parts are not those of one plan, or one is there twice;
            ``shard-missing``: there is none.
        UsageError: Another run is where the joined one belongs.
    """
    expected = dict(declared or {}) | ({"builds": _builds(subjects)} if subjects else {})
    parts, faults = _sorted_out([_attempt(folder) for folder in folders], expected)
    told = "; ".join(note.text for note in faults) or "no shard was given"
    if faults and declared is None:
        raise NotMeasuredError(told, code=faults[0].code)
    if not parts:
        raise NotMeasuredError(told, code="shard-missing")
    return _write(sorted(parts, key=lambda one: one.part.numbers), tuple(faults), runs, subjects)


def agreed_in(plan: ShardPlan, later: int = 0) -> dict[str, str]:
    """What the parts of a plan that was printed must agree in; ``later`` is added to its seed."""
    return {"plan": plan.digest, "seed": str(plan.seed + later)}


def left(plan: ShardPlan, folders: Iterable[Path], verdicts: Callable[[Path], Iterable[Verdict]]) -> list[str]:
    """The shards of a plan of which nothing was decided, as ``K/N``: they can be measured again anywhere.

    A shard with any cell decided is kept as it is. So which shards are taken again does not depend on what was found,
    and no gate has a second chance.

    Args:
        plan: As it was printed.
        folders: Of runs or nights, or that hold one, whatever else is in them.
        verdicts: Those of the cells in a run folder.
    """
    decided = set[str]()
    for run_folder in (file.parent for folder in folders for depth in range(4) for file in _runs_in(folder, depth)):
        try:
            measured = MeasuredPart.read(run_folder)
            known = measured.digest == plan.digest and any(verdict in DECIDED for verdict in verdicts(run_folder))
        except PerfgateError:  # what cannot be read has decided nothing
            continue
        if known:
            decided |= {plan.include[number - 1].shard for number in measured.part.numbers}
    return [entry.shard for entry in plan.include if entry.shard not in decided]


def _runs_in(folder: Path, depth: int) -> list[Path]:
    """The manifests of runs so deep below a folder; a night's are two below its own folder."""
    return sorted(folder.glob("*/" * depth + RUN))


def _attempt(folder: Path) -> MeasuredPart | Note:
    try:
        return MeasuredPart.read(part_in(folder))
    except PerfgateError as error:
        return Note(code=error.code or "shard-foreign", text=error.finding)


def _sorted_out(
    found: Sequence[MeasuredPart | Note], declared: Mapping[str, str]
) -> tuple[list[MeasuredPart], list[Note]]:
    """The parts of one plan, each once, and why others are none."""
    parts = [one for one in found if isinstance(one, MeasuredPart)]
    faults = [one for one in found if isinstance(one, Note)]
    expected = dict(declared)
    good: list[MeasuredPart] = []
    for one in parts:
        differing = [name for name, value in one.agreed.items() if expected.setdefault(name, value) != value]
        if differing:
            what = "what was planned" if declared else f"those of {parts[0].folder}"
            text = f"{one.folder}: its {' and '.join(differing)} differ from {what}"
            faults.append(Note(code="shard-foreign", text=text))
        else:
            good.append(one)
    given = [number for one in good for number in one.part.numbers]
    twice = {number for number in given if given.count(number) > 1}
    for number in sorted(twice):
        where = " and ".join(str(one.folder) for one in good if number in one.part.numbers)
        faults.append(Note(code="shard-foreign", text=f"shard {number} is there twice: {where}"))
    return [one for one in good if not twice & {*one.part.numbers}], faults


def _write(
    parts: Sequence[MeasuredPart], faults: tuple[Note, ...], runs: Path, subjects: Mapping[Side, Subject] | None
) -> Path:
    first = parts[0]
    numbers = tuple(sorted(number for one in parts for number in one.part.numbers))
    part = first.part.model_copy(update={"numbers": numbers, "joined": True, "faults": faults})
    builds = {"subjects": dict(subjects or first.run.subjects), "heads": first.run.heads}
    run = first.run.model_copy(update={"name": part.run, "part": part, **builds})
    folder = runs / run.name
    if folder.exists():
        there, own = read_run(folder).part, any((folder / "trials").glob("*"))
        if there is None or not there.joined or there.shards != part.shards or own:
            what = "trials of its own" if own else "another run than these shards make"
            raise UsageError(f"holds {what}", where=str(folder), remedy="Name another --runs.")
    making = runs / f".{run.name}.part"
    shutil.rmtree(making, ignore_errors=True)
    for name in (SCENARIOS, "trials", "records"):
        (making / name).mkdir(parents=True)
    for name, text in kept_scenarios(first.folder, first.run).items():  # nothing else that they name is looked at
        write_atomically(making / SCENARIOS / f"{name}.yaml", text)
    write_run(making, run)
    mine = {cell.cell_id: cell for cell in run.plan.cells}
    for record in (record for one in parts for record in one.records):
        cell = mine[record.cell.cell_id]
        write_record(record_file(making, cell), record.model_copy(update={"cell": cell, **builds}))
    if folder.exists():
        shutil.rmtree(folder)
    making.rename(folder)
    return folder
