"""The GPUs of a visit: which they are, who else uses them, their clocks, and what they do during a trial."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

from perfgate.capture.engine import gpus_of
from perfgate.capture.job import Job
from perfgate.errors import NotMeasuredError
from perfgate.machine.clocks import ClockGuard, undo_stale
from perfgate.machine.fingerprint import Machine, read_machine
from perfgate.machine.nvml import GpuError, Nvml, connect
from perfgate.machine.processes import carries_mark
from perfgate.machine.sampler import Sampler, company
from perfgate.machine.telemetry import disturbance
from perfgate.metrics.trial import Artifact, Failure, Trial
from perfgate.record.run_record import Run
from perfgate.scenario.plan import Cell

IDLE_WAIT_S = 10.0
"""How long GPUs are given to become free: the driver takes a moment to clear away an engine that has ended."""


class Gpus:
    """Those that the run's largest engine takes, none on a machine without.

    Args:
        run: Its manifest.
        environment: The variables that engines see; ``CUDA_VISIBLE_DEVICES`` chooses.
        tell: Told, in sentences, what becomes of clocks.
        nvml: The driver; ``None`` where there is none.

    Raises:
        NotMeasuredError: ``gpu-missing``: there are too few; or the driver does not answer.
    """

    def __init__(
        self, run: Run, environment: Mapping[str, str], tell: Callable[[str], object], nvml: Nvml | None
    ) -> None:
        self._run = run
        self._environment = environment
        self._tell = tell
        self._nvml = nvml
        self._clocks: ClockGuard | None = None
        self.machine = self._find(nvml)
        self.uuids = tuple(gpu.uuid for gpu in self.machine.gpus)
        self.names = tuple(gpu.name for gpu in self.machine.gpus)
        self.architecture = nvml.architecture(self.uuids[0]) if nvml and self.uuids else None

    @classmethod
    @contextlib.contextmanager
    def connected(cls, run: Run, environment: Mapping[str, str], tell: Callable[[str], object]) -> Iterator[Self]:
        """The GPUs of a run, with a connection to the driver for the length of a block where there is one."""
        with connect() or contextlib.nullcontext() as nvml:
            yield cls(run, environment, tell, nvml)

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """A block for which the GPUs are ours: stale locks of their clocks undone, nobody else on them.

        Raises:
            NotMeasuredError: ``gpu-busy``: somebody else computes there.
        """
        if self._nvml is None:
            yield
            return
        for lease in undo_stale(self._nvml, self.uuids):
            self._tell(f"released the clocks of {lease.uuid}, left locked: {lease}")
        with ClockGuard(self._nvml, self._run.name, self._tell) as self._clocks:
            if busy := self.await_idle(self.uuids):
                raise NotMeasuredError(busy, code="gpu-busy")
            yield

    def of(self, cell: Cell) -> tuple[str, ...]:
        """UUIDs of those that the larger of the two sides' engines takes; empty on the CPU."""
        return self.uuids[: self._ranks(cell)]

    def set_clocks(self, cell: Cell) -> None:
        """Hold the clocks as the cell has them, or none.

        Raises:
            NotMeasuredError: They cannot be held.
        """
        if self._clocks is not None and self.uuids:
            self._clocks.apply(self.of(cell), cell.clocks.sm_mhz, cell.clocks.memory_mhz)
        elif cell.clocks.mode == "lock":
            raise NotMeasuredError(
                "clocks cannot be locked: there is no GPU here, or none that is visible",
                where=cell.name,
                code="clock-not-supported",
            )

    def await_idle(self, uuids: Sequence[str]) -> str:
        """Who is still on these GPUs after a while, in words; empty when all are free."""
        until_s = time.monotonic() + IDLE_WAIT_S
        while self._nvml is not None and (processes := company(self._nvml, uuids)):
            if time.monotonic() > until_s:
                return processes
            time.sleep(0.25)
        return ""

    def watch(self, job: Job, take: Callable[[], Trial]) -> Trial:
        """A trial with what its GPUs did meanwhile; it fails where they were disturbed."""
        if self._nvml is None:
            return take()
        with Sampler(self._nvml, self.of(job.cell), lambda pid: carries_mark(pid, job.owner)) as sampler:
            trial = take()
        file = job.folder / "telemetry.json.gz"
        sampler.write(file)
        samples = Artifact.of(file, job.run_folder)
        telemetry = sampler.read([iteration.window for iteration in trial.iterations])
        failure = trial.failure
        if sampler.error is not None:
            before = f"\n{failure.code}: {failure.text}" if failure else ""
            failure = Failure(code=sampler.error.code, text=f"{sampler.error.finding}{before}")
        elif failure is None:
            spoilt = disturbance(telemetry, job.cell.clocks.sm_mhz, job.cell.clocks.memory_mhz)
            failure = Failure(code=spoilt[0], text=spoilt[1]) if spoilt else self._left_behind(job)
        return trial.model_copy(update={"failure": failure, "telemetry": telemetry, "samples": samples})

    def _left_behind(self, job: Job) -> Failure | None:
        """A failure where somebody is on the GPUs once the engine is gone: the trial had company that was not seen."""
        try:
            busy = self.await_idle(self.of(job.cell))
        except GpuError as error:
            return Failure(code=error.code, text=error.finding)
        return Failure(code="foreign-process", text=f"after the engine's end: {busy}") if busy else None

    def _find(self, nvml: Nvml | None) -> Machine:
        """This machine, with these GPUs; none where they are hidden on purpose."""
        visible = self._environment.get("CUDA_VISIBLE_DEVICES")
        if nvml is None or visible in ("", "-1"):
            return read_machine()
        gpus = nvml.gpus(self._environment)
        needed = max((self._ranks(cell) for cell in self._run.plan.cells), default=1)
        if len(gpus) < needed and (gpus or visible is not None):
            named = f"CUDA_VISIBLE_DEVICES={visible} names" if visible is not None else "there are"
            raise NotMeasuredError(
                f"the largest engine takes {needed} GPUs, and {named} {len(gpus)} that can be watched",
                code="gpu-missing",
            )
        return read_machine(gpus[:needed], nvml.driver, nvml.cuda)

    def _ranks(self, cell: Cell) -> int:
        sides = [{**cell.engine.args, **subject.args} for subject in self._run.subjects.values()]
        return max(map(gpus_of, sides))
