"""What two builds' decode steps differ in, like a code diff: kernels gone, new, renamed, launched more or less often.

Steps are compared as multisets of kernels, so that streams that overlap in another order are not difference. A kernel
that another one of the same role replaces at the same place, as often, is renamed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from perfgate.models import Frozen
from perfgate.trace.decode_step import DecodeSteps, KernelKey, Pattern
from perfgate.trace.families import KV_WRITE, short_name
from perfgate.trace.kernel_table import COPY_KINDS
from perfgate.units import plural

PAGEABLE = "-pageable"
HEADLINE_CAUSES = 3
"""Causes that a headline names; the lines below it show all."""
NAMED = 3
"""Kernels that a headline names for a role."""
SHOWN = 80
"""Characters of a name shown where template arguments tell kernels apart."""

_PYTORCH = "at::native::"
Residue = Counter[KernelKey]


class KernelChange(Frozen):
    """One kernel that the two steps do not have alike.

    Args:
        kind: What became of it.
        role: Its family.
        place: Where in a layer it is, where that is known.
        base: Normalised name in the base's step; empty where it is new.
        head: In the head's step; empty where it is gone.
        base_launches: Launches in the base's step; of a renamed kernel those that another one took over.
        head_launches: In the head's step, likewise.
    """

    kind: Literal["renamed", "gone", "new", "more", "fewer"]
    role: str
    place: str = ""
    base: str = ""
    head: str = ""
    base_launches: int = 0
    head_launches: int = 0

    @property
    def launches(self) -> int:
        """How many launches of a step it concerns."""
        return abs(self.head_launches - self.base_launches) or self.head_launches


class StepDifference(Frozen):
    """A decode step of the base beside one of the head.

    Args:
        base_launches: Kernels of the base's step.
        head_launches: Kernels of the head's.
        base_graph: Of them from CUDA graphs.
        head_graph: Likewise.
        layers: Layers that the base's step shows; 1 where its sequence does not tell.
        kernels: What differs, what concerns most launches first.
        left_graph: Launches by role that a graph made in the base's step and the host makes in the head's.
        joined_graph: The other way round.
        copies: Copies by kind that are not the same: base, head.
    """

    base_launches: int
    head_launches: int
    base_graph: int
    head_graph: int
    layers: int
    kernels: tuple[KernelChange, ...] = ()
    left_graph: dict[str, int] = {}
    joined_graph: dict[str, int] = {}
    copies: dict[str, tuple[int, int]] = {}

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.kernels or self.left_graph or self.joined_graph or self.copies)

    @property
    def headline(self) -> str:
        """The cause in plain words, in one line."""
        causes = [*_graph_causes(self), *_copy_causes(self), *_kernel_causes(self)]
        if not causes:
            return "both steps run the same kernels"
        more = len(causes) - HEADLINE_CAUSES
        shown = "; ".join(causes[:HEADLINE_CAUSES])
        return f"{shown}; and {plural(more, 'more change')}" if more > 0 else shown

    @property
    def lines(self) -> list[str]:
        """Each change as a line: ``-`` gone, ``+`` new, ``~`` renamed, ``<`` out of the graph, ``>`` into it."""
        lines = [_kernel_line(change, self.layers) for change in self.kernels]
        for mark, words, roles in (("<", "left", self.left_graph), (">", "joined", self.joined_graph)):
            if roles:
                listed = ", ".join(f"{role} {count}" for role, count in roles.items())
                lines.append(f"{mark} {plural(sum(roles.values()), 'kernel')} {words} the CUDA graph: {listed}")
        lines += [f"{'+' if h > b else '-'} copy {kind}: {b} -> {h}" for kind, (b, h) in self.copies.items()]
        return lines


def difference(
    base: DecodeSteps, head: DecodeSteps, base_pattern: Pattern | None = None, head_pattern: Pattern | None = None
) -> StepDifference:
    """What the head's step runs otherwise than the base's: the most frequent step of each, unless others are named."""
    one, other = base_pattern or base.patterns[0], head_pattern or head.patterns[0]
    b, h = base.launches(one), head.launches(other)
    left, joined = _moved(b, h)
    pairs = {kind: (one.copies.get(kind, 0), other.copies.get(kind, 0)) for kind in COPY_KINDS}
    return StepDifference(
        base_launches=len(one.kernels),
        head_launches=len(other.kernels),
        base_graph=one.graph_launches,
        head_graph=other.graph_launches,
        layers=_layers(_without_graphs(b)),
        kernels=tuple(sorted(_changes(_without_graphs(b), _without_graphs(h)), key=lambda one: -one.launches)),
        left_graph=left,
        joined_graph=joined,
        copies={kind: pair for kind, pair in pairs.items() if pair[0] != pair[1]},
    )


def nearest(pattern: Pattern, owner: DecodeSteps, others: DecodeSteps) -> Pattern:
    """The pattern of ``others`` that differs from this one in the fewest launches, the more frequent among equals."""
    wanted = owner.launches(pattern)
    distances = []
    for number, one in enumerate(others.patterns):
        found = others.launches(one)
        distances.append((((wanted - found).total() + (found - wanted).total()), number))
    return others.patterns[min(distances)[1]]


def _without_graphs(launches: Counter[tuple[KernelKey, bool]]) -> Residue:
    found: Residue = Counter()
    for (key, _), count in launches.items():
        found[key] += count
    return found


def _moved(
    base: Counter[tuple[KernelKey, bool]], head: Counter[tuple[KernelKey, bool]]
) -> tuple[dict[str, int], dict[str, int]]:
    """Launches by role that moved out of graphs, and into them; by role, so that a rename does not hide a move."""
    counts: dict[str, Counter[tuple[str, bool]]] = defaultdict(Counter)
    for side, launches in (("base", base), ("head", head)):
        for (key, graph), count in launches.items():
            counts[key.role][side, graph] += count
    left, joined = {}, {}
    for role, found in counts.items():
        inside = found["head", True] - found["base", True]
        outside = found["head", False] - found["base", False]
        left[role] = max(min(-inside, outside), 0)
        joined[role] = max(min(inside, -outside), 0)
    return _largest_first(left), _largest_first(joined)


def _largest_first(counts: dict[str, int]) -> dict[str, int]:
    return {role: count for role, count in sorted(counts.items(), key=lambda one: (-one[1], one[0])) if count}


def _changes(base: Residue, head: Residue) -> Iterator[KernelChange]:
    lost, found = base - head, head - base
    for old, new, count in list(_renamed(lost, found)):
        lost[old] -= count
        found[new] -= count
        yield KernelChange(
            kind="renamed", role=old.role, place=old.place, base=old.name, head=new.name, base_launches=count,
            head_launches=count,
        )  # fmt: skip
    _forget_moves(lost, found)
    for key in [*+lost, *+found]:
        rest = min(base[key], head[key])
        b, h = rest + lost[key], rest + found[key]
        name = {"base": key.name if b else "", "head": key.name if h else ""}
        kind: Literal["gone", "new", "more", "fewer"] = (
            "new" if not b else "gone" if not h else "more" if h > b else "fewer"
        )
        yield KernelChange(kind=kind, role=key.role, place=key.place, **name, base_launches=b, head_launches=h)


def _renamed(lost: Residue, found: Residue) -> Iterator[tuple[KernelKey, KernelKey, int]]:
    """Kernels of one role, place and number on either side, in the order in which a step runs them."""
    buckets: dict[tuple[str, str, int], list[KernelKey]] = defaultdict(list)
    for new, count in found.items():
        buckets[new.role, new.place, count].append(new)
    for old, count in lost.items():
        bucket = buckets[old.role, old.place, count]
        if bucket:
            yield old, bucket.pop(0), count


def _forget_moves(lost: Residue, found: Residue) -> None:
    """Take out kernels that only are at another place: places are guessed from what is around a kernel."""
    by_name: dict[tuple[str, str], list[KernelKey]] = defaultdict(list)
    for new in +found:
        by_name[new.role, new.name].append(new)
    for old in +lost:
        for new in by_name[old.role, old.name]:
            same = min(lost[old], found[new])
            lost[old] -= same
            found[new] -= same


def _layers(launches: Residue) -> int:
    """How often the step's sequence repeats: as often as it writes the KV cache, or the number that most kernels share.

    See :mod:`perfgate.trace.layers`, which finds layers by the same kernels.
    """
    writes = [count for key, count in launches.items() if key.role == KV_WRITE]
    if writes:
        return max(writes)
    shared = Counter(count for count in launches.values() if count > 1)
    return max(shared, key=lambda count: (shared[count], count)) if shared else 1


def _graph_causes(found: StepDifference) -> Iterator[str]:
    if found.left_graph and not found.head_graph:
        yield "no kernel comes from a CUDA graph any more: eager mode, or a batch size that is not captured"
    elif found.left_graph:
        yield f"{plural(sum(found.left_graph.values()), 'kernel')} a step moved out of the CUDA graph"
    if found.joined_graph:
        yield f"{plural(sum(found.joined_graph.values()), 'kernel')} a step moved into the CUDA graph"


def _copy_causes(found: StepDifference) -> Iterator[str]:
    """Pageable copies first: the host waits for each of them."""
    for kind, (base, head) in sorted(found.copies.items(), key=lambda one: not one[0].endswith(PAGEABLE)):
        many = abs(head - base)
        what = f"pageable host copy ({kind.removesuffix(PAGEABLE)})" if kind.endswith(PAGEABLE) else f"{kind} copy"
        if not base and many == 1:
            yield f"a {what} in each step"
        else:
            word = "more" if head > base else "fewer"
            yield f"{_number(many)} {word} {what.replace('copy', 'copies') if many > 1 else what} in each step"


def _kernel_causes(found: StepDifference) -> Iterator[str]:
    """A cause a role, in the order of the changes."""
    by_role: dict[str, list[KernelChange]] = defaultdict(list)
    for change in found.kernels:
        by_role[change.role].append(change)
    for role, changes in by_role.items():
        lost = [one.base for one in changes if one.kind in ("renamed", "gone")]
        new = [one.head for one in changes if one.kind in ("renamed", "new")]
        grown = sum(one.head_launches - one.base_launches for one in changes)
        if lost and new:
            yield f"{role} runs {_exchanged(lost, new)}"
        elif grown:
            many, repeated = (abs(grown), "") if abs(grown) % found.layers or found.layers == 1 else (
                abs(grown) // found.layers, f" a layer ({abs(grown)})")  # fmt: skip
            word = "more" if grown > 0 else "fewer"
            yield f"{_number(many)} {word} {role} kernel{'s' * (many > 1)}{repeated or ' a step'}"
        else:
            yield f"{role} launches its kernels in other numbers"


def _exchanged(lost: Sequence[str], new: Sequence[str]) -> str:
    """What gave way to what, in the names that only one side has."""
    before, after = (dict.fromkeys(map(_shown, names)) for names in (lost, new))
    if before.keys() == after.keys():
        return f"{_listed(before)} with other template arguments"
    return f"other kernels: {_listed(before, after)} -> {_listed(after, before)}"


def _listed(names: Iterable[str], but: Iterable[str] = ()) -> str:
    every = list(names)
    shown = [name for name in every if name not in set(but)] or every
    return ", ".join(shown[:NAMED]) + (", ..." if len(shown) > NAMED else "")


def _kernel_line(change: KernelChange, layers: int) -> str:
    who = f"{change.role} ({change.place})" if change.place else change.role
    often = _often(change.launches, layers)
    if change.kind == "renamed":
        return f"~ {who} {_renaming(change.base, change.head)}: {often}"
    if change.kind in ("more", "fewer"):
        mark = "+" if change.kind == "more" else "-"
        name = _shown(change.base)
        return f"{mark} {who} {name}: {often} {change.kind} ({change.base_launches} -> {change.head_launches})"
    mark, name = ("+", change.head) if change.kind == "new" else ("-", change.base)
    return f"{mark} {who} {_shown(name)}: {often}"


def _renaming(base: str, head: str) -> str:
    one, other = _shown(base), _shown(head)
    if one != other:
        return f"{one} -> {other}"
    begin = next((n for n, (a, b) in enumerate(zip(base, head, strict=False)) if a != b), min(len(base), len(head)))
    begin = max(begin - SHOWN // 3, 0)
    return f"{one} with other template arguments: {_cut(base[begin:])} -> {_cut(head[begin:])}"


def _often(launches: int, layers: int) -> str:
    if layers > 1 and launches % layers == 0:
        return f"{launches // layers} a layer, {launches} a step"
    return f"{launches} a step"


def _shown(name: str) -> str:
    """A kernel's own name; PyTorch's templates with their arguments, because only those say what a kernel does."""
    if name.startswith(_PYTORCH):
        return _cut(name.replace(_PYTORCH, "").replace("{anonymous}::", ""))
    return short_name(name)


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _number(count: int) -> str:
    return "one" if count == 1 else str(count)
