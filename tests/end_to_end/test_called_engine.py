"""What a real engine's host calls: a loop without a call is found in one trial of each build, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_scenario import write_engine_scenario

from perfgate import gate
from perfgate.scenario.subject import Subject

PLANT = Path(__file__).parents[2] / "drills" / "host_loop"
LOOPS = 2800
"""About 50 us."""
LINES_A_ROUND = (2, 3)
"""Of the loop; from Python 3.12 on the jump back is counted as well."""


SCHEDULE = "scheduler.schedule (was vllm.v1.core.sched.scheduler.Scheduler.schedule)"
LOOK_UP = "kv_cache_manager.get_computed_blocks (was vllm.v1.core.kv_cache_manager.KVCacheManager.get_computed_blocks)"
HEADS = {
    "everywhere": ({}, [("a step", SCHEDULE, 1), ("in a prefill step", SCHEDULE, 1)]),
    "admitting": ({"PERFGATE_PLANT_LOOP_IN": "prefill"}, [("in a prefill step", LOOK_UP, 4)]),
}
"""Where the plant counts down, the changes by which it is named, and how often it does so in such a step."""


@pytest.mark.slow
@pytest.mark.engine(starts=3)
def test_a_loop_in_the_scheduler_is_named(tmp_path: Path, engine_cache: Path, engine_python: str) -> None:
    """The plant makes no call and is in a function that was there; its lines alone are what the builds differ in.

    One function runs in each step; the other once for each of four requests, while they are prefilled.
    """
    scenario = write_engine_scenario(tmp_path, engine_cache)
    subjects = {
        name: Subject(python=engine_python, path=(str(PLANT),), env={"PERFGATE_PLANT_LOOPS": str(LOOPS), **where})
        for name, (where, _) in HEADS.items()
    }

    builds = {"base": Subject(python=engine_python), **subjects}
    cells = gate.run([scenario], builds, runs=tmp_path / "runs", exact_only=True).outcome.cells

    assert {cell.head for cell in cells} == {*HEADS}
    for cell in cells:
        assert cell.verdict == "regressed", [note.text for note in (*cell.reasons, *cell.cautions)]
        (reason,) = cell.reasons
        assert reason.code == "work-added"
        changed = [line for line in reason.text.splitlines() if line[1] == " " and "Histogram.observe" not in line]
        named = HEADS[cell.head][1]
        assert len(changed) == len(named), reason.text
        for line, (step, function, times) in zip(changed, named, strict=True):
            lines, said, where = line.partition(f"{function}: ")[2].partition(" lines ")
            assert (said, where.startswith(f"{step} (")) == (" lines ", True), line
            a_round = float(lines) / LOOPS / times
            assert any(a_round == pytest.approx(usual, abs=0.01) for usual in LINES_A_ROUND), line
