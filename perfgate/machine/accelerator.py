"""What perfgate asks of the driver of accelerators, whoever made them; a room brings a vendor by its ``accelerators``.

Every call names its device by UUID. What a device or driver does not offer reads as ``None``; what goes wrong is a
:class:`GpuError` with its reason code. A driver in trouble may not return: whoever implements this gives a call up.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from perfgate import rooms
from perfgate.errors import NotMeasuredError
from perfgate.machine.fingerprint import Gpu
from perfgate.machine.telemetry import Sample


class GpuError(NotMeasuredError):
    """The driver refused or failed; ``code`` says why."""


class NothingDoneError(GpuError):
    """It refused, and no clock has changed by that: there is nothing to undo."""


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds a compute context on a GPU.

    Args:
        pid: As the driver reports it, which in a container may be the host's number.
        memory_bytes: GPU memory it holds; ``None`` where the driver does not tell.
    """

    pid: int
    memory_bytes: int | None


class Accelerators(Protocol):
    """A connection to the driver of a vendor; a context manager.

    ``driver`` is its version, and ``cuda`` the newest CUDA that it offers, like ``13.0``; empty where it has none.
    """

    driver: str
    cuda: str

    def __enter__(self) -> Self:
        """Return itself, connected."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the connection."""

    def gpus(self, environment: Mapping[str, str] = os.environ) -> tuple[Gpu, ...]:
        """Those that these variables admit, in the order in which an engine numbers them.

        Raises:
            GpuError: A GPU that is admitted cannot be read, or one that cannot be read may be admitted.
        """

    def architecture(self, uuid: str) -> int | None:
        """Of NVIDIA the compute capability times ten, 90 for 9.0; ``None`` where the driver does not tell."""

    def facts(self, uuid: str) -> Gpu:
        """What the GPU is and how it is set up."""

    def sample(self, uuid: str) -> Sample:
        """What the GPU does now.

        Raises:
            GpuError: ``gpu-lost`` where it has fallen off the bus.
        """

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """Who computes on the GPU, ordered by pid; empty also where the driver does not tell."""

    def memory_used_bytes(self, uuid: str) -> int | None:
        """Memory allocated on the GPU by anybody, seen or not."""

    def supported_clocks_mhz(self, uuid: str) -> Mapping[int, Sequence[int]]:
        """The SM clocks that can be held, by memory clock; empty where the GPU does not tell."""

    def lock_clocks(self, uuid: str, sm_mhz: int, memory_mhz: int | None) -> None:
        """Hold the clocks of a GPU, until :meth:`reset_clocks` or a reset of the GPU; the caller keeps the lease.

        A lock is a ceiling: power and heat may still force the clock below it.

        Raises:
            NothingDoneError: ``clock-no-permission``. If it is the memory clock's, the SM clock has been given free.
            GpuError: ``clock-not-supported``, ``gpu-lost`` or ``gpu-unreadable``; something may be locked.
        """

    def reset_clocks(self, uuid: str, *, memory: bool) -> None:
        """Undo :meth:`lock_clocks`; harmless where nothing is locked. ``memory``: whether that clock was locked too.

        Raises:
            GpuError: ``clock-no-permission``, ``clock-not-supported``, ``gpu-lost`` or ``gpu-unreadable``.
        """


def connect() -> Accelerators | None:
    """A connection to the first driver that is here; ``None`` on a machine without one, where engines run on the CPU.

    Raises:
        GpuError: ``gpu-unreadable``: there is a driver, and it does not answer.
    """
    for place in dict(sorted(rooms.entries("accelerators").items())).values():
        connected: Accelerators | None = rooms.bring(place)()
        if connected is not None:
            return connected
    return None
