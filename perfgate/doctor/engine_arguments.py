"""The engine arguments that a build of vLLM takes, read from its source; nothing of it is imported or executed.

Importing vLLM takes 8 to 15 seconds, parsing the few files that declare its arguments a quarter of one. What a syntax
tree cannot tell is left to the engine: an annotation that leads nowhere, a value that the class changes before use, a
field with a validator of its own that sees the value first. So a refusal here is one of the engine, only earlier.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import resolve_name
from pathlib import Path

from perfgate.doctor.accepted_values import BOUNDS, Accepted, EngineArguments

MAX_BYTES = 4 * 1024**2
"""Of one source file; vLLM's largest with arguments has 0.15 MiB."""
MAX_FILES = 100
MAX_DEPTH = 12
"""Of names that lead to other names."""

_KINDS = {"int": "int", "float": "float", "bool": "bool", "str": "str", "list": "list", "tuple": "list", "set": "list",
          "dict": "dict", "List": "list", "Tuple": "list", "Set": "list", "Dict": "dict"}  # fmt: skip
_UNREADABLE = (ValueError, TypeError, ImportError, SyntaxError, RecursionError, MemoryError)
"""What parsing and the value of a literal may raise, and the name of a module above the package."""
_NOTHING = Accepted(frozenset())
"""Of a type whose values no scenario can hold."""


def read_arguments(package: Path, version: str) -> EngineArguments | None:
    """The arguments that the ``vllm`` package in a folder takes; ``None`` where its source does not tell them."""
    with contextlib.suppress(RecursionError):  # an expression that is nested deeper than can be followed
        return _read(_Source(package), version)
    return None


def _read(source: _Source, version: str) -> EngineArguments | None:
    module, init = source.module("vllm.engine.arg_utils"), source.module("vllm")
    cls = module and module.bound.get("EngineArgs")
    if module is None or init is None or "arg_utils" not in init.text or not isinstance(cls, ast.ClassDef):
        return None
    if cls.bases or cls.keywords or [_last_name(decorator) for decorator in cls.decorator_list] != ["dataclass"]:
        return None
    changed = _changed_fields(cls)
    passed = {name: target for name, target in _passed(cls) if name not in changed}
    made = _made_of_mappings(cls)
    accepted = {
        name: source.argument(module, statement, passed.get(name), made=name in made)
        for name, statement in _declared(cls)
    }
    return EngineArguments(version, accepted)


@dataclass
class _Module:
    """A parsed file and what its names are bound to; a name that is bound twice is bound to nothing."""

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
        root, *parts = name.split(".")
        path = self._package.joinpath(*parts)
        for file in (path / "__init__.py", path.with_suffix(".py")) if root == "vllm" else ():
            try:
                if file.is_file() and file.stat().st_size <= MAX_BYTES:
                    text = file.read_text(encoding="utf-8")
                    inside = name if file.name == "__init__.py" else name.rpartition(".")[0]
                    return _Module(text, _bindings(ast.parse(text), inside))
            except (OSError, *_UNREADABLE):
                return None
        return None

    def find(self, module: _Module, name: str, depth: int = 0) -> tuple[_Module, ast.AST] | None:
        """Where a name of a module is defined, through imports from the same package."""
        bound = module.bound.get(name)
        if isinstance(bound, ast.AST):
            return module, bound
        if bound is None or depth > MAX_DEPTH:
            return None
        imported = self.module(bound[0])
        return None if imported is None else self.find(imported, bound[1], depth + 1)

    def argument(
        self, module: _Module, statement: ast.AnnAssign, passed: tuple[str, str] | None, *, made: bool
    ) -> Accepted:
        """What the field takes that it is always ``passed`` to, or the class that a mapping is ``made`` to."""
        if passed is not None:
            where, cls = self.find(module, passed[0]) or (module, None)
            if isinstance(cls, ast.ClassDef) and _is_config(cls) and not _validated_first(cls, passed[1]):
                declared = dict(_declared(cls)).get(passed[1])
                return Accepted() if declared is None else self.declared(where, declared)
        return Accepted(fields=self.annotation(module, statement.annotation).fields) if made else Accepted()

    def declared(self, module: _Module, statement: ast.AnnAssign, depth: int = 0) -> Accepted:
        """What a field of a configuration class takes."""
        return dataclasses.replace(
            self.annotation(module, statement.annotation, depth), bounds=_bounds(statement.value)
        )

    def annotation(self, module: _Module, node: ast.AST, depth: int = 0) -> Accepted:
        """What an annotation takes; anything where it cannot be followed."""
        return Accepted() if depth > MAX_DEPTH else _either(list(self._alternatives(module, node, depth + 1)))

    def _alternatives(self, module: _Module, node: ast.AST, depth: int) -> Iterator[Accepted]:
        """What each member of a union takes; any other annotation is the only one."""
        match node:
            case ast.Constant(value=None) | ast.Attribute(value=ast.Name(id="torch"), attr="dtype"):
                yield _NOTHING
            case ast.Constant(value=str() as quoted):
                yield self.annotation(module, _parsed(quoted), depth)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                yield from (self.annotation(module, side, depth) for side in (left, right))
            case ast.Subscript():
                yield from self._subscript(module, node, depth)
            case ast.Name(id=name) if name in _KINDS and name not in module.bound:
                yield Accepted(frozenset({_KINDS[name]}))
            case ast.Name(id=name) if definition := self.find(module, name):
                yield self.annotation(*definition, depth)
            case ast.ClassDef():
                yield Accepted(fields=self.fields(module, node, depth))
            case _:
                yield Accepted()

    def _subscript(self, module: _Module, node: ast.Subscript, depth: int) -> Iterator[Accepted]:
        name = _last_name(node.value)
        for inner in node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]:
            match name, inner:
                case "Literal", ast.Constant(value=str() | int() | float() as value):
                    yield Accepted(frozenset(), (value,))
                case ("type", _) | ("Literal", ast.Constant()):
                    yield _NOTHING
                case "Literal" | "Optional" | "Union", _:
                    yield self.annotation(module, inner, depth)
                case _:
                    yield Accepted(frozenset({_KINDS[name]})) if _KINDS.get(name) in ("list", "dict") else Accepted()

    def fields(self, module: _Module, cls: ast.ClassDef, depth: int) -> Mapping[str, Accepted] | None:
        """The fields of a configuration class that refuses others; ``None`` where it may take more than it shows."""
        if not _is_config(cls) or _validated_first(cls, ""):
            return None
        return {
            name: Accepted() if _validated_first(cls, name) else self.declared(module, statement, depth)
            for name, statement in _declared(cls)
        }


def _parsed(annotation: str) -> ast.AST:
    try:
        return ast.parse(annotation, mode="eval").body
    except _UNREADABLE:
        return ast.Pass()


def _bindings(tree: ast.Module, package: str) -> dict[str, ast.AST | tuple[str, str]]:
    """What the names of a module mean: an import, a class, or the expression that was assigned.

    Raises:
        ImportError: A relative import leads out of the package.
    """
    bound: dict[str, list[ast.AST | tuple[str, str]]] = defaultdict(list)
    for node in _top_level(tree.body):
        match node:
            case ast.ImportFrom(module=module, names=names, level=level):
                source = resolve_name("." * level + (module or ""), package)
                for alias in names:
                    bound[alias.asname or alias.name].append((source, alias.name))
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                bound[name].append(node)
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        bound[target.id].append(value)
    return {name: meanings[0] for name, meanings in bound.items() if len(meanings) == 1}


def _top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, those under ``if`` and ``try`` too: a name may be bound by either branch."""
    for node in body:
        yield node
        match node:
            case ast.If():
                yield from _top_level([*node.body, *node.orelse])
            case ast.Try():
                handled = [statement for handler in node.handlers for statement in handler.body]
                yield from _top_level([*node.body, *node.orelse, *handled, *node.finalbody])


def _declared(cls: ast.ClassDef) -> Iterator[tuple[str, ast.AnnAssign]]:
    """The fields that a dataclass takes when it is made."""
    for node in cls.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            options = node.value.keywords if isinstance(node.value, ast.Call) else []
            if _last_name(node.annotation) != "ClassVar" and "init=False" not in map(ast.unparse, options):
                yield node.target.id, node


def _methods(cls: ast.ClassDef) -> list[ast.FunctionDef]:
    return [node for node in cls.body if isinstance(node, ast.FunctionDef)]


def _changed_fields(cls: ast.ClassDef) -> set[str]:
    """Fields that the class's own methods change although a value was given: its declaration says little then."""
    changed: set[str] = set()
    for method in _methods(cls):
        nodes = list(ast.walk(method))
        aliases = {
            target.id: name
            for node in nodes
            if isinstance(node, ast.Assign) and (name := _own(node.value))
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        harmless = {
            id(node)
            for branch in nodes
            if isinstance(branch, ast.If) and (absent := _absent(branch.test, aliases))
            for statement in branch.body
            for node in ast.walk(statement)
            if _own(node) in absent
        }
        stored = (node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
        changed |= {_own(node) for node in stored if id(node) not in harmless}
    return changed


def _own(node: ast.AST) -> str:
    """``x`` for ``self.x``."""
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name
    return ""


def _absent(test: ast.expr, aliases: Mapping[str, str]) -> set[str]:
    """The fields that a condition says are ``None``, also by a variable that holds the first value of one."""
    absent = set()
    for part in test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]:
        match part:
            case ast.Compare(left=ast.Name(id=alias), ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
                absent.add(aliases.get(alias, ""))
            case ast.Compare(left=left, ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
                absent.add(_own(left))
    return absent - {""}


def _validated_first(cls: ast.ClassDef, name: str) -> bool:
    """Whether a validator sees the value of a field, or of the whole class, before its declaration does."""
    for decorator in (decorator for method in _methods(cls) for decorator in method.decorator_list):
        kind = _last_name(decorator)
        if isinstance(decorator, ast.Call) and kind in ("field_validator", "model_validator"):
            modes = [ast.unparse(option.value) for option in decorator.keywords if option.arg == "mode"]
            named = {argument.value for argument in decorator.args if isinstance(argument, ast.Constant)}
            if modes not in ([], ["'after'"]) and (kind == "model_validator" or {name, "*"} & named):
                return True
    return False


def _is_config(cls: ast.ClassDef) -> bool:
    """Whether it is a ``@config`` of vLLM's: a dataclass of pydantic's that refuses what it does not declare."""
    decorators = [(_last_name(decorator), "extra" in ast.unparse(decorator)) for decorator in cls.decorator_list]
    return decorators == [("config", False)] and not cls.bases


def _passed(cls: ast.ClassDef) -> Iterator[tuple[str, tuple[str, str]]]:
    """Fields that methods hand to another class as they are and in any case, with that class and its field."""
    for method in _methods(cls):
        for statement in method.body:
            match getattr(statement, "value", None):
                case ast.Call(func=ast.Name(id=called), keywords=options):
                    for option in options:
                        if option.arg and (name := _own(option.value)):
                            yield name, (called, option.arg)
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
    limits = {}
    for option in value.keywords if isinstance(value, ast.Call) and _last_name(value) == "Field" else ():
        with contextlib.suppress(OverflowError, *_UNREADABLE):  # not a literal, or beyond every float
            limit = ast.literal_eval(option.value)
            if option.arg in BOUNDS and isinstance(limit, int | float):
                limits[option.arg] = float(limit)
    return limits


def _either(parts: list[Accepted]) -> Accepted:
    """What any of several annotations takes."""
    makers = [part.fields for part in parts if part.fields is not None]
    others = [part for part in parts if part.fields is None]
    fields = makers[0] if len(makers) == 1 and all(part.kinds == frozenset() for part in others) else None
    if any(part.kinds is None for part in parts):
        return Accepted(fields=fields)
    kinds = frozenset(kind for part in parts for kind in part.kinds or ())
    return Accepted(kinds, tuple(dict.fromkeys(choice for part in parts for choice in part.choices)))


def _last_name(node: ast.AST) -> str:
    """``c`` for ``a.b.c``, also where that is called or subscripted."""
    match node:
        case ast.Call(func=inner) | ast.Subscript(value=inner):
            return _last_name(inner)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""
