"""A campaign: one build against itself, and against itself with plants of the catalogue, on this machine.

Each exercise is an ordinary run in a folder of its own, judged like any other, so a campaign that was stopped goes on
where it was, and its board can be made again from its folder anywhere.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import secrets
import shlex
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import psutil
from pydantic import Field, model_validator

from perfgate import gate
from perfgate.capture.engine import gpus_of
from perfgate.capture.gpus import first_station, stations
from perfgate.capture.job import Collector
from perfgate.capture.pace import Progress
from perfgate.drill.plants import Device, Plant
from perfgate.errors import InterruptedRunError, NotComparableError, PerfgateError, UsageError
from perfgate.judge.next_pairs import due
from perfgate.machine.accelerator import connect
from perfgate.machine.fingerprint import machine_class, read_machine
from perfgate.machine.locks import hold
from perfgate.machine.versioned_json import read_model, write_model
from perfgate.metrics.sides import Side
from perfgate.models import Frozen, Note
from perfgate.record.manifest import read_manifest
from perfgate.record.run_names import DRILL, run_below, stamped
from perfgate.record.run_record import Record, Run, read_records
from perfgate.run_steps import part_of
from perfgate.scenario.declaration import load
from perfgate.scenario.plan import Cell, resolve_cells
from perfgate.scenario.subject import Subject
from perfgate.units import plural

SAME = "same-build"  # exercises of one build against itself are called so, and numbered
REFUSED = "refused.json"
LONGEST_NAME = 120
WORDS = re.compile(r"[A-Za-z0-9._]+")


class Exercise(Frozen):
    """One run of a campaign."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]  # of its folder
    plant: Plant | None = None  # what the head has more than the base; `None` for one build against itself
    size: str | None = None  # of the plant's dial; `None` where it has none

    def sides(self, build: Subject) -> dict[Side, Subject]:
        """What is measured on both sides of a build: a plant's feature is switched on for both."""
        if self.plant is None:
            return {"base": build, "head": build}
        return {"base": self.plant.base(build), "head": self.plant.subject(build, self.size)}

    def gpus(self, build: Subject, cells: Sequence[Cell]) -> int:
        """How many GPUs its engines take where they run on GPUs."""
        sides = self.sides(build).values()
        return max(gpus_of({**cell.engine.args, **side.args}) for cell in cells for side in sides)


class LeftOut(Note):
    """A plant that was asked for and is not run: its name in the place of a code, and why."""

    code: str


class Drill(Frozen):
    """What a campaign runs; ``drill.json``."""

    format: Literal["perfgate-drill/1"] = "perfgate-drill/1"
    name: str  # of its folder
    scenario: Path  # the scenario's file
    cells: tuple[str, ...]  # the cells that it had when the campaign began
    base: Subject  # the build
    device: Device  # what its engines run on
    exercises: tuple[Exercise, ...]  # in the order they are begun
    left_out: tuple[LeftOut, ...] = ()  # plants that were asked for and are not run
    seed: int  # the first exercise's; each later one takes the next number

    @model_validator(mode="after")
    def _each_once(self) -> Drill:
        if len({exercise.name for exercise in self.exercises}) < len(self.exercises):
            raise ValueError("exercises: two share a name, and so a run")
        return self


class Refused(Note):
    """Why an exercise could not begin: what perfgate said."""

    format: Literal["perfgate-refused/1"] = "perfgate-refused/1"


def begin_drill(
    scenario: Path, base: Subject, plants: Iterable[tuple[Plant, Sequence[str]]], runs: Path, same_build: int,
    seed: int | None,
) -> Path:  # fmt: skip
    """Make the folder of a campaign of a scenario on this machine.

    A plant comes with texts of sizes of its dial, commas between; its default where there is none. The seed is drawn
    where it is not given.

    Raises:
        UsageError: Nothing is left to run, a size is not one that its plant can have, or two have the same name.
        ScenarioError: The scenario is wrong.
    """
    with connect() or contextlib.nullcontext() as nvml:
        gpus = len(nvml.gpus(os.environ)) if nvml is not None else 0
    device: Device = "cuda" if gpus else "cpu"
    cells = resolve_cells(load(scenario))
    gated = {gate.gate.metric for cell in cells for gate in cell.gates}
    chosen, left_out = [], []
    for plant, sizes in plants:
        why, sized = "", []
        if device not in plant.runs_on:
            why = f"runs on {' and '.join(plant.runs_on)} only"
        elif plant.expect.verdict == "regressed" and not plant.expect.gates(gated):
            why = f"the scenario has no gate on {plant.expect.metric}"
        else:
            # A size may be JSON: host_work-50 or other_attention-backend-TRITON_ATTN.
            sized = [
                Exercise(name="-".join([plant.name, *WORDS.findall(size or "")])[:LONGEST_NAME], plant=plant, size=size)
                for size in dict.fromkeys(plant.chosen(sizes, device))
            ]
            needed = max(exercise.gpus(base, cells) for exercise in sized)
            if device == "cuda" and needed > gpus:
                why = f"takes {needed} GPUs, and {gpus} can be used"
        if why:
            left_out.append(LeftOut(code=plant.name, text=why))
        else:
            chosen += sized
    # Runs of the same build are spread among the others: a budget that ends early has both.
    same = [Exercise(name=f"{SAME}-{n + 1}") for n in range(same_build)]
    placed = [((n + 0.5) / len(row), exercise) for row in (same, chosen) for n, exercise in enumerate(row)]
    exercises = tuple(exercise for _, exercise in sorted(placed, key=lambda pair: pair[0]))
    _require_names(exercises)
    if not exercises:
        reasons = "; ".join(f"{note.code}: {note.text}" for note in left_out) or "no plant was named"
        raise UsageError(f"nothing to drill: {reasons}", remedy="Ask for runs of the same build with --same-build 4.")
    drill = Drill(
        name=stamped("drill"), scenario=scenario,
        cells=tuple(cell.cell_id for cell in cells), base=base, device=device, exercises=exercises,
        left_out=tuple(left_out), seed=secrets.randbits(32) if seed is None else seed,
    )  # fmt: skip
    folder = runs / drill.name
    folder.mkdir(parents=True)
    write_model(folder / DRILL, drill)
    return folder


def _require_names(exercises: Sequence[Exercise]) -> None:
    """See that no two exercises share a folder."""
    for name, count in Counter(exercise.name for exercise in exercises).items():
        if count > 1:
            alike = [f"size {each.size}" if each.size else name for each in exercises if each.name == name]
            raise UsageError(f"{' and '.join(alike)} would both be called {name}",
                             remedy="Drill them in campaigns of their own.")  # fmt: skip


def measure_drill(
    folder: Path, only: Sequence[str], budget_s: float, progress: Progress, collector: Collector | None
) -> None:
    """Run what is open of a campaign, side by side on GPUs that are free; a later call goes on.

    No pair is begun that would not end within the budget. Options are those of :func:`perfgate.gate.run`.

    Raises:
        UsageError: ``only`` names an exercise that the campaign does not have; the scenario or a plant was changed.
        InterruptedRunError: Stopped or out of budget; what was measured is kept.
        NotComparableError: ``different-machines``: what it has was measured on machines of another class.
        RecordError: The folder holds no campaign.
    """
    deadline_s = time.monotonic() + budget_s
    drill = read_model(Drill, folder / DRILL)
    index = {exercise.name: exercise for exercise in drill.exercises}
    if unknown := [name for name in only if name not in index]:
        raise UsageError(f"no exercise {', '.join(unknown)} in {folder}", remedy=f"It has {', '.join(index)}.")
    chosen = [index[name] for name in dict.fromkeys(only) or index if not _is_over(folder, index[name])]
    if not chosen:
        return
    cells = resolve_cells(load(drill.scenario))
    begun = [run for exercise in drill.exercises if (run := run_of(folder, exercise)) is not None]
    _require_the_same(drill, cells, begun)
    if changed := sorted({exercise.plant.name for exercise in chosen if exercise.plant and exercise.plant.changed}):
        text = f"the module of {', '.join(changed)} is not what it was when the campaign began"
        raise UsageError(text, remedy="Put it back, go on with --only other exercises, or begin a new campaign.")
    _require_this_machine(folder, begun)

    def gpus(exercise: Exercise) -> int:
        return exercise.gpus(drill.base, cells) if drill.device == "cuda" else 0

    for needed, alike in itertools.groupby(sorted(chosen, key=gpus), key=gpus):
        group = list(alike)
        slots = stations(needed, os.environ) if needed else []
        # Engines of this process take the first GPUs: where somebody is on those, another process takes free ones.
        if slots and (min(len(slots), len(group)) > 1 or slots[0] != first_station(needed, os.environ)):
            run_side_by_side(folder, [exercise.name for exercise in group], slots, deadline_s, progress)
        else:
            for exercise in group:
                _take(folder, drill, exercise, deadline_s, progress, collector)


def _require_the_same(drill: Drill, cells: Sequence[Cell], begun: Iterable[Path]) -> None:
    """See that the scenario still measures what the campaign began with, and judges it by the same gates and looks."""
    text = f"{drill.scenario} is not what it was when the campaign began"
    if tuple(cell.cell_id for cell in cells) != drill.cells:
        raise UsageError(f"{text}: {len(cells)} other cells", remedy="Begin a new campaign.")
    for run in begun:
        if [_declared(cell) for cell in read_manifest(run).plan.cells] != [_declared(cell) for cell in cells]:
            other = f"{text}: {run.parent.name} has other gates, looks or kernels"
            raise UsageError(other, remedy="Begin a new campaign, or put the scenario back.")


def _require_this_machine(folder: Path, begun: Iterable[Path]) -> None:
    """See that what was measured is of machines like this one: no board has rows of two classes."""
    records = [record for run in begun for record in read_records(run, read_manifest(run))]
    with connect() or contextlib.nullcontext() as nvml:
        gpus = nvml.gpus(os.environ) if nvml is not None else ()
        here = read_machine(gpus, nvml.driver, nvml.cuda) if nvml is not None and gpus else read_machine()
    for machine, mode in ((visit.machine, record.cell.clocks.mode) for record in records for visit in record.visits):
        fewer = min(len(machine.gpus), len(here.gpus))
        then, now = (machine_class(each.model_copy(update={"gpus": each.gpus[:fewer]}), mode)
                     for each in (machine, here))  # fmt: skip
        if then != now or bool(machine.gpus) != bool(here.gpus):
            raise NotComparableError(
                f"was begun on another class of machines: {machine_class(machine, mode)}, and this is {now}",
                where=str(folder), remedy="Go on with it where it was begun, or begin a new campaign here.",
                code="different-machines",
            )  # fmt: skip


def _declared(cell: Cell) -> dict[str, Any]:
    """What a cell declares, wherever that is written, without what is only expected of the machine."""
    elsewhere: Any = {"source": True, "model_folder": True, "gates": {"__all__": {"where"}}, "measure": {"expect"}}
    return cell.model_dump(exclude=elsewhere)


def run_of(folder: Path, exercise: Exercise) -> Path | None:
    """The run folder of an exercise; ``None`` before it has begun."""
    return run_below(folder / exercise.name)


def is_open(run: Run, records: Iterable[Record]) -> bool:
    """Whether something is left to measure of a run."""
    return any(due(run, {record.cell.cell_id: record for record in records}))


def _is_over(folder: Path, exercise: Exercise) -> bool:
    """Whether an exercise was measured to its end, or cannot be measured."""
    begun = run_of(folder, exercise)
    if begun is None:
        return False
    run = read_manifest(begun)
    return not is_open(run, list(read_records(begun, run)))


def _take(
    folder: Path, drill: Drill, exercise: Exercise, deadline_s: float, progress: Progress, collector: Collector | None
) -> None:
    """Run an exercise in this process; what perfgate refuses is noted, and costs the others nothing."""
    place = folder / exercise.name
    place.mkdir(exist_ok=True)
    number = drill.exercises.index(exercise)
    said = part_of(progress, f"{exercise.name} ({number + 1} of {len(drill.exercises)})")
    progress(f"{exercise.name} begins")
    with hold(place):
        (place / REFUSED).unlink(missing_ok=True)
        begun = run_of(folder, exercise)
        budget_s = deadline_s - time.monotonic()
        try:
            if begun is None:
                gate.run([drill.scenario], exercise.sides(drill.base), runs=place, seed=drill.seed + number,
                         budget_s=budget_s, progress=said, collector=collector)  # fmt: skip
            else:
                gate.resume(begun, budget_s=budget_s, progress=said, collector=collector)
        except InterruptedRunError as error:
            raise InterruptedRunError(error.text, remedy=way_on(folder), code=error.code) from error
        except PerfgateError as error:
            write_model(place / REFUSED, Refused(code=error.code, text=error.finding))
            progress(f"{exercise.name} was refused: {error.finding}")


LOG = "perfgate.log"  # in the folder of an exercise: what its process says
LOOK_S = 0.5  # how often processes side by side are looked at


def run_side_by_side(
    folder: Path, exercises: Sequence[str], slots: Sequence[str], deadline_s: float, progress: Progress
) -> None:
    """Run exercises in processes of their own, one a station; each is ``perfgate drill --only``.

    Raises:
        InterruptedRunError: Stopped or out of budget; what was measured is kept.
    """
    waiting, free = deque(exercises), deque(slots)
    at_work: dict[psutil.Process, tuple[str, str]] = {}
    stopped = False
    counted = f"{plural(len(exercises), 'exercise')}, at most {len(slots)} at once"
    progress(f"{counted}; how far each is: tail -f {shlex.quote(str(folder))}/*/{LOG}")
    try:
        while at_work or (waiting and not stopped):
            while waiting and free and not stopped:
                exercise, slot = waiting.popleft(), free.popleft()
                at_work[_start(folder, exercise, slot, deadline_s)] = (exercise, slot)
                progress(f"{exercise} begins on GPU {slot}")
            gone, _ = psutil.wait_procs(list(at_work), timeout=LOOK_S)
            for process in gone:
                exercise, slot = at_work.pop(process)
                free.append(slot)
                stopped |= process.wait() == InterruptedRunError.exit_status
                # Not its exit status, which is that of the whole board: 22 as long as another exercise is to be done.
                progress(f"{exercise} ended, {len(waiting)} waiting")
    except KeyboardInterrupt as error:
        raise InterruptedRunError("stopped", remedy=way_on(folder), code="interrupted") from error
    finally:
        for process in at_work:
            process.terminate()
        psutil.wait_procs(list(at_work))
    if stopped:
        raise InterruptedRunError("stopped or out of budget", remedy=way_on(folder), code="out-of-budget")


def _start(folder: Path, exercise: str, slot: str, deadline_s: float) -> psutil.Popen:
    command = [sys.executable, "-m", "perfgate", "drill", "--resume", str(folder), "--only", exercise]
    if deadline_s < math.inf:
        command += ["--budget", str(max((deadline_s - time.monotonic()) / 60, 0.001))]
    (folder / exercise).mkdir(exist_ok=True)
    with (folder / exercise / LOG).open("ab") as log:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": slot}
        return psutil.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


def way_on(folder: Path) -> str:
    """How to go on with a campaign."""
    return f"Go on with: perfgate drill --resume {shlex.quote(str(folder))}"
