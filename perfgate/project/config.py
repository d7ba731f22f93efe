"""``perfgate.toml``: subjects that have names, and how a git ref becomes a subject.

docs/configuration.md shows the whole file. Reading it executes nothing: the commands of ``[build]`` run where a ref is
asked for, see :mod:`perfgate.project.build`.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from perfgate.errors import UsageError
from perfgate.models import Duration, FieldPath, Listed, Strict
from perfgate.scenario.fields import Arguments, Variables, file_pattern
from perfgate.scenario.subject import ServerUrl
from perfgate.scenario.subject_words import CONFIG_FILE, absolute_paths, find_config
from perfgate.scenario.yaml_document import MAX_DEPTH, MAX_DIGITS, Document, describe_fields, dotted, draft_07

PLACEHOLDERS: Mapping[str, str] = {
    "tree": "the folder that the commit is checked out into",
    "env": "a folder for whatever the commands make; it is not there before them",
    "commit": "the full hash of the commit",
    "here": f"the folder of {CONFIG_FILE}",
}
"""What the braces of a recipe may hold; a literal brace is written twice."""


def _one_or_more(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _numbers_as_text(value: Any) -> Any:
    """``NAME = 1`` is plain enough; ``true`` could mean 1, true or True."""
    return {k: str(v) if type(v) is int else v for k, v in value.items()} if isinstance(value, dict) else value


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("expected text without NUL characters, which no path and no command can hold")
    return text


def _known_placeholders(text: str) -> str:
    for _, name, form, conversion in Formatter().parse(text):
        if name is not None and (name not in PLACEHOLDERS or form or conversion):
            names = ", ".join(f"{{{placeholder}}}" for placeholder in PLACEHOLDERS)
            raise ValueError(f"unknown placeholder {{{name}}}: expected {names}, or {{{{ and }}}} for plain braces")
    return text


_TOO_DEEP = f"is nested deeper than {MAX_DEPTH} levels"
_TOO_LONG = f"a number of more than {MAX_DIGITS} digits is not supported"
_TEXT_OR_LIST = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_T = TypeVar("_T")
Several = Annotated[tuple[_T, ...], BeforeValidator(_one_or_more), Listed, WithJsonSchema(_TEXT_OR_LIST)]
_NONE_BY_DEFAULT = WithJsonSchema(_TEXT_OR_LIST | {"default": []})
Entry = Annotated[str, AfterValidator(_without_nul)]
Text = Annotated[Entry, Field(min_length=1)]
Template = Annotated[Text, AfterValidator(_known_placeholders)]
Pattern = Annotated[Text, AfterValidator(file_pattern)]
PlainVariables = Annotated[
    Variables,
    BeforeValidator(_numbers_as_text),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": ["string", "integer"]}}),
]


class SubjectTable(Strict):
    """``[subjects.NAME]``: one build under test, named by ``--base NAME`` or ``--head NAME``.

    Args:
        python: The interpreter that holds the engine: a path, or the name of a program.
        path: A folder, or a list of them, put on the module path before the interpreter's own, in place of the base's;
            +FOLDER puts one in front of the base's, or of those that ref= builds; of FOLDER,data nothing has to be
            imported.
        env: Environment variables for this side only.
        args: Engine arguments that replace the scenario's on this side only.
        ref: A git ref that [build] makes the subject from; keys beside it override what the build gives.
        url: A server that runs already, in place of all of these; what it shows is advisory.
    """

    python: Text | None = None
    path: Annotated[Several[Entry], _NONE_BY_DEFAULT] = ()
    env: PlainVariables = {}
    args: Arguments = {}
    ref: Text | None = None
    url: ServerUrl | None = None


class Recipe(Strict):
    """``[build]``: how a git ref becomes a subject.

    ``{tree}``, ``{env}``, ``{commit}`` and ``{here}`` represent the checkout, a folder for what the commands make, the
    commit's hash and the folder of this file.

    Args:
        repository: Folder of the git repository, from this file's; by default the one that this file is in.
        commands: Run one after the other in {tree}. Each is a list of words, program first, run without a shell;
            a word that begins with ~/ is taken from the home of whoever runs it.
        python: The subject's interpreter; by default that of the base, else the one that runs perfgate.
        path: A folder, or a list of them, put on the subject's module path.
        env: Environment variables of the subject's engines (not of the commands).
        inputs: Patterns of files, from this file's folder, that the commands also read: when one changes, all is built
            anew.
        timeout: Limit for all commands of a build together.
        cache: Folder that builds are kept in, from this file's; PERFGATE_BUILDS goes before it.
    """

    repository: Text | None = None
    commands: Annotated[tuple[Annotated[tuple[Template, ...], Field(min_length=1), Listed], ...], Listed] = ()
    python: Template | None = None
    path: Annotated[Several[Template], _NONE_BY_DEFAULT] = ()
    env: Annotated[PlainVariables, AfterValidator(lambda env: {k: _known_placeholders(v) for k, v in env.items()})] = {}
    inputs: Several[Pattern] = ()
    timeout: Duration = 7200.0
    cache: Text | None = None

    @field_validator("commands", mode="before")
    @classmethod
    def _commands_are_lists(cls, commands: Any) -> Any:
        texts = [command for command in commands if isinstance(command, str)] if isinstance(commands, list) else []
        if texts:
            raise ValueError(
                f"a command is a list of words, no text: write {json.dumps(texts[0].split())}, "
                f'or ["sh", "-ec", {json.dumps(texts[0])}] where it needs a shell'
            )
        return commands

    @model_validator(mode="after")
    def _the_ref_makes_a_difference(self) -> Recipe:
        templates = [self.python or "", *self.path, *self.env.values()]
        if not any(placeholder in text for text in templates for placeholder in ("{tree}", "{env}")):
            text = "python, path or env must name {tree} or {env}, otherwise every ref would be the same subject"
            raise ValueError(text)
        return self


class MachineTable(Strict):
    """``[machines.NAME]``: machines that are alike, among which perfgate plan divides the cells of scenarios.

    Args:
        scenarios: Patterns of the scenario files that they measure, from this file's folder.
        labels: By which a CI finds one of them, like the labels of GitHub's runners.
    """

    scenarios: Annotated[Several[Pattern], Field(min_length=1)]
    labels: Annotated[Several[Text], Field(min_length=1)]


class _File(Strict):
    """perfgate.toml: subjects that have names, and how a git ref becomes a subject.

    Args:
        subjects: Builds by name, for --base NAME and --head NAME; base and head serve where no words are given.
        build: How a git ref becomes a subject, for ref= and --against.
        machines: Classes of machines by name, for perfgate plan.
    """

    subjects: dict[str, SubjectTable] = {}
    build: Recipe | None = None
    machines: dict[str, MachineTable] = {}


@dataclass(frozen=True)
class Config:
    """What ``perfgate.toml`` says.

    Args:
        file: The file; ``None`` where there is none.
        subjects: What the ``[subjects.NAME]`` tables say, by name; ``python`` and ``path`` are absolute.
        build: The ``[build]`` table; ``None`` where there is none.
        machines: The ``[machines.NAME]`` tables, by name.
    """

    file: Path | None = None
    subjects: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    build: Recipe | None = None
    machines: Mapping[str, MachineTable] = field(default_factory=dict)

    def example_recipe(self) -> str:
        """A recipe to begin with, for the interpreter that the base has."""
        python = self.subjects.get("base", {}).get("python", sys.executable)
        words = json.dumps(python.replace("{", "{{").replace("}", "}}"), ensure_ascii=False)
        begin = f"For a package that needs no build, add to {CONFIG_FILE}:"
        return f'{begin}\n    [build]\n    python = {words}\n    path = "{{tree}}"'

    def machines_of(self, scenario: Path) -> list[str]:
        """The classes of machines whose patterns name a scenario file."""
        folder = (self.file or Path(CONFIG_FILE)).absolute().parent
        return [
            name
            for name, table in self.machines.items()
            if any(scenario.resolve() == file.resolve() for entry in table.scenarios for file in folder.glob(entry))
        ]


def load_config(file: Path | None = None) -> Config:
    """What ``perfgate.toml`` says: the one named, else the nearest from the working directory up; nothing without one.

    Relative ``python`` and ``path`` entries of subjects are taken from the file's folder.

    Raises:
        UsageError: The file is not TOML, or holds a table, key or value that this version does not know; each problem
            is named by its table and key.
    """
    file = file or find_config()
    if file is None:
        return Config()
    content = _read(file)
    try:
        checked = _File.model_validate(content)
    except ValidationError as error:
        raise UsageError(_in_words(file, content, error)) from error
    tables = {name: table.model_dump(exclude_unset=True) for name, table in checked.subjects.items()}
    subjects = {name: absolute_paths(table, file.parent) for name, table in tables.items()}
    return Config(file, subjects, checked.build, checked.machines)


def _read(file: Path) -> dict[str, Any]:
    """The file's tables, no deeper and with no longer numbers than a scenario may have."""
    try:
        text = file.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"cannot be read: {error}", where=str(file)) from error
    except RecursionError as error:
        raise UsageError(_TOO_DEEP, where=str(file)) from error
    except ValueError as error:  # Python reads no integer of more than 4300 digits, and does not say where one was
        digits = re.search(rf"[0-9_]{{{MAX_DIGITS + 1},}}", text)
        line = text.count("\n", 0, digits.start()) + 1 if digits else 1
        raise UsageError(_TOO_LONG, where=f"{file}:{line}") from error
    for path, value in _values(content, ()):
        if len(path) > MAX_DEPTH:
            raise UsageError(_TOO_DEEP, where=f"{file}: {dotted(path)}")
        if isinstance(value, int) and abs(value) >= 10**MAX_DIGITS:
            raise UsageError(_TOO_LONG, where=f"{file}: {dotted(path)}")
    return content


def config_schema() -> dict[str, Any]:
    """The format of ``perfgate.toml`` as JSON Schema draft-07."""
    schema = describe_fields(draft_07(_File))
    recipe = schema["definitions"]["Recipe"]["properties"]
    recipe["timeout"]["default"] = Recipe(path=("{tree}",)).model_dump(mode="json")["timeout"]
    return {**schema, "title": "perfgate.toml"}


def _in_words(file: Path, content: dict[str, Any], error: ValidationError) -> str:
    """Every problem in the words that scenarios have for it; tomllib knows no lines, so table and key are the place."""
    marks = {path: (number, 1) for number, (path, _) in enumerate(_values(content, ()))}
    problems = Document(file, "", content, marks, marks).problems(error, _File)
    return "\n".join(f"{file}: {problem.field}: {problem.text}" for problem in problems)


def _values(value: Any, path: FieldPath) -> Iterator[tuple[FieldPath, Any]]:
    """Every value with its place, in the file's order."""
    yield path, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield from _values(child, (*path, key))
