"""What a step copies and sets, judged by its price: copies by kind, and memsets, which no kernel's time shows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from decode_steps import USUAL, extra_kernel, other_attention, trial
from hand_made import codes

from perfgate.judge.call_checks import judge_launches
from perfgate.judge.outcome import Finding
from perfgate.trace.decode_step import DecodeSteps
from perfgate.trace.launch_difference import by_rank
from perfgate.trace.moves import Moves

TEN_US = 10e-6
"""What the tests ignore."""
STEPS = USUAL.steps
USED = {"h2d": (2, 1200, 50), "d2h": (2, 2000, 48), "memset": (1, 900, 4)}
"""What the made-up step moves: copies of a kind, nanoseconds of each and bytes of each."""
MIB = 2**20


def moving(steps: DecodeSteps | None = None, /, **moves: tuple[int, int, int]) -> DecodeSteps:
    """Steps which move what is used and, by kind, so many each step, of so many nanoseconds and bytes."""
    own = steps or trial(USUAL)
    every = {
        kind: Moves(launches=many * STEPS, ns=many * ns * STEPS, bytes=many * size * STEPS)
        for kind, (many, ns, size) in {**USED, **moves}.items()
    }
    return own.model_copy(update={"moves": every})


def held(base: DecodeSteps, head: DecodeSteps) -> Finding:
    """What is found where one trial a side was traced."""
    return judge_launches(TEN_US, {"base": [[base]], "head": [[head]]})


def copying(**copies: int) -> DecodeSteps:
    """Steps whose pattern has more copies than usual."""
    return trial(replace(USUAL, copies={**USUAL.copies, **copies}))


def test_added_copies_are_blocked_at_their_price() -> None:
    """Fifty copies more within the device cost what the head's trace says that they take."""
    found = held(moving(), moving(copying(d2d=50), d2d=(50, 1370, MIB)))

    (reason,) = found.reasons
    headline, line = reason.text.splitlines()
    assert (found.verdict, reason.code) == ("regressed", "launches-added")
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
    assert (found.verdict, note.code) == (verdict, "launches-added" if verdict == "regressed" else "launches-changed")
    assert headline.startswith(
        f"+{20 * ns / 1000:.2f} us a step by the traced time of its kernels, copies and memsets: 20 more memsets a step"
    )
    assert line == f"+ memset: 1 -> 21 a step; 4 B -> 84 B a step (+{20 * ns / 1000:.2f} us)"


@pytest.mark.parametrize("kind", ["h2d", "d2h"])
def test_pinned_copies_have_a_price(kind: str) -> None:
    """They do not make the host wait, and take their time on the device."""
    many, ns, size = USED[kind]

    assert held(moving(), moving(copying(**{kind: 12}), **{kind: (many + 10, ns, size)})).verdict == "regressed"


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

    assert codes(held(base, moving(h2d=(1, 100_004, 50_000_004))).cautions) == ["launches-changed"]
    assert held(base, moving(h2d=(1, 109_000, 54_500_000))).verdict == "pass"
    assert held(base, moving(h2d=(1, 112_000, 56_000_000))).verdict == "regressed"


def test_a_few_bytes_more_do_not_pay_for_a_slower_bus() -> None:
    """Added bytes cost their share of all at most: a stored profile is of another host."""
    found = held(moving(h2d=(20, 1200, 50)), moving(h2d=(20, 2400, 51)))

    assert found.verdict == "pass"
    assert found.cautions[0].text.startswith("+0.94 us a step ")


def test_larger_copies_cost_what_they_take_longer() -> None:
    """Small copies take about as long whatever their size, so eightfold bytes are not the eightfold time."""
    found = held(moving(h2d=(20, 1200, 50)), moving(h2d=(20, 1300, 400)))

    assert found.verdict == "pass"
    assert found.cautions[0].text.startswith("+2.00 us a step ")


def test_an_added_copy_much_larger_than_the_others_has_its_own_price() -> None:
    """It does not take what the others take on average."""
    base, head = (Moves(launches=many * STEPS, ns=ns * STEPS, bytes=size * STEPS) for many, ns, size in (
        (4, 4000, 32), (5, 64_000, 32 + 60 * MIB)))  # fmt: skip
    was, now = (moving().model_copy(update={"moves": {"d2h": own}}) for own in (base, head))

    found = held(was, now)

    assert found.reasons[0].text.startswith("+60.00 us a step ")


def test_fewer_copies_pay_for_added_kernels() -> None:
    """What is gone took its time, so that copies may become a kernel."""
    found = held(moving(copying(d2d=32), d2d=(32, 1000, 100)), moving(trial(extra_kernel(USUAL))))

    assert found.verdict == "pass"
    assert found.cautions[0].text.startswith("+0.00 us a step ")
    assert "- copy d2d: 32 -> 0 a step; 3.125 KiB -> 0 B a step (-32.00 us)" in found.cautions[0].text


def test_a_slower_card_prices_no_copy_that_is_gone() -> None:
    """The stored time of copies follows the pace of the kernels that both launch."""
    base = moving(d2d=(50, 1000, 100))
    head = moving(trial(USUAL).model_copy(update={"key_ns": tuple(round(1.05 * ns) for ns in base.key_ns)}))

    assert held(base, head).cautions[0].text.startswith("-52.50 us a step ")


def rarely(steps: int, **rare: int) -> DecodeSteps:
    """Steps of which so many copy once more."""
    own = moving()
    assert own.moves is not None
    more = Moves(launches=steps, ns=1200 * steps, bytes=32 * steps)
    return own.model_copy(update={"moves": own.moves | {kind: own.moves.get(kind, Moves()) + more for kind in rare}})


def test_how_often_a_rare_step_copies_is_no_change() -> None:
    """Where the KV cache grows, in 7 steps of 100 or in 14."""
    seldom, often = rarely(7, h2d=1), rarely(14, h2d=1)

    assert held(seldom, often) == held(often, seldom) == Finding("pass")


def test_a_rare_copy_that_the_base_never_makes_is_told() -> None:
    """Three steps of a hundred are more than chance, and cost their share."""
    found = held(moving(), rarely(3, peer=1))

    assert (found.verdict, codes(found.cautions)) == ("pass", ["launches-changed"])
    assert "0.03 more peer copies a step" in found.cautions[0].text
    assert held(moving(), rarely(2, peer=1)) == Finding("pass")


def test_pageable_copies_block_whatever_their_price() -> None:
    """They make the host wait, and are told once."""
    found = held(moving(), moving(copying(**{"d2h-pageable": 1}), **{"d2h-pageable": (1, 0, 8)}))

    assert (found.verdict, codes(found.reasons)) == ("regressed", ["launches-added"])
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
        kind: Moves(launches=2 * many * STEPS, ns=2 * many * ns * STEPS, bytes=2 * many * size * STEPS)
        for kind, (many, ns, size) in USED.items()
    }
    assert held(stored, moving()) == Finding("pass")
    assert held(stored, moving(memset=(31, 900, 4))).verdict == "regressed"
