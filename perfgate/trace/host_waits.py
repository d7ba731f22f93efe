"""Which of the calls that wait for a device hold up the steps of a trace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perfgate.trace.kernel_table import LAUNCHES, NONE, Calls, Steps, Trace
from perfgate.trace.steps import steps_at

MOSTLY: Final = 0.5
"""The share of steps in which the host waits, or else what it waits in the others is chance."""

Ints = NDArray[np.int64]


def host_calls(trace: Trace) -> Calls:
    """All calls, but of waits only what holds up the host.

    The host is the threads that launch kernels or have the steps' ranges. A thread beside them may wait for the outputs
    of a step while the host launches the next: so it is in the worker of vLLM that answers for all ranks. Or the host
    waits for that thread, which no trace records: so did the engine of one process in releases before 0.25.1
    (``UniProcExecutor``, asynchronous scheduling). Therefore such a wait counts in the step in which it ends, after the
    host's last call in that, and not where that is chance: one has to end so in :data:`MOSTLY` all steps with a wait of
    its thread, and over all these threads in :data:`MOSTLY` all steps that launch. Shorter waits of the same thread
    earlier in a step say nothing.
    """
    calls, steps = trace.calls, trace.steps
    beside, at_work = _beside_and_at_work(calls, steps)
    if not len(beside):
        return calls
    end_ns = calls.start_ns[beside] + calls.duration_ns[beside]
    step = steps_at(steps, calls.process[beside], end_ns - 1)  # a wait that ends with a step is not of the next
    begin_ns = np.maximum(calls.start_ns[beside], _busy_until_ns(calls.take(at_work), steps)[step])
    inside = step != NONE
    counts = inside & (begin_ns < end_ns)
    _without_chance(calls, beside, step, counts)
    return _trimmed(calls, beside, counts, {"start_ns": begin_ns, "duration_ns": end_ns - begin_ns, "step": step})


def _without_chance(calls: Calls, beside: Ints, step: NDArray[Any], counts: NDArray[np.bool_]) -> None:
    """Take from ``counts`` the waits of threads, and of processes, in too few of whose steps one counts."""
    process, of_process = np.unique(calls.process[beside], return_inverse=True)
    of_thread = np.unique(_threads(calls.process[beside], calls.thread[beside]), return_inverse=True)[1]
    launches = calls.of(*LAUNCHES) & np.isin(calls.process, process)
    launching = np.searchsorted(process, calls.process[launches])
    counted = np.where(counts, step, NONE)
    counts &= (_steps_by(of_thread, counted) >= MOSTLY * _steps_by(of_thread, step))[of_thread]
    counted = np.where(counts, step, NONE)
    launched = _steps_by(launching, calls.step[launches], len(process))
    counts &= (_steps_by(of_process, counted) >= MOSTLY * launched)[of_process]


def _steps_by(group: Ints, step: NDArray[Any], groups: int = 0) -> Ints:
    """How many different steps each group has, :data:`NONE` not counted."""
    known = step != NONE
    pairs = np.unique(np.stack([group[known], step[known]]), axis=1)
    return np.bincount(pairs[0], minlength=max(groups, group.max(initial=NONE) + 1))


def _beside_and_at_work(calls: Calls, steps: Steps) -> tuple[Ints, Ints]:
    """The rows of waits of threads beside the host, and those of the host's calls; no rows where there are none.

    Where no thread of a process is known to have the steps, any that waits may be the one.
    """
    none = np.zeros(0, np.int64)
    waits = np.flatnonzero(calls.of("synchronise"))
    waiting = _threads(calls.process[waits], calls.thread[waits])
    known = steps.thread != NONE
    with_steps = _threads(steps.process[known], steps.thread[known])
    of_known = np.isin(calls.process[waits], steps.process[known])
    if np.isin(waiting[of_known], with_steps).all():
        return none, none
    every = _threads(calls.process, calls.thread)
    host = np.union1d(with_steps, every[calls.of(*LAUNCHES)])
    beside = waits[of_known & ~np.isin(waiting, host)]
    return (beside, np.flatnonzero(np.isin(every, host))) if len(beside) else (none, none)


def _threads(process: NDArray[np.int16], thread: NDArray[np.int32]) -> Ints:
    """Process and thread as one number."""
    return np.asarray((process.astype(np.int64) << 32) + thread)


def _busy_until_ns(calls: Calls, steps: Steps) -> Ints:
    """When the host's last call in each step ended, or one before that lasts longer; at least when the step began.

    A call that begins between two steps is one before the next.
    """
    until_ns = steps.start_ns.copy()
    end_ns = calls.start_ns + calls.duration_ns
    for process in np.unique(steps.process).tolist():
        first, beyond = (int(np.searchsorted(steps.process, process, side)) for side in ("left", "right"))
        rows = np.flatnonzero(calls.process == process)
        following = np.searchsorted(steps.start_ns[first:beyond], calls.start_ns[rows]) + first
        step = np.where(calls.step[rows] != NONE, calls.step[rows], following)
        known = step < beyond
        np.maximum.at(until_ns, step[known], end_ns[rows[known]])
        until_ns[first:beyond] = np.maximum.accumulate(until_ns[first:beyond])
    return until_ns


def _trimmed(calls: Calls, rows: Ints, counts: NDArray[np.bool_], columns: dict[str, NDArray[Any]]) -> Calls:
    """The calls without some, and of those among them that count what the columns say; in order of start."""
    changed = {name: getattr(calls, name).copy() for name in columns}
    for name, column in columns.items():
        changed[name][rows[counts]] = column[counts]
    kept = np.ones(len(calls), bool)
    kept[rows[~counts]] = False
    order = np.argsort(changed["start_ns"], kind="stable")
    return replace(calls, **changed).take(order[kept[order]])
