"""ncu's raw page: columns by name, units of every version, lines in between, and every way to be no raw page."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.counters.ncu_csv import base_unit, number, parse_ncu
from perfgate.counters.report_file import read_counters
from perfgate.errors import NotMeasuredError, PerfgateError, RecordError
from perfgate.reasons import REASONS

FIXTURES = Path(__file__).parents[1] / "fixtures"
CAPTURE = FIXTURES / "h200-llama-8b-decode.ncu.csv.gz"
ONE = (FIXTURES / "h200-ncu-raw.txt").read_text()
SAMPLE = (FIXTURES / "ncu-2022.3-base.csv").read_text()

PAGE = (
    '"ID","Process ID","Kernel Name","Block Size","Grid Size","Device","CC",'
    '"dram__bytes.sum","gpu__time_duration.sum"\n'
    '"","","","","","","","Kbyte","us"\n'
    '"0","7","first(int, char)","(64, 1, 1)","(2, 3, 4)","0","9.0","1,234.5","10"\n'
    '"1","7","second","(32, 1, 1)","(1, 1, 1)","0","9.0","0","2"\n'
)


def test_the_recording_of_a_decode_step() -> None:
    """Sixty launches in order, each with its place, its ranges and its counters in base units."""
    counted = read_counters(CAPTURE)
    assert list(range(60)) == [kernel.number for kernel in counted.launches]
    assert len(counted.messages) == 1
    assert "unmodified GPU clocks" in counted.messages[0]

    qkv = counted.launches[11]

    assert qkv.key.name == "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"
    assert (qkv.gpu.architecture, qkv.grid, qkv.block) == (90, (4, 24, 1), (384, 1, 1))
    assert qkv.ranges == ("step_10", "perfgate.step.10")
    assert qkv.gpu.name == "NVIDIA H200"
    assert qkv.read("dram_bytes") == 52_708_864
    assert qkv.read("duration") == pytest.approx(16_736e-9)
    assert qkv.read("registers") == 168
    assert qkv.read("tensor_pipe") is None


def test_a_page_between_lines_of_ncu_and_the_program() -> None:
    """What ncu printed while a program printed a number too: one kernel, the number is none of its."""
    (kernel,) = parse_ncu(ONE, "here").launches
    assert kernel.read("duration") == pytest.approx(2_668_448e-9)
    assert kernel.read("sm_throughput") == 87.17
    assert kernel.values["profiler__replayer_bytes_mem_accessible.avg"] == 243_620_324


def test_scaled_and_base_units_of_one_report_agree() -> None:
    """One report that ncu 2022.3 printed twice; both readings are the same but for its rounding."""
    (base,) = read_counters(FIXTURES / "ncu-2022.3-base.csv").launches
    (scaled,) = read_counters(FIXTURES / "ncu-2022.3-auto.csv").launches
    assert base.units == scaled.units
    for name, value in base.values.items():
        rounding = 0.0051 if base.units[name] in ("%", "inst") else 0.0
        assert scaled.values[name] == pytest.approx(value, rel=1e-6, abs=rounding), name
    assert base.units["dram__cycles_elapsed.avg.per_second"] == "Hz"
    assert base.units["lts__t_sectors.sum.per_second"] == "sector/s"


def test_a_version_without_columns_for_device_and_shape() -> None:
    """The raw page of ncu 2022.3 has neither CC nor sizes; the device's and the launch's metrics have them."""
    (kernel,) = parse_ncu(SAMPLE, "here").launches
    assert (kernel.gpu.architecture, kernel.grid, kernel.block) == (86, (12288, 1, 1), (256, 1, 1))


@pytest.mark.parametrize(
    ("old", "new", "base", "scale"),
    [
        ("nsecond", "ns", "s", 1e-9),
        ("usecond", "us", "s", 1e-6),
        ("msecond", "ms", "s", 1e-3),
        ("second", "s", "s", 1.0),
        ("byte/second", "byte/s", "B/s", 1.0),
        ("Gbyte/second", "Gbyte/s", "B/s", 1e9),
        ("cycle/second", "hz", "Hz", 1.0),
        ("cycle/usecond", "Mhz", "Hz", 1e6),
        ("cycle/nsecond", "Ghz", "Hz", 1e9),
        ("Kbyte/block", "Kbyte/block", "B/block", 1e3),
        ("register/thread", "register/thread", "register/thread", 1.0),
        ("%", "%", "%", 1.0),
        ("", "", "", 1.0),
        ("pass", "pass", "pass", 1.0),
    ],
)
def test_units_of_old_and_new_versions(old: str, new: str, base: str, scale: float) -> None:
    """Words before and since ncu 2024.2 mean the same base unit; a word that is not known stays."""
    for unit in (old, new):
        name, factor = base_unit(unit)
        assert name == base
        assert factor == pytest.approx(scale)


PREFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0}
SIZES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


@given(
    size=st.sampled_from(sorted(SIZES)), time=st.sampled_from(sorted(PREFIXES)), word=st.sampled_from(["second", "s"])
)
def test_a_rate_scales_by_both_of_its_ends(size: str, time: str, word: str) -> None:
    """However a rate is scaled, its factor is that of its size over that of its time."""
    name, scale = base_unit(f"{size}byte/{time}{word}")
    assert name == "B/s"
    assert scale == pytest.approx(SIZES[size] / PREFIXES[time])


@given(value=st.integers(-(10**15), 10**15), decimals=st.integers(0, 6))
def test_thousands_separators(value: int, decimals: int) -> None:
    """A number reads the same with and without separators, and with the values of its instances behind it."""
    plain = f"{value / 10**decimals:.{decimals}f}"
    assert number(f"{value / 10**decimals:,.{decimals}f}") == float(plain)
    assert number(f" {plain} (1; 2,000; 3)") == float(plain)


@pytest.mark.parametrize(
    "text", ["", "1,23", "1.234,5", "12,3456", ",123", "1,234,", "0x10", "(1, 2, 3)", "n/a", "No-CC"]
)
def test_what_is_no_number(text: str) -> None:
    """A comma that parts no thousands makes no number, and neither do words."""
    assert number(text) is None


LINES = st.text(st.characters(exclude_characters='"\r\n', exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=30)


@given(noise=st.lists(st.tuples(st.integers(0, 4), LINES.filter(lambda line: "ERR_" not in line)), max_size=8))
def test_lines_in_between_change_nothing(noise: list[tuple[int, str]]) -> None:
    """Lines before, between and after the rows, of whatever content but quotations, leave the kernels as they are."""
    lines: list[str] = PAGE.splitlines()
    for place, line in sorted(noise, key=lambda one: -one[0]):
        lines.insert(place, line)
    assert parse_ncu("\n".join(lines), "here").launches == parse_ncu(PAGE, "here").launches


@given(cut=st.integers(1, len(PAGE)))
def test_a_page_cut_anywhere(cut: int) -> None:
    """A page cut short is an error, unless it is cut between two rows: then it holds the first."""
    rows = PAGE.splitlines()
    first_row, whole = len("\n".join(rows[:3])), len(PAGE.rstrip())
    if cut in (first_row, first_row + 1) or cut >= whole:
        kept = parse_ncu(PAGE[:cut], "here").launches
        assert kept == parse_ncu(PAGE, "here").launches[: 2 if cut >= whole else 1]
        return
    with pytest.raises(PerfgateError) as caught:
        parse_ncu(PAGE[:cut], "here")
    assert caught.value.code in REASONS


def test_a_row_behind_unfinished_output() -> None:
    """A program that printed no line end before ncu's row hides neither the row nor its own words."""
    text = PAGE.replace('"1","7"', 'step 3 ... "1","7"')
    assert parse_ncu(text, "here").launches == parse_ncu(PAGE, "here").launches


def test_columns_in_another_order_and_names_with_line_ends() -> None:
    """Columns are found by their names; a quoted line end is part of its field."""
    header, units, first, _ = (line.split('","') for line in PAGE.splitlines())
    moved = ['","'.join([*row[:7], row[8].rstrip('"'), row[7]]) + '"' for row in (header, units, first)]
    text = "\n".join(moved).replace("first(int", "first\n(int")
    (kernel,) = parse_ncu(text, "here").launches
    assert kernel.key.name == "first\n(int, char)"
    assert kernel.read("dram_bytes") == 1_234_500
    assert kernel.read("duration") == pytest.approx(1e-5)


def test_a_metric_that_was_not_collected() -> None:
    """What ncu writes in place of a value is no reading, and no zero."""
    first, _ = parse_ncu(PAGE.replace("1,234.5", "n/a"), "here").launches
    assert first.read("dram_bytes") is None


HEADING = PAGE.splitlines()[0]
QUOTED = {
    # NVIDIA's wording, quoted from its documentation and public reports; not produced here.
    "permission": "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
    "Performance Counters on the target device 0.",
    "busy": "==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool "
    "(like DCGM) is concurrently collecting profiling data.",
    "shared": "==ERROR== Failed to access the following 2 metrics: dram__bytes.sum, dram__throughput.avg",
    "metric": "==ERROR== Failed to find metric dram__bites.sum",
}
OBSERVED = {
    # What ncu 2022.3 and 2025.3 printed.
    "kernel": "==PROF== Connected to process 1\n==WARNING== No kernels were profiled.\n",
    "driver": "==ERROR== Nsight Compute failed to connect to the CUDA driver (stub libcuda.so[.1] on "
    "path?).\n==ERROR== The application returned an error code (1).\n==WARNING== No kernels were profiled.\n",
}


CODES = {
    "permission": "counters-no-permission", "busy": "counters-busy", "shared": "counters-busy",
    "metric": "counters-not-countable", "kernel": "counters-missing", "driver": "counters-not-countable",
}  # fmt: skip


@pytest.mark.parametrize("what", [*QUOTED, *OBSERVED])
@pytest.mark.parametrize("before", ["", HEADING + "\n"])
def test_the_reason_that_ncu_gives_in_place_of_rows(what: str, before: str) -> None:
    """Nothing was measured, for the reason that ncu's own line names; the line is in the message."""
    said = {**QUOTED, **OBSERVED}[what]
    with pytest.raises(NotMeasuredError) as caught:
        parse_ncu(before + said, "here")
    assert caught.value.code == CODES[what]
    assert any(line in caught.value.text for line in said.splitlines())
    assert caught.value.remedy


def test_rows_beside_a_missing_permission() -> None:
    """One GPU that refuses its counters spoils the file, though another one's rows are there."""
    with pytest.raises(NotMeasuredError) as caught:
        parse_ncu(PAGE + QUOTED["permission"], "here")
    assert caught.value.code == "counters-no-permission"


def test_rows_beside_metrics_that_are_missing() -> None:
    """Some metrics that ncu could not read leave the others standing; what it said is kept."""
    counted = parse_ncu(f"{QUOTED['shared']}\n{PAGE}", "here")
    assert len(counted.launches) == 2
    assert counted.messages == (QUOTED["shared"],)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("", "counters-unreadable", "is empty"),
        (" \n\n", "counters-unreadable", "is empty"),
        ("hello\n1,2,3\n", "counters-unreadable", "no line with the columns"),
        ('"pair","subject"\n"1","base"\n', "counters-unreadable", "no line with the columns"),
        ((FIXTURES / "ncu-2022.3-details.csv").read_text(), "counters-unreadable", "details page"),
        (PAGE.replace('"', ""), "counters-unreadable", "quotation marks"),
        ('"ID","Process ID","Kern', "counters-unreadable", "heading"),
        (PAGE[:-20], "counters-unreadable", ":4: the row is cut short"),
        ("\n".join(PAGE.splitlines()[::2]), "counters-unreadable", "row of units"),
        (PAGE.replace("1,234.5", "1.234,5"), "counters-unreadable", "LC_ALL=C"),
        (PAGE.replace("(2, 3, 4)", "24"), "counters-unreadable", "grid size"),
        (PAGE.replace('"9.0"', '"nine"', 1), "counters-unreadable", "CC is 'nine'"),
        ("NV\0\0\1\2", "counters-unreadable", "neither text nor a report"),
    ],
)
def test_what_is_no_raw_page(tmp_path: Path, text: str, code: str, said: str) -> None:
    """Each is an error of the input, with file, reason and how to print the page again."""
    file = tmp_path / "page.csv.gz"
    file.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(RecordError) as caught:
        read_counters(file)
    assert caught.value.code == code
    assert said in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("text", ["8.137", "243.620.324", "8.137 (4.100; 4.037)", "-8.137"])
@pytest.mark.parametrize("unit", ["us", "ns", ""])
def test_thousands_separated_by_dots(text: str, unit: str) -> None:
    """A page of ncu in German whose figures are all whole has no decimal comma to be refused by: its dots are."""
    page = PAGE.replace('"us"', f'"{unit}"').replace('"10"', f'"{text}"')

    with pytest.raises(RecordError, match=re.escape(f"here:3: gpu__time_duration.sum is {text!r}, whose dots part")):
        parse_ncu(page, "here")


@pytest.mark.parametrize("text", ["0.125", "8.13", "8.137000", "1234.567", "1,234.567", "8.1370"])
def test_decimals_are_no_groups(text: str) -> None:
    """What no grouping writes stays a number: two decimals or six, a leading zero, four digits before the dot."""
    (first, _) = parse_ncu(PAGE.replace('"10"', f'"{text}"'), "here").launches

    assert first.values["gpu__time_duration.sum"] == pytest.approx(float(text.replace(",", "")) * 1e-6)


def test_a_heading_without_rows() -> None:
    """A filter that matched nothing leaves the heading; no data is an error, never an empty table."""
    with pytest.raises(NotMeasuredError) as caught:
        parse_ncu("\n".join(PAGE.splitlines()[:2]), "here")
    assert caught.value.code == "counters-missing"


def test_no_file(tmp_path: Path) -> None:
    """A file that is not there is named."""
    with pytest.raises(RecordError, match="does not exist"):
        read_counters(tmp_path / "none.csv")
