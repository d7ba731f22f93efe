"""Layers: which layer of the model a kernel belongs to, and which of a layer's gemms a gemm is.

A CUDA graph replays without ranges, so layers are found in the step's kernel sequence, which repeats once a layer
(:mod:`perfgate.trace.layer_sequence`). Places are given only where a layer's gemms come in an order that is known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from perfgate.models import Note
from perfgate.scenario.kernel_names import (
    ACTIVATION,
    ATTENTION,
    GEMM,
    GEMM_REDUCE,
    KV_WRITE,
    MOE,
    PLACES,
    RECURRENCE,
    SAMPLER,
)
from perfgate.trace.kernel_table import NONE, Kernels, Names
from perfgate.trace.layer_sequence import layer_bounds
from perfgate.units import plural


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
    cuts = np.flatnonzero((np.diff(kernels.step[inside]) != 0) | (np.diff(kernels.device[inside]) != 0)) + 1
    told = layer.copy() if by_range is None else by_range
    backward = np.array([_BACKWARD.search(name) is not None for name in names.demangled])
    known: dict[tuple[bytes, ...], tuple[NDArray[np.int16], NDArray[np.int8]]] = {}
    for rows in np.split(inside, cuts):
        name, stream, ranges = kernels.name[rows], kernels.stream[rows], told[rows]
        sequence = (name.tobytes(), stream.tobytes(), ranges.tobytes())
        if sequence not in known:
            roles = [names.role[number] for number in name]
            layers = ranges
            if not (ranges != NONE).any() and not backward[name].any():
                layers = _by_repetition(name, stream, roles)
            known[sequence] = layers, _places(layers, roles)
        layer[rows], place[rows] = known[sequence]
    return layer, place


def _by_repetition(name: NDArray[np.int32], stream: NDArray[np.int64], roles: Sequence[str]) -> NDArray[np.int16]:
    """The layer of each kernel of a step; kernels of side streams go with the kernel of the main stream before them."""
    streams, counts = np.unique(stream, return_counts=True)
    main = np.flatnonzero(stream == streams[np.argmax(counts)])
    starts, end = layer_bounds(name[main].tolist(), [roles[row] for row in main.tolist()])
    if not starts:
        return np.full(len(name), NONE, np.int16)
    layer = np.searchsorted(main[starts], np.arange(len(name)), side="right") - 1
    beyond = main[end] if end < len(main) else len(name)
    layer[beyond:] = NONE
    return layer.astype(np.int16)


def _places(layers: NDArray[np.int16], roles: Sequence[str]) -> NDArray[np.int8]:
    """Which gemm each gemm is, in layers whose gemms, attention and activation are in a known order.

    Names do not tell the two projections of latent attention, a router or a draft model's gemms from a dense layer's:
    where a layer's order is another one, its gemms have no place rather than a wrong one.
    """
    places = np.zeros(len(roles), np.int8)
    inside: dict[int, list[int]] = {}
    for row in np.flatnonzero(layers != NONE).tolist():
        inside.setdefault(int(layers[row]), []).append(row)
    # Layers from the first sampler on are a draft model's; where most hold one, it is a router's softmax and largest.
    sampling = [layer for layer, rows in inside.items() if any(roles[row] == SAMPLER for row in rows)]
    drafted = sampling[0] if sampling and 2 * len(sampling) < len(inside) else math.inf
    for number, (layer, rows) in enumerate(inside.items()):
        if layer >= drafted:
            return places
        order = "".join(_SYMBOLS.get(roles[row], "") for row in rows)
        known = _DENSE.fullmatch(order) or (number == len(inside) - 1 and _BEGUN.fullmatch(order))
        ordered = _IN_ORDER if known else _IN_ORDER[:2] if _EXPERTS.fullmatch(order) else ()
        _place_in_order(places, rows, roles, ordered)
    behind = list(range(max(inside[max(inside)]) + 1, len(roles))) if inside else []
    behind = behind[: next((n for n, row in enumerate(behind) if roles[row] == SAMPLER), len(behind))]
    if sum(roles[row] == GEMM for row in behind) == 1:
        _place_in_order(places, behind, roles, ("lm-head",))
    return places


_BACKWARD = re.compile(r"bwd|[Bb]ackward|dgrad|wgrad")
"""A step that trains runs each layer twice, the second time in reverse order, so repetition does not number them."""
_SYMBOLS = {GEMM: "G", ATTENTION: "A", ACTIVATION: "S", MOE: "M"}
_IN_ORDER = ("qkv", "out", "gate-up", "down")
_DENSE = re.compile(r"A*GA+G(GS?G)?")
"""Attention before the first gemm is its metadata, made ready for all layers; an activation may be part of a gemm."""
_EXPERTS = re.compile(r"A*GA+G(?=.*M)[GSM]*")
"""A router and shared experts run gemms too, which have no place."""
_BEGUN = re.compile(r"A*G(A+(G(GS?G?)?)?)?")
"""The last layer of launches that were chosen may be cut."""


def _place_in_order(
    places: NDArray[np.int8], rows: Sequence[int], roles: Sequence[str], ordered: Sequence[str]
) -> None:
    """Give the gemms of some rows these places, one after the other, and sums of split-K gemms that of their gemm."""
    left, current = list(ordered), ""
    for row in rows:
        if roles[row] == GEMM:
            current = left.pop(0) if left else ""
        if roles[row] in (GEMM, GEMM_REDUCE):
            places[row] = PLACES.index(current)


def layer_cautions(kernels: Kernels, names: Names) -> Iterator[Note]:
    """What to say of steps: gemms that have no place in their layers, mixers in no layer, steps without layers."""
    of_role = {role: np.array([name == role for name in names.role]) for role in (GEMM, *_MIXERS)}
    inside = kernels.step != NONE
    of_step = np.zeros(int(kernels.step.max(initial=NONE)) + 2, bool)  # the last one represents no step
    of_step[kernels.step[kernels.layer != NONE]] = True
    of_step[NONE] = False
    gemms = of_role[GEMM][kernels.name] & inside
    placed = gemms & of_step[kernels.step]
    if lost := int((placed & (kernels.place == 0)).sum()):
        text = (
            f"{lost} of {plural(int(placed.sum()), 'gemm')} have no place: their order is not a dense layer's (latent "
            "attention, a router, several sorts of layers, a draft model)"
        )
        yield Note(code="steps-unclear", text=text)
    ran = (names.demangled[name] for name in np.unique(kernels.name[inside]).tolist())
    if not of_step.any() and any(map(_BACKWARD.search, ran)):
        why = "they train, which runs each layer a second time in reverse order"
        yield Note(code="steps-unclear", text=f"layers of these steps are left out: {why}")
        return
    mixers = np.any([of_role[role] for role in _MIXERS], axis=0)[kernels.name] & inside
    mixers &= np.bincount(kernels.step[mixers], minlength=len(of_step))[kernels.step] > 1  # one alone repeats nothing
    if lost := int((mixers & (kernels.layer == NONE)).sum()):
        text = (
            f"{lost} of {plural(int(mixers.sum()), 'kernel')} that run once a layer are in none: they are a draft "
            "model's, or the step's sequence does not show where a layer begins"
        )
        yield Note(code="steps-unclear", text=text)
    elif gemms.any() and not of_step.any() and np.bincount(kernels.step[gemms]).max() >= _LEAST_GEMMS:
        why = "the sequence of their kernels does not repeat as layers do"
        yield Note(code="steps-unclear", text=f"layers of these steps are left out: {why}")


_LEAST_GEMMS = 4
"""A step with fewer is not expected to have layers."""

_MIXERS = (KV_WRITE, RECURRENCE)
"""What a layer runs once, unlike attention, whose metadata is made ready outside the layers."""
