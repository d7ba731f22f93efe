"""``perfgate kernels --show``: tables that answer one question each, as text, Markdown, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from nsys_builder import ExportBuilder

from perfgate.cli.main import main
from perfgate.cli.profiles import ANSWERS
from perfgate.report.formats import render
from perfgate.report.path_answer import path_answer
from perfgate.report.trace_answers import launches_answer, spread_answer
from perfgate.trace.selection import Selection, select
from perfgate.trace.trace_file import read_trace

FIXTURES = Path(__file__).parents[1] / "fixtures"
CAPTURE = FIXTURES / "h200-llama-8b-decode.sqlite.gz"
ON_CPU = FIXTURES / "cpu-tiny.torch-2.13.json.gz"


def run(*words: str) -> Result:
    """The command with these words."""
    return CliRunner().invoke(main, ["kernels", *words])


@pytest.fixture(scope="module")
def capture() -> Selection:
    """The decode steps of the H200 capture."""
    return select(read_trace(CAPTURE))


def test_the_spread_of_the_capture(capture: Selection, golden: Callable[[str, str], None]) -> None:
    """Each kernel's launches: least, median, most, mean and standard deviation."""
    golden("kernels-spread.txt", render("answer", "text", spread_answer(capture)))


def test_the_launches_of_the_capture(capture: Selection, golden: Callable[[str, str], None]) -> None:
    """A host that is milliseconds ahead: long delays, long queues, two copies late."""
    golden("kernels-launches.txt", render("answer", "text", launches_answer(capture)))


def test_the_path_of_the_capture(capture: Selection, golden: Callable[[str, str], None]) -> None:
    """Bound by the device: kernels and the gaps between them."""
    golden("kernels-path.txt", render("answer", "text", path_answer(capture)))


def test_the_path_of_a_step_as_markdown(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    """A step that the host holds up, with its chain."""
    builder = ExportBuilder()
    builder.span("perfgate.step.7", 0, 19_000)
    builder.launch("rms_norm", 0, 10_000, 13_000)
    builder.call("cudaStreamSynchronize", 2000, 14_000)
    builder.span("perfgate.step.8", 19_500, 40_000)
    builder.launch("rms_norm", 20_000, 25_000, 26_000)
    trace = read_trace(builder.write(tmp_path / "export.sqlite"))
    golden("kernels-path-step.md", render("answer", "markdown", path_answer(select(trace, 7))))


@pytest.mark.parametrize("show", ANSWERS)
def test_programs_are_told_everything(show: str) -> None:
    """JSON names each column with its unit, CSV holds the first table with the same columns."""
    words = (str(CAPTURE), "--show", show, "--step", "300")
    content = json.loads(run(*words, "--format", "json").stdout)
    assert content["selection"] == "step 300 (decode)"
    assert [caution["code"] for caution in content["cautions"]] == ["profiler-overhead"]
    table = content[{"spread": "kernels", "launches": "launches", "path": "parts"}[show]]
    lines = list(csv.DictReader(io.StringIO(run(*words, "--format", "csv").stdout)))
    assert len(lines) == len(table) > 0
    assert {*lines[0]} == {*table[0]}
    assert any(key.endswith("_ns") for key in table[0])


def test_the_parts_of_a_path_add_up() -> None:
    """To the step, as its figures have it."""
    content = json.loads(run(str(CAPTURE), "--show", "path", "--step", "300", "--format", "json").stdout)
    (path,) = content["paths"]
    assert sum(part["on_path_ns"] for part in content["parts"]) == path["path_ns"]
    assert sum(piece["time_ns"] for piece in content["chain"]) == path["path_ns"]
    assert path["device_ns"] + path["gap_ns"] + path["host_ns"] == path["path_ns"]
    assert (path["step"], path["bound_by"]) == (300, "device")


@pytest.mark.parametrize("show", ["launches", "path"])
def test_what_a_trace_does_not_record_is_said(show: str) -> None:
    """Operators on the CPU are launched by no call."""
    ended = run(str(ON_CPU), "--show", show)
    assert ended.exit_code == 0
    assert "not-recorded" in ended.stdout
    assert "the trace holds no call of the host that launched what is shown" in ended.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--show", "path", "--layer", "3"], "--show path is of whole steps: give --layer without it"),
        (["--show", "path", "--counters", str(CAPTURE)], "--show path another table: give one of them"),
        (["--show", "paths"], "Invalid value for '--show'"),
    ],
)
def test_options_that_do_not_go_together(words: list[str], message: str) -> None:
    """They are refused with what to give instead."""
    ended = run(str(CAPTURE), *words)
    assert ended.exit_code == 2
    assert message in ended.output
