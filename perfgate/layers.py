"""Layers: which layer of the model a kernel belongs to, and which of a layer's gemms a gemm is.

A CUDA graph replays without ranges, so layers are found in the step's kernel sequence, which repeats once a layer. One
kernel that runs once a layer is the anchor; how far the sequence before it agrees between layers is where a layer
begins. Names are compared by role, because the first layer's norm is often another kernel than the others'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from perfgate.kernels import NONE, PLACES, Kernels, Names
from perfgate.roles import ACTIVATION, ATTENTION, GEMM, GEMM_REDUCE, KV_WRITE, NORM, UNLISTED

PLACE = {place: number for number, place in enumerate(PLACES)}
Pattern = tuple[NDArray[np.int16], NDArray[np.int8]]


def assign_layers(
    kernels: Kernels, names: Names, by_range: NDArray[np.int16] | None
) -> tuple[NDArray[np.int16], NDArray[np.int8]]:
    """Layer and place of each kernel; outside the steps there are none.

    Args:
        kernels: With their steps.
        names: With their roles.
        by_range: The layer that the host was at when it launched each kernel, where ranges tell; in a step in which
            they tell of any kernel they are believed.

    Returns:
        Layer (-1 outside) and index into :data:`PLACES`, in the order of ``kernels``.
    """
    layer, place = np.full(len(kernels), NONE, np.int16), np.zeros(len(kernels), np.int8)
    order = np.lexsort((kernels.start_ns, kernels.device, kernels.step))
    inside = order[np.searchsorted(kernels.step[order], 0) :]
    if not len(inside):
        return layer, place
    step, device = kernels.step[inside], kernels.device[inside]
    cuts = np.flatnonzero((np.diff(step) != 0) | (np.diff(device) != 0)) + 1
    told = np.full(len(inside), NONE, np.int16) if by_range is None else by_range[inside]
    sequences = _Sequences(names.role)
    name, stream = kernels.name[inside], kernels.stream[inside]
    for first, beyond in zip([0, *cuts], [*cuts, len(inside)], strict=True):
        rows = inside[first:beyond]
        part = slice(first, beyond)
        layer[rows], place[rows] = sequences.read(name[part], stream[part], told[part])
    return layer, place


@dataclass
class _Sequences:
    """Reads kernel sequences; one that was seen before is known."""

    roles: Sequence[str]
    known: dict[tuple[bytes, bytes, bytes], Pattern] = field(default_factory=dict)

    def read(self, name: NDArray[np.int32], stream: NDArray[np.int64], told: NDArray[np.int16]) -> Pattern:
        key = (name.tobytes(), stream.tobytes(), told.tobytes())
        if key not in self.known:
            roles = [self.roles[number] for number in name]
            layers = told if (told != NONE).any() else _by_repetition(name, stream, roles)
            self.known[key] = layers, _places(layers, roles)
        return self.known[key]


def _by_repetition(name: NDArray[np.int32], stream: NDArray[np.int64], roles: Sequence[str]) -> NDArray[np.int16]:
    """The layer of each kernel of a step; kernels of side streams go with the kernel of the main stream before them."""
    streams, counts = np.unique(stream, return_counts=True)
    main = np.flatnonzero(stream == streams[np.argmax(counts)])
    main_roles = [roles[row] for row in main.tolist()]
    main_names = name[main]
    symbols = [r if r != UNLISTED else number for r, number in zip(main_roles, main_names.tolist(), strict=True)]
    starts, end = _boundaries(main_names, symbols, main_roles)
    if not starts:
        return np.full(len(name), NONE, np.int16)
    edges = main[starts]
    found = np.searchsorted(edges, np.arange(len(name)), side="right") - 1
    beyond = main[end] if end < len(main) else len(name)
    found[beyond:] = NONE
    return found.astype(np.int16)


def _boundaries(name: NDArray[np.int32], symbols: Sequence[str | int], roles: Sequence[str]) -> tuple[list[int], int]:
    """Where each layer begins, and where the last one ends; nothing where the sequence does not repeat."""
    anchors = _anchors(name, roles)
    if len(anchors) < 2:  # noqa: PLR2004 (once is no repetition)
        return [], 0
    spacing = int(np.median(np.diff(anchors)))
    before = 0
    while before < min(spacing - 1, anchors[0]) and _agrees(symbols, anchors, -before - 1, anchors[0]):
        before += 1
    after = 1
    while after < spacing - before and _agrees(symbols, anchors, after, anchors[-1]):
        after += 1
    return [anchor - before for anchor in anchors], anchors[-1] + after


def _anchors(name: NDArray[np.int32], roles: Sequence[str]) -> list[int]:
    """The places of a kernel that runs once a layer.

    The kernel that writes the KV cache does, and so does attention. Without them it is the first kernel of those whose
    number of launches more kernels share than any other number.
    """
    numbers: list[int] = name.tolist()
    counts = Counter(numbers)
    for role in (KV_WRITE, ATTENTION):
        repeated = [(counts[n], -row) for row, n in enumerate(numbers) if roles[row] == role and counts[n] > 1]
        if repeated:
            return _places_of(numbers, numbers[-max(repeated)[1]])
    shared = Counter(count for count in counts.values() if count > 1)
    if not shared:
        return []
    often = max(shared, key=lambda count: (shared[count], count))
    return _places_of(numbers, next(number for number in numbers if counts[number] == often))


def _places_of(numbers: Sequence[int], wanted: int) -> list[int]:
    return [place for place, number in enumerate(numbers) if number == wanted]


def _agrees(symbols: Sequence[str | int], anchors: Sequence[int], offset: int, edge: int) -> bool:
    """Whether what stands so far from the anchor at ``edge`` stands there at half of the other anchors or more."""
    if not 0 <= edge + offset < len(symbols):
        return False
    others = [anchor + offset for anchor in anchors if anchor != edge]
    seen = [symbols[place] for place in others if 0 <= place < len(symbols)]
    return 2 * seen.count(symbols[edge + offset]) >= max(len(seen), 1)


def _places(layers: NDArray[np.int16], roles: Sequence[str]) -> NDArray[np.int8]:
    """Which gemm each gemm is, by what stands before it in its layer."""
    places = np.zeros(len(roles), np.int8)
    last = int(np.flatnonzero(layers != NONE)[-1]) if (layers != NONE).any() else len(roles)
    at, current = "", NONE
    for row, role in enumerate(roles):
        if layers[row] == NONE:
            current, at = NONE, "lm-head" if row > last else ""
        elif layers[row] != current:
            current, at = int(layers[row]), "qkv"
        at = _next_place(at, role)
        if role in (GEMM, GEMM_REDUCE):
            places[row] = PLACE[at.removesuffix("?")]
    return places


def _next_place(at: str, role: str) -> str:
    """The place after a kernel of ``role``; ``?`` marks a place whose gemm is still to come."""
    if at in ("", "lm-head"):
        return at
    if role == ATTENTION:
        return "out?"
    if role == ACTIVATION:
        return "down"
    if at == "out?" and role == GEMM:
        return "out"
    if at == "out" and role in (NORM, GEMM):  # a norm, or a second gemm where the norm is fused into the first
        return "gate-up"
    return at
