"""Figures of memory, worked out by hand."""

from __future__ import annotations

import pytest
from hand_made import trial
from pydantic import ValidationError

from perfgate.metrics.catalogue import find_metric, trial_value
from perfgate.metrics.memory import Memory
from perfgate.metrics.trial import Startup, Trial

MIB = 2**20
ON_GPU = Memory(
    resident=(100 * MIB, 101 * MIB, 102 * MIB), peak_resident=180 * MIB, allocated=(800, 800, 816),
    peak_allocated=(900, 1000, 910), peak_reserved=(1200, 1250, 1250),
)  # fmt: skip
STARTED = Startup(import_ns=0, engine_ns=0, ready_ns=1, kv_memory_bytes=64 * MIB)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kv_memory", 64.0 * MIB),
        ("peak_memory", 1000),
        ("activation_memory", 200),
        ("memory_fragmentation", 1.25),
        ("device_memory_growth", 1.02),
        ("host_memory", 180.0 * MIB),
        ("host_memory_growth", 1.02),
    ],
)
def test_value(name: str, value: float) -> None:
    """Each metric's value for three iterations; a trial without readings has none."""
    assert trial_value(name, trial(0, 0, "base", memory=ON_GPU, startup=STARTED)) == pytest.approx(value)
    assert trial_value(name, trial(0, 0, "base")) is None


def test_an_engine_without_a_gpu() -> None:
    """It has figures of the host alone; one iteration has no growth."""
    alone = trial(0, 0, "base", memory=Memory(resident=(5,), peak_resident=9))

    names = ("peak_memory", "activation_memory", "memory_fragmentation", "device_memory_growth", "host_memory_growth")
    assert [trial_value(name, alone) for name in names] == [None] * 5
    assert trial_value("host_memory", alone) == 9


def test_the_kernel_counts_pages() -> None:
    """Host memory is known to a page, which is what its resolution says; torch counts bytes."""
    measured = trial(0, 0, "base", memory=ON_GPU)

    assert find_metric("host_memory").resolution(measured) == pytest.approx(4096 / (180 * MIB))
    assert find_metric("host_memory_growth").resolution(measured) == pytest.approx(4096 / (100 * MIB))
    assert find_metric("peak_memory").resolution(measured) == 0


def test_figures_of_a_gpu_are_of_each_iteration() -> None:
    """A column that is missing or short is an error of whoever wrote the record."""
    for columns in ({"allocated": (1, 2)}, {"allocated": (1,), "peak_allocated": (1,), "peak_reserved": (1,)}):
        with pytest.raises(ValidationError, match="for each iteration, or for none"):
            Memory(resident=(1, 2), peak_resident=3, **columns)


def test_records_without_memory_are_written_as_before() -> None:
    """Empty fields are left out, so that digests of old records do not change."""
    written = trial(0, 0, "base").model_dump(mode="json")

    assert "memory" not in written
    assert "kv_memory_bytes" not in written["startup"]
    assert Trial.model_validate(trial(0, 0, "base", memory=ON_GPU).model_dump(mode="json")).memory == ON_GPU
