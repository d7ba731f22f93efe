"""Which of the calls that wait for a device hold up the steps of a trace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfgate.trace.idle_gaps import GAP_CALLS
from perfgate.trace.kernel_table import CALL_KINDS, NONE, Calls, Trace
from perfgate.trace.steps import steps_at

_WAIT = CALL_KINDS.index("synchronise")
_LAUNCHES = [CALL_KINDS.index(kind) for kind in GAP_CALLS[0]]


def host_calls(trace: Trace) -> Calls:
    """All calls, but of waits only what holds up the host.

    A thread beside those that launch kernels and those that have the steps' ranges may wait for the outputs of a step
    while another one launches the next: so it is in the worker of vLLM that answers for all ranks. Or another thread
    waits for that one, which no trace records: so did the engine of one process in releases before 0.25.1
    (``UniProcExecutor``, asynchronous scheduling). Therefore such a wait counts in the step in which it ends, after the
    last call of the other threads in that.
    """
    calls, steps = trace.calls, trace.steps
    beside = _of_threads_beside(trace)
    waits = np.flatnonzero(beside & (calls.kind == _WAIT))
    if not len(waits):
        return calls
    end_ns = calls.start_ns + calls.duration_ns
    at_work = np.flatnonzero(~beside & (calls.step != NONE))
    busy_until_ns = steps.start_ns.copy()
    np.maximum.at(busy_until_ns, calls.step[at_work], end_ns[at_work])
    step = steps_at(steps, calls.process[waits], end_ns[waits])
    waits, step = waits[step != NONE], step[step != NONE]
    begin_ns = np.maximum(calls.start_ns[waits], busy_until_ns[step])
    holding = begin_ns < end_ns[waits]
    part = calls.take(waits[holding])
    part = replace(
        part, step=step[holding], start_ns=begin_ns[holding], duration_ns=(end_ns[waits] - begin_ns)[holding]
    )
    rest = calls.take(~beside | (calls.kind != _WAIT))
    both = {name: np.concatenate([getattr(rest, name), getattr(part, name)]) for name in vars(rest)}
    return Calls(**both).take(np.argsort(both["start_ns"], kind="stable"))


def _of_threads_beside(trace: Trace) -> NDArray[np.bool_]:
    """Which calls are of threads that wait, launch no kernel in the whole trace, and have no step's range.

    Where no thread of a process is known to have the steps, any that waits may be the one.
    """
    calls, steps = trace.calls, trace.steps
    beside = np.zeros(len(calls), bool)
    for process, thread in _threads(calls, calls.kind == _WAIT):
        of_steps = steps.thread[steps.process == process]
        if (of_steps != NONE).any() and thread not in of_steps:
            own = (calls.process == process) & (calls.thread == thread)
            if not np.isin(calls.kind[own], _LAUNCHES).any():
                beside |= own
    return beside


def _threads(calls: Calls, rows: NDArray[Any]) -> list[tuple[int, int]]:
    """Process and thread of some calls, each pair once."""
    both = np.unique((calls.process[rows].astype(np.int64) << 32) + calls.thread[rows])
    return [(key + 1 >> 32, key - (key + 1 >> 32 << 32)) for key in both.tolist()]
