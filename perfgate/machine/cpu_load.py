"""How many of the cores that a measurement may use something else is using, and what.

The load average tells of the minute before, in which perhaps our own engine ran; so the kernel's counters are read
twice, a moment apart.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from perfgate.machine.fingerprint import usable_cores
from perfgate.machine.sampler import program_of

LOOK_S: Final = 0.5
ACCEPTED: Final = 0.1
"""This share of the cores may be busy where the engine computes on them: every step waits for its slowest thread."""
ACCEPTED_BESIDE_GPU: Final = 0.5
"""An engine on a GPU has a few threads that launch its kernels."""
STAT = Path("/proc/stat")
IDLE = (3, 4)
"""Where a line of :data:`STAT` has the time without work: idle, and waiting for a disk."""
GUEST = 8
"""From here on a line has times again that it has counted as the user's."""


@dataclass(frozen=True)
class CpuLoad:
    """What a look found.

    Args:
        busy: Cores that something else used, of those that programs may use here.
        cores: How many these are.
        busiest: The process that used most, and how many cores it used; empty where none is seen from here.
    """

    busy: float
    cores: int
    busiest: str = ""

    def disturbs(self, *, gpu: bool) -> bool:
        """Whether a measurement on a GPU, or on these cores, would be slowed and spread by it."""
        return self.busy > self.cores * (ACCEPTED_BESIDE_GPU if gpu else ACCEPTED)

    def __str__(self) -> str:
        """For people."""
        most = f", most by {self.busiest}" if self.busiest else ""
        return f"{self.busy:.1f} of {self.cores} usable cores are busy{most}"


def look_at_cores() -> CpuLoad | None:
    """Look for :data:`LOOK_S`; ``None`` where the kernel does not count what its cores do."""
    idle_before, all_before = _ticks()
    used_before = _used_s()
    time.sleep(LOOK_S)
    idle, every = _ticks()
    if every == all_before:
        return None
    seen = len(os.sched_getaffinity(0))
    cores = usable_cores()  # fewer where a quota bounds them: those that are left of all may still be enough
    busy = max(0.0, cores - seen * (idle - idle_before) / (every - all_before))
    used = {pid: (after - used_before[pid]) / LOOK_S for pid, after in _used_s().items() if pid in used_before}
    most = max(used, key=lambda pid: used[pid], default=0)
    name = program_of(most) if used.get(most) else ""
    return CpuLoad(busy, cores, f"{name} (process {most}, {used[most]:.1f})" if name else "")


def _ticks() -> tuple[int, int]:
    """Of the cores that this process may use since boot: time without work, and all time."""
    allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = [line.split() for line in STAT.read_text().splitlines()]
    times = [[int(ticks) for ticks in line[1 : GUEST + 1]] for line in lines if line[0] in allowed]
    return sum(core[place] for core in times for place in IDLE), sum(map(sum, times))


def _used_s() -> dict[int, float]:
    """Seconds of a core that each other process has used."""
    used = {}
    for process in psutil.process_iter(["cpu_times"]):
        if (times := process.info["cpu_times"]) and process.pid != os.getpid():
            used[process.pid] = times.user + times.system
    return used
