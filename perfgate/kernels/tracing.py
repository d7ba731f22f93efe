"""Traced trials: a fresh engine whose decode steps a profiler records, kernel by kernel.

On a GPU nsys is around the worker, and its window opens after warm-up for a few iterations; without nsys or without
a GPU PyTorch's own profiler records, on the CPU operators in the place of kernels. Either way the trial keeps what its
pure decode steps ran (:class:`perfgate.trace.decode_step.DecodeSteps`); the trace itself stays in the trial's folder.
Under nsys the worker is held steady (:func:`steady_worker`), and the trial says how far.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from perfgate.capture.driver_protocol import Engine, Launch
from perfgate.capture.engine import engine_environment, gpus_of
from perfgate.capture.instruments import Instrument, Say
from perfgate.capture.job import Job
from perfgate.capture.pinning import CORES_PER_GPU
from perfgate.capture.timeline import InvalidTrialError
from perfgate.metrics.trial import Artifact
from perfgate.scenario.expected_kernels import Expectation
from perfgate.trace.decode_step import STEADY, DecodeSteps
from perfgate.trace.profiler_commands import nsys_profile, nsys_settings
from perfgate.trace.rank_steps import RankSteps, summarise_ranks
from perfgate.trace.trace_file import read_ranks

HASHES, ADDRESSES = STEADY
SEED: Final = "PYTHONHASHSEED"
TRY_TIMEOUT_S: Final = 10.0


class Tracer(Instrument):
    """A profiler that leaves traces which :func:`perfgate.trace.trace_file.read_trace` reads.

    A subclass prepares it.
    """

    unreadable, report_s = "evidence-missing", 180.0
    ranges: ClassVar[str]
    """Of :meth:`perfgate.capture.driver_protocol.Engine.profile`."""
    leaves: ClassVar[str]
    """Pattern of what it leaves in the trial's folder: a file, or one a rank."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.folder = job.folder.resolve()
        self.held: tuple[str, ...] = ()
        self._expected = job.cell.kernels or Expectation()
        self._decode: DecodeSteps | None = None
        self._ranks: tuple[RankSteps, ...] = ()
        self._traces: tuple[Artifact, ...] = ()

    @property
    def iterations(self) -> tuple[int, int]:
        """At least one of warm-up, and as many as are to be traced."""
        return max(super().iterations[0], 1), self._expected.traced.iterations

    def window(self, engine: Engine, *, on: bool) -> None:
        """The profiler's."""
        engine.profile(on=on, ranges=self.ranges, window=True)

    def collect(self, say: Say) -> None:
        """Read the traces; a profiler is believed by them, whatever it returned."""
        say("reading the trace")
        files = sorted(self.folder.glob(self.leaves), key=_in_order)
        if not files:
            left = ", ".join(sorted(file.name for file in self.folder.iterdir()))
            raise InvalidTrialError("evidence-missing", f"{self.name} left no {self.leaves}; there is {left}")
        self._traces = tuple(Artifact.of(file, self.job.run_folder) for file in files)
        traces = [trace for _, trace in read_ranks(files, self._expected.rules)]
        steps, self._ranks = summarise_ranks(traces, gpus_of(self.job.engine_args))
        self._decode = steps.model_copy(update={"held": self.held})

    def fields(self) -> dict[str, Any]:
        """Decode steps, those of each rank, and the traces that they were read from."""
        return {"decode": self._decode, "ranks": self._ranks, "traces": self._traces}


def _in_order(file: Path) -> list[tuple[int, str]]:
    """Names with numbers in them in the order of the numbers: rank 10 comes after rank 2."""
    return [(int(part or 0), text) for text, part in re.findall(r"([^0-9]*)([0-9]*)", file.name)]


class Nsys(Tracer):
    """nsys around a worker held steady; its window is that of the CUDA profiler, which vLLM opens."""

    name, ranges, leaves = "nsys", "nvtx", "trace.nsys-rep"

    def prepare(self) -> Launch:
        """See :class:`Instrument`."""
        steady = steady_worker(engine_environment(self.job), gpus_of(self.job.engine_args))
        self.held = steady.held
        window = ("--capture-range=cudaProfilerApi", "--capture-range-end=stop")
        command = nsys_profile(shutil.which("nsys") or "nsys", self.folder / "trace", *window)
        environment = {**nsys_settings(), **steady.environment}
        return Launch([*command, *steady.wrapper], environment, {"profiler_config": {"profiler": "cuda"}})


class TorchProfiler(Tracer):
    """PyTorch's profiler inside the engine; vLLM writes its traces when the window closes."""

    name, ranges, leaves = "torch profiler", "record_function", "torch/*.pt.trace.json*"

    def prepare(self) -> Launch:
        """See :class:`Instrument`."""
        folder = str(self.folder / "torch")
        config = {"profiler": "torch", "torch_profiler_dir": folder, "torch_profiler_with_stack": False}
        return Launch(engine_args={"profiler_config": config})


def tracer(job: Job) -> Tracer:
    """The profiler for traced trials: nsys where there are kernels for it to see."""
    return Nsys(job) if job.gpu and shutil.which("nsys") else TorchProfiler(job)


@dataclass(frozen=True)
class Steady:
    """How to start a worker.

    Args:
        wrapper: Programs with their arguments, to put before the interpreter.
        environment: Variables that are set beside the engine's own.
        held: What they hold: of :data:`perfgate.trace.decode_step.STEADY`, and ``cores 12,13,14,15``.
    """

    wrapper: tuple[str, ...]
    environment: Mapping[str, str]
    held: tuple[str, ...]


def steady_worker(environment: Mapping[str, str], gpus: int = 1) -> Steady:
    """Hold Python's hashes, the layout of the process in memory and its cores, each only where that works here.

    The host's work of a step differs by a tenth between two engines of one build, because their sets, their caches and
    their cores do. Held, what is left is mostly how fast the CPU is at the moment, which launching calls tell
    (docs/measurements.md). For traces alone: restarts of timed trials must sample these layouts, or a verdict would
    hold for one only.

    Args:
        environment: The engine's own variables. A ``PYTHONHASHSEED`` among them is left as it is.
        gpus: How many the engine takes. It gets the last :data:`CORES_PER_GPU` cores for each that perfgate may use,
            unless these are more than half of them.
    """
    seed = environment.get(SEED)
    held = [HASHES] if seed is None or seed.isdecimal() else []
    # setarch first: containers commonly forbid personality(), and then nothing that it starts would run.
    programs = [(ADDRESSES, "setarch", ["-R"])]
    allowed = sorted(os.sched_getaffinity(0))
    wanted = CORES_PER_GPU * gpus
    if 2 * wanted <= len(allowed):
        cores = ",".join(map(str, allowed[-wanted:]))
        programs.append((f"cores {cores}", "taskset", ["-c", cores]))
    wrapper: list[str] = []
    for holds, program, arguments in programs:
        if command := _working(program, arguments, environment):
            wrapper += command
            held.append(holds)
    return Steady(tuple(wrapper), {SEED: "0"} if seed is None else {}, tuple(held))


def _working(program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The command that starts something under a program, if it has started ``true``; empty where it does not."""
    path = environment.get("PATH")
    file, nothing = shutil.which(program, path=path), shutil.which("true", path=path)
    if file is None or nothing is None:
        return []
    command = [file, *arguments]
    try:
        tried = subprocess.run([*command, nothing], capture_output=True, timeout=TRY_TIMEOUT_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):  # what cannot be held is not said to be
        return []
    return command if tried.returncode == 0 else []
