"""The observations of a baseline: which visits are one, and which of them a head is held against.

Visits of one run, or within hours of each other on one card, met the machine in one state: they are one observation,
an :class:`Occupation`, however many they are. A head is held against occupations that are as independent of it as they
are of one another: those of its own card, or one of each card.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from perfgate.baseline.stored_visit import BaselineVisit, Build
from perfgate.stats.prediction import FIRST_PASSING_VISITS


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

    def values(self, metric: str, anchor: Build | None = None, most: int | None = None) -> tuple[float, ...]:
        """The restarts of all visits that carry a metric, or one ratio to an anchor; none where none does.

        Of pairs the first ``most`` count: the median of more would spread less than a head's can.
        """
        if anchor is None:
            return tuple(chain.from_iterable(visit.values.get(metric, ()) for visit in self.visits))
        return typical([ratio for visit in self.visits for ratio in visit.ratios(metric, anchor)][:most])


def typical(ratios: Sequence[float]) -> tuple[float, ...]:
    """What pairs of one occupation say together, if there are any: their median.

    Where a GPU changes its state between the trials of a pair, that pair is off by the distance of the states, which is
    more than any margin (docs/states.md); a few such pairs leave the median where it is.
    """
    return (statistics.median(ratios),) if ratios else ()


def occupations(runs: Iterable[Sequence[BaselineVisit]]) -> tuple[Occupation, ...]:
    """The observations that visits make, in order of their first promotion; each run has at least one visit."""
    rows: list[tuple[list[BaselineVisit], Sequence[BaselineVisit], str, int]] = []
    days: list[Sequence[BaselineVisit]] = []
    for visits in runs:
        card = "+".join(sorted({visit.card for visit in visits}))
        same = (members for members, first, where, _ in rows if where == card and _near(first, visits))
        if (members := next(same, None)) is not None:
            members.extend(visits)
            continue
        day = next((n for n, first in enumerate(days) if _near(first, visits)), len(days))
        if day == len(days):
            days.append(visits)
        rows.append(([*visits], visits, card, day))
    return tuple(Occupation(tuple(members), card, day) for members, _, card, day in rows)


def _near(first: Sequence[BaselineVisit], visits: Sequence[BaselineVisit]) -> bool:
    """Whether a run met the machine in the state in which another did; the runs of an occupation are near its first."""
    return any(visit.near(other) for visit in first for other in visits)


def held_against(
    seen: Sequence[Occupation], metric: str, card: str, anchor: Build | None = None, pairs: int | None = None
) -> list[tuple[tuple[float, ...], ...]]:
    """The restarts of the occupations that a head is held against, or their ratios to each anchor.

    The head's own card goes first: from four occupations on nothing else is looked at. Else one of each card counts,
    the newest; where times are compared, none of a day that another one has. Then they share with each other what they
    share with the head, and their spread is that of cards and days together. Which count never depends on what they
    measured. Of each occupation as many ``pairs`` count as the head has with its ``anchor``.

    Returns:
        Sets of occupations, in order of promotion: those that carry the metric beside the head's anchor, then those
        beside any other one, which spread alike about another mean; empty without any of the first.
    """
    anchors: list[Build | None] = [anchor]
    for visit in (visit for occupation in seen for visit in occupation.visits if anchor and visit.anchor):
        if visit.anchor and not any(build and visit.anchor.build.same(build) for build in anchors):
            anchors.append(visit.anchor.build)
    sets = [[occupation for occupation in seen if occupation.values(metric, other)] for other in anchors]
    same_card = [[occupation for occupation in of if occupation.card == card] for of in sets]
    each = [_one_of_each_card(of, by_day=anchor is None) for of in sets]
    most_own, most_each = (max(map(len, of)) for of in (same_card, each))
    chosen = same_card if same_card[0] and most_own >= min(FIRST_PASSING_VISITS, most_each) else each
    beside = zip(chosen, anchors, strict=True)
    rows = [tuple(occupation.values(metric, other, pairs) for occupation in of) for of, other in beside if of]
    return rows if chosen[0] else []


def _one_of_each_card(seen: Sequence[Occupation], *, by_day: bool) -> list[Occupation]:
    """The newest of each card, in order; by day none of a day that a newer one has."""
    each: list[Occupation] = []
    for occupation in reversed(seen):
        if all(occupation.card != taken.card and not (by_day and occupation.day == taken.day) for taken in each):
            each.append(occupation)
    return each[::-1]


def most_visits(seen: Sequence[Occupation], cards: Iterable[str], *, by_day: bool) -> int:
    """How many occupations count for a head on that one of these cards that most is known of.

    ``by_day``: whether times are compared, so that occupations of one day share it; else ratios to an anchor are.
    """
    counts = (sum(occupation.card == card for occupation in seen) for card in cards)
    return max(*counts, len(_one_of_each_card(seen, by_day=by_day)))
