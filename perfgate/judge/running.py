"""What a run folder says beside its records: that it is still being measured, or failed before it measured anything."""

from __future__ import annotations

from pathlib import Path

from perfgate.errors import ExitStatus
from perfgate.judge.outcome import Outcome
from perfgate.machine.locks import measuring_into
from perfgate.models import Note
from perfgate.record.run_state import measured_anything
from perfgate.record.stop import read_stop

RUNNING = "run-folder-busy"


def as_it_stands(outcome: Outcome, folder: Path) -> Outcome:
    """An outcome of what a run folder holds: no verdict while somebody measures, and why nothing was measured."""
    if holder := measuring_into(folder):
        note = Note(code=RUNNING, text=f"{holder} is measuring into it: these are figures so far, and no verdict")
        none = {"verdict": "not-measured", "exit_status": ExitStatus.NOT_MEASURED.value, "would_be": None}
        return outcome.model_copy(update={**none, "reasons": (note, *outcome.reasons)})
    stop = read_stop(folder)
    if stop is None or not stop.failed or outcome.verdict != "not-measured" or measured_anything(folder):
        return outcome
    note = Note(code=stop.code, text=f"failed at start: {stop.text}")
    return outcome.model_copy(update={"reasons": (note, *outcome.reasons)})


def is_running(outcome: Outcome) -> bool:
    """Whether the run was being measured when it was judged, so that it has no verdict."""
    return any(note.code == RUNNING for note in outcome.reasons)
