"""Which visits a head is held against: those of its own card first, else one of each card, each on a day of its own."""

from __future__ import annotations

from collections.abc import Sequence

from hand_made import MACHINE, codes, only, trial
from stored import GATES, alone, chained, held, measured, said, visit

from perfgate.baseline.baseline_page import list_document
from perfgate.baseline.lineage import Baseline, draft
from perfgate.baseline.occupations import held_against
from perfgate.baseline.store import Stored
from perfgate.machine.fingerprint import Gpu
from perfgate.record.run_record import Record, Visit

SALT = "salt"
SLOWER = {"A": 0.0, "B": 0.04, "C": -0.04, "D": 0.02, "E": 0.0}
"""How much slower each card is than the first."""
NIGHTS = (0.0, 0.0006, -0.0006, 0.0003, 0.0)


def on_card(card: str, day: int) -> Visit:
    """A visit to a GPU of that name on that day of January."""
    gpu = Gpu(name="NVIDIA H200", uuid=f"GPU-{card}")
    return Visit(machine=MACHINE.model_copy(update={"gpus": (gpu,)}), t0_utc=visit(day).t0_utc)


def taken(card: str, day: int, by: float = 0.0) -> Record:
    """Six restarts on a card."""
    slower = SLOWER[card] + NIGHTS[day % len(NIGHTS)] + by
    return alone(
        [slower + 0.0001 * (n % 3) for n in range(6)], of=measured("cell", GATES), visits=(on_card(card, day),)
    )


def stored(places: Sequence[tuple[str, int]], salt: str = SALT) -> Baseline:
    """A baseline of visits to these cards on these days."""
    return chained(draft(taken(card, day), "head", salt) for card, day in places)


def test_a_visit_is_held_against_its_own_card() -> None:
    """Four nights of a card tell 2 % of it, whatever other cards are like."""
    both = stored([("A", 1), ("B", 1), ("A", 2), ("B", 2), ("A", 3), ("B", 3), ("A", 4), ("B", 4)])

    same, slower = held(taken("B", 9), both), held(taken("A", 9, 0.03), both)

    assert (said(same), said(slower)) == ("pass", "regressed")
    assert only(same).pairs == 4


def test_another_card_is_not_blocked_by_four_nights_of_one() -> None:
    """How far cards are apart is not in the nights of one: a card 4 % slower is no regression, only advice."""
    outcome = held(taken("B", 9), stored([("A", day) for day in range(1, 7)]))

    assert outcome.verdict == "advisory"
    (reason,) = outcome.cells[0].reasons
    assert reason.code == "advisory-unpaired"
    assert "5 more share a card or a day with them, and those of this card count, or one of each" in reason.text


def test_a_fleet_tells_how_far_cards_are_apart() -> None:
    """Four cards, each on a day of its own, are four observations; on one day they know nothing of other days."""
    fleet, of_one_day = (stored([("A", 1), ("B", b), ("C", c), ("D", d)]) for b, c, d in ((2, 3, 4), (1, 1, 1)))

    near, far = held(taken("E", 9), fleet), held(taken("E", 9, 0.6), fleet)

    assert (said(near), said(far)) == ("inconclusive", "regressed")
    assert held(taken("E", 9), of_one_day).verdict == "advisory"


def test_the_newest_of_each_card_counts() -> None:
    """Which visits count depends on card and day alone, never on what they measured."""
    seen = stored([("A", 1), ("A", 2), ("B", 3), ("C", 3), ("C", 4)]).occupations

    ((*chosen,),) = held_against(seen, "itl_median", "unknown")

    assert chosen == [seen[n].values("itl_median") for n in (1, 2, 4)]


def test_a_card_is_known_by_a_salted_digest() -> None:
    """A file names no device, and two files with the same one cannot be told to."""
    one, two = stored([("A", 1)]), stored([("A", 1)], "pepper")

    assert "GPU-A" not in one.text
    assert one.visits[0].card != two.visits[0].card
    assert (one.salt, len(one.visits[0].card)) == (SALT, 12)
    assert stored([("A", 1), ("A", 2)]).visits[1].card == one.visits[0].card


def test_a_baseline_from_before_cards_advises() -> None:
    """Eight nights of an unknown card count as one for a head on any known one, and the list says so."""
    before, known = (stored([("A", day) for day in range(1, 9)], salt=salt) for salt in ("", SALT))

    outcome = held(taken("A", 9, 0.03), before)
    told = [str(list_document([Stored("", baseline)])) for baseline in (before, known)]

    assert (outcome.verdict, outcome.would_be) == ("advisory", "regressed")
    assert codes(outcome.cells[0].reasons) == ["advisory-unpaired"]
    assert "salt" not in before.text
    assert "advises; passes after 7 more" in told[0]
    assert "can pass" in told[1]


def test_a_run_resumed_on_another_card_is_of_neither() -> None:
    """Its visits are one observation of a place that no other has."""
    taken_by_two = [trial(n, n, "head", visit=n // 3) for n in range(6)]
    both = draft(alone([], trials=tuple(taken_by_two), visits=(on_card("A", 1), on_card("B", 1))), "head", SALT)

    (occupation,) = Baseline(entries=(both,)).occupations

    assert len(occupation.visits) == 2
    assert occupation.card not in {one.card for one in both.visits}
