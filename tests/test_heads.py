"""Several heads beside one base: what is measured, judged, gone on with and refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from fake_collector import FakeCollector, FakeSpec
from hand_made import scenario_file

from perfgate import gate
from perfgate.capture.job import Job
from perfgate.errors import ExitStatus
from perfgate.judge.outcome import CellOutcome
from perfgate.metrics.trial import Failure, Trial
from perfgate.record.manifest import check_sequence
from perfgate.record.run_record import Record, read_records, read_run
from perfgate.scenario.subject import Subject
from perfgate.verification import verify_path

pytestmark = pytest.mark.usefixtures("no_orphans")

SAME = FakeSpec(restart_sd=0.0003)
SLOWER = FakeSpec(head_ratio={"step": 1.01}, restart_sd=0.0003)
NOISY = FakeSpec(restart_sd=0.02)
HEADS = {
    "base": Subject(python="/envs/base/bin/python"),
    "slow": Subject(python="/envs/slow/bin/python"),
    "same": Subject(python="/envs/same/bin/python"),
}


class OfHeads(FakeCollector):
    """A fake with a spec for each head by its name, which notes its jobs.

    Args:
        specs: What heads are like; those not named are as the base.
        before: Called with every job; what it raises the collector raises, what it returns is the trial's failure.
    """

    def __init__(
        self, specs: Mapping[str, FakeSpec] | None = None, before: Callable[[Job], Failure | None] = lambda _: None
    ) -> None:
        super().__init__(SAME)
        self.specs = {"slow": SLOWER} if specs is None else specs
        self.before = before
        self.jobs: list[Job] = []

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """A fake trial of that head, or a failed one."""
        failure = self.before(job)
        self.jobs.append(job)
        self.spec = self.specs.get(job.label, SAME)
        trial = super().collect(job, progress)
        return trial.model_copy(update={"failure": failure, "iterations": ()}) if failure else trial

    @property
    def places(self) -> list[tuple[int | None, str]]:
        """Round and build of every trial, in the order they were taken."""
        return [(job.pair, job.label) for job in self.jobs]


def measure(folder: Path, collector: OfHeads, builds: Mapping[str, Subject] = HEADS, more: str = "") -> gate.Finished:
    """A run of the tiny scenario below ``folder``."""
    return gate.run([scenario_file(folder, more=more)], builds, runs=folder / "runs", seed=1, collector=collector)


def by_head(finished: gate.Finished) -> dict[str, CellOutcome]:
    """The outcome of each head, where there is one cell."""
    return {cell.head: cell for cell in finished.outcome.cells}


def record_in(folder: Path) -> Record:
    """The only record of a run."""
    (record,) = read_records(folder, read_run(folder))
    return record


def test_a_decided_head_leaves_the_rounds(tmp_path: Path) -> None:
    """A head that is as fast passes at four rounds; the slow one goes on with the base alone and is blocked at six."""
    collector = OfHeads()

    finished = measure(tmp_path, collector)

    assert finished.outcome.exit_status == ExitStatus.REGRESSED
    assert {head: (cell.verdict, cell.pairs) for head, cell in by_head(finished).items()} == {
        "slow": ("regressed", 6),
        "same": ("pass", 4),
    }
    rounds = Counter(pair for pair, _ in collector.places)
    assert rounds == {None: 3, 0: 3, 1: 3, 2: 3, 3: 3, 4: 2, 5: 2}
    assert {label for pair, label in collector.places if pair in (4, 5)} == {"base", "slow"}
    record = record_in(finished.folder)
    check_sequence([record])
    assert all(base.pair == head.pair for head in ("slow", "same") for base, head in record.of(head).pairs())
    assert [check.result for check in verify_path(finished.folder)].count("FAILED") == 0
