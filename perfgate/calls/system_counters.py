"""What Linux counts of this process: system calls, and instructions that it runs itself, where it may be asked.

Part of :mod:`perfgate.capture.vllm_worker`, which loads it by its path: it imports nothing of perfgate and must run on
Python 3.10. Layout and flags are those of ``linux/perf_event.h``, see perf_event_open(2).
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from pathlib import Path

PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
HARDWARE, INSTRUCTIONS = 0, 1
TRACEPOINT = 2
INHERIT, PINNED, NO_KERNEL, NO_HYPERVISOR = 1 << 1, 1 << 2, 1 << 5, 1 << 6
ATTRIBUTES = "=IIQQQQQ64x"
TRACEFS = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
IO, STATUS = Path("/proc/self/io"), Path("/proc/self/status")


class SystemCounters:
    """Counters of the thread that makes this and of all threads and processes that it starts from then on.

    Those that are refused are left out. Reads and writes are told to every process of itself (proc(5),
    ``/proc/PID/io``), with those of children that have ended; all system calls where the tracepoint can be read and
    opened, which mostly takes root; instructions where the processor's counters are shown.
    """

    def __init__(self) -> None:
        opened = {
            "instructions": open_event(HARDWARE, INSTRUCTIONS, INHERIT | PINNED | NO_KERNEL | NO_HYPERVISOR),
            "system calls": open_event(TRACEPOINT, tracepoint("raw_syscalls/sys_enter"), INHERIT),
        }
        self.events = {name: event for name, event in opened.items() if event is not None}
        self.own: dict[str, int] = {}
        self.own = self.since(self.read())

    def since(self, before: dict[str, int]) -> dict[str, int]:
        """What was counted since a reading, without what reading takes itself."""
        now = self.read()
        return {name: max(now[name] - before[name] - self.own.get(name, 0), 0) for name in now.keys() & before.keys()}

    def read(self) -> dict[str, int]:
        """Running totals by name."""
        totals = {}
        for name, event in self.events.items():
            try:
                count = os.read(event, 8)
            except OSError:  # these figures decide nothing: no trial fails for want of one
                continue
            if count:
                totals[name] = int.from_bytes(count, "little")
        try:
            io = dict(line.split(": ") for line in IO.read_text("ascii").splitlines())
            totals["reads and writes"] = int(io["syscr"]) + int(io["syscw"])
        except (OSError, KeyError, ValueError):  # a kernel without them
            pass
        return totals


def tracepoint(name: str) -> int | None:
    """The number of a tracepoint; ``None`` where it cannot be read."""
    for root in TRACEFS:
        try:
            return int(Path(root, "events", name, "id").read_text("ascii"))
        except (OSError, ValueError):
            continue
    return None


def is_filtered() -> bool:
    """Whether system calls of this process are filtered (seccomp(2)): a filter may end it for one that is refused."""
    try:
        status = STATUS.read_text("ascii", "replace")
    except OSError:
        return True
    return "Seccomp:\t2" in status


def open_event(kind: int, number: int | None, flags: int) -> int | None:
    """The descriptor of a counter that counts already; ``None`` where the system refuses it."""
    call = PERF_EVENT_OPEN.get(platform.machine())
    if call is None or number is None or is_filtered():
        return None
    size = struct.calcsize(ATTRIBUTES)
    attributes = struct.pack(ATTRIBUTES, kind, size, number, 0, 0, 0, flags)
    this_thread, any_cpu, no_group, close_on_exec = 0, -1, -1, 8
    event = ctypes.CDLL(None).syscall(call, attributes, this_thread, any_cpu, no_group, close_on_exec)
    return event if event >= 0 else None
