"""The use cases: run and judge, go on with a run, judge again, compare. The command line and scripts call these.

Example:
    >>> from pathlib import Path
    >>> from perfgate import gate
    >>> from perfgate.scenario.subject import Subject
    >>> python = "/path/to/engine/bin/python"
    >>> subjects = {"base": Subject(python=python), "head": Subject(python=python, args={"max_num_seqs": 16})}
    >>> finished = gate.run([Path("scenarios/cpu-tiny.yaml")], subjects)  # doctest: +SKIP
    >>> finished.outcome.verdict  # doctest: +SKIP
    'pass'
"""

from __future__ import annotations

import contextlib
import math
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfgate import rooms, stats
from perfgate.capture.engine import require_subjects
from perfgate.capture.job import Collector
from perfgate.capture.pace import Progress
from perfgate.capture.session import Session
from perfgate.errors import NotComparableError, NotMeasuredError, UsageError, is_a_stop, stopped
from perfgate.judge.cell_verdict import judge
from perfgate.judge.comparison import compare_records, compare_table, parse_gate
from perfgate.judge.next_cell import CellOrder
from perfgate.judge.next_pairs import due, with_further_looks
from perfgate.judge.outcome import Outcome, verdict_json
from perfgate.judge.running import as_it_stands, is_running
from perfgate.machine.atomic_files import write_atomically
from perfgate.machine.locks import hold
from perfgate.metrics.sides import Side
from perfgate.record.dropped_pairs import reopened
from perfgate.record.keeping import make_folder, new_run, refuse_what_is_no_text, storage_failures, taken_over
from perfgate.record.manifest import check_sequence, read_manifest
from perfgate.record.nested_pairs import run_with_pairs, write_begun
from perfgate.record.run_names import RUN
from perfgate.record.run_record import Record, Run, read_records, record_file, write_record
from perfgate.record.shards import Assigned
from perfgate.record.stop import failures_kept, forget_stop, keep_stop
from perfgate.run_steps import RunSteps, short_of, take_steps
from perfgate.scenario.declaration import LoadedScenario, load, with_kernels
from perfgate.scenario.plan import resolve_cells
from perfgate.scenario.subject import Builds, Subject, runs_already

__all__ = [
    "Finished",
    "check_envelope",
    "check_profiles",
    "compare_records",
    "compare_table",
    "compare_with_baseline",
    "judge_folder",
    "learn_envelope",
    "outcome_of",
    "parse_gate",
    "resume",
    "run",
]


@dataclass(frozen=True)
class Finished:
    """A run that came to an end: its folder, which holds everything, and its outcome."""

    folder: Path
    outcome: Outcome


def run(  # noqa: PLR0913 (options by name, all but two with a default)
    scenarios: Sequence[Path | LoadedScenario],
    subjects: Builds,
    *,
    runs: Path = Path("runs"),
    seed: int | None = None,
    quick: bool = False,
    collector: Collector | None = None,
    progress: Progress = lambda _: None,
    budget_s: float = math.inf,
    kernels_only: bool = False,
    exact_only: bool = False,
    host_profile: bool = False,
    against: Path | None = None,
    profiles: Path | None = None,
    gpus: str = "",
    shard: Assigned | None = None,
) -> Finished:
    """Measure every cell of the scenarios until it is decided, and judge the run.

    Args:
        scenarios: Scenario files, or what was read of them.
        subjects: ``base`` and ``head``, or ``base`` and several heads by name; ``base`` alone is compared later.
        runs: Where the run's folder is made.
        seed: Draws the order within pairs; drawn itself where not given, and kept in the manifest.
        quick: One trial a subject and no verdict; so is a run of a server that runs already.
        collector: Takes the trials; the real engine where not given.
        progress: Called at every step, and with a sentence where something else is worth telling.
        budget_s: No pair is begun that would not end within so many seconds.
        kernels_only: Take traced trials alone and judge only what the decode steps run, not how long they take.
        exact_only: Take one pair of each kind but timed ones, and judge only what repeats exactly.
        host_profile: Take a sampled pair as well, by which nothing is judged.
        profiles: A folder of exact profiles, against which the head's calls are held.
        against: A folder of baselines, or the file of one; a base beside the head is its anchor: ratios are compared.
        gpus: Where pairs are measured at once: ``all`` GPUs, or some as ``CUDA_VISIBLE_DEVICES`` names them.
        shard: The part of the plan that is measured here; the run judges that alone, at the levels of the whole plan.

    Raises:
        ScenarioError: A scenario is wrong, or no engine of these builds could run it.
        UsageError: Two cells are the same; a build has no vLLM; against baselines a quick run, or an unfit anchor.
        RecordError: A baseline is broken.
        InterruptedRunError: Stopped by a signal, or out of budget; the run folder holds every finished trial.
        NotMeasuredError: ``storage-failed``: the run folder cannot be written; ``shard-foreign``: the plan here is
            not that of the shard; else the machine is not fit to measure.
    """
    deadline_s = time.monotonic() + budget_s
    loaded = _loaded(scenarios)
    kind = {"kernels_only": kernels_only, "exact_only": exact_only, "host_profile": host_profile}
    manifest = new_run(loaded, subjects, seed, shard, quick=quick or runs_already(subjects), **kind)
    held = against is not None or profiles is not None
    references = _references(against).found_for(manifest, subjects, against, profiles) if held else {}
    look_ahead(loaded, subjects, progress, ask=collector is None)
    refuse_what_is_no_text(manifest)
    folder = runs / manifest.name
    with storage_failures(folder, "Fix that, or name another folder with --runs."), _interruptions(folder):
        make_folder(folder, loaded)
        manifest = manifest.model_copy(update={name: keep(folder) for name, keep in references.items()})
        write_begun(folder, manifest)
    return _visit(folder, manifest, progress, collector=collector, deadline_s=deadline_s, gpus=gpus)


def resume(  # noqa: PLR0913 (as above)
    folder: Path,
    *,
    more: int | None = None,
    collector: Collector | None = None,
    progress: Progress = lambda _: None,
    budget_s: float = math.inf,
    prepare: Callable[[Run], None] = lambda _: None,
    only: tuple[Sequence[Path | LoadedScenario], Builds] | None = None,
    gpus: str = "",
    shard: Assigned | None = None,
) -> Finished:
    """Go on with the open cells of a run by its own manifest, in a new visit; decided cells stay as they are.

    A cell that was stopped is taken up again, unless too many of its pairs were dropped. Finished trials count; half a
    pair of an earlier visit does not.

    Args:
        folder: The run folder.
        more: Cells inconclusive at their last look get a further one, so many pairs after it.
        collector: See :func:`run`.
        progress: See :func:`run`.
        budget_s: See :func:`run`.
        prepare: Called before anything is measured, if anything is: has what the subjects need put in its place.
        only: Scenarios and subjects that it must be a run of; the run is theirs then, and but for its trials nothing is
            taken from a folder that somebody else may have written.
        gpus: See :func:`run`; it need not be what the run was begun with.
        shard: With ``only``, the part of its plan that the run must be.

    Raises:
        UsageError: ``more`` is less than a further look needs; or the room that judges the run was removed.
        RecordError: The folder is not a run folder, or a record in it cannot be trusted.
        NotComparableError: ``different-machines``: the run was begun on another machine; ``different-cells``: it is not
            a run of ``only``.
        InterruptedRunError: See :func:`run`.
        NotMeasuredError: ``run-folder-busy``, or ``storage-failed``.
    """
    deadline_s = time.monotonic() + budget_s
    if more is not None and more < stats.FURTHER_LOOK_PAIRS:
        raise UsageError(f"--more {more}: a further look needs at least {stats.FURTHER_LOOK_PAIRS} pairs")
    manifest = read_manifest(folder)
    if manifest.against is not None or manifest.profiles is not None:
        _references(_kept_reference(folder, manifest))  # nothing is measured that could not be judged
    if only is not None:
        manifest = taken_over(folder, manifest, _loaded(only[0]), only[1], shard)

    def ready(run: Run) -> None:
        prepare(run)
        if collector is None:
            require_subjects(run.built)

    visit: dict[str, Any] = {"collector": collector, "deadline_s": deadline_s, "gpus": gpus}
    return _visit(folder, manifest, progress, more, ready, **visit)


def check_envelope(scenarios: Sequence[Path], subjects: dict[Side, Subject], **options: Any) -> Finished:
    """Trace a pair of each cell and hold both sides' decode steps against its envelope; no latency is judged.

    Args:
        scenarios: Scenario files; each must declare an envelope.
        subjects: ``base`` and ``head``.
        options: See :func:`run`.

    Raises:
        UsageError: There is nothing to hold the steps against, or no head.
    """
    for file in scenarios:
        expected = load(file).scenario.kernels
        if expected is None or not expected.declares_envelope:
            raise UsageError(
                f"{file} declares no envelope, so nothing could be checked",
                remedy=f"Learn one first: perfgate envelope learn {shlex.quote(str(file))} --base ...",
            )
    if "head" not in subjects:
        raise UsageError("no head to check", remedy="Name it: --head python=..., or whatever differs from the base.")
    return run(scenarios, subjects, kernels_only=True, **options)


def check_profiles(scenarios: Sequence[Path], subjects: dict[Side, Subject], folder: Path, **options: Any) -> Finished:
    """Take one trial of each kind but timed ones of a single build, and hold it against stored profiles.

    Args:
        scenarios: Scenario files.
        subjects: ``head`` alone.
        folder: The profiles.
        options: See :func:`run`.

    Raises:
        NotComparableError: ``no-profile``: a cell has none, on whatever GPU.
        RecordError: A profile cannot be read.
    """
    rooms.use("references").require_profiles(folder, [cell for file in scenarios for cell in resolve_cells(load(file))])
    return run(scenarios, subjects, exact_only=True, profiles=folder, **options)


def learn_envelope(scenario: Path, folder: Path) -> str:
    """The scenario's text with a ``kernels:`` block that the traced pairs of a run folder fit.

    Args:
        scenario: The scenario file, which is not written.
        folder: A run of it, one build on both sides.

    Raises:
        NotMeasuredError: ``evidence-missing``: not every cell was traced; the text tells why.
        NotComparableError: It is a run of other cells, or its trials did not run the same: nothing can be learnt.
        RecordError: The folder is not a run folder.
    """
    loaded, manifest = load(scenario), read_manifest(folder)
    cells, measured = resolve_cells(loaded), {cell.cell_id for cell in manifest.plan.cells}
    others = [cell.name for cell in cells if cell.cell_id not in measured]
    if others:
        text = f"not a run of {scenario} as it is now: it does not measure {', '.join(others)}"
        raise NotComparableError(text, where=str(folder), code="different-cells")
    records = {record.cell.cell_id: record for record in read_records(folder, manifest)}
    blocks, envelope = [], rooms.use("envelope")
    for cell in cells:
        record = records.get(cell.cell_id)
        traced = [trial.decode for pair in record.pairs("traced") for trial in pair if trial.decode] if record else []
        if not traced:
            stopped = record.stopped if record else None
            code, text = (stopped.code, stopped.text) if stopped else ("evidence-missing", "no traced pair was taken")
            remedy = "Fix that (is --base right?) and learn again." if stopped else _way_on(folder)
            raise NotMeasuredError(text, where=f"{folder}: {cell.name}", remedy=remedy, code=code)
        blocks.append(envelope.learn(traced, loaded.scenario.kernels))
    return with_kernels(loaded, envelope.union(blocks))


def compare_with_baseline(word: str, file: Path) -> Outcome:
    """Hold one side of what was measured against a stored baseline; from four visits on the verdict can block.

    Args:
        word: A record file or a run folder, with ``:base`` or ``:head`` behind it where it holds both sides; its gates
            are judged.
        file: The baseline's file.

    Raises:
        RecordError: The record cannot be read, or the baseline is broken.
        UsageError: There are two sides and the word does not say which; or this perfgate has no baselines.
    """
    outcome: Outcome = rooms.use("references").compare_with_baseline(word, file)
    return outcome


def _loaded(scenarios: Iterable[Path | LoadedScenario]) -> tuple[LoadedScenario, ...]:
    return tuple(load(scenario) if isinstance(scenario, Path) else scenario for scenario in scenarios)


def look_ahead(
    loaded: Sequence[LoadedScenario], subjects: Builds, progress: Callable[[str], Any], *, ask: bool
) -> None:
    """Refuse what no engine could run; what takes the trials in an engine's place has no interpreter to ask."""
    if ask:
        require_subjects(subjects)
    if preflight := rooms.offered("preflight"):
        for warning in preflight(loaded, subjects, ask=ask).warnings:
            progress(f"warning: {warning}")
    else:
        progress("warning: what engines accept is not looked at beforehand: the room 'doctor' is not here")


def _visit(
    folder: Path,
    manifest: Run,
    progress: Progress,
    more: int | None = None,
    prepare: Callable[[Run], None] = lambda _: None,
    **visit: Any,
) -> Finished:
    """Measure what is open while nobody else does, then judge; ``visit`` is the rest of a session."""
    steps = RunSteps(progress)
    with storage_failures(folder, f"Fix that. {_way_on(folder)}"), _interruptions(folder):
        with hold(folder), failures_kept(folder):
            forget_stop(folder)
            records = {record.cell.cell_id: reopened(record) for record in read_records(folder, manifest)}
            added = with_further_looks(manifest, records, more, progress) if more is not None else {}
            records |= added
            if any(due(manifest, records)):
                prepare(manifest)
                if short := short_of(visit["deadline_s"] - time.monotonic(), manifest, records, folder.parent):
                    progress(f"warning: {short}")
                order = CellOrder(manifest, records, folder.parent, steps)
                with Session(folder, manifest, progress=steps, **visit) as session:
                    for record in added.values():  # before the first of their pairs is taken
                        write_record(record_file(folder, record.cell), record)
                    take_steps(session, order, records, steps, manifest)
        return Finished(folder, judge_folder(folder))


def _way_on(folder: Path) -> str:
    run_folder = run_with_pairs(folder) or folder
    return f"Go on with: perfgate run --resume {shlex.quote(str(run_folder))}"


@contextlib.contextmanager
def _interruptions(folder: Path) -> Iterator[None]:
    """Whatever stops a run on request, what was measured is judged, and the error says how to go on."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if not is_a_stop(error) or not (folder / RUN).exists():
            raise
        judge_folder(folder)
        raise stopped(error, _way_on(folder), keep_stop(folder, error)) from error


def outcome_of(folder: Path) -> Outcome:
    """Judge what a run folder holds, and write nothing.

    Raises:
        RecordError: The folder is not a run folder, or a record in it cannot be trusted.
    """
    manifest = read_manifest(folder)
    return as_it_stands(judged(folder, manifest, tuple(read_records(folder, manifest))), folder)


def judged(folder: Path, manifest: Run, records: Sequence[Record]) -> Outcome:
    """Judge a run folder whose manifest and records have been read.

    Raises:
        RecordError: The records contradict each other, or a baseline in the folder is broken.
    """
    check_sequence(records)
    by_cell = {record.cell.cell_id: record for record in records}
    if manifest.against is not None or manifest.profiles is not None:
        outcome: Outcome = _references(_kept_reference(folder, manifest)).judged(folder, manifest, by_cell)
        return outcome
    return judge(manifest, by_cell)


def _references(file: Path | None) -> Any:
    """The room that a stored reference is of: one that knows its file, else that of baselines and profiles."""
    of_rooms = map(rooms.bring, rooms.entries("references").values()) if file is not None else ()
    return next((room for room in of_rooms if room.recognises(file)), None) or rooms.use("references")


def _kept_reference(folder: Path, manifest: Run) -> Path | None:
    """A run folder's copy of the reference that a head is held against; ``None`` where there is none of any cell."""
    return next((folder / copy.path for copies in (manifest.against or {}).values() for copy in copies), None)


def judge_folder(folder: Path, warn: Callable[[str], None] | None = None) -> Outcome:
    """Judge what a run folder holds, and write ``verdict.json`` into it unless it is still being measured.

    Args:
        folder: The run folder.
        warn: Gets a sentence where ``verdict.json`` cannot be written; without it that is an error.

    Raises:
        RecordError: The folder is not a run folder, or a record in it cannot be trusted.
        OSError: ``verdict.json`` cannot be written, and ``warn`` was not given.
    """
    outcome = outcome_of(folder)
    if is_running(outcome):
        return outcome
    try:
        write_atomically(folder / "verdict.json", verdict_json(outcome))
    except OSError as error:
        if warn is None:
            raise
        warn(f"{folder / 'verdict.json'} could not be written: {error.strerror}")
    return outcome
