"""Fingerprints: what the machine is, and whether two machines may be compared.

The subject's fingerprint (its packages) is what is under test and never a ground for refusal; the machine's is. Every
field of a machine is of one of three kinds:

* identity: must agree (GPU model, driver, processor, what is switched on or off);
* tolerated: a number that may differ by the share :data:`TOLERATED` gives;
* observed: recorded for whoever looks for a cause, never a ground for refusal.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
from pydantic import BaseModel

from perfgate.models import Frozen


class Gpu(Frozen):
    """One GPU as NVML describes it; ``None`` where this GPU or driver does not tell.

    Args:
        name: Product name; identity.
        uuid: ``GPU-...``; observed across visits. Both sides of a pair run on the same ones.
        memory_bytes: Size of its memory; identity.
        ecc: Whether error correction is on; identity.
        mig: Whether it is split into instances; identity.
        pcie_generation: The fastest the link can do; identity.
        pcie_width: Lanes in use; identity, because a badly seated card shows here.
        power_limit_mw: Enforced power limit; tolerated.
        vbios: Version of its firmware; observed.
        persistence: Whether the driver stays loaded without clients; observed.
        numa_node: Memory node it is attached to; observed.
    """

    name: str
    uuid: str
    memory_bytes: int | None = None
    ecc: bool | None = None
    mig: bool | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    power_limit_mw: int | None = None
    vbios: str | None = None
    persistence: bool | None = None
    numa_node: int | None = None


class Machine(Frozen):
    """A machine as measured; without a GPU the processor takes its place.

    Args:
        architecture: Processor architecture; identity.
        cpu: Processor model; identity.
        cores: Logical cores; identity.
        governor: How the kernel steers the processor's clock, where it tells; identity.
        gpus: Those in use, in CUDA's order; empty where engines run on the CPU.
        driver: GPU driver version; identity.
        cuda: Version of CUDA that the driver offers; observed, since it follows from the driver.
        memory_bytes: Physical memory; tolerated.
        host: Host name; observed.
        boot_id: Changes with every boot; observed.
        kernel: Kernel release; observed.
        container: Kind of container perfgate runs in, where it can be seen; observed.
    """

    architecture: str
    cpu: str
    cores: int
    governor: str = ""
    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    cuda: str = ""
    memory_bytes: int = 0
    host: str = ""
    boot_id: str = ""
    kernel: str = ""
    container: str = ""


IDENTITY = ("architecture", "cpu", "cores", "governor", "driver")
"""Fields of a machine that must agree for two measurements to be comparable."""

GPU_IDENTITY = ("name", "memory_bytes", "ecc", "mig", "pcie_generation", "pcie_width")
"""Fields of a GPU that must agree."""

TOLERATED = {"memory_bytes": 0.05, "power_limit_mw": 0.01}
"""Numbers that may differ, by so large a share of the larger one."""


def comparable(a: Machine, b: Machine) -> tuple[str, ...]:
    """The differences that forbid a comparison, in words; empty where there are none."""
    differences = list(_differences(a, b, IDENTITY, "memory_bytes"))
    if len(a.gpus) != len(b.gpus):
        return (*differences, f"gpus: {_names(a.gpus)} against {_names(b.gpus)}")
    for number, (first, second) in enumerate(zip(a.gpus, b.gpus, strict=True)):
        differences += [f"GPU {number} {text}" for text in _differences(first, second, GPU_IDENTITY, "power_limit_mw")]
    return tuple(differences)


def machine_class(machine: Machine, clock_mode: str) -> str:
    """Which machines share baselines, as a folder's name: ``nvidia-h200-x1-observe-3fa2b1``, ``cpu-x2-observe-9c01de``.

    ``<gpu>-x<n>-<clock mode>-<6 hex digits of identity>``; without a GPU ``cpu`` and the number of cores. Two machines
    of one class agree in everything that is identity; what is tolerated may still differ too much.
    """
    identity = [
        {name: getattr(machine, name) for name in IDENTITY},
        *({name: getattr(gpu, name) for name in GPU_IDENTITY} for gpu in machine.gpus),
    ]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:6]
    model = re.sub(r"[^a-z0-9]+", "-", machine.gpus[0].name.lower()).strip("-") if machine.gpus else "cpu"
    return f"{model}-x{len(machine.gpus) or machine.cores}-{clock_mode}-{digest}"


def anonymous(machine: Machine) -> Machine:
    """The machine without what is only observed: nothing in it names a host, a boot or a device."""
    hidden: dict[str, object] = {"uuid": "", "vbios": None, "persistence": None, "numa_node": None}
    gpus = tuple(gpu.model_copy(update=hidden) for gpu in machine.gpus)
    return machine.model_copy(
        update={"gpus": gpus, "cuda": "", "host": "", "boot_id": "", "kernel": "", "container": ""}
    )


def _differences(a: BaseModel, b: BaseModel, identity: Sequence[str], tolerated: str) -> Iterator[str]:
    for name in identity:
        if getattr(a, name) != getattr(b, name):
            yield f"{name}: {getattr(a, name)!r} against {getattr(b, name)!r}"
    first, second, share = getattr(a, tolerated), getattr(b, tolerated), TOLERATED[tolerated]
    if (first is None) != (second is None) or (first and abs(first - second) > share * max(first, second)):
        yield f"{tolerated}: {first} against {second}, more than {share * 100:g} % apart"


def _names(gpus: Sequence[Gpu]) -> str:
    return ", ".join(gpu.name for gpu in gpus) or "none"


def read_machine(gpus: tuple[Gpu, ...] = (), driver: str = "", cuda: str = "") -> Machine:
    """Measure this machine; GPUs and their driver come from the caller, who talks to NVML."""
    return Machine(
        architecture=platform.machine(),
        cpu=_cpu_model(),
        cores=psutil.cpu_count() or 1,
        governor=_line(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        gpus=gpus,
        driver=driver,
        cuda=cuda,
        memory_bytes=psutil.virtual_memory().total,
        host=socket.gethostname(),
        boot_id=boot_id(),
        kernel=platform.release(),
        container=_container(),
    )


def boot_id() -> str:
    """Changes with every boot; empty where the kernel keeps it to itself."""
    return _line(Path("/proc/sys/kernel/random/boot_id"))


def _line(file: Path) -> str:
    """What a file of the kernel says; empty where this kernel has no such file or keeps it to itself."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _container() -> str:
    """By the marks that container engines leave; an engine that leaves none is not seen."""
    kinds = {"/.dockerenv": "docker", "/run/.containerenv": "podman", "/run/secrets/kubernetes.io": "kubernetes"}
    marks = [kind for mark, kind in kinds.items() if Path(mark).exists()]
    return marks[0] if marks else _line(Path("/run/systemd/container"))


def _cpu_model() -> str:
    model = re.search(r"^model name\s*:(.*)$", _line(Path("/proc/cpuinfo")), re.MULTILINE)
    return model[1].strip() if model else platform.processor() or platform.machine()
