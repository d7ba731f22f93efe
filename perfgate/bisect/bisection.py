"""A search on disk: its commits, its steps, each an ordinary run, and what both say so far.

Nothing of the search is kept beside the runs: its state is read from their folders each time, so that a search that was
killed goes on where it was, and what was measured counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from perfgate import gate, stats
from perfgate.bisect.commit_posterior import Comparison, Evidence, Posterior
from perfgate.bisect.commit_search import Answer, Limits, Step, next_step
from perfgate.bisect.lost_gate import chosen, lost
from perfgate.errors import NotComparableError, RecordError
from perfgate.judge.cell_verdict import evidence_of_run
from perfgate.judge.next_pairs import due
from perfgate.judge.outcome import Outcome
from perfgate.machine.fingerprint import comparable
from perfgate.machine.versioned_json import read_model
from perfgate.models import Frozen, Note
from perfgate.project.git import Commit
from perfgate.record.dropped_pairs import reopened
from perfgate.record.manifest import read_manifest
from perfgate.record.run_names import RUN
from perfgate.record.run_record import Record, Run, read_records
from perfgate.scenario.declaration import LoadedScenario, loads
from perfgate.scenario.plan import Cell

MANIFEST = "bisect.json"
STEPS, SKIPPED = "steps", "skipped"  # folders of a search: of its runs, and of why commits were left out
Purpose = Literal["reproduce", "search", "confirm"]
_STEP = re.compile(r"\d{3,}-(reproduce|search|confirm)-[0-9a-f]+")


class Bisection(Frozen):
    """What one search is about; ``bisect.json``."""

    format: Literal["perfgate-bisect/1"] = "perfgate-bisect/1"
    name: str  # of its folder
    scenario: Path  # the scenario's file
    text: str  # its text when the search began
    words: tuple[str, ...] = ()  # what names a build beside its commit, as after `--base`
    commits: Annotated[tuple[Commit, ...], Field(min_length=2)]  # the line, the good one first and the bad one last
    cell: str = ""  # the only cell that may be searched for; empty for whichever was lost
    metric: str = ""  # the only metric; empty as above
    error: float  # declared probability of a wrong answer
    pairs: int  # no step is begun after so many
    recipe: str  # digest of how commits are built
    seed: int  # the first step's; each later one takes the next number

    @property
    def last(self) -> int:
        """The number of the bad commit."""
        return len(self.commits) - 1

    @cached_property
    def loaded(self) -> LoadedScenario:
        """The scenario as it was when the search began."""
        return loads(self.text, self.scenario)

    @property
    def limits(self) -> Limits:
        """When it ends."""
        return Limits(self.error, self.pairs)


# Reason codes of a build that cannot be measured, whatever the machine is like
OF_THE_BUILD = ("build-failed", "subject-not-found", "engine-import-failed")


class Skipped(Note):
    """Why a commit is left out."""

    format: Literal["perfgate-bisect-skipped/1"] = "perfgate-bisect-skipped/1"
    after: int = 0  # how many steps were begun before


@dataclass(frozen=True)
class Taken:
    """A step that was begun."""

    folder: Path  # its run folder
    purpose: Purpose  # what for
    base: int  # number of the commit on the base's side
    head: int  # number of the other
    run: Run  # the run's manifest
    records: Mapping[str, Record]  # its records by cell

    @cached_property
    def is_open(self) -> bool:
        """Whether something is left to measure; the first comparison is taken again where it could not be made."""
        again = reopened if self.purpose == "reproduce" else None
        return any(due(self.run, {key: again(record) if again else record for key, record in self.records.items()}))

    @cached_property
    def outcome(self) -> Outcome:
        """The run as it is judged."""
        return gate.outcome_of(self.folder)


@dataclass(frozen=True)
class State:
    """A search as its folders tell it."""

    bisection: Bisection  # what it is about
    taken: tuple[Taken, ...] = ()  # the steps that were begun, in order
    # Commits that are left out, by number, with the reason
    skipped: Mapping[int, Skipped] = field(default_factory=dict)

    @property
    def unfinished(self) -> Taken | None:
        """The step that was stopped, if one was."""
        return next((step for step in self.taken if step.is_open), None)

    @property
    def reproduction(self) -> Taken | None:
        """The comparison of the good and the bad commit."""
        return next((step for step in self.taken if step.purpose == "reproduce"), None)

    @property
    def measured(self) -> frozenset[int]:
        """The commits of steps that were begun."""
        return frozenset(number for step in self.taken for number in (step.base, step.head))

    @property
    def unbuilt(self) -> dict[int, Skipped]:
        """The commits that did not build since the last one did: with them it may be the build that is broken."""
        seen, last = set[int](), 0
        for count, step in enumerate(self.taken, 1):
            if not {step.base, step.head} <= seen:
                seen, last = seen | {step.base, step.head}, count
        return {number: note for number, note in self.skipped.items()
                if note.code in OF_THE_BUILD and note.after >= last}  # fmt: skip

    @cached_property
    def lost(self) -> tuple[Cell, str] | None:
        """The cell and the metric that are searched for; ``None`` before a difference was reproduced."""
        if self.reproduction is None or self.reproduction.is_open:
            return None
        bisection = self.bisection
        return lost(self.reproduction.outcome, *chosen(bisection.loaded, bisection.cell, bisection.metric))

    @cached_property
    def evidence(self) -> Evidence:
        """What was measured of that cell and metric."""
        measured = [pairs for step in self.taken if (pairs := self._pairs(step)) is not None]
        return Evidence(
            self.bisection.last,
            tuple(comparison for comparison, _ in measured),
            frozenset(self.skipped),
            max((resolution for _, resolution in measured), default=0.0),
        )

    @property
    def posterior(self) -> Posterior | None:
        """What it says of each commit; ``None`` before a difference was reproduced."""
        return Posterior(self.evidence) if self.lost is not None else None

    @cached_property
    def next(self) -> Step | Answer | None:
        """What comes next, or the answer; ``None`` where the good and the bad commit were not shown to differ."""
        if self.reproduction is None:
            return Step(0, self.bisection.last, None, "reproduce")
        if self.lost is None:
            return None
        confirmed = {(step.base, step.head) for step in self.taken if step.purpose == "confirm" and not step.is_open}
        return next_step(self.evidence, self.bisection.limits, frozenset(confirmed))

    def counts(self, step: Taken) -> bool:
        """Whether a step has pairs of what was lost."""
        return self._pairs(step) is not None

    def _pairs(self, step: Taken) -> tuple[Comparison, float] | None:
        if self.lost is None:
            return None
        cell, metric = self.lost
        record = step.records.get(cell.cell_id)
        if record is None or record.stopped is not None:
            return None
        gate = next((plan for plan in record.cell.gates if plan.gate.measured.name == metric), None)
        if gate is None:
            raise RecordError(f"{record.cell.name} has no gate on {metric}", where=str(step.folder))
        series = evidence_of_run(step.run, record.cell, record).series(gate)
        if series.fault is not None or not series.base:
            return None
        d = stats.log_ratios(series.base, series.head, series.metric.sign)
        return Comparison(step.base, step.head, tuple(d.tolist())), series.resolution


def read_state(folder: Path, before: State | None = None) -> State:
    """A search from its folders.

    Steps that were over when ``before`` was read are not read again.

    Raises:
        RecordError: There is no search, or a run in it is not one of its steps.
        NotComparableError: ``different-machines``: its steps were measured on different ones.
    """
    bisection = before.bisection if before else read_model(Bisection, folder / MANIFEST)
    over = {step.folder: step for step in before.taken if not step.is_open} if before else {}
    numbers = {commit.commit: number for number, commit in enumerate(bisection.commits)}
    taken = tuple(_taken(folder, bisection, numbers, over))
    machines = [visit.machine for step in taken for record in step.records.values() for visit in record.visits]
    for machine in machines[1:]:
        if differences := comparable(machines[0], machine):
            raise NotComparableError(
                f"its steps were measured on different machines: {'; '.join(differences)}", where=str(folder),
                remedy="Go on where it was begun, or begin a new search here.", code="different-machines",
            )  # fmt: skip
    skipped = {
        numbers[file.stem]: read_model(Skipped, file)
        for file in sorted((folder / SKIPPED).glob("*.json"))
        if file.stem in numbers
    }
    return State(bisection, taken, skipped)


def _taken(
    folder: Path, bisection: Bisection, numbers: Mapping[str, int], over: Mapping[Path, Taken]
) -> Iterator[Taken]:
    for entry in sorted((folder / STEPS).iterdir()) if (folder / STEPS).is_dir() else ():
        if (named := _STEP.fullmatch(entry.name)) is None:
            continue
        for file in sorted(entry.glob(f"*/{RUN}")):
            if file.parent in over:
                yield over[file.parent]
                continue
            run = read_manifest(file.parent)
            base, head = (_number(file.parent, run, side, bisection, numbers) for side in ("base", "head"))
            records = {record.cell.cell_id: record for record in read_records(file.parent, run)}
            purpose: Purpose = named[1]  # type: ignore[assignment]  # by the pattern
            yield Taken(file.parent, purpose, base, head, run, records)


def _number(folder: Path, run: Run, side: str, bisection: Bisection, numbers: Mapping[str, int]) -> int:
    """The number of the commit that was measured on a side."""
    subject = run.built.get(side)
    source = subject.built_from if subject is not None else None
    if source is None or source.changes or source.commit not in numbers or source.recipe != bisection.recipe:
        text = f"its {side} is not a commit of this search, built as it was when the search began"
        raise RecordError(text, where=str(folder), remedy="Move this folder away; the step is then taken again.")
    return numbers[source.commit]
