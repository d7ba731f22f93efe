"""GPUs as NVML sees them: which ones a trial runs on.

Everything here works without a GPU or driver: no NVML means no GPUs, and engines run on the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import pynvml


@dataclass(frozen=True)
class Gpus:
    """The GPUs that engines may use, in the order CUDA numbers them.

    Args:
        uuids: One a GPU, ``GPU-...``.
        names: Product names, likewise.
        driver: Driver version; empty without a GPU.
    """

    uuids: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    driver: str = ""

    def first(self, count: int) -> Gpus:
        """The first ``count`` of them, those that an engine of that many ranks takes."""
        return Gpus(self.uuids[:count], self.names[:count], self.driver)


def visible_gpus(environment: Mapping[str, str] = os.environ) -> Gpus:
    """GPUs that ``CUDA_VISIBLE_DEVICES`` admits, by NVML; none where there is no driver.

    Entries may be indices or (beginnings of) UUIDs; like CUDA, the list ends at the first entry that names no GPU.
    Indices follow the PCI bus, which is CUDA's order where ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` or all GPUs are alike.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return Gpus()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        found = [(pynvml.nvmlDeviceGetUUID(h), pynvml.nvmlDeviceGetName(h)) for h in handles]
        driver = pynvml.nvmlSystemGetDriverVersion()
    finally:
        pynvml.nvmlShutdown()
    chosen = _admitted(found, environment.get("CUDA_VISIBLE_DEVICES"))
    return Gpus(tuple(uuid for uuid, _ in chosen), tuple(name for _, name in chosen), driver if chosen else "")


def _admitted(found: list[tuple[str, str]], visible: str | None) -> list[tuple[str, str]]:
    if visible is None:
        return found
    chosen: list[tuple[str, str]] = []
    for entry in (part.strip() for part in visible.split(",")):
        matches = [found[int(entry)]] if entry.isdigit() and int(entry) < len(found) else []
        matches = matches or [gpu for gpu in found if entry.startswith("GPU-") and gpu[0].startswith(entry)]
        if len(matches) != 1:
            break
        chosen += matches
    return chosen
