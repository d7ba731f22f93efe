"""Ranks of an engine in an outcome: which of them is the worst, what it differs by, and which leaves the envelope."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hand_made import cell, gate, iteration, judged, record, run, spread, trials
from hypothesis import given
from hypothesis import strategies as st
from rank_traces import CUSTOM, LAYERS, REDUCE, SEND, Told, Work, engine, other_collective, pair, step_of, traced_ranks
from recorded_runs import RANKS, recorded

from perfgate.judge.cell_verdict import judge
from perfgate.judge.outcome import CellOutcome, Outcome, verdict_json
from perfgate.kernels.causes import attribution_sentence
from perfgate.kernels.envelope import judge_envelope, learn
from perfgate.kernels.ranks import with_waits_apart
from perfgate.metrics.sides import Side
from perfgate.trace.attribution import GRAPH_IDLE, WAITING, attribute
from perfgate.trace.decode_step import DecodeSteps
from perfgate.trace.rank_steps import RankSteps, waits_as_idle


def test_another_all_reduce_is_blocked_and_named() -> None:
    """The kernels' names are the cause, and each rank's part in the step is told beside it."""
    (found,) = other_collective().cells
    (reason,) = (reason for reason in found.reasons if reason.code == "outside-envelope")
    assert "cross_device_reduce_1stage -> ncclDevKernel_AllReduce_Sum_bf16_RING_LL" in reason.text
    assert found.fact("ranks").worst == "rank 1"
    first, second = found.fact("ranks").ranks
    assert first.figures["waiting_s"] == pytest.approx({"base": LAYERS * 400e-9, "head": LAYERS * 900e-9})
    assert second.figures["waiting_s"] == {"base": 0, "head": 0}
    assert second.figures["transfer_s"] == pytest.approx({"base": LAYERS * 2e-6, "head": LAYERS * 2.6e-6})
    assert (first.figures["slowest"], second.figures["last"]) == ({"base": 0, "head": 0}, {"base": 1, "head": 1})
    assert (first.figures["outside"], second.figures["outside"]) == ({"base": 0, "head": 1}, {"base": 0, "head": 1})
    assert second.parts["communication"] == pytest.approx(LAYERS * 0.6e-6)


def test_a_trace_in_which_one_side_waits_for_its_host_tells_the_cause_all_the_same() -> None:
    """On two H200s the base's traced steps were the longer ones, and yet the head's transfer tells what it lost."""
    (found,) = recorded(RANKS).outcome.cells
    change = found.attribution
    assert found.verdict == "regressed"
    assert change is not None
    assert change.measured_s == pytest.approx(300e-6, rel=0.01)
    assert change.difference_s == pytest.approx(-457e-6, rel=0.01)
    assert change.misled
    assert change.device_s == pytest.approx(281e-6, rel=0.01)
    assert attribution_sentence(change) == (
        "+300.5 us an untraced step, +280.8 us of it on the device: communication +186.5 us, idle (graph) +90.8 us; "
        "traced, the device is idle outside graphs or waits for other ranks for 1.276 ms on base and 537.9 us on head, "
        "so that a step differs by -457.1 us."
    )
    assert "waiting" not in attribution_sentence(change, grown=True)
    (transfer,) = (part for part in change.parts if part.name == "communication")
    (waiting,) = (part for part in change.parts if part.name == WAITING)
    assert transfer.difference_s == pytest.approx(186e-6, rel=0.01)
    assert waiting.difference_s == pytest.approx(-220e-6, rel=0.01)
    assert change.host_s == 0.0
    moved = [
        rank.figures["transfer_s"]["head"] - rank.figures["transfer_s"]["base"] for rank in found.fact("ranks").ranks
    ]
    assert moved == pytest.approx([transfer.difference_s] * 2, rel=0.01)


@given(waits=st.lists(st.integers(0, 3000), min_size=8, max_size=8))
def test_waiting_taken_apart_leaves_a_step_as_long_as_it_was(waits: list[int]) -> None:
    """What a rank waits goes from communication to idle time, at most what nothing hides; no other part changes."""
    _, (first, second) = engine(transfer_ns=800)
    talked = first.communication_ns[0]
    first = first.model_copy(update={"waiting_ns": (*waits[:-1], None), "hidden_ns": (talked - 1000,) * 8})
    before = attribute([(first.decode, second.decode)])
    after = attribute([(waits_as_idle(first), second.decode)])
    assert before is not None
    assert after is not None
    moved = {part.name: part.base_s for part in before.parts}
    for part in after.parts:
        moved[part.name] = moved.get(part.name, 0.0) - part.base_s
    assert moved.pop(WAITING) == pytest.approx(-moved.pop("communication"), abs=1e-12)
    assert [*moved.values()] == pytest.approx([0.0] * len(moved), abs=1e-12)
    apart = waits_as_idle(first)
    assert apart.gap_ns["ranks"] == tuple(min(ns, 1000) for ns in [*waits[:-1], 0])
    assert min(apart.role_ns["communication"]) >= 0


def silenced(ranks: Sequence[RankSteps], *steps: int) -> tuple[RankSteps, ...]:
    """Ranks of which waiting is not known in some steps; without a number in none."""
    return tuple(
        rank.model_copy(
            update={
                "waiting_ns": tuple(None if n in steps else ns for n, ns in enumerate(rank.waiting_ns)) * bool(steps)
            }
        )
        for rank in ranks
    )


@pytest.mark.parametrize("numbers", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("lacks", ["waits", "ranks"])
def test_waits_that_one_trial_does_not_tell_are_taken_apart_in_none(lacks: str, numbers: tuple[int, ...]) -> None:
    """What waiting was on one side is no transfer of the other, nor in another pair, and no work of the device."""
    base, head = engine(late_ns=400), engine(late_ns=3000)
    silent = (head[0], silenced(head[1]) if lacks == "waits" else ())
    traced = [
        one.model_copy(update={"index": 12 + 2 * number + place, "pair": number})
        for number in range(2)
        for place, one in enumerate(pair(base, silent if number in numbers else head))
    ]
    measured = cell("llama-8b-tp2", [gate("itl_median", "1%", "3%")])
    taken = record(measured, [*trials(spread(0.05, 0.0002, 6)), *traced])
    (found,) = judge(run([measured]), {measured.cell_id: taken}).cells
    change = found.attribution
    assert change is not None
    assert change.pairs == 2
    assert WAITING not in {part.name for part in change.parts}
    own = tuple(part.model_copy(update={"difference_s": 1e-3}) for part in change.parts if part.name == "communication")
    assert not change.model_copy(update={"residual_s": 1e-3, "measured_s": 1e-3, "parts": own}).misled
    grown = {name: seconds for name, seconds in found.fact("ranks").ranks[0].parts.items() if seconds > 0}
    late_s = pytest.approx(LAYERS * 2600e-9)
    if lacks == "waits":
        assert grown == {"communication": late_s}
    else:  # pairs that have the rank on both sides
        assert grown == ({WAITING: late_s} if len(numbers) == 1 else {})


@pytest.mark.parametrize(("steps", "apart"), [((), False), ((1,), True), ((1, 2), False), ((1, 2, 3, 4, 5), False)])
def test_no_more_than_a_quarter_of_steps_is_left_out(steps: tuple[int, ...], *, apart: bool) -> None:
    """Ranks whose collectives differ in some steps of the head tell no waiting there, and these may be its longer ones.

    Seven of eight steps have a length.
    """
    (base, ranks), (head, own) = engine(late_ns=400), engine(late_ns=400)
    first, second = pair((base, ranks), (head, silenced(own, *steps)))
    (found,) = with_waits_apart([(first, second)])
    assert (found == (base, head)) != apart
    assert [side.step_ns.count(None) for side in found] == [1, 1 + len(steps) * apart]


def test_communication_of_an_engine_with_one_rank_is_no_waiting() -> None:
    """There is nobody to wait for, so all steps count, whether they communicate or not."""
    (told, _), (every, _) = engine(late_ns=400), engine(late_ns=3000)
    once = tuple(ns * (step == 2) for step, ns in enumerate(every.role_ns["communication"]))
    other = every.model_copy(update={"role_ns": every.role_ns | {"communication": once}})
    first, second = pair((told, ()), (other, ()))
    assert with_waits_apart([(first, second)]) == [(told, other)]
    first, second = pair((other, ()), (other, ()))
    assert with_waits_apart([(first, second)]) == [(other, other)]


def test_a_step_that_does_not_tell_waits_takes_no_other_with_it() -> None:
    """It is left out of the parts, of the whole step as of each rank, and the cause stays what it was."""
    measured = recorded(RANKS)
    assert measured.run is not None
    ((name, taken),) = measured.records.items()
    trials_ = [
        one.model_copy(update={"ranks": silenced(one.payload("ranks"), 3)}) if one.kind == "traced" else one
        for one in taken.trials
    ]
    again = judge(measured.run, {name: taken.model_copy(update={"trials": tuple(trials_)})})
    for before, after in zip(measured.outcome.cells, again.cells, strict=True):
        told, found = before.attribution, after.attribution
        assert told is not None
        assert found is not None
        assert found.misled
        assert found.device_s == pytest.approx(told.device_s, abs=10e-6)
        assert found.device_s != told.device_s
        for one, other in zip(before.fact("ranks").ranks, after.fact("ranks").ranks, strict=True):
            assert other.parts.keys() == one.parts.keys()
            assert other.parts["communication"] == pytest.approx(one.parts["communication"], rel=0.01)


def test_the_host_has_no_share_in_waiting_for_other_ranks() -> None:
    """Where the device waits for a late host, what a rank waits in collectives counts for no part of that."""
    base, head = (engine(late_ns=late_ns) for late_ns in (400, 3000))
    sides = [waits_as_idle(ranks[0]) for _, ranks in (base, head)]
    found = attribute([(sides[0], sides[1])])
    assert found is not None
    assert found.head_slack_s is not None
    assert found.head_slack_s < 0
    (waiting,) = (part for part in found.parts if part.name == WAITING)
    outside = sum(part.difference_s for part in found.parts if part.kind == "idle" and part.name != GRAPH_IDLE)
    assert waiting.difference_s == pytest.approx(LAYERS * 2600e-9)
    assert found.host_s == pytest.approx(outside - waiting.difference_s)


def test_the_untraced_step_of_drafts_is_whole() -> None:
    """Beside traced steps there is what timed ones took, whatever the tokens in them; without that there is nothing."""
    several = [one.model_copy(update={"multi_token": True, "step_ns": 9_000_000}) for one in (iteration(),)]
    for own, measured_s in ((several, 0.0), ([iteration(multi_token=True)], None)):
        timed = [one.model_copy(update={"iterations": tuple(own)}) for one in trials(spread(0.05, 0.0002, 6))]
        measured = cell("llama-8b-tp2", [gate("itl_median", "1%", "3%")])
        taken = record(measured, [*timed, *pair(engine(), engine())])
        (found,) = judge(run([measured]), {measured.cell_id: taken}).cells
        assert found.attribution.measured_s == measured_s


def test_the_rank_that_leaves_the_envelope_is_named() -> None:
    """Where one rank alone runs other kernels, the reason says which."""
    base = engine()
    odd = [*step_of(1, CUSTOM, 2000, 400), ("index_select_kernel", 60_000, 500)]
    head = traced_ranks(dict.fromkeys(range(8), step_of(0, CUSTOM, 2000, 400)), dict.fromkeys(range(8), odd))
    steps: dict[Side, list[DecodeSteps]] = {"base": [base[0]], "head": [head[0]]}
    found = judge_envelope(learn([base[0]]), steps, {"base": base[1], "head": head[1]})
    assert found.verdict == "regressed"
    assert ", on rank 1 of 2" in found.reasons[0].text


def test_an_a_a_of_two_ranks_passes() -> None:
    """The slowest rank's times do not depend on who waits for whom, and nothing is outside."""
    early, late = engine(late_ns=300), engine(late_ns=500)
    measured = cell(gates=[gate("kernel_time_per_step", "5%", "10%", role="communication")])
    measured = measured.model_copy(update={"kernels": learn([early[0]])})
    (found,) = judge(run([measured]), {measured.cell_id: record(measured, pair(early, late))}).cells
    assert not [reason for reason in found.reasons if reason.code != "too-few-pairs"]
    assert early[0].role_ns["communication"] == late[0].role_ns["communication"] == (LAYERS * 2000,) * 8


def test_an_engine_of_one_rank_has_no_table() -> None:
    """Nothing is written about ranks where there is but one."""
    assert _only(judged([])).fact("ranks") is None
    assert '"ranks"' not in verdict_json(judged([]))


def test_sides_of_other_numbers_of_ranks_are_shown_rank_by_rank() -> None:
    """A rank that one side lacks has the other side's figures alone."""
    two = engine()
    three = traced_ranks(*(dict.fromkeys(range(8), step_of(rank, REDUCE, 2000, 400)) for rank in (0, 1, 1)))
    measured = cell()
    outcome = judge(run([measured]), {measured.cell_id: record(measured, pair(two, three))})
    found = _only(outcome).fact("ranks")
    assert found is not None
    assert [[*rank.figures["slowest"]] for rank in found.ranks] == [["base", "head"], ["base", "head"], ["head"]]
    assert [rank.change_s is None for rank in found.ranks] == [False, False, True]


def _only(outcome: Outcome) -> CellOutcome:
    (found,) = outcome.cells
    return found


def test_launches_are_those_of_one_stage() -> None:
    """A second stage that becomes slower launches what it launched, though one step of the first has a kernel more."""

    def stages(gemm_ns: int, *more: Work) -> Told:
        first = [("nvjet_a", 1000, 5000), ("rms_norm_kernel", 6000, 2000), (SEND, 8000, 1000)]
        second = [(SEND, 500, 8500), ("nvjet_a", 9000, 4000), ("flash_fwd_kernel", 13_000, 1000),
                  ("nvjet_b", 14_000, gemm_ns)]  # fmt: skip
        return traced_ranks(dict.fromkeys(range(8), first) | {4: [*first, *more]}, dict.fromkeys(range(8), second))

    odd = ("vectorized_elementwise_kernel<fill>", 7901, 50)
    measured = cell()
    taken = record(measured, pair(stages(4000), stages(12_000, odd)))
    found = _only(judge(run([measured]), {measured.cell_id: taken}))

    kernels = [part for part in found.attribution.parts if part.kind == "kernels"]
    assert [part.name for part in kernels if part.base_launches != part.head_launches] == []
    assert found.fact("ranks").worst == "rank 1"
    first, second = found.fact("ranks").ranks
    assert first.figures["own_s"] == pytest.approx({"base": 7e-6, "head": 7e-6})
    assert second.figures["own_s"] == pytest.approx({"base": 9e-6, "head": 17e-6})
