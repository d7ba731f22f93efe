"""What ncu counted in one trial, as a record keeps it: single launches of a decode step with their counters."""

from __future__ import annotations

from pydantic import ValidationInfo, field_validator

from perfgate.counters.launch_table import Device, KernelLaunch, LaunchGroup
from perfgate.models import Frozen


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
    launches: tuple[KernelLaunch, ...]
    cautions: tuple[tuple[str, str], ...] = ()

    @field_validator("launches")
    @classmethod
    def _know_their_units_and_gpu(
        cls, launches: tuple[KernelLaunch, ...], info: ValidationInfo
    ) -> tuple[KernelLaunch, ...]:
        shared = {"units": info.data.get("units", {}), "gpu": info.data.get("device", Device())}
        return tuple(launch.model_copy(update={**shared, "number": n}) for n, launch in enumerate(launches))

    def of(self, role: str, place: str = "") -> LaunchGroup:
        """The launches of a role, at one of :data:`perfgate.scenario.kernel_names.PLACES` or at all of them."""
        return LaunchGroup(
            tuple(launch for launch in self.launches if launch.key.role == role and place in ("", launch.key.place))
        )
