"""Visits whose engines compile what they do not find in their caches, on the fake collector."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from fake_collector import FakeCollector
from hand_made import cell, run

from perfgate.capture.job import Job
from perfgate.capture.session import Session
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Failure, Trial
from perfgate.record.run_record import Record
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import Subject


class Compiling(FakeCollector):
    """Each engine looks into its caches, and compiles what it does not find; ``spoil`` writes beside that."""

    def __init__(self, spoil: Callable[[Job], None] = lambda _: None, fails: Collection[int] = ()) -> None:
        super().__init__()
        self._fails = fails
        self.found: list[tuple[Side, int | None, str]] = []
        self._spoil = spoil

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Take one."""
        kernel = job.cache_folder / "vllm" / "kernel.so"
        there = kernel.read_text() if kernel.exists() else ""
        self.found.append((job.side, job.pair, there))
        if not there:
            kernel.parent.mkdir(parents=True)
            kernel.write_text(f"by {job.side} of {job.run_folder.name}")
        self._spoil(job)
        trial = super().collect(job, progress)
        failure = Failure(code="engine-failed", text="died") if job.index in self._fails else None
        return trial.model_copy(update={"failure": failure})

    def first(self, side: Side) -> str:
        """What the first trial of a side found."""
        return next(there for whose, _, there in self.found if whose == side)


def measure(
    folder: Path,
    collector: Compiling,
    base: Subject,
    head: Subject | None = None,
    measured: Cell | None = None,
    pairs: int = 2,
    gpus: str = "",
) -> tuple[Record, list[str]]:
    """One visit of a run of its own, and what was said in it."""
    folder.mkdir()
    said: list[str] = []
    subjects: dict[Side, Subject] = {"base": base, "head": head or base}
    manifest = run([measured or cell()], subjects=subjects)
    with Session(
        folder, manifest, collector, lambda step: said.append(step) if isinstance(step, str) else None, gpus=gpus
    ) as open_:
        return open_.measure(measured or cell(), pairs), said


def visit(folder: Path, base: Subject, head: Subject | None = None, measured: Cell | None = None) -> Compiling:
    """What the engines of one visit found."""
    collector = Compiling()
    measure(folder, collector, base, head, measured)
    return collector
