"""The reason codes that perfgate's code speaks and those that are explained are the same."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfgate.reasons import REASONS

PACKAGE = Path(__file__).parents[1] / "perfgate"
CARRIERS = {"Failure", "Note", "InvalidTrialError"}
"""What is made with a code as its first argument."""


def trees() -> Iterator[tuple[Path, ast.Module]]:
    """Every module of the package but the table itself."""
    for file in sorted(PACKAGE.rglob("*.py")):
        if file.name != "reasons.py":
            yield file, ast.parse(file.read_text(encoding="utf-8"))


def spoken() -> dict[str, str]:
    """Each code given as a literal, with the place that speaks it."""
    found = {}
    for file, tree in trees():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
            values = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
            values += call.args[:1] if name in CARRIERS else []
            for value in values:
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    found[value.value] = f"{file.relative_to(PACKAGE.parent)}:{value.lineno}"
    return found


def literals() -> set[str]:
    """Every string that stands anywhere in the package, the table left out."""
    constants = (node for _, tree in trees() for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {constant.value for constant in constants if isinstance(constant.value, str)}


SPOKEN = spoken()
LITERALS = literals()


@pytest.mark.parametrize("code", sorted(SPOKEN))
def test_each_code_that_is_spoken_is_explained(code: str) -> None:
    """A code without meaning and remedy leaves the reader of a report alone."""
    assert code in REASONS, f"{SPOKEN[code]} speaks {code!r}, which reasons.py does not know"


@pytest.mark.parametrize("code", sorted(REASONS))
def test_each_code_that_is_explained_is_spoken(code: str) -> None:
    """A page that no code leads to is out of date."""
    assert code in LITERALS, f"nothing in perfgate/ speaks {code!r}"


@pytest.mark.parametrize("code", sorted(REASONS))
def test_each_reason_has_a_meaning_and_a_remedy(code: str) -> None:
    """Both are sentences, and the code is lower case with dashes."""
    reason = REASONS[code]
    assert reason.code == code
    assert code.replace("-", "").isalnum()
    assert code == code.lower()
    assert reason.meaning.endswith(".")
    assert reason.remedy.endswith((".", "B"))
