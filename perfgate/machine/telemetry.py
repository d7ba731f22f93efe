"""What GPUs did while a trial ran: samples, their summary over the iterations, and when they spoil the trial. Pure.

Windows and samples share one clock, the monotonic one, in nanoseconds. A trial's samples are summarised over its
measured window (first submission to last delivery of the measured iterations); the SM clock also over pure decode
alone, because a lock has to hold under that load. Where no window is known, or none holds a sample, all samples of the
trial are in.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from perfgate.models import Frozen

REASONS_BY_BIT: Final[Mapping[int, str]] = {
    0x1: "idle",
    0x2: "clocks-setting",
    0x4: "power-cap",
    0x8: "hardware-slowdown",
    0x10: "sync-boost",
    0x20: "software-thermal",
    0x40: "hardware-thermal",
    0x80: "power-brake",
    0x100: "display-clock",
}
"""Bits of NVML's clocks event reasons (nvml.h, ``nvmlClocksEventReason*``)."""

SPOILING: Final = ("software-thermal", "hardware-thermal", "power-brake", "hardware-slowdown")
"""Event reasons that spoil a trial; the general one comes last, since the others set it too.

A power cap is not among them: decode is bound by memory, so the clock itself is judged.
"""

DISTURBANCES: Final = frozenset({"gpu-throttled", "gpu-busy"})
"""Reason codes of what may be over at the next trial.

Heat and power may come from outside or from the build that is measured. One trial cannot tell; the sides on which they
fall can (:mod:`perfgate.record.dropped_pairs`).
"""

CLOCK_TOLERANCE_MHZ: Final = 15
"""How far the median SM clock in decode may be from the locked one: one step of the clocks an H200 supports."""


@dataclass(frozen=True)
class Sample:
    """What a GPU did at one moment; ``None`` where it does not tell.

    Args:
        sm_mhz: SM clock.
        memory_mhz: Memory clock.
        power_mw: Power drawn now.
        temperature_c: GPU temperature.
        memory_temperature_c: Memory temperature.
        utilisation_percent: Share of the driver's last window in which a kernel ran.
        reasons: Bits of :data:`REASONS_BY_BIT`.
        energy_mj: Energy since the driver was loaded.
        slowdown_ns: Time held down since the driver was loaded, by name of an event reason.
    """

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_mw: int | None = None
    temperature_c: int | None = None
    memory_temperature_c: int | None = None
    utilisation_percent: int | None = None
    reasons: int | None = None
    energy_mj: int | None = None
    slowdown_ns: Mapping[str, int] | None = None


class Window(NamedTuple):
    """One measured iteration on the monotonic clock, in nanoseconds."""

    begin_ns: int
    decode_ns: int
    end_ns: int


class Spread(Frozen):
    """Lowest, (lower) median and highest of some samples."""

    low: int
    median: int
    high: int


class Foreign(Frozen):
    """A process that is not ours and computed on a GPU of the trial.

    Args:
        pid: As the driver reports it.
        name: Its program, where it can be seen from here.
        memory_bytes: The most GPU memory it held, where the driver tells.
    """

    pid: int
    name: str = ""
    memory_bytes: int | None = None

    def __str__(self) -> str:
        """For people: ``train.py (pid 4711, 2.0 GiB)``."""
        held = "" if self.memory_bytes is None else f", {self.memory_bytes / 2**30:.1f} GiB"
        return f"{self.name or 'a process not visible from here'} (pid {self.pid}{held})"


class GpuTelemetry(Frozen):
    """One GPU over the measured window of one trial.

    Args:
        gpu: Its UUID.
        samples: Those behind the figures.
        aligned: Whether they are of the measured window; else they are those of the whole trial.
        period_ns: Median gap between samples; 0 with fewer than two.
        sm_mhz: SM clock.
        decode_sm_mhz: Median SM clock in pure decode.
        memory_mhz: Memory clock.
        power_mw: Power drawn.
        temperature_c: GPU temperature.
        memory_temperature_c: Memory temperature.
        utilisation_percent: Utilisation.
        reasons: In how many samples each event reason was set.
        slowdown_ns: By how much the driver's counter of each slowdown grew.
        energy_uj: Energy from the first submission to the last delivery; ``None`` where not aligned.
        foreign: Foreign processes seen at any time of the trial.
    """

    gpu: str
    samples: int = 0
    aligned: bool = False
    period_ns: int = 0
    sm_mhz: Spread | None = None
    decode_sm_mhz: int | None = None
    memory_mhz: Spread | None = None
    power_mw: Spread | None = None
    temperature_c: Spread | None = None
    memory_temperature_c: Spread | None = None
    utilisation_percent: Spread | None = None
    reasons: dict[str, int] = {}
    slowdown_ns: dict[str, int] = {}
    energy_uj: int | None = None
    foreign: tuple[Foreign, ...] = ()


_SPREADS = ("sm_mhz", "memory_mhz", "power_mw", "temperature_c", "memory_temperature_c", "utilisation_percent")


def summarise(
    gpu: str, taken: Sequence[tuple[int, Sample]], windows: Sequence[Window], foreign: Sequence[Foreign] = ()
) -> GpuTelemetry:
    """Summarise the samples of one GPU, each with its time, over the measured iterations of a trial."""
    measured = (windows[0].begin_ns, windows[-1].end_ns) if windows else (0, -1)
    inside = [(t, s) for t, s in taken if measured[0] <= t <= measured[1]]
    chosen = inside or list(taken)
    decode = [s for t, s in inside if any(w.decode_ns <= t <= w.end_ns for w in windows)]
    samples = [sample for _, sample in chosen]
    spreads: dict[str, Any] = {name: _spread(getattr(s, name) for s in samples) for name in _SPREADS}
    decode_spread = _spread(s.sm_mhz for s in decode)
    gaps = np.diff([t for t, _ in chosen])
    return GpuTelemetry(
        gpu=gpu,
        samples=len(chosen),
        aligned=bool(inside),
        period_ns=int(np.median(gaps)) if len(gaps) else 0,
        decode_sm_mhz=decode_spread and decode_spread.median,
        reasons=dict(sorted(Counter(name for s in samples for name in reason_names(s.reasons or 0)).items())),
        slowdown_ns=_growth(samples),
        energy_uj=_energy_uj(taken, measured) if inside else None,
        foreign=tuple(foreign),
        **spreads,
    )


def disturbance(
    gpus: Iterable[GpuTelemetry], sm_mhz: int | None = None, memory_mhz: int | None = None
) -> tuple[str, str] | None:
    """Why a trial does not count by what its GPUs did, as reason code and words; ``None`` where it does.

    The clocks are those that are locked, if any.
    """
    for gpu in gpus:
        if gpu.foreign:
            return "gpu-busy", f"{gpu.gpu}: {', '.join(map(str, gpu.foreign))}"
        for reason in SPOILING:
            seen, grown_ns = gpu.reasons.get(reason, 0), gpu.slowdown_ns.get(reason, 0)
            if seen or grown_ns:
                text = f"{gpu.gpu}: {reason} in {seen} of {gpu.samples} samples, {grown_ns / 1e6:.0f} ms by its counter"
                return "gpu-throttled", text
        if sm_mhz is not None and (off_lock := _off_lock(gpu, sm_mhz, memory_mhz)):
            return off_lock
    return None


def reason_names(bits: int) -> tuple[str, ...]:
    """Event reasons in words; bits without a name are shown as a number."""
    unknown = bits & ~sum(REASONS_BY_BIT)
    return (*(name for bit, name in REASONS_BY_BIT.items() if bits & bit), *([f"{unknown:#x}"] if unknown else []))


def _off_lock(gpu: GpuTelemetry, sm_mhz: int, memory_mhz: int | None) -> tuple[str, str] | None:
    """Why the clocks were not those that were locked, as reason code and words; ``None`` where they were."""
    median_mhz, text = gpu.memory_mhz.median if gpu.memory_mhz else None, ""
    if gpu.decode_sm_mhz is None:
        text = "no sample of the SM clock fell into decode"
    elif abs(gpu.decode_sm_mhz - sm_mhz) > CLOCK_TOLERANCE_MHZ:
        why = f" ({', '.join(gpu.reasons)})" if gpu.reasons else ""
        text = f"median {gpu.decode_sm_mhz} MHz in decode, locked at {sm_mhz} MHz{why}"
    elif memory_mhz is not None and (median_mhz is None or abs(median_mhz - memory_mhz) > CLOCK_TOLERANCE_MHZ):
        seen = "unknown" if median_mhz is None else f"{median_mhz} MHz"
        text = f"memory clock {seen}, locked at {memory_mhz} MHz"
    return ("clock-not-held", f"{gpu.gpu}: {text}") if text else None


def _spread(values: Iterable[int | None]) -> Spread | None:
    readings = [value for value in values if value is not None]
    return Spread(low=min(readings), median=statistics.median_low(readings), high=max(readings)) if readings else None


def _growth(samples: Sequence[Sample]) -> dict[str, int]:
    """How much each counter grew from the first to the last sample."""
    first, last = (samples[n].slowdown_ns or {} for n in (0, -1)) if samples else ({}, {})
    return {name: last[name] - first[name] for name in sorted(first.keys() & last.keys())}


def _energy_uj(taken: Sequence[tuple[int, Sample]], window: tuple[int, int]) -> int | None:
    """The growth of the energy counter over the window, by linear interpolation between samples."""
    readings = [(t, s.energy_mj) for t, s in taken if s.energy_mj is not None]
    if len(readings) < 2:  # noqa: PLR2004 (a growth needs two)
        return None
    begin_mj, end_mj = np.interp(window, [t for t, _ in readings], [e for _, e in readings])
    return round(1000 * float(end_mj - begin_mj))
