"""``research/cold_fills.py``: the variance between cold fills, from trials in visits with caches of their own."""

from __future__ import annotations

import importlib
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_collector import FakeCollector, FakeSpec
from hand_made import BASE, scenario_file

from perfgate.capture.job import Job
from perfgate.errors import InterruptedRunError, NotMeasuredError
from perfgate.metrics.trial import Probes, Trial
from perfgate.record.manifest import read_manifest
from perfgate.record.run_record import read_records

ROOT = Path(__file__).parents[2]
fills: Any = importlib.import_module("cold_fills")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_orphans")]


class Compiled(FakeCollector):
    """A fake whose step depends on the visit, as if each fill of the caches had compiled another program.

    Args:
        steps_s: Step of each visit.
        jumps: Step over that, of each trial of a visit.
    """

    def __init__(self, steps_s: list[float], jumps: tuple[float, float, float] = (1, 1, 1)) -> None:
        super().__init__(FakeSpec())
        self._steps_s, self._jumps = steps_s, jumps

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """A trial of the visit's program."""
        step_s = self._steps_s[job.visit] * self._jumps[job.index % 3]
        self.spec = FakeSpec(step_s=step_s, restart_sd=0.0002, iteration_sd=0.0001)
        return super().collect(job, progress)


def simulated(between: float, within: float, blocks: int, each: int, restarts: int, seed: int) -> list[list[Any]]:
    """Logs of step times: blocks far apart, fills and restarts with known standard deviations."""
    rng = np.random.default_rng(seed)
    return [
        [list(rng.normal(10 * block + effect, within, restarts)) for effect in rng.normal(0, between, each)]
        for block in range(blocks)
    ]


def test_every_visit_is_a_fill_with_caches_of_its_own(tmp_path: Path) -> None:
    """Two restarts a fill after a warm-up trial; a second call adds fills; the sd between them is found."""
    scenario = scenario_file(tmp_path)
    collector = Compiled([5.0e-3, 5.1e-3, 5.0e-3, 5.1e-3])
    for _ in range(2):
        fills.take_fills(tmp_path / "runs" / "gpu-0", scenario, BASE, (2, 2), math.inf, collector)

    (record,) = read_records(tmp_path / "runs" / "gpu-0", read_manifest(tmp_path / "runs" / "gpu-0"))
    assert [(trial.visit, trial.pair is None) for trial in record.trials] == [
        (visit, warm_up) for visit in range(4) for warm_up in (True, False, False)
    ]
    *trials, cell = fills.summarised(tmp_path / "runs")
    assert len(trials) == 12
    found = cell["components"]
    assert (found["blocks"], found["fills"], found["restarts"]) == (1, 4, 8)
    assert found["between"]["sd_percent"] == pytest.approx(100 * math.log(5.1 / 5.0) / math.sqrt(3), rel=0.05)
    assert found["within"]["sd_percent"] < 0.1


def test_no_fill_is_begun_beyond_the_budget(tmp_path: Path) -> None:
    """Out of time the folder keeps what was measured, and says so."""
    scenario = scenario_file(tmp_path)
    folder = tmp_path / "runs" / "gpu-0"
    fills.take_fills(folder, scenario, BASE, (1, 2), math.inf, Compiled([5e-3]))

    with pytest.raises(InterruptedRunError):
        fills.take_fills(folder, scenario, BASE, (1, 2), time.monotonic(), Compiled([5e-3, 5e-3]))
    assert sum(line.get("warm_up") is False for line in fills.summarised(tmp_path / "runs")) == 2


def test_a_card_that_jumps_is_two_blocks(tmp_path: Path) -> None:
    """Restarts on different levels are compared with those of their level alone."""
    collector = Compiled([5.0e-3, 5.0e-3, 5.0e-3, 5.0e-3], jumps=(1.0, 0.96, 1.0))
    fills.take_fills(tmp_path / "runs" / "gpu-0", scenario_file(tmp_path), BASE, (4, 4), math.inf, collector)
    *trials, cell = fills.summarised(tmp_path / "runs")

    assert {trial["level"] for trial in trials} == {"slow", "fast"}
    assert cell["components"]["blocks"] == 2
    assert cell["components"]["between"]["sd_percent"] < 0.1


class Probed(Compiled):
    """One whose GPU is slow in the first fills and fast afterwards, by its probe as by its steps."""

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """A trial whose iterations have readings of the state that the GPU was in."""
        slow = job.visit < 2
        trial = super().collect(job, progress)
        probes = Probes((215_000,), (215_000,)) if slow else Probes((179_000,), (179_000,))
        iterations = tuple(one.model_copy(update={"probe_ns": probes}) for one in trial.iterations)
        return trial.model_copy(update={"iterations": iterations})


def test_a_state_that_changes_between_fills_is_no_difference_of_fills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the probe tells states it is believed: two fills slow and two fast are two blocks."""
    monkeypatch.setattr(fills, "tells_states", lambda _: True)
    collector = Probed([5.16e-3, 5.16e-3, 5.0e-3, 5.0e-3])
    fills.take_fills(tmp_path / "runs" / "gpu-0", scenario_file(tmp_path), BASE, (4, 2), math.inf, collector)
    *trials, cell = fills.summarised(tmp_path / "runs")

    assert {trial["level"] for trial in trials} == {"slow", "fast"}
    assert cell["components"]["blocks"] == 2
    assert cell["components"]["between"]["sd_percent"] < 0.1


def test_a_start_that_fails_is_not_tried_in_every_fill(tmp_path: Path) -> None:
    """What ends one fill ends them all, with its reason."""
    collector = FakeCollector(FakeSpec(failures=dict.fromkeys(range(12), "engine-failed")))

    with pytest.raises(NotMeasuredError, match="fake failure of trial 0"):
        fills.take_fills(tmp_path / "runs" / "gpu-0", scenario_file(tmp_path), BASE, (4, 2), math.inf, collector)
    (record,) = read_records(tmp_path / "runs" / "gpu-0", read_manifest(tmp_path / "runs" / "gpu-0"))
    assert {trial.visit for trial in record.trials} == {0}


def test_balanced_components_are_those_of_analysis_of_variance() -> None:
    """Two blocks of two fills of two restarts, by hand: mean squares 8 and 0.5."""
    found = fills.components([[[0.0, 1.0], [3.0, 4.0]], [[20.0, 21.0], [22.0, 23.0]]])

    among = 2 * ((1.5**2 + 1.5**2) + (1.0 + 1.0)) / 2
    assert found.between.sd_percent == pytest.approx(100 * math.sqrt((among - 0.5) / 2))
    assert found.within.sd_percent == pytest.approx(100 * math.sqrt(0.5), abs=1e-4)


def test_fills_without_a_fellow_count_for_nothing() -> None:
    """A block of one fill says nothing between fills; one restart a fill says nothing within."""
    assert fills.components([[[1.0, 2.0]]]) is None
    assert fills.components([[[1.0], [2.0]]]) is None
    assert fills.components([[[1.0, 1.1], [1.2]], [[5.0, 9.0]]]).fills == 2


@pytest.mark.parametrize("between", [0.0, 0.5, 2.0])
def test_intervals_hold_the_truth_as_often_as_they_say(between: float) -> None:
    """In 600 simulated campaigns of four cards the interval between fills misses at most 7 % of the time."""
    missed = 0
    for seed in range(600):
        found = fills.components(simulated(between / 100, 0.01, 4, 2, 2, seed))
        missed += not found.between.low_percent <= between <= found.between.high_percent

    assert missed / 600 <= 0.07


def test_fills_are_spread_over_gpus() -> None:
    """Those named first take one more."""
    assert fills.spread(10, ["0", "1", "2", "3"]) == {"0": 3, "1": 3, "2": 2, "3": 2}


def test_a_build_that_is_not_there_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The process of a GPU measures nothing without an engine, and the program ends with 1."""
    words = ["--base", "python=/not/there", "--gpus", "cpu", "--fills", "1", "--into", str(tmp_path / "runs")]

    assert fills.main([str(scenario_file(tmp_path)), *words]) == 1
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert lines[0]["stopped"] == "subject-not-found"
