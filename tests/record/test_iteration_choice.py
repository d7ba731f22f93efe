"""The number of iterations that leads to a decision soonest: from recordings of an H200, and made-up spreads."""

from __future__ import annotations

import csv
import math
import random
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hand_made import cell, gate, iteration, judged, record, trial
from pydantic import ValidationError

from perfgate.metrics.trial import Iteration, Probes, Startup, Trial
from perfgate.record.iteration_choice import IterationChoice, choose_iterations
from perfgate.scenario.declaration import Choose, Expect, load
from perfgate.scenario.plan import Cell, GatePlan, resolve_cells

RECORDED = Path(__file__).parents[1] / "fixtures" / "h200-llama-8b-iterations.csv"
(LLAMA,) = resolve_cells(load(Path(__file__).parents[2] / "scenarios" / "llama-8b-decode.yaml"))
RESTART_NS = 14_500_000_000
"""What a restart took there, beside its iterations."""
STEPS = 127


def _iteration(itl_ns: int, ttft_ns: int) -> Iteration:
    elapsed_ns = ttft_ns + STEPS * itl_ns
    return iteration().model_copy(
        update={"itl_ns": (itl_ns,), "ttft_ns": (ttft_ns,), "e2e_ns": (elapsed_ns,), "elapsed_ns": elapsed_ns}
    )


def _trial(index: int, pair: int | None, side: Any, iterations: tuple[Iteration, ...], restart_ns: int) -> Trial:
    duration_ns = restart_ns + sum(one.elapsed_ns for one in iterations)
    return trial(index, pair, side).model_copy(update={"iterations": iterations, "duration_ns": duration_ns})


def recorded(run: str, kept: int = 20) -> list[Trial]:
    """The trials of a recording, each with its first iterations."""
    rows: dict[tuple[int, str, Any], list[Iteration]] = defaultdict(list)
    with RECORDED.open() as stream:
        for row in csv.DictReader(stream):
            if row["run"] == run:
                place = (int(row["trial"]), row["pair"], row["subject"])
                rows[place].append(_iteration(int(row["itl_ns"]), int(row["ttft_ns"])))
    return [
        _trial(index, int(float(pair)) if pair else None, side, tuple(iterations[:kept]), RESTART_NS)
        for (index, pair, side), iterations in rows.items()
    ]


def made_up(restart_sd: float, iteration_sd: float, *, restart_s: float = 14.5, pairs: int = 12) -> list[Trial]:
    """Trials of one build with normal logarithms, twelve iterations each."""
    draw = random.Random("restarts and iterations")  # noqa: S311 (no secret)
    trials = []
    for number in range(2 * pairs):
        own = draw.gauss(0.0, restart_sd)
        steps = [round(5_000_000 * (1 + own + draw.gauss(0.0, iteration_sd))) for _ in range(12)]
        iterations = tuple(_iteration(step, 60_000_000) for step in steps)
        trials.append(_trial(number, number // 2, ("base", "head")[number % 2], iterations, round(restart_s * 1e9)))
    return trials


def measured(*gates: GatePlan, least: int = 1, most: int = 100) -> Cell:
    """A cell that leaves its number of iterations open."""
    plain = cell(gates=gates or [gate()])
    bounds = {"iterations": 20, "choose": Choose(least=least, most=most)}
    return plain.model_copy(update={"measure": plain.measure.model_copy(update=bounds)})


def chosen(taken: list[Trial], of: Cell | None = None, gates: int = 1) -> IterationChoice:
    """The choice by these trials as a record of an earlier run."""
    of = of or measured()
    found = choose_iterations(of, (), record(of, taken).pairs(), "the record of run before", gates)
    assert found is not None
    return found


@pytest.mark.parametrize("run", ["same build", "twelve pairs, same build", "kernel in every layer"])
def test_recordings_of_one_machine_agree(run: str) -> None:
    """Whichever run tells: a few iterations do for half a percent, about three times as many for a third of that."""
    wide, tight = measured(), measured(gate("itl_median", "0.02%", "0.15%"))
    few, more = chosen(recorded(run), wide), chosen(recorded(run), tight)
    assert 2 <= few.iterations <= 5
    assert 7 <= more.iterations <= 16
    assert "a restart takes 14.5 s, an iteration 0.7" in few.reason


SAME = ("same build", "tight, same build", "cut off at ten pairs, same build", "twelve pairs, same build")


@pytest.mark.parametrize(("run", "pairs", "verdict"), [*((run, 4, "pass") for run in SAME),
                                                       ("kernel in every layer", 6, "regressed")])  # fmt: skip
def test_what_is_chosen_decides_as_twenty_did(run: str, pairs: int, verdict: str) -> None:
    """Under the gates of llama-8b-decode four iterations pass four runs of one build and block a kernel more."""
    of = measured(*LLAMA.gates, least=4, most=20)
    assert LLAMA.measure.choose == of.measure.choose
    assert chosen(recorded("same build"), of, len(LLAMA.gates)).iterations == 4
    for kept in (4, 20):
        taken = [one for one in recorded(run, kept) if one.pair is None or one.pair < pairs]
        assert judged(taken, of).verdict == verdict


def test_a_dearer_restart_pays_for_more_iterations() -> None:
    """As in Kalibera and Jones: the ratio of the two prices decides, and that of the two variances."""
    tight = measured(gate("itl_median", "0.1%", "0.4%"))
    cheap, dear = (chosen(made_up(0.001, 0.004, restart_s=s), tight).iterations for s in (1.0, 60.0))
    assert cheap < dear
    calm, uneven = (chosen(made_up(0.001, sd), tight).iterations for sd in (0.001, 0.006))
    assert calm < uneven


def _disturbed(by: float, iteration_of: Callable[[random.Random, int], bool]) -> list[Trial]:
    """Trials of which some iterations take longer by this share."""
    draw = random.Random("disturbed")  # noqa: S311 (no secret)
    return [
        one.model_copy(update={"iterations": tuple(
            _iteration(round(5_000_000 * (1 + by * iteration_of(draw, n))), 60_000_000) for n in range(12))})
        for one in made_up(0.0, 0.0)
    ]  # fmt: skip


def test_a_mean_counts_each_iteration_that_was_disturbed() -> None:
    """One of five takes 5 % longer: single ones spread by that times the root of 2 * 0.2 * 0.8 a pair, medians by 0."""
    taken = _disturbed(0.05, lambda draw, _: draw.random() < 0.2)
    (spread,) = re.findall(r"and ([0-9.]+) % by an iteration", chosen(taken, measured(gate("tpot_mean"))).reason)
    assert float(spread) == pytest.approx(5 * math.sqrt(2 * 0.2 * 0.8), rel=0.15)
    assert " and 0 % by an iteration" in chosen(taken, measured(gate("itl_median"))).reason


@pytest.mark.parametrize(("metric", "times", "kept"), [("itl_median", math.pi / 2, 12), ("tpot_mean", 1.0, 12),
                                                       ("tpot_mean", 1.0, 3)])  # fmt: skip
def test_a_median_spreads_more_than_a_mean(metric: str, times: float, kept: int) -> None:
    """By the root of half of pi, where iterations are normal; a mean of three a trial is told as one of many."""
    few = [one.model_copy(update={"iterations": one.iterations[:kept]}) for one in made_up(0.003, 0.004, pairs=60)]
    found = chosen(few, measured(gate(metric, "0.5%", "2%")))
    (spread,) = re.findall(r"and ([0-9.]+) % by an iteration", found.reason)
    assert float(spread) == pytest.approx(0.4 * math.sqrt(2 * times), rel=0.1)


def test_disturbances_in_step_with_iterations_cancel() -> None:
    """Trials spread by less than single iterations would say where every second one is disturbed; then few do."""
    tight = measured(gate("tpot_mean", "0.5%", "2%"))
    in_step, at_random = (
        chosen(_disturbed(0.04, which), tight).iterations
        for which in (lambda _, n: n % 2 == 1, lambda draw, _: draw.random() < 0.5)
    )
    assert in_step == 1
    assert at_random > 4


def test_bounds_hold() -> None:
    """No choice is outside them, and the reason compares with the declared number; where iterations add nothing, 1."""
    assert chosen(made_up(0.002, 0.0)).iterations == 1
    assert chosen(recorded("same build"), measured(least=7, most=9)).iterations == 7
    assert chosen(made_up(0.001, 0.02), measured(least=1, most=3)).iterations == 3
    assert "4.9 with 20" in chosen(recorded("same build")).reason


def test_sides_and_their_difference_do_not_matter() -> None:
    """With base and head exchanged, or one of them a tenth slower, the choice is the same."""
    taken = recorded("same build")
    before = chosen(taken)
    exchanged = [one.model_copy(update={"subject": {"base": "head", "head": "base"}[one.subject]}) for one in taken]
    factors = [1.0 if one.subject == "base" else 1.1 for one in taken]
    slower = altered(taken, lambda n, _, own: {"itl_ns": tuple(round(factors[n] * ns) for ns in own.itl_ns)})
    assert chosen(exchanged) == before
    assert chosen(slower).iterations == before.iterations


def test_the_minutes_are_those_of_every_build() -> None:
    """Each round of a run with three heads has four trials; what pays is the same."""
    pairs = record(measured(), recorded("same build")).pairs()
    one, three = (choose_iterations(measured(), (), pairs, "the record of run before", 1, heads) for heads in (1, 3))
    assert one is not None
    assert three is not None
    assert one.iterations == three.iterations
    (alone,) = re.findall(r"([0-9.]+) minutes to a decision,", one.reason)
    (beside,) = re.findall(r"([0-9.]+) minutes to a decision, [^;]*, beside 2 other heads; by the record", three.reason)
    assert float(beside) == pytest.approx(2 * float(alone), abs=0.15)


def test_warm_up_trials_tell_where_there_is_no_history() -> None:
    """They say what iterations spread by and cost; of restarts it is assumed that the declared number was balanced."""
    warm_up = [one for one in recorded("same build") if one.pair is None]
    found = choose_iterations(measured(), warm_up, (), "", 1)
    assert found is not None
    assert 2 <= found.iterations <= 6
    assert found.reason.endswith("by the warm-up trials")


def test_compiling_in_warm_up_is_no_price_of_a_restart() -> None:
    """Where all warm-up trials filled empty caches, judged ones cost what the scenario expects, if that is less."""
    warm_up = made_up(0.0003, 0.002, restart_s=40, pairs=2)[:2]
    found = {}
    for cache_files in (0, 200):
        startup = Startup(import_ns=1, engine_ns=1, ready_ns=3, cache_files=cache_files)
        taken = [one.model_copy(update={"startup": startup, "pair": None}) for one in warm_up]
        for trial_s in (28, 90):
            expect = Expect.model_validate({"trial_s": trial_s, "pair_sd": "0.05%"})
            plain = measured()
            of = plain.model_copy(update={"measure": plain.measure.model_copy(update={"expect": expect})})
            choice = choose_iterations(of, taken, (), "", 1)
            assert choice is not None
            found[cache_files, trial_s] = choice

    assert "a restart is expected to take 14.1 s" in found[0, 28].reason
    assert found[0, 28].iterations < found[200, 28].iterations
    assert found[0, 90] == found[200, 28] == found[200, 90]


def altered(taken: list[Trial], change: Callable[[int, int, Iteration], dict[str, Any]]) -> list[Trial]:
    """The same with each iteration changed, by number of the trial and of the iteration."""
    return [
        trial.model_copy(update={"iterations": tuple(
            own.model_copy(update=change(n, place, own)) for place, own in enumerate(trial.iterations))})
        for n, trial in enumerate(taken)
    ]  # fmt: skip


def in_states(taken: list[Trial], slow: Callable[[int, int], bool]) -> list[Trial]:
    """The same on a GPU that is slow in those iterations, by number of the trial and of the iteration, and probed."""

    def one(number: int, place: int, own: Iteration) -> dict[str, Any]:
        reading, gap = (232_000, 1.025) if slow(number, place) else (197_000, 1.0)
        return {"itl_ns": tuple(round(step * gap) for step in own.itl_ns), "probe_ns": Probes((reading,), (reading,))}

    return altered(taken, one)


def unprobed(taken: list[Trial]) -> list[Trial]:
    """The same where nothing is read."""
    return altered(taken, lambda *_: {"probe_ns": None})


def test_states_of_the_gpu_are_no_spread_of_iterations() -> None:
    """A warm-up trial that jumps in its middle shows what iterations differ by within states."""
    warm_up = [one.model_copy(update={"pair": None}) for one in made_up(0.001, 0.001, pairs=1)]
    jumping = in_states(warm_up, lambda _, place: place < 6)
    cell = measured(gate("itl_median", "0.02%", "0.15%"))

    told, untold = (choose_iterations(cell, taken, (), "", 1) for taken in (jumping, unprobed(jumping)))

    assert told is not None
    assert untold is not None
    assert spread_by(told, "by an iteration") < 0.2
    assert spread_by(untold, "by an iteration") > 1
    assert told.iterations < untold.iterations


def on_two_ranks(taken: list[Trial], ranks: Callable[[int], tuple[int, int]]) -> list[Trial]:
    """The same beside two ranks' readings, by number of the iteration."""
    return altered(taken, lambda _, n, __: {"probe_ns": Probes(ranks(n), ranks(n))})


def test_any_rank_tells_that_the_gpu_jumped() -> None:
    """A step waits for all ranks: one that jumps does, though another card's readings are longer in either state."""
    warm_up = [one.model_copy(update={"pair": None}) for one in made_up(0.001, 0.001, pairs=1)]
    jumping = on_two_ranks(in_states(warm_up, lambda _, n: n < 6), lambda n: (232_000 if n < 6 else 197_000, 250_000))

    told = choose_iterations(measured(gate("itl_median", "0.02%", "0.15%")), jumping, (), "", 1)

    assert told is not None
    assert spread_by(told, "by an iteration") < 0.2


def test_a_state_with_too_few_values_does_not_end_the_choice() -> None:
    """Ten fast iterations tell what they spread by, whatever two slow ones lack."""
    (one, other) = (one.model_copy(update={"pair": None}) for one in made_up(0.001, 0.001, pairs=1))
    (jumping,) = in_states([one], lambda _, place: place < 2)
    cut = (jumping.iterations[0].model_copy(update={"itl_ns": (0,)}), *jumping.iterations[1:])
    lacking = jumping.model_copy(update={"iterations": cut})

    assert choose_iterations(measured(), [lacking, other], (), "", 1) is not None


def test_a_build_that_moves_the_probe_is_in_no_other_state() -> None:
    """Each build's readings are held against its own: the pairs still tell what restarts differ by."""
    pairs = made_up(0.0005, 0.0005)
    read = {"base": (175, 175), "head": (193, 193)}
    moved = [own for one in pairs for own in on_two_ranks([one], lambda _, ns=read[one.subject]: ns)]  # type: ignore[misc]

    assert chosen(moved).reason == chosen(pairs).reason


def test_pairs_in_two_states_tell_nothing_of_restarts() -> None:
    """Every third pair has its trials in different states: the others say what restarts differ by."""
    pairs = made_up(0.0005, 0.0005)
    jumping = in_states(pairs, lambda number, _: number % 6 == 0)

    found, still = (spread_by(chosen(taken), "between restarts") for taken in (jumping, pairs))

    assert found == pytest.approx(still, rel=0.6)
    assert spread_by(chosen(unprobed(jumping)), "between restarts") > 10 * still


def spread_by(choice: IterationChoice, what: str) -> float:
    """What pairs spread by, in per cent, as the reason of a choice says."""
    found = re.search(rf"([\d.]+) % {what}", choice.reason)
    assert found is not None
    return float(found[1])


def test_nothing_is_chosen_without_bounds_or_figures() -> None:
    """A declared number is a number; and one iteration, or a metric without values, has no spread."""
    taken = recorded("same build")
    assert choose_iterations(cell(), taken, (), "", 1) is None
    assert choose_iterations(measured(), [], (), "", 1) is None
    assert choose_iterations(measured(), recorded("same build", kept=1), (), "", 1) is None
    traced = measured(gate("kernel_time_per_step", role="gemm"))
    assert choose_iterations(traced, taken, (), "", 1) is None


def test_a_choice_outside_the_bounds_is_no_record() -> None:
    """Whoever wrote it: the cell says what a run may choose."""
    with pytest.raises(ValidationError, match="least is 9, more than most, 4"):
        Choose(least=9, most=4)
    of, choice = measured(least=4, most=8), IterationChoice(iterations=9, reason="")
    with pytest.raises(ValidationError, match="outside the bounds"):
        record(of, chosen=choice)
    with pytest.raises(ValidationError, match="outside the bounds"):
        record(cell(), chosen=choice.model_copy(update={"iterations": 4}))
    assert record(of, chosen=choice.model_copy(update={"iterations": 4})).chosen is not None
    assert "chosen" not in record(of).model_dump(mode="json")


def test_gates_share_alpha() -> None:
    """More gates in the run make blocking harder, so that at least as many iterations pay."""
    tight = measured(gate("itl_median", "0.1%", "0.4%"))
    assert chosen(recorded("same build"), tight, 1).iterations <= chosen(recorded("same build"), tight, 20).iterations
