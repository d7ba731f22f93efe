"""Watching GPUs from perfgate's own process: samples, and telling foreign processes from the engine's."""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path

import fake_nvml as nvml_stand_in
import pytest
from fake_nvml import NVML_ERROR_GPU_IS_LOST, FakeMachine
from perfgate_process import DEADLINE_S

from perfgate.machine.accelerator import GpuProcess
from perfgate.machine.nvml import Nvml
from perfgate.machine.processes import wait_until
from perfgate.machine.sampler import Company, Sampler, company
from perfgate.machine.telemetry import Window

OURS, STRANGER, HOSTS = 101, os.getpid(), 4_000_001
"""An engine's pid, a pid of this namespace that is no engine's, and one that means nothing here."""


@pytest.mark.parametrize(
    ("host_pids", "before", "looks", "foreign"),
    [
        (True, [], [[OURS, STRANGER]], [STRANGER]),
        (True, [], [[HOSTS]], []),
        (False, [], [[HOSTS], [HOSTS, HOSTS + 1]], [HOSTS + 1]),
        (False, [HOSTS], [[HOSTS, HOSTS + 1]], [HOSTS]),
        (False, [], [[HOSTS], [HOSTS, OURS], [HOSTS + 1]], [HOSTS, HOSTS + 1]),
    ],
    ids=["on the host", "one that has ended", "in a container", "one from before", "a container of its own pids"],
)
def test_who_is_foreign(looks: list[list[int]], before: list[int], foreign: list[int], *, host_pids: bool) -> None:
    """On the host all without the engine's mark; else all but one process that appears, until a mark is seen."""
    watch = Company(lambda pid: pid == OURS, host_pids=host_pids)
    watch.see([GpuProcess(pid, 5) for pid in before], started=False)
    for pids in looks:
        watch.see([GpuProcess(pid, 5) for pid in pids])
    assert [one.pid for one in watch.foreign] == foreign
    assert all(one.name for one in watch.foreign if one.pid == STRANGER)


def test_a_foreign_process_that_comes_and_goes_is_kept_with_its_peak() -> None:
    """Who disturbed a trial is known after it has gone, with the most memory it held."""
    watch = Company(lambda _: False, host_pids=True)
    for size in (5, 9, None, 2):
        watch.see([GpuProcess(STRANGER, size)])
    watch.see([])
    assert [(one.pid, one.memory_bytes) for one in watch.foreign] == [(STRANGER, 9)]


def test_readings_are_summarised_and_kept(
    fake_nvml: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every reading is in the summary and, with its time, in the file; a process that has ended is in neither."""
    monkeypatch.setattr("perfgate.machine.sampler.sees_host_pids", lambda: True)
    gpu = fake_nvml.gpu()
    gpu.update(processes=[{"pid": HOSTS, "memory_bytes": 5}], power_mw=500_000)
    with Nvml() as nvml, Sampler(nvml, [gpu.uuid], lambda _: False) as sampler:
        begin_ns = time.monotonic_ns()
        while sampler.read([])[0].samples < 6:  # the first may have been under way before the window
            time.sleep(0.01)
        end_ns = time.monotonic_ns()
    (found,) = sampler.read([Window(begin_ns, begin_ns, end_ns)])
    assert found.samples >= 5
    assert found.sm_mhz is not None
    assert found.sm_mhz.median == 1980
    assert found.foreign == ()
    stored = json.loads(gzip.decompress(sampler.write(tmp_path / "telemetry.json.gz")))[gpu.uuid]
    assert len(stored["t_ns"]) == len(stored["sm_mhz"]) >= 5
    assert stored["power_mw"][0] == 500_000


def test_a_gpu_lost_after_the_last_reading_is_told(fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """However short the trial was after that, it did not merely lack a reading."""
    looks: list[int] = []
    see = Sampler._see

    def noted(sampler: Sampler, *, started: bool = True) -> None:
        see(sampler, started=started)
        looks.append(len(looks))

    monkeypatch.setattr("perfgate.machine.sampler.PERIOD_S", 3600.0)
    monkeypatch.setattr(Sampler, "_see", noted)
    gpu = fake_nvml.gpu()
    with Nvml() as nvml, Sampler(nvml, [gpu.uuid], lambda _: False) as sampler:
        assert wait_until(lambda: len(looks) == 2, DEADLINE_S)  # one before the thread began
        gpu.update(lost=True)
    assert sampler.error is not None
    assert sampler.error.code == "gpu-lost"
    assert sampler.read([])[0].samples == 1


@pytest.mark.parametrize(
    ("lost", "code", "words"),
    [(True, "gpu-lost", ""), (False, "gpu-unreadable", "AttributeError: nvmlDeviceGetTemperatureV")],
)
def test_sampling_that_breaks_is_an_error_of_the_trial(
    fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch, code: str, words: str, *, lost: bool
) -> None:
    """Whatever ends the thread is kept, so that no trial passes for undisturbed because nobody looked."""

    def missing(*_: object) -> None:
        raise AttributeError("nvmlDeviceGetTemperatureV")

    if not lost:
        monkeypatch.setattr(nvml_stand_in, "nvmlDeviceGetTemperatureV", missing)
    with Nvml() as nvml, Sampler(nvml, [fake_nvml.gpu().uuid], lambda _: False) as sampler:
        fake_nvml.gpu().update(lost=lost)
        assert wait_until(lambda: sampler.error is not None, DEADLINE_S)
    assert sampler.error is not None
    assert sampler.error.code == code
    assert words in sampler.error.text


def test_a_gpu_lost_before_the_trial_is_no_crash(fake_nvml: FakeMachine) -> None:
    """The first look fails like any other: the error is kept."""
    gpu = fake_nvml.gpu()
    gpu.update(errors={"nvmlDeviceGetComputeRunningProcesses": NVML_ERROR_GPU_IS_LOST})
    with Nvml() as nvml, Sampler(nvml, [gpu.uuid], lambda _: False) as sampler:
        pass
    assert sampler.error is not None
    assert sampler.read([])[0].samples == 0


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, ""),
        ({"processes": [{"pid": STRANGER, "memory_bytes": 2**31}]}, "2.0 GiB)"),
        ({"memory_reserved_bytes": 20 * 2**30}, "20.0 GiB held by processes not visible from here"),
    ],
    ids=["free", "process", "memory"],
)
def test_who_is_on_a_gpu_is_said(fake_nvml: FakeMachine, facts: dict[str, object], words: str) -> None:
    """A free GPU has no words; a process is named, and memory that nobody shown holds belongs to somebody too."""
    gpu = fake_nvml.gpu()
    gpu.update(**facts)
    with Nvml() as nvml:
        found = company(nvml, [gpu.uuid])
    assert words in found
    assert bool(found) == bool(words)
