"""The summary of what GPUs did during a trial, and when that spoils it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.machine.telemetry import (
    Foreign,
    GpuTelemetry,
    Sample,
    Spread,
    Window,
    disturbance,
    reason_names,
    summarise,
)

GPU = "GPU-00000000-0000-0000-0000-000000000000"
WINDOWS = [Window(100, 120, 200), Window(210, 230, 300)]


def test_only_samples_of_the_measured_window_count() -> None:
    """What the GPU did while the engine started or stopped is not in the summary."""
    taken = [
        (50, Sample(sm_mhz=345)),
        (110, Sample(sm_mhz=1900)),
        (150, Sample(sm_mhz=1980)),
        (400, Sample(sm_mhz=345)),
    ]
    found = summarise(GPU, taken, WINDOWS)
    assert (found.samples, found.aligned) == (2, True)
    assert found.sm_mhz == Spread(low=1900, median=1900, high=1980)


def test_the_decode_clock_leaves_prefill_and_gaps_out() -> None:
    """The clock that a lock is judged by is the median over pure decode."""
    taken = [(t, Sample(sm_mhz=mhz)) for t, mhz in ((110, 1), (130, 1500), (190, 1515), (205, 2), (260, 1500))]
    assert summarise(GPU, taken, WINDOWS).decode_sm_mhz == 1500


def test_without_a_sample_in_the_window_the_whole_trial_stands_in() -> None:
    """Iterations shorter than the gap between readings leave a summary that says so, without energy or decode clock."""
    taken = [(10, Sample(sm_mhz=1980, energy_mj=5)), (900, Sample(sm_mhz=1980, energy_mj=9))]
    found = summarise(GPU, taken, WINDOWS)
    assert (found.samples, found.aligned, found.energy_uj, found.decode_sm_mhz) == (2, False, None, None)


def test_energy_is_interpolated_to_the_window() -> None:
    """Energy between two readings is shared out by time: 1 mJ in 100 ns is 2 mJ over the window of 200 ns."""
    taken = [(t, Sample(energy_mj=e)) for t, e in ((0, 1000), (150, 1001), (250, 1002), (350, 1003))]
    whole = summarise(GPU, [(0, Sample(energy_mj=0)), (150, Sample(energy_mj=3)), (400, Sample(energy_mj=8))], WINDOWS)
    assert summarise(GPU, taken, WINDOWS).energy_uj == pytest.approx(1833, abs=1)  # 1002.5 - 1000.667 mJ
    assert whole.energy_uj == 4000


def test_counters_are_read_over_the_window_not_since_boot() -> None:
    """What held the clock down before the trial is not held against it."""
    taken = [(120, Sample(slowdown_ns={"power-brake": 10})), (180, Sample(slowdown_ns={"power-brake": 17}))]
    found = summarise(GPU, [(1, Sample(slowdown_ns={"power-brake": 1})), *taken], WINDOWS)
    assert found.slowdown_ns == {"power-brake": 7}


@given(bits=st.integers(0, 2**12 - 1))
def test_every_event_reason_is_named(bits: int) -> None:
    """No bit is lost: named ones by name, the others as a number."""
    names = reason_names(bits)
    assert len(names) == (bits & 0x1FF).bit_count() + bool(bits & ~0x1FF)


SPOILT = [
    ({"reasons": {"hardware-thermal": 1, "hardware-slowdown": 1}}, "gpu-throttled"),
    ({"reasons": {"software-thermal": 1}}, "gpu-throttled"),
    ({"slowdown_ns": {"hardware-thermal": 1000000}}, "gpu-throttled"),
    ({"reasons": {"power-brake": 2, "hardware-slowdown": 2}}, "gpu-throttled"),
    ({"reasons": {"hardware-slowdown": 1}}, "gpu-throttled"),
    ({"foreign": (Foreign(pid=7, name="train.py", memory_bytes=2**31),)}, "gpu-busy"),
]


@pytest.mark.parametrize(("seen", "code"), SPOILT)
def test_a_disturbed_gpu_spoils_the_trial(seen: dict[str, object], code: str) -> None:
    """Slowdowns by sample or by counter, and foreign processes, each have their own reason."""
    found = disturbance([GpuTelemetry(gpu=GPU), GpuTelemetry.model_validate({"gpu": GPU, **seen})])
    assert found is not None
    assert found[0] == code
    assert GPU in found[1]


def test_a_power_cap_alone_spoils_nothing() -> None:
    """Decode is bound by memory: where the clock holds, the cap is only a note."""
    capped = GpuTelemetry(gpu=GPU, reasons={"power-cap": 9, "idle": 1}, decode_sm_mhz=1500)
    assert disturbance([capped]) is None
    assert disturbance([capped], sm_mhz=1500) is None


@pytest.mark.parametrize(
    ("decode", "memory", "code"),
    [
        (1515, 3201, None),
        (1485, 3201, None),
        (1484, 3201, "clock-not-held"),
        (1516, 3201, "clock-not-held"),
        (1500, 2201, "clock-not-held"),
        (None, 3201, "clock-not-held"),
    ],
)
def test_a_lock_is_proven_by_the_clock_under_load(decode: int | None, memory: int, code: str | None) -> None:
    """A median up to 15 MHz off the lock is held, more is not, and no reading proves nothing."""
    seen = GpuTelemetry(gpu=GPU, decode_sm_mhz=decode, memory_mhz=Spread(low=memory, median=memory, high=memory))
    found = disturbance([seen], sm_mhz=1500, memory_mhz=3201)
    assert (found and found[0]) == code


RECORDING = Path(__file__).parents[1] / "fixtures" / "h200-telemetry.json.gz"


def test_a_recorded_trial_of_an_h200() -> None:
    """Twenty iterations under a power cap: the clock sags after each prefill, its median in decode does not."""
    recorded = json.loads(gzip.decompress(RECORDING.read_bytes()))
    columns = recorded["readings"]
    times = columns.pop("t_ns")
    taken = [(t, Sample(**{name: values[n] for name, values in columns.items()})) for n, t in enumerate(times)]
    windows = [Window(*bounds) for bounds in recorded["windows"]]

    found = summarise(GPU, taken, windows)

    assert (found.samples, found.aligned, found.decode_sm_mhz) == (194, True, 1965)
    assert found.period_ns < 0.1e9  # ten a second or better
    assert found.sm_mhz == Spread(low=1590, median=1965, high=1980)
    assert found.reasons == {"power-cap": 109}
    assert found.energy_uj is not None
    assert found.energy_uj / 1e6 / (20 * 8 * 128) == pytest.approx(0.3668, abs=1e-4)  # joules a token
    assert disturbance([found]) is None
    assert disturbance([found], sm_mhz=1965) is None
    held = disturbance([found], sm_mhz=1500)
    assert held is not None
    assert held[0] == "clock-not-held"
