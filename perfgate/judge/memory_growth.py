"""Whether the head keeps memory, iteration after iteration, that the base does not: a leak, told as a caution.

How much it may keep is a matter of margins: gates on ``device_memory_growth`` and ``host_memory_growth``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from perfgate.metrics.memory import Memory
from perfgate.metrics.sides import Side
from perfgate.models import Note
from perfgate.stats.estimate import difference_estimate
from perfgate.stats.new_highs import new_highs, p_grows
from perfgate.units import format_value

LEVEL: Final = 0.005
"""For each of two kinds of memory: of a head that keeps nothing it is said in one of a hundred cells at most."""
FEWEST: Final = 2  # trials of a side that have a spread
_Rows = Sequence[Sequence[int]]
_KINDS: Final[Mapping[str, Callable[[Memory], Sequence[int]]]] = {
    "GPU memory": lambda memory: memory.allocated, "host memory": lambda memory: memory.resident,
}  # fmt: skip


def growth_cautions(sides: Mapping[Side, Sequence[Memory]]) -> Iterator[Note]:
    """A caution for each kind of memory that grows in the head's trials, and more than in the base's.

    Both may grow by a page now and then. So a head that grows is told only where its growth by trial is above the
    base's, by Welch's t at the same level; one trial a side has no spread and is not told.
    """
    if not all(sides.get(side) for side in ("base", "head")):
        return
    for kind, figures in _KINDS.items():
        base, head = ([figures(memory) for memory in sides[side]] for side in ("base", "head"))
        if p_grows(head) <= LEVEL and _p_no_more(base, head) <= LEVEL:
            yield Note(code="memory-grows", text=f"{kind}: head {_told(head)}, base {_told(base)}")


def _p_no_more(base: _Rows, head: _Rows) -> float:
    """One-sided p of H0 "the head grows no more than the base"."""
    before, after = ([_growth(row) for row in rows if len(row) > 1] for rows in (base, head))
    enough = min(len(before), len(after)) >= FEWEST
    return float(difference_estimate(before, after, 1).p_above(0.0)) if enough else 1.0


def _growth(row: Sequence[int]) -> float:
    """Bytes an iteration."""
    return (row[-1] - row[0]) / (len(row) - 1)


def _told(rows: _Rows) -> str:
    """How often it grew and by how much, in the words of the report."""
    highs, chances = sum(map(new_highs, rows)), sum(len(row) - 1 for row in rows)
    mean = statistics.fmean(_growth(row) for row in rows if len(row) > 1)
    return f"{format_value(round(mean), 'B')} an iteration, higher than ever in {highs} of {chances}"
