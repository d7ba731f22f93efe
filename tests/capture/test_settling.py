"""Warm-up that goes on until the probe says that the GPU is fast, on an engine that is told what to answer."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import hand_made
import pytest
from click.testing import CliRunner
from fake_collector import FakeCollector, FakeSpec, FakeStates
from fake_nvml import FakeMachine
from hand_made import scenario_file

from perfgate.capture.driver_protocol import Engine
from perfgate.capture.job import Job
from perfgate.capture.settling import SETTLE_S, fastest_probe_ns, patience_s, state_after
from perfgate.capture.timeline import ANY_TIME, Span
from perfgate.capture.timing import Timed
from perfgate.cli.main import main
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import SETTLED, Probes, Startup, Trial, is_slow
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import Subject
from perfgate.scenario.workload import Workload

SLOW_NS, FAST_NS = 215_000, 179_000
SEEDED = ("--base", "python=/bin/true", "--head", "env.BUILD=new", "--seed", "1")
FIXTURES = Path(__file__).parents[1] / "fixtures"


class Jumping:
    """An engine whose GPU becomes fast after some iterations."""

    def __init__(self, slow: float) -> None:
        self.slow, self.asked = slow, list[int]()
        self.versions: dict[str, str] = {}
        self.startup = Startup(import_ns=1, engine_ns=1, ready_ns=3)

    def wait_alone(self) -> None:
        """Nothing works beside it."""

    def iterate(
        self, workload: Workload, number: int, _limit: Any = None, *, probe: bool
    ) -> tuple[dict[str, Any], Span]:
        """A batch that runs as it should, and the probe's readings."""
        assert probe
        before = SLOW_NS if len(self.asked) < self.slow else FAST_NS
        self.asked.append(number)
        after = SLOW_NS if len(self.asked) < self.slow else FAST_NS
        return {
            "submitted_ns": [1] * workload.batch,
            "deliveries": [[2 + step, [1] * workload.batch] for step in range(workload.output_tokens)],
            "tokens_digest": "0" * 64, "finish_reasons": ["length"] * workload.batch, "preemptions": 0,
            "probe_ns": [[before], [after]],
        }, ANY_TIME  # fmt: skip


@pytest.fixture
def drive(make_cell: Callable[..., Cell], make_job: Callable[..., Job]) -> Callable[..., tuple[Trial, list[int]]]:
    """A function that has an engine run under the instrument: the trial, and the numbers of all iterations."""

    def one(engine: Jumping, fastest: tuple[int, ...] = (FAST_NS,)) -> tuple[Trial, list[int]]:
        job = replace(make_job(make_cell(), Subject(python=sys.executable)), fastest_probe_ns=fastest)
        instrument, driven = Timed(job), []
        typed: Engine = engine  # type: ignore[assignment]
        driven = list(instrument.drive(typed, lambda _: None))
        taken = job.trial(t0_utc="", duration_ns=1, iterations=tuple(driven), **instrument.fields())
        return taken, engine.asked

    return one


def timeline(taken: Trial, folder: Path) -> list[bool]:
    """Whether each iteration of a trial's timeline was warm-up."""
    (file,) = folder.rglob("timeline.jsonl.gz")
    assert taken.timeline is not None
    return [json.loads(line)["warmup"] for line in gzip.decompress(file.read_bytes()).splitlines()]


def test_warm_up_goes_on_until_the_gpu_is_fast(drive: Callable[..., tuple[Trial, list[int]]], tmp_path: Path) -> None:
    """A GPU that is slow after warm-up gets more of it, with prompts of its own, and what is measured is fast."""
    taken, asked = drive(Jumping(slow=4))
    assert asked == [0, 3, 4, 5, 1, 2]
    assert [own.probe_ns and own.probe_ns.before[0] for own in taken.iterations] == [FAST_NS] * 2
    assert timeline(taken, tmp_path) == [True, True, True, True, False, False]
    assert taken.figures[SETTLED] > 0


@pytest.mark.parametrize(("slow", "fastest"), [(0, (FAST_NS,)), (9, ()), (9, (SLOW_NS,)), (9, (FAST_NS, FAST_NS))])
def test_nothing_is_waited_for(
    drive: Callable[..., tuple[Trial, list[int]]], slow: int, fastest: tuple[int, ...]
) -> None:
    """A GPU that is fast, or as fast as any was so far, is measured at once; so is one with other ranks than before."""
    taken, asked = drive(Jumping(slow), fastest)
    assert asked == [0, 1, 2]
    assert taken.figures == {}


@pytest.mark.parametrize(("fast", "slow"), [(179_000, 215_000), (194_304, 229_568), (199_423, 234_623)])
def test_what_counts_as_slow(fast: int, slow: int) -> None:
    """The slow state of an H200 and of H100s is; readings of one state, which are up to 2 % apart, are not."""
    assert is_slow((slow,), (fast,))
    assert not is_slow((round(1.02 * fast),), (fast,))
    assert not is_slow((slow,), (round(slow / 1.02),))


def test_a_gpu_that_stays_slow_is_measured_slow(
    drive: Callable[..., tuple[Trial, list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the longest wait what there is is measured, and the trial says how long it waited."""
    clock = itertools.count(0, 10**9)
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(clock))
    taken, asked = drive(Jumping(slow=float("inf")))
    assert len(taken.iterations) == 2
    assert (asked[0], asked[-2:], len(asked)) == (0, [1, 2], 3 + SETTLE_S // 2)
    assert taken.figures[SETTLED] >= (SETTLE_S - 2) * 10**9
    assert {own.probe_ns and own.probe_ns.after[0] for own in taken.iterations} == {SLOW_NS}


def test_the_shortest_reading_of_the_run_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_nvml: FakeMachine
) -> None:
    """Each trial is told the shortest reading of those before it, of either side, and none where it tells nothing."""
    monkeypatch.chdir(tmp_path)

    class Asked(FakeCollector):
        """Fakes on a GPU with two states, and what each was told."""

        def __init__(self) -> None:
            super().__init__(FakeSpec(restart_sd=0.0003, states=FakeStates(slow_share={"base": 0.5, "head": 0.5})))
            self.told: list[tuple[int, ...]] = []
            self.read: list[int] = []

        def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
            self.told.append(job.fastest_probe_ns)
            taken = super().collect(job, progress)
            self.read.append(min(own.probe_ns.after[0] for own in taken.iterations if own.probe_ns))
            return taken

    words = ["run", scenario_file(tmp_path).name, *SEEDED]
    asked = Asked()
    CliRunner().invoke(main, words, obj=asked)
    assert asked.told == [(), *((least,) for least in itertools.accumulate(asked.read[:-1], min))]
    fake_nvml.gpu().update(name="NVIDIA T4")
    elsewhere = Asked()
    CliRunner().invoke(main, words, obj=elsewhere)
    assert {*elsewhere.told} == {()}


def test_no_side_is_waited_for_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_nvml: FakeMachine) -> None:
    """Where one side has no readings the other is not waited for either: it alone would be measured fast."""
    monkeypatch.chdir(tmp_path)
    told: list[tuple[str, int | None, tuple[int, ...]]] = []

    class Unprobed(FakeCollector):
        """Fakes on a GPU with two states, whose head cannot be probed."""

        def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
            told.append((job.side, job.pair, job.fastest_probe_ns))
            taken = super().collect(job, progress)
            if job.side == "base":
                return taken
            own = tuple(one.model_copy(update={"probe_ns": None}) for one in taken.iterations)
            return taken.model_copy(update={"iterations": own})

    fake_nvml.gpu()
    words = ["run", scenario_file(tmp_path).name, "--base", "python=/bin/true", "--head", "env.BUILD=new"]
    CliRunner().invoke(main, words, obj=Unprobed(FakeSpec(states=FakeStates())))

    assert [side for side, pair, _ in told if pair is None] == ["base", "head"]
    assert {fastest for _, pair, fastest in told if pair is not None} == {()}


def test_a_side_that_was_waited_for_in_vain_is_held_against_its_own_readings() -> None:
    """A build that moves the probe looks slow beside the other: it is waited for once, and then by its own levels."""

    def taken(index: int, side: Side, reads_ns: int, waited_s: int = 0) -> Trial:
        probed = hand_made.iteration(probe_ns=Probes(before=(reads_ns,), after=(reads_ns,)))
        figures = {SETTLED: waited_s * 10**9} if waited_s else {}
        return hand_made.trial(index, 0, side, iterations=(probed,), figures=figures)

    def fastest(taken: Sequence[Trial], side: Side) -> tuple[int, ...]:
        return fastest_probe_ns(hand_made.record(hand_made.cell(), taken), side, ["NVIDIA H200"], ())

    seen = [taken(0, "base", 211), taken(1, "head", 229), taken(2, "base", 175)]
    assert fastest(seen, "head") == (175,)
    in_vain = [*seen, taken(3, "head", 193, SETTLE_S)]
    assert fastest(in_vain, "base") == (175,)
    assert fastest(in_vain, "head") == (193,)
    assert is_slow((193,), (175,))
    assert is_slow((229,), (193,))
    assert not is_slow((193,), (193,))
    assert fastest([*seen, taken(3, "head", 180, SETTLE_S + 2)], "head") == (175,)  # a window ended later than the wait


@pytest.mark.parametrize(
    ("after", "fastest", "state"),
    [
        ((SLOW_NS,), (FAST_NS,), "slow"),
        ((FAST_NS,), (FAST_NS,), "fast"),
        ((FAST_NS,), (), ""),
        ((1, 2), (FAST_NS,), ""),
    ],
)
def test_state_after_a_trial(after: tuple[int, ...], fastest: tuple[int, ...], state: str) -> None:
    """The last reading says what the GPU is like; nobody can tell without an earlier one of the same ranks."""
    probed = hand_made.iteration(probe_ns=Probes(before=after, after=after))

    assert state_after(hand_made.trial(0, 0, "base", iterations=(probed,)), fastest) == state
    assert state_after(hand_made.failed(0, 0, "base"), fastest) == ""


# --- whether waiting pays

ITERATION_S = 0.75
"""Of 128 tokens, on an H200."""


def began(index: int, onset_s: float, iterations: int, settled_s: float = 0.0, side: Side = "base") -> Trial:
    """A trial of 12 s and its iterations, whose GPU became fast so long after warm-up."""
    marks = [SLOW_NS if settled_s + n * ITERATION_S < onset_s else FAST_NS for n in range(iterations + 1)]
    taken = tuple(
        hand_made.iteration(probe_ns=Probes((before,), (after,)), elapsed_ns=int(ITERATION_S * 10**9))
        for before, after in itertools.pairwise(marks)
    )
    figures = {SETTLED: int(settled_s * 10**9)} if settled_s else {}
    duration_ns = int((12 + settled_s + iterations * ITERATION_S) * 10**9)
    pair = index // 2
    return hand_made.trial(index, pair, side, iterations=taken, figures=figures, duration_ns=duration_ns)


def patience(onsets_s: Sequence[float], iterations: int, pair: int = 99) -> float:
    """How long a pair waits after trials that did not wait, and whose GPUs became fast so long after warm-up."""
    taken = [began(n, onset_s, iterations) for n, onset_s in enumerate(onsets_s)]
    return patience_s(hand_made.record(hand_made.cell(), taken), (), pair, iterations)


def test_short_trials_of_gpus_that_begin_slow_do_not_wait() -> None:
    """Where each GPU is slow for longer than a trial measures, all trials are alike as they are."""
    assert patience([6.2, 7.8, 2.0, 12.6, 9.4, 8.6, 7.8, 11.7], iterations=4) == 0


def test_gpus_that_mostly_begin_fast_are_waited_for() -> None:
    """Where some trials begin slow among fast ones, waiting for these makes pairs alike."""
    assert patience([0, 0, 5.8, 0, 2.2, 0, 0, 1.5], iterations=4) == SETTLE_S


def test_long_trials_have_both_states_and_do_not_wait() -> None:
    """A trial that becomes fast on the way has iterations in either state, so its pair has one in common."""
    assert patience([6.2, 7.8, 9.4, 12.6, 9.4, 8.6, 0.0, 11.7], iterations=20) == 0


def test_waiting_that_was_in_vain_ends() -> None:
    """GPUs that stay slow for longer than anybody waits are not waited for again and again."""
    taken = [began(0, 0.0, 4), *(began(n, math.inf, 4, settled_s=12.2) for n in range(1, 6))]

    assert patience_s(hand_made.record(hand_made.cell(), taken), (), 99, 4) == 0


def test_a_host_that_was_only_fast_waits_for_its_first_slow_trial() -> None:
    """Waiting costs nothing where nobody waits, so the first trial that begins slow is waited for."""
    assert patience([0], iterations=4) == SETTLE_S
    assert patience([0] * 6, iterations=4) == SETTLE_S


def test_the_iteration_of_a_change_counts_for_neither_state() -> None:
    """Of four iterations the second one changes: one is slow and two are fast, as the judge labels them."""
    mixed = ITERATION_S * 1.5

    assert patience([0, mixed, 0, mixed], iterations=4) == 0
    assert patience([mixed, math.inf, mixed, math.inf], iterations=4) == SETTLE_S


def test_a_head_that_moves_the_probe_is_held_against_itself() -> None:
    """Once it was waited for in vain its own readings say when it is fast, in its patience too."""
    base = [began(2 * n, 0.0 if n % 3 else 5.0, 4, settled_s=0.0 if n % 3 else 5.0) for n in range(6)]
    head = [
        began(2 * n + 1, 0.0 if n % 3 else 5.0, 4, settled_s=12.5 if n == 0 else 0.0, side="head") for n in range(6)
    ]
    moved = [
        one.model_copy(update={"iterations": tuple(
            own.model_copy(update={"probe_ns": Probes(*((int(1.12 * ns),) for (ns,) in (own.probe_ns or ())))})
            for own in one.iterations
        )}) for one in head
    ]  # fmt: skip

    def found(heads: Sequence[Trial]) -> float:
        taken = [one for pair in zip(base, heads, strict=True) for one in pair]
        return patience_s(hand_made.record(hand_made.cell(), taken), (), 99, 4)

    assert found(moved) == found(head) == SETTLE_S


def test_iterations_without_a_length_say_nothing() -> None:
    """A record whose iterations took no time is not divided by."""
    taken = [began(n, 0.0, 4) for n in range(2)]
    empty = [
        one.model_copy(update={"iterations": tuple(own.model_copy(update={"elapsed_ns": 0}) for own in one.iterations)})
        for one in taken
    ]

    assert patience_s(hand_made.record(hand_made.cell(), empty), (), 99, 4) == SETTLE_S


def test_what_nobody_has_seen_yet_is_worth_a_wait() -> None:
    """Trials of both kinds that ended before anybody knew how long a wait takes are no reason against one."""
    assert patience([0, math.inf, 0, math.inf], iterations=4) == SETTLE_S


def test_a_trial_that_ended_slow_is_reckoned_as_those_that_were_slow_for_longer() -> None:
    """Others were slow for longer than anybody waits, so that one is not taken to become fast halfway."""
    waited = [began(1, 13.4, 10, settled_s=12.6), began(2, math.inf, 10, settled_s=12.6)]
    others = [began(0, 0.0, 10), began(4, 0.0, 10), began(3, math.inf, 10)]

    def found(taken: Sequence[Trial]) -> float:
        return patience_s(hand_made.record(hand_made.cell(), taken), (), 99, 10)

    assert (found(others), found([*others, *waited])) == (SETTLE_S, 0)


def test_both_trials_of_a_pair_are_treated_alike() -> None:
    """What the first trial of a pair showed does not change how long the second one waits."""
    before = [began(n, 0.0 if n % 2 else 5.0, 4) for n in range(4)]
    first = began(4, 5.0, 4)

    def found(taken: Sequence[Trial]) -> float:
        return patience_s(hand_made.record(hand_made.cell(), taken), (), 2, 4)

    assert found(before) == found([*before, *(first.model_copy(update={"index": n}) for n in range(4, 40))])


def test_trials_without_readings_say_nothing() -> None:
    """Nor do no trials at all."""
    unread = hand_made.trial(0, 0, "base")

    for taken in ([], [unread]):
        assert patience_s(hand_made.record(hand_made.cell(), taken), (), 1, 4) == SETTLE_S


def recorded(file: str, run: str, seconds: float, restart_s: float) -> list[Trial]:
    """The trials of a recorded run, whose iterations took so long, up to the iterations given."""
    rows: dict[tuple[int, str], list[dict[str, str]]] = {}
    for row in csv.DictReader((FIXTURES / file).read_text().splitlines()):
        if row["run"] == run:
            rows.setdefault((int(row["trial"]), row["pair"]), []).append(row)
    trials = []
    for (index, pair), own in rows.items():
        settle_ns = int(own[0]["settle_ns"])
        taken = tuple(
            hand_made.iteration(
                probe_ns=Probes((int(row["before_ns"]),), (int(row["after_ns"]),)), elapsed_ns=int(seconds * 1e9)
            )
            for row in own
        )
        trials.append(
            hand_made.trial(
                index, int(pair) if pair else None, "base", iterations=taken,
                figures={SETTLED: settle_ns} if settle_ns else {},
                duration_ns=int((restart_s + seconds * len(own)) * 1e9) + settle_ns,
            )
        )  # fmt: skip
    return trials


def asked(trials: Sequence[Trial], iterations: int) -> list[tuple[bool, float]]:
    """Of each recorded trial whether it waited, and the patience that its pair would have by those before it."""
    return [
        (
            SETTLED in one.figures,
            patience_s(hand_made.record(hand_made.cell(), trials[:n]), (), one.pair, iterations),
        )
        for n, one in enumerate(trials)
    ]


def test_recorded_gpus_that_were_worth_a_wait() -> None:
    """On a recorded host most trials began fast: nearly all that began slow would have been waited for."""
    found = [
        patience
        for number in range(1, 9)
        for waited, patience in asked(recorded("h200-x4-settled.csv", f"same-build-{number}", 0.38, 12), 8)
        if waited
    ]

    assert (len(found), found.count(SETTLE_S)) == (30, 27)


@pytest.mark.parametrize("iterations", [4, 20])
def test_recorded_gpus_that_were_not(iterations: int) -> None:
    """On another host every trial began slow for 6 to 13 s: no pair would have waited."""
    for number in (1, 2):
        trials = recorded("h200-x2-slow-starts.csv", f"extra_kernel-3-{number}", 0.77, 14)
        assert [patience for waited, patience in asked(trials, iterations) if waited and patience] == []


def test_recorded_waits_that_were_too_short() -> None:
    """On an H100 all six waits of a run ended 1 to 3 s too soon or earlier: after the first pair none would be made."""
    found = asked(recorded("h100-anchors.csv", "pairs", 0.98, 11), 8)

    assert [n for n, (waited, _) in enumerate(found) if waited] == [1, 2, 5, 6, 7, 8]
    assert [patience for _, patience in found] == [SETTLE_S] * 3 + [0.0] * 6


def test_patience_is_part_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_nvml: FakeMachine) -> None:
    """Trials of one pair wait for as long as each other, and the engine is told how long that is."""
    monkeypatch.chdir(tmp_path)
    fake_nvml.gpu()
    told: list[tuple[int | None, float]] = []

    class Asked(FakeCollector):
        """Fakes on a GPU that is slow in half of all trials."""

        def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
            told.append((job.pair, job.settle_s))
            return super().collect(job, progress)

    words = ["run", scenario_file(tmp_path).name, *SEEDED]
    states = FakeStates(slow_share={"base": 0.5, "head": 0.5})
    CliRunner().invoke(main, words, obj=Asked(FakeSpec(restart_sd=0.0003, states=states)))

    pairs = {pair: {waits for one, waits in told if one == pair} for pair, _ in told if pair is not None}
    assert all(len(waits) == 1 for waits in pairs.values())
    assert set.union(*pairs.values()) <= {0.0, float(SETTLE_S)}
