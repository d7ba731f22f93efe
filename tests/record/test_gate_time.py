"""Where the wall time of a run went, as ``benchmarks/gate_time.py`` reads it."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fake_collector import FakeCollector, FakeSpec
from gate_time import PAIRS, REST, WARM_UP, of_run, of_trial, of_wall, table
from hand_made import BOTH, failed, iteration, scenario_file, trial

from perfgate import gate
from perfgate.metrics.trial import SETTLED, Startup, Trial

pytestmark = pytest.mark.usefixtures("no_orphans")

S = 10**9


def test_phases_add_up_to_the_trial() -> None:
    """Imports of a parked worker passed beside the trial before, and are no part of its own."""
    iterations = tuple(iteration(begin_ns=n * S, elapsed_ns=S) for n in range(10, 14))
    start = Startup(import_ns=8 * S, engine_ns=5 * S, ready_ns=14 * S)
    taken = trial(3, 0, "base", iterations=iterations, startup=start, duration_ns=30 * S, figures={SETTLED: 2 * S})
    spent = {
        "import": 8.0, "engine": 5.0, "spawn": 1.0, "warm-up": 2.0, "settling": 2.0, "measuring": 4.0, "waiting": 8.0,
    }  # fmt: skip
    assert of_trial(taken, 2) == spent
    parked = taken.model_copy(update={"startup": start.model_copy(update={"parked_ns": 6 * S})})
    assert of_trial(parked, 2) == spent | {"import": 0.0, "spawn": 0.0, "waiting": 17.0}
    assert of_trial(failed(4, 1, "head"), 2) == {"other": 1.0}


BEGUN = "2026-01-01T00:00:00+00:00"


def taken_at(index: int, second: int, *gpus: str) -> tuple[Trial, int]:
    """A trial of thirty seconds that begins then, on these GPUs, and the iterations of its warm-up."""
    iterations = tuple(iteration(begin_ns=n * S, elapsed_ns=S) for n in range(10, 14))
    start = Startup(import_ns=8 * S, engine_ns=5 * S, ready_ns=14 * S)
    at = (datetime.fromisoformat(BEGUN) + timedelta(seconds=second)).isoformat(timespec="seconds")
    own: dict[str, Any] = {"iterations": iterations, "startup": start, "duration_ns": 30 * S}
    return trial(index, index // 2, "base", gpus=gpus, t0_utc=at, **own), 2


def test_cells_of_other_sizes_on_one_station() -> None:
    """One GPU and then two that include it are one station, whose trials came one after the other."""
    taken = [taken_at(0, 0, "a"), taken_at(1, 30, "a"), taken_at(2, 60, "a", "b"), taken_at(3, 90, "a", "b")]
    spent = of_wall(taken, datetime.fromisoformat(BEGUN))
    assert sum(seconds for (_, column), seconds in spent.items() if column == PAIRS) == 120
    assert spent["between", REST] == spent["neighbours", REST] == 0


def test_the_check_of_neighbours_is_named() -> None:
    """On two stations it comes before the first trial; later gaps are between trials."""
    taken = [taken_at(0, 90, "a"), taken_at(1, 90, "b"), taken_at(2, 125, "a"), taken_at(3, 125, "b")]
    spent = of_wall(taken, datetime.fromisoformat(BEGUN))
    assert sum(seconds for (_, column), seconds in spent.items() if column == PAIRS) == 60
    assert (spent["neighbours", REST], spent["between", REST]) == (90, 5)
    assert "| neighbours |  |  | 90.0 |" in table("a run", spent)


def test_of_a_run(tmp_path: Path) -> None:
    """Every second of a run is in one row; its four pairs and two warm-up trials are told apart."""
    collector = FakeCollector(FakeSpec(restart_sd=0.0003))
    finished = gate.run([scenario_file(tmp_path)], BOTH, runs=tmp_path / "runs", seed=1, collector=collector)
    spent = of_run(finished.folder)
    sums = {column: sum(s for (_, of), s in spent.items() if of == column) for column in (WARM_UP, PAIRS)}
    assert sums[WARM_UP] > 0
    assert sums[PAIRS] == pytest.approx(4 * sums[WARM_UP], rel=0.2)
    assert spent["judging", REST] > 0
    assert table("a run", spent).splitlines()[-1].startswith("| all | ")
