"""The manifest of a run folder, checked: its plan is the one that the kept scenarios declare, and no other.

Digests guard against accidents: whoever edits ``run.json`` can make them anew. So nothing that decides is taken from
the manifest alone. Cells, margins, looks and error rates are resolved again from the scenario's text in the run folder,
and a plan that differs is refused. Who may have changed both files is another question, see docs/security.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from perfgate.errors import PerfgateError, RecordError, ScenarioError
from perfgate.machine.fingerprint import comparable
from perfgate.metrics.trial import KINDS, TAKE_AGAIN, Kind, Trial
from perfgate.record.run_names import RUN
from perfgate.record.run_record import Record, Run, read_run
from perfgate.scenario.declaration import parse
from perfgate.scenario.plan import ALPHA, BETA, Cell, head_first, resolve_cells, round_order
from perfgate.scenario.taken_cells import as_taken
from perfgate.scenario.yaml_document import MAX_BYTES
from perfgate.stats.prediction import PAIRS_SHARE

SCENARIOS = "scenario"
"""Folder of a run that keeps the text of its scenarios, each by its name."""


def read_manifest(folder: Path) -> Run:
    """The manifest of a run folder, if its plan is what its scenarios declare.

    Raises:
        RecordError: The folder is not a run folder, a scenario is missing, or the plan is another one.
    """
    run = read_run(folder)
    where = str(folder / RUN)
    if run.plan.alpha != ALPHA or run.plan.beta not in (BETA, BETA * PAIRS_SHARE):
        rates = f"alpha {run.plan.alpha:g} and beta {run.plan.beta:g}, and perfgate's are {ALPHA:g} and {BETA:g}"
        raise RecordError(f"declares {rates}", where=where, remedy=TAKE_AGAIN)
    kind = {"kernels_only": run.kernels_only, "exact_only": run.exact_only, "host_profile": run.host_profile}
    declared = as_taken([cell for cells in _declared(folder, run) for cell in cells], **kind)
    names = [cell.name for cell in declared]
    if (planned := [cell.name for cell in run.plan.cells]) != names:
        text = f"plans the cells {', '.join(planned)}, and its scenarios declare {', '.join(names)}"
        raise RecordError(text, where=where, remedy=TAKE_AGAIN)
    for cell, expected in zip(run.plan.cells, declared, strict=True):
        if cell != expected:
            differing = ", ".join(name for name in Cell.model_fields if getattr(cell, name) != getattr(expected, name))
            text = f"{cell.name}: {differing}: not what the scenario in {SCENARIOS}/{cell.scenario}.yaml declares"
            raise RecordError(text, where=where, remedy=_remedy(run))
    if run.part is not None and not run.part.fits(run.plan):
        raise RecordError("its shards do not hold each cell of the plan once", where=where, remedy=TAKE_AGAIN)
    return run


def kept_scenarios(folder: Path, run: Run) -> dict[str, str]:
    """The text of each scenario of a run, by its name.

    Raises:
        RecordError: One cannot be read.
    """
    names = dict.fromkeys(cell.scenario for cell in run.plan.cells)
    return {name: _read(folder / SCENARIOS / f"{name}.yaml") for name in names}


def require_scenarios(folder: Path, run: Run, files: Iterable[Path]) -> None:
    """See that the scenarios of a run are those of some files, word for word: margins are not the run's to say.

    Raises:
        RecordError: One is not.
    """
    texts = {_read(file) for file in files}
    for name, text in kept_scenarios(folder, run).items():
        if text not in texts:
            remedy = "Measure it by the scenario as it is here, or check out the commit that it was measured by."
            kept = folder / SCENARIOS / f"{name}.yaml"
            raise RecordError("is not a copy of any scenario here", where=str(kept), remedy=remedy)


def check_sequence(records: Iterable[Record]) -> None:
    """See that trials are ones that perfgate can have taken: in the order that the seed draws, each of its own cell.

    A record that was edited and sealed again fits its digest, whether its sides were swapped, pairs were left out or
    trials are another cell's. One that was cut off at its end is not told from that of a run that was stopped. To be
    called with all records of a run.

    Raises:
        RecordError: They are not; the text names the trial.
    """
    seen: set[int] = set()
    for record in records:
        where = f"the record of {record.cell.name}"
        for visit in record.visits:
            if differences := comparable(record.visits[0].machine, visit.machine):
                raise RecordError(f"holds visits of two machines: {'; '.join(differences)}", where=where)
        visit_before = 0
        for trial in record.trials:
            wrong = "has the number of another one" if trial.index in seen else _impossible(record, trial)
            if not visit_before <= trial.visit < len(record.visits):
                wrong = f"names visit {trial.visit}, and that is not when it was taken"
            if wrong:
                raise RecordError(f"trial {trial.index} {wrong}", where=where, remedy=TAKE_AGAIN)
            seen.add(trial.index)
            visit_before = trial.visit
        for kind in KINDS:
            taken = {trial.pair for trial in record.trials if trial.kind == kind and trial.pair is not None}
            missing = [number for number in range(max(taken, default=0)) if number not in taken]
            if missing and not _under_way(record, kind, missing):
                raise RecordError(f"{kind} pair {missing[0]} is missing", where=where, remedy=TAKE_AGAIN)


def _under_way(record: Record, kind: Kind, missing: Sequence[int]) -> bool:
    """Whether pairs without a trial can have been begun at other stations when a visit was killed.

    Not more than there were, and none before a look that was reached: nothing was under way then.
    """
    last: list[int] = []  # pair of the last look that each head reached
    for comparison in record.comparisons().values():
        pairs = sorted(base.pair for base, _ in comparison.pairs(kind) if base.pair is not None)
        reached = max((look for look in record.schedule(kind).looks if look <= len(pairs)), default=0)
        last.append(pairs[reached - 1] if reached else -1)
    most = max((len(visit.stations) for visit in record.visits), default=0)
    return len(missing) < most and missing[0] > min(last)


def _impossible(record: Record, trial: Trial) -> str:
    """Why perfgate cannot have taken this trial; empty where it can."""
    cell = record.cell
    if trial.label not in record.built:
        return f"is one of {trial.label}, which was not measured"
    if not {*trial.heads} <= {*record.heads} or bool(trial.heads) != record.several:
        return "does not say which heads of its run it is for"
    if trial.pair is not None and trial.position != _place(record, trial.label, trial.pair):
        other = "another head, or the base," if record.several else "the other side"
        return f"is one of {trial.label}, and the seed draws {other} for its place"
    if trial.kind != "timed" or trial.failure is not None:
        return ""
    if len(trial.iterations) not in (numbers := record.iterations_of(trial)):
        return f"holds {len(trial.iterations)} iterations, and its cell takes {numbers[0]}"
    return cell.work.unlike(trial.iterations)


def _place(record: Record, label: str, pair: int) -> int:
    """Where the seed draws a build in a pair, or in a round of several heads."""
    cell_id = record.cell.cell_id
    if record.several:
        return round_order(record.seed, cell_id, pair, record.heads).index(label)
    if record.alone is not None:
        return 0
    return int(head_first(record.seed, cell_id, pair, record.orders) != (label == "head"))


def _declared(folder: Path, run: Run) -> Iterator[tuple[Cell, ...]]:
    """The cells of each kept scenario, in the plan's order; with the model as it was found when they were measured."""
    first = {cell.scenario: cell for cell in reversed(run.plan.cells)}
    planned = list(dict.fromkeys(cell.scenario for cell in run.plan.cells))
    kept = sorted(file.stem for file in (folder / SCENARIOS).glob("*.yaml"))
    if sorted(planned) != kept:
        text = f"plans cells of {', '.join(sorted(planned))}; kept are the scenarios {', '.join(kept) or '(none)'}"
        raise RecordError(text, where=str(folder / RUN), remedy=TAKE_AGAIN)
    for name in planned:
        file, cell = folder / SCENARIOS / f"{name}.yaml", first[name]
        try:
            loaded = parse(_read(file), Path(cell.source))
            hub = loaded.scenario.engine.model.hub is not None  # whose digest is no more than its name and revision
            model = None if hub else (cell.model_digest, cell.model_folder)
            yield resolve_cells(loaded, model, cell.workload)
        except ScenarioError as error:
            text = f"no scenario of this version: {error.text}"
            raise RecordError(text, where=str(file), remedy=_remedy(run)) from error
        except PerfgateError as error:
            raise RecordError(error.text, where=str(file)) from error


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return stream.read(MAX_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"cannot be read: {error}", where=str(file)) from error


def _remedy(run: Run) -> str:
    return f"{TAKE_AGAIN} A run of an older version: judge it with the perfgate that measured it ({run.perfgate})."
