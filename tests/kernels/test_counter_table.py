"""``perfgate counters``: the recording as text, Markdown and JSON, and its ways to refuse."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from perfgate.cli.main import main
from perfgate.counters.launch_table import COUNTERS
from perfgate.counters.ncu_csv import parse_ncu
from perfgate.report.formats import render

FIXTURES = Path(__file__).parents[1] / "fixtures"
CAPTURE = FIXTURES / "h200-llama-8b-decode.ncu.csv.gz"


def run(*words: str) -> Result:
    """The command with these words."""
    return CliRunner().invoke(main, ["counters", *words])


def test_the_recording_as_text(golden: Callable[[str, str], None]) -> None:
    """Kernels with their counters, the roofline, and each counter in words."""
    text = gzip.decompress(CAPTURE.read_bytes()).decode()
    golden("counters-decode.txt", render("counters", "text", parse_ncu(text, "decode.csv")))


def test_a_sample_as_markdown(golden: Callable[[str, str], None]) -> None:
    """One kernel of another GPU, with stalls and clocks."""
    text = (FIXTURES / "ncu-2022.3-base.csv").read_text()
    golden("counters-sample.md", render("counters", "markdown", parse_ncu(text, "sample.csv")))


def test_json_holds_every_launch() -> None:
    """Every launch with its counters in base units, its role and its roofline; every counter shown is explained."""
    ended = run(str(CAPTURE), "--format", "json")
    assert ended.exit_code == 0
    content = json.loads(ended.stdout)
    assert [kernel["number"] for kernel in content["kernels"]] == list(range(60))
    qkv = content["kernels"][11]
    assert qkv["role"] == "gemm"
    assert qkv["counters"]["dram_bytes"] == 52_708_864
    assert qkv["roofline"]["bound"] == "memory"
    assert qkv["ranges"] == ["step_10", "perfgate.step.10"]
    used = {name for kernel in content["kernels"] for name in kernel["counters"]}
    assert used == content["counters"].keys() < COUNTERS.keys()
    assert content["rules"]["latency"]


def test_names_from_a_file_are_harmless() -> None:
    """A kernel's name that steers a terminal or marks up a page does neither."""
    text = (FIXTURES / "h200-ncu-raw.txt").read_text().replace("sm80_xmma_gemm", "evil\x1b[31m<b>|@you")
    counted = parse_ncu(text, "here")
    assert "\x1b" not in render("counters", "text", counted)
    shown = render("counters", "markdown", counted)
    assert "\x1b" not in shown
    assert "<b>" not in shown
    assert "@you" not in shown


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("", 2, "counters-unreadable"),
        ("nothing of the kind", 2, "counters-unreadable"),
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", 22, "counters-no-permission"),
        ("==WARNING== No kernels were profiled.", 22, "counters-missing"),
    ],
)
def test_refusals_have_a_code_and_a_status(tmp_path: Path, text: str, status: int, said: str) -> None:
    """What is no raw page ends with 2, what ncu could not measure with 22; the reason's code leads to its page."""
    file = tmp_path / "page.csv"
    file.write_text(text)
    ended = run(str(file))
    assert ended.exit_code == status
    assert said in ended.stderr
    assert not ended.stdout
