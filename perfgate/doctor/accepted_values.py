"""What the engine arguments of a build take, and why a value would be refused."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from perfgate.scenario.yaml_document import did_you_mean

BOUNDS = {
    "gt": (operator.gt, "above"), "ge": (operator.ge, "at least"),
    "lt": (operator.lt, "below"), "le": (operator.le, "at most"),
}  # fmt: skip
KINDS: Mapping[str, tuple[TypeAdapter[Any], str]] = {
    "int": (TypeAdapter(int), "a whole number"), "float": (TypeAdapter(float), "a number"),
    "bool": (TypeAdapter(bool), "true or false"), "str": (TypeAdapter(str), "text"),
    "list": (TypeAdapter(list), "a list"), "dict": (TypeAdapter(dict), "a mapping"),
}  # fmt: skip
"""What pydantic, which reads vLLM's configurations too, takes for each kind, and the kind in words."""


@dataclass(frozen=True)
class Accepted:
    """What a field takes, as far as its declaration tells.

    Args:
        kinds: Of :data:`KINDS`; ``None`` where anything may be right.
        choices: Words or numbers that are taken beside values of ``kinds``.
        bounds: Limits of a number, by the names in :data:`BOUNDS`.
        fields: Where a mapping makes a configuration class, its fields; ``None`` where its keys cannot be told.
    """

    kinds: frozenset[str] | None = None
    choices: tuple[str | int | float | bool, ...] = ()
    bounds: Mapping[str, float] = field(default_factory=dict)
    fields: Mapping[str, Accepted] | None = None

    def problem(self, value: Any) -> tuple[tuple[str, ...], str] | None:
        """Why the engine would refuse a value, with the keys that lead to what it refuses; ``None`` if it may not."""
        if isinstance(value, dict) and self.fields is not None:
            return _problem_within(value, self.fields)
        if value is None or self.kinds is None:
            return None
        if _plain(value) not in map(_plain, self.choices) and not any(_converts(value, kind) for kind in self.kinds):
            choices = [f"one of {', '.join(map(str, self.choices))}"] if self.choices else []
            expected = " or ".join([*choices, *(words for kind, (_, words) in KINDS.items() if kind in self.kinds)])
            texts = [choice for choice in self.choices if isinstance(choice, str) and isinstance(value, str)]
            return (), f"expected {expected}{did_you_mean(str(value), texts)}"
        if isinstance(value, int | float) and not isinstance(value, bool) and "str" not in self.kinds:
            for bound, limit in self.bounds.items():
                holds, words = BOUNDS[bound]
                if not holds(value, limit):
                    return (), f"must be {words} {limit:g}"
        return None


@dataclass(frozen=True)
class EngineArguments:
    """The arguments of one build.

    Args:
        version: The build's version, for people.
        accepted: What each takes, by name.
    """

    version: str
    accepted: Mapping[str, Accepted]

    def problem(self, name: str, value: Any) -> tuple[tuple[str, ...], str] | None:
        """Why this argument would be refused, with the keys inside its value that lead there; ``None`` if it may not.

        A name that is unknown has the text ``vLLM ... has no such engine argument``.
        """
        if name not in self.accepted:
            return (), f"vLLM {self.version} has no such engine argument{did_you_mean(name, self.accepted)}"
        return self.accepted[name].problem(value)


def _problem_within(mapping: Mapping[str, Any], fields: Mapping[str, Accepted]) -> tuple[tuple[str, ...], str] | None:
    for key, value in mapping.items():
        if key not in fields:
            return (str(key),), f"unknown key{did_you_mean(str(key), fields)}"
        if problem := fields[key].problem(value):
            return (str(key), *problem[0]), problem[1]
    return None


def _plain(word: Any) -> str:
    """As validators may read it: they like to lower words, and to read ``-`` as ``_``."""
    return str(word).strip().lower().replace("-", "_")


def _converts(value: Any, kind: str) -> bool:
    try:
        KINDS[kind][0].validate_python(value)
    except ValidationError:
        return False
    return True
