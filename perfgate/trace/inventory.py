"""What decode steps launch and move, as a table, and what two builds differ in, with its price.

The table is exact in what, how often and how many bytes, and measured in how long. Only what differs is priced,
kernels, copies and memsets, and the other kernels say how much faster the one card or hour was than the other.
Collectives last as long as their rank waits for others: they take what they take on the rank that is shortest in them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from perfgate.scenario.kernel_names import COMMUNICATION
from perfgate.trace.decode_step import DecodeSteps, KernelKey, pool
from perfgate.trace.difference import PAGEABLE, Change, StepDifference, difference, nearest
from perfgate.trace.families import short_name
from perfgate.trace.launch_details import MEMSET, MOVE_KINDS, Moves, Shapes
from perfgate.units import NS_PER_S, format_mean, format_value, listed, signed_us

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
FEW = 0.1
"""Of the copies, so many more or fewer by chance are not what differs where bytes do."""
SLOWER = 2.0
"""Copies within the device take so much longer at most without being others; a transfer's time is that of the bus."""
WITHIN_THE_DEVICE: Final = ("d2d", MEMSET)
"""What is in the way of kernels as a kernel is. Transfers mostly run beside them: those that are gone save a step
nothing, and pay for other transfers alone."""


@dataclass(frozen=True)
class Amount:
    """How much of one thing is in a step, as a mean over steps.

    Args:
        often: Launches, copies or memsets.
        ns: What these take.
        bytes: What they copy or set; 0 of a kernel.
        shapes: Launches of a kernel by shape, over all steps.
    """

    often: float = 0.0
    ns: float = 0.0
    bytes: float = 0.0
    shapes: Shapes = field(default_factory=dict)

    def plus(self, share: float, launches: int, size: int, ns: float) -> Amount:
        """With what a share of the steps has more."""
        return Amount(self.often + share * launches, self.ns + ns, self.bytes + share * size)


def inventory(steps: DecodeSteps) -> dict[KernelKey, Amount]:
    """The kernels of a step."""
    shapes = steps.key_shapes or ({},) * len(steps.keys)
    return {
        key: Amount(launches / steps.steps, ns / steps.steps, shapes=by_shape)
        for key, launches, ns, by_shape in zip(steps.keys, steps.key_launches, steps.key_ns, shapes, strict=True)
    }


@dataclass(frozen=True)
class LaunchDifference:
    """A decode step of the head beside the base's.

    Args:
        kernels: What differs on average over all steps, the most expensive first; a cause where the shapes are others.
        steps: What the most frequent step of the head differs in from the step of the base nearest to it, in words.
        pageable: Copies of pageable memory that the head makes more, a step, by kind.
        waits: How much more often the head's host waits for the device in a step; 0 where that is not known.
        moves: Kinds of copies, and memsets, that differ on average over all steps, the most expensive first; empty
            where the times of either build are not known.
    """

    kernels: tuple[Change, ...]
    steps: StepDifference
    pageable: dict[str, float] = field(default_factory=dict)
    waits: float = 0.0
    moves: dict[str, Change] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.kernels or self.steps or self.pageable or self.waits_more or self.moves)

    @property
    def cost_s(self) -> float:
        """What kernels, copies and memsets that differ take more in a step, seconds; negative where they take less."""
        within, transfers = (
            sum(change.cost_s or 0.0 for kind, change in self.moves.items() if (kind in WITHIN_THE_DEVICE) == inside)
            for inside in (True, False)
        )
        return sum(kernel.cost_s or 0.0 for kernel in self.kernels) + within + max(transfers, 0.0)

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
        causes += [change.cause for kind, change in self.moves.items() if kind not in self.steps.copies | self.pageable]
        if reshaped := dict.fromkeys(kernel.cause for kernel in self.kernels if kernel.cause):
            causes.append(f"other launch shapes of {', '.join(reshaped)}")
        if not causes:
            causes = ["some steps launch more or less"]
        what = "kernels, copies and memsets" if self.moves else "kernels"
        return f"{signed_us(self.cost_s)} a step by the traced time of its {what}: {'; '.join(causes)}"

    @property
    def lines(self) -> list[str]:
        """Each change as a line; copies whose price is known have one with it."""
        rows = [kernel for kernel in self.kernels if kernel.cause or not self.steps]
        return [*self.steps.lines_but(self.moves), *(row.line for row in (*rows, *self.moves.values()))]


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
        rows = zip(rank.keys, rank.key_launches, rank.key_ns, strict=True)
        return tuple(round(least[key] * launches) if key in least else ns for key, launches, ns in rows)

    return tuple(rank.model_copy(update={"key_ns": times(rank)}) for rank in ranks)


def by_rank(trials: Sequence[Sequence[DecodeSteps]]) -> list[DecodeSteps]:
    """The steps of each rank over several trials, without waits; trials of another number of ranks are left out.

    Args:
        trials: Of each trial what its ranks ran.
    """
    alike = (without_waits(ranks) for ranks in trials if len(ranks) == len(trials[0]))
    return [pool(steps) for steps in zip(*alike, strict=True)]


def launch_difference(base: DecodeSteps, head: DecodeSteps) -> LaunchDifference:
    """Hold what the head's decode steps launch and move against what the base's do.

    Amounts are compared on average over all steps, each kernel at the mean time of its launches. The base's times are
    first scaled by those of the kernels that both launch alike: a stored profile is of another card or hour.
    Collectives neither tell that pace nor follow it: they last as long on every card that takes part.

    Args:
        base: The base's steps on one rank, of one trial or pooled, collectives as :func:`without_waits` has them.
        head: The head's.
    """
    base = _with_roles_of(head, base)
    pattern = head.patterns[0]
    waits_known = base.waits is not None and head.waits is not None
    kernels, pace = _kernels(base, head)
    return LaunchDifference(
        kernels=kernels,
        steps=difference(base, head, nearest(pattern, head, base), pattern),
        pageable=_pageable(base, head),
        waits=(head.waits or 0) / head.steps - (base.waits or 0) / base.steps if waits_known else 0.0,
        moves=_moves(base, head, pace),
    )


def _with_roles_of(head: DecodeSteps, base: DecodeSteps) -> DecodeSteps:
    """The base with its kernels in the roles that the head's have: a later version may know more of them."""
    theirs, mine = _roles(head), _roles(base)
    moved = {name: role for name, (role, *more) in theirs.items() if not more and len(mine.get(name, ())) == 1}
    keys = tuple(key.model_copy(update={"role": moved.get(key.name, key.role)}) for key in base.keys)
    return base.model_copy(update={"keys": keys})


def _roles(steps: DecodeSteps) -> dict[str, list[str]]:
    """The roles that kernels of a name have: several where a scenario's own rule reads what the name leaves out."""
    roles: dict[str, list[str]] = {}
    for key in steps.keys:
        of_name = roles.setdefault(key.name, [])
        if key.role not in of_name:
            of_name.append(key.role)
    return roles


def _by_chance(often: float, base: DecodeSteps, head: DecodeSteps) -> float:
    """How much more or less a step may have of what the base has so often, see :data:`SOME`."""
    return max(SOME, FEWEST / min(base.steps, head.steps)) if often else FEWEST / head.steps


def _kernels(base: DecodeSteps, head: DecodeSteps) -> tuple[tuple[Change, ...], float]:
    """The kernels that differ, and the pace of those that do not."""
    before, after, nothing = inventory(base), inventory(head), Amount()
    pairs = {key: (before.get(key, nothing), after.get(key, nothing)) for key in {**before, **after}}
    reshaped = {key for key, (b, h) in pairs.items() if _reshaped((b.shapes, base.steps), (h.shapes, head.steps))}
    others = {key for key, (b, h) in pairs.items() if abs(b.often - h.often) > _by_chance(b.often, base, head)}
    pace = _pace([pair for key, pair in pairs.items() if key not in reshaped | others and key.role != COMMUNICATION])
    changes = []
    for key in reshaped | others:
        b, h = pairs[key]
        faster = pace if key.role != COMMUNICATION else 1.0
        if key in reshaped or not (b.often and h.often):
            cost_ns = h.ns - b.ns * faster
        else:  # as many as before take what they took
            cost_ns = (h.often - b.often) * (h.ns / h.often if h.often > b.often else b.ns * faster / b.often)
        changes.append((key, _kernel_change(key, b, h, cost_ns / NS_PER_S, reshaped=key in reshaped)))
    changes.sort(key=lambda entry: (-abs(entry[1].cost_s or 0.0), entry[0].role, entry[0].place, entry[0].name))
    return tuple(change for _, change in changes), pace


def _kernel_change(key: KernelKey, base: Amount, head: Amount, cost_s: float, *, reshaped: bool) -> Change:
    where = " ".join(filter(None, (key.role, key.place)))
    more = head.often - base.often
    parts = [f"{format_mean(base.often)} -> {format_mean(head.often)} launches a step"] if more else []
    if reshaped:
        was, now = (sorted(amount.shapes, key=lambda shape: (-amount.shapes[shape], shape)) for amount in (base, head))
        parts.append(f"{listed(was, NAMED)} -> {listed(now, NAMED)}")
    return Change(f"{where} {short_name(key.name)}", (more,), parts, cost_s, where if reshaped else "")


def _pace(alike: Sequence[tuple[Amount, Amount]]) -> float:
    """Head over base of the time of kernels that both launch alike, as far as cards of a kind may be apart."""
    was, now = (sum(pair[n].ns for pair in alike) for n in range(2))
    return min(max(now / was, 1 / CARDS_APART), CARDS_APART) if was and now else 1.0


def _reshaped(*sides: tuple[Shapes, int]) -> bool:
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


_Shares = dict[tuple[int, int], tuple[float, float]]
"""By launches and bytes, the share of the steps that make these, and their time in a step."""


def _moves(base: DecodeSteps, head: DecodeSteps, pace: float) -> dict[str, Change]:
    """Kinds of which more steps than by chance copy other numbers or bytes than the base's do.

    Only what these steps copy has a price.
    """
    changes = []
    for kind in MOVE_KINDS if base.moves is not None and head.moves is not None else ():
        was, now = _shares(base, kind, pace), _shares(head, kind)
        (b, gone, less), (h, added, more) = _totals(was, now), _totals(now, was)
        if max(less, more) > _by_chance(b.often, base, head):
            cost_ns = _cost_of_moves_ns(gone, added, within=kind in WITHIN_THE_DEVICE)
            changes.append((kind, _move_change(kind, b, h, cost_ns / NS_PER_S)))
    return dict(sorted(changes, key=lambda entry: -abs(entry[1].cost_s or 0.0)))


def _move_change(kind: str, base: Amount, head: Amount, cost_s: float) -> Change:
    many = "memsets" if kind == MEMSET else f"{kind} copies"
    more, more_bytes = head.often - base.often, head.bytes - base.bytes
    parts = [f"{format_mean(base.often)} -> {format_mean(head.often)} a step"]
    if more_bytes:
        parts.append(f"{format_value(base.bytes, 'B')} -> {format_value(head.bytes, 'B')} a step")
    sizes = f"of {'more' if more_bytes > 0 else 'fewer'} bytes"
    if more_bytes and base.often and head.often and abs(more) <= FEW * base.often:
        cause = f"{many} {sizes}"
    else:
        cause = f"{format_mean(abs(more))} {'more' if more > 0 else 'fewer'} {many} a step"
        cause += f", {sizes}" if more * more_bytes < 0 else ""
    return Change(kind if kind == MEMSET else f"copy {kind}", (more, more_bytes), parts, cost_s, cause)


def _shares(steps: DecodeSteps, kind: str, pace: float = 1.0) -> _Shares:
    moves: Sequence[Moves] = (steps.moves or {}).get(kind, ())
    return {(move.launches, move.bytes): (move.steps / steps.steps, pace * move.ns / steps.steps) for move in moves}


def _totals(shares: _Shares, other: _Shares) -> tuple[Amount, Amount, float]:
    """What a build moves in a step; what of it in steps that the other has fewer of, and the share of these."""
    every, beyond, share = Amount(), Amount(), 0.0
    for key, (often, ns) in shares.items():
        every = every.plus(often, *key, ns)
        if (more := often - other.get(key, (0.0, 0.0))[0]) > 0:
            beyond, share = beyond.plus(more, *key, ns * more / often), share + more
    return every, beyond, share


def _cost_of_moves_ns(base: Amount, head: Amount, *, within: bool) -> float:
    """What is added takes its share of the head's time, what is gone took its share of the base's.

    A larger copy does not take as much longer, so other sizes cost no more than all of them take more. Within the
    device, whatever changed, what takes several times as long is the head's; a transfer may meet a slower bus.
    """
    added_ns, gone_ns = _more(base, head) * head.ns, _more(head, base) * base.ns
    resized = base.bytes and head.bytes and base.bytes * head.often != head.bytes * base.often
    cost_ns = min(max(head.ns - base.ns, -gone_ns), added_ns) if resized else added_ns - gone_ns
    return max(cost_ns, head.ns - SLOWER * base.ns) if within and base.ns else cost_ns


def _more(few: Amount, many: Amount) -> float:
    """The share of copies, or of bytes where that is larger, that one has beyond the other."""
    return max([0.0, *(1 - b / h for b, h in ((few.often, many.often), (few.bytes, many.bytes)) if h)])
