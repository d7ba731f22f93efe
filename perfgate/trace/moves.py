"""What a device runs in steps beside kernels: copies by kind, and memsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median_low

import numpy as np
from pydantic import NonNegativeInt

from perfgate.models import Frozen
from perfgate.trace.breakdown import StepFigures
from perfgate.trace.kernel_table import COPY_KINDS

MEMSET = "memset"
MOVE_KINDS = (*COPY_KINDS, MEMSET)


class Moved(Frozen):
    """Some copies of one kind, or memsets.

    Args:
        launches: How many there are.
        ns: Sum of their durations, nanoseconds.
        bytes: What they copy or set; 0 where the profiler does not tell.
    """

    launches: NonNegativeInt = 0
    ns: NonNegativeInt = 0
    bytes: NonNegativeInt = 0


class Moves(Frozen):
    """The copies of one kind, or the memsets, of some steps.

    Args:
        every: Those of all steps.
        usual: Those of a usual step: each figure is the lower median over the steps, in which rare copies do not show.
    """

    every: Moved = Moved()
    usual: Moved = Moved()


def moves_of(figures: StepFigures) -> dict[str, Moves]:
    """All copies and memsets of steps, by kind of :data:`MOVE_KINDS`; kinds that do not occur are left out."""
    launches, ns, sizes = (
        np.column_stack([copies, memsets])
        for copies, memsets in (
            (figures.copies, figures.memsets),
            (figures.copy_ns, figures.memset_ns),
            (figures.copy_bytes, figures.memset_bytes),
        )
    )
    found = {}
    for column, kind in enumerate(MOVE_KINDS):
        own = [table[:, column].tolist() for table in (launches, ns, sizes)]
        if any(own[0]):
            found[kind] = Moves(every=_moved(map(sum, own)), usual=_moved(map(median_low, own)))
    return found


def pooled_moves(trials: Sequence[dict[str, Moves] | None]) -> dict[str, Moves] | None:
    """The moves of several trials as those of one; ``None`` where they were not kept of each."""
    known = [own for own in trials if own is not None]
    if len(known) < len(trials):
        return None
    kinds = dict.fromkeys(kind for own in known for kind in own)
    by_kind = {kind: [own.get(kind, Moves()) for own in known] for kind in kinds}
    return {
        kind: Moves(
            every=_moved(map(sum, _columns(moves.every for moves in own))),
            usual=_moved(map(median_low, _columns(moves.usual for moves in own))),
        )
        for kind, own in by_kind.items()
    }


def _columns(rows: Iterable[Moved]) -> Iterable[tuple[int, ...]]:
    return zip(*((row.launches, row.ns, row.bytes) for row in rows), strict=True)


def _moved(figures: Iterable[int]) -> Moved:
    launches, ns, size = figures
    return Moved(launches=launches, ns=ns, bytes=size)
