"""The trace that a run replays, kept in its folder: a run can go on, and be looked at, without the repository."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from perfgate.errors import NotMeasuredError, UsageError
from perfgate.load.arrival_trace import read_arrivals, trace_digest
from perfgate.load.arrivals import Arrived
from perfgate.load.shape import Load
from perfgate.scenario.workload import AnyWorkload

FOLDER = "arrivals"


def keep_trace(run_folder: Path, file: Path) -> None:
    """Copy a trace into a run's folder, under the name of its digest; raises OSError.

    Raises:
        UsageError: It cannot be read.
    """
    kept = run_folder / FOLDER / f"{trace_digest(file)}{file.suffix}"
    kept.parent.mkdir(exist_ok=True)
    part = kept.with_name(f".{kept.name}.{os.getpid()}.part")
    shutil.copyfile(file, part)
    part.replace(kept)


def kept_trace(run_folder: Path, workload: AnyWorkload) -> tuple[Arrived, ...]:
    """The trace that a cell's workload replays; empty where it replays none.

    Raises:
        NotMeasuredError: The copy is missing, or not what the cell says.
    """
    replay = workload.arrival.replay if isinstance(workload, Load) else None
    if replay is None:
        return ()
    file = run_folder / FOLDER / f"{replay.sha256}{Path(replay.file).suffix}"
    try:
        if trace_digest(file) == replay.sha256:
            return read_arrivals(file)
        text = f"{file}: changed since the run began"
    except UsageError as error:
        text = error.finding
    raise NotMeasuredError(f"the trace to replay: {text}", code="client-failed")
