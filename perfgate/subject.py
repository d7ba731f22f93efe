"""Subjects: which build stands on each side, from ``--base``/``--head`` words and ``perfgate.toml``.

A SUBJECT is a table ``[subjects.NAME]`` of ``perfgate.toml`` or repeated ``key=value`` words, or a name followed by
words that override it, whole for ``python`` and ``path``, name by name for ``env`` and ``args``. What the head does not
say it takes from the base, so ``--head args.max_num_seqs=4`` alone compares one engine flag.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError, field_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from perfgate.errors import UsageError
from perfgate.fields import ArgumentName, Variables

CONFIG_FILE = "perfgate.toml"
Role = Literal["base", "head"]
KEYS = ("python", "path", "env", "args")


class Subject(BaseModel):
    """One build under test, as asked for; relative paths are taken from the working directory.

    Args:
        python: The interpreter that holds the engine.
        path: Folders put on the module path before the interpreter's own, first one first.
        env: Environment variables for this side only.
        args: Engine arguments that replace the scenario's on this side only.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    python: str
    path: tuple[str, ...] = ()
    env: Variables = {}
    args: dict[ArgumentName, JsonValue] = {}

    @field_validator("python")
    @classmethod
    def _python_from_here(cls, python: str) -> str:
        # Engines start in another folder; the bare name of a program is left to PATH.
        return _absolute(Path.cwd(), python) if os.sep in python else python

    @field_validator("path")
    @classmethod
    def _path_from_here(cls, path: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_absolute(Path.cwd(), entry) for entry in path)


def find_config(start: Path) -> Path | None:
    """``perfgate.toml`` in ``start`` or the nearest folder above it that has one."""
    for folder in (start, *start.parents):
        if (folder / CONFIG_FILE).is_file():
            return folder / CONFIG_FILE
    return None


def load_config(file: Path | None) -> dict[str, dict[str, Any]]:
    """The ``[subjects.NAME]`` tables of ``perfgate.toml`` by name; empty without a file.

    Relative ``python`` and ``path`` entries are taken from the file's folder.

    Raises:
        UsageError: The file is no TOML, or holds a table or key that this version does not know.
    """
    if file is None:
        return {}
    try:
        config = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be read: {error}", where=str(file)) from error
    unknown = sorted(set(config) - {"subjects"})
    if unknown:
        raise UsageError(f"unknown table or key {unknown[0]!r}, expected [subjects.NAME]", where=str(file))
    tables = config.get("subjects", {})
    if not isinstance(tables, dict):
        raise UsageError("subjects is no table, expected [subjects.NAME]", where=str(file))
    return {name: _read_table(table, file.parent, f"{file}: subjects.{name}") for name, table in tables.items()}


def resolve(
    base_words: Sequence[str], head_words: Sequence[str], tables: Mapping[str, dict[str, Any]]
) -> dict[Role, Subject]:
    """The subjects of a run by role, ``base`` and, unless only the base was named, ``head``.

    Without ``--base`` words the table ``[subjects.base]`` serves, else the interpreter that runs perfgate. Without
    ``--head`` words the table ``[subjects.head]`` serves if no ``--base`` words were given either.

    Raises:
        UsageError: A word is no ``key=value`` and names no table, its key is unknown, or its value is refused.
    """
    base_table = _read_words("--base", base_words, tables) if base_words else tables.get("base", {})
    base = Subject(**{"python": sys.executable, **base_table})
    if head_words:
        return {"base": base, "head": _inherit(base, _read_words("--head", head_words, tables))}
    if "head" in tables and not base_words:
        return {"base": base, "head": _inherit(base, tables["head"])}
    return {"base": base}


def _inherit(base: Subject, table: Mapping[str, Any]) -> Subject:
    return Subject(
        python=table.get("python", base.python),
        path=tuple(table.get("path", base.path)),
        env={**base.env, **table.get("env", {})},
        args={**base.args, **table.get("args", {})},
    )


def _read_table(table: Any, folder: Path, where: str) -> dict[str, Any]:
    """A table of ``perfgate.toml``, checked, with absolute paths."""
    if not isinstance(table, dict):
        raise UsageError("is no table, expected [subjects.NAME]", where=where)
    _check_keys(table, where)
    read = dict(table)
    if isinstance(table.get("path"), str):
        read["path"] = [table["path"]]
    if isinstance(table.get("env"), dict):  # NAME = 1 is plain enough; true could mean 1, true or True
        read["env"] = {k: str(v) if type(v) is int else v for k, v in table["env"].items()}
    _check_values(read, where)
    return _absolute_paths(read, folder)


def _read_words(option: str, words: Sequence[str], tables: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """What repeated ``key=value`` words say, over the table that one of the words may name."""
    names = [word for word in words if "=" not in word]
    for name in names:
        if name not in tables:
            known = ", ".join(sorted(tables)) or f"none in {CONFIG_FILE}"
            raise UsageError(
                f"{option} {name}: no such subject (known: {known})",
                remedy="Write key=value words: python=, path=, env.NAME=, args.NAME=.",
            )
    if len(names) > 1:
        raise UsageError(f"{option} names two subjects: {names[0]} and {names[1]}")
    said: dict[str, Any] = {}
    for word in words:
        if "=" in word:
            _read_word(option, word, said)
    _check_values(said, option)
    named = tables[names[0]] if names else {}
    merged: dict[str, Any] = {key: {**named.get(key, {}), **said[key]} for key in ("env", "args") if key in said}
    return {**named, **_absolute_paths(said, Path.cwd()), **merged}


def _read_word(option: str, word: str, said: dict[str, Any]) -> None:
    """Add one ``key=value`` to ``said``."""
    key, _, value = word.partition("=")
    root, dot, name = key.partition(".")
    _check_keys({root: value}, f"{option} {word}")
    if root in ("env", "args"):
        if not name:
            raise UsageError(f"{option} {word}: expected {root}.NAME=value")
        parsed = value if root == "env" else _yaml_value(option, word, value)
        said.setdefault(root, {})[name] = parsed
    elif dot:
        raise UsageError(f"{option} {word}: expected {root}=value")
    elif root == "path":
        said.setdefault("path", []).extend(value.split(os.pathsep))
    else:
        said["python"] = value


def _yaml_value(option: str, word: str, value: str) -> Any:
    try:
        return YAML(typ="safe", pure=True).load(value)
    except (YAMLError, ValueError, RecursionError) as error:
        what = str(error).partition("\n")[0]
        raise UsageError(f"{option} {word}: the value is no YAML: {what}") from error


def _check_values(table: Mapping[str, Any], where: str) -> None:
    try:
        subject = Subject(**{"python": sys.executable, **table})
        json.dumps(subject.args, allow_nan=False)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"] if part != "[key]")
        raise UsageError(f"{place}: {first['msg'].removeprefix('Value error, ')}", where=where) from error
    except ValueError as error:
        raise UsageError(f"args: {error}", where=where) from error
    if not subject.python:
        raise UsageError("python: expected an interpreter, found nothing", where=where)


def _check_keys(table: Mapping[str, Any], where: str) -> None:
    for key in table:
        if key == "ref":
            raise UsageError(f"{where}: ref= is not supported yet", remedy="Build the ref yourself and give python=.")
        if key not in KEYS:
            raise UsageError(f"{where}: unknown key {key!r}, expected one of {', '.join(KEYS)}")


def _absolute_paths(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The table with its paths taken from ``folder``; the bare name of a program is left to PATH."""
    read = dict(table)
    if "path" in read:
        read["path"] = [_absolute(folder, entry) for entry in read["path"] if entry]
    if os.sep in read.get("python", ""):
        read["python"] = _absolute(folder, read["python"])
    return read


def _absolute(folder: Path, value: str) -> str:
    """An absolute path with its symbolic links kept: the ``python`` of a virtual environment is one.

    Following it would leave the environment, which is why this is not :meth:`pathlib.Path.resolve`.
    """
    try:
        path = Path(value).expanduser()
    except RuntimeError:  # ~somebody who is no user: the name of a folder then
        path = Path(value)
    return os.path.normpath(folder.absolute() / path)
