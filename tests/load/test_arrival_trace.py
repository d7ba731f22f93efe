"""Traces of Mooncake and Azure: what is in them comes out, and what cannot be read is refused with its place."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from whole_inputs import WHOLE

from perfgate.errors import UsageError
from perfgate.load.arrival_trace import read_arrivals
from perfgate.load.arrivals import Arrived

COUNTS = st.integers(1, 1_000_000)
TIMES = st.lists(st.integers(0, 10**9), min_size=1, max_size=20)
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def written(folder: Path, name: str, text: str) -> Path:
    """A file with this text."""
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


@SHARED
@given(times=TIMES, data=st.data())
def test_a_mooncake_trace_is_read(tmp_path: Path, times: list[int], data: st.DataObject) -> None:
    """In order of time from the first request, a block for every 512 tokens at most."""
    rows: list[dict[str, Any]] = [
        {"timestamp": at, "input_length": data.draw(COUNTS), "output_length": data.draw(COUNTS),
         "hash_ids": data.draw(st.lists(st.integers(0, 99), max_size=5)), "more": None}
        for at in times
    ]  # fmt: skip
    found = read_arrivals(written(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows))))
    ordered = sorted(rows, key=lambda row: row["timestamp"])
    assert found == tuple(
        Arrived(
            (row["timestamp"] - ordered[0]["timestamp"]) * 1_000_000, row["input_length"], row["output_length"],
            tuple(row["hash_ids"][: -(-row["input_length"] // 512)]),
        )
        for row in ordered
    )  # fmt: skip


@SHARED
@given(times=TIMES, zone=st.sampled_from(["", "+00:00", "Z"]), data=st.data())
def test_an_azure_trace_is_read(tmp_path: Path, times: list[int], zone: str, data: st.DataObject) -> None:
    """With seven decimals or six, with a zone or without."""
    begin = datetime(2024, 5, 10, tzinfo=UTC)
    rows = [(at, data.draw(COUNTS), data.draw(COUNTS)) for at in sorted(times)]
    lines = [f"{(begin + timedelta(microseconds=at)):%Y-%m-%d %H:%M:%S.%f}{zone},{i},{o}" for at, i, o in rows]
    text = "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines])
    found = read_arrivals(written(tmp_path, "a.csv", text))
    assert found == tuple(Arrived((at - rows[0][0]) * 1000, i, o) for at, i, o in rows)


def test_the_published_forms_are_read(tmp_path: Path) -> None:
    """Lines as these projects publish them."""
    azure = written(tmp_path, "a.csv", WHOLE["arrivals.csv"].decode())
    assert read_arrivals(azure) == (Arrived(0, 374, 44), Arrived(51_941_000, 396, 109), Arrived(98_530_000, 879, 55))
    mooncake = written(tmp_path, "a.jsonl", WHOLE["arrivals.jsonl"].decode())
    assert [(a.at_ns, a.input_tokens, a.output_tokens, len(a.blocks)) for a in read_arrivals(mooncake)] == [
        (0, 600, 500, 2), (0, 1100, 490, 3), (3_000_000_000, 5, 3, 1),
    ]  # fmt: skip


@SHARED
@given(data=st.binary(max_size=300), name=st.sampled_from(["a.csv", "a.jsonl"]), head=st.booleans())
def test_nothing_else_is_raised(tmp_path: Path, data: bytes, name: str, head: bool) -> None:  # noqa: FBT001 (drawn)
    """Whatever is in the file."""
    file = tmp_path / name
    file.write_bytes((b"TIMESTAMP,ContextTokens,GeneratedTokens\n" if head else b"") + data)
    said = ""
    try:
        assert read_arrivals(file)
    except UsageError as error:
        said = str(error)
    assert not said or str(file) in said


LINE = '{"timestamp": 0, "input_length": 5, "output_length": 3}\n'


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.jsonl", "", "holds no request"),
        ("a.jsonl", LINE + "[]", "a.jsonl:2"),
        ("a.jsonl", LINE.replace("5", "-5"), "a.jsonl:1: input_length: .*greater than or equal to 0"),
        ("a.jsonl", LINE.replace("0", "1e300"), "a.jsonl:1: timestamp"),
        ("a.jsonl", " " * 70_000, "a.jsonl:1: a line of more than 65536"),
        ("a.jsonl", LINE * 100_002, "more than 100000 requests"),
        ("a.csv", "TIMESTAMP,ContextTokens\n", "a.csv:1: no column GeneratedTokens"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nnow,1,1\n", "a.csv:2: Invalid isoformat"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10,1\n", "a.csv:2: 2 columns, expected 3"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10,x,1\n", "a.csv:2: Input should be a valid int"),
        ("a.csv", 'TIMESTAMP,ContextTokens,GeneratedTokens\n"a"b,1,1\n', "a.csv:2: invalid CSV"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n0001-01-01,1,1\n2024-01-01,1,1\n", "spans more than"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    """By file and number."""
    with pytest.raises(UsageError, match=said):
        read_arrivals(written(tmp_path, name, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """As is one that is not text."""
    with pytest.raises(UsageError, match=r"none\.csv: cannot be read: No such file"):
        read_arrivals(tmp_path / "none.csv")
    (tmp_path / "a.csv").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_arrivals(tmp_path / "a.csv")
