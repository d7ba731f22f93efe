"""Stored baselines on a real engine: four visits recorded, then a slower build held against them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engine_scenario import write_engine_scenario
from test_end_to_end import PLANTS, perfgate

PLANT = PLANTS / "doubled_forward"
pytestmark = [pytest.mark.engine(starts=22), pytest.mark.slow]


def newest_run(folder: Path) -> Path:
    """The run folder made last."""
    return max((folder / "runs").iterdir(), key=lambda run: (run / "run.json").stat().st_mtime_ns)


def test_doubled_forward_against_four_visits(tmp_path: Path, engine_cache: Path, engine_python: str) -> None:
    """Visits of one build are promoted; a doubled forward is advice against the first and ends 10 against four."""
    # Few restarts a visit: starting engines is what takes time.
    write_engine_scenario(tmp_path, engine_cache, ", looks: [4], spend: {block: [0], pass: [0.8]}")
    words = ("run", "tiny.yaml", "--against", "baseline", "--base", f"python={engine_python}", "--format", "text")

    for visit in range(4):
        measured = perfgate(*words, cwd=tmp_path)
        assert measured.returncode == (21 if visit == 0 else 20), measured.stdout + measured.stderr
        reason = ("--reason", "the first") if visit == 0 else ()
        promoted = perfgate("baseline", "promote", str(newest_run(tmp_path)), *reason, cwd=tmp_path)
        assert promoted.returncode == 0, measured.stdout + promoted.stderr
        if visit == 0:
            assert_slower_than_a_visit(tmp_path, words)
    slower = perfgate(*words, "--head", f"path={PLANT}", cwd=tmp_path)

    assert slower.returncode == 10, slower.stdout + slower.stderr
    assert "against a baseline of 4 visits" in slower.stdout
    assert "REGRESSED: " in slower.stdout
    verdict = json.loads((newest_run(tmp_path) / "verdict.json").read_text())
    (itl,) = verdict["cells"][0]["gates"]
    assert (itl["verdict"], itl["pairs"]) == ("regressed", 4)
    again = perfgate("judge", str(newest_run(tmp_path)), "--format", "text", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (slower.returncode, slower.stdout)


def assert_slower_than_a_visit(folder: Path, words: tuple[str, ...]) -> None:
    """One visit is advice: a doubled forward held against it reads slower and ends 20."""
    slower = perfgate(*words, "--head", f"path={PLANT}", "--runs", "slower", cwd=folder)

    assert slower.returncode == 20, slower.stdout + slower.stderr
    assert "against a baseline of 1 visit" in slower.stdout
    (run,) = (folder / "slower").iterdir()
    (itl,) = json.loads((run / "verdict.json").read_text())["cells"][0]["gates"]
    assert (itl["metric"], itl["verdict"], itl["pairs"]) == ("itl_median", "advisory", 4)
    assert itl["change"] > 0.2
