"""What a device runs in steps beside kernels: copies by kind, and memsets."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from perfgate.models import Frozen
from perfgate.scenario.kernel_names import COPY_KINDS
from perfgate.trace.breakdown import StepFigures

MEMSET: Final = "memset"
MOVE_KINDS: Final = (*COPY_KINDS, MEMSET)
MOST_SIZES: Final = 64
"""Of one kind that are told apart; where more occur, as where a size follows the context, those of a number are one."""


class Moves(Frozen):
    """Steps that make as many copies of one kind, or memsets, of as many bytes.

    Args:
        steps: How many do.
        launches: How many copies each of them makes.
        bytes: What these copy or set; 0 where the profiler does not tell.
        ns: Sum of their durations over all these steps, nanoseconds.
    """

    steps: PositiveInt
    launches: PositiveInt
    bytes: NonNegativeInt
    ns: NonNegativeInt


def moves_of(figures: StepFigures) -> dict[str, tuple[Moves, ...]]:
    """All copies and memsets of steps, by kind of :data:`MOVE_KINDS`; steps without and kinds without are left out."""
    tables = (
        np.column_stack([copies, memsets]).T.tolist()
        for copies, memsets in (
            (figures.copies, figures.memsets),
            (figures.copy_bytes, figures.memset_bytes),
            (figures.copy_ns, figures.memset_ns),
        )
    )
    every = zip(MOVE_KINDS, *tables, strict=True)
    found = {kind: _grouped((1, *row) for row in zip(*columns, strict=True)) for kind, *columns in every}
    return {kind: moves for kind, moves in found.items() if moves}


def pooled_moves(trials: Sequence[dict[str, tuple[Moves, ...]] | None]) -> dict[str, tuple[Moves, ...]] | None:
    """The moves of several trials as those of one; ``None`` where they were not kept of each."""
    rows: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
    for own in trials:
        if own is None:
            return None
        for kind, moves in own.items():
            rows[kind] += [(one.steps, one.launches, one.bytes, one.ns) for one in moves]
    return {kind: _grouped(several) for kind, several in rows.items()}


def _grouped(rows: Iterable[tuple[int, int, int, int]]) -> tuple[Moves, ...]:
    """Steps, launches, bytes and time of each row as those of rows that are alike, the most frequent first."""
    steps: Counter[tuple[int, int]] = Counter()
    ns: Counter[tuple[int, int]] = Counter()
    for many, launches, size, took_ns in rows:
        if launches:
            steps[launches, size] += many
            ns[launches, size] += took_ns
    if len(steps) > MOST_SIZES:
        return _by_number(steps, ns)
    return tuple(Moves(steps=many, launches=key[0], bytes=key[1], ns=ns[key]) for key, many in steps.most_common())


def _by_number(steps: Counter[tuple[int, int]], ns: Counter[tuple[int, int]]) -> tuple[Moves, ...]:
    """The same where sizes are not told apart: their mean."""
    totals: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    for (launches, size), many in steps.items():
        for place, more in enumerate((many, many * size, ns[launches, size])):
            totals[launches][place] += more
    ordered = sorted(totals.items(), key=lambda item: -item[1][0])
    return tuple(
        Moves(steps=many, launches=launches, bytes=size // many, ns=took) for launches, (many, size, took) in ordered
    )
