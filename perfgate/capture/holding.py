"""What a worker says that its engine holds between iterations, added up over its processes and GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from perfgate.capture.timeline import LARGEST, MOST_RANKS, InvalidTrialError
from perfgate.metrics.memory import Memory

_Size = Annotated[int, Field(ge=0, lt=LARGEST, strict=True)]
_PROCESS = ("process id", "resident", "peak resident")
_Process = tuple[_Size, _Size, _Size]
_Rank = tuple[_Size, _Size, _Size, _Size, _Size, _Size]
_READINGS: TypeAdapter[list[_Process | _Rank]] = TypeAdapter(
    Annotated[list[_Process | _Rank], Field(min_length=1, max_length=MOST_RANKS + 1)]
)


class Held(NamedTuple):
    """What all processes and ranks held at one moment, in the order of :class:`Memory`'s fields; bytes."""

    resident: int
    peak_resident: int
    allocated: int | None
    peak_allocated: int | None
    peak_reserved: int | None


def read_held(answer: Mapping[str, Any]) -> Held | None:
    """The ``memory`` of a worker's answer to one iteration; ``None`` where it tells none.

    Raises:
        InvalidTrialError: ``engine-failed``: It has another shape.
    """
    said = answer.get("memory")
    if said is None:
        return None
    try:
        readings = _READINGS.validate_python(said)
    except ValidationError as error:
        text = f"memory: expected figures of each process, found {str(said)[:200]}"
        raise InvalidTrialError("engine-failed", text) from error
    processes = {pid: (resident, peak) for pid, resident, peak, *_ in readings}
    device = [reading[3:] for reading in readings if len(reading) > len(_PROCESS)]
    resident, peak = (sum(figures) for figures in zip(*processes.values(), strict=True))
    if not device:
        return Held(resident, peak, None, None, None)
    allocated, peak_allocated, peak_reserved = (sum(figures) for figures in zip(*device, strict=True))
    return Held(resident, peak, allocated, peak_allocated, peak_reserved)


def memory_of(iterations: Sequence[Held | None]) -> Memory | None:
    """The memory of a trial; ``None`` where an iteration has no reading, or there is none."""
    held = [one for one in iterations if one is not None]
    if not held or len(held) < len(iterations):
        return None
    device = [(one.allocated, one.peak_allocated, one.peak_reserved) for one in held]
    known = [[size for size in column if size is not None] for column in zip(*device, strict=True)]
    allocated, peak_allocated, peak_reserved = (tuple(column) if len(column) == len(held) else () for column in known)
    return Memory(
        resident=tuple(one.resident for one in held),
        peak_resident=max(one.peak_resident for one in held),
        allocated=allocated,
        peak_allocated=peak_allocated,
        peak_reserved=peak_reserved,
    )
