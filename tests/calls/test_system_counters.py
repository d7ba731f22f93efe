"""What Linux counts of a process, where it may be asked; what it refuses is left out."""

from __future__ import annotations

import importlib.machinery
import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

WORKER_SIDE = Path(__file__).parents[2] / "perfgate" / "calls" / "system_counters.py"
TASK_CLOCK = (1, 1, 0)
"""``PERF_TYPE_SOFTWARE``, ``PERF_COUNT_SW_TASK_CLOCK``: nanoseconds, on any machine."""
MANY, SOME = 500, 100
COUNTED = """
import importlib.machinery, json, os, sys, threading, types

module = types.ModuleType("system_counters")
importlib.machinery.SourceFileLoader("system_counters", sys.argv[1]).exec_module(module)
counters, zeros = module.SystemCounters(), os.open("/dev/zero", os.O_RDONLY)
def nothing(): pass
def reads():
    for _ in range(int(sys.argv[2])): os.read(zeros, 1)
def reads_elsewhere():
    thread = threading.Thread(target=reads)
    thread.start()
    thread.join()
def spent(work):
    before = counters.read()
    work()
    return counters.since(before)
print(json.dumps({work.__name__: spent(work) for work in (nothing, reads, reads_elsewhere)}))
"""


@pytest.fixture
def worker_side() -> Any:
    """The file that the worker loads, as the worker does."""
    module = types.ModuleType("system_counters")
    importlib.machinery.SourceFileLoader("system_counters", str(WORKER_SIDE)).exec_module(module)
    return module


@pytest.fixture(scope="module")
def spent() -> dict[str, dict[str, int]]:
    """What was counted in a process of its own, which can have started no thread before, by its work."""
    done = subprocess.run([sys.executable, "-c", COUNTED, str(WORKER_SIDE), str(MANY)], capture_output=True, check=True)
    counted: dict[str, dict[str, int]] = json.loads(done.stdout)
    return counted


def counts_of(name: str, spent: dict[str, dict[str, int]]) -> dict[str, int]:
    """One counter's figures by work."""
    if name not in spent["nothing"]:
        pytest.skip(f"{name} may not be counted here")
    return {work: counts[name] for work, counts in spent.items()}


def test_reads_of_every_thread_are_counted(spent: dict[str, dict[str, int]]) -> None:
    """Without what a reading takes itself."""
    assert counts_of("reads and writes", spent) == {"nothing": 0, "reads": MANY, "reads_elsewhere": MANY}


def test_system_calls_of_every_thread_are_counted(spent: dict[str, dict[str, int]]) -> None:
    """A thread's start and end take some more, and an allocator asks for memory when it likes."""
    counts = counts_of("system calls", spent)

    assert counts["nothing"] < SOME
    assert all(MANY <= counts[work] < MANY + SOME for work in ("reads", "reads_elsewhere"))


def test_a_counter_of_the_kernel_counts(worker_side: Any) -> None:
    """One that every machine has: what the system is asked for has the form that it expects."""
    event = worker_side.open_event(*TASK_CLOCK)
    if event is None:
        pytest.skip("perf_event_open is refused here")
    try:
        first, second = (int.from_bytes(os.read(event, 8), "little") for _ in range(2))
    finally:
        os.close(event)

    assert 0 < first < second


def test_a_counter_that_cannot_be_read_is_left_out(
    worker_side: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No iteration fails for it, and the other counters are told; one that was taken away reads as nothing."""
    monkeypatch.setattr(worker_side, "PERF_EVENT_OPEN", {})
    counters = worker_side.SystemCounters()
    counters.events = {"broken": os.open(tmp_path, os.O_RDONLY), "gone": os.open(os.devnull, os.O_RDONLY),
                       "fine": os.open("/dev/zero", os.O_RDONLY)}  # fmt: skip

    spent = counters.since(counters.read())

    assert {name: spent.get(name) for name in counters.events} == {"broken": None, "gone": None, "fine": 0}
    for event in counters.events.values():
        os.close(event)


def test_what_the_system_refuses_is_left_out(worker_side: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An unknown processor, no tracepoints, and a kernel that does not count reads."""
    monkeypatch.setattr(worker_side, "PERF_EVENT_OPEN", {})
    monkeypatch.setattr(worker_side, "TRACEFS", (str(tmp_path),))
    monkeypatch.setattr(worker_side, "IO", tmp_path / "io")

    counters = worker_side.SystemCounters()

    assert worker_side.tracepoint("raw_syscalls/sys_enter") is None
    assert counters.since(counters.read()) == {}
    monkeypatch.undo()
    monkeypatch.setattr(worker_side, "STATUS", tmp_path / "status")
    for filtered in ("0", "2"):
        (tmp_path / "status").write_text(f"Name:\tx\nSeccomp:\t{filtered}\n")
        assert worker_side.is_filtered() is (filtered == "2")
