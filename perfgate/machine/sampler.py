"""Watches GPUs while a trial runs: a thread of perfgate's own process, so that engines carry nothing extra.

Clocks, power, temperatures, event reasons and who computes there are read every :data:`PERIOD_S`. On an H200 one
reading costs 5 to 8 ms of one core, most of it the driver's energy and temperature fields.
"""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final, Self

import psutil

from perfgate.machine.accelerator import Accelerators, GpuError, GpuProcess
from perfgate.machine.processes import pid_namespace
from perfgate.machine.telemetry import Foreign, GpuTelemetry, Sample, Window, summarise
from perfgate.units import gib

PERIOD_S: Final = 0.08
"""12.5 readings a second: with the reading itself never less than ten."""

IDLE_MEMORY_BYTES: Final = 2**30
"""What an idle GPU may have in use: the driver itself takes 0.6 GiB of an H200."""

FIRST_NAMESPACE: Final = 0xEFFFFFFC
"""Inode of the host's own pid namespace (the kernel's ``PROC_PID_INIT_INO``); inside any other, pids are not those of
the host."""


def sees_host_pids() -> bool:
    """Whether pids that the driver reports mean the same here: they are those of the host's own namespace."""
    return pid_namespace() == FIRST_NAMESPACE


class Company:
    """Tells foreign processes on one GPU from those of the engine under test.

    A process is ours by ``is_ours``. In a container the driver may report the host's pids, which mean nothing here; as
    long as none is known to be ours, one process that appears after the start is then taken for the engine, and any
    other is foreign. What is there before the engine starts is never ours.
    """

    def __init__(self, is_ours: Callable[[int], bool], *, host_pids: bool | None = None) -> None:
        self._is_ours = is_ours
        self._host_pids = sees_host_pids() if host_pids is None else host_pids
        self._ours: set[int] = set()
        self._assumed: GpuProcess | None = None
        self._foreign: dict[int, Foreign] = {}

    def see(self, processes: Iterable[GpuProcess], *, started: bool = True) -> None:
        """Take note of who is there; ``started`` tells whether the engine may be among them."""
        for process in processes:
            if process.pid in self._ours:
                continue
            if started and process.pid not in self._foreign and self._is_ours(process.pid):
                self._ours.add(process.pid)
            elif started and process.pid not in self._foreign and self._may_assume(process):
                self._assumed = process
            elif not self._host_pids or psutil.pid_exists(process.pid):  # the driver lists the dead for a moment
                self._note(process)
        if self._ours and self._assumed is not None:
            self._note(self._assumed)
            self._assumed = None

    @property
    def foreign(self) -> tuple[Foreign, ...]:
        """Every foreign process seen so far, by pid."""
        return tuple(process for _, process in sorted(self._foreign.items()))

    def _may_assume(self, process: GpuProcess) -> bool:
        taken = self._ours or (self._assumed is not None and self._assumed.pid != process.pid)
        return not self._host_pids and not taken

    def _note(self, process: GpuProcess) -> None:
        foreign = self._foreign.get(process.pid)
        held = [size for size in (foreign.memory_bytes if foreign else None, process.memory_bytes) if size is not None]
        name = foreign.name if foreign else program_of(process.pid) if self._host_pids else ""
        self._foreign[process.pid] = Foreign(pid=process.pid, name=name, memory_bytes=max(held, default=None))


class Sampler:
    """Samples GPUs while the block lasts; then :meth:`read` gives the summary.

    Args:
        nvml: The connection to the driver.
        uuids: The GPUs of the trial.
        is_ours: Whether a pid of this namespace belongs to the engine under test.
        clock_ns: Tells when a reading was taken, on the clock of the trial's windows.
    """

    def __init__(
        self,
        nvml: Accelerators,
        uuids: Sequence[str],
        is_ours: Callable[[int], bool],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._nvml = nvml
        self._clock_ns = clock_ns
        self._company = {uuid: Company(is_ours) for uuid in uuids}
        self._taken: dict[str, list[tuple[int, Sample]]] = {uuid: [] for uuid in uuids}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="perfgate-telemetry", daemon=True)
        self.error: GpuError | None = None
        """Why sampling ended early, where it did."""

    def __enter__(self) -> Self:
        """Note who is there already, and begin."""
        self._guarded(lambda: self._see(started=False))
        if self.error is None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End sampling; one more reading, which is not kept, tells whether a GPU was lost since the last."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self.error is None:
            self._guarded(lambda: [self._nvml.sample(uuid) for uuid in self._taken])

    def take(self) -> None:
        """One reading of every GPU and of who computes there; the thread calls it every :data:`PERIOD_S`."""
        self._guarded(self._sample)
        self._guarded(self._see)

    def read(self, windows: Sequence[Window]) -> tuple[GpuTelemetry, ...]:
        """The summary of every GPU over the measured iterations; to be called after the block."""
        return tuple(
            summarise(uuid, taken, windows, self._company[uuid].foreign) for uuid, taken in self._taken.items()
        )

    def write(self, file: Path) -> bytes:
        """Write every sample, compressed, by GPU and column; return what was written."""
        columns = ["t_ns", *asdict(Sample())]
        content = {
            uuid: {name: [t if name == "t_ns" else getattr(sample, name) for t, sample in taken] for name in columns}
            for uuid, taken in self._taken.items()
        }
        packed = gzip.compress(json.dumps(content, sort_keys=True, separators=(",", ":")).encode(), mtime=0)
        file.write_bytes(packed)
        return packed

    def _watch(self) -> None:
        while not self._stopping.is_set() and self.error is None:
            begin_s = time.monotonic()
            self.take()
            self._stopping.wait(max(0.0, begin_s + PERIOD_S - time.monotonic()))

    def _sample(self) -> None:
        for uuid, taken in self._taken.items():
            sample = self._nvml.sample(uuid)
            taken.append((self._clock_ns(), sample))

    def _see(self, *, started: bool = True) -> None:
        for uuid, company in self._company.items():
            company.see(self._nvml.processes(uuid), started=started)

    def _guarded(self, action: Callable[[], object]) -> None:
        """A thread cannot raise to its owner: the error is kept, and the trial fails by it."""
        try:
            action()
        except GpuError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 (a thread that just died would leave a trial without readings)
            self.error = GpuError(f"sampling failed: {type(error).__name__}: {error}", code="gpu-unreadable")
            self.error.__cause__ = error


def company(nvml: Accelerators, uuids: Iterable[str]) -> str:
    """Who computes on these GPUs before any engine of ours does, in words; empty where all are free.

    Memory that nobody listed holds belongs to somebody the driver does not show here, as to another container.
    """
    busy = []
    for uuid in uuids:
        there = Company(lambda _: False)
        there.see(nvml.processes(uuid), started=False)
        used = nvml.memory_used_bytes(uuid) or 0
        if there.foreign:
            busy.append(f"{uuid}: {', '.join(map(str, there.foreign))}")
        elif used > IDLE_MEMORY_BYTES:
            busy.append(f"{uuid}: {gib(used)} held by processes not visible from here")
    return "; ".join(busy)


def program_of(pid: int) -> str:
    """The program of a process and its first argument, as far as this user may see them; empty where it is gone."""
    try:
        command = psutil.Process(pid).cmdline() or [psutil.Process(pid).name()]
    except psutil.Error:
        return ""
    return " ".join([Path(argument).name for argument in command[:2]])
