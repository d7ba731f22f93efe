"""What a step copies and sets, judged by its price: copies by kind, and memsets, which no kernel's time shows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from decode_steps import USUAL, extra_kernel, other_attention, trial
from hand_made import codes

from perfgate.calls.call_checks import judge_launches
from perfgate.judge.outcome import Finding
from perfgate.trace.decode_step import DecodeSteps
from perfgate.trace.inventory import by_rank
from perfgate.trace.launch_details import MOST_SIZES, Moves, pooled_moves

TEN_US = 10e-6
"""What the tests ignore."""
STEPS = USUAL.steps
USED = {"h2d": (2, 1200, 50), "d2h": (2, 2000, 48), "memset": (1, 900, 4)}
"""What the made-up step moves: copies of a kind, nanoseconds of each and bytes of each."""
MIB = 2**20
LARGE = 64 * MIB


def moving(steps: DecodeSteps | None = None, /, **moves: tuple[int, int, int]) -> DecodeSteps:
    """Steps which move what is used and, by kind, so many each step, of so many nanoseconds and bytes."""
    own = steps or trial(USUAL)
    every = {kind: each_step(many, many * ns, many * size) for kind, (many, ns, size) in {**USED, **moves}.items()}
    return own.model_copy(update={"moves": every})


def each_step(launches: int, ns: int, size: int, steps: int = STEPS) -> tuple[Moves, ...]:
    """Moves of steps that are all alike, given what one of them takes and copies."""
    return (Moves(steps=steps, launches=launches, bytes=size, ns=ns * steps),) if launches else ()


def where_some(kind: str, each: tuple[int, int, int], **rare: tuple[int, int, int, int]) -> DecodeSteps:
    """Steps of which all copy alike, each so many of so many nanoseconds and bytes, but for some.

    These copy once more, or otherwise: how many steps, and launches, nanoseconds and bytes of such a step.
    """
    many, ns, size = each
    others = tuple(Moves(steps=n, launches=count, bytes=own, ns=took * n) for n, count, took, own in rare.values())
    usual = each_step(many, many * ns, many * size, STEPS - sum(one.steps for one in others))
    own = moving()
    return own.model_copy(update={"moves": {**(own.moves or {}), kind: (*usual, *others)}})


def held(base: DecodeSteps, head: DecodeSteps) -> Finding:
    """What is found where one trial a side was traced."""
    return judge_launches(TEN_US, {"base": [[base]], "head": [[head]]})


def copying(**copies: int) -> DecodeSteps:
    """Steps whose pattern has more copies than usual."""
    return trial(replace(USUAL, copies={**USUAL.copies, **copies}))


def paced(factor: float) -> DecodeSteps:
    """Usual steps on a card whose kernels take so many times as long."""
    return trial(USUAL).model_copy(update={"key_ns": tuple(round(factor * ns) for ns in trial(USUAL).key_ns)})


def test_added_copies_are_blocked_at_their_price() -> None:
    """Fifty copies more within the device cost what the head's trace says that they take."""
    found = held(moving(), moving(copying(d2d=50), d2d=(50, 1370, MIB)))

    (reason,) = found.reasons
    headline, line = reason.text.splitlines()
    assert (found.verdict, reason.code) == ("regressed", "work-added")
    assert headline.startswith(
        "+68.50 us a step by the traced time of its kernels, copies and memsets: 50 more d2d copies in each step (more "
    )
    assert line == "+ copy d2d: 0 -> 50 a step; 0 B -> 50.00 MiB a step (+68.50 us)"


@pytest.mark.parametrize(("ns", "verdict"), [(900, "regressed"), (100, "pass")])
def test_added_memsets_are_judged_by_their_price(ns: int, verdict: str) -> None:
    """No pattern has memsets, so what is moved alone tells of them."""
    found = held(moving(memset=(1, ns, 4)), moving(memset=(21, ns, 4)))

    (note,) = (*found.reasons, *found.cautions)
    headline, line = note.text.splitlines()
    assert (found.verdict, note.code) == (verdict, "work-added" if verdict == "regressed" else "work-changed")
    assert headline.startswith(
        f"+{20 * ns / 1000:.2f} us a step by the traced time of its kernels, copies and memsets: 20 more memsets a step"
    )
    assert line == f"+ memset: 1 -> 21 a step; 4 B -> 84 B a step (+{20 * ns / 1000:.2f} us)"


def test_the_same_copies_slower_are_no_difference() -> None:
    """As many of as many bytes cost nothing more, however long they took."""
    slower = {kind: (many, 20 * ns, size) for kind, (many, ns, size) in USED.items()}

    assert held(moving(), moving(**slower)) == held(moving(**slower), moving()) == Finding("pass")


@pytest.mark.parametrize("more", [50 * MIB, 10**12])
def test_more_bytes_in_as_many_copies_are_blocked(more: int) -> None:
    """No count tells of them; they cost what they take longer."""
    found = held(moving(d2d=(1, 1400, 8192)), moving(d2d=(1, 20_000, 8192 + more)))

    headline, line = found.reasons[0].text.splitlines()
    assert found.verdict == "regressed"
    assert headline.startswith("+18.60 us a step ")
    assert ": d2d copies of more bytes (more than the 10.00 us that are ignorable)" in headline
    assert line.startswith("+ copy d2d: 1 -> 1 a step; 8.000 KiB -> ")


def test_a_few_bytes_more_are_told_exactly() -> None:
    """Where each step copies as much as any other, no byte comes by chance."""
    base = moving(h2d=(1, 100_000, 50_000_000))

    assert codes(held(base, moving(h2d=(1, 100_004, 50_000_004))).cautions) == ["work-changed"]
    assert held(base, moving(h2d=(1, 109_000, 54_500_000))).verdict == "pass"
    assert held(base, moving(h2d=(1, 112_000, 56_000_000))).verdict == "regressed"


def test_fewer_copies_pay_for_added_kernels() -> None:
    """What is gone took its time, so that copies may become a kernel."""
    found = held(moving(copying(d2d=32), d2d=(32, 1000, 100)), moving(trial(extra_kernel(USUAL))))

    assert found.verdict == "pass"
    assert found.cautions[0].text.startswith("+0.00 us a step ")
    assert "- copy d2d: 32 -> 0 a step; 3.125 KiB -> 0 B a step (-32.00 us)" in found.cautions[0].text


def test_fewer_copies_of_more_bytes_are_called_so() -> None:
    """The count falls, and what they cost is in the bytes."""
    found = held(moving(h2d=(2, 1000, 8)), moving(h2d=(1, 100_000, 1_000_448)))

    headline, line = found.reasons[0].text.splitlines()
    assert "+98.00 us a step" in headline
    assert ": 1 fewer h2d copies a step, of more bytes (more " in headline
    assert line.startswith("~ copy h2d: 2 -> 1 a step; 16 B -> 977")


def rarely(many: int, kind: str = "h2d") -> DecodeSteps:
    """Steps of which so many have a copy of a kind more."""
    launches, ns, size = USED.get(kind, (0, 1200, 32))
    return where_some(kind, (launches, ns, size), rare=(many, launches + 1, (launches + 1) * ns, launches * size + 32))


PINNED = {kind: (USED[kind][0] + 10, *USED[kind][1:]) for kind in ("h2d", "d2h")}
PRICED = {
    "pinned copies do not make the host wait, and take their time": [
        *((moving(), moving(copying(**{kind: 12}), **{kind: more}), "regressed", "+") for kind, more in PINNED.items()),
    ],
    "added bytes cost their share of all at most: a stored profile is of another host": [
        (moving(h2d=(20, 1200, 50)), moving(h2d=(20, 2400, 51)), "pass", "+0.94 us a step "),
        (moving(h2d=(1, 40_000, MIB)), moving(h2d=(1, 120_000, MIB - 1)), "pass", ""),
    ],
    "small copies take about as long whatever their size, so eightfold bytes are not the eightfold time": [
        (moving(h2d=(20, 1200, 50)), moving(h2d=(20, 1300, 400)), "pass", "+2.00 us a step "),
    ],
    "an added copy that is much larger does not take what the others take on average": [
        (moving().model_copy(update={"moves": {"d2h": each_step(4, 4000, 32)}}),
         moving().model_copy(update={"moves": {"d2h": each_step(5, 64_000, 32 + 60 * MIB)}}),
         "regressed", "+60.00 us a step "),
    ],
    "the stored time of copies follows the pace of the kernels that both launch": [
        (moving(d2d=(50, 1000, 100)), moving(paced(1.05)), "pass", "-52.50 us a step "),
    ],
    "a transfer that is gone mostly ran beside kernels, and pays for nothing": [
        (moving(d2h=(1, 5_000_000, 60 * MIB)), moving(trial(extra_kernel(USUAL))), "regressed", "+32.00 us a step "),
    ],
    "fewer copies that take far longer are explained by no other host's bus": [
        (moving(d2d=(100, 1000, 1000)), moving(d2d=(1, 5_000_000, 100_000)), "regressed", "+"),
        (moving(d2d=(100, 1000, 1000)), moving(d2d=(50, 100_000, 1000)), "regressed", "+"),
        (moving(d2d=(10, 1000, 1000)), moving(d2d=(10, 1_000_000, 999)), "regressed", "+"),
    ],
    "large copies in forty steps of a hundred count beside a small one more in each": [
        *((moving(h2d=(1, 1000, 8)), where_some("h2d", (usual, 1000, 8), some=(40, usual, 1_000_000, LARGE)),
           "regressed", "+") for usual in (1, 2)),
    ],
    "a pageable copy becomes several pinned ones, which take half as long together": [
        (moving(**{"h2d-pageable": (1, 50_000, MIB)}), moving(h2d=(3, 10_000, 400_000)), "pass", ""),
    ],
}  # fmt: skip
"""By what is told apart: base, head, verdict and how its text begins."""


@pytest.mark.parametrize(
    ("base", "head", "verdict", "begins"), [case for cases in PRICED.values() for case in cases],
    ids=[words for words, cases in PRICED.items() for _ in cases],
)  # fmt: skip
def test_what_moves_is_priced(base: DecodeSteps, head: DecodeSteps, verdict: str, begins: str) -> None:
    """Each change is blocked or told at the price of what differs."""
    found = held(base, head)

    (note,) = (*found.reasons, *found.cautions)
    assert (found.verdict, note.code) == (verdict, "work-added" if verdict == "regressed" else "work-changed")
    assert note.text.startswith(begins)


@pytest.mark.parametrize(("few", "many"), [(5, 9), (7, 14)])
def test_how_often_a_rare_copy_comes_is_no_change(few: int, many: int) -> None:
    """Whatever its size beside the small ones of each step."""
    for seldom, often in (
        [rarely(times) for times in (few, many)],
        [where_some("d2d", (2, 1000, 64), rare=(times, 3, 2_000_000, LARGE)) for times in (few, many)],
    ):
        assert held(seldom, often) == held(often, seldom) == Finding("pass")


def test_rare_copies_hide_no_growth_of_the_others() -> None:
    """What each step copies more is priced, whether the base or the head had more of the rare ones by chance."""
    for before, after in ((1, 1), (9, 5), (5, 9)):
        base = where_some("d2d", (2, 1000, 64), rare=(before, 3, 2_000_000, LARGE))
        head = where_some("d2d", (2, 400_000, MIB), rare=(after, 3, 2_800_000, LARGE + 2 * MIB))

        assert held(base, head).verdict == "regressed"
        assert held(base, base) == Finding("pass")


def test_half_of_the_steps_copying_is_no_change() -> None:
    """In one trial it may be a step more, in the other one less."""
    less, more = (
        where_some("peer", (0, 0, 0), some=(times, 1, 20_000, 4096)) for times in (STEPS // 2 - 1, STEPS // 2)
    )

    assert held(less, more) == held(more, less) == Finding("pass")
    assert held(less, moving(peer=(1, 20_000, 4096))).reasons[0].text.startswith("+10.")


def test_sizes_that_follow_the_context_are_the_same_in_both() -> None:
    """No two steps copy as much, and a trial may have a step more; what all of them copy more is told."""

    def growing(steps: int, more: int = 0) -> DecodeSteps:
        sizes = tuple(Moves(steps=1, launches=1, bytes=4096 * n + more, ns=50_000) for n in range(steps))
        return moving().model_copy(update={"moves": {"d2h": sizes}})

    assert held(growing(50), growing(50)) == held(growing(50), growing(49)) == Finding("pass")
    assert codes(held(growing(50), growing(50, 8)).cautions) == ["work-changed"]


def test_many_sizes_are_kept_as_their_mean() -> None:
    """A profile does not grow with the steps, however many sizes there are."""
    sizes = tuple(Moves(steps=1, launches=1, bytes=n, ns=10) for n in range(MOST_SIZES))
    more = tuple(Moves(steps=1, launches=1, bytes=1000 + n, ns=30) for n in range(MOST_SIZES))

    assert pooled_moves([{"d2h": sizes}, {"d2h": sizes}]) == {
        "d2h": tuple(Moves(steps=2, launches=1, bytes=n, ns=20) for n in range(MOST_SIZES))
    }
    (one,) = (pooled_moves([{"d2h": sizes}, {"d2h": more}]) or {})["d2h"]
    assert one == Moves(steps=2 * MOST_SIZES, launches=1, bytes=531, ns=40 * MOST_SIZES)


def test_a_rare_copy_that_the_base_never_makes_is_told() -> None:
    """Three steps of a hundred are more than chance, and cost their share."""
    found = held(moving(), rarely(3, "peer"))

    assert (found.verdict, codes(found.cautions)) == ("pass", ["work-changed"])
    assert "0.03 more peer copies a step" in found.cautions[0].text
    assert held(moving(), rarely(2, "peer")) == Finding("pass")


def test_pageable_copies_block_whatever_their_price() -> None:
    """They make the host wait, and are told once."""
    found = held(moving(), moving(copying(**{"d2h-pageable": 1}), **{"d2h-pageable": (1, 0, 8)}))

    assert (found.verdict, codes(found.reasons)) == ("regressed", ["work-added"])
    assert "a pageable host copy (d2h) in each step (and pageable copies make the host wait)" in found.reasons[0].text
    assert "d2h-pageable" not in found.reasons[0].text.splitlines()[0]


@pytest.mark.parametrize("added", [{"d2d": (50, 1370, MIB)}, {"memset": (99, 900, 4)}])
def test_records_of_before_are_judged_as_before(added: dict[str, tuple[int, int, int]]) -> None:
    """Moves that were not kept are not none: neither side that lacks them makes a difference or a price."""
    old, head = trial(USUAL), moving(**added)

    assert old.moves is None
    assert held(old, head) == held(head, old) == held(old, old) == Finding("pass")
    changed = trial(other_attention(USUAL))
    assert held(old, moving(changed, **added)) == held(old, changed)
    assert held(old, copying(d2d=50)).cautions[0].text.splitlines()[1:] == ["+ copy d2d: 0 -> 50"]


def test_a_profiler_that_tells_no_bytes_is_compared_by_counts() -> None:
    """Copies of an Ascend NPU have times and no bytes."""
    base, same, more = (moving(other=(many, ns, 0)) for many, ns in ((4, 1000), (4, 9000), (24, 1000)))

    assert held(base, same) == Finding("pass")
    assert "+ copy other: 4 -> 24 a step (+20.00 us)" in held(base, more).reasons[0].text


def test_profiles_keep_what_a_step_moves() -> None:
    """What is learnt of two engines is over the steps of both, and a step of it is the engine's own."""
    (rank,) = by_rank([[moving()], [moving()]])
    stored = DecodeSteps.model_validate_json(rank.without_columns().model_dump_json())

    assert stored.moves == {
        kind: each_step(many, many * ns, many * size, 2 * STEPS) for kind, (many, ns, size) in USED.items()
    }
    assert held(stored, moving()) == Finding("pass")
    assert held(stored, moving(memset=(31, 900, 4))).verdict == "regressed"
