"""Whether the GPUs are free, and whether their clocks could be held; nothing is locked to find out."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence

from perfgate.capture.neighbours import known
from perfgate.doctor.diagnosis import Check, Finding
from perfgate.doctor.profilers import CAP_SYS_ADMIN, has_capability
from perfgate.machine.accelerator import Accelerators, GpuError, connect
from perfgate.machine.clock_helper import helper_command, is_permitted
from perfgate.machine.clock_lease import Lease, find_leases, owner_lives
from perfgate.machine.clocks import check_supported
from perfgate.machine.fingerprint import Gpu, read_machine
from perfgate.machine.sampler import company
from perfgate.scenario.declaration import Clocks, LoadedScenario, Scenario
from perfgate.units import gib

GPU = Check("gpu", "Without a driver that answers, nothing about a GPU can be measured or controlled.")
GPU_IDLE = Check("gpu-idle", "Whoever else computes on a GPU slows and spreads every trial.")
CLOCK_LOCK = Check("clock-lock", "Held clocks are what makes visits comparable; a lock that fails ends the run.")
NEIGHBOURS = Check("neighbours", "Engines on other GPUs share cores, memory and power with the one that is timed.")
_END_THEM = (
    "Wait for them, or end what is yours. The host shows all of them: "
    "nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv"
)
LEASES = Check("stale-leases", "A killed run leaves its clock lock behind, and everybody after it measures under it.")


def check_gpus(
    scenarios: Sequence[LoadedScenario], environment: Mapping[str, str]
) -> tuple[tuple[Gpu, ...], list[Finding]]:
    """The GPUs that engines would see, and what was found about them."""
    locking = [loaded.scenario for loaded in scenarios if loaded.scenario.clocks.mode == "lock"]
    try:
        nvml = connect()
        if nvml is None:
            return (), _without_gpu("no NVIDIA driver here: engines run on the CPU, and", locking)
        with nvml:
            if not (gpus := nvml.gpus(environment)) and environment.get("CUDA_VISIBLE_DEVICES") == "":
                return (), _without_gpu("CUDA_VISIBLE_DEVICES hides every GPU:", locking)
            return gpus, list(_look(nvml, gpus, locking))
    except GpuError as error:
        return (), [GPU.failed(error.finding, "nvidia-smi shows what is wrong with the GPU or its driver.")]


def _without_gpu(why: str, locking: Sequence[Scenario]) -> list[Finding]:
    """A scenario that locks clocks cannot be measured where there is no GPU."""
    remedy = "Measure on a GPU machine, or write clocks: {mode: observe}."
    return [
        GPU.skipped(f"{why} checks of GPUs are skipped"),
        *(CLOCK_LOCK.failed(f"{scenario.name} locks clocks, and there is no GPU here", remedy) for scenario in locking),
    ]


def _look(nvml: Accelerators, gpus: Sequence[Gpu], locking: Sequence[Scenario]) -> Iterator[Finding]:
    if not gpus:
        remedy = "Start the container with --gpus all, or correct CUDA_VISIBLE_DEVICES."
        yield GPU.failed("the driver answers, and no GPU is visible", remedy)
        return
    fewer = "; all are looked at, and a run takes the first that its engine needs" if len(gpus) > 1 else ""
    yield GPU.ok(f"{len(gpus)} visible, driver {nvml.driver}, CUDA up to {nvml.cuda}{fewer}")
    for number, gpu in enumerate(gpus):
        name = f"GPU {number} ({gpu.name})"
        if busy := company(nvml, [gpu.uuid]):
            yield GPU_IDLE.failed(f"{name}: {busy}", _END_THEM)
        else:
            used = nvml.memory_used_bytes(gpu.uuid)
            more = f", {gib(used)} of its memory in use" if used else ""
            yield GPU_IDLE.ok(f"{name}: nobody computes on it{more}")
    if not locking:
        yield CLOCK_LOCK.ok("no scenario here locks clocks: they are observed, which needs no rights")
    for scenario in locking:
        yield _lock(nvml, gpus, scenario.name, scenario.clocks)
    yield _leases(gpus)
    if len(gpus) > 1:
        yield _neighbours(nvml, gpus)


def _lock(nvml: Accelerators, gpus: Sequence[Gpu], scenario: str, clocks: Clocks) -> Finding:
    """Whether these clocks exist on these GPUs, and whether setting them is permitted."""
    memory = f", memory at {clocks.memory_mhz} MHz" if clocks.memory_mhz is not None else ""
    sm_mhz = clocks.sm_mhz
    assert sm_mhz is not None, "the scenario sees to that"  # noqa: S101 (for the type checker)
    wanted = f"{scenario}: SM at {sm_mhz} MHz{memory}"
    try:
        for gpu in gpus:
            check_supported(nvml, gpu.uuid, sm_mhz, clocks.memory_mhz)
        means = _means_to_lock(gpus[0].uuid)
    except GpuError as error:
        return CLOCK_LOCK.failed(f"{scenario}: {error.where}: {error.text}", error.remedy)
    if not means:
        return CLOCK_LOCK.failed(
            f"{wanted}: this user may not set clocks, and no helper may do it for him",
            "Install the helper (.github/runner/README.md), or write clocks: {mode: observe}.",
        )
    return CLOCK_LOCK.ok(f"{wanted}, to be set {means}; not tried")


def _means_to_lock(uuid: str) -> str:
    """In whose right clocks can be set; empty where in nobody's.

    The driver asks for CAP_SYS_ADMIN (NV_IS_SUSER in NVIDIA/open-gpu-kernel-modules), which root may lack in a
    container.

    Raises:
        GpuError: The variable that names the helper cannot be read.
    """
    if os.geteuid() == 0 and has_capability(CAP_SYS_ADMIN):
        return "as root"
    helper = helper_command()
    return f"by {shlex.join(helper)}" if helper and is_permitted(helper, ["reset", uuid]) else ""


def _neighbours(nvml: Accelerators, gpus: Sequence[Gpu]) -> Finding:
    """What engines on other GPUs do to a trial, as it was measured last."""
    neighbours = next(filter(None, (known(read_machine((gpu,), nvml.driver, nvml.cuda), [gpu]) for gpu in gpus)), None)
    if neighbours is None:
        return NEIGHBOURS.skipped("not measured since the last boot: the first perfgate run --gpus does")
    effect = neighbours.worst(neighbours.gates)
    words, remedy = neighbours.words(effect), "Measure on one GPU, or on fewer at once."
    return NEIGHBOURS.warning(words, remedy) if effect.share > 1 else NEIGHBOURS.ok(words)


def _leases(gpus: Sequence[Gpu]) -> Finding:
    """Whether a dead run has left clocks locked, or a living one holds them."""
    try:
        leases = find_leases([gpu.uuid for gpu in gpus])
        living = [lease for lease in leases if owner_lives(lease.uuid)]
    except OSError as error:
        return LEASES.failed(f"{error.filename} cannot be read: {error.strerror}", "See the check state-folder.")
    stale = [lease for lease in leases if lease not in living and not lease.outlived_a_boot]
    if stale:
        return LEASES.warning(f"left by a run that is gone: {_list(stale)}", "perfgate clocks reset")
    if living:
        return LEASES.warning(f"a run is measuring: {_list(living)}", "Wait for that run.")
    return LEASES.ok("no clocks are left locked by perfgate")


def _list(leases: Sequence[Lease]) -> str:
    return "; ".join(f"{lease.uuid}: {lease}" for lease in leases)
