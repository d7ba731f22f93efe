"""Where the wall time of a run went, as ``benchmarks/gate_time.py`` reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_collector import FakeCollector, FakeSpec
from gate_time import PAIRS, REST, WARM_UP, of_run, of_trial, table
from hand_made import BOTH, failed, iteration, scenario_file, trial

from perfgate import gate
from perfgate.metrics.trial import SETTLED, Startup

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
