"""What became of a run, whatever its last verdict says: being measured, failed at its start, or nothing measured."""

from __future__ import annotations

from pathlib import Path

from perfgate.errors import RecordError
from perfgate.machine.json_text import RECORD, parse_json
from perfgate.machine.locks import measuring_into
from perfgate.machine.versioned_json import read_bytes
from perfgate.record.stop import read_stop


def measured_anything(folder: Path) -> bool:
    """Whether a run folder holds a valid trial that is not one of warm-up.

    A record that cannot be read counts: whoever reads it says what is wrong with it.
    """
    return any(map(_holds_a_trial, sorted((folder / "records").glob("*.json"))))


def state_of(folder: Path, *, measured: bool) -> str:
    """What to say of a run in the place of a verdict; empty where it has measured and nobody measures into it."""
    if holder := measuring_into(folder):
        return f"running ({holder})"
    if measured:
        return ""
    stop = read_stop(folder)
    if stop is None:
        return "nothing measured"
    why = stop.code.replace("-", " ")
    return f"failed at start ({why})" if stop.failed else f"nothing measured, stopped ({why})"


def _holds_a_trial(file: Path) -> bool:
    try:
        trials = parse_json(read_bytes(file, RECORD), RECORD)["trials"]
        return any(trial.get("pair") is not None and trial.get("failure") is None for trial in trials)
    except (RecordError, ValueError, KeyError, TypeError, AttributeError):
        return True
