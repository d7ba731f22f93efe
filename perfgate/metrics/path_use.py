"""What the processes of an engine used of the folders of its subject's ``path=``, as they say at the end of a trial."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import Field, NonNegativeInt, StringConstraints, ValidationError

from perfgate.models import Frozen

MOST_PROCESSES: Final = 1000
"""Of one engine; what a subject says beyond that is not kept."""
UNTOLD_PROCESS: Final = "?"

Name = Annotated[str, StringConstraints(max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]


class FolderUse(Frozen):
    """What one process used of one folder.

    Args:
        modules: Modules that it imported from there.
        libraries: Shared objects there that it had mapped.
        plugins: Names of entry points declared there that vLLM, torch or Triton loads by itself, and it had loaded.
        apart: Whether nothing but these modules refers to their functions and classes; false where that is not known.
    """

    modules: NonNegativeInt = 0
    libraries: NonNegativeInt = 0
    plugins: Annotated[tuple[Name, ...], Field(max_length=8)] = ()
    apart: bool = False

    @property
    def used(self) -> bool:
        """Whether it used anything."""
        return bool(self.modules or self.libraries or self.plugins)


class ProcessUse(Frozen):
    """What one process used.

    Args:
        process: Its name, as Python's multiprocessing has it.
        state: Digest of what vLLM's modules, variables and settings were in it; empty where that is not known.
        folders: Folder by folder as the subject names them; ``None`` where the process did not tell.
    """

    process: Name
    state: Annotated[str, Field(pattern="^[0-9a-f]{0,32}$", exclude_if=operator.not_)] = ""
    folders: Annotated[tuple[FolderUse, ...], Field(max_length=1000)] | None


def read_uses(answers: object, folders: int) -> tuple[ProcessUse, ...]:
    """What the processes of an engine say, of which nothing is trusted; what cannot be read counts as not told.

    Args:
        answers: One answer a process; anything else is that of one process that does not tell.
        folders: How many folders were asked for.
    """
    replies: Sequence[Any] = answers if isinstance(answers, list) and answers else [None]
    return tuple(_read(answer, folders) for answer in replies[:MOST_PROCESSES])


def _read(answer: object, folders: int) -> ProcessUse:
    if isinstance(answer, dict):
        with contextlib.suppress(ValidationError):
            kept = {name: value for name, value in answer.items() if name != "pid"}
            use = ProcessUse.model_validate(kept)
            if use.folders is not None and len(use.folders) == folders:
                return use
    return ProcessUse(process=UNTOLD_PROCESS, folders=None)
