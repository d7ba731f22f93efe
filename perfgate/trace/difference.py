"""What two builds' decode steps differ in, like a code diff: kernels gone, new, renamed, launched more or less often.

Steps are compared as multisets of kernels, so that streams that overlap in another order are not difference. A kernel
that another one of the same role replaces at the same place, as often, is renamed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from perfgate.scenario.kernel_names import COPY_KINDS, KV_WRITE
from perfgate.trace.decode_step import DecodeSteps, KernelKey, Pattern
from perfgate.trace.families import short_name
from perfgate.units import plural, signed_us

PAGEABLE = "-pageable"
HEADLINE_CAUSES = 3
"""Causes that a headline names; the lines below it show all."""
NAMED = 3
"""Kernels that a headline names for a role."""
SHOWN = 80
"""Characters of a name shown where template arguments tell kernels apart."""

_PYTORCH = "at::native::"
Residue = Counter[KernelKey]


@dataclass(frozen=True)
class Change:
    """A row of a difference: what two builds do not have alike.

    Args:
        what: What it is, and where.
        more: Of each figure that differs what the head has more, for the sign; nothing where they only are others.
        parts: What differs, in words.
        cost_s: What it costs more in a step of the head, in seconds; ``None`` where nothing says that.
        cause: What a headline says of it; empty where the row is enough.
        instead: Words in the place of the price.
    """

    what: str
    more: Sequence[float]
    parts: Sequence[str]
    cost_s: float | None = None
    cause: str = ""
    instead: str = ""

    @property
    def line(self) -> str:
        """As in a diff: ``+`` for more on the head, ``-`` for less, ``~`` for both; the price behind it."""
        signs = {more > 0 for more in self.more if more}
        mark = "~" if len(signs) != 1 else "+" if signs == {True} else "-"
        price = self.instead or ("" if self.cost_s is None else signed_us(self.cost_s))
        return f"{mark} {': '.join(filter(None, (self.what, '; '.join(self.parts))))}{f' ({price})' if price else ''}"


def told(changes: Sequence[Change], most: int, noun: str) -> list[str]:
    """A line for each of the first changes, and one for all others together, with their price where they have one."""
    lines, rest = [change.line for change in changes[:most]], changes[most:]
    costs_s = [change.cost_s for change in rest if change.cost_s is not None]
    return [*lines, Change(plural(len(rest), noun), (), (), sum(costs_s) if costs_s else None).line] if rest else lines


Range = tuple[float, float]
"""The least and the most of a figure that was seen more than once."""


def apart(base: Range, head: Range) -> float:
    """By how much the head's range is above the base's, or below; 0 where they overlap."""
    return max(head[0] - base[1], 0) - max(base[0] - head[1], 0)


def range_changes(
    base: Mapping[str, Range], head: Mapping[str, Range], shown: Callable[[str, float], str]
) -> list[Change]:
    """The figures of both builds whose ranges do not overlap, what is furthest apart first; they have no price.

    Args:
        base: By name.
        head: By name.
        shown: How the value of a figure is written.
    """
    more = {name: apart(base[name], head[name]) for name in sorted(base.keys() & head.keys())}

    def words(name: str, both: Range) -> str:
        return " to ".join(dict.fromkeys(shown(name, value) for value in both))

    return [
        Change(name, (more[name],), (f"{words(name, base[name])} -> {words(name, head[name])}",))
        for name in sorted(filter(more.get, more), key=lambda name: -abs(more[name]))
    ]


@dataclass(frozen=True)
class KernelChange:
    """One kernel that the two steps do not have alike.

    Args:
        role: Its family.
        place: Where in a layer it is, where that is known.
        base: Normalised name in the base's step; empty where it is new.
        head: In the head's step; empty where it is gone; another name where it is renamed.
        base_launches: Launches in the base's step; of a renamed kernel those that another one took over.
    """

    role: str
    place: str
    base: str
    head: str
    base_launches: int
    head_launches: int

    @property
    def launches(self) -> int:
        """How many launches of a step it concerns."""
        return abs(self.head_launches - self.base_launches) or self.head_launches

    def line(self, layers: int) -> str:
        """As in a diff, in launches of a layer where a step has several."""
        more, often = self.head_launches - self.base_launches, f"{self.launches} a step"
        if layers > 1 and self.launches % layers == 0:
            often = f"{self.launches // layers} a layer, {often}"
        name = _shown(self.base or self.head)
        if not more:
            name = _renaming(self.base, self.head)
        elif self.base and self.head:
            often += f" {'more' if more > 0 else 'fewer'} ({self.base_launches} -> {self.head_launches})"
        where = f"{self.role} ({self.place})" if self.place else self.role
        return Change(f"{where} {name}", (more,), (often,)).line


@dataclass(frozen=True)
class StepDifference:
    """A decode step of the base beside one of the head.

    Args:
        head_graph: Kernels of the head's step that CUDA graphs launch.
        layers: Layers that the base's step shows; 1 where its sequence does not tell.
        kernels: What differs, what concerns most launches first.
        left_graph: Launches by role that a graph made in the base's step and the host makes in the head's.
        joined_graph: The other way round.
        copies: Copies by kind that are not the same: base, head.
    """

    head_graph: int
    layers: int
    kernels: tuple[KernelChange, ...] = ()
    left_graph: dict[str, int] = field(default_factory=dict)
    joined_graph: dict[str, int] = field(default_factory=dict)
    copies: dict[str, tuple[int, int]] = field(default_factory=dict)

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
        return self.lines_but(())

    def lines_but(self, kinds: Collection[str]) -> list[str]:
        """The same without copies of some kinds."""
        lines = [change.line(self.layers) for change in self.kernels]
        for mark, verb, roles in (("<", "left", self.left_graph), (">", "joined", self.joined_graph)):
            if roles:
                listed = ", ".join(f"{role} {count}" for role, count in roles.items())
                lines.append(f"{mark} {plural(sum(roles.values()), 'kernel')} {verb} the CUDA graph: {listed}")
        copies = {kind: both for kind, both in self.copies.items() if kind not in kinds}
        return lines + [Change(f"copy {kind}", (h - b,), (f"{b} -> {h}",)).line for kind, (b, h) in copies.items()]

    @property
    def told(self) -> tuple[str, ...]:
        """The cause, and each change as a line."""
        return (self.headline, *self.lines)


def difference(
    base: DecodeSteps, head: DecodeSteps, base_pattern: Pattern | None = None, head_pattern: Pattern | None = None
) -> StepDifference:
    """What the head's step runs otherwise than the base's: the most frequent step of each, unless others are named."""
    base_step, head_step = base_pattern or base.patterns[0], head_pattern or head.patterns[0]
    left, joined = _moved(base.launches(base_step), head.launches(head_step))
    b, h = Counter(base.keys[key] for key in base_step.kernels), Counter(head.keys[key] for key in head_step.kernels)
    pairs = {kind: (base_step.copies.get(kind, 0), head_step.copies.get(kind, 0)) for kind in COPY_KINDS}
    return StepDifference(
        head_graph=head_step.graph_launches,
        layers=_layers(b),
        kernels=tuple(sorted(_changes(b, h), key=lambda change: -change.launches)),
        left_graph=left,
        joined_graph=joined,
        copies={kind: pair for kind, pair in pairs.items() if pair[0] != pair[1]},
    )


def first_difference(pairs: Iterable[tuple[DecodeSteps | None, DecodeSteps | None]]) -> tuple[str, ...]:
    """What differs in the first pair of trials that were both traced, its cause first; nothing where none was."""
    return next((difference(base, head).told for base, head in pairs if base and head), ())


def nearest(pattern: Pattern, owner: DecodeSteps, others: DecodeSteps) -> Pattern:
    """The pattern of ``others`` that differs from this one in the fewest launches, the more frequent among equals."""
    wanted = owner.launches(pattern)

    def distance(candidate: Pattern) -> int:
        launches = others.launches(candidate)
        return (wanted - launches).total() + (launches - wanted).total()

    return min(others.patterns, key=distance)


def _moved(
    base: Counter[tuple[KernelKey, bool]], head: Counter[tuple[KernelKey, bool]]
) -> tuple[dict[str, int], dict[str, int]]:
    """Launches by role that moved out of graphs, and into them; by role, so that a rename does not hide a move."""
    counts: dict[str, Counter[tuple[str, bool]]] = defaultdict(Counter)
    for side, launches in (("base", base), ("head", head)):
        for (key, graph), count in launches.items():
            counts[key.role][side, graph] += count
    left, joined = {}, {}
    for role, moved in counts.items():
        inside = moved["head", True] - moved["base", True]
        outside = moved["head", False] - moved["base", False]
        left[role] = max(min(-inside, outside), 0)
        joined[role] = max(min(inside, -outside), 0)
    return _largest_first(left), _largest_first(joined)


def _largest_first(counts: dict[str, int]) -> dict[str, int]:
    return {role: count for role, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if count}


def _changes(base: Residue, head: Residue) -> Iterator[KernelChange]:
    lost, gained = base - head, head - base
    for old, new, count in list(_renamed(lost, gained)):
        lost[old] -= count
        gained[new] -= count
        yield KernelChange(old.role, old.place, old.name, new.name, count, count)
    _forget_moves(lost, gained)
    for key in [*+lost, *+gained]:
        rest = min(base[key], head[key])
        b, h = rest + lost[key], rest + gained[key]
        yield KernelChange(key.role, key.place, key.name if b else "", key.name if h else "", b, h)


def _renamed(lost: Residue, gained: Residue) -> Iterator[tuple[KernelKey, KernelKey, int]]:
    """Kernels of one role, place and number on either side, in the order in which a step runs them."""
    buckets: dict[tuple[str, str, int], list[KernelKey]] = defaultdict(list)
    for new, count in gained.items():
        buckets[new.role, new.place, count].append(new)
    for old, count in lost.items():
        bucket = buckets[old.role, old.place, count]
        if bucket:
            yield old, bucket.pop(0), count


def _forget_moves(lost: Residue, gained: Residue) -> None:
    """Take out kernels that only are at another place: places are guessed from what is around a kernel."""
    by_name: dict[tuple[str, str], list[KernelKey]] = defaultdict(list)
    for new in +gained:
        by_name[new.role, new.name].append(new)
    for old in +lost:
        for new in by_name[old.role, old.name]:
            same = min(lost[old], gained[new])
            lost[old] -= same
            gained[new] -= same


def _layers(launches: Residue) -> int:
    """How often the step's sequence repeats: as often as it writes the KV cache, or the number that most kernels share.

    See :mod:`perfgate.trace.layers`, which finds layers by the same kernels.
    """
    writes = [count for key, count in launches.items() if key.role == KV_WRITE]
    if writes:
        return max(writes)
    shared = Counter(count for count in launches.values() if count > 1)
    return max(shared, key=lambda count: (shared[count], count)) if shared else 1


def _graph_causes(steps: StepDifference) -> Iterator[str]:
    if steps.left_graph and not steps.head_graph:
        yield "no kernel comes from a CUDA graph any more: eager mode, or a batch size that is not captured"
    elif steps.left_graph:
        yield f"{plural(sum(steps.left_graph.values()), 'kernel')} a step moved out of the CUDA graph"
    if steps.joined_graph:
        yield f"{plural(sum(steps.joined_graph.values()), 'kernel')} a step moved into the CUDA graph"


def _copy_causes(steps: StepDifference) -> Iterator[str]:
    """Pageable copies first: the host waits for each of them."""
    for kind, (base, head) in sorted(steps.copies.items(), key=lambda item: not item[0].endswith(PAGEABLE)):
        many = abs(head - base)
        what = f"pageable host copy ({kind.removesuffix(PAGEABLE)})" if kind.endswith(PAGEABLE) else f"{kind} copy"
        if not base and many == 1:
            yield f"a {what} in each step"
        else:
            word = "more" if head > base else "fewer"
            yield f"{_number(many)} {word} {what.replace('copy', 'copies') if many > 1 else what} in each step"


def _kernel_causes(steps: StepDifference) -> Iterator[str]:
    """A cause a role, in the order of the changes."""
    by_role: dict[str, list[KernelChange]] = defaultdict(list)
    for change in steps.kernels:
        by_role[change.role].append(change)
    for role, changes in by_role.items():
        lost = [change.base for change in changes if change.base and change.base != change.head]
        new = [change.head for change in changes if change.head and change.base != change.head]
        grown = sum(change.head_launches - change.base_launches for change in changes)
        if lost and new:
            yield f"{role} runs {_exchanged(lost, new)}"
        elif grown:
            many, repeated = (abs(grown), "") if abs(grown) % steps.layers or steps.layers == 1 else (
                abs(grown) // steps.layers, f" a layer ({abs(grown)})")  # fmt: skip
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


def _renaming(base: str, head: str) -> str:
    old, new = _shown(base), _shown(head)
    if old != new:
        return f"{old} -> {new}"
    begin = next((n for n, (a, b) in enumerate(zip(base, head, strict=False)) if a != b), min(len(base), len(head)))
    begin = max(begin - SHOWN // 3, 0)
    return f"{old} with other template arguments: {_cut(base[begin:])} -> {_cut(head[begin:])}"


def _shown(name: str) -> str:
    """A kernel's own name; PyTorch's templates with their arguments, because only those say what a kernel does."""
    if name.startswith(_PYTORCH):
        return _cut(name.replace(_PYTORCH, "").replace("{anonymous}::", ""))
    return short_name(name)


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _number(count: int) -> str:
    return "one" if count == 1 else str(count)
