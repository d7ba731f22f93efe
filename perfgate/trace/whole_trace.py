"""A trace as one step: what it ran from the first event to the last, whatever its ranges name."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

import numpy as np

from perfgate.trace.kernel_table import STEP_KINDS, Steps, Timed, Trace, filled

_Rows = TypeVar("_Rows", bound=Timed)


def as_one_step(trace: Trace) -> Trace:
    """The same trace with one step a process, which holds all that the process did."""
    tables: tuple[Timed, ...] = (trace.kernels, trace.copies, trace.memsets, trace.overhead, trace.calls)
    process, start_ns, duration_ns = (
        np.concatenate([getattr(table, name) for table in tables]) for name in ("process", "start_ns", "duration_ns")
    )
    processes, owner = np.unique(process, return_inverse=True)
    begin_ns, end_ns = (np.full(len(processes), edge) for edge in (start_ns.max(), start_ns.min()))
    np.minimum.at(begin_ns, owner, start_ns)
    np.maximum.at(end_ns, owner, start_ns + duration_ns)
    steps = filled(
        Steps,
        index=np.zeros(len(processes)),
        kind=np.full(len(processes), STEP_KINDS.index("unknown")),
        start_ns=begin_ns,
        end_ns=end_ns,
        process=processes,
        complete=np.ones(len(processes)),
        own=np.zeros(len(processes)),
    )

    def placed(table: _Rows) -> _Rows:
        return dataclasses.replace(table, step=np.searchsorted(processes, table.process).astype(np.int32))

    return dataclasses.replace(
        trace,
        kernels=placed(trace.kernels),
        copies=placed(trace.copies),
        memsets=placed(trace.memsets),
        overhead=placed(trace.overhead),
        calls=placed(trace.calls),
        steps=steps,
    )
