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


def seen(watch: Company) -> list[int]:
    """The pids it calls foreign."""
    return [one.pid for one in watch.foreign]


def test_where_pids_mean_the_same_a_process_is_ours_by_its_mark() -> None:
    """On the host itself whatever carries the engine's mark is ours, and everything else is foreign, with its name."""
    watch = Company(lambda pid: pid == OURS, host_pids=True)
    watch.see([GpuProcess(OURS, 5), GpuProcess(STRANGER, 2**30)])
    assert seen(watch) == [STRANGER]
    assert watch.foreign[0].name


def test_a_process_that_has_ended_is_not_foreign() -> None:
    """The driver lists a process for a moment after its end; on the host that can be seen."""
    watch = Company(lambda _: False, host_pids=True)
    watch.see([GpuProcess(HOSTS, 5)])
    assert seen(watch) == []


def test_in_a_container_the_first_process_after_the_start_is_the_engines() -> None:
    """The driver reports the host's pids there: one that appears is the engine's, a second one is foreign."""
    watch = Company(lambda _: False, host_pids=False)
    watch.see([], started=False)
    watch.see([GpuProcess(HOSTS, 5)])
    watch.see([GpuProcess(HOSTS, 9), GpuProcess(HOSTS + 1, 7)])
    assert seen(watch) == [HOSTS + 1]


def test_in_a_container_a_process_from_before_is_never_the_engines() -> None:
    """What computes before the engine starts is foreign, and does not take the engine's place."""
    watch = Company(lambda _: False, host_pids=False)
    watch.see([GpuProcess(HOSTS, 5)], started=False)
    watch.see([GpuProcess(HOSTS, 5), GpuProcess(HOSTS + 1, 7)])
    assert seen(watch) == [HOSTS]


def test_in_a_container_that_shows_its_own_pids_nothing_is_taken_on_trust() -> None:
    """As soon as a pid carries the engine's mark, one taken for it before is foreign after all."""
    watch = Company(lambda pid: pid == OURS, host_pids=False)
    watch.see([GpuProcess(HOSTS, 5)])
    watch.see([GpuProcess(HOSTS, 5), GpuProcess(OURS, 7)])
    watch.see([GpuProcess(HOSTS + 1, 1)])
    assert seen(watch) == [HOSTS, HOSTS + 1]


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


def test_a_gpu_lost_in_mid_trial_ends_sampling_with_its_reason(fake_nvml: FakeMachine) -> None:
    """The sampler's thread keeps the error for the trial and takes no more readings."""
    gpu = fake_nvml.gpu()
    with Nvml() as nvml, Sampler(nvml, [gpu.uuid], lambda _: False) as sampler:
        gpu.update(lost=True)
        until = time.monotonic() + DEADLINE_S
        while sampler.error is None and time.monotonic() < until:
            time.sleep(0.01)
    assert sampler.error is not None
    assert sampler.error.code == "gpu-lost"


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


def test_sampling_that_breaks_is_an_error_of_the_trial(fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends the thread is kept, so that no trial passes for undisturbed because nobody looked."""

    def missing(*_: object) -> None:
        raise AttributeError("nvmlDeviceGetTemperatureV")

    monkeypatch.setattr(nvml_stand_in, "nvmlDeviceGetTemperatureV", missing)
    with Nvml() as nvml, Sampler(nvml, [fake_nvml.gpu().uuid], lambda _: False) as sampler:
        until = time.monotonic() + DEADLINE_S
        while sampler.error is None and time.monotonic() < until:
            time.sleep(0.01)
    assert sampler.error is not None
    assert sampler.error.code == "gpu-unreadable"
    assert "AttributeError: nvmlDeviceGetTemperatureV" in sampler.error.text


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
