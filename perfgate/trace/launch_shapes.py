"""Launch shapes: how many blocks of how many threads each kernel of a step is launched with.

A build can run the same kernels, as many of them, on more rows than before: only their shapes tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from perfgate.trace.kernel_table import combinations

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
    found: tuple[Shapes, ...] = tuple({} for _ in range(keys))
    distinct, group = combinations(key, shape)
    for (kernel, row), launches in zip(distinct, np.bincount(group, minlength=len(distinct)).tolist(), strict=True):
        if shapes[row].any():
            found[kernel][in_words(shapes[row].tolist())] = launches
    return found if any(found) else ()


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
    for keys, own in trials:
        for key, shapes in zip(keys, own, strict=True):
            counts[number[key]].update(shapes)
    return tuple(dict(count) for count in counts)
