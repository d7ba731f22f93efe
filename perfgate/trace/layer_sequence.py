"""Where the layers of a model begin in the sequence of kernels that a step runs.

A layer mixes tokens once: by attention, which writes the KV cache, or by a recurrence, which keeps a state. One kernel
of each mixer is the layer's anchor. How far the sequence before the first anchor agrees with that before others of its
kind is where a layer of that kind begins; of another kind, it follows from the distances between the anchors. Kernels
are compared by role, because the first layer's norm is often another kernel than the others', and copies, casts and
other small work that only some layers run are passed over. Where the sequence does not tell, there are no layers.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

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
    PREPARE,
    QUANTIZE,
    RECURRENCE,
    REDUCE,
    SAMPLER,
    UNLISTED,
    VIEW,
)

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
    found = dict.fromkeys(mixing, _MIXES) | dict.fromkeys(_shared(names, states), _KEEPS_STATE)
    if not found:
        found = dict.fromkeys(_shared(names, repeated), _REPEATS)
    return _side_by_side(dict(sorted(found.items())), roles)


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
