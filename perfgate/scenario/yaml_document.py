"""YAML documents with the place of every field, so that what is wrong with it can be pointed at.

Safe by construction: YAML 1.2 through ruamel's pure safe loader, values that JSON knows and nothing else, no aliases
(so no document can unfold into a larger one), no directives (``%YAML 1.1`` would turn ``no`` into false), no
environment expansion.
"""

from __future__ import annotations

import difflib
import errno
import functools
import json
import math
import operator
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaMode
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from perfgate.errors import Problem, ScenarioError
from perfgate.models import FieldError, FieldPath

Marks = Mapping[FieldPath, tuple[int, int]]

MAX_BYTES = 256 * 1024
"""A scenario is a page of text; anything larger is something else."""
MAX_DEPTH = 32
"""A scenario is not nested deeper; the limit keeps every recursion below Python's own."""
MAX_DIGITS = 100
"""Python refuses to read integers of more than 4300 digits; nothing measured has 100."""

TAG = "tag:yaml.org,2002:"
_JSONTAGS = frozenset(TAG + kind for kind in ("str", "int", "float", "bool", "null", "map", "seq"))
_SHOWN = reprlib.Repr()
_SHOWN.maxstring = 60


@dataclass(frozen=True)
class Document:
    """A document's content and the place of each of its parts.

    Args:
        file: Path as the user gave it.
        text: What is in it, word for word.
        content: The mapping as plain Python values.
        marks: Place of each value: (line, column), from 1.
        key_marks: Place of each key.
    """

    file: Path
    text: str
    content: dict[str, Any]
    marks: dict[FieldPath, tuple[int, int]]
    key_marks: dict[FieldPath, tuple[int, int]]

    def where(self, *path: str | int) -> str:
        """``file:line`` of a field, or of the nearest enclosing one that the file spells out."""
        return f"{self.file}:{self.marks[_known(path, self.marks)][0]}"

    def problem(self, path: FieldPath, text: str, *, at_key: bool = False) -> Problem:
        """What is wrong with a field, at the place of its value or of its key, or of the nearest enclosing one."""
        marks = self.key_marks if at_key else self.marks
        return Problem(str(self.file), *marks.get(_known(path, marks), (1, 1)), dotted(path), text)

    def walk(self, node: Node, path: FieldPath) -> Iterator[Problem]:
        """Note the place of every field; yield duplicate keys, keys that are not text, and values that are refused."""
        self.marks[path] = _line_and_column(node)
        if refused := _refusal(node, len(path)):
            yield self.problem(path, refused)
            return
        if isinstance(node, SequenceNode):
            for index, child in enumerate(node.value):
                yield from self.walk(child, (*path, index))
        if isinstance(node, MappingNode):
            for key, child in node.value:
                inner = (*path, key.value)
                if refused := _key_refusal(key):
                    yield Problem(str(self.file), *_line_and_column(key), dotted(path), refused)
                elif inner in self.key_marks:
                    text = f"is given twice, first in line {self.key_marks[inner][0]}"
                    yield Problem(str(self.file), *_line_and_column(key), dotted(inner), text)
                else:
                    self.key_marks[inner] = _line_and_column(key)
                    yield from self.walk(child, inner)

    def problems(self, error: ValidationError, model: type[BaseModel]) -> tuple[Problem, ...]:
        """Every error of pydantic, placed in the file, said in the file's words, in file order."""
        # Pydantic also calls a list too short whose entries are wrong; those have problems of their own.
        details = [
            d for d in error.errors(include_url=False)
            if d["type"] != "too_short" or not self._value_at(_known(d["loc"], self.marks))
        ]  # fmt: skip
        unknown = [tuple(d["loc"]) for d in details if d["type"] == "extra_forbidden"]
        # What an unknown key was probably meant to be is misspelt, not missing as well.
        meant = {(*path[:-1], _nearest(str(path[-1]), _fields_at(model, path[:-1]))) for path in unknown}
        problems = [self._problem(d, model) for d in details if d["type"] != "missing" or tuple(d["loc"]) not in meant]
        return tuple(sorted(problems, key=lambda problem: (problem.line, problem.column)))

    def _value_at(self, path: FieldPath) -> Any:
        return functools.reduce(operator.getitem, path, self.content)  # type: ignore[arg-type]  # of lists and mappings

    def _problem(self, detail: Any, model: type[BaseModel]) -> Problem:
        path: FieldPath = tuple(detail["loc"])
        kind = detail["type"]
        if isinstance(error := detail.get("ctx", {}).get("error"), FieldError):
            path += error.path
        if kind == "extra_forbidden":
            fields = _fields_at(model, path[:-1])
            text = f"unknown key{did_you_mean(str(path[-1]), fields)}; expected one of {', '.join(fields)}"
            return self.problem(path, text, at_key=True)
        if kind == "missing" and isinstance(path[-1], int):  # a list of a fixed length, which ends too early
            path = _known(path, self.marks)
            return self.problem(path, f"ends too early: expected more values, found {in_flow(self._value_at(path))}")
        if kind == "missing":
            key = str(path[-1])
            examples = _fields_at(model, path[:-1])[key].examples
            example = f"; add it, for example {key}: {in_flow(examples[0])}" if examples else ""
            return self.problem(path, f"is missing{example}")
        if path[-1:] == ("[key]",):
            return self.problem(path[:-1], _in_words(kind, detail), at_key=True)
        path = _known(path, self.marks)
        value = self._value_at(path)
        shown = "" if isinstance(value, dict | list) else f", found {_in_yaml(value)}"
        # A value left out has no place of its own: YAML puts it behind the comments that follow.
        return self.problem(path, _in_words(kind, detail) + shown, at_key=value is None and path in self.key_marks)


def read_text(file: Path, kind: str) -> str:
    """The text of a file that should be a ``kind``: a scenario, a plant.

    Raises:
        ScenarioError: It is not there, not a file, too large, not UTF-8, or cannot be read.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise whole_file_error(file, f"is larger than {MAX_BYTES} bytes, which no {kind} is")
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise whole_file_error(file, "not UTF-8 text") from None
    except OSError as error:
        texts = {errno.ENOENT: "no such file", errno.EISDIR: f"is a folder, expected a {kind} file"}
        text = texts.get(error.errno or 0, f"cannot be read: {error.strerror}")
        raise whole_file_error(file, text) from error


@functools.lru_cache(maxsize=64)
def read_document(text: str, file: Path) -> Document:
    """Parse ``text``; ``file`` names it in errors.

    What was parsed is kept: each look at a run's manifest asks for its scenarios again, and parsing takes 20 ms.

    Raises:
        ScenarioError: The text is invalid YAML or not a mapping, or holds duplicate keys, keys that are not text,
            aliases, directives, or values that JSON does not know.
    """
    _refuse_directives(text, file)
    document = Document(file, text, {}, {}, {})
    try:
        yaml = YAML(typ="safe", pure=True)
        root = yaml.compose(StringIO(text))
        problems: dict[tuple[int, int], Problem] = {}
        for problem in () if root is None else document.walk(root, ()):
            problems.setdefault((problem.line, problem.column), problem)  # an anchor is met again at each alias
        if problems:
            raise ScenarioError(tuple(problems.values()))
        content = None if root is None else yaml.constructor.construct_document(root)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        what = ": ".join(part for part in (error.context, error.problem) if part)
        raise ScenarioError((Problem(str(file), line, column, "", f"invalid YAML: {what}"),)) from error
    except RecursionError as error:
        raise whole_file_error(file, f"is nested deeper than {MAX_DEPTH} levels") from error
    except (YAMLError, ValueError) as error:
        what = str(error).partition("\n")[0] or type(error).__name__
        raise whole_file_error(file, f"invalid YAML: {what}") from error
    if not isinstance(content, dict):
        raise whole_file_error(file, "is empty or no mapping, expected 'key: value' lines")
    return replace(document, content=content)


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """`` (did you mean ...?)`` where something known is near, else nothing."""
    return f" (did you mean {near!r}?)" if (near := _nearest(word, names)) else ""


def _nearest(word: str, names: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(word, list(names), n=1, cutoff=0.6)), "")


def _known(path: FieldPath, marks: Marks) -> FieldPath:
    """As much of a path as the file has: a union, a whole-model check or a list made of one text adds parts."""
    while path and path not in marks:
        path = path[:-1]
    return path


def whole_file_error(file: Path, text: str) -> ScenarioError:
    """An error that concerns the file as a whole."""
    return ScenarioError((Problem(str(file), 1, 1, "", text),))


def dotted(path: FieldPath) -> str:
    """``gates[0].metric`` for ``("gates", 0, "metric")``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def draft_07(model: type[BaseModel], mode: JsonSchemaMode = "validation") -> dict[str, Any]:
    """The JSON schema of a model in the words of draft-07, the newest that YAML editors read."""
    schema = model.model_json_schema(ref_template="#/definitions/{model}", mode=mode)
    definitions = schema.pop("$defs", {})
    return {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": _items_by_place(definitions), **schema}


def _items_by_place(node: Any) -> Any:
    """A schema whose tuples are said as draft-07 says them."""
    if isinstance(node, list):
        return [_items_by_place(child) for child in node]
    if not isinstance(node, dict):
        return node
    return {"items" if key == "prefixItems" else key: _items_by_place(value) for key, value in node.items()}


def describe_fields(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with each field described by the ``Args:`` of its model's docstring, which editors show on hover."""

    def describe(node: dict[str, Any]) -> dict[str, Any]:
        text, _, fields = node.get("description", "").partition("\n\nArgs:\n")
        descriptions = dict(re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", fields, flags=re.MULTILINE))
        properties = {
            name: field | ({"description": re.sub(r"\s+", " ", descriptions[name])} if name in descriptions else {})
            for name, field in node.get("properties", {}).items()
        }
        return node | ({"description": text} if text else {}) | ({"properties": properties} if properties else {})

    definitions = {name: describe(node) for name, node in schema.get("definitions", {}).items()}
    return describe(schema) | {"definitions": definitions}


def _line_and_column(node: Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _refuse_directives(text: str, file: Path) -> None:
    """A ``%`` in the first column can be nothing else: the lines of a mapping's values are indented."""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("%"):
            problem = Problem(str(file), number, 1, "", "directives are not supported: the file is YAML 1.2")
            raise ScenarioError((problem,))


def _refusal(node: Node, depth: int) -> str:
    """Why this value is refused, whatever its field; empty where it is not."""
    tag = str(node.tag)
    if node.anchor:
        return "anchors and aliases are not supported: write the value out"
    if depth > MAX_DEPTH:
        return f"is nested deeper than {MAX_DEPTH} levels"
    if tag not in _JSONTAGS:
        return f"the tag {tag.replace(TAG, '!!')} is not supported: quote text, and take tags out"
    return _scalar_refusal(node, tag) if isinstance(node, ScalarNode) else ""


def _scalar_refusal(node: ScalarNode, tag: str) -> str:
    if not _encodable(node.value):
        return "half of a surrogate pair is not text"
    if tag == TAG + "int" and len(node.value) > MAX_DIGITS:
        return f"a number of more than {MAX_DIGITS} digits is not supported"
    plain = re.sub(r"\.(inf|nan)$", r"\1", node.value.replace("_", "").lower())
    if tag == TAG + "float" and not math.isfinite(float(plain)):
        return f"expected a finite number, found {node.value}"
    return ""


def _key_refusal(key: Node) -> str:
    if key.anchor:
        return "anchors and aliases are not supported: write the key out"
    if key.tag == TAG + "merge":
        return "merge keys are not supported: write the values out"
    if not isinstance(key, ScalarNode):
        return "a key must be text, found a list or a mapping"
    if key.tag != TAG + "str":
        return f"the key {key.value!r} is not text: quote it"
    return "" if _encodable(key.value) else "half of a surrogate pair is not text"


def _encodable(text: str) -> bool:
    return not re.search("[\ud800-\udfff]", text)


def _in_yaml(value: Any) -> str:
    """A scalar as the file spells it, shortened where it is long."""
    spelling = {None: "nothing", True: "true", False: "false"}
    return spelling[value] if value is None or isinstance(value, bool) else _SHOWN.repr(value)


def _in_words(kind: str, detail: Any) -> str:
    context = detail.get("ctx", {})
    texts = {
        "int_type": "expected a whole number",
        "float_type": "expected a number",
        "string_type": "expected text (quote it)",
        "bool_type": "expected true or false",
        "dict_type": "expected a mapping",
        "model_type": "expected a mapping",
        "tuple_type": "expected a list",
        "too_short": "expected at least one entry",
        "greater_than_equal": f"must be at least {context.get('ge')}",
        "less_than_equal": f"must be at most {context.get('le')}",
        "less_than": f"must be below {context.get('lt')}",
        "literal_error": f"expected {context.get('expected')}",
        "string_pattern_mismatch": f"must match {context.get('pattern')}",
    }
    if kind == "too_short" and detail["input"] == "":
        return "must not be empty"
    if kind == "value_error":
        return str(context["error"])
    return texts.get(kind) or str(detail["msg"])


def _fields_at(model: type[BaseModel], path: FieldPath) -> dict[str, FieldInfo]:
    """The fields of the model at ``path`` by their keys, as the file spells them."""
    parts = iter(path)
    for part in parts:
        if isinstance(part, int):
            continue
        annotation = _fields_at(model, ())[part].annotation
        if get_origin(annotation) is dict:
            next(parts, None)  # a key of the user's own
        model = next(_models_in(annotation))
    return {field.alias or name: field for name, field in model.model_fields.items()}


def in_flow(value: Any) -> str:
    """Plain values as YAML in one line, text quoted where it would mean something else."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {in_flow(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(in_flow, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    plain = not isinstance(value, str) or (re.fullmatch(r"[\w./][\w ./%-]*", value) and re.search(r"[^\d.]", value))
    return str(value) if plain else json.dumps(value, ensure_ascii=False)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from _models_in(part)
