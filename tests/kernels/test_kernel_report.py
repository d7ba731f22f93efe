"""``perfgate kernels``: a trace as text, Markdown, JSON and CSV, and its ways to refuse."""

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
from perfgate.counters.launch_table import NcuReport
from perfgate.counters.trace_join import Join, _timed_rows
from perfgate.errors import UsageError
from perfgate.report.formats import formats_of, render
from perfgate.trace.kernel_table import NONE
from perfgate.trace.selection import select
from perfgate.trace.trace_file import read_trace

FIXTURES = Path(__file__).parents[1] / "fixtures"
CAPTURE = FIXTURES / "h200-llama-8b-decode.sqlite.gz"


def run(*words: str) -> Result:
    """The command with these words."""
    return CliRunner().invoke(main, ["kernels", *words])


def test_the_capture_as_text(golden: Callable[[str, str], None]) -> None:
    """The decode steps of the H200 capture: times, roles, kernels, cautions."""
    golden("kernels-decode.txt", render("kernels", "text", select(read_trace(CAPTURE))))


def test_a_layer_as_markdown(golden: Callable[[str, str], None]) -> None:
    """One layer of one step, with each launch."""
    golden("kernels-layer.md", render("kernels", "markdown", select(read_trace(CAPTURE), 260, 5)))


def test_json_holds_every_step() -> None:
    """Each step with its figures, each kernel with all of its names; the sums agree."""
    ended = run(str(CAPTURE), "--format", "json")
    assert ended.exit_code == 0
    content = json.loads(ended.stdout)
    assert [step["step"] for step in content["steps"]] == list(range(259, 386))
    total = sum(step["kernel_ns"] for step in content["steps"])
    assert total == sum(kernel["time_ns"] for kernel in content["kernels"])
    for step in content["steps"]:
        assert step["kernel_ns"] == sum(role["time_ns"] for role in step["roles"].values())
        assert step["span_ns"] == step["busy_ns"] + sum(step["idle_ns"].values())
    assert content["steps"][-1]["step_ns"] is None
    flash = next(kernel for kernel in content["kernels"] if kernel["kernel"] == "FlashAttnFwdSm90")
    assert flash["name"].startswith("void cutlass::device_kernel<flash::")
    assert flash["normalised"].startswith("cutlass::device_kernel<flash::")


def test_csv_holds_every_kernel_of_every_step() -> None:
    """Its lines add up to the time of all decode kernels, and a name with commas is one field."""
    ended = run(str(CAPTURE), "--format", "csv")
    lines = list(csv.DictReader(io.StringIO(ended.stdout)))
    kernels = read_trace(CAPTURE).kernels
    decode = (kernels.step != NONE) & (kernels.step > 0)
    assert sum(int(line["time_ns"]) for line in lines) == kernels.duration_ns[decode].sum()
    assert {line["kind"] for line in lines} == {"decode"}
    assert sum(int(line["launches"]) for line in lines if line["step"] == "260") == 438
    assert any("," in line["name"] for line in lines)


def test_the_ranks_of_one_file_are_named_at_once() -> None:
    """Six steps of two ranks are six, not twelve, in each of its first lines and in JSON."""
    file = str(FIXTURES / "h200-x2-ranks.sqlite.gz")
    for words in ([], ["--show", "spread"], ["--show", "launches"], ["--show", "path"]):
        first, shown, ranks = run(file, "--format", "text", *words).stdout.splitlines()[:3]
        assert first.endswith("6084 kernels, 6 steps of each of 2 processes (6 decode)")
        assert shown.startswith("Shown: 6 decode steps of each of 2 ranks")
        assert ranks.startswith("Ranks: process 1121 device 0 (6 steps), process 1122 device 1 (6 steps). ")
    content = json.loads(run(file, "--format", "json").stdout)
    assert content["ranks"] == [
        {"process": 1121, "device": 0, "steps": 6},
        {"process": 1122, "device": 1, "steps": 6},
    ]
    difference = run(file, "--diff", str(CAPTURE))
    assert "6 decode steps of each of 2 ranks" in difference.stdout
    assert "the base has 2 ranks and the head 1" in difference.stdout
    assert "the base has" not in run(file, "--diff", file).stdout


@pytest.mark.parametrize("ranks", [2, 3, 12])
def test_ranks_that_show_other_numbers_of_steps(ranks: int, tmp_path: Path) -> None:
    """Each is named with its own, up to eight of them; one process with several devices is as many ranks."""
    builder = ExportBuilder()
    for rank in range(ranks):
        for step in range(3 + rank % 2):
            at = 10_000 * step
            builder.span(f"perfgate.step.{step}.decode", at, at + 9000, pid=100 + rank)
            builder.launch("nvjet_gemm", at + 10, at + 20, at + 30, pid=100 + rank, device=rank)
    first, shown, named = run(str(builder.write(tmp_path / "export.sqlite")), "--format", "text").stdout.splitlines()[
        :3
    ]
    steps = sum(3 + rank % 2 for rank in range(ranks))
    assert first.endswith(f"{steps} kernels, {steps} steps of {ranks} processes ({steps} decode)")
    assert shown == f"Shown: 3 to 4 decode steps of each of {ranks} ranks, 1 kernel each."
    assert named.startswith("Ranks: process 100 device 0 (3 steps), process 101 device 1 (4 steps)")
    assert named.count("device") == min(ranks, 8)
    assert ("and 4 more. " in named) == (ranks > 8)
    devices = ExportBuilder()
    devices.span("perfgate.step.0.decode", 0, 9000)
    for device in range(2):
        devices.launch("nvjet_gemm", 10, 20, 30, device=device)
    of_one = run(str(devices.write(tmp_path / "devices.sqlite")), "--format", "text").stdout
    assert "2 kernels, 1 step (1 decode)\nShown: 1 decode step of each of 2 ranks, 1 kernel each." in of_one


def test_a_trace_without_steps(tmp_path: Path) -> None:
    """Without ranges the whole trace is shown, unlisted kernels included, with a caution."""
    builder = ExportBuilder()
    builder.launch("wholly_new_thing", 0, 10, 30)
    builder.launch("nvjet_gemm", 5, 40, 50)
    file = builder.write(tmp_path / "export.sqlite")
    for form in formats_of("kernels"):
        ended = run(str(file), "--format", form)
        assert ended.exit_code == 0
        assert "unlisted" in ended.stdout
        assert "wholly_new_thing" in ended.stdout.replace("\\", "")
    assert "Shown: the whole trace." in run(str(file)).stdout
    assert "steps-unclear" in run(str(file)).stdout


def test_names_cannot_break_out(tmp_path: Path) -> None:
    """A kernel's name writes no markup, no mention and no terminal command into a report."""
    builder = ExportBuilder()
    builder.launch("evil|name`@team<img src=x>\x1b[31m", 0, 10, 30)
    file = builder.write(tmp_path / "export.sqlite")
    markdown = run(str(file), "--format", "markdown").stdout
    assert "<img" not in markdown
    assert "@team" not in markdown
    for form in ("text", "markdown"):
        assert "\x1b" not in run(str(file), "--format", form).stdout


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\uff1d"])
def test_a_name_is_no_formula(first: str) -> None:
    """A spreadsheet that opens the CSV calculates nothing, beside counters or without; numbers stay numbers."""
    builder = ExportBuilder()
    builder.launch(f"{first}HYPERLINK('//a','x')\x1b[31m", 0, 10, 30)
    found = select(builder.read())
    joined = Join(found, NcuReport("", ()), tuple(_timed_rows(found)), 1.0)
    for text in (render("kernels", "csv", found), render("joined", "csv", joined)):
        (line,) = csv.DictReader(io.StringIO(text))
        assert line["name"].startswith(f"'{first}HYPERLINK")
        assert line["kernel"][0] not in "=+-@\uff1d"
        assert "\x1b" not in text


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--step", "10"], 2, "the trace has no step 10: it has steps 258 to 386"),
        (["--step", "386"], 2, "step 386 (idle) ran no kernel"),
        (
            ["--step", "260", "--layer", "32"],
            2,
            "no kernel of step 260 (decode) is in layer 32: there are layers 0 to 31",
        ),
        (["--format", "pdf"], 2, "'pdf' is not one of"),
    ],
)
def test_what_is_not_there(words: list[str], status: int, message: str) -> None:
    """A step or layer that the trace does not have is the user's error, with what there is."""
    ended = run(str(CAPTURE), *words)
    assert ended.exit_code == status
    assert message in ended.stderr
    assert not ended.stdout


def test_a_trace_without_layers() -> None:
    """Where nothing repeats there are no layers to ask for."""
    builder = ExportBuilder()
    builder.launch("gemm", 0, 10, 30)
    with pytest.raises(UsageError, match="no kernel of the whole trace is in layer 0: its sequence does not repeat"):
        select(builder.read(), None, 0)


def test_refused_files_have_their_status(tmp_path: Path) -> None:
    """An unreadable file ends with 2, a report that nothing can open with 22, and nothing is printed on stdout."""
    foreign, report = tmp_path / "foreign", tmp_path / "run.nsys-rep"
    foreign.write_text("hello")
    report.write_bytes(b"NVIDIA Tegra Profiler Report 1.")
    for file, status in ((foreign, 2), (report, 22)):
        ended = CliRunner(env={"PATH": "/dev/null"}).invoke(main, ["kernels", str(file)])
        assert (ended.exit_code, ended.stdout) == (status, "")
        assert str(file) in ended.stderr


def test_scrub_is_an_option(tmp_path: Path) -> None:
    """--scrub writes the copy, which reads like the original, and prints no table."""
    target = tmp_path / "copy.sqlite.gz"
    ended = run(str(CAPTURE), "--scrub", str(target))
    assert (ended.exit_code, ended.stdout) == (0, "")
    assert run(str(target), "--format", "json").stdout == run(str(CAPTURE), "--format", "json").stdout
