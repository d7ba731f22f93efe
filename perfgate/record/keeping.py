"""A run's folder: how it is begun, taken over by somebody else's plan, and what is said where it cannot be written."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from perfgate import __version__
from perfgate.errors import NotComparableError, NotMeasuredError, UsageError
from perfgate.machine.atomic_files import write_atomically
from perfgate.machine.locks import hold
from perfgate.record.compared_builds import by_side
from perfgate.record.manifest import SCENARIOS, check_sequence
from perfgate.record.run_names import stamped
from perfgate.record.run_record import Run, read_records, record_file, write_record, write_run
from perfgate.record.shards import Assigned
from perfgate.scenario.declaration import LoadedScenario
from perfgate.scenario.plan import make_plan
from perfgate.scenario.subject import Builds, runs_already
from perfgate.scenario.taken_cells import as_taken


@contextlib.contextmanager
def storage_failures(folder: Path, remedy: str) -> Iterator[None]:
    """An error of the file system is not a measurement: it gets a reason code, its own words and the way on."""
    try:
        yield
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
        raise NotMeasuredError(what, where=str(folder), remedy=remedy, code="storage-failed") from error


def new_run(
    loaded: Sequence[LoadedScenario],
    subjects: Builds,
    seed: int | None,
    shard: Assigned | None,
    *,
    quick: bool,
    **kind: bool,
) -> Run:
    """The manifest of a run that is begun; its seed is that of the shard, or drawn, where not given.

    For ``kind`` see :func:`perfgate.scenario.taken_cells.as_taken`.

    Raises:
        UsageError: See :func:`perfgate.scenario.plan.make_plan`.
        NotMeasuredError: ``shard-foreign``: these scenarios make another plan than that of the shard.
    """
    drawn = shard.plan.seed if shard else secrets.randbits(32)
    plan = make_plan(tuple(loaded), drawn if seed is None else seed)
    beta = shard.beta if shard else plan.beta
    plan = plan.model_copy(update={"cells": as_taken(plan.cells, **kind), "beta": beta})
    part = shard.part(plan) if shard else None
    fields = {**by_side(subjects), **kind, "quick": quick}
    return Run(name=run_name(loaded), plan=plan, part=part, perfgate=__version__, **fields)


def taken_over(
    folder: Path, begun: Run, loaded: Sequence[LoadedScenario], subjects: Builds, shard: Assigned | None = None
) -> Run:
    """The run with the plan and the subjects of whoever goes on with it, which must be those that it was begun with."""
    plan = make_plan(tuple(loaded), begun.plan.seed, begun.plan.orders)
    part, quick = shard.part(plan) if shard else None, runs_already(subjects)
    if part is not None and begun.part is not None:  # what goes on is not drawn again
        part = part.model_copy(update={"attempt": begun.part.attempt})
    run = Run(name=begun.name, plan=plan, part=part, **by_side(subjects), quick=quick, perfgate=__version__)
    differing = [
        name for name in Run.model_fields if name != "perfgate" and _portable(run, name) != _portable(begun, name)
    ]
    if differing:
        verb = "differ" if len(differing) > 1 or {"subjects", "heads"} & {*differing} else "differs"
        text = f"its {' and '.join(differing)} {verb} from what is to be measured"
        raise NotComparableError(text, where=str(folder), code="different-cells", remedy="Begin a new run.")
    records = list(read_records(folder, begun))
    check_sequence(records)
    mine = {cell.cell_id: cell for cell in run.plan.cells}
    with hold(folder), storage_failures(folder, "Fix that."):
        _keep_scenarios(folder, loaded)
        write_run(folder, run)
        for record in records:
            cell = mine[record.cell.cell_id]
            write_record(record_file(folder, cell), record.model_copy(update={"cell": cell}))
    return run


def _portable(run: Run, name: str) -> Any:
    """A field of a manifest without the places of models, which differ between machines; their digests do not."""
    return run.model_dump(mode="json", include={name}, exclude={"plan": {"cells": {"__all__": {"model_folder"}}}})


def refuse_what_is_no_text(manifest: Run) -> None:
    """Find before anything is measured a path that no record could hold.

    Raises:
        UsageError: A path is not UTF-8: Linux allows any bytes in one, JSON does not.
    """
    whole = json.dumps(manifest.model_dump(mode="json"), ensure_ascii=False)
    unencodable = re.search('"([^"]*[\ud800-\udfff][^"]*)"', whole)
    if unencodable:
        remedy = "Rename the folder or file: a record holds UTF-8 text alone."
        raise UsageError(f"the path {unencodable[1]!a} is not UTF-8", remedy=remedy)


def run_name(loaded: Sequence[LoadedScenario]) -> str:
    """A name for a new run of scenarios: unique, and in the order of time."""
    more = f"+{len(loaded) - 1}" if len(loaded) > 1 else ""
    return stamped(f"{loaded[0].scenario.name}{more}")


def make_folder(folder: Path, loaded: Sequence[LoadedScenario]) -> None:
    """Make a run's folder, which is not there yet, and keep the scenarios in it; raises OSError."""
    for name in (SCENARIOS, "trials", "records"):
        (folder / name).mkdir(parents=True)
    _keep_scenarios(folder, loaded)


def _keep_scenarios(folder: Path, loaded: Sequence[LoadedScenario]) -> None:
    for scenario in loaded:
        write_atomically(folder / SCENARIOS / f"{scenario.scenario.name}.yaml", scenario.text)
        scenario.scenario.work.keep(scenario.file, folder)
