"""Verdicts, their order, and the format of verdict.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hand_made import BASE, cell, failed, gate, record, run, spread, trial, trials
from hypothesis import given
from hypothesis import strategies as st

from perfgate.errors import ExitStatus, Verdict
from perfgate.judge.cell_verdict import compare_sides, judge, judge_advisory
from perfgate.judge.evidence import RecordSide
from perfgate.judge.outcome import WORST_FIRST, Outcome, verdict_json, verdict_schema, worst
from perfgate.metrics.trial import Failure
from perfgate.models import Note
from perfgate.scenario.plan import Plan

SCHEMA_FILE = Path(__file__).parents[2] / "docs" / "schema" / "verdict.schema.json"


def outcomes() -> dict[str, Outcome]:
    """Real outcomes of every kind, by name."""
    slow, absent, gates = cell("slow"), cell("absent"), [gate(), gate("output_throughput", floor="1tok/s")]
    two = cell("two", gates)
    alone = record(slow, [trial(n, n, "base") for n in range(6)], subjects={"base": BASE})
    plan = Plan(cells=(slow,), seed=0)
    stop = Failure(code="engine-start-failed", text="base: Error\n  | <words>")
    return {
        "pass": judge(run([two]), {"two": record(two, trials(spread(0.0, 0.0002, 6)))}),
        "regressed": judge(run([slow, absent]), {"slow": record(slow, trials(spread(0.01, 0.0002, 6)))}),
        "stopped": judge(run([slow]), {"slow": record(slow, [failed(0, None, "base")], stopped=stop)}),
        "one-sided": judge(run([slow], subjects={"base": BASE}), {"slow": alone}),
        "quick": judge(run([slow], quick=True), {"slow": record(slow, trials([0.1]))}),
        "advisory": judge_advisory(
            "a b", plan, (compare_sides(RecordSide(alone, "base"), RecordSide(alone, "base"), plan),),
            Note(code="advisory-unpaired", text="a against b"),
        ),
        "empty": judge(run([]), {}),
    }  # fmt: skip


OUTCOMES = outcomes()
kinds = pytest.mark.parametrize("kind", OUTCOMES)


# --- verdicts


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], "not-measured"),
        (["pass"], "pass"),
        (["pass", "improved"], "improved"),
        (["improved", "inconclusive"], "inconclusive"),
        (["advisory", "pass"], "advisory"),
        (["inconclusive", "not-comparable"], "not-comparable"),
        (["not-comparable", "not-measured"], "not-measured"),
        (["not-measured", "internal-error"], "internal-error"),
        (["internal-error", "regressed", "pass"], "regressed"),
    ],
)
def test_worst(found: list[Verdict], expected: Verdict) -> None:
    """The worst verdict stands for all; no verdict at all is not measured."""
    assert expected == worst(found)


@given(found=st.lists(st.sampled_from(list(WORST_FIRST)), min_size=1), more=st.sampled_from(list(WORST_FIRST)))
def test_worst_is_one_of_them(found: list[Verdict], more: Verdict) -> None:
    """The worst is one of those given, in any order, and a further one never makes the exit status kinder."""
    ranks = list(WORST_FIRST)

    assert worst(found) in found
    assert worst(found) == worst(reversed(found))
    if worst(found) not in ("pass", "improved"):
        assert ranks.index(worst([*found, more])) <= ranks.index(worst(found))


def test_exit_statuses() -> None:
    """Every verdict has its exit status of docs/design.md, and only passes end with 0."""
    statuses = {verdict: int(status) for verdict, status in WORST_FIRST.items()}

    assert statuses == {
        "regressed": 10, "internal-error": 1, "not-measured": 22, "not-comparable": 21, "inconclusive": 20,
        "advisory": 20, "pass": 0, "improved": 0,
    }  # fmt: skip
    assert [v for v, status in WORST_FIRST.items() if status == ExitStatus.PASS] == ["pass", "improved"]


# --- verdict.json


def test_schema_is_draft_07() -> None:
    """The schema of verdict.json is a valid JSON Schema of draft-07 that refuses unknown keys."""
    schema = verdict_schema()

    jsonschema.Draft7Validator.check_schema(schema)
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert "$defs" not in json.dumps(schema)
    assert schema["additionalProperties"] is False


@pytest.mark.needs("calls", "kernels")
def test_schema_is_current() -> None:
    """docs/schema/verdict.schema.json is what ``perfgate schema verdict`` prints."""
    assert json.loads(SCHEMA_FILE.read_text()) == verdict_schema()


@kinds
def test_real_outcomes_fit(kind: str) -> None:
    """The verdict.json of a real outcome fits the schema."""
    jsonschema.Draft7Validator(verdict_schema()).validate(json.loads(verdict_json(OUTCOMES[kind])))


@pytest.mark.parametrize(
    "change",
    [{"verdict": "fine"}, {"exit_status": "0"}, {"cells": None}, {"more": 1}, {"format": "perfgate-verdict/2"}],
)
def test_schema_refuses(change: dict[str, Any]) -> None:
    """A verdict of another word, type, key or format does not fit the schema."""
    content = json.loads(verdict_json(OUTCOMES["pass"])) | change

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(verdict_schema()).validate(content)


@kinds
def test_round_trip(kind: str) -> None:
    """verdict.json loads back as the same outcome, and that outcome has the same bytes."""
    text = verdict_json(OUTCOMES[kind])

    again = Outcome.model_validate_json(text)

    assert again == OUTCOMES[kind]
    assert verdict_json(again) == text


def test_same_bytes() -> None:
    """Judging the same data again gives the same bytes."""
    assert {k: verdict_json(v) for k, v in outcomes().items()} == {k: verdict_json(v) for k, v in OUTCOMES.items()}


@kinds
def test_strict_json(kind: str) -> None:
    """verdict.json holds no NaN and no infinity, which JSON does not know."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    text = verdict_json(OUTCOMES[kind])
    assert text.endswith("}\n")
    json.loads(text, parse_constant=refuse)
