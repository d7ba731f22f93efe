"""How the last visit to a run ended, where it was stopped or failed: a file of the run folder until the next begins."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from perfgate.errors import NotMeasuredError, PerfgateError, RecordError, is_a_stop, stopped
from perfgate.machine.versioned_json import read_model, write_model
from perfgate.models import Frozen
from perfgate.reasons import CODE

FILE = "stopped.json"
STOPS = ("interrupted", "out-of-budget")
"""Codes of ends that somebody asked for."""


class Stop(Frozen):
    """Why a run ended before it was decided.

    Args:
        code: ``interrupted`` or ``out-of-budget``; of a failure the reason code of its error.
        text: What the user was told.
    """

    format: Literal["perfgate-stop/1"] = "perfgate-stop/1"
    code: Annotated[str, Field(pattern=CODE)]
    text: str

    @property
    def failed(self) -> bool:
        """Whether nobody asked for it."""
        return self.code not in STOPS


@contextlib.contextmanager
def failures_kept(folder: Path) -> Iterator[None]:
    """Around a visit: note in the run folder why it failed, where that was not on request."""
    try:
        yield
    except Exception as error:
        if not is_a_stop(error):
            mine = isinstance(error, PerfgateError)
            code = "storage-failed" if isinstance(error, OSError) else "not-started" if mine else "internal-error"
            text = error.finding if isinstance(error, PerfgateError) else f"{type(error).__name__}: {error}"
            _keep(folder, getattr(error, "code", "") or code, text)
        raise


def keep_stop(folder: Path, error: BaseException) -> str:
    """Note a stop in a run folder, as far as that can be written; what is left of the run, to end its sentence."""
    said = stopped(error, "")
    _keep(folder, said.code, said.text)
    measured = any(folder.glob("records/*.json"))
    return f"; what was measured is in {folder}" if measured else "; nothing was measured so far"


def _keep(folder: Path, code: str, text: str) -> None:
    with contextlib.suppress(OSError, NotMeasuredError):  # the stop itself matters more than that it is listed
        write_model(folder / FILE, Stop(code=code, text=text))


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
