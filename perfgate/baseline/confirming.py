"""Pairs with the build that a baseline speaks of, taken at once where its visits say that a head would regress."""

from __future__ import annotations

import json
import math
import re
import secrets
import shlex
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from perfgate import gate
from perfgate.baseline.confirmation import left_to_pairs
from perfgate.baseline.store import kept
from perfgate.baseline.stored_visit import Build
from perfgate.capture.pace import Progress
from perfgate.gate import Finished
from perfgate.judge.outcome import CellOutcome
from perfgate.record.manifest import read_manifest
from perfgate.record.nested_pairs import FOLDER, run_of_pairs
from perfgate.record.run_record import Run, read_records
from perfgate.record.shards import Assigned, MachineClass, printed
from perfgate.scenario.declaration import LoadedScenario
from perfgate.scenario.plan import make_plan
from perfgate.scenario.subject import Subject
from perfgate.scenario.subject_words import words
from perfgate.stats.prediction import PAIRS_SHARE


def in_pairs(
    finished: Finished,
    loaded: Sequence[LoadedScenario],
    base: Subject,
    progress: Progress,
    budget_s: float = math.inf,
    **means: Any,
) -> Finished:
    """Take pairs of the heads that would regress, and of nothing else, until they are decided.

    ``base`` is the build that was promoted last; no pair is begun that would not end within ``budget_s`` seconds.
    ``progress`` is told of each step, and where there is no time for pairs; ``means`` are those of
    :func:`perfgate.gate.run`.

    Returns:
        The same folder, with what pairs say in the place of what visits would.

    Raises:
        InterruptedRunError: Stopped by a signal, or out of budget; what was measured is kept.
    """
    begun_s = time.monotonic()
    left = left_to_pairs(finished.outcome)
    if not left or run_of_pairs(finished.folder) is not None:
        return finished
    run = read_manifest(finished.folder)
    heads = {name: run.built[name] for name in dict.fromkeys(cell.head or "head" for cell in left)}
    what = f"{', '.join(dict.fromkeys(cell.name for cell in left))} would regress by the baseline's visits"
    command = _command(loaded, base, heads)
    if others := {b.title for b in promoted(finished, left) if Build.asked_for(base, b.versions) != b}:
        progress(f"warning: {what}, of {', '.join(sorted(others))}. Name that build: {command}")
        return finished
    needed_s = _needed_s(finished, run, [cell.cell_id for cell in left])
    if needed_s > budget_s:
        progress(f"warning: {what}. Pairs decide, and take about {math.ceil(needed_s / 60)} min more: {command}")
        return finished
    progress(f"{what}: pairs with the build that was promoted last decide")
    if len(heads) == 1:
        heads = {"head": next(iter(heads.values()))}
    plan = make_plan(tuple(loaded), secrets.randbits(32))
    plan = plan.model_copy(update={"beta": plan.beta * PAIRS_SHARE})  # by which they are judged: see decided_by_pairs
    chosen = {cell.cell_id for cell in left}
    parts = ([cell for cell in plan.cells if (cell.cell_id in chosen) is inside] for inside in (True, False))
    divided = [(MachineClass(), cells) for cells in parts if cells]
    part = Assigned(plan=printed(plan, run.name, divided, {}), number=1, beta=plan.beta)
    means |= {"progress": progress, "budget_s": budget_s - (time.monotonic() - begun_s)}
    try:
        gate.run(loaded, {"base": base, **heads}, runs=finished.folder / FOLDER, shard=part, **means)
    finally:  # stopped pairs are part of what is known, too
        outcome = gate.judge_folder(finished.folder)
    return Finished(finished.folder, outcome)


def promoted(finished: Finished, cells: Sequence[CellOutcome]) -> list[Build]:
    """The builds that the baselines of these cells speak of: each that was promoted last."""
    held = {cell.baseline.digest for cell in cells if cell.baseline}
    lineages = kept(finished.folder, read_manifest(finished.folder)).values()
    return [baseline.build for baselines in lineages for baseline in baselines if baseline.tip in held]


def words_of(build: Build) -> tuple[str, ...]:
    """The words that have a build made again; none where it cannot be: it is of no commit, or set variables."""
    commit = re.match("([0-9a-f]{12,40}) by ", build.source)
    if commit is None or build.path:
        return ()
    return (f"ref={commit[1]}", *(f"args.{name}={json.dumps(value)}" for name, value in build.args.items()))


def _command(loaded: Sequence[LoadedScenario], base: Subject, heads: Mapping[str, Subject]) -> str:
    """What takes the pairs by hand."""
    given = [("--base", word) for word in words(base)]
    for name, head in heads.items():
        given += [("--head", f"{name}:{word}" if len(heads) > 1 else word) for word in words(head, base)]
    files = [shlex.quote(str(scenario.file)) for scenario in loaded]
    return " ".join(["perfgate run", *files, *(f"{option} {shlex.quote(word)}" for option, word in given)])


def _needed_s(finished: Finished, run: Run, cells: Sequence[str]) -> float:
    """What pairs up to the first look that may block take, by the trials of the run, with a warm-up trial a build."""
    seconds = 0.0
    for record in read_records(finished.folder, run):
        if record.cell.cell_id in cells:
            timed = [trial.duration_ns / 1e9 for trial in record.trials if trial.kind == "timed" and not trial.failure]
            seconds += 2 * (1 + record.cell.due_alone("timed")) * (statistics.median(timed) if timed else 0.0)
    return seconds
