"""What ncu counted in one trial, as a record keeps it: single launches of a decode step with their counters."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from perfgate.counters.launch_table import COUNTERS, CountedKernel, Reading
from perfgate.models import Frozen
from perfgate.trace.decode_step import KernelKey


class Device(Frozen):
    """The GPU as ncu describes it; what it does not say is ``None``.

    Args:
        name: As the driver shows it.
        architecture: Compute capability times ten, 90 for 9.0.
        bus_bits: Width of the bus of device memory.
        memory_hz: Its highest clock.
        sm_hz: The SMs' highest clock.
    """

    name: str = ""
    architecture: int | None = None
    bus_bits: float | None = None
    memory_hz: float | None = None
    sm_hz: float | None = None

    @classmethod
    def of(cls, kernel: CountedKernel) -> Device:
        """The GPU that a kernel ran on."""
        return cls(
            name=kernel.attributes.get(_NAME, ""),
            architecture=kernel.architecture,
            **{field: kernel.readings[n].value * to for field, (n, to) in _FIGURES.items() if n in kernel.readings},
        )

    def readings(self) -> dict[str, Reading]:
        """The same in ncu's words."""
        found = ((name, getattr(self, field), to) for field, (name, to) in _FIGURES.items())
        return {name: Reading(value / to, "") for name, value, to in found if value is not None}


_NAME = "device__attribute_display_name"
_FIGURES = {
    "bus_bits": ("device__attribute_global_memory_bus_width", 1.0),
    "memory_hz": ("device__attribute_max_mem_frequency_khz", 1e3),
    "sm_hz": ("device__attribute_clock_rate", 1e3),
}


class CountedLaunch(Frozen):
    """One launch of a kernel.

    Args:
        key: The kernel; its place only where the launch stands where the traced step has that kernel.
        position: Of the launch in the traced step, from 0; ``None`` for one that the trace does not have there.
        layer: Of the model; ``None`` outside the layers, or where they are not known.
        grid: Blocks in x, y, z.
        block: Threads of a block in x, y, z.
        values: What was read, by ncu's name, in the units of :attr:`CountedStep.units`.
    """

    key: KernelKey
    position: int | None
    layer: int | None = None
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    values: dict[str, float]


class CountedStep(Frozen):
    """The launches counted in one trial; none of it is a time of the workload, whose kernels ncu runs one by one.

    Args:
        source: The profiler and its version.
        step: Number of the step in which the window begins: N of ``perfgate.step.N``.
        cache_control: What ncu did with the caches before each pass: ``all`` flushes them.
        passes: Replays of each launch.
        device: The GPU.
        units: The unit of each metric read, by ncu's name.
        launches: In order.
        cautions: What the reader should know: reason code and words.
    """

    source: str
    step: int
    cache_control: str
    passes: int
    device: Device
    units: dict[str, str]
    launches: tuple[CountedLaunch, ...]
    cautions: tuple[tuple[str, str], ...] = ()

    def kernels(self) -> Iterator[tuple[CountedLaunch, CountedKernel]]:
        """Each launch beside what the roofline and the table of counters read."""
        attributes = {_NAME: self.device.name} if self.device.name else {}
        for number, launch in enumerate(self.launches):
            own = {name: Reading(value, self.units[name]) for name, value in launch.values.items()}
            yield launch, CountedKernel(
                number=number, name=launch.key.name, process=0, device=0, architecture=self.device.architecture,
                grid=launch.grid, block=launch.block, ranges=(), readings={**self.device.readings(), **own},
                attributes=attributes,
            )  # fmt: skip

    def values(self, counter: str, role: str, place: str = "") -> tuple[float, ...]:
        """A counter of every launch of a role, or of one place in a layer; a launch without it is left out.

        Args:
            counter: A name of :data:`perfgate.counters.launch_table.COUNTERS`.
            role: Whose launches.
            place: Of :data:`perfgate.trace.kernel_table.PLACES`; empty for all of them.
        """
        chosen = (k for one, k in self.kernels() if one.key.role == role and place in ("", one.key.place))
        read = (COUNTERS[counter].read(kernel) for kernel in chosen)
        return tuple(value for value in read if value is not None)

    def mean(self, counter: str, role: str, place: str = "") -> float | None:
        """The mean of a launch, see :meth:`values`; ``None`` where there is no launch, or one that lacks it."""
        found: Sequence[float] = self.values(counter, role, place)
        return statistics.fmean(found) if found and len(found) == self.count(role, place) else None

    def count(self, role: str, place: str = "") -> int:
        """How many launches of a role, or of one place in a layer, there are."""
        return sum(one.key.role == role and place in ("", one.key.place) for one in self.launches)
