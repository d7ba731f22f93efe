"""Stored baselines on a real engine: four visits recorded, then a slower build held against them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CPU_TINY = ROOT / "scenarios" / "cpu-tiny.yaml"
PLANT = ROOT / "tests" / "plants" / "doubled_forward"
MEASURE = "measure: {warmup_iterations: 1, iterations: 4,"
TTFT = "  - {metric: ttft_median, ignorable: 10%, must_catch: 50%}\n"

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def perfgate(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run perfgate in a folder."""
    command = [sys.executable, "-m", "perfgate", *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False)


def newest_run(folder: Path) -> Path:
    """The run folder made last."""
    return max((folder / "runs").iterdir(), key=lambda run: (run / "run.json").stat().st_mtime_ns)


def test_doubled_forward_against_four_visits(tmp_path: Path, engine_python: str) -> None:
    """Visits of one build are promoted, the first three verdicts are advice; a doubled forward then ends 10."""
    shutil.copytree(CPU_TINY.parent / "models", tmp_path / "models")
    text = CPU_TINY.read_text()
    assert MEASURE in text
    assert TTFT in text
    # Few restarts a visit, and more iterations in each: starting engines is what takes time, and a neighbour that
    # comes and goes moves the median of many iterations less.
    four_trials = "measure: {warmup_iterations: 1, iterations: 8, looks: [4], spend: {block: [0], pass: [0.8]},"
    (tmp_path / "cpu-tiny.yaml").write_text(text.replace(MEASURE, four_trials).replace(TTFT, ""))
    (tmp_path / "perfgate.toml").touch()
    words = ("run", "cpu-tiny.yaml", "--against", "baseline", "--base", f"python={engine_python}", "--format", "text")

    for visit in range(4):
        measured = perfgate(tmp_path, *words)
        assert measured.returncode == (21 if visit == 0 else 20), measured.stdout + measured.stderr
        reason = ("--reason", "the first") if visit == 0 else ()
        promoted = perfgate(tmp_path, "baseline", "promote", str(newest_run(tmp_path)), *reason)
        assert promoted.returncode == 0, measured.stdout + promoted.stderr
    slower = perfgate(tmp_path, *words, "--head", f"path={PLANT}")

    assert slower.returncode == 10, slower.stdout + slower.stderr
    assert "against a baseline of 4 visits" in slower.stdout
    assert "REGRESSED: " in slower.stdout
    verdict = json.loads((newest_run(tmp_path) / "verdict.json").read_text())
    itl = next(gate for gate in verdict["cells"][0]["gates"] if gate["metric"] == "itl_median")
    assert (itl["verdict"], itl["pairs"]) == ("regressed", 4)
    again = perfgate(tmp_path, "judge", str(newest_run(tmp_path)), "--format", "text")
    assert (again.returncode, again.stdout) == (slower.returncode, slower.stdout)
