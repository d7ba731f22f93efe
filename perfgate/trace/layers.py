"""Layers: which layer of the model a kernel belongs to, and which of a layer's gemms a gemm is.

A CUDA graph replays without ranges, so layers are found in the step's kernel sequence, which repeats once a layer.
Places are given only where a layer's gemms come in an order that is known.

A layer mixes tokens once: by attention, which writes the KV cache, or by a recurrence, which keeps a state. One kernel
of each mixer is the layer's anchor. How far the sequence before the first anchor agrees with that before others of its
kind is where a layer of that kind begins; of another kind, it follows from the distances between the anchors. Kernels
are compared by role, because the first layer's norm is often another kernel than the others', and copies, casts and
other small work that only some layers run are passed over. Where the sequence does not tell, there are no layers.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from perfgate.models import Note
from perfgate.scenario.kernel_names import (
    ACTIVATION,
    ATTENTION,
    COMMUNICATION,
    COPY,
    ELEMENTWISE,
    GEMM,
    GEMM_REDUCE,
    INDEX,
    KV_WRITE,
    MOE,
    PLACES,
    PREPARE,
    QUANTIZE,
    RECURRENCE,
    REDUCE,
    SAMPLER,
    UNLISTED,
    VIEW,
)
from perfgate.trace.kernel_table import NONE, Kernels, Names
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
    range_layer = layer.copy() if by_range is None else by_range
    backward = np.array([_BACKWARD.search(name) is not None for name in names.demangled])
    cache: dict[tuple[bytes, ...], tuple[NDArray[np.int16], NDArray[np.int8]]] = {}
    for rows in np.split(inside, cuts):
        name, stream, ranges = kernels.name[rows], kernels.stream[rows], range_layer[rows]
        sequence = (name.tobytes(), stream.tobytes(), ranges.tobytes())
        if sequence not in cache:
            roles = [names.role[number] for number in name]
            layers = ranges
            if not (ranges != NONE).any() and not backward[name].any():
                layers = _by_repetition(name, stream, roles)
            cache[sequence] = layers, _places(layers, roles)
        layer[rows], place[rows] = cache[sequence]
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
        dense = _DENSE.fullmatch(order) or (number == len(inside) - 1 and _BEGUN.fullmatch(order))
        ordered = _IN_ORDER if dense else _IN_ORDER[:2] if _EXPERTS.fullmatch(order) else ()
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


_PASSED_OVER = {COPY, ELEMENTWISE, INDEX, QUANTIZE, REDUCE, GEMM_REDUCE, PREPARE, VIEW}
_MIXES, _KEEPS_STATE, _REPEATS = "attention", "recurrence", "repeats"
_MLP = (ACTIVATION, MOE)


def layer_bounds(names: Sequence[int], roles: Sequence[str]) -> tuple[list[int], int]:
    """Where each layer begins, and where the last one ends; nothing where the sequence does not tell.

    Args:
        names: The kernels of a step on its main stream, in order, by any numbers that tell names apart.
        roles: Their roles.

    Returns:
        Indices of the first kernels of the layers, ascending, and the index behind the last layer.
    """
    anchors = _one_model(_anchors(names, roles), roles)
    if len(anchors) < 2:  # noqa: PLR2004 (once is not a repetition)
        return [], 0
    kept = [row for row, role in enumerate(roles) if role not in _PASSED_OVER or row in anchors]
    place = {row: n for n, row in enumerate(kept)}
    symbols = [roles[row] if roles[row] != UNLISTED else names[row] for row in kept]
    if _REPEATS in anchors.values() and not _periodic([place[row] for row in anchors], symbols):
        return [], 0
    kinds = {place[row]: kind for row, kind in anchors.items()}
    before = _before(kinds, symbols)
    if before is None:
        return [], 0
    starts = [kept[at - before[kind]] for at, kind in kinds.items()]
    if any(later <= earlier for earlier, later in itertools.pairwise(starts)):
        return [], 0
    return starts, _end(kinds, before, symbols, kept, roles)


def _anchors(names: Sequence[int], roles: Sequence[str]) -> dict[int, str]:
    """A kernel for each layer, by its row in order, and what mixes tokens there.

    Without attention and recurrence it is the first kernel of those whose number of launches more kernels share than
    any other number.
    """
    counts = Counter(names)
    repeated = [row for row, name in enumerate(names) if counts[name] > 1]
    writes = [row for row in repeated if roles[row] == KV_WRITE]
    states = [row for row in repeated if roles[row] == RECURRENCE]
    if writes:
        mixing = _writing(names, roles, writes)
    else:
        mixing = _first_of_runs([row for row in repeated if roles[row] == ATTENTION], roles)
    if (states and not writes and KV_WRITE in roles) or (mixing and not states and RECURRENCE in roles):
        return {}  # a layer of a kind of its own may be there, and where it begins and ends cannot be seen
    anchors = dict.fromkeys(mixing, _MIXES) | dict.fromkeys(_shared(names, states), _KEEPS_STATE)
    if not anchors:
        anchors = dict.fromkeys(_shared(names, repeated), _REPEATS)
    return _side_by_side(dict(sorted(anchors.items())), roles)


def _writing(names: Sequence[int], roles: Sequence[str], rows: Sequence[int]) -> list[int]:
    """The first write to the KV cache in each layer: a layer may write twice, and other layers by another kernel.

    Where as many are between MLPs everywhere, MLPs part layers; else the kernel with most launches writes once in each.
    """
    parts = [[rows[0]]]
    for earlier, later in itertools.pairwise(rows):
        if any(role in _MLP for role in roles[earlier:later]):
            parts.append([])
        parts[-1].append(later)
    if len(parts) > 1 and len(set(map(len, parts))) == 1:
        return [part[0] for part in parts]
    counts = Counter(names[row] for row in rows)
    chosen = max(rows, key=lambda row: counts[names[row]])
    return [row for row in rows if names[row] == names[chosen]]


def _first_of_runs(rows: Sequence[int], roles: Sequence[str]) -> list[int]:
    """The first of these rows behind each gemm: attention may run several kernels, and other ones in other layers."""
    first, until = [], -1
    for row in rows:
        if until < 0 or any(role in (GEMM, MOE) for role in roles[until:row]):
            first.append(row)
        until = row
    return first


def _shared(names: Sequence[int], rows: Sequence[int]) -> list[int]:
    """The rows of the first kernel whose number of launches more of these kernels share than any other number."""
    counts = Counter(names[row] for row in rows)
    shared = Counter(counts.values())
    often = max(shared, key=lambda count: (shared[count], count), default=0)
    chosen = next((names[row] for row in rows if counts[names[row]] == often), None)
    return [row for row in rows if names[row] == chosen]


def _side_by_side(anchors: dict[int, str], roles: Sequence[str]) -> dict[int, str]:
    """Anchors of layers of their own: mixers without an MLP between them share a layer where all layers have both.

    Where only some have, as where MLPs are layers as well, what a layer is is not known, and there are none.
    """
    pairs = list(itertools.pairwise(anchors))
    if len(set(anchors.values())) == 1 or not pairs:
        return anchors
    parted = [any(role in _MLP for role in roles[earlier:later]) for earlier, later in pairs]
    if all(parted) or not any(parted):
        return anchors
    first = next(iter(anchors.values()))
    joined = all(
        (anchors[earlier] == first) != part and anchors[earlier] != anchors[later]
        for (earlier, later), part in zip(pairs, parted, strict=True)
    )
    return {row: kind for row, kind in anchors.items() if kind == first} if joined else {}


def _one_model(anchors: dict[int, str], roles: Sequence[str]) -> dict[int, str]:
    """The anchors of the model with most layers: between a model and its draft model a token is sampled.

    A router's choice of experts may look like a sampler; experts follow it, and most layers have one.
    """
    rows = list(anchors)
    cuts = [n for n, (earlier, later) in enumerate(itertools.pairwise(rows), 1) if _samples(roles[earlier:later])]
    if not cuts or 2 * len(cuts) >= len(rows) - 1:
        return anchors
    parts = [rows[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(rows)])]
    longest = max(map(len, parts))
    models = [part for part in parts if len(part) == longest]
    return {row: anchors[row] for row in models[0]} if len(models) == 1 else {}


def _samples(roles: Sequence[str]) -> bool:
    last = max((n for n, role in enumerate(roles) if role == SAMPLER), default=-1)
    return last >= 0 and MOE not in roles[last:]


def _before(kinds: dict[int, str], symbols: Sequence[str | int]) -> dict[str, int] | None:
    """How many kernels a layer of each kind has before its anchor; ``None`` where that is not certain."""
    anchors = list(kinds)
    first = kinds[anchors[0]]
    same = [at for at in anchors if kinds[at] == first]
    least = min(later - earlier for earlier, later in itertools.pairwise(anchors))
    reach = 0
    while reach < min(least - 1, anchors[0]) and _agrees(symbols, same, -reach - 1, anchors[0]):
        reach += 1
    while reach and symbols[anchors[0] - reach] == COMMUNICATION:  # it ends the layer before, or the embedding
        reach -= 1
    before, behind = {first: reach}, dict[str, int]()
    distances: dict[tuple[str, str], Counter[int]] = {}
    for earlier, later in itertools.pairwise(anchors):
        distances.setdefault((kinds[earlier], kinds[later]), Counter())[later - earlier] += 1
    for _ in distances:  # each pass may make another kind known
        for (earlier_kind, later_kind), counts in distances.items():
            distance = counts.most_common(1)[0][0]
            if later_kind in before:
                behind.setdefault(earlier_kind, distance - before[later_kind])
            elif earlier_kind in behind:
                before[later_kind] = distance - behind[earlier_kind]
    begins = {kind: Counter(symbols[at - before[kind]] for at in anchors if kinds[at] == kind) for kind in before}
    if len(before) < len(set(kinds.values())) or min(before.values()) < 0 or max(before.values()) > least:
        return None
    alike = {counts.most_common(1)[0][0] for counts in begins.values()}
    return before if len(alike) == 1 else None


def _agrees(symbols: Sequence[str | int], anchors: Sequence[int], offset: int, edge: int) -> bool:
    """Whether what is so far from the anchor at ``edge`` is there at half of the other anchors or more."""
    if not 0 <= edge + offset < len(symbols):
        return False
    others = [anchor + offset for anchor in anchors if anchor != edge]
    seen = [symbols[place] for place in others if 0 <= place < len(symbols)]
    return 2 * seen.count(symbols[edge + offset]) >= max(len(seen), 1)


def _periodic(anchors: Sequence[int], symbols: Sequence[str | int]) -> bool:
    """Whether most of what is between anchors is the same, so that they repeat a layer and not only a kernel."""
    between = Counter(tuple(symbols[earlier:later]) for earlier, later in itertools.pairwise(anchors))
    often = max(between.values())
    return often > 1 and 2 * often >= len(anchors) - 1


def _end(
    kinds: dict[int, str],
    before: dict[str, int],
    symbols: Sequence[str | int],
    kept: Sequence[int],
    roles: Sequence[str],
) -> int:
    """The row behind the last layer: as far as it goes on like another one, small work that ends layers included."""
    anchors = list(kinds)
    last, after = anchors[-1], 1
    ending = set[str]()
    for anchor, later in itertools.pairwise(anchors):
        begin = later - before[kinds[later]]
        ending |= {roles[kept[begin] - 1]} & _PASSED_OVER
        pairs = zip(symbols[anchor:begin], symbols[last:], strict=False)
        after = max(after, sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
    row = kept[last + after - 1] + 1
    while row < len(roles) and roles[row] in ending:
        row += 1
    return row
