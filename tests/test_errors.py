"""What errors say, and which exit status they carry."""

from __future__ import annotations

import ast

import pytest
from sources import nodes

from perfgate.errors import (
    ExitStatus,
    InterruptedRunError,
    NotComparableError,
    NotMeasuredError,
    PerfgateError,
    Problem,
    RecordError,
    ScenarioError,
    UsageError,
)
from perfgate.reasons import REASONS


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (PerfgateError, 1),
        (UsageError, 2),
        (RecordError, 2),
        (NotComparableError, 21),
        (NotMeasuredError, 22),
        (InterruptedRunError, 130),
    ],
)
def test_each_error_has_the_exit_status_of_the_design(kind: type[PerfgateError], status: int) -> None:
    """The class of an error decides the status of the command."""
    assert kind("text").exit_status == status


def test_exit_statuses_are_those_of_the_design() -> None:
    """The table of docs/design.md, number by number."""
    assert {status.name: status.value for status in ExitStatus} == {
        "PASS": 0, "INTERNAL_ERROR": 1, "USAGE": 2, "REGRESSED": 10, "INCONCLUSIVE": 20, "NOT_COMPARABLE": 21,
        "NOT_MEASURED": 22, "INTERRUPTED": 130, "UNREAD": 141,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("where", "remedy", "text"),
    [
        ("", "", "it broke"),
        ("r.json", "", "r.json: it broke"),
        ("", "Mend it.", "it broke\n  Mend it."),
        ("r.json", "Mend it.", "r.json: it broke\n  Mend it."),
    ],
)
def test_an_error_says_where_what_and_what_next(where: str, remedy: str, text: str) -> None:
    """Place and remedy are said where they are known."""
    assert str(PerfgateError("it broke", where=where, remedy=remedy)) == text


def test_the_remedy_of_a_code_is_said_unless_the_case_has_a_better_one() -> None:
    """Meaning and remedy are written once, in the table; records keep the finding alone."""
    error = NotMeasuredError("12 MiB are held", where="GPU-1", code="gpu-busy")
    assert str(error) == f"GPU-1: 12 MiB are held\n  {REASONS['gpu-busy'].remedy}"
    assert error.finding == "GPU-1: 12 MiB are held"
    assert NotMeasuredError("held", remedy="End 42.", code="gpu-busy").remedy == "End 42."


def test_no_error_says_again_what_the_page_of_its_code_says() -> None:
    """A remedy beside a code, where it is plain text, is another one than the code's."""
    for _, call in nodes():
        given = {word.arg: word.value for word in call.keywords} if isinstance(call, ast.Call) else {}
        code, remedy = (getattr(given.get(name), "value", None) for name in ("code", "remedy"))
        assert not (code in REASONS and remedy == REASONS[code].remedy), ast.unparse(call)


def test_a_problem_has_the_form_that_editors_jump_to() -> None:
    """file:line:column: field: text, without the field where the whole file is meant."""
    assert str(Problem("s.yaml", 4, 19, "gates[0].metric", "is odd")) == "s.yaml:4:19: gates[0].metric: is odd"
    assert str(Problem("s.yaml", 1, 1, "", "is empty")) == "s.yaml:1:1: is empty"


def test_a_scenario_error_lists_its_problems_one_a_line() -> None:
    """It is a usage error, and keeps the problems as values too."""
    problems = (Problem("s.yaml", 1, 2, "a", "x"), Problem("s.yaml", 3, 4, "b", "y"))
    error = ScenarioError(problems)
    assert str(error) == "s.yaml:1:2: a: x\ns.yaml:3:4: b: y"
    assert error.problems == problems
    assert isinstance(error, UsageError)
