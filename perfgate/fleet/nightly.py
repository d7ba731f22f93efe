"""A night: the reference build against itself, then the head against the reference, and what may be promoted.

The first half says whether the machine can be trusted tonight: a build that is slower than itself is a fault of the
machine, and a verdict on the head would be one as well. Both halves are ordinary runs with error rates of their own.
The second is the verdict of the night.

Where there is an anchor, reference and head are then measured beside it. These are visits and decide nothing tonight:
that of the reference may be promoted to the baselines, that of the head to the nights that a drift is read from.
"""

from __future__ import annotations

import math
import secrets
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from pydantic import Field

from perfgate import __version__, gate, rooms
from perfgate.capture.pace import Progress
from perfgate.errors import InterruptedRunError, PerfgateError, RecordError, UsageError, Verdict
from perfgate.judge.outcome import WORST_FIRST, Outcome, verdict_json, worst
from perfgate.machine.atomic_files import write_atomically
from perfgate.machine.locks import hold
from perfgate.machine.versioned_json import read_model, write_model
from perfgate.metrics.sides import Side
from perfgate.models import Frozen, Note, absent
from perfgate.record.manifest import read_manifest
from perfgate.record.run_names import NIGHT, run_below, stamped
from perfgate.record.run_record import read_run
from perfgate.record.shards import Assigned
from perfgate.run_steps import part_of
from perfgate.scenario.declaration import load
from perfgate.scenario.plan import resolve_cells
from perfgate.scenario.subject import Subject

MANIFEST = NIGHT
REFERENCE, HEAD = "reference", "head"
# The halves in order: the folder of each, and what its cells are called by in the report
HALVES = {REFERENCE: "reference against itself", HEAD: "head against reference"}
# The visits beside an anchor, after the halves: the folder of each, and what is measured there
BESIDE = {"anchored-reference": REFERENCE, "anchored-head": HEAD}
BASELINES = Path("baselines")  # what they are held against, from the working directory


class Night(Frozen):
    """What one command measures in two runs; ``night.json``."""

    format: Literal["perfgate-night/1"] = "perfgate-night/1"
    name: str  # of its folder
    scenarios: tuple[Path, ...]  # scenario files, from the working directory
    subjects: dict[Side, Subject]  # `base` is the reference
    seed: int  # draws the order within pairs; each further part takes the next number
    # What both are measured beside; `None` where there is none, and then not written
    anchor: Subject | None = Field(default=None, exclude_if=absent)
    # The part of a plan that is measured here; `None` for a whole night, and then not written
    shard: Assigned | None = Field(default=None, exclude_if=absent)

    @property
    def parts(self) -> tuple[str, ...]:
        """The folders of its runs, in order."""
        return (*HALVES, *(BESIDE if self.anchor else ()))

    def sides(self, part: str) -> dict[Side, Subject]:
        """The subjects of one of its runs."""
        reference = self.subjects["base"]
        if part in BESIDE and self.anchor is not None:
            return {"base": self.anchor, "head": reference if BESIDE[part] == REFERENCE else self.subjects["head"]}
        return {"base": reference, "head": reference if part == REFERENCE else self.subjects["head"]}


def run_night(
    scenarios: Sequence[Path], subjects: dict[Side, Subject], *, anchor: Subject | None = None,
    runs: Path = Path("runs"), seed: int | None = None, shard: Assigned | None = None, **means: Any,
) -> gate.Finished:  # fmt: skip
    """Measure a night.

    Both are measured beside the anchor, if there is one. A shard is the part of a plan that is measured here, and its
    seed is used where none is given. ``means`` are those of :func:`perfgate.gate.run`; the budget is that of all runs.

    Raises:
        UsageError: There is no head, or the anchor cannot be told from others.
        RecordError: A baseline that visits are to be held against is broken.
        InterruptedRunError: Stopped, or out of budget; :func:`resume_night` goes on.
        PerfgateError: See :func:`perfgate.gate.run`.
    """
    if "head" not in subjects:
        remedy = "Name it: --head python=..., or whatever differs from the base."
        raise UsageError("a night needs a head", remedy=remedy)
    if anchor is not None:  # hours before the first run beside it begins
        cells = [cell for file in scenarios for cell in resolve_cells(load(file))]
        rooms.use("references").stored_for(BASELINES, cells, {"base": anchor, "head": subjects["head"]})
    name = stamped("night")
    drawn = shard.plan.seed if shard else secrets.randbits(32)
    night = Night(
        name=name, scenarios=tuple(scenarios), subjects=subjects, anchor=anchor, shard=shard,
        seed=drawn if seed is None else seed,
    )  # fmt: skip
    folder = runs / name
    folder.mkdir(parents=True)
    write_model(folder / MANIFEST, night)
    return _measure(folder, night, lambda _: None, **means)


def resume_night(folder: Path, *, prepare: Callable[[Any], None] = lambda _: None, **means: Any) -> gate.Finished:
    """Go on with a night that was stopped; what is decided stays.

    ``prepare`` is given what has ``subjects`` before anything of theirs is measured, as by
    :func:`perfgate.gate.resume`.

    Raises:
        RecordError: The folder holds no night.
        PerfgateError: See :func:`run_night`.
    """
    night = read_night(folder)
    for part in night.parts:
        if run_of(folder, part) is None:
            prepare(SimpleNamespace(subjects=night.sides(part)))  # a run that is yet to begin
    return _measure(folder, night, prepare, **means)


def read_night(folder: Path) -> Night:
    """The manifest of a night.

    Raises:
        RecordError: There is none, or another version wrote it.
    """
    return read_model(Night, folder / MANIFEST)


def judge_night(folder: Path) -> Outcome:
    """One outcome of both halves, written to ``verdict.json``; the head's verdict where the reference holds still.

    Raises:
        RecordError: The folder holds no night, or a record in it cannot be trusted.
    """
    outcome = night_outcome(folder, gate.judge_folder)
    write_atomically(folder / "verdict.json", verdict_json(outcome))
    return outcome


def night_outcome(folder: Path, judge: Callable[[Path], Outcome] = gate.outcome_of) -> Outcome:
    """One outcome of both halves; ``judge`` judges each.

    Raises:
        RecordError: See :func:`judge_night`.
    """
    night = check_halves(folder)
    begun = {half: run for half in HALVES if (run := run_of(folder, half)) is not None}
    parts = [part for run in begun.values() if (part := read_run(run).part) is not None and part.joined]
    return _combined(night, {half: judge(run) for half, run in begun.items()}, parts[0].by_machine if parts else ())


def night_in(folder: Path) -> Path | None:
    """The night that a folder is, or holds; ``None`` where there is none."""
    return next((file.parent for where in (MANIFEST, f"*/{MANIFEST}") for file in sorted(folder.glob(where))), None)


def check_halves(folder: Path) -> Night:
    """The manifest of a night whose halves measured what it says: else a reference could pass for the head.

    Raises:
        RecordError: They did not, or there is no night.
    """
    night = read_night(folder)
    for part in night.parts:
        begun, meaning = run_of(folder, part), _meaning(part)
        if begun is not None and read_manifest(begun).subjects != night.sides(part):
            raise RecordError(f"is not {meaning}: its subjects are not those of {MANIFEST}", where=str(begun))
    return night


def _meaning(part: str) -> str:
    return HALVES.get(part, f"{BESIDE.get(part)} beside the anchor")


def candidate(folder: Path) -> Path | None:
    """The run whose reference may be one more visit of the stored baseline; ``None`` where none may.

    There is one where the reference held still, whatever became of the head: the reference is the same build every
    night, so its visits accumulate, and heads, each another build, would begin anew every night. It is the visit beside
    the anchor, which holds times and ratios, else the first half. Nothing is written.
    """
    begun = run_of(folder, REFERENCE)
    if begun is None or gate.outcome_of(begun).verdict != "pass":
        return None
    return _beside(folder, REFERENCE) or begun


def night_of_the_head(folder: Path) -> Path | None:
    """The head's visit beside the anchor, a night that a drift can be read from; ``None`` where the reference moved."""
    return _beside(folder, HEAD) if candidate(folder) is not None else None


def _beside(folder: Path, what: str) -> Path | None:
    """The visit of one build beside the anchor, if it was measured to its end."""
    part = next(part for part, measured in BESIDE.items() if measured == what)
    begun = run_of(folder, part)
    whole = begun is not None and gate.outcome_of(begun).verdict not in ("not-measured", "internal-error")
    return begun if whole else None


def run_of(folder: Path, part: str) -> Path | None:
    """The run folder of a part; ``None`` before it has begun."""
    return run_below(folder / part)


def _measure(
    folder: Path, night: Night, prepare: Callable[[Any], None], *, budget_s: float = math.inf,
    progress: Progress = lambda _: None, **means: Any,
) -> gate.Finished:  # fmt: skip
    deadline_s = time.monotonic() + budget_s
    with hold(folder):
        for number, part in enumerate(night.parts):
            begun, left_s = run_of(folder, part), deadline_s - time.monotonic()
            means["progress"] = part_of(progress, f"{_meaning(part)} ({number + 1} of {len(night.parts)})")
            try:
                if begun is None:
                    where: dict[str, Any] = {"runs": folder / part, "seed": night.seed + number, "shard": night.shard}
                    where["against"] = BASELINES if part in BESIDE else None
                    gate.run(night.scenarios, night.sides(part), budget_s=left_s, **where, **means)
                else:
                    gate.resume(begun, budget_s=left_s, prepare=prepare, **means)
            except InterruptedRunError as error:
                judge_night(folder)
                remedy = f"Go on with: perfgate nightly --resume {shlex.quote(str(folder))}"
                raise InterruptedRunError(error.text, remedy=remedy, code=error.code) from error
            except PerfgateError:
                if part in BESIDE:  # visits decide nothing: the night has its verdict, and the error is told besides
                    judge_night(folder)
                raise
        return gate.Finished(folder, judge_night(folder))


def _combined(night: Night, halves: dict[str, Outcome], machines: Sequence[tuple[str, Sequence[str]]] = ()) -> Outcome:
    """One outcome of both halves, the cells of each machine by the reference that was measured there."""
    missing = [meaning for half, meaning in HALVES.items() if half not in halves]
    cells = [cell.model_copy(update={"name": f"{HALVES[half]}: {cell.name}"})
             for half, outcome in halves.items() for cell in outcome.cells]  # fmt: skip
    reasons = [Note(code="not-started", text=meaning) for meaning in missing]
    verdict: Verdict = "not-measured"
    if not missing:
        parts = [(f"{what}: ", {half: _of_cells(outcome, names) for half, outcome in halves.items()})
                 for what, names in machines] or [("", halves)]  # fmt: skip
        findings = [_by_its_reference(part, where) for where, part in parts]
        # A half that was joined may be worse than its cells: what was given for it is not all of this plan.
        whole = [outcome.verdict for outcome in halves.values() if machines and outcome.verdict == "not-measured"]
        verdict = worst([*(verdict for verdict, _ in findings), *whole])
        reasons += [note for _, notes in findings for note in notes]
    rates = next(iter(halves.values()), None)
    return Outcome(
        run=night.name, perfgate=__version__, verdict=verdict, exit_status=WORST_FIRST[verdict],
        alpha=rates.alpha if rates else 0.0, beta=rates.beta if rates else 0.0, cells=tuple(cells),
        reasons=(*reasons, *(note for outcome in halves.values() for note in outcome.reasons)),
    )  # fmt: skip


def _of_cells(outcome: Outcome, names: Sequence[str]) -> Outcome:
    cells = tuple(cell for cell in outcome.cells if cell.name in names)
    return outcome.model_copy(update={"cells": cells, "verdict": worst(cell.verdict for cell in cells)})


def _by_its_reference(halves: Mapping[str, Outcome], where: str) -> tuple[Verdict, list[Note]]:
    """The head's verdict where the reference held still; else what a night is worth, and why, there.

    Where the reference was undecided, nothing passes, but what the second half found keeps its own error rates. Where
    it differs from itself, in either direction, or was not measured, the head's difference may be the machine's.
    """
    reference, head = (halves[half].verdict for half in HALVES)
    if reference == "pass":
        return head, []
    text = f"{where}the reference build against itself: {reference}; the head against the reference: {head}"
    moved = any(gate.verdict == "improved" for cell in halves[REFERENCE].cells for gate in cell.gates)
    verdict: Verdict = "not-measured"
    if reference == "inconclusive" and not moved:
        verdict = worst(("inconclusive", head))
    elif "internal-error" in (reference, head):  # an error of perfgate itself is none of the machine
        verdict = "internal-error"
    return verdict, [Note(code="reference-unsteady", text=text)]
