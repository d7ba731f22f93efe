"""JSON of others: bounded before it is parsed, in bytes, values, depth and figures."""

from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path
from typing import Any, Literal

import pytest
from hand_made import cell, run
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from stored import lineage

from perfgate.baseline.lineage import parse
from perfgate.errors import RecordError
from perfgate.machine.json_text import (
    BASELINE,
    MANIFEST,
    JsonError,
    Size,
    parse_documents,
    parse_json,
    read_json,
)
from perfgate.machine.versioned_json import read_model, write_model
from perfgate.metrics.transformer import read_config
from perfgate.record.run_record import read_run, write_run

SMALL = Size(1, 10)


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text(), st.lists, max_leaves=50))
def test_what_json_writes_is_read(value: Any) -> None:
    """Any text that is small enough says the same as for the standard library."""
    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (" " * (1 << 20) + "1", "is 1 MiB large; such a file has at most 1"),
        ("[" + "1," * 10 + "1]", "holds 11 values; such a file has at most 10"),
        ("[" * 9 + '"' + "[" * 5 + '"', "values"),
        ("1e400", "holds 1e400, larger than any number"),
        ("9" * 19, "holds 9999999999999999999, larger than any integer"),
        ("-" + "9" * 5000, "larger than any integer"),
        ("[NaN]", "holds NaN"),
        (b'"\xff"', "is not UTF-8"),
    ],
    ids=["bytes", "values", "brackets", "float", "integer", "digits", "NaN", "UTF-8"],
)
def test_bounds(text: str | bytes, says: str) -> None:
    """What is beyond a bound is refused with the bound."""
    with pytest.raises(JsonError, match=says):
        parse_json(text, SMALL)


@given(
    st.lists(st.recursive(st.none() | st.text(), st.lists, max_leaves=5), max_size=5),
    st.sampled_from(["", "\n", "\r\n\n "]),
)
def test_texts_after_each_other(values: list[Any], between: str) -> None:
    """Each is read, with the line that it begins in; one text may have several lines."""
    texts = [json.dumps([value], indent=1) for value in values]
    joined = between.join(texts)
    read = parse_documents(joined.encode())
    assert [value for _, value in read] == [[value] for value in values]
    lines = joined.split("\n")
    assert all("[" in lines[line - 1] for line, _ in read)
    assert parse_documents(f"\ufeff{joined}".encode()) == read


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (" " * (1 << 20) + "1", "is 1 MiB large"), ("1 " * 3 + "[1,1,1,1,1,1,1,1,1,1]", "holds 10 values"),
        ('{"a": 1}\n{"b": {"a": 1, "a": 2}}', "holds the key 'a' twice in one object"), (b'"\xff"', "is not UTF-8"),
        ("[" * 100_000, "values|nested too deeply"), ('{"a": ' * 5 + "9" * 30, "larger than any integer"),
    ],
)  # fmt: skip
def test_bounds_of_several_texts(text: str | bytes, says: str) -> None:
    """They are those of all together, and no value replaces another in silence."""
    with pytest.raises(JsonError, match=says):
        parse_documents(text, Size(1, 9))


def test_depth() -> None:
    """Nesting without end is refused, not a crash."""
    with pytest.raises(JsonError, match="nested too deeply"):
        parse_json("[" * 100_000)


def test_no_more_is_read_than_a_file_may_hold(tmp_path: Path) -> None:
    """A file of a gigabyte costs as little as one that is just too large."""
    with (tmp_path / "large.json").open("wb") as stream:
        stream.truncate(1 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(JsonError, match="is 1 MiB large"):
            read_json(tmp_path / "large.json", SMALL)
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


def test_a_manifest_is_bounded(tmp_path: Path) -> None:
    """A run.json with more in it than any plan is refused before its values are made."""
    write_run(tmp_path, run([cell()]))
    file = tmp_path / "run.json"
    file.write_text(file.read_text().replace('"cells": [', '"cells": [' + "1," * MANIFEST.values))

    with pytest.raises(RecordError, match=r"run\.json: is not JSON that perfgate wrote: it holds 20\d+ values"):
        read_run(tmp_path)


def test_a_baseline_is_bounded() -> None:
    """As are stored visits."""
    text = lineage([[1.0, 1.0]]).text.replace('"entries": [', '"entries": [' + "1," * BASELINE.values)

    with pytest.raises(RecordError, match="b: is not JSON that perfgate wrote: it holds 100"):
        parse(text, "b")


def test_model_with_a_number_without_end(tmp_path: Path) -> None:
    """The configuration of a Mamba-2 model says Infinity, which Python's json writes and reads."""
    (tmp_path / "config.json").write_text('{"time_step_limit": [0.0, Infinity]}')

    assert read_config(tmp_path) == {"time_step_limit": [0.0, math.inf]}


class Point(BaseModel):
    """A model that takes JSON as pydantic does."""

    format: Literal["point/1"] = "point/1"
    x: int


@pytest.mark.parametrize(
    ("text", "says"),
    [('{"x": 1, "y": 1e400}', "larger than any number"), ('{"x": NaN}', "holds NaN"), ('{"x": "1"', "delimiter"),
     ('{"x": "one"}', "valid integer"), ('{"x": 1' + "1" * 30 + "}", "larger than any integer")],
    ids=["float", "NaN", "cut", "type", "integer"],
)  # fmt: skip
def test_a_model_is_read_within_the_bounds(text: str, says: str, tmp_path: Path) -> None:
    """What pydantic's own reader would take and nothing could keep is refused, in a field it does not know too."""
    file = tmp_path / "point.json"
    file.write_text(text.replace("{", '{"format": "point/1", ', 1))
    with pytest.raises(RecordError, match=says):
        read_model(Point, file)
    write_model(file, Point(x=1))
    assert read_model(Point, file) == Point(x=1)
