"""What the engine arguments of a build take, and why a value would be refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perfgate.scenario.yaml_document import did_you_mean

BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
_BOOLEAN_WORDS = frozenset({"0", "1", "t", "f", "y", "n", "on", "off", "true", "false", "yes", "no"})
"""What pydantic, which reads vLLM's configurations, takes for a boolean."""


@dataclass(frozen=True)
class Accepted:
    """What a field takes, as far as its declaration tells.

    Args:
        kinds: Of ``int``, ``float``, ``bool``, ``str``, ``list``, ``dict``; ``None`` where anything may be right.
        choices: Words or numbers that are taken beside values of ``kinds``.
        bounds: Limits of a number by ``gt``, ``ge``, ``lt``, ``le``.
        fields: Where a mapping makes a configuration class, its fields; ``None`` where its keys cannot be told.
    """

    kinds: frozenset[str] | None = None
    choices: tuple[str | int | float | bool, ...] = ()
    bounds: Mapping[str, float] = field(default_factory=dict)
    fields: Mapping[str, Accepted] | None = None

    def problem(self, value: Any) -> tuple[tuple[str, ...], str] | None:
        """Why the engine would refuse a value, with the keys that lead to what it refuses; ``None`` if it may not."""
        if isinstance(value, dict) and self.fields is not None:
            return self._problem_within(value)
        if value is None or self.kinds is None:
            return None
        if not self._takes(value):
            return (), f"expected {self._expected()}{self._nearest(value)}"
        if isinstance(value, int | float) and not isinstance(value, bool) and "str" not in self.kinds:
            for bound, limit in self.bounds.items():
                held = {"gt": value > limit, "ge": value >= limit, "lt": value < limit, "le": value <= limit}
                if not held[bound]:
                    return (), f"must be {BOUNDS[bound]} {limit:g}"
        return None

    def _problem_within(self, value: Mapping[str, Any]) -> tuple[tuple[str, ...], str] | None:
        for key, inner in value.items():
            if key not in (self.fields or {}):
                return (str(key),), f"unknown key{did_you_mean(str(key), self.fields or ())}"
            found = (self.fields or {})[key].problem(inner)
            if found is not None:
                return (str(key), *found[0]), found[1]
        return None

    def _takes(self, value: Any) -> bool:
        """Whether pydantic, which turns ``"8"`` into a number and 1 into true, may take it."""
        kinds = self.kinds or frozenset()
        if any(_same_word(value, choice) for choice in self.choices):
            return True
        if isinstance(value, str):
            number = {"int", "float"} & kinds and _is_number(value)
            truth = "bool" in kinds and value.strip().lower() in _BOOLEAN_WORDS
            return bool(number or truth or {"str", "list"} & kinds)
        if isinstance(value, list):
            return "list" in kinds
        if isinstance(value, dict):
            return "dict" in kinds
        if {"float", "str"} & kinds or ("bool" in kinds and value in (0, 1)):
            return True
        return "int" in kinds and float(value).is_integer()

    def _expected(self) -> str:
        words = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "list": "a list",
                 "dict": "a mapping"}  # fmt: skip
        kinds = [text for kind, text in words.items() if kind in (self.kinds or ())]
        choices = [f"one of {', '.join(map(str, self.choices))}"] if self.choices else []
        return " or ".join([*choices, *kinds])

    def _nearest(self, value: Any) -> str:
        return did_you_mean(value, [c for c in self.choices if isinstance(c, str)]) if isinstance(value, str) else ""


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

        A name that is unknown has the text ``unknown engine argument of vLLM ...``.
        """
        if name not in self.accepted:
            return (), f"vLLM {self.version} has no such engine argument{did_you_mean(name, self.accepted)}"
        return self.accepted[name].problem(value)


def _same_word(value: Any, choice: Any) -> bool:
    """Whether they may mean the same: validators like to lower words, and to read ``-`` as ``_``."""
    plain = [str(one).strip().lower().replace("-", "_") for one in (value, choice)]
    return plain[0] == plain[1]


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False
