"""What a build copies and sets otherwise in a decode step, beside its kernels: exact in what, priced by traced time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from perfgate.trace.moves import MEMSET, MOVE_KINDS, Moves
from perfgate.units import NS_PER_S, format_mean, format_value, signed_us

FEW = 0.1
"""Of the copies, so many more or fewer by chance are not what differs where bytes do."""
SLOWER = 2.0
"""Copies within the device take so much longer at most without being others; a transfer's time is that of the bus."""
WITHIN_THE_DEVICE = ("d2d", MEMSET)
"""What is in the way of kernels as a kernel is. Transfers mostly run beside them: those that are gone save a step
nothing, and pay for other transfers alone."""


@dataclass(frozen=True)
class MoveDifference:
    """Copies of one kind, or memsets, that the builds do not make alike.

    Args:
        kind: Of :data:`perfgate.trace.moves.MOVE_KINDS`.
        base: How many a step of the base makes, on average.
        head: How many the head's makes.
        base_bytes: Bytes in a step of the base.
        head_bytes: Bytes in a step of the head.
        cost_ns: What they take more in a step of the head.
    """

    kind: str
    base: float
    head: float
    base_bytes: float
    head_bytes: float
    cost_ns: float

    @property
    def cause(self) -> str:
        """In plain words."""
        many = "memsets" if self.kind == MEMSET else f"{self.kind} copies"
        more, more_bytes = self.head - self.base, self.head_bytes - self.base_bytes
        sizes = f"of {'more' if more_bytes > 0 else 'fewer'} bytes"
        if more_bytes and self.base and self.head and abs(more) <= FEW * self.base:
            return f"{many} {sizes}"
        counts = f"{format_mean(abs(more))} {'more' if more > 0 else 'fewer'} {many} a step"
        return f"{counts}, {sizes}" if more * more_bytes < 0 else counts

    @property
    def line(self) -> str:
        """As in a diff."""
        signs = {more > 0 for more in (self.head - self.base, self.head_bytes - self.base_bytes) if more}
        mark = "~" if len(signs) > 1 else "+" if signs == {True} else "-"
        parts = [f"{format_mean(self.base)} -> {format_mean(self.head)} a step"]
        if self.base_bytes != self.head_bytes:
            parts.append(f"{format_value(self.base_bytes, 'B')} -> {format_value(self.head_bytes, 'B')} a step")
        what = self.kind if self.kind == MEMSET else f"copy {self.kind}"
        return f"{mark} {what}: {'; '.join(parts)} ({signed_us(self.cost_ns / NS_PER_S)})"


@dataclass(frozen=True)
class _Moved:
    """Copies of one kind, or memsets, of one build in a step: their number, bytes and time."""

    rate: float = 0.0
    bytes: float = 0.0
    ns: float = 0.0

    def plus(self, share: float, launches: int, size: int, ns: float) -> _Moved:
        return _Moved(self.rate + share * launches, self.bytes + share * size, self.ns + ns)


_Shares = dict[tuple[int, int], tuple[float, float]]
"""By launches and bytes, the share of the steps that make these, and their time in a step."""


def move_differences(
    base: tuple[Mapping[str, Sequence[Moves]], int],
    head: tuple[Mapping[str, Sequence[Moves]], int],
    pace: float,
    by_chance: Callable[[float], float],
) -> tuple[MoveDifference, ...]:
    """The copies and memsets that differ, the most expensive first.

    A kind differs where more steps than by chance copy other numbers or bytes of it than the base's do. Only what these
    steps copy has a price.

    Args:
        base: The base's moves over all steps, and the number of steps.
        head: The head's.
        pace: Head over base of the time of kernels that both launch alike.
        by_chance: What share of the steps may differ by chance, given how many launches a step of the base has.
    """
    found = []
    for kind in MOVE_KINDS:
        was, now = _shares(base[0].get(kind, ()), base[1], pace), _shares(head[0].get(kind, ()), head[1])
        (b, gone), (h, added) = _totals(was, now), _totals(now, was)
        if max(gone[1], added[1]) > by_chance(b.rate):
            cost_ns = _cost_ns(gone[0], added[0], within=kind in WITHIN_THE_DEVICE)
            found.append(MoveDifference(kind, b.rate, h.rate, b.bytes, h.bytes, cost_ns))
    return tuple(sorted(found, key=lambda own: -abs(own.cost_ns)))


def cost_of_moves_ns(moves: Sequence[MoveDifference]) -> float:
    """What all of them take more in a step; see :data:`WITHIN_THE_DEVICE`."""
    within, transfers = (
        sum(own.cost_ns for own in moves if (own.kind in WITHIN_THE_DEVICE) == inside) for inside in (True, False)
    )
    return within + max(transfers, 0.0)


def _shares(moves: Sequence[Moves], steps: int, pace: float = 1.0) -> _Shares:
    return {(own.launches, own.bytes): (own.steps / steps, pace * own.ns / steps) for own in moves}


def _totals(own: _Shares, other: _Shares) -> tuple[_Moved, tuple[_Moved, float]]:
    """What a build moves in a step; what of it in steps that the other has fewer of, and the share of these."""
    every, beyond, share = _Moved(), _Moved(), 0.0
    for key, (often, ns) in own.items():
        every = every.plus(often, *key, ns)
        if (more := often - other.get(key, (0.0, 0.0))[0]) > 0:
            beyond, share = beyond.plus(more, *key, ns * more / often), share + more
    return every, (beyond, share)


def _cost_ns(base: _Moved, head: _Moved, *, within: bool) -> float:
    """What is added takes its share of the head's time, what is gone took its share of the base's.

    A larger copy does not take as much longer, so other sizes cost no more than all of them take more. Within the
    device, whatever changed, what takes several times as long is the head's; a transfer may meet a slower bus.
    """
    added_ns, gone_ns = _more(base, head) * head.ns, _more(head, base) * base.ns
    resized = base.bytes and head.bytes and base.bytes * head.rate != head.bytes * base.rate
    cost_ns = min(max(head.ns - base.ns, -gone_ns), added_ns) if resized else added_ns - gone_ns
    return max(cost_ns, head.ns - SLOWER * base.ns) if within and base.ns else cost_ns


def _more(few: _Moved, many: _Moved) -> float:
    """The share of copies, or of bytes where that is larger, that one has beyond the other."""
    return max([0.0, *(1 - b / h for b, h in ((few.rate, many.rate), (few.bytes, many.bytes)) if h)])
