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
import os
import platform
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
from pydantic import BaseModel, Field

from perfgate.models import Frozen


def _untold(value: object) -> bool:
    """Whether a fact is unknown: left out, so that a record older than it keeps the digest that it is named by."""
    return value in ("", None)


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
        confidential: Whether it computes for a confidential machine, which encrypts what goes to it; identity if told.
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
    confidential: bool | None = Field(default=None, exclude_if=_untold)
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
        usable_cores: Logical cores that programs may use here, by affinity and cgroup; identity if told.
        smt: Whether cores run two threads each, ``on`` or ``off``; identity if told.
        boost: Whether the processor may exceed its base clock, ``on`` or ``off``; identity if told.
        virtual: What the machine runs on, as it names itself, ``none`` on bare metal; identity if told.
        confidential: What hides the machine's memory from its host, ``tdx`` or ``sev``, else ``none``; identity if
            told. Such a machine made ITL 3.5 times as long (vllm-project/vllm#57680).
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
    usable_cores: int | None = Field(default=None, exclude_if=_untold)
    smt: str = Field(default="", exclude_if=_untold)
    boost: str = Field(default="", exclude_if=_untold)
    virtual: str = Field(default="", exclude_if=_untold)
    confidential: str = Field(default="", exclude_if=_untold)
    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    cuda: str = ""
    memory_bytes: int = 0
    host: str = ""
    boot_id: str = ""
    kernel: str = ""
    container: str = ""


SYSTEM, CGROUPS = Path("/sys/devices/system"), Path("/sys/fs/cgroup")
CPUINFO, VENDOR = Path("/proc/cpuinfo"), Path("/sys/class/dmi/id/sys_vendor")

IDENTITY = ("architecture", "cpu", "cores", "governor", "driver")
"""Fields of a machine that must agree for two measurements to be comparable."""

TOLD = ("usable_cores", "smt", "boost", "virtual", "confidential")
"""Fields that must agree where both tell: records of earlier versions do not."""

USUAL = {"smt": "on", "boost": "on", "virtual": "none", "confidential": "none"}
"""Of these what most machines tell; of usable cores it is all of them."""

GPU_IDENTITY = ("name", "memory_bytes", "ecc", "mig", "pcie_generation", "pcie_width")
"""Fields of a GPU that must agree."""

GPU_TOLD = ("confidential",)
"""Fields of a GPU that must agree where both tell."""

TOLERATED = {"memory_bytes": 0.05, "power_limit_mw": 0.01}
"""Numbers that may differ, by so large a share of the larger one."""


def comparable(a: Machine, b: Machine) -> tuple[str, ...]:
    """The differences that forbid a comparison, in words; empty where there are none."""
    differences = [*_differences(a, b, IDENTITY, "memory_bytes"), *_told_otherwise(a, b, TOLD)]
    if len(a.gpus) != len(b.gpus):
        names = (", ".join(gpu.name for gpu in machine.gpus) or "none" for machine in (a, b))
        return (*differences, f"gpus: {' against '.join(names)}")
    for number, (first, second) in enumerate(zip(a.gpus, b.gpus, strict=True)):
        texts = [
            *_differences(first, second, GPU_IDENTITY, "power_limit_mw"),
            *_told_otherwise(first, second, GPU_TOLD),
        ]
        differences += [f"GPU {number} {text}" for text in texts]
    return tuple(differences)


def machine_class(machine: Machine, clock_mode: str) -> str:
    """Which machines share baselines, as a folder's name: ``nvidia-h200-x1-observe-3fa2b1``, ``cpu-x2-observe-9c01de``.

    ``<gpu>-x<n>-<clock mode>-<6 hex digits of identity>``; without a GPU ``cpu`` and the number of cores. Two machines
    of one class agree in everything that is identity; what is tolerated may still differ too much, and so may what
    earlier versions did not tell.
    """
    # The usual is left out, as what is not told is, so that classes keep their names.
    usual = {**USUAL, "usable_cores": machine.cores}
    settings = {name: getattr(machine, name) for name in TOLD}
    unusual = {name: value for name, value in settings.items() if not _untold(value) and value != usual[name]}
    identity = [{name: getattr(machine, name) for name in IDENTITY} | unusual]
    for gpu in machine.gpus:
        hidden = {"confidential": True} if gpu.confidential else {}
        identity.append({name: getattr(gpu, name) for name in GPU_IDENTITY} | hidden)
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:6]
    model = re.sub(r"[^a-z0-9]+", "-", machine.gpus[0].name.lower()).strip("-") if machine.gpus else "cpu"
    return f"{model}-x{len(machine.gpus) or machine.cores}-{clock_mode}-{digest}"


def as_told_before(machine: Machine) -> Machine:
    """The machine without what its class did not depend on in earlier versions."""
    return machine.model_copy(update={"usable_cores": None, "smt": "", "boost": "", "virtual": ""})


def anonymous(machine: Machine) -> Machine:
    """The machine without what is only observed: nothing in it names a host, a boot or a device."""
    hidden: dict[str, object] = {"uuid": "", "vbios": None, "persistence": None, "numa_node": None}
    gpus = tuple(gpu.model_copy(update=hidden) for gpu in machine.gpus)
    unseen = dict.fromkeys(("cuda", "host", "boot_id", "kernel", "container"), "")
    return machine.model_copy(update={"gpus": gpus, **unseen})


def _differences(a: BaseModel, b: BaseModel, identity: Sequence[str], tolerated: str) -> Iterator[str]:
    for name in identity:
        if getattr(a, name) != getattr(b, name):
            yield f"{name}: {getattr(a, name)!r} against {getattr(b, name)!r}"
    first, second, share = getattr(a, tolerated), getattr(b, tolerated), TOLERATED[tolerated]
    if (first is None) != (second is None) or (first and abs(first - second) > share * max(first, second)):
        yield f"{tolerated}: {first} against {second}, more than {share * 100:g} % apart"


def _told_otherwise(a: BaseModel, b: BaseModel, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        first, second = getattr(a, name), getattr(b, name)
        if not _untold(first) and not _untold(second) and first != second:
            yield f"{name}: {first!r} against {second!r}"


def read_machine(gpus: tuple[Gpu, ...] = (), driver: str = "", cuda: str = "") -> Machine:
    """Measure this machine; GPUs and their driver come from the caller, who talks to NVML."""
    return Machine(
        architecture=platform.machine(),
        cpu=_told_of_cpu("model name") or platform.processor() or platform.machine(),
        cores=psutil.cpu_count() or 1,
        governor=_line(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        usable_cores=usable_cores(),
        smt=_switch(SYSTEM / "cpu/smt/active"),
        boost=_switch(SYSTEM / "cpu/cpufreq/boost") or _switch(SYSTEM / "cpu/intel_pstate/no_turbo", on="0"),
        virtual=_virtual(),
        confidential=_confidential(),
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


def _switch(file: Path, on: str = "1") -> str:
    """``on`` or ``off``; empty where this kernel does not tell."""
    line = _line(file)
    return "" if line not in ("0", "1") else "on" if line == on else "off"


def usable_cores() -> int:
    """Logical cores that this process and its children may use at once, at least 1: by affinity and cgroup v2."""
    group = _line(Path("/proc/self/cgroup")).rpartition("::/")[2]
    limits = [_line(CGROUPS / folder / "cpu.max").split() for folder in {"", group}]
    quotas = [int(quota) / int(period) for quota, period in (limit for limit in limits if len(limit) == 2)  # noqa: PLR2004
              if quota != "max"]  # fmt: skip
    return max(1, round(min([len(os.sched_getaffinity(0)), *quotas])))


def _virtual() -> str:
    """What the machine runs on: a guest sees its hypervisor's mark among the processor's flags, on x86 alone."""
    if not (flags := _told_of_cpu("flags").split()):
        return ""
    return (_line(VENDOR) or "unknown hypervisor") if "hypervisor" in flags else "none"


def _confidential() -> str:
    """By the marks that the kernel of a guest leaves; a container may hide those of SEV."""
    if "tdx_guest" in _told_of_cpu("flags").split() or any(Path(f"/dev/tdx{mark}guest").exists() for mark in "_-"):
        return "tdx"
    return "sev" if Path("/dev/sev-guest").exists() else "none"


def _container() -> str:
    """By the marks that container engines leave; an engine that leaves none is not seen."""
    kinds = {"/.dockerenv": "docker", "/run/.containerenv": "podman", "/run/secrets/kubernetes.io": "kubernetes"}
    marks = [kind for mark, kind in kinds.items() if Path(mark).exists()]
    return marks[0] if marks else _line(Path("/run/systemd/container"))


def _told_of_cpu(key: str) -> str:
    """What the kernel says of the first processor under a key; empty where it does not."""
    line = re.search(rf"^{key}\s*:(.*)$", _line(CPUINFO), re.MULTILINE)
    return line[1].strip() if line else ""
