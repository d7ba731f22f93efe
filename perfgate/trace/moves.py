"""What a device runs in steps beside kernels: copies by kind, and memsets."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import NonNegativeInt

from perfgate.models import Frozen
from perfgate.trace.breakdown import StepFigures
from perfgate.trace.kernel_table import COPY_KINDS

MEMSET = "memset"
MOVE_KINDS = (*COPY_KINDS, MEMSET)


class Moves(Frozen):
    """The copies of one kind, or the memsets, of some steps.

    Args:
        launches: How many there are.
        ns: Sum of their durations, nanoseconds.
        bytes: What they copy or set; 0 where the profiler does not tell.
    """

    launches: NonNegativeInt = 0
    ns: NonNegativeInt = 0
    bytes: NonNegativeInt = 0

    def __add__(self, other: Moves) -> Moves:
        """Those of both."""
        return Moves(launches=self.launches + other.launches, ns=self.ns + other.ns, bytes=self.bytes + other.bytes)


def moves_of(figures: StepFigures) -> dict[str, Moves]:
    """All copies and memsets of steps, by kind of :data:`MOVE_KINDS`; kinds that do not occur are left out."""
    launches, ns, sizes = (
        [*copies.sum(axis=0).tolist(), int(memsets.sum())]
        for copies, memsets in (
            (figures.copies, figures.memsets),
            (figures.copy_ns, figures.memset_ns),
            (figures.copy_bytes, figures.memset_bytes),
        )
    )
    every = zip(MOVE_KINDS, launches, ns, sizes, strict=True)
    return {kind: Moves(launches=count, ns=time, bytes=size) for kind, count, time, size in every if count}


def pooled_moves(trials: Sequence[dict[str, Moves] | None]) -> dict[str, Moves] | None:
    """The moves of several trials as those of one; ``None`` where they were not kept of each."""
    total: dict[str, Moves] = {}
    for own in trials:
        if own is None:
            return None
        total |= {kind: total.get(kind, Moves()) + moves for kind, moves in own.items()}
    return total
