"""What a real engine's host calls: a loop without a call is found in one trial of each build, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_scenario import write_engine_scenario

from perfgate import gate
from perfgate.metrics.trial import Side
from perfgate.scenario.subject import Subject

PLANT = Path(__file__).parents[2] / "drills" / "host_loop"
LOOPS = 2800
"""About 50 us."""


@pytest.mark.engine(starts=2)
def test_a_loop_in_the_scheduler_is_named(tmp_path: Path, engine_cache: Path, engine_python: str) -> None:
    """The plant makes no call and is in a function that was there; its lines alone are what the sides differ in."""
    scenario = write_engine_scenario(tmp_path, engine_cache)
    subjects: dict[Side, Subject] = {
        "base": Subject(python=engine_python),
        "head": Subject(python=engine_python, path=(str(PLANT),), env={"PERFGATE_PLANT_LOOPS": str(LOOPS)}),
    }

    (cell,) = gate.run([scenario], subjects, runs=tmp_path / "runs", exact_only=True).outcome.cells

    assert cell.verdict == "regressed", [note.text for note in (*cell.reasons, *cell.cautions)]
    (reason,) = cell.reasons
    assert reason.code == "host-calls-added"
    changed = [line for line in reason.text.splitlines()[1:] if "Histogram.observe" not in line]
    assert len(changed) == 1, reason.text
    assert "scheduler.schedule (was vllm.v1.core.sched.scheduler.Scheduler.schedule): 560" in changed[0]
