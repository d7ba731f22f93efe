"""Subjects: which build is on each side, from ``--base``/``--head`` words and ``perfgate.toml``.

A SUBJECT is a table ``[subjects.NAME]`` of ``perfgate.toml`` or repeated ``key=value`` words, or a name followed by
words that override it, whole for ``python`` and ``path``, name by name for ``env`` and ``args``. A ``ref`` is worth the
``python``, ``path`` and ``env`` that ``[build]`` makes of it; what is said beside it overrides them. What the head does
not say it takes from the base, so ``--head args.max_num_seqs=4`` alone compares one engine flag. ``path=+FOLDER`` puts
a folder in front of what ``path=FOLDER`` would override.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, field_validator, model_validator

from perfgate import rooms
from perfgate.metrics.sides import Side
from perfgate.models import Frozen, absent
from perfgate.scenario.fields import Arguments, Variables

SHOWN = 12
"""Digits of a hash that are shown to people."""


class Revision(Frozen):
    """What a git ref means.

    Args:
        ref: What was asked for, in words.
        commit: Full hash of the commit.
        changes: Full hash of the tree with the changes that were not committed; empty where there were none.
    """

    ref: str
    commit: str
    changes: str

    @property
    def name(self) -> str:
        """``1a2b3c4d5e6f``, or ``1a2b3c4d5e6f+dirty.0f1e2d3c4b5a`` with a digest of uncommitted changes."""
        return f"{self.commit[:SHOWN]}+dirty.{self.changes[:SHOWN]}" if self.changes else self.commit[:SHOWN]


class Source(Revision):
    """What a build was made from.

    Args:
        recipe: Digest of what made it: commands, and the files that they read beside the commit's.
        folder: The build in its cache.
        title: First line of the commit's message.
    """

    recipe: str
    folder: str
    title: str = ""


def _of_a_server(url: str) -> str:
    checked: str = rooms.use("server_url")(url)
    return checked


ServerUrl = Annotated[str, Field(max_length=1000), AfterValidator(_of_a_server)]


class Subject(Frozen):
    """One build under test, as asked for; relative paths are taken from the working directory.

    Args:
        python: The interpreter that holds the engine; empty where ``url`` is given.
        path: Folders put on the module path before the interpreter's own, first one first.
        env: Environment variables for this side only.
        args: Engine arguments that replace the scenario's on this side only.
        data: Those of the folders that hold data, or are there for another reason than to be imported from.
        built_from: Where perfgate built it from a git ref, the source; said in reports, no part of what is compared.
        url: A server that runs already, in place of all of these: perfgate neither starts it nor knows its build.
    """

    python: str
    path: tuple[str, ...] = ()
    data: Annotated[tuple[str, ...], Field(exclude_if=operator.not_)] = ()
    env: Variables = {}
    args: Arguments = {}
    built_from: Source | None = None
    url: Annotated[ServerUrl | None, Field(exclude_if=absent)] = None

    @field_validator("python")
    @classmethod
    def _python_from_here(cls, python: str) -> str:
        # Engines start in another folder; the bare name of a program is left to PATH.
        return absolute(Path.cwd(), python) if os.sep in python else python

    @field_validator("path", "data")
    @classmethod
    def _path_from_here(cls, path: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(absolute(Path.cwd(), entry) for entry in path)

    @model_validator(mode="after")
    def _nothing_beside_a_url(self) -> Subject:
        given = [name for name in ("python", "path", "env", "args", "built_from") if getattr(self, name)]
        if self.url is not None and given:
            raise ValueError(f"{given[0]} cannot be given beside url, a server that runs already")
        return self


DATA: Final = ",data"
"""Behind a folder of ``path=``: nothing of it has to be imported."""


def data_apart(table: Mapping[str, Any]) -> dict[str, Any]:
    """A subject's table whose folders have no ``,data`` behind them, and ``data`` in its place."""
    if "path" not in table:
        return {**table}
    plain = [entry.removesuffix(DATA) for entry in table["path"]]
    data = [entry for entry, given in zip(plain, table["path"], strict=True) if given.endswith(DATA)]
    return {**table, "path": plain, "data": data}


def entries(subject: Subject) -> tuple[str, ...]:
    """The folders of a subject as a user writes them."""
    return tuple(f"{folder}{DATA if folder in subject.data else ''}" for folder in subject.path)


Builds = Mapping[Side, Subject] | Mapping[str, Subject]
"""Builds by what they are called in a run: ``base`` and ``head``, or ``base`` and a name for each of several heads."""


def runs_already(subjects: Builds) -> bool:
    """Whether one of them is a server that somebody else started: of it every trial would be the same replicate."""
    return any(subject.url is not None for subject in subjects.values())


def absolute(folder: Path, value: str) -> str:
    """An absolute path with its symbolic links kept: the ``python`` of a virtual environment is one.

    Following it would leave the environment, which is why this is not :meth:`pathlib.Path.resolve`.
    """
    try:
        path = Path(value).expanduser()
    except RuntimeError:  # ~somebody who is not a user: the name of a folder then
        path = Path(value)
    return os.path.normpath(folder.absolute() / path)
