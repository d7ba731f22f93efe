"""What a build launches otherwise in a decode step, with what its kernels take: exact in what, measured in how long.

Only what differs is priced, kernels, copies and memsets, and the other kernels say how much faster the one card or hour
was than the other.
Collectives last as long as their rank waits for others: they take what they take on the rank that is shortest in them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perfgate.scenario.kernel_names import COMMUNICATION
from perfgate.trace.decode_step import DecodeSteps, KernelKey, pool
from perfgate.trace.difference import PAGEABLE, StepDifference, difference, nearest
from perfgate.trace.families import short_name
from perfgate.trace.launch_shapes import Shapes
from perfgate.trace.move_difference import MoveDifference, cost_of_moves_ns, move_differences
from perfgate.units import NS_PER_S, format_mean, listed, signed_us

EACH = 0.9
"""So many more a step, on average, are one more in each step: how often a step waits or copies may vary by some."""
SOME, FEWEST = 0.1, 2
"""A kernel is launched otherwise where its launches a step differ by more than this, and by this many steps' worth:
what a rare step runs, as where the KV cache grows, occurs in more of the steps of one trial than of another. What the
base never launches needs the latter alone. So it is with copies and memsets that not every step has."""
CARDS_APART = 1.1
"""More than one card of a kind was seen to take for the same kernels than another: up to 1.6 % of a step."""
NAMED = 4
"""Shapes of a kernel that a line names."""


@dataclass(frozen=True)
class KernelDifference:
    """A kernel that the builds do not launch alike.

    Args:
        key: The kernel.
        base: Its launches a step of the base.
        head: Those of the head.
        base_shapes: Shapes that the base launches it in, the most frequent first; empty where those do not differ.
        head_shapes: The head's.
        cost_ns: What it takes more in a step of the head.
    """

    key: KernelKey
    base: float
    head: float
    base_shapes: tuple[str, ...] = ()
    head_shapes: tuple[str, ...] = ()
    cost_ns: float = 0.0

    @property
    def where(self) -> str:
        """Its role and, where that is known, its place in a layer."""
        return " ".join(filter(None, (self.key.role, self.key.place)))

    @property
    def line(self) -> str:
        """As in a diff."""
        mark = "+" if self.head > self.base else "-" if self.head < self.base else "~"
        parts = (
            [f"{format_mean(self.base)} -> {format_mean(self.head)} launches a step"] if self.base != self.head else []
        )
        if self.base_shapes:
            parts.append(f"{listed(self.base_shapes, NAMED)} -> {listed(self.head_shapes, NAMED)}")
        cost = signed_us(self.cost_ns / NS_PER_S)
        return f"{mark} {self.where} {short_name(self.key.name)}: {'; '.join(parts)} ({cost})"


@dataclass(frozen=True)
class LaunchDifference:
    """A decode step of the head beside the base's.

    Args:
        kernels: What differs on average over all steps, the most expensive first.
        steps: What the most frequent step of the head differs in from the step of the base nearest to it, in words.
        pageable: Copies of pageable memory that the head makes more, a step, by kind.
        waits: How much more often the head's host waits for the device in a step; 0 where that is not known.
        moves: Copies and memsets that differ on average over all steps; empty where the times of either are not known.
    """

    kernels: tuple[KernelDifference, ...]
    steps: StepDifference
    pageable: dict[str, float] = field(default_factory=dict)
    waits: float = 0.0
    moves: tuple[MoveDifference, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.kernels or self.steps or self.pageable or self.waits_more or self.moves)

    @property
    def cost_s(self) -> float:
        """What kernels, copies and memsets that differ take more in a step, seconds; negative where they take less."""
        return (sum(kernel.cost_ns for kernel in self.kernels) + cost_of_moves_ns(self.moves)) / NS_PER_S

    @property
    def waits_more(self) -> bool:
        """Whether the head's host waits for the device in each step where the base's does not."""
        return self.waits >= EACH

    @property
    def headline(self) -> str:
        """The whole in one line, with its price."""
        causes = [self.steps.headline] if self.steps else []
        if self.waits_more:
            causes.append(f"the host waits for the device {format_mean(self.waits)} times more in a step")
        causes += [f"{format_mean(more)} more {kind} copies a step" for kind, more in self.pageable.items()
                   if kind not in self.steps.copies]  # fmt: skip
        causes += [own.cause for own in self.moves if own.kind not in self.steps.copies | self.pageable]
        if reshaped := [kernel.where for kernel in self.kernels if kernel.base_shapes]:
            causes.append(f"other launch shapes of {', '.join(dict.fromkeys(reshaped))}")
        if not causes:
            causes = ["some steps launch more or less"]
        what = "kernels, copies and memsets" if self.moves else "kernels"
        return f"{signed_us(self.cost_s)} a step by the traced time of its {what}: {'; '.join(causes)}"

    @property
    def lines(self) -> list[str]:
        """Each change as a line; copies whose price is known have one with it."""
        priced = {own.kind for own in self.moves}
        copies = {kind: counts for kind, counts in self.steps.copies.items() if kind not in priced}
        lines = self.steps.model_copy(update={"copies": copies}).lines
        lines += [kernel.line for kernel in self.kernels if kernel.base_shapes or not self.steps]
        return [*lines, *(own.line for own in self.moves)]


def without_waits(ranks: Sequence[DecodeSteps]) -> tuple[DecodeSteps, ...]:
    """The ranks of one trial, each launch of a collective as long as on the rank where such launches are shortest.

    Which rank waits is a matter of cards and hours, no property of a build. Ranks that wait in turns keep some.

    Args:
        ranks: What the decode steps of each rank ran, of one trial: over several, ranks may have waited in turns.
    """
    least: dict[KernelKey, float] = {}
    for rank in ranks:
        for key, launches, ns in zip(rank.keys, rank.key_launches, rank.key_ns, strict=True):
            if key.role == COMMUNICATION and launches:
                least[key] = min(least.get(key, math.inf), ns / launches)

    def times(rank: DecodeSteps) -> tuple[int, ...]:
        own = zip(rank.keys, rank.key_launches, rank.key_ns, strict=True)
        return tuple(round(least[key] * launches) if key in least else ns for key, launches, ns in own)

    return tuple(rank.model_copy(update={"key_ns": times(rank)}) for rank in ranks)


def by_rank(trials: Sequence[Sequence[DecodeSteps]]) -> list[DecodeSteps]:
    """The steps of each rank over several trials, without waits; trials of another number of ranks are left out.

    Args:
        trials: Of each trial what its ranks ran.
    """
    alike = (without_waits(ranks) for ranks in trials if len(ranks) == len(trials[0]))
    return [pool(own) for own in zip(*alike, strict=True)]


def launch_difference(base: DecodeSteps, head: DecodeSteps) -> LaunchDifference:
    """Hold what the head's decode steps launch against what the base's do.

    Launches are compared on average over all steps, each kernel at the mean time of its launches. The base's times are
    first scaled by those of the kernels that both launch alike: a stored profile is of another card or hour.
    Collectives neither tell that pace nor follow it: they last as long on every card that takes part.

    Args:
        base: The base's steps on one rank, of one trial or pooled, collectives as :func:`without_waits` has them.
        head: The head's.
    """
    base = _with_roles_of(head, base)
    pattern = head.patterns[0]
    known = base.waits is not None and head.waits is not None
    kernels, pace = _kernels(base, head)
    return LaunchDifference(
        kernels=kernels,
        steps=difference(base, head, nearest(pattern, head, base), pattern),
        pageable=_pageable(base, head),
        waits=(head.waits or 0) / head.steps - (base.waits or 0) / base.steps if known else 0.0,
        moves=_moves(base, head, pace),
    )


def _with_roles_of(head: DecodeSteps, base: DecodeSteps) -> DecodeSteps:
    """The base with its kernels in the roles that the head's have: a later version may know more of them."""
    theirs, mine = _roles(head), _roles(base)
    moved = {name: own for name, (own, *more) in theirs.items() if not more and len(mine.get(name, ())) == 1}
    keys = tuple(key.model_copy(update={"role": moved.get(key.name, key.role)}) for key in base.keys)
    return base.model_copy(update={"keys": keys})


def _roles(steps: DecodeSteps) -> dict[str, list[str]]:
    """The roles that kernels of a name have: several where a scenario's own rule reads what the name leaves out."""
    roles: dict[str, list[str]] = {}
    for key in steps.keys:
        own = roles.setdefault(key.name, [])
        if key.role not in own:
            own.append(key.role)
    return roles


@dataclass(frozen=True)
class _Launched:
    """One kernel of one build: launches a step, their time a step, and launches by shape."""

    rate: float = 0.0
    ns: float = 0.0
    shapes: Shapes = field(default_factory=dict)


def _launched(steps: DecodeSteps) -> dict[KernelKey, _Launched]:
    shapes = steps.key_shapes or ({},) * len(steps.keys)
    return {
        key: _Launched(launches / steps.steps, ns / steps.steps, own)
        for key, launches, ns, own in zip(steps.keys, steps.key_launches, steps.key_ns, shapes, strict=True)
    }


def _kernels(base: DecodeSteps, head: DecodeSteps) -> tuple[tuple[KernelDifference, ...], float]:
    """The kernels that differ, and the pace of those that do not."""
    before, after, nothing = _launched(base), _launched(head), _Launched()
    pairs = {key: (before.get(key, nothing), after.get(key, nothing)) for key in {**before, **after}}
    reshaped = {key for key, (b, h) in pairs.items() if _differ((b.shapes, base.steps), (h.shapes, head.steps))}
    others = {key for key, (b, h) in pairs.items() if abs(b.rate - h.rate) > _by_chance(b.rate, base, head)}
    alike = [own for key, own in pairs.items() if key not in reshaped | others and key.role != COMMUNICATION]
    pace = _pace(alike)
    found = []
    for key in reshaped | others:
        b, h = pairs[key]
        was, now = (_by_number(own.shapes) if key in reshaped else () for own in (b, h))
        faster = pace if key.role != COMMUNICATION else 1.0
        if key in reshaped or not (b.rate and h.rate):
            cost_ns = h.ns - b.ns * faster
        else:  # as many as before take what they took
            cost_ns = (h.rate - b.rate) * (h.ns / h.rate if h.rate > b.rate else b.ns * faster / b.rate)
        found.append(KernelDifference(key, b.rate, h.rate, was, now, cost_ns))
    return tuple(sorted(found, key=lambda own: (-abs(own.cost_ns), own.key.role, own.key.place, own.key.name))), pace


def _by_chance(rate: float, base: DecodeSteps, head: DecodeSteps) -> float:
    """How much more or less a step may launch of what the base launches so often, see :data:`SOME`."""
    return max(SOME, FEWEST / min(base.steps, head.steps)) if rate else FEWEST / head.steps


def _pace(alike: Sequence[tuple[_Launched, _Launched]]) -> float:
    """Head over base of the time of kernels that both launch alike, as far as cards of a kind may be apart."""
    was, now = (sum(pair[n].ns for pair in alike) for n in range(2))
    return min(max(now / was, 1 / CARDS_APART), CARDS_APART) if was and now else 1.0


def _moves(base: DecodeSteps, head: DecodeSteps, pace: float) -> tuple[MoveDifference, ...]:
    if base.moves is None or head.moves is None:
        return ()
    sides = (base.moves, base.steps), (head.moves, head.steps)
    return move_differences(*sides, pace, lambda rate: _by_chance(rate, base, head))


def _pageable(base: DecodeSteps, head: DecodeSteps) -> dict[str, float]:
    """Pageable copies a step that the head makes in each step more, or the base never does."""
    before, after = _copies(base), _copies(head)
    more = {kind: rate - before.get(kind, 0.0) for kind, rate in sorted(after.items()) if kind.endswith(PAGEABLE)}
    return {
        kind: rate for kind, rate in more.items() if rate >= EACH or (kind not in before and rate > FEWEST / head.steps)
    }


def _copies(steps: DecodeSteps) -> Mapping[str, float]:
    copies: Counter[str] = Counter()
    for pattern in steps.patterns:
        copies.update({kind: count * pattern.steps for kind, count in pattern.copies.items()})
    return {kind: count / steps.steps for kind, count in copies.items()}


def _differ(*sides: tuple[Shapes, int]) -> bool:
    """Whether shapes differ, given each build's launches by shape, and its steps.

    Where either build launches a kernel in each shape equally often in every step, the numbers a step are compared.
    A grid may follow the length of the context; such a kernel differs where the builds have no shape in common.
    """
    (base, _), (head, _) = sides
    if not (base and head):
        return False
    if any(launches % steps for shapes, steps in sides for launches in shapes.values()):
        return not base.keys() & head.keys()
    before, after = ({shape: count // steps for shape, count in shapes.items()} for shapes, steps in sides)
    # Only launched more often, a kernel has the same shapes.
    return before.keys() != after.keys() or (before != after and sum(before.values()) == sum(after.values()))


def _by_number(shapes: Shapes) -> tuple[str, ...]:
    return tuple(sorted(shapes, key=lambda shape: (-shapes[shape], shape)))
