"""What perfgate reads from NVML, on GPUs that are not there."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import fake_nvml as nvml_stand_in
import pynvml
import pytest
from fake_nvml import FakeMachine, fake_uuid

from perfgate.machine import nvml as gpu
from perfgate.machine.accelerator import GpuError, GpuProcess
from perfgate.machine.fingerprint import Gpu
from perfgate.machine.nvml import Nvml, connect

UUID = fake_uuid(0)
MISSING = [3, 4, 13]
"""NVML's codes for: not supported, no permission, driver too old."""


@pytest.fixture
def nvml(fake_nvml: FakeMachine) -> Iterator[Nvml]:
    """A connection to a machine with one H200."""
    assert fake_nvml.file.exists()
    with Nvml() as connected:
        yield connected


# --- the stand-in itself


def test_stand_in_speaks_as_nvidia_ml_py_does() -> None:
    """Every function, constant and error of the stand-in is in the real module, with the same value."""
    for name, value in vars(nvml_stand_in).items():
        if name.startswith("NVML_"):
            assert value == getattr(pynvml, name), name
        elif name.startswith("NVMLError_"):
            assert value().value == getattr(pynvml, name)().value, name
        elif name.startswith("nvml"):
            assert callable(getattr(pynvml, name)), name


def test_stand_in_has_all_that_is_used() -> None:
    """What gpu.py takes from pynvml is in the stand-in, so that no test fails for the want of it."""
    tree = ast.parse(Path(gpu.__file__).read_text(encoding="utf-8"))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "pynvml"
    }
    assert used <= set(dir(nvml_stand_in))


def test_stand_in_serves_other_processes(fake_nvml: FakeMachine) -> None:
    """A process of its own finds the same machine, and what it locks is seen here."""
    program = f"from perfgate.machine.nvml import connect; connect().lock_clocks({UUID!r}, 1500, None)"
    subprocess.run([sys.executable, "-c", program], env={**os.environ, **fake_nvml.environment}, check=True)
    assert fake_nvml.gpu().locked == (1500, None)


# --- connecting


@pytest.mark.parametrize(
    "code", [nvml_stand_in.NVML_ERROR_LIBRARY_NOT_FOUND, nvml_stand_in.NVML_ERROR_DRIVER_NOT_LOADED]
)
def test_machine_without_a_driver(fake_nvml: FakeMachine, code: int) -> None:
    """No driver means no GPUs, which is no error; one that fails is, for nobody wants to measure on the CPU instead."""
    fake_nvml.update(errors={"nvmlInit": code})
    assert connect() is None
    fake_nvml.update(errors={"nvmlInit": nvml_stand_in.NVML_ERROR_UNKNOWN})
    with pytest.raises(GpuError, match="cannot start NVML") as caught:
        connect()
    assert caught.value.code == "gpu-unreadable"


@pytest.mark.usefixtures("fake_nvml")
def test_connection_is_closed() -> None:
    """After the block it answers no more."""
    with Nvml() as nvml:
        assert (nvml.driver, nvml.cuda) == ("580.159.04", "13.0")
    with pytest.raises(GpuError, match="the connection is closed"):
        nvml.gpus()


@pytest.mark.parametrize("function", ["nvmlDeviceGetClockInfo", "nvmlDeviceGetHandleByUUID"])
def test_a_driver_that_hangs_is_given_up(
    nvml: Nvml, fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """A call that does not return is an error after its limit; later calls are one at once and wait for nothing."""
    nvml._limit_s = 0.2
    fake_nvml.update(errors={function: nvml_stand_in.HANG})

    with pytest.raises(GpuError, match=r"does not answer: sample did not return within 0\.2 s") as caught:
        nvml.sample(UUID)
    assert caught.value.code == "gpu-unreadable"

    monkeypatch.setattr("perfgate.machine.forked.select.poll", None)
    with pytest.raises(GpuError, match=r"does not answer: sample did not return within 0\.2 s"):
        nvml.processes(UUID)


def test_a_driver_that_hangs_at_the_start(fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection is an error of its own, not a machine without a GPU."""
    monkeypatch.setattr("perfgate.machine.nvml.START_LIMIT_S", 0.2)
    fake_nvml.update(errors={"nvmlInit": nvml_stand_in.HANG})

    with pytest.raises(GpuError, match="does not answer"):
        connect()


def test_calls_from_several_threads_get_their_own_answers(nvml: Nvml, fake_nvml: FakeMachine) -> None:
    """The thread that samples and the one that measures ask at once; nobody gets what another asked for."""
    fake_nvml.gpu().update(temperature_c=41)

    def ask(number: int) -> object:
        return nvml.sample(UUID).temperature_c if number % 2 else nvml.facts(UUID).uuid

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(ask, range(40)))
    assert answers == [UUID, 41] * 20


def test_the_process_of_the_calls_holds_nothing_of_ours(fake_nvml: FakeMachine, tmp_path: Path) -> None:
    """A call that hangs for ever in the kernel keeps no lock, no file and no output of perfgate open."""
    with (tmp_path / "held").open("w") as held, Nvml() as nvml:
        assert fake_nvml.file.exists()
        assert nvml._process is not None
        assert nvml.driver  # it has begun
        links = [str(link.readlink()) for link in Path(f"/proc/{nvml._process._pid}/fd").iterdir()]
        assert held.name not in links
        assert {link.partition(":")[0] for link in links} == {"/dev/null", "socket"}


# --- facts and readings


def test_facts(nvml: Nvml) -> None:
    """What identifies a GPU is read as it is."""
    assert nvml.gpus({}) == (
        Gpu(
            name="NVIDIA H200", uuid=UUID, memory_bytes=150754820096, ecc=True, mig=False, pcie_generation=5,
            pcie_width=16, power_limit_mw=700000, vbios="96.00.A5.00.1A", persistence=True, numa_node=0,
        ),
    )  # fmt: skip


@pytest.mark.parametrize("told", [0, 1])
def test_confidential_computing_is_a_fact(fake_nvml: FakeMachine, told: int) -> None:
    """The driver says whether its GPUs compute for a confidential machine; one that knows no such thing is fine."""
    with Nvml() as before:
        assert before.facts(UUID).confidential is None
    fake_nvml.update(confidential=told)

    with Nvml() as nvml:
        assert nvml.facts(UUID).confidential is bool(told)


@pytest.mark.parametrize("code", MISSING)
def test_facts_that_a_gpu_does_not_tell(nvml: Nvml, fake_nvml: FakeMachine, code: int) -> None:
    """They are None; the others are there."""
    names = ["EccMode", "MigMode", "PersistenceMode", "MemoryInfo", "NumaNodeId", "MaxPcieLinkGeneration"]
    names += ["VbiosVersion", "CurrPcieLinkWidth", "EnforcedPowerLimit"]
    fake_nvml.gpu().update(errors={f"nvmlDeviceGet{name}": code for name in names})
    assert nvml.facts(UUID) == Gpu(name="NVIDIA H200", uuid=UUID)
    assert nvml.memory_used_bytes(UUID) is None


def test_sample_shows_what_the_gpu_does(nvml: Nvml, fake_nvml: FakeMachine) -> None:
    """Each figure has its place, and a reason bit its name."""
    counters = {"269": 7, "270": 8, "271": 9}
    fake_nvml.gpu().update(
        sm_mhz=1395, memory_mhz=2201, power_mw=687653, temperature_c=52, memory_temperature_c=55,
        utilisation_percent=93, reasons=0x40, slowdown_ns=counters, energy_mj=1000, energy_at_s=2**33,
    )  # fmt: skip
    sample = nvml.sample(UUID)
    assert (sample.sm_mhz, sample.memory_mhz, sample.power_mw, sample.reasons) == (1395, 2201, 687653, 0x40)
    assert (sample.temperature_c, sample.memory_temperature_c, sample.utilisation_percent) == (52, 55, 93)
    assert sample.slowdown_ns == {"software-thermal": 7, "hardware-thermal": 8, "power-brake": 9}


def test_energy_grows(nvml: Nvml, fake_nvml: FakeMachine) -> None:
    """Two samples differ by the energy that the power gave in between."""
    fake_nvml.gpu().update(power_mw=10**9)
    first, second = nvml.sample(UUID).energy_mj, nvml.sample(UUID).energy_mj
    assert first is not None
    assert second is not None
    assert second > first


@pytest.mark.parametrize("code", MISSING)
def test_readings_that_a_gpu_does_not_give(nvml: Nvml, fake_nvml: FakeMachine, code: int) -> None:
    """They are None one by one; an old driver's temperature and average power step in for the new ones."""
    old = ["nvmlDeviceGetTemperatureV", "field 186"]
    lacking = ["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetCurrentClocksEventReasons", "field 82", "field 83"]
    fake_nvml.gpu().update(power_mw=5000, errors=dict.fromkeys([*old, *lacking, "field 270"], code))

    sample = nvml.sample(UUID)

    assert (sample.temperature_c, sample.power_mw) == (42, 5000)
    assert (sample.utilisation_percent, sample.reasons, sample.memory_temperature_c, sample.energy_mj) == (None,) * 4
    assert sample.slowdown_ns is not None
    assert set(sample.slowdown_ns) == {"software-thermal", "power-brake"}


def test_lost_gpu_is_named(nvml: Nvml, fake_nvml: FakeMachine) -> None:
    """A GPU that fell off the bus is no GPU without features: every reading says so, with its UUID."""
    fake_nvml.gpu().update(lost=True)
    for call in (nvml.sample, nvml.facts, nvml.processes, nvml.memory_used_bytes, nvml.supported_clocks_mhz):
        with pytest.raises(GpuError, match="GpuIsLost") as caught:
            call(UUID)
        assert (caught.value.code, caught.value.where) == ("gpu-lost", UUID)


def test_processes_are_listed_by_pid(nvml: Nvml, fake_nvml: FakeMachine) -> None:
    """With the memory they hold, where the driver tells; their memory counts as used."""
    idle = nvml.memory_used_bytes(UUID)
    fake_nvml.gpu().update(processes=[{"pid": 9, "memory_bytes": 2**30}, {"pid": 4, "memory_bytes": None}])
    assert nvml.processes(UUID) == (GpuProcess(4, None), GpuProcess(9, 2**30))
    assert idle is not None
    assert nvml.memory_used_bytes(UUID) == idle + 2**30


# --- clocks


def test_lock_is_a_ceiling(nvml: Nvml, fake_nvml: FakeMachine) -> None:
    """Under a lock the GPU shows the clock and its reason; where power does not allow it, less and that reason too."""
    nvml.lock_clocks(UUID, 1830, 2201)
    held = nvml.sample(UUID)
    fake_nvml.gpu().update(power_cap_mhz=1700)
    capped = nvml.sample(UUID)
    nvml.reset_clocks(UUID, memory=True)
    fake_nvml.gpu().update(power_cap_mhz=None)
    free = nvml.sample(UUID)

    assert (held.sm_mhz, held.memory_mhz, held.reasons) == (1830, 2201, 0x2)
    assert (capped.sm_mhz, capped.reasons) == (1700, 0x6)
    assert (free.sm_mhz, free.memory_mhz, free.reasons) == (1980, 3201, 0)


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"permission": False}, "clock-no-permission"),
        ({"supported": False}, "clock-not-supported"),
        ({"lost": True}, "gpu-lost"),
    ],
)
def test_lock_that_is_refused(nvml: Nvml, fake_nvml: FakeMachine, facts: dict[str, Any], code: str) -> None:
    """Locking and resetting tell why they could not, each with its reason code, and change nothing."""
    fake_nvml.gpu().update(**facts)
    lock, reset = partial(nvml.lock_clocks, UUID, 1500, None), partial(nvml.reset_clocks, UUID, memory=False)
    for call in (lock, reset):
        with pytest.raises(GpuError) as caught:
            call()
        assert (caught.value.code, caught.value.where) == (code, UUID)
    assert fake_nvml.calls == []


def test_memory_clock_is_left_alone_unless_asked_for(nvml: Nvml, fake_nvml: FakeMachine) -> None:
    """GPUs exist that can hold only the SM clock."""
    nvml.lock_clocks(UUID, 1500, None)
    nvml.reset_clocks(UUID, memory=False)
    assert [name for name, *_ in fake_nvml.calls] == ["nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"]


def test_supported_clocks(nvml: Nvml, fake_nvml: FakeMachine) -> None:
    """SM clocks by memory clock; nothing where the GPU does not tell."""
    clocks = nvml.supported_clocks_mhz(UUID)
    assert set(clocks) == {3201, 2201}
    assert (clocks[3201][0], clocks[3201][-1], len(clocks[3201])) == (1980, 345, 110)
    fake_nvml.gpu().update(errors={"nvmlDeviceGetSupportedMemoryClocks": 3})
    assert nvml.supported_clocks_mhz(UUID) == {}


# --- which GPUs


FORBIDDEN: dict[str, Any] = {"errors": {"nvmlDeviceGetHandleByIndex": nvml_stand_in.NVML_ERROR_NO_PERMISSION}}
LOST: dict[str, Any] = {"lost": True}


@pytest.mark.parametrize(
    ("broken", "facts", "visible", "indices"),
    [
        (0, {}, None, [0, 1, 2]),
        (0, {}, "", []),
        (0, {}, "-1", []),
        (0, {}, "2,0", [2, 0]),
        (0, {}, " 1 , 2 ", [1, 2]),
        (0, {}, "0,9,1", [0]),
        (0, {}, "GPU-b", [2]),
        (0, {}, "GPU-aa,1", [0, 1]),
        (0, {}, "GPU-a", []),
        (0, {}, "1,GPU-x,0", [1]),
        (0, FORBIDDEN, None, [1, 2]),
        (0, FORBIDDEN, "GPU-b,GPU-ab", [2, 1]),
        (2, FORBIDDEN, "0,1,9", [0, 1]),
        (2, FORBIDDEN, "GPU-b", []),
        (1, LOST, "GPU-b,0", [2, 0]),
        (1, LOST, "0", [0]),
    ],
)
def test_cuda_visible_devices(
    nvml: Nvml, fake_nvml: FakeMachine, broken: int, facts: dict[str, Any], visible: str | None, indices: list[int]
) -> None:
    """Indices and beginnings of UUIDs count as for CUDA, up to the first that names no GPU; others may be broken."""
    uuids = ["GPU-aa1", "GPU-ab1", "GPU-b1"]
    gpus = [{"uuid": uuid} for uuid in uuids]
    gpus[broken] |= facts
    FakeMachine.build(fake_nvml.file, *gpus)
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert [found.uuid for found in nvml.gpus(environment)] == [uuids[index] for index in indices]


@pytest.mark.parametrize(
    ("facts", "visible", "code"),
    [
        (FORBIDDEN, "1", "gpu-unreadable"),
        (FORBIDDEN, "0,2", "gpu-unreadable"),
        (LOST, None, "gpu-lost"),
        (LOST, "1", "gpu-lost"),
        (LOST, "2", "gpu-lost"),
        (LOST, "GPU-ab1", "gpu-lost"),
    ],
)
def test_a_gpu_that_may_be_meant_and_cannot_be_read_is_an_error(
    nvml: Nvml, fake_nvml: FakeMachine, facts: dict[str, Any], visible: str | None, code: str
) -> None:
    """That is the one named, one of all, or one before an index: CUDA may not count it."""
    FakeMachine.build(fake_nvml.file, {"uuid": "GPU-aa1"}, {"uuid": "GPU-ab1", **facts}, {"uuid": "GPU-b1"})
    with pytest.raises(GpuError) as caught:
        nvml.gpus({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert caught.value.code == code
    assert ("Name GPUs by UUID" in caught.value.remedy) == (visible in {"1", "2", "0,2"})


def test_gpu_that_is_not_there(nvml: Nvml) -> None:
    """A UUID that no GPU has is an error that names it."""
    with pytest.raises(GpuError, match="cannot find the GPU") as caught:
        nvml.sample("GPU-x")
    assert (caught.value.code, caught.value.where) == ("gpu-unreadable", "GPU-x")
