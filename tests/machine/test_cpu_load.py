"""How busy the cores are, by the counters of a kernel of our own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from perfgate.machine import cpu_load
from perfgate.machine.cpu_load import CpuLoad, look_at_cores
from perfgate.machine.sampler import program_of

Look = Callable[..., CpuLoad | None]


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    """A function that looks at four cores while each does so many of a hundred ticks' work, with a quota or without."""

    def run(*busy: int, quota: int = 4) -> CpuLoad | None:
        file = tmp_path / "stat"
        monkeypatch.setattr(cpu_load, "STAT", file)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
        monkeypatch.setattr(cpu_load, "usable_cores", lambda: quota)

        def count(seconds: float) -> None:
            assert seconds == cpu_load.LOOK_S
            file.write_text("".join(_line(core, work, 100 - work) for core, work in enumerate(busy)))

        file.write_text("".join(_line(core, 0, 0) for core in range(len(busy))))
        monkeypatch.setattr("perfgate.machine.cpu_load.time.sleep", count)
        return look_at_cores()

    return run


def _line(core: int, work: int, idle: int) -> str:
    """What the kernel says of a core: that guests worked as well is in the user's time already."""
    return f"cpu{core} {1000 + work} 5 7 {3000 + idle} 11 0 0 0 {work} 0\n"


def test_cores_that_something_else_uses(look: Look) -> None:
    """A tenth of the cores may be busy beside an engine on the CPU, half of them beside one on a GPU."""
    load = look(100, 50, 0, 0)
    assert load is not None
    assert (load.busy, load.cores) == (1.5, 4)
    assert str(load).startswith("1.5 of 4 usable cores are busy")
    assert load.disturbs(gpu=False)
    assert not load.disturbs(gpu=True)
    assert [CpuLoad(busy, 4).disturbs(gpu=False) for busy in (0.4, 0.41)] == [False, True]
    assert [CpuLoad(busy, 4).disturbs(gpu=True) for busy in (2.0, 2.01)] == [False, True]


def test_cores_of_others_do_not_count(look: Look) -> None:
    """Work on cores that this process may not use takes none of its own, and a quota is free while so many are idle."""
    beyond = look(0, 0, 0, 0, 100, 100)
    assert beyond is not None
    assert beyond.busy == 0
    within = look(100, 100, 0, 0, quota=2)
    assert within is not None
    assert within.busy == 0
    beside = look(100, 100, 100, 0, quota=2)
    assert beside is not None
    assert beside.busy == 1


def test_a_kernel_that_counts_nothing(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the counters do not move nothing is known."""
    monkeypatch.setattr(sys.modules[__name__], "_line", lambda core, *_: f"cpu{core} 0 0 0 0 0 0 0 0 0 0\n")
    assert look(0, 0, 0, 0) is None


def test_who_uses_most_is_named(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that used most of a core meanwhile is named, with how much it used; our own is left out."""
    parent, own = os.getppid(), os.getpid()
    times = [{parent: 1.0, own: 1.0}, {parent: 1.4, own: 9.0}]

    def listed(_: list[str]) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(pid=pid, info={"cpu_times": SimpleNamespace(user=seconds, system=0.0)})
            for pid, seconds in times.pop(0).items()
        ]

    monkeypatch.setattr(psutil, "process_iter", listed)
    load = look(100, 0, 0, 0)
    assert load is not None
    assert load.busiest == f"{program_of(parent)} (process {parent}, 0.8)"


def test_a_real_look() -> None:
    """This machine's own counters make sense: no more cores are busy than it has."""
    load = look_at_cores()
    assert load is None or 0 <= load.busy <= load.cores
