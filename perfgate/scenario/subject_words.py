"""What a user says of a subject, resolved: words, tables of perfgate.toml, commits to build."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from perfgate.errors import UsageError
from perfgate.machine.versioned_json import first_problem
from perfgate.metrics.sides import HEAD_NAME, SIDES, Side
from perfgate.scenario.subject import SHOWN, Subject, absolute, data_apart, entries

CONFIG_FILE: Final = "perfgate.toml"
WORKING_TREE: Final = "."
"""The ref of what is not committed."""
IN_FRONT: Final = "+"
"""How a folder of ``path`` begins that is put in front of those of the base or the build, and does not replace them."""
KEYS = ("python", "path", "env", "args", "ref", "url")
_OF_A_HEAD = re.compile(rf"([^:=]+):((?:{'|'.join(KEYS)})(?:\.[^=]*)?=.*)", re.DOTALL)
"""``NAME:key=value``; no engine argument and no variable has a colon in its name."""
MOST_HEADS: Final = 8
"""With more, base and head of a pair are so far apart in a round that runs of their own cost less."""

Make = Callable[[str], Mapping[str, Any]]
"""Makes a build of a git ref, and tells its ``python``, ``path`` and ``env``, and as ``built_from`` its source."""


def resolve(
    base_words: Sequence[str],
    head_words: Sequence[str],
    tables: Mapping[str, dict[str, Any]],
    make: Make | None = None,
) -> dict[Side, Subject]:
    """The subjects of a run by side, ``base`` and, unless only the base was named, ``head``.

    Without ``--base`` words the table ``[subjects.base]`` serves, else the interpreter that runs perfgate. Without
    ``--head`` words the table ``[subjects.head]`` serves if no ``--base`` words were given either. ``make`` makes
    builds of refs; without it a ref is an error.

    Raises:
        UsageError: A word is not ``key=value`` and names no table, its key is unknown, or its value is refused; or the
            words are of several heads.
        PerfgateError: Whatever ``make`` raises.
    """
    by_head = words_by_head(head_words, tables)
    if len(by_head) > 1:
        text = f"--head names several heads: {', '.join(by_head)}"
        raise UsageError(text, remedy="Name one head here; perfgate run measures several beside one base.")
    subjects = resolve_several(base_words, head_words, tables, make)
    return {side: subjects[side] for side in SIDES if side in subjects}


def resolve_several(
    base_words: Sequence[str],
    head_words: Sequence[str],
    tables: Mapping[str, dict[str, Any]],
    make: Make | None = None,
) -> dict[str, Subject]:
    """The same of a run that may have several heads, each by its name.

    Raises:
        UsageError: See :func:`resolve`; or a word does not say which of several heads it is about.
        PerfgateError: Whatever ``make`` raises.
    """
    by_head = words_by_head(head_words, tables)
    of_base = _read_words("--base", base_words, tables) if base_words else [tables.get("base", {})]
    base = _subject({"python": sys.executable}, _layered(of_base, make))
    layers = {name or "head": _read_words("--head", words, tables) for name, words in by_head.items() if words}
    if not (head_words or base_words) and "head" in tables:
        layers = {"head": [tables["head"]]}
    return {"base": base, **{name: _inherit(base, _layered(layer, make)) for name, layer in layers.items()}}


def words_by_head(words: Sequence[str], tables: Mapping[str, dict[str, Any]]) -> dict[str, tuple[str, ...]]:
    """The ``--head`` words of each head by its name, without that; where all are of one head its name is empty.

    ``NAME:key=value`` is about the head NAME. A word alone names a subject of ``perfgate.toml`` and with it a head, and
    a head of that name begins with that subject. All other words are about the only head there is.

    Raises:
        UsageError: There are several heads, and a word does not say which of them it is about, or too many, or one has
            a name that it cannot have.
    """
    said = [_OF_A_HEAD.match(word) for word in words]
    named = [(match[1], match[2]) if match else ("" if "=" in word else word, word)
             for match, word in zip(said, words, strict=True)]  # fmt: skip
    names = [*dict.fromkeys(name for name, _ in named if name)]
    if len(names) < 2:  # noqa: PLR2004 (several)
        plain = tuple(word for _, word in named)
        begins = (*names, *plain) if any(said) and names[0] in tables and names[0] not in plain else plain
        return {"": begins}
    for name in names:
        if name == "base" or not re.fullmatch(HEAD_NAME, name):
            text = f"--head {name}: one of several heads cannot be called that"
            raise UsageError(text, remedy="Names are up to 40 letters, digits, dots, dashes and underscores, not base.")
    if len(names) > MOST_HEADS:
        raise UsageError(f"--head names {len(names)} heads, and a run takes up to {MOST_HEADS}: {', '.join(names)}")
    if unsaid := [word for name, word in named if not name]:
        remedy = f"Put its name before the word: --head {names[0]}:{unsaid[0]}"
        raise UsageError(f"--head {unsaid[0]}: of which head? There are {', '.join(names)}", remedy=remedy)
    rest = {name: [word for of, word in named if of == name and word != name] for name in names}
    return {name: (*([name] if name in tables or name in words else []), *rest[name]) for name in names}


def against(
    ref: str, base_words: Sequence[str], head_words: Sequence[str], tables: Mapping[str, dict[str, Any]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The ``--base`` and ``--head`` words that ``--against REF`` represents.

    The base is the merge base of ``ref`` and the head's ref; the head is the working tree unless its words name a ref.

    Raises:
        UsageError: The base's words name a ref of their own.
    """
    if _ref_said("--base", base_words, tables):
        raise UsageError("--against names the base's commit, and so does --base", remedy="Leave out one of them.")
    serves = () if base_words or "base" not in tables or "ref" in tables["base"] else ("base",)
    head_ref = _ref_said("--head", head_words, tables)
    tip = "HEAD" if head_ref in (None, WORKING_TREE) else head_ref
    base = (*serves, *base_words, f"ref={ref}...{tip}")
    return base, tuple(head_words) if head_ref else (f"ref={WORKING_TREE}", *head_words)


def find_config() -> Path | None:
    """The nearest ``perfgate.toml`` from the working directory up."""
    above = (folder / CONFIG_FILE for folder in (Path.cwd(), *Path.cwd().parents))
    return next(filter(Path.is_file, above), None)


def absolute_paths(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A subject's table with its paths taken from ``folder``; the bare name of a program is left to PATH."""
    read = dict(table)
    if "path" in read:
        begun = [(entry[:1] == IN_FRONT, entry.removeprefix(IN_FRONT)) for entry in read["path"]]
        read["path"] = [IN_FRONT * added + absolute(folder, entry) for added, entry in begun if entry]
    if os.sep in (read.get("python") or ""):
        read["python"] = absolute(folder, read["python"])
    return read


def anchored(words: Sequence[str], folder: Path) -> tuple[str, ...]:
    """The same words of one side, with relative ``python=`` and ``path=`` taken from a folder."""
    made = []
    for word in words:
        key, equals, value = word.partition("=")
        if equals and key in ("python", "path"):
            read = absolute_paths({key: value.split(os.pathsep) if key == "path" else value}, folder)[key]
            word = f"{key}={os.pathsep.join(read) if key == 'path' else read}"  # noqa: PLW2901 (the same word)
        made.append(word)
    return tuple(made)


def same_build(left: Subject | None, right: Subject | None) -> bool:
    """Whether two subjects are one build, whatever ref each was asked for by."""
    plain = [subject and subject.model_copy(update={"built_from": None, "data": ()}) for subject in (left, right)]
    return plain[0] == plain[1]


def replaced_path(subject: Subject, base: Subject | None) -> str:
    """A sentence on a head whose own ``path=`` leaves out folders of its base; empty where it does not."""
    if base is None or not subject.path or {*base.path} <= {*subject.path}:
        return ""
    return f"path= replaces the base's path={os.pathsep.join(base.path)}; path=+FOLDER puts a folder in front of it"


def words(subject: Subject, base: Subject | None = None) -> tuple[str, ...]:
    """The ``key=value`` words that name a subject, or, beside a base, those in which it differs from it.

    Values of environment variables may be secrets, so they are left out: ``env.NAME=...``. A build of a commit is named
    by the commit, one with uncommitted changes is the working tree.
    """
    if subject.url is not None:
        return () if base and base.url == subject.url else (f"url={subject.url}",)
    source, named = subject.built_from, []
    if source is not None and (base is None or base.built_from != source):
        named.append(f"ref={WORKING_TREE if source.changes else source.commit[:SHOWN]}")
    reference = base or Subject(python="")
    built = source.folder if source is not None else None
    if subject.python != reference.python and not (built and built in subject.python):
        named.append(f"python={subject.python}")
    path = [entry for entry in entries(subject) if not (built and built in entry)]
    if path and entries(subject) != entries(reference):
        named.append(f"path={os.pathsep.join(path)}")
    named += [f"env.{name}=..." for name, value in subject.env.items() if value != reference.env.get(name)]
    changed = {name: value for name, value in subject.args.items() if (name, value) not in reference.args.items()}
    named += [f"args.{name}={json.dumps(value, ensure_ascii=False)}" for name, value in changed.items()]
    return tuple(named)


def revisions(subjects: Mapping[Side, Subject]) -> dict[Side, str]:
    """Of each subject that was built from a git ref, what it was built from, for people."""
    return {side: subject.built_from.name for side, subject in subjects.items() if subject.built_from}


def _ref_said(option: str, words: Sequence[str], tables: Mapping[str, dict[str, Any]]) -> str | None:
    return next((layer["ref"] for layer in reversed(_read_words(option, words, tables)) if "ref" in layer), None)


def _layered(layers: Sequence[Mapping[str, Any]], make: Make | None) -> dict[str, Any]:
    """What layers say together, later ones over earlier ones; only the last ref is made, in its layer's place."""
    refs = [number for number, layer in enumerate(layers) if "ref" in layer]
    merged: dict[str, Any] = {}
    for number, layer in enumerate(layers):
        table = {key: value for key, value in layer.items() if key != "ref"}
        if refs[-1:] == [number]:
            if make is None:
                raise UsageError(f"ref={layer['ref']}: nothing is built here", remedy="Name a build: python=, path=.")
            merged = _over(merged, make(layer["ref"]))
        merged = _over(merged, table)
    return merged


def _over(table: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {key: {**table.get(key, {}), **over[key]} for key in ("env", "args") if key in over}
    if "path" in over:
        added = [entry for entry in over["path"] if entry.startswith(IN_FRONT)]
        entries = [entry for entry in over["path"] if not entry.startswith(IN_FRONT)]
        merged["path"] = [*added, *(entries or (table.get("path", ()) if added else ()))]
    return {**table, **over, **merged}


def _inherit(base: Subject, table: Mapping[str, Any]) -> Subject:
    inherited = {key: getattr(base, key) for key in ("python", "env", "args", "built_from")} | {"path": entries(base)}
    return _subject(inherited | ({} if "python" in table else {"url": base.url}), table)


def _subject(inherited: Mapping[str, Any], table: Mapping[str, Any]) -> Subject:
    """What a side says over what it inherits; a server that runs already inherits nothing.

    Raises:
        UsageError: The two do not go together.
    """
    said = {"python": "", **table} if "url" in table else _over(inherited, table)
    if "path" in said:
        said["path"] = [entry.removeprefix(IN_FRONT) for entry in said["path"]]
    try:
        subject = Subject(**data_apart(said))
    except ValidationError as error:
        raise UsageError(first_problem(error).removeprefix(": ")) from error
    source, used = subject.built_from, [subject.python, *subject.path, *subject.env.values()]
    if source is None or any(source.folder in text for text in used):
        return subject
    return subject.model_copy(update={"built_from": None})  # nothing of that build is left: other words replace it


def _read_words(option: str, words: Sequence[str], tables: Mapping[str, dict[str, Any]]) -> list[Mapping[str, Any]]:
    """The table that one of the words names, where one does, then what the ``key=value`` words say."""
    names = [word for word in words if "=" not in word]
    for name in names:
        if name not in tables:
            choices = ", ".join(sorted(tables)) or f"none in {CONFIG_FILE}"
            remedy = "Write key=value words: python=, path=, env.NAME=, args.NAME=, ref=, url=."
            raise UsageError(f"{option} {name}: no such subject (known: {choices})", remedy=remedy)
    if len(names) > 1:
        raise UsageError(f"{option} names two subjects: {names[0]} and {names[1]}")
    table: dict[str, Any] = {}
    for word in words:
        if "=" in word:
            _read_word(option, word, table)
    _check_values(table, option)
    return [*(tables[name] for name in names), absolute_paths(table, Path.cwd())]


def _read_word(option: str, word: str, table: dict[str, Any]) -> None:
    """Add one ``key=value`` to ``table``."""
    key, _, value = word.partition("=")
    root, dot, name = key.partition(".")
    if root not in KEYS:
        raise UsageError(f"{option} {word}: unknown key {root!r}, expected one of {', '.join(KEYS)}")
    if root in ("env", "args"):
        if not name:
            raise UsageError(f"{option} {word}: expected {root}.NAME=value")
        table.setdefault(root, {})[name] = value if root == "env" else _yaml_value(option, word, value)
    elif dot:
        raise UsageError(f"{option} {word}: expected {root}=value")
    elif root == "path":
        mark = IN_FRONT if value.startswith(IN_FRONT) else ""  # of all folders of the word
        named = [entry.removeprefix(mark) for entry in value.split(os.pathsep)]
        table.setdefault("path", []).extend(f"{mark}{entry}" for entry in named if entry)
    else:
        table[root] = value


def _yaml_value(option: str, word: str, value: str) -> Any:
    try:
        return YAML(typ="safe", pure=True).load(value)
    except (YAMLError, ValueError, RecursionError) as error:
        what = str(error).partition("\n")[0]
        raise UsageError(f"{option} {word}: invalid YAML: {what}") from error


def _check_values(table: Mapping[str, Any], where: str) -> None:
    try:
        usual = {"python": "" if "url" in table else sys.executable}
        subject = Subject(**data_apart({**usual, **{k: v for k, v in table.items() if k != "ref"}}))
    except ValidationError as error:
        raise UsageError(first_problem(error).removeprefix(": "), where=where) from error
    if not subject.python and subject.url is None:
        raise UsageError("python: expected an interpreter, found nothing", where=where)
