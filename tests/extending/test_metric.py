"""A metric that somebody adds, from a gate in a scenario to a verdict: docs/extending.md says how."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fake_collector import FakeCollector, FakeSpec
from hand_made import BOTH, only, scenario_file

from perfgate import gate
from perfgate.capture.job import Job
from perfgate.metrics.catalogue import METRICS, Metric
from perfgate.metrics.trial import Trial
from perfgate.record.run_record import read_record

WORST_FIRST = Metric(
    "ttft_worst", "s", "lower", "the longest time to first token of a trial",
    lambda trial: max((ns for i in trial.iterations for ns in i.ttft_ns), default=0) / 1e9 or None,
    steps=lambda trial: max((ns for i in trial.iterations for ns in i.ttft_ns), default=0) or None,
)  # fmt: skip
"""A metric of data that every timed trial has."""
PINNED = Metric("pinned_memory", "B", "lower", "memory of the host that the engine pins",
                lambda trial: trial.figures.get("pinned_bytes"))  # fmt: skip
"""A metric of a figure that no trial has yet."""


class PinnedMemory(FakeCollector):
    """An instrument that measures one thing more."""

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """The head pins 5 % more."""
        pinned = 2**30 if job.side == "base" else round(1.05 * 2**30)
        return (
            super().collect(job, progress).model_copy(update={"figures": {"pinned_bytes": pinned + 4096 * job.index}})
        )


def finish(tmp_path: Path, metric: Metric, collector: FakeCollector) -> gate.Finished:
    """A whole run, gated on that metric."""
    scenario = scenario_file(tmp_path, gates=f"{{metric: {metric.name}, ignorable: 0.5%, must_catch: 2%}}")
    return gate.run([scenario], BOTH, runs=tmp_path / "runs", seed=1, collector=collector)


@pytest.mark.parametrize("change", [1.0, 1.03])
def test_a_metric_of_data_that_is_there_is_an_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: float
) -> None:
    """With its entry alone a scenario can gate on it, and its verdict follows what was measured."""
    monkeypatch.setitem(METRICS, WORST_FIRST.name, WORST_FIRST)
    finished = finish(tmp_path, WORST_FIRST, FakeCollector(FakeSpec(head_ratio={"ttft": change}, restart_sd=0.0003)))

    found = only(finished.outcome)
    assert (found.metric, found.unit) == ("ttft_worst", "s")
    assert found.verdict == ("pass" if change == 1.0 else "regressed")
    assert found.change == pytest.approx(change - 1, abs=0.004)


def test_a_metric_of_new_data_is_an_entry_and_who_measures_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an instrument puts among a trial's figures is kept in the record, gated on, and judged again from there."""
    monkeypatch.setitem(METRICS, PINNED.name, PINNED)
    finished = finish(tmp_path, PINNED, PinnedMemory())

    assert (finished.outcome.verdict, only(finished.outcome).verdict) == ("regressed", "regressed")
    assert only(finished.outcome).change == pytest.approx(0.05, rel=1e-3)
    assert gate.judge_folder(finished.folder) == finished.outcome
    frame = read_record(next((finished.folder / "records").iterdir())).frame()
    assert frame["pinned_memory"].dropna().min() >= 2**30


def test_a_metric_needs_its_entry_in_a_gate(tmp_path: Path) -> None:
    """Without the entry the name means nothing, and the error lists those that do."""
    with pytest.raises(Exception, match=r"expected one of ttft_median, .*"):
        finish(tmp_path, WORST_FIRST, FakeCollector())


def test_a_trial_without_figures_is_written_as_it_always_was(tmp_path: Path) -> None:
    """The key is only there where an instrument has put something."""
    finished = gate.run([scenario_file(tmp_path)], BOTH, runs=tmp_path / "runs", seed=1, collector=FakeCollector())
    assert '"figures"' not in next((finished.folder / "records").iterdir()).read_text()
