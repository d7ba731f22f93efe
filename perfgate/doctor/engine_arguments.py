"""The engine arguments that a build of vLLM takes, read from its source; nothing of it is imported or executed.

Importing vLLM takes 8 to 15 seconds, parsing the few files that declare its arguments a quarter of one. What a syntax
tree cannot tell is left to the engine: an annotation that leads nowhere, a value that the class changes before use, a
field with a validator of its own that sees the value first. So a refusal here is one of the engine, only earlier.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from perfgate.doctor.accepted_values import BOUNDS, Accepted, EngineArguments

MAX_BYTES = 4 * 1024**2
"""Of one source file; vLLM's largest with arguments has 0.15 MiB."""
MAX_FILES = 100
MAX_DEPTH = 12
"""Of names that lead to other names."""

_KINDS = {"int": "int", "float": "float", "bool": "bool", "str": "str", "list": "list", "tuple": "list", "set": "list",
          "dict": "dict", "List": "list", "Tuple": "list", "Set": "list", "Dict": "dict"}  # fmt: skip


def read_arguments(package: Path, version: str) -> EngineArguments | None:
    """The arguments that the ``vllm`` package in a folder takes; ``None`` where its source does not tell them.

    Args:
        package: The folder of ``vllm/__init__.py``.
        version: For people.
    """
    source = _Source(package)
    tree = source.module("vllm.engine.arg_utils")
    found = None if tree is None else tree.bound.get("EngineArgs")
    init = source.module("vllm")
    if tree is None or init is None or "arg_utils" not in init.text or not isinstance(found, ast.ClassDef):
        return None
    if found.bases or found.keywords or [_last_name(one) for one in found.decorator_list] != ["dataclass"]:
        return None
    unused = _changed_fields(found)
    passed = {name: to for name, to in _passed(found) if name not in unused}
    made = _made_of_mappings(found)
    accepted = {
        name: source.argument(tree, statement, passed.get(name), made=name in made)
        for name, statement in _declared(found)
    }
    return EngineArguments(version, accepted)


@dataclass
class _Module:
    """A parsed file and what its names are bound to; a name that is bound twice is bound to nothing."""

    name: str
    text: str
    bound: dict[str, ast.AST | tuple[str, str]]


class _Source:
    """The source of a package, parsed as far as it is asked for."""

    def __init__(self, package: Path) -> None:
        self._package = package
        self._modules: dict[str, _Module | None] = {}

    def module(self, name: str) -> _Module | None:
        """A module of the package; ``None`` where there is none that this version of Python can parse."""
        if name not in self._modules:
            self._modules[name] = self._parse(name) if len(self._modules) < MAX_FILES else None
        return self._modules[name]

    def _parse(self, name: str) -> _Module | None:
        parts = name.split(".")
        if parts[0] != "vllm":
            return None
        place = self._package.joinpath(*parts[1:])
        for file in (place / "__init__.py", place.with_suffix(".py")):
            try:
                if not file.is_file() or file.stat().st_size > MAX_BYTES:
                    continue
                text = file.read_text(encoding="utf-8")
                return _Module(name, text, _bindings(ast.parse(text), name, is_package=file.name == "__init__.py"))
            except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
                return None
        return None

    def find(self, module: _Module, name: str, depth: int = 0) -> tuple[_Module, ast.AST] | None:
        """Where a name of a module is defined, through imports from the same package."""
        found = module.bound.get(name)
        if isinstance(found, ast.AST):
            return module, found
        if found is None or depth > MAX_DEPTH:
            return None
        other = self.module(found[0])
        return None if other is None else self.find(other, found[1], depth + 1)

    def argument(
        self, module: _Module, statement: ast.AnnAssign, passed: tuple[str, str] | None, *, made: bool
    ) -> Accepted:
        """What an argument takes: what the field that it always becomes takes, or the class that a mapping is made to.

        Args:
            module: Where it is declared.
            statement: Its declaration.
            passed: The configuration class and field that it is handed to as it is.
            made: Whether a mapping becomes the class that its annotation names.
        """
        if passed is not None:
            where, cls = self.find(module, passed[0]) or (module, None)
            if isinstance(cls, ast.ClassDef) and _is_config(cls) and not _validated_first(cls, passed[1]):
                declared = dict(_declared(cls)).get(passed[1])
                return Accepted() if declared is None else self.declared(where, declared)
        return Accepted(fields=self.annotation(module, statement.annotation).fields) if made else Accepted()

    def declared(self, module: _Module, statement: ast.AnnAssign, depth: int = 0) -> Accepted:
        """What a field of a configuration class takes."""
        found = self.annotation(module, statement.annotation, depth)
        return Accepted(found.kinds, found.choices, _bounds(statement.value), found.fields)

    def annotation(self, module: _Module, node: ast.AST | None, depth: int = 0) -> Accepted:
        """What an annotation takes; anything where it cannot be followed."""
        if depth > MAX_DEPTH or node is None:
            return Accepted()
        match node:
            case ast.Constant():
                found = self._constant(module, node, depth)
            case ast.BinOp(op=ast.BitOr()):
                found = _either([self.annotation(module, side, depth + 1) for side in (node.left, node.right)])
            case ast.Subscript():
                found = self._subscript(module, node, depth)
            case ast.Name():
                found = self._name(module, node.id, depth)
            case ast.Attribute(value=ast.Name(id="torch"), attr="dtype"):
                found = Accepted(frozenset())  # no scenario can hold one
            case _:
                found = Accepted()
        return found

    def _name(self, module: _Module, name: str, depth: int) -> Accepted:
        if name in _KINDS and name not in module.bound:
            return Accepted(frozenset({_KINDS[name]}))
        found = self.find(module, name)
        if found is None:
            return Accepted()
        where, what = found
        if isinstance(what, ast.ClassDef):
            return Accepted(fields=self.class_fields(where, what, depth + 1))
        return self.annotation(where, what, depth + 1)

    def _constant(self, module: _Module, node: ast.Constant, depth: int) -> Accepted:
        if node.value is None:
            return Accepted(frozenset())
        try:
            quoted = ast.parse(str(node.value), mode="eval").body
        except (SyntaxError, ValueError):
            return Accepted()
        return Accepted() if isinstance(quoted, ast.Constant) else self.annotation(module, quoted, depth + 1)

    def _subscript(self, module: _Module, node: ast.Subscript, depth: int) -> Accepted:
        name = _last_name(node.value)
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if name == "Literal":
            parts = [self._choice(module, one, depth) for one in inner]
            return _either(parts)
        if name == "type":
            return Accepted(frozenset())  # a class, which no scenario can hold
        if name == "Optional":
            return self.annotation(module, inner[0], depth + 1)
        if name == "Union":
            return _either([self.annotation(module, one, depth + 1) for one in inner])
        return Accepted(frozenset({_KINDS[name]})) if _KINDS.get(name) in ("list", "dict") else Accepted()

    def _choice(self, module: _Module, node: ast.AST, depth: int) -> Accepted:
        """One entry of ``Literal[...]``: a value, or the name of another such list."""
        match node:
            case ast.Constant(value=str() | int() | float() as value):
                return Accepted(frozenset(), (value,))
            case ast.Constant():
                return Accepted(frozenset())
        return self.annotation(module, node, depth + 1)

    def class_fields(self, module: _Module, cls: ast.ClassDef, depth: int) -> Mapping[str, Accepted] | None:
        """The fields of a configuration class that refuses others; ``None`` where it may take more than it shows."""
        if not _is_config(cls) or _validated_first(cls, ""):
            return None
        return {
            name: Accepted() if _validated_first(cls, name) else self.declared(module, statement, depth + 1)
            for name, statement in _declared(cls)
        }


def _bindings(tree: ast.Module, name: str, *, is_package: bool) -> dict[str, ast.AST | tuple[str, str]]:
    """What the names of a module mean: an import, a class, or the expression that was assigned."""
    found: dict[str, list[ast.AST | tuple[str, str]]] = {}
    for node in _top_level(tree.body):
        if isinstance(node, ast.ImportFrom):
            above = name.split(".") if is_package else name.split(".")[:-1]
            base = above[: len(above) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            for alias in node.names:
                found.setdefault(alias.asname or alias.name, []).append((module, alias.name))
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
    return {key: values[0] for key, values in found.items() if len(values) == 1}


def _top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, those under ``if`` and ``try`` too: a name may be bound by either branch."""
    for node in body:
        yield node
        for part in ("body", "orelse", "handlers", "finalbody") if isinstance(node, ast.If | ast.Try) else ():
            for one in getattr(node, part, ()):
                yield from _top_level(one.body if isinstance(one, ast.ExceptHandler) else [one])


def _declared(cls: ast.ClassDef) -> Iterator[tuple[str, ast.AnnAssign]]:
    """The fields that a dataclass takes when it is made."""
    for node in cls.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            kind = _last_name(node.annotation.value if isinstance(node.annotation, ast.Subscript) else node.annotation)
            keywords = node.value.keywords if isinstance(node.value, ast.Call) else []
            made_later = any(
                one.arg == "init" and isinstance(one.value, ast.Constant) and one.value.value is False
                for one in keywords
            )
            if kind != "ClassVar" and not made_later:
                yield node.target.id, node


def _changed_fields(cls: ast.ClassDef) -> set[str]:
    """Fields that the class's own methods change although a value was given: its declaration says little then."""
    changed: set[str] = set()
    for method in (node for node in cls.body if isinstance(node, ast.FunctionDef)):
        aliases = {
            target.id: name
            for node in ast.walk(method)
            if isinstance(node, ast.Assign) and (name := _own(node.value))
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        changed |= set(_changes(method.body, aliases, frozenset()))
    return changed


def _changes(body: Iterable[ast.AST], aliases: Mapping[str, str], absent: frozenset[str]) -> Iterator[str]:
    """Names of own fields that are assigned where they are not known to be absent (``if self.x is None:``)."""
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                name = _own(one)
                if name and name not in absent:
                    yield name
        if isinstance(node, ast.If):
            tests = node.test.values if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And) else []
            missing = frozenset(name for test in (node.test, *tests) if (name := _absent(test, aliases)))
            yield from _changes(node.body, aliases, absent | missing)
            yield from _changes(node.orelse, aliases, absent)
        else:
            inner = (getattr(node, part, ()) for part in ("body", "orelse", "handlers", "finalbody", "cases"))
            for part in inner:
                yield from _changes(part if isinstance(part, list) else (), aliases, absent)


def _own(node: ast.AST | None) -> str:
    """``x`` for ``self.x``."""
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name
    return ""


def _absent(test: ast.AST, aliases: Mapping[str, str]) -> str:
    """The field that ``test`` says is ``None``, also by a variable that holds its first value."""
    match test:
        case ast.Compare(left=left, ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
            return _own(left) or (aliases.get(left.id, "") if isinstance(left, ast.Name) else "")
    return ""


def _validated_first(cls: ast.ClassDef, name: str) -> bool:
    """Whether a validator sees the value of a field, or of the whole class, before its declaration does."""
    for method in (node for node in cls.body if isinstance(node, ast.FunctionDef)):
        for one in method.decorator_list:
            kind = _last_name(one.func) if isinstance(one, ast.Call) else ""
            if not isinstance(one, ast.Call) or kind not in ("field_validator", "model_validator"):
                continue
            modes = [word.value.value for word in one.keywords
                     if word.arg == "mode" and isinstance(word.value, ast.Constant)]  # fmt: skip
            named = {word.value for word in one.args if isinstance(word, ast.Constant)}
            if modes not in ([], ["after"]) and (kind == "model_validator" or {name, "*"} & named):
                return True
    return False


def _is_config(cls: ast.ClassDef) -> bool:
    """Whether it is a ``@config`` of vLLM's: a dataclass of pydantic's that refuses what it does not declare."""
    said = [ast.unparse(one) for one in cls.decorator_list]
    return len(said) == 1 and _last_name(cls.decorator_list[0]) == "config" and "extra" not in said[0] and not cls.bases


def _passed(cls: ast.ClassDef) -> Iterator[tuple[str, tuple[str, str]]]:
    """Fields that methods hand to another class as they are and in any case, with that class and its field."""
    for method in (node for node in cls.body if isinstance(node, ast.FunctionDef)):
        for statement in method.body:
            call = statement.value if isinstance(statement, ast.Assign | ast.Return | ast.Expr) else None
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
                for word in call.keywords:
                    if word.arg and (name := _own(word.value)):
                        yield name, (call.func.id, word.arg)
            if any(isinstance(node, ast.Return) for node in ast.walk(statement)):
                break  # what follows may not be reached


def _made_of_mappings(cls: ast.ClassDef) -> set[str]:
    """Fields of which ``self.x = SomeConfig(**self.x)`` is made."""
    made = set()
    for node in ast.walk(cls):
        match node:
            case ast.Assign(targets=[target], value=ast.Call(keywords=[ast.keyword(arg=None, value=value)])):
                made |= {_own(target)} & {_own(value)}
    return made - {""}


def _bounds(value: ast.AST | None) -> dict[str, float]:
    """The limits that ``Field(...)`` sets."""
    if not isinstance(value, ast.Call) or _last_name(value.func) != "Field":
        return {}
    named = {word.arg: word.value for word in value.keywords if word.arg}
    return {name: limit for name in BOUNDS if name in named and (limit := _number(named[name])) is not None}


def _number(node: ast.AST) -> float | None:
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -float(value)
        case ast.Constant(value=int() | float() as value):
            return float(value)
    return None


def _either(parts: list[Accepted]) -> Accepted:
    """What any of several annotations takes."""
    makers = [part.fields for part in parts if part.fields is not None]
    others = [part for part in parts if part.fields is None]
    fields = makers[0] if len(makers) == 1 and all(part.kinds == frozenset() for part in others) else None
    if any(part.kinds is None for part in parts):
        return Accepted(fields=fields)
    kinds = functools.reduce(frozenset.union, (part.kinds or frozenset() for part in parts))
    return Accepted(kinds, tuple(dict.fromkeys(choice for part in parts for choice in part.choices)))


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
