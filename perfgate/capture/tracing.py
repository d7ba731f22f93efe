"""Traced trials: a fresh engine whose decode steps a profiler records, kernel by kernel.

On a GPU nsys stands around the worker, and its window opens after warm-up for a few iterations; without nsys or without
a GPU PyTorch's own profiler records, on the CPU operators in the place of kernels. Either way the trial keeps what its
pure decode steps ran (:class:`perfgate.trace.decode_step.DecodeSteps`); the trace itself stays in the trial's folder.
Under nsys the worker is held steady (:mod:`perfgate.capture.pinning`), and the trial says how far.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from perfgate.capture.commands import nsys_profile, nsys_settings
from perfgate.capture.engine import LOG, Limit, Worker, engine_environment, find_subject, gpus_of
from perfgate.capture.job import Job
from perfgate.capture.pinning import Steady, steady_worker
from perfgate.capture.timeline import InvalidTrialError, read_iteration
from perfgate.capture.timing import in_words, run_iteration, start_engine
from perfgate.errors import NotMeasuredError, RecordError
from perfgate.metrics.trial import Artifact, Failure, Iteration, Startup, Trial
from perfgate.scenario.expected_kernels import Expectation
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import Subject
from perfgate.trace.decode_step import DecodeSteps, pool, summarise
from perfgate.trace.trace_file import read_trace

REPORT_TIMEOUT_S: Final = 180.0
"""How long nsys may take to write its report once the engine has stopped."""


class TracedCollector:
    """Takes traced trials.

    Args:
        gpu: Whether engines run on a GPU; on the CPU there is no kernel for nsys to see.
    """

    kind = "traced"

    def __init__(self, *, gpu: bool) -> None:
        self._gpu = gpu

    def probe(self, cell: Cell, subject: Subject) -> Failure | None:  # noqa: ARG002 (the protocol's shape)
        """See :func:`perfgate.capture.engine.find_subject`."""
        return find_subject(subject)

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Take one trial, see :class:`perfgate.capture.job.Collector`."""
        begin_ns, t0_utc = time.monotonic_ns(), datetime.now(UTC).isoformat(timespec="seconds")
        failure = self.probe(job.cell, job.subject)
        taken = _Taken()
        if failure is None:
            nsys = shutil.which("nsys") if self._gpu else None
            profiler = _Nsys(job.folder, nsys, _steady(job)) if nsys else _Torch(job.folder)
            try:
                _trace(job, profiler, taken, progress)
                progress("reading the trace")
                files = profiler.find()
                taken.traces = tuple(Artifact.of(file, job.run_folder) for file in files)
                steps = pool([summarise(read_trace(file, _expected(job.cell).rules)) for file in files])
                taken.decode = steps.model_copy(update={"held": profiler.held})
            except InvalidTrialError as error:
                failure = Failure(code=error.code, text=in_words(error.code, error.text, job.folder / LOG))
            except (RecordError, NotMeasuredError) as error:
                code = error.code or "trace-unreadable"
                failure = Failure(code=code, text=in_words(code, error.finding, job.folder / LOG))
        return job.trial(
            kind="traced",
            t0_utc=t0_utc,
            duration_ns=time.monotonic_ns() - begin_ns,
            failure=failure,
            versions=taken.versions,
            startup=taken.startup,
            iterations=tuple(taken.iterations),
            decode=taken.decode,
            traces=taken.traces,
        )


@dataclass
class _Taken:
    """What a trial has yielded so far; the one thing here that grows."""

    versions: dict[str, str] = field(default_factory=dict)
    startup: Startup | None = None
    iterations: list[Iteration] = field(default_factory=list)
    decode: DecodeSteps | None = None
    traces: tuple[Artifact, ...] = ()


def _trace(job: Job, profiler: _Nsys | _Torch, taken: _Taken, progress: Callable[[str], None]) -> None:
    """Start the engine, warm it up, and run a few iterations in the profiler's window."""
    cell = job.cell
    warmup, traced = max(cell.measure.warmup_iterations, 1), _expected(cell).traced.iterations
    with Worker(job, profiler.wrapper, profiler.environment) as worker:
        progress("starting the engine")
        started = start_engine(worker, job, {"profiler_config": profiler.config})
        taken.versions, taken.startup = started.versions, started.startup
        for number in range(warmup + traced):
            progress(f"iteration {number + 1} of {warmup + traced}, {profiler.name}")
            if number == warmup:
                _profile(worker, cell, on=True, ranges=profiler.ranges)
            answer, asked = run_iteration(worker, cell, started.vocabulary, number)
            iteration = read_iteration(answer, cell.workload, asked)
            if number >= warmup:
                taken.iterations.append(iteration)
        _profile(worker, cell, on=False, ranges=profiler.ranges)
        progress("stopping the engine")
        worker.stop(REPORT_TIMEOUT_S)


def _expected(cell: Cell) -> Expectation:
    """How the cell is traced; as by default where its scenario does not say."""
    return cell.kernels or Expectation()


def _profile(worker: Worker, cell: Cell, *, on: bool, ranges: str) -> None:
    limit = Limit(time.monotonic() + cell.measure.start_timeout, "iteration-timeout", "engine-died")
    worker.request("profile", limit, on=on, ranges=ranges, window=True)


def _steady(job: Job) -> Steady:
    return steady_worker(engine_environment(job), gpus_of({**job.cell.engine.args, **job.subject.args}))


class _Nsys:
    """nsys around a worker held steady; its window is that of the CUDA profiler, which vLLM opens."""

    name, ranges = "nsys", "nvtx"

    def __init__(self, folder: Path, nsys: str, steady: Steady) -> None:
        self._folder = folder.resolve()
        window = ("--capture-range=cudaProfilerApi", "--capture-range-end=stop")
        self.wrapper = [*nsys_profile(nsys, self._folder / "trace", *window), *steady.wrapper]
        self.environment = {**nsys_settings(), **steady.environment}
        self.held = steady.held
        self.config: dict[str, Any] = {"profiler": "cuda"}

    def find(self) -> list[Path]:
        """The report, which holds every rank.

        Raises:
            InvalidTrialError: ``trace-missing``: nsys left none, whatever it returned.
        """
        report = self._folder / "trace.nsys-rep"
        if not report.is_file():
            left = ", ".join(file.name for file in sorted(self._folder.glob("trace*"))) or "nothing"
            raise InvalidTrialError("trace-missing", f"nsys left no report, but {left}")
        return [report]


class _Torch:
    """PyTorch's profiler inside the engine; vLLM writes its trace when the window closes."""

    name, ranges = "torch profiler", "record_function"

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve() / "torch"
        self.wrapper: list[str] = []
        self.environment: dict[str, str] = {}
        self.held: tuple[str, ...] = ()
        self.config: dict[str, Any] = {
            "profiler": "torch",
            "torch_profiler_dir": str(self._folder),
            "torch_profiler_with_stack": False,
        }

    def find(self) -> list[Path]:
        """The trace of each rank.

        Raises:
            InvalidTrialError: ``trace-missing``: there is none.
        """
        found = sorted(self._folder.glob("*.pt.trace.json*"))
        if not found:
            raise InvalidTrialError("trace-missing", "PyTorch's profiler left no trace")
        return found
