"""Files that declare what is measured, broken on purpose: each is read, or refused with its place."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgate.capture.counterfile import read_counters
from perfgate.capture.ncu import base_unit, number
from perfgate.config import load_config
from perfgate.errors import PerfgateError
from perfgate.report.counters import FORMATS
from perfgate.scenario import loads
from perfgate.table import read_table

ROOT = Path(__file__).parents[1]
REPORT = (ROOT / "tests/fixtures/ncu-2022.3.ncu-rep").read_bytes()
SCENARIO = """schema: 1
name: small
engine:
  model: {config: models/llama-tiny}
  args: {dtype: bfloat16, max_model_len: 256}
  env: {OMP_NUM_THREADS: "1"}
workload: {batch: 8, input_tokens: 32, output_tokens: 16}
measure: {iterations: 4, looks: [4, 6], expect: {trial_s: 12, pair_sd: 7%}}
matrix: {batch: [1, 8]}
kernels:
  traced: {iterations: 2}
  roles: {mine: {match: "my_op"}}
  per_decode_step:
    patterns:
    - {launches: 3, roles: {gemm: 2, norm: 1}, outside_graphs: 0, copies: {}}
counters:
- {role: gemm, place: qkv, metrics: {registers: same, dram_throughput: ">= 55"}}
gates:
- {metric: itl_median, ignorable: 10%, must_catch: 50%, floor: 1ms}
"""
CONFIG = """[subjects.patched]
python = "envs/main/bin/python"
path = ["my-plugin"]
env = {N = 1}
args = {max_num_seqs = 8}
[build]
commands = [["python3", "-m", "venv", "{env}"]]
python = "{env}/bin/python"
inputs = ["*.txt"]
timeout = "15min"
"""
TABLE = """pair,subject,metric,unit,value
1,base,itl_median,ms,5.2
1,head,itl_median,ms,5.3
2,head,itl_median,ms,5.1
2,base,itl_median,ms,5.2
"""
PAGE = (
    '==PROF== Connected to process 7\n"ID","Process ID","Kernel Name","Block Size","Grid Size","Device","CC",'
    '"device__attribute_display_name","device__attribute_global_memory_bus_width","dram__bytes.sum",'
    '"dram__cycles_elapsed.avg.per_second","gpu__time_duration.sum","sm__throughput.avg.pct_of_peak_sustained_elapsed"\n'
    '"","","","","","","","","","Kbyte","cycle/nsecond","us","%"\n'
    '"0","7","first(int, char)","(64, 1, 1)","(2, 3, 4)","0","9.0","NVIDIA H200","6,016","1,234.5","3.2","10","12"\n'
    '"1","7","second","(32, 1, 1)","(1, 1, 1)","0","9.0","NVIDIA H200","6,016","0 (4; 8)","3.2","2","n/a"\n'
)


def load_page(file: Path) -> None:
    """As ``perfgate counters`` does it: what is read must also be shown."""
    counted = read_counters(file)
    for render in FORMATS.values():
        render(counted)


def load_scenario(file: Path) -> None:
    """As if it lay among the scenarios, whose models it names."""
    loads(file.read_bytes().decode(), ROOT / "scenarios" / file.name)


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "scenario.yaml": (SCENARIO, load_scenario),
    "perfgate.toml": (CONFIG, load_config),
    "times.csv": (TABLE, read_table),
    "counted.csv": (PAGE, load_page),
}
"""By the name of the file: a small valid one, and what reads it."""

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
    file = folder / name
    file.write_bytes(text.encode("utf-8", "replace"))
    refusal = ""
    try:
        READERS[name][1](file)
    except PerfgateError as error:
        refusal = str(error)
    assert not refusal or name in refusal
    return refusal.replace(f"{folder}/", "")


@pytest.mark.parametrize("name", READERS)
def test_the_small_files_are_valid(name: str, tmp_path: Path) -> None:
    """What is broken below is read as long as it is whole."""
    assert reads_or_refuses(name, READERS[name][0], tmp_path) == ""


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=3 * settings().max_examples)
@given(data=st.data())
def test_a_broken_file_is_read_or_refused(
    name: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever stands in place of a word, there is no other error than perfgate's own, with the file's name."""
    reads_or_refuses(name, data.draw(broken(READERS[name][0])), tmp_path_factory.getbasetemp())


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
    assert refused.value.code in ("counters-truncated", "counters-no-kernel")


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
    assert refused.value.code == "counters-truncated"
