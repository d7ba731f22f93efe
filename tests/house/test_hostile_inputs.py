"""Files that declare what is measured, broken on purpose: each is read, or refused with its place."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from readers import refusal
from whole_inputs import PAGE, WHOLE

from perfgate.counters.ncu_csv import base_unit, number
from perfgate.counters.report_file import read_counters
from perfgate.errors import PerfgateError

NAMES = ("scenario.yaml", "perfgate.toml", "times.csv", "counted.csv")
"""The readers of :mod:`readers` whose files people write and broken words go into."""
REPORT = WHOLE["counted.ncu-rep"]

NASTY = (
    "", " " * 3000, "9" * 5000, "0x" + "f" * 5000, "-1", "0", "1e999", "1e-999", "-0.0", "nan", "٣", "null", "true",
    "''", '"', '""', "\x00", "\x1b[31m", "\u202e", "\r", "\n", "\t", "\ufeff", "[" * 200, "{a: " * 200, "{a=" * 200,
    "a." * 200, "- " * 200, "&a", "*a", "<<", "!!python/object:os.system x", "!!int 1", "%YAML 1.1", "---", "...",
    "? a", "|", "#", "2024-01-31", "1:30", "{tree", "{tree!r}", "=" * 50, "/", "..", "~", "()", "(1; 2)",
    "{" + ";" * 500, "Tbyte" + "/ns" * 50, '"","","', "==ERROR== x", "==WARNING== y", "[[subjects]]",
)  # fmt: skip
"""What stands in place of a word, or between two."""


@st.composite
def broken(draw: st.DrawFn, text: str) -> str:
    """A small file with up to three words replaced, dropped, doubled, swapped, or made nasty."""
    words = re.findall(r"[\w.%-]+|\s+|.", text)
    for _ in range(draw(st.integers(1, 3))):
        one, other = (draw(st.integers(0, len(words) - 1)) for _ in range(2))
        kind = draw(st.sampled_from(["replace", "insert", "drop", "double", "swap", "cut"]))
        if kind in ("replace", "insert"):
            words[one : one + (kind == "replace")] = [draw(st.sampled_from(NASTY) | st.text(max_size=5))]
        elif kind == "drop":
            words[one] = ""
        elif kind == "double":
            words[one:one] = words[one : one + draw(st.integers(1, 30))]
        elif kind == "swap":
            words[one], words[other] = words[other], words[one]
        else:
            words = words[: max(one, 1)]
    return "".join(words)


def reads_or_refuses(name: str, text: str, folder: Path) -> str:
    """The message that a text is refused with, which names the file; empty where it is read."""
    said = refusal(name, text.encode("utf-8", "replace"), folder / "hostile")
    assert not said or name in said
    return said.replace(f"{folder}/hostile/", "")


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=3 * settings().max_examples)
@given(data=st.data())
def test_a_broken_file_is_read_or_refused(
    name: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever stands in place of a word, there is no other error than perfgate's own, with the file's name."""
    reads_or_refuses(name, data.draw(broken(WHOLE[name].decode())), tmp_path_factory.getbasetemp())


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("perfgate.toml", '[build]\npath = ""', "perfgate.toml: build.path: must not be empty, found ''"),
        ("perfgate.toml", "x = " + "[" * 5000, "perfgate.toml: is nested deeper than 32 levels"),
        ("perfgate.toml", ".".join(["a"] * 3000) + " = 1", "a.a.a: is nested deeper than 32 levels"),
        ("perfgate.toml", "a = 1\nx = " + "9" * 5000, "perfgate.toml:2: a number of more than 100 digits is not"),
        ("perfgate.toml", f"[subjects.a]\nargs = {{x = 1{'0' * 100}}}", "perfgate.toml: subjects.a.args.x: a number"),
        ("counted.csv", PAGE.replace('"1,234.5"', '"1e999"'), "counted.csv:4: dram__bytes.sum is '1e999', no number"),
        ("counted.csv", PAGE.replace('"0","9.0"', '"1e999","9.0"'), "counted.csv:4: Device is '1e999', expected"),
        ("counted.csv", PAGE.replace('"0","7"', f'"{"9" * 5000}","7"'), "counted.csv:4: ID is '99999"),
        ("counted.csv", PAGE.replace("(2, 3, 4)", f"({'9' * 5000}, 3, 4)"), "counted.csv:4: grid size is '(99999"),
        ("counted.csv", PAGE.replace('"9.0"', f'"{"9" * 5000}.0"'), "counted.csv:4: CC is '99999"),
        ("counted.csv", PAGE.replace('"6,016"', '"0"'), ""),
        ("counted.csv", PAGE.replace('"Kbyte"', f'"Kbyte{"/ns" * 50}"'), "is in Kbyte/ns/ns"),
        ("counted.csv", PAGE.replace('"n/a"', '"12 \n' + "\n" * 200 + '"'), "counted.csv:5: the row is cut short"),
    ],
)  # fmt: skip
def test_what_once_broke_a_reader(name: str, text: str, said: str, tmp_path: Path) -> None:
    """Each is refused with what is wrong and where, or read."""
    message = reads_or_refuses(name, text, tmp_path)
    assert message.startswith(said) if name == "perfgate.toml" and said.startswith(name) else said in message
    assert bool(said) == bool(message)
    assert len(message) < 1000


@pytest.mark.parametrize(
    "text", ["1" + " " * 500_000 + "x", "(" * 500_000 + ")", "{" * 500_000 + "}", "(" + ";" * 500_000]
)
def test_a_long_cell_is_read_in_one_pass(text: str) -> None:
    """A number with half a megabyte behind it is none; to search that for instances again and again takes minutes."""
    assert number(text) is None


def test_a_unit_of_many_words_is_none_of_ours() -> None:
    """Its scale would be nothing."""
    assert base_unit("byte" + "/ns" * 100) == ("byte" + "/ns" * 100, 1.0)


def reports(edits: list[tuple[int, bytes]], end: int) -> bytes:
    """The recorded report with bytes in other places overwritten, and cut."""
    content = bytearray(REPORT)
    for place, put in edits:
        content[place : place + len(put)] = put
    return bytes(content[:end])


@settings(max_examples=3 * settings().max_examples)
@given(
    edits=st.lists(
        st.tuples(
            st.integers(4, 400) | st.integers(4, len(REPORT)),
            st.sampled_from([b"\xff" * 4, b"\xff" * 40, b"\0" * 8, b"\x28" + b"\xff" * 9 + b"\x01"])
            | st.binary(max_size=8),
        ),
        max_size=3,
    ),
    end=st.just(len(REPORT)) | st.integers(4, len(REPORT)),
)
def test_a_broken_report_is_refused(
    edits: list[tuple[int, bytes]], end: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Its blocks are walked to the end or refused: the package, which finds nothing in it here, is asked only then."""
    module: Any = ModuleType("ncu_report")
    module.load_report = lambda _: []
    file = tmp_path_factory.getbasetemp() / "broken.ncu-rep"
    file.write_bytes(reports(edits, end))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "ncu_report", module)
        with pytest.raises(PerfgateError, match=r"broken\.ncu-rep") as refused:
            read_counters(file)
    assert refused.value.code in ("counters-unreadable", "counters-missing")


@pytest.mark.parametrize(
    "header",
    [b"\x28" + b"\xff" * 9 + b"\x7f", b"\x28" + b"\xff" * 100_000, b"\x2a" + b"\xff" * 100_000, b"\xff" * 100_000, b""],
    ids=["beyond-the-disk", "endless", "endless-length", "endless-key", "empty"],
)
def test_numbers_without_end_in_a_report(header: bytes, tmp_path: Path) -> None:
    """A length that no file has is a cut, found without seeking there and without adding up a number of megabytes."""
    file = tmp_path / "broken.ncu-rep"
    blocks = [b"\x08\x01", header]
    file.write_bytes(b"NVR\0" + b"".join(len(one).to_bytes(4, "little") + one for one in blocks) + b"rest")
    with pytest.raises(PerfgateError) as refused:
        read_counters(file)
    assert refused.value.code == "counters-unreadable"
