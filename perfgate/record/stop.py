"""How the last visit to a run ended, where it was stopped: a file of the run folder until the next visit begins."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from perfgate.errors import NotMeasuredError, RecordError, stopped
from perfgate.machine.versioned_json import read_model, write_model
from perfgate.models import Frozen
from perfgate.reasons import CODE

FILE = "stopped.json"


class Stop(Frozen):
    """Why a run was stopped before it was decided.

    Args:
        code: ``interrupted`` or ``out-of-budget``.
        text: What the user was told.
    """

    format: Literal["perfgate-stop/1"] = "perfgate-stop/1"
    code: Annotated[str, Field(pattern=CODE)]
    text: str


def keep_stop(folder: Path, error: BaseException) -> str:
    """Note a stop in a run folder, as far as that can be written; what is left of the run, to end its sentence."""
    said = stopped(error, "")
    with contextlib.suppress(OSError, NotMeasuredError):  # the stop itself matters more than that it is listed
        write_model(folder / FILE, Stop(code=said.code, text=said.text))
    return (
        f"; what was measured is in {folder}" if any(folder.glob("records/*.json")) else "; nothing was measured so far"
    )


def read_stop(folder: Path) -> Stop | None:
    """How the last visit was stopped; ``None`` where it was not, or nobody knows."""
    with contextlib.suppress(RecordError):
        return read_model(Stop, folder / FILE)
    return None


def forget_stop(folder: Path) -> None:
    """A visit begins, whose end counts from now on.

    Raises:
        OSError: The folder cannot be written.
    """
    (folder / FILE).unlink(missing_ok=True)
