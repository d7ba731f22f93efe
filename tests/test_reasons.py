"""The reason codes that perfgate's code speaks and those that are explained are the same."""

from __future__ import annotations

import ast

from sources import nodes

from perfgate.errors import NotMeasuredError
from perfgate.metrics.trial import Failure
from perfgate.models import Note
from perfgate.reasons import MERGED, REASONS

TABLES = "reasons.py"
CARRIERS = {"Failure", "Note", "InvalidTrialError"}
"""What is made with a code as its first argument."""


def spoken() -> dict[str, str]:
    """Each code given as a literal, with the place that speaks it."""
    found = {}
    for file, call in nodes():
        if not isinstance(call, ast.Call) or file.endswith(TABLES):
            continue
        name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
        values = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
        values += call.args[:1] if name in CARRIERS else []
        for value in values:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                found[value.value] = f"{file}:{value.lineno}"
    return found


def test_each_code_that_is_spoken_is_explained() -> None:
    """A code without meaning and remedy leaves the reader of a report alone."""
    found = spoken()
    assert len(found) > 50
    assert {code: place for code, place in found.items() if code not in REASONS} == {}


def test_each_code_that_is_explained_is_spoken() -> None:
    """A page that no code leads to is out of date."""
    constants = (node for file, node in nodes() if isinstance(node, ast.Constant) and not file.endswith(TABLES))
    literals = {node.value for node in constants if isinstance(node.value, str)}
    assert {*REASONS} - literals == set()


def test_codes_are_few() -> None:
    """No code is there that a user acts on as on another, and each that was merged leads to a page."""
    assert len(REASONS) <= 90
    assert {*MERGED.values()} <= REASONS.keys()
    assert not MERGED.keys() & REASONS.keys()


def test_a_code_of_an_earlier_version_is_told_as_today() -> None:
    """A record keeps what it was written with, by which its digest fits; whoever tells of it says the code of today."""
    kept = Failure(code="engine-died", text="exit status 1")

    assert kept.model_dump() == {"code": "engine-died", "text": "exit status 1"}
    assert Note(**kept.model_dump()).code == "engine-failed"
    assert NotMeasuredError(kept.text, code=kept.code).remedy == REASONS["engine-failed"].remedy


def test_each_reason_has_a_meaning_and_a_remedy() -> None:
    """Both are sentences, and the code is lower case with dashes."""
    for code, reason in REASONS.items():
        assert reason.code == code
        assert code.replace("-", "").isalnum(), code
        assert code == code.lower()
        assert reason.meaning.endswith("."), code
        assert reason.remedy.endswith((".", "B")), code
