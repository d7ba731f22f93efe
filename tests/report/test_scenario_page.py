"""The pages on scenarios: the reference is current and whole, and the first scenario can be written as it says."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfgate.cli.main import main
from perfgate.report.scenario_page import CPU_TINY, example, explained, render_scenario_page, rows, tour
from perfgate.scenario.declaration import loads
from perfgate.testing import FakeCollector, FakeSpec

ROOT = Path(__file__).parents[2]


def test_the_committed_page_is_current() -> None:
    """It is written from the models; ``make docs`` writes it anew."""
    assert (ROOT / "docs" / "scenario.md").read_text() == render_scenario_page()


def test_every_key_is_explained() -> None:
    """A key has a meaning and an example."""
    found = dict(rows())

    assert len(found) > 70
    assert [key for key, field in found.items() if not field.get("description") or example(key) is None] == []


def test_the_scenario_with_every_key_is_one() -> None:
    """It loads as it is shown."""
    assert loads(tour(), ROOT / "scenarios" / "tour.yaml").scenario.name == "every-key"


def test_cpu_tiny_is_explained_key_by_key() -> None:
    """Whatever the first scenario sets has its reason, and no reason outlives its key."""
    assert [key for key, _ in explained()] == list(CPU_TINY)


def test_the_first_scenario_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_orphans: None) -> None:  # noqa: ARG001
    """Every block of the page is carried out in order, a fake in the engine's place, and prints what is shown."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGINE", "/bin/true")
    page = (ROOT / "docs" / "first-scenario.md").read_text()
    ended = []
    said = ""
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        if language == "yaml":
            Path("scenarios/mine.yaml").write_text(block)
        elif language == "text":
            assert block in said
        elif block.startswith("perfgate "):
            words = shlex.split(os.path.expandvars(block))[1:]
            result = CliRunner().invoke(main, words, obj=FakeCollector(FakeSpec(restart_sd=0.01)))
            ended.append(result.exit_code)
            said = result.output
        else:
            subprocess.run([str(shutil.which("sh")), "-euc", block], check=True)

    assert ended == [2, 0, 0]
