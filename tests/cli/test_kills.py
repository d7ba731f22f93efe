"""Kills at random moments: a small version of ``benchmarks/kills.py``, whose full table is in docs/measurements.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

KILLS = Path(__file__).parents[2] / "benchmarks" / "kills.py"


@pytest.mark.slow
@pytest.mark.usefixtures("orphans_alone")
def test_no_kill_loses_a_finished_trial() -> None:
    """After eighteen seeded kills every record loads, nothing reported is lost, and every run ends in a verdict."""
    command = [
        sys.executable,
        str(KILLS),
        "--fake",
        "9",
        "--stub",
        "3",
        "--heads",
        "3",
        "--stations",
        "3",
        "--seed",
        "7",
    ]

    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "| all |  |  | 18 |" in ended.stdout
