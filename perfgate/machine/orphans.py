"""Orphans: processes and cgroups that a run which is gone, or an earlier trial of this one, left behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

import psutil

from perfgate.machine import cgroup
from perfgate.machine.processes import (
    AHEAD,
    CHILD,
    LADDER,
    OWNER,
    Ladder,
    Orphan,
    climb,
    environment_of,
    is_alive,
    name_of,
    owner_of,
    pid_namespace,
    start_ticks,
    with_ids,
)
from perfgate.machine.supervisor import SUPERVISOR


def find_orphans(own: str = "") -> tuple[Orphan, ...]:
    """Marked processes whose owner is gone, and those of this process's earlier trials, of mark ``own`` where given.

    To be called between trials: what this process has running now would be listed too, but for what it has started
    ahead of its trial (:data:`perfgate.machine.processes.AHEAD`). Processes whose environment
    may not be read, and those in another pid namespace (where the owner's pid means something else), are left out.
    """
    return tuple(_find_orphans(own).values())


def end_orphans(run_name: str | None = None, own: str = "", ladder: Ladder = LADDER) -> tuple[Orphan, ...]:
    """End what :func:`find_orphans` lists, of one run where it is named, and return what ended.

    It takes at most as long as the rungs of the ladder: within 7 s by default.
    """
    mark = f"{run_name}:" if run_name is not None else ""
    before = {process: orphan for process, orphan in _find_orphans(own).items() if orphan.mark.startswith(mark)}
    groups = [group for group in _left_groups(own) if group.mark.startswith(mark)]
    climb(lambda: [p for p in before if is_alive(p)], ladder[:-1])
    for group in groups:
        group.kill()
    climb(lambda: [p for p in before if is_alive(p)], ladder[-1:])
    for group in groups:
        group.remove()
    return tuple(orphan for process, orphan in before.items() if not is_alive(process))


def end_runs(variables: Mapping[str, str]) -> tuple[Orphan, ...]:
    """End runs of perfgate that started with all of these variables and now have processes of their own; within 7 s.

    A CI job is known by its variables. A run ended so gives its clocks free and ends its engines if it is given time;
    what it leaves behind is an orphan then, see :func:`end_orphans`.
    """
    owners: dict[psutil.Process, Orphan] = {}
    for mark in {environment_of(process).get(OWNER) for process in _here()} - {None}:
        pid, ticks = owner_of(str(mark))
        if ticks is None or pid == os.getpid() or start_ticks(pid) != ticks:
            continue
        with contextlib.suppress(psutil.NoSuchProcess):  # it may end between the two lines
            owner = psutil.Process(pid)
            if variables.items() <= environment_of(owner).items():
                owners[owner] = Orphan(pid, name_of(owner), str(mark))
    climb(lambda: [p for p in owners if is_alive(p)], LADDER)
    return tuple(run for process, run in owners.items() if not is_alive(process))


def _find_orphans(owner: str) -> dict[psutil.Process, Orphan]:
    orphans: dict[psutil.Process, Orphan] = {}
    for process in _here():
        environment = environment_of(process)
        mark = environment.get(OWNER)
        if mark is None or not is_alive(process) or process.pid == os.getpid() or not _left(mark, owner):
            continue
        if environment.get(CHILD) in AHEAD:
            continue
        # A supervisor ends with the last process below it. Those may carry no mark.
        left = _below(process) if SUPERVISOR in environment else [process]
        orphans |= {p: Orphan(p.pid, name_of(p), mark) for p in left if is_alive(p)}
    for group in _left_groups(owner):
        orphans |= {p: Orphan(p.pid, name_of(p), group.mark) for p in with_ids(group.pids()) if is_alive(p)}
    return orphans


def _left_groups(owner: str) -> list[cgroup.Group]:
    """The cgroups of owners that are gone, and of this process's earlier trials."""
    return [group for group in cgroup.groups() if _left(group.mark, owner) and group.token not in AHEAD]


def _left(mark: str, owner: str) -> bool:
    """Whether what carries a mark is an orphan, or from an earlier trial of this process."""
    pid, ticks = owner_of(mark)
    return ticks is not None and (owner in ("", mark) if pid == os.getpid() else start_ticks(pid) != ticks)


def _here() -> Iterator[psutil.Process]:
    """Those of this pid namespace: in another the pid of an owner means something else."""
    namespace = pid_namespace()
    return (process for process in psutil.process_iter() if pid_namespace(process.pid) == namespace)


def _below(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []
