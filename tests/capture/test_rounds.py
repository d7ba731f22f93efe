"""What comes next in a visit, as far as it can be foreseen while a trial is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hand_made import BOTH, cell, record, run, trials

from perfgate.capture.job import Job
from perfgate.capture.rounds import Aim, Rounds
from perfgate.metrics.trial import Failure, Kind
from perfgate.record.run_record import Record
from perfgate.scenario.plan import Cell

Coming = list[tuple[Kind, str]]
CELL = cell()
MANIFEST = run([CELL])
LOOK = 4
"""Pairs of the first look."""


def of_round(number: int) -> Coming:
    """The timed trials of a round, in their order."""
    return [("timed", label) for _, label in Rounds(MANIFEST).order(CELL, number, [""])]


def measured(pairs: int) -> Record:
    """A record with so many pairs."""
    return record(CELL, trials([0.0] * pairs) if pairs else ())


@pytest.fixture
def job(make_job: Callable[..., Job]) -> Callable[[int | None, str], Job]:
    """A function that makes the job of a trial of a pair, or of a warm-up trial."""
    made = make_job(CELL, BOTH["base"])
    return lambda pair, label: replace(made, pair=pair, side="base" if label == "base" else "head")


def test_a_pair_is_followed_by_pairs_of_the_same_look(job: Callable[[int | None, str], Job]) -> None:
    """After the first trial of a pair comes its second, then the next pairs; each in the order of its own coin."""
    rounds, held = Rounds(MANIFEST), measured(1)
    assert rounds.begin(held, aim := Aim(CELL, LOOK, "timed")) == 1
    (_, first), (_, second) = of_round(1)

    assert rounds.after(job(1, first), 1, aim, held) == [("timed", second), *of_round(2), *of_round(3)]
    assert rounds.after(job(1, second), 1, aim, held) == [*of_round(2), *of_round(3)]


@pytest.mark.parametrize("warm", [(), ("head",)])
def test_a_build_that_will_be_warm_has_no_warm_up_trial(
    job: Callable[[int | None, str], Job], warm: tuple[str, ...]
) -> None:
    """Then the first pair follows the base's, in its order, which may begin with the base again."""
    rounds, held = Rounds(MANIFEST), measured(0)
    rounds.begin(held, aim := Aim(CELL, LOOK, "timed"))

    coming = rounds.after(job(None, "base"), 0, aim, held, warm)

    assert coming == [*([] if warm else [("timed", "head")]), *of_round(0), *of_round(1), *of_round(2)]


@pytest.mark.parametrize(
    ("aim", "expected"),
    [
        (Aim(CELL, LOOK, "timed"), []),
        (Aim(CELL, LOOK, "timed", then="called"), [("called", label) for _, label in of_round(0)]),
        (Aim(CELL, LOOK, "timed", undecided="timed"), of_round(LOOK)),
    ],
    ids=["nothing", "another kind", "a look that may decide nothing"],
)
def test_what_follows_the_last_pair(job: Callable[[int | None, str], Job], aim: Aim, expected: Coming) -> None:
    """One round of what is known to come, or comes unless a look decides."""
    rounds, held = Rounds(MANIFEST), measured(LOOK - 1)
    rounds.begin(held, aim)
    last = of_round(LOOK - 1)[-1][1]

    assert rounds.after(job(LOOK - 1, last), LOOK - 1, aim, held) == expected


def test_rounds_of_another_kind_have_numbers_of_their_own(job: Callable[[int | None, str], Job]) -> None:
    """What comes after the first timed pair is called pair 0, whose order is that of its number."""
    rounds, held = Rounds(MANIFEST), measured(0)
    rounds.begin(held, aim := Aim(CELL, 1, "timed", then="called"))

    following = rounds.after(job(0, of_round(0)[-1][1]), 0, aim, held)

    assert following == [("called", label) for _, label in of_round(0)]
    assert of_round(0) != of_round(1)  # so that the number is seen


def test_stations_foresee_different_pairs(job: Callable[[int | None, str], Job]) -> None:
    """Of two at work the one that began first takes the next pair, and the other the one after."""
    rounds, held, aim = Rounds(MANIFEST), measured(0), Aim(CELL, 6, "timed")
    assert [rounds.begin(held, aim), rounds.begin(held, aim)] == [0, 1]

    foreseen = [rounds.after(job(number, of_round(number)[-1][1]), number, aim, held) for number in (0, 1)]

    assert foreseen == [[*of_round(2), *of_round(4)], [*of_round(3), *of_round(5)]]


def test_stations_share_what_a_look_still_lacks(job: Callable[[int | None, str], Job]) -> None:
    """Where three pairs are wanted and two are under way, only the station that is ready first gets another."""
    rounds, held, aim = Rounds(MANIFEST), measured(0), Aim(CELL, 3, "timed")
    rounds.begin(held, aim)
    rounds.begin(held, aim)

    assert rounds.after(job(0, of_round(0)[-1][1]), 0, aim, held) == of_round(2)
    assert rounds.after(job(1, of_round(1)[-1][1]), 1, aim, held) == []


def test_a_head_that_another_station_has_stopped(make_job: Callable[..., Job]) -> None:
    """Nothing is foreseen for its last trial, which was under way to begin."""
    builds = {"a": BOTH["head"], "b": BOTH["head"].model_copy(update={"env": {"B": "1"}})}
    several = run([CELL], subjects={"base": BOTH["base"]}, heads=builds)
    rounds, held = Rounds(several), record(CELL, subjects={"base": BOTH["base"]}, heads=builds)
    aim = Aim(CELL, LOOK, "timed", heads=("a", "b"))
    number = rounds.begin(held, aim)
    assert number is not None
    stopped = held.model_copy(update={"stops": {"a": Failure(code="engine-failed", text="died")}})
    last = replace(make_job(CELL, builds["a"]), pair=number, side="head", heads=("a",))

    assert rounds.after(last, number, aim, held)
    assert rounds.after(last, number, aim, stopped) == []


@pytest.mark.parametrize(
    ("cells", "changes", "pairs", "more"),
    [
        ((CELL,), {}, LOOK, True),
        ((CELL,), {}, 12, False),
        ((CELL,), {"quick": True}, LOOK, False),
        ((CELL, cell("other")), {}, LOOK, False),
    ],
    ids=["a first look", "the last look", "no look", "another cell may come"],
)
def test_whether_pairs_follow_a_look(
    cells: tuple[Cell, ...], changes: dict[str, bool], pairs: int, *, more: bool
) -> None:
    """That is known of a run of one cell which has another look."""
    assert Rounds(run(cells, **changes)).have_look_after(pairs, measured(0), "timed") is more
