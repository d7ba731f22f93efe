"""Fingerprints: what the machine is, and whether two machines may be compared.

The subject's fingerprint (its packages) is what is under test and never a ground for refusal; the machine's is.
"""

from __future__ import annotations

import platform
import socket
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict


class Machine(BaseModel):
    """A machine as measured.

    Args:
        architecture: Processor architecture; identity.
        cpu: Processor model; identity.
        cores: Logical cores; identity.
        gpus: Names of the GPUs in use; identity. Empty where engines run on the CPU.
        driver: GPU driver version; identity.
        host: Host name; observed.
        boot_id: Changes with every boot; observed.
        kernel: Kernel release; observed.
        memory_bytes: Physical memory; observed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    architecture: str
    cpu: str
    cores: int
    gpus: tuple[str, ...] = ()
    driver: str = ""
    host: str = ""
    boot_id: str = ""
    kernel: str = ""
    memory_bytes: int = 0


IDENTITY = ("architecture", "cpu", "cores", "gpus", "driver")
"""Fields that must agree for two measurements to be comparable."""


def comparable(a: Machine, b: Machine) -> tuple[str, ...]:
    """The differences that forbid a comparison, in words; empty where there are none."""
    return tuple(
        f"{name}: {getattr(a, name)!r} against {getattr(b, name)!r}"
        for name in IDENTITY
        if getattr(a, name) != getattr(b, name)
    )


def read_machine(gpus: tuple[str, ...] = (), driver: str = "") -> Machine:
    """Measure this machine; GPU names and driver come from the caller, who talks to NVML."""
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    return Machine(
        architecture=platform.machine(),
        cpu=_cpu_model(),
        cores=psutil.cpu_count() or 1,
        gpus=gpus,
        driver=driver,
        host=socket.gethostname(),
        boot_id=boot_id.read_text().strip() if boot_id.exists() else "",
        kernel=platform.release(),
        memory_bytes=psutil.virtual_memory().total,
    )


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
