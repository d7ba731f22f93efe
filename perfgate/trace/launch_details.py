"""What is kept of launches beside their number: shapes of kernels, and copies by kind and memsets with their bytes.

A build can run the same kernels, as many of them, on more rows than before: only their shapes tell.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeInt, PositiveInt

from perfgate.models import Frozen
from perfgate.scenario.kernel_names import COPY_KINDS
from perfgate.trace.breakdown import StepFigures
from perfgate.trace.kernel_table import combinations

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
    by_kind = {kind: _grouped((1, *row) for row in zip(*columns, strict=True)) for kind, *columns in every}
    return {kind: moves for kind, moves in by_kind.items() if moves}


def pooled_moves(trials: Sequence[dict[str, tuple[Moves, ...]] | None]) -> dict[str, tuple[Moves, ...]] | None:
    """The moves of several trials as those of one; ``None`` where they were not kept of each."""
    rows: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
    for by_kind in trials:
        if by_kind is None:
            return None
        for kind, moves in by_kind.items():
            rows[kind] += [(move.steps, move.launches, move.bytes, move.ns) for move in moves]
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


Key = TypeVar("Key", bound=Hashable)
Shapes = dict[str, int]
"""Launches by shape, as :func:`in_words` writes it."""


def in_words(shape: Sequence[int]) -> str:
    """``132x1x1/256x1x1``: grid and block; empty where they are not known.

    Args:
        shape: Grid x, y, z, then block x, y, z; or nothing.
    """
    return "/".join("x".join(map(str, size)) for size in (shape[:3], shape[3:]) if size)


def shapes_by_key(
    shapes: NDArray[np.int64], key: NDArray[np.int64], shape: NDArray[np.int32], keys: int
) -> tuple[Shapes, ...]:
    """Launches of each kernel by shape; empty where the profiler tells no shapes.

    Args:
        shapes: Of the trace, a row each, zeros where a launch has none.
        key: Which kernel each launch is of, shape (launches,).
        shape: The row of ``shapes`` of each launch, shape (launches,).
        keys: How many kernels there are.
    """
    counts: tuple[Shapes, ...] = tuple({} for _ in range(keys))
    distinct, group = combinations(key, shape)
    for (kernel, row), launches in zip(distinct, np.bincount(group, minlength=len(distinct)).tolist(), strict=True):
        if shapes[row].any():
            counts[kernel][in_words(shapes[row].tolist())] = launches
    return counts if any(counts) else ()


def pooled_shapes(
    trials: Sequence[tuple[Sequence[Key], Sequence[Shapes]]], number: Mapping[Key, int]
) -> tuple[Shapes, ...]:
    """The launches of several trials by shape; empty where one of them tells none.

    Args:
        trials: The kernels of each, and their launches by shape.
        number: Where each kernel is among all of theirs.
    """
    if not all(shapes for _, shapes in trials):
        return ()
    counts: list[Counter[str]] = [Counter() for _ in number]
    for keys, by_key in trials:
        for key, shapes in zip(keys, by_key, strict=True):
            counts[number[key]].update(shapes)
    return tuple(dict(count) for count in counts)
