"""The observations of a baseline: which visits are one, and which of them a head is held against.

Visits of one run, or within hours of each other on one card, met the machine in one state: they are one observation,
an :class:`Occupation`, however many they are. A head is held against occupations that are as independent of it as they
are of one another: those of its own card, or one of each card.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from perfgate.baseline.stored_visit import BaselineVisit
from perfgate.stats.prediction import FIRST_BLOCKING_VISITS


@dataclass(frozen=True)
class Occupation:
    """Visits that are one observation.

    Args:
        visits: In order of promotion, at least one.
        card: Where they were made; empty where that is unknown, or there is no GPU.
        day: Number of the day: occupations of several cards near each other share it.
    """

    visits: tuple[BaselineVisit, ...]
    card: str
    day: int

    def values(self, metric: str) -> tuple[float, ...]:
        """The restarts of all visits that carry a metric; none where none does."""
        return tuple(chain.from_iterable(visit.values.get(metric, ()) for visit in self.visits))


def occupations(runs: Iterable[Sequence[BaselineVisit]]) -> tuple[Occupation, ...]:
    """The observations that visits make, in order of their first promotion.

    Args:
        runs: The visits of each run, at least one.
    """
    found: list[tuple[list[BaselineVisit], str, int]] = []
    days: list[BaselineVisit] = []
    for visits in runs:
        card = "+".join(sorted({visit.card for visit in visits}))
        same = (known for known, where, _ in found if where == card and any(map(known[0].near, visits)))
        if (known := next(same, None)) is not None:
            known.extend(visits)
            continue
        day = next((n for n, first in enumerate(days) if any(map(first.near, visits))), len(days))
        if day == len(days):
            days.append(visits[0])
        found.append(([*visits], card, day))
    return tuple(Occupation(tuple(known), card, day) for known, card, day in found)


def held_against(seen: Sequence[Occupation], card: str) -> tuple[Occupation, ...]:
    """The occupations that a head on a card is held against.

    Its own card goes first: from four occupations on nothing else is looked at. Else one of each card counts, the
    newest, and none of a day that another one has: then they share neither with each other nor with the head, and their
    spread is that of cards and days together. Which count never depends on what they measured.
    """
    own = tuple(occupation for occupation in seen if occupation.card == card)
    each: list[Occupation] = []
    for occupation in reversed(seen):
        if all(occupation.card != taken.card and occupation.day != taken.day for taken in each):
            each.append(occupation)
    if len(own) >= min(FIRST_BLOCKING_VISITS, len(each)):
        return own
    return tuple(reversed(each))
