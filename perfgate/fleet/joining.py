"""Joining: the run folders of the parts of one plan become one run folder, which is judged once.

Whoever measured a part may have written anything, so a part is read as any run folder is: its plan is resolved again
from its scenarios, its records must be of it. What is not one part of the plan is left out, and then nothing passes.
Trials stay with their parts; records are all that a verdict needs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Self

from perfgate.errors import NotMeasuredError, PerfgateError, UsageError, Verdict
from perfgate.judge.cell_verdict import judge
from perfgate.machine.atomic_files import canonical_json, write_atomically
from perfgate.metrics.sides import Side
from perfgate.models import Note
from perfgate.record.dropped_pairs import CHANGED, reopened
from perfgate.record.manifest import SCENARIOS, check_sequence, kept_scenarios, read_manifest
from perfgate.record.measured_builds import unlike_builds
from perfgate.record.run_names import RUN
from perfgate.record.run_record import Record, Run, read_records, read_run, record_file, write_record, write_run
from perfgate.record.shards import ShardPlan
from perfgate.scenario.part import Part, plan_digest
from perfgate.scenario.subject import Subject

# Verdicts of a cell that was measured: it is not measured again, so that no gate has two chances
DECIDED: tuple[Verdict, ...] = ("pass", "improved", "regressed", "inconclusive", "internal-error")


@dataclass(frozen=True)
class MeasuredPart:
    """One part of a plan as it was measured."""

    folder: Path  # its run folder
    run: Run  # its manifest
    part: Part  # which one it is
    records: tuple[Record, ...]  # what was measured

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
    def names(self) -> frozenset[str]:
        """Those of the cells that were to be measured."""
        shards = (self.part.shards[number - 1] for number in self.part.numbers)
        return frozenset(chain.from_iterable(self.part.again if self.part.is_second_try else shards))

    def left(self, *, beside_itself: bool = False) -> frozenset[str]:
        """The names of the cells that can be measured anew on another machine without a second chance for any gate.

        Those that a later visit would take up, and of which nothing is known: they have no verdict, and no look has
        been taken at any gate, for that could have decided it.

        With ``beside_itself`` a build was held against itself, which tells of this machine and of no build: only a cell
        in which it did not hold still is kept.
        """
        stopped = {record.cell.cell_id for record in map(reopened, self.records) if record.stopped or record.stops}
        records = {record.cell.cell_id: record for record in self.records}
        decided = {
            cell.cell_id
            for cell in judge(self.run, records).cells
            if (cell.verdict in DECIDED or any(gate.pairs for gate in cell.gates))
            and not (beside_itself and cell.verdict in ("pass", "not-measured"))
        }
        return frozenset(cell.name for cell in self.run.cells if cell.cell_id not in stopped | decided)

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
            "attempt": str(self.part.attempt),
        }


@dataclass(frozen=True)
class Given:
    """What was given to be joined."""

    parts: tuple[MeasuredPart, ...]  # those that are taken, in the plan's order
    faults: tuple[Note, ...]  # why first tries are not, and then nothing passes
    aside: tuple[Note, ...]  # why second tries are not; what the others hold is judged without them


def _builds(built: Mapping[Any, Subject]) -> str:
    """Builds without the place of the cache that they are in: each machine makes them in its own."""
    portable = {}
    for label, subject in built.items():
        text = canonical_json(subject.model_dump(mode="json"))
        if subject.built_from is not None:
            text = text.replace(json.dumps(subject.built_from.folder)[1:-1], "{build}")
        portable[label] = json.loads(text)
    return canonical_json(portable)


def part_in(folder: Path) -> Path:
    """The one run folder that a folder is, or holds: an artifact holds the folder of runs.

    Raises:
        NotMeasuredError: ``shard-missing``: it holds none, or several.
    """
    folders = [folder] if (folder / RUN).is_file() else [file.parent for file in sorted(folder.glob(f"*/{RUN}"))]
    if len(folders) != 1:
        text = f"holds {len(folders)} folders with {RUN}, expected one"
        raise NotMeasuredError(text, where=str(folder), code="shard-missing")
    return folders[0]


def join(
    folders: Sequence[Path], runs: Path, declared: Mapping[str, str] | None = None,
    subjects: Mapping[Side, Subject] | None = None,
    left: Callable[[MeasuredPart], Collection[str]] = MeasuredPart.left,
) -> Path:  # fmt: skip
    """Make one run folder of the parts of a plan; parts that were joined before are made anew.

    Args:
        folders: Run folders of the parts, or folders that hold one each.
        runs: Where the joined run's folder is made.
        declared: What parts must agree in, as :func:`agreed_in` has it. What differs is left out then, and the outcome
            says so; without it that is an error, because nobody knows which part is right.
        subjects: The builds that the joined run names; by default those of its first part.
        left: The cells of a part that another part may have measured again.

    Raises:
        NotMeasuredError: ``shard-foreign``: the parts are not those of one plan, or one is there twice;
            ``shard-missing``: there is none; ``subject-changed``: they measured other files under one name.
        UsageError: Another run is where the joined one belongs.
    """
    expected = dict(declared or {}) | ({"builds": _builds(subjects)} if subjects else {})
    given = sort_out(folders, expected, left)
    reasons = "; ".join(note.text for note in (*given.faults, *given.aside)) or "no shard was given"
    if given.faults and declared is None:
        raise NotMeasuredError(reasons, code=given.faults[0].code)
    if not given.parts:
        raise NotMeasuredError(reasons, code="shard-missing")
    return _write(given, runs, subjects)


def agreed_in(plan: ShardPlan, later: int = 0) -> dict[str, str]:
    """What the parts of a plan that was printed must agree in; ``later`` is added to its seed."""
    return {"plan": plan.digest, "seed": str(plan.seed + later), "attempt": str(plan.attempt)}


def sort_out(
    folders: Sequence[Path], declared: Mapping[str, str], left: Callable[[MeasuredPart], Collection[str]]
) -> Given:
    """The parts of one plan, each once but for what was left of it, and why others are none; see :func:`join`."""
    parts: list[MeasuredPart] = []
    faults: list[Note] = []
    aside: list[Note] = []
    for folder in folders:
        try:
            parts.append(MeasuredPart.read(part_in(folder)))
        except PerfgateError as error:
            faults.append(Note(code=error.code or "shard-foreign", text=error.finding))
    # First tries come first, so that without a plan it is one of them that says which plan it is.
    parts.sort(key=lambda shard: shard.part.is_second_try)
    expected = dict(declared)
    good: list[MeasuredPart] = []
    for shard in parts:
        differing = [name for name, value in shard.agreed.items() if expected.setdefault(name, value) != value]
        if differing and declared and shard.part.is_second_try:
            aside.append(_set_aside(shard, _apart(shard, differing, expected, "what was planned")))
        elif differing:
            text = _apart(shard, differing, expected, "what was planned" if declared else f"those of {parts[0].folder}")
            faults.append(Note(code="shard-foreign", text=f"{shard.folder}: {text}"))
        elif other := next(unlike_builds(chain.from_iterable(part.records for part in (*good, shard))), ""):
            is_spare = declared and shard.part.is_second_try
            (aside if is_spare else faults).append(
                _set_aside(shard, other) if is_spare else Note(code=CHANGED, text=f"{shard.folder}: {other}")
            )
        else:
            good.append(shard)
    first, second = ([shard for shard in good if shard.part.is_second_try == again] for again in (False, True))
    numbers = [number for shard in first for number in shard.part.numbers]
    twice = {number for number in numbers if numbers.count(number) > 1}
    for number in sorted(twice):
        where = " and ".join(str(shard.folder) for shard in first if number in shard.part.numbers)
        faults.append(Note(code="shard-foreign", text=f"shard {number} is there twice: {where}"))
    first = [shard for shard in first if not twice & {*shard.part.numbers}]
    why = {shard.folder: _why_unused(shard, first, second, twice, left) for shard in second}
    aside += [_set_aside(shard, text) for shard in second if (text := why[shard.folder])]
    taken = sorted(
        (*first, *(shard for shard in second if not why[shard.folder])),
        key=lambda shard: (shard.part.numbers, shard.part.again),
    )
    return Given(tuple(taken), tuple(faults), tuple(aside))


def _apart(shard: MeasuredPart, differing: Sequence[str], expected: Mapping[str, str], what: str) -> str:
    if [*differing] == ["attempt"]:  # GitHub runs failed jobs again alone, and keeps the plan
        return (f"measured in attempt {shard.part.attempt} of its job, and not in {expected['attempt']} as planned: "
                "what an earlier attempt found is not known")  # fmt: skip
    return f"its {' and '.join(differing)} differ from {what}"


def _set_aside(shard: MeasuredPart, why: str) -> Note:
    return Note(code="second-try-unused", text=f"{shard.folder}: {why}")


def _why_unused(
    shard: MeasuredPart, first: Sequence[MeasuredPart], second: Sequence[MeasuredPart], twice: Collection[int],
    left: Callable[[MeasuredPart], Collection[str]],
) -> str:  # fmt: skip
    """Why a second try would be another chance for a cell; empty where it only fills what the first try left.

    Nothing that it found decides that, nor what another second try found: of several it is not known which was first.
    """
    numbers = {*shard.part.numbers}
    before = [other for other in first if numbers & {*other.part.numbers}]
    others = [other for other in second if other is not shard and numbers & {*other.part.numbers}]
    tried = {name for other in before for name in chain.from_iterable(other.part.again)}
    if others or shard.names & tried:
        return "another second try of its shard is there, and no cell has a third"
    if numbers & {*twice}:
        return "the first try of its shard is there twice"
    held = shard.names - frozenset.intersection(shard.names, *(frozenset(left(other)) for other in before))
    return f"the first try of its shard holds {min(held)}" if held else ""


def _write(given: Given, runs: Path, subjects: Mapping[Side, Subject] | None) -> Path:
    parts = given.parts
    first = parts[0]
    numbers = tuple(sorted({number for shard in parts for number in shard.part.numbers}))
    again = tuple(names for shard in parts for names in shard.part.again)
    elsewhere = {name for shard in parts if shard.part.is_second_try for name in shard.names}
    notes = {"faults": given.faults, "aside": given.aside}
    part = first.part.model_copy(update={"numbers": numbers, "joined": True, "again": again, **notes})
    builds = {"subjects": dict(subjects or first.run.subjects), "heads": first.run.heads}
    run = first.run.model_copy(update={"name": part.run, "part": part, **builds})
    folder = runs / run.name
    if folder.exists():
        there, trials = read_run(folder).part, any((folder / "trials").glob("*"))
        if there is None or not there.joined or there.shards != part.shards or trials:
            what = "trials of its own" if trials else "another run than these shards make"
            raise UsageError(f"holds {what}", where=str(folder), remedy="Name another --runs.")
    making = runs / f".{run.name}.part"
    shutil.rmtree(making, ignore_errors=True)
    for name in (SCENARIOS, "trials", "records"):
        (making / name).mkdir(parents=True)
    for name, text in kept_scenarios(first.folder, first.run).items():  # nothing else that they name is looked at
        write_atomically(making / SCENARIOS / f"{name}.yaml", text)
    write_run(making, run)
    mine = {cell.cell_id: cell for cell in run.plan.cells}
    for record in (
        record
        for shard in parts
        for record in shard.records
        if shard.part.is_second_try or record.cell.name not in elsewhere
    ):
        cell = mine[record.cell.cell_id]
        write_record(record_file(making, cell), record.model_copy(update={"cell": cell, **builds}))
    if folder.exists():
        shutil.rmtree(folder)
    making.rename(folder)
    return folder
