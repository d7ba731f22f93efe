"""What is read from YAML, what is refused, and where a problem is said to stand."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.doctor.diagnosis import diagnosis_schema
from perfgate.errors import ScenarioError
from perfgate.judge.outcome import verdict_schema
from perfgate.project.config import config_schema
from perfgate.scenario.declaration import json_schema
from perfgate.scenario.yaml_document import describe_fields, did_you_mean, dotted, read_document

FILE = Path("s.yaml")


def refusal(text: str) -> str:
    """The error text that ``text`` earns."""
    with pytest.raises(ScenarioError) as caught:
        read_document(text, FILE)
    return str(caught.value)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("off", "off"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("012", 12),
        ("0o14", 12),
        ("0x1F", 31),
        ("12:30", "12:30"),
        ("1e-3", 0.001),
        ("1_000", 1000),
        ("'3'", "3"),
        ("1.50", 1.5),
        ("0.5%", "0.5%"),
        ("$HOME", "$HOME"),
        ("${X}", "${X}"),
        ("!!str 5", "5"),
        ("[1, {a: b}]", [1, {"a": "b"}]),
    ],
)
def test_values_follow_yaml_1_2(written: str, value: object) -> None:
    """Words like ``no`` stay text, leading zeros are decimal, and no variable is expanded."""
    content = read_document(f"key: {written}\n", FILE).content
    assert content == {"key": value}
    assert type(content["key"]) is type(value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "s.yaml:1:1: is empty or no mapping, expected 'key: value' lines"),
        ("# only a comment\n", "s.yaml:1:1: is empty or no mapping, expected 'key: value' lines"),
        ("- a\n- b\n", "s.yaml:1:1: is empty or no mapping, expected 'key: value' lines"),
        ("5\n", "s.yaml:1:1: is empty or no mapping, expected 'key: value' lines"),
        ("a: 1\nb: 2\na: 3\n", "s.yaml:3:1: a: is given twice, first in line 1"),
        ("a:\n  b: 1\n  'b': 2\n", "s.yaml:3:3: a.b: is given twice, first in line 2"),
        ("a: {b: 1, b: 2}\n", "s.yaml:1:11: a.b: is given twice, first in line 1"),
        ("1: x\n", "s.yaml:1:1: the key '1' is not text: quote it"),
        ("a: {true: x}\n", "s.yaml:1:5: a: the key 'true' is not text: quote it"),
        ("? [a, b]\n: x\n", "s.yaml:1:3: a key must be text, found a list or a mapping"),
        ("a: &x 1\nb: *x\n", "s.yaml:1:4: a: anchors and aliases are not supported: write the value out"),
        ("&x a: 1\n", "s.yaml:1:1: anchors and aliases are not supported: write the key out"),
        ("a: *x\n", "s.yaml:1:4: invalid YAML: found undefined alias 'x'"),
        ("a:\n  <<: {b: 1}\n", "s.yaml:2:3: a: merge keys are not supported: write the values out"),
        (
            "a: !!python/object:os.system ls\n",
            "s.yaml:1:4: a: the tag !!python/object:os.system is not supported: quote text, and take tags out",
        ),
        ("a: !foo 3\n", "s.yaml:1:4: a: the tag !foo is not supported: quote text, and take tags out"),
        ("a: !!set {b}\n", "s.yaml:1:4: a: the tag !!set is not supported: quote text, and take tags out"),
        ("a: !!binary aGk=\n", "s.yaml:1:4: a: the tag !!binary is not supported: quote text, and take tags out"),
        ("a: 2024-01-31\n", "s.yaml:1:4: a: the tag !!timestamp is not supported: quote text, and take tags out"),
        ("a: .inf\n", "s.yaml:1:4: a: expected a finite number, found .inf"),
        ("a: .NaN\n", "s.yaml:1:4: a: expected a finite number, found .NaN"),
        ("a: 1e999\n", "s.yaml:1:4: a: expected a finite number, found 1e999"),
        ('a: "\\ud800"\n', "s.yaml:1:4: a: half of a surrogate pair is not text"),
        ('"\\udfff": 1\n', "s.yaml:1:1: half of a surrogate pair is not text"),
        (f"a: {'9' * 5000}\n", "s.yaml:1:4: a: a number of more than 100 digits is not supported"),
        ("%YAML 1.1\n---\na: no\n", "s.yaml:1:1: directives are not supported: the file is YAML 1.2"),
        (
            "a: 1\n---\nb: 2\n",
            "s.yaml:2:1: invalid YAML: expected a single document in the stream: but found another document",
        ),
        (
            "a: [1\n",
            "s.yaml:2:1: invalid YAML: while parsing a flow sequence: expected ',' or ']', but got '<stream end>'",
        ),
        (
            "a:\n\tb: 1\n",
            (
                "s.yaml:2:1: invalid YAML: while scanning for the next token: "
                "found character '\\t' that cannot start any token"
            ),
        ),
        ("a: \0\n", "s.yaml:1:1: invalid YAML: unacceptable character #x0000: special characters are not allowed"),
    ],
)
def test_refused_text_is_named_with_its_place(text: str, problem: str) -> None:
    """Each thing that is no plain data is one problem in the form file:line:column."""
    assert refusal(text) == problem


def test_all_problems_of_a_file_are_listed_in_its_order() -> None:
    """A duplicate key, an anchor and a tag in one file are three problems, first line first."""
    lines = refusal("a: 1\na: 2\nb: &x 1\nc: !foo 1\n").splitlines()
    assert [line.split(": ")[0] for line in lines] == ["s.yaml:2:1", "s.yaml:3:4", "s.yaml:4:4"]


@pytest.mark.parametrize("depth", [40, 300, 600])
@pytest.mark.parametrize("bracket", ["[]", "{}"])
def test_deep_nesting_is_a_problem_not_a_crash(depth: int, bracket: str) -> None:
    """However deep a file nests, the answer is a ScenarioError and no RecursionError."""
    opening, closing = ("[", "]") if bracket == "[]" else ("{a: ", "}")
    assert "is nested deeper than 32 levels" in refusal("a: " + opening * depth + "1" + closing * depth + "\n")


def test_nesting_of_32_levels_is_read() -> None:
    """The limit itself is allowed, one level more is not."""
    assert read_document("a: " + "[" * 32 + "]" * 32 + "\n", FILE).content
    assert "is nested deeper than 32 levels" in refusal("a: " + "[" * 33 + "]" * 33 + "\n")


def test_places_of_values_and_keys_count_from_one() -> None:
    """Marks hold the line and column of each value and key, as editors count them."""
    document = read_document("\ufeff# comment\na:\n  b: [x, {c: y}]\n", FILE)
    assert document.marks["a", "b", 1, "c"] == (3, 14)
    assert document.key_marks["a", "b"] == (3, 3)
    assert document.marks["a", "b"] == (3, 6)


@given(st.text(max_size=200) | st.text("{}[],:&*!|>'\"%@`#-?~<=\\ \n\tab10._e", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text whatever makes the reader raise anything but ScenarioError."""
    with contextlib.suppress(ScenarioError):
        assert isinstance(read_document(text, FILE).content, dict)


@pytest.mark.parametrize(
    ("path", "text"),
    [((), ""), (("gates", 0, "metric"), "gates[0].metric"), (("a", "b"), "a.b"), (("a", 1, 2), "a[1][2]")],
)
def test_dotted_paths(path: tuple[str | int, ...], text: str) -> None:
    """Keys are joined by dots, indices stand in brackets."""
    assert dotted(path) == text


def test_did_you_mean_names_the_nearest_word_only_when_one_is_near() -> None:
    """A slip of the keyboard earns a suggestion, an unrelated word none."""
    assert did_you_mean("itl_medan", ["itl_median", "ttft_median"]) == " (did you mean 'itl_median'?)"
    assert did_you_mean("zzz", ["itl_median"]) == ""


@pytest.mark.parametrize("schema", [json_schema, config_schema, verdict_schema, diagnosis_schema])
def test_schemas_are_draft_07(schema: Callable[[], dict[str, Any]]) -> None:
    """Every schema that perfgate prints names its draft and uses no word of a newer one."""
    content = schema()

    jsonschema.Draft7Validator.check_schema(content)
    assert content["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert '"#/definitions/' in json.dumps(content)
    assert not [word for word in ("$defs", "prefixItems", "dependentRequired") if f'"{word}' in json.dumps(content)]


def test_fields_are_described_by_their_models_docstring() -> None:
    """What a docstring says of a field under Args: is that field's description in the schema."""
    model = {"description": "A thing.\n\nArgs:\n    a: First,\n        wrapped.", "properties": {"a": {}, "b": {}}}
    described = describe_fields(model)
    assert described["description"] == "A thing."
    assert described["properties"] == {"a": {"description": "First, wrapped."}, "b": {}}
