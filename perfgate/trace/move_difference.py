"""What a build copies and sets otherwise in a decode step, beside its kernels: exact in what, priced by traced time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from perfgate.trace.moves import MEMSET, MOVE_KINDS, Moved, Moves
from perfgate.units import NS_PER_S, format_mean, format_value, signed_us

SHIFT = 0.5
"""Where more than half of the steps have another figure, the mean moves by half of that at least. A median alone also
changes where half of the steps have the one and half the other."""
SLOWER_BUS = 2.0
"""Copies take so much longer on another host at most; what is beyond is the build's."""
WITHIN_THE_DEVICE = ("d2d", MEMSET)
"""What is in the way of kernels as a kernel is. Transfers mostly run beside them, so one that is gone saves nothing."""


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
        if not more:
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
    """Copies of one kind, or memsets, of one build in a step: their number, time and bytes."""

    rate: float
    ns: float
    bytes: float

    @classmethod
    def of(cls, moved: Moved, steps: int = 1, pace: float = 1.0) -> _Moved:
        return cls(moved.launches / steps, moved.ns * pace / steps, moved.bytes / steps)


def move_differences(
    base: tuple[Mapping[str, Moves], int],
    head: tuple[Mapping[str, Moves], int],
    pace: float,
    by_chance: Callable[[float], float],
) -> tuple[MoveDifference, ...]:
    """The copies and memsets that differ, the most expensive first.

    A usual step of each build is compared exactly. What only some steps have is compared by how often it comes, as
    rare kernels are, whatever its size.

    Args:
        base: The base's moves over all steps, and the number of steps.
        head: The head's.
        pace: Head over base of the time of kernels that both launch alike.
        by_chance: By how much the head's number a step may differ from what the base has a step.
    """
    found = []
    for kind in MOVE_KINDS:
        was, now = base[0].get(kind, Moves()), head[0].get(kind, Moves())
        mean = _Moved.of(was.every, base[1], pace), _Moved.of(now.every, head[1])
        usual = _Moved.of(was.usual, pace=pace), _Moved.of(now.usual)
        shifted = _shifted(usual, mean)
        b, h = mean
        if shifted or abs(h.rate - b.rate) > by_chance(b.rate):
            cost_ns = _cost_ns(*(usual if shifted else mean))
            kept_ns = cost_ns if kind in WITHIN_THE_DEVICE else max(cost_ns, 0.0)
            found.append(MoveDifference(kind, b.rate, h.rate, b.bytes, h.bytes, kept_ns))
    return tuple(sorted(found, key=lambda own: -abs(own.cost_ns)))


def _shifted(usual: tuple[_Moved, _Moved], mean: tuple[_Moved, _Moved]) -> bool:
    """Whether usual steps of base and head differ, and the means over all steps with them."""
    counts, sizes = (
        [(own[1].rate - own[0].rate, own[1].bytes - own[0].bytes)[figure] for own in (usual, mean)]
        for figure in range(2)
    )
    return any(shift and more / shift >= SHIFT for shift, more in (counts, sizes))


def _cost_ns(base: _Moved, head: _Moved) -> float:
    """What is added takes its share of the head's time, what is gone took its share of the base's.

    A larger copy does not take as much longer, so other sizes cost no more than all of them take more. Whatever
    changed, what takes longer than another host explains is the head's.
    """
    added_ns, gone_ns = _more(base, head) * head.ns, _more(head, base) * base.ns
    resized = base.bytes and head.bytes and base.bytes * head.rate != head.bytes * base.rate
    cost_ns = min(max(head.ns - base.ns, -gone_ns), added_ns) if resized else added_ns - gone_ns
    return max(cost_ns, head.ns - SLOWER_BUS * base.ns) if base.ns else cost_ns


def _more(few: _Moved, many: _Moved) -> float:
    """The share of copies, or of bytes where that is larger, that one has beyond the other."""
    return max([0.0, *(1 - b / h for b, h in ((few.rate, many.rate), (few.bytes, many.bytes)) if h)])
