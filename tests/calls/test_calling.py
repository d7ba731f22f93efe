"""Called trials, taken of the stand-in engine by the real collector: what is counted, and that nothing else is."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stub_engine import write_stub

from perfgate.calls.call_difference import call_difference, figure_lines
from perfgate.calls.calling import FEWEST_GROWTHS, MOST_COUNTS, figures_of, read_calls, read_figures
from perfgate.calls.host_calls import STEP_KINDS, HostCalls
from perfgate.capture.job import Job
from perfgate.capture.timeline import InvalidTrialError
from perfgate.capture.trial_taking import EngineCollector
from perfgate.metrics.catalogue import METRICS
from perfgate.metrics.trial import Kind, Trial
from perfgate.scenario.plan import Cell
from perfgate.scenario.schedule import CallTrials
from perfgate.scenario.subject import Subject

Take = Callable[..., Trial]


@pytest.fixture
def take(tmp_path: Path, make_cell: Callable[..., Cell], make_job: Callable[..., Job]) -> Take:
    """A function that takes a trial of the stand-in in some mode."""
    write_stub(tmp_path / "stub")
    cell = make_cell().model_copy(update={"calls": CallTrials()})

    def one(mode: str = "", kind: Kind = "called", **env: str) -> Trial:
        number = len([*tmp_path.glob("**/arguments.json")])
        path = (str(tmp_path / "stub"),)
        job = make_job(cell, Subject(python=sys.executable, path=path, env={"STUB_MODE": mode, **env}), number)
        return EngineCollector().collect(dataclasses.replace(job, kind=kind), lambda _: None)

    return one


def counted(trial: Trial) -> HostCalls:
    """What a valid trial counted."""
    assert trial.failure is None, trial.failure.text
    calls: HostCalls = trial.payload("calls")
    return calls


def test_counts_repeat_whatever_the_hash_seed(take: Take) -> None:
    """Two engines of one build run the same functions equally often, and all of it repeats within each."""
    one, other = (counted(take(PYTHONHASHSEED=seed)) for seed in ("1", "2"))

    for kind in STEP_KINDS:
        mine, its = one.steps[kind], other.steps[kind]
        assert (mine.counts(), mine.varying(), mine.calls) == (its.counts(), {}, its.calls)
        assert mine.functions["vllm.LLMEngine.schedule"].calls[0] == one.many(kind)


ADDED: dict[str, tuple[str, dict[str, int], float]] = {
    # Under sys.monitoring the jump back of a loop counts beside its two lines.
    "a loop": ("vllm.LLMEngine.schedule", {"lines": 15_000 if hasattr(sys, "monitoring") else 10_000}, 50e-6),
    "Python calls": ("vllm.look_up", {"calls": 1000, "lines": 1000}, 20e-6),
    "C calls": ("vllm.LLMEngine.schedule", {"zlib.crc32": 20}, 20e-6),
    "refactored": ("vllm.look_up", {"calls": 30, "lines": 30}, 0.3e-6),
    "a thread": ("vllm.look_up", {"calls": 1, "lines": 1}, 0.01e-6),
}
"""What the stand-in does more in each mode: a function, its counts a step, the least cost."""


def test_work_that_is_added_is_named(take: Take) -> None:
    """A loop without a call, Python calls, C calls, in this thread or another one: found in one trial of each build."""
    base = counted(take())
    for mode, (function, counts, least_s) in ADDED.items():
        found = call_difference(base, counted(take(mode)), "decode")

        (change,) = [change for change in found.changes if change.function == function]
        assert {what: change.counts[what] for what in counts} == pytest.approx(counts, abs=3), mode
        assert found.cost_s > least_s, mode


def test_what_an_engine_imports_and_keeps_is_told(take: Take) -> None:
    """Modules repeat exactly; a hundred lists that each step keeps are blocks of memory that each iteration adds."""
    base, again, imports, keeps = (counted(take(mode)) for mode in ("", "", "imports more", "keeps lists"))

    assert not [line for line in figure_lines(base, again) if "modules" in line]
    every, *packages = (line for line in figure_lines(base, imports) if "modules" in line)
    assert every.startswith("+ modules: ")
    assert "+ modules of xmlrpc: 0 -> 1" in packages
    (kept,) = figure_lines(base, keeps)
    assert kept.startswith("+ blocks of Python's memory an iteration: ")
    steps = base.many("decode") + base.many("prefill")
    (least, _), (_, usual) = (own.figures["blocks of Python's memory an iteration"] for own in (keeps, base))
    assert least - usual == pytest.approx(100 * steps, rel=0.1)


def test_few_growths_are_no_figure() -> None:
    """Two engines that are alike would differ in one number each; modules need no second reading."""
    held = {"process": {"modules": {"modules": 7}, "totals": {"blocks": 100}, "spent": {"system calls": 9}}}
    seen = [read_figures(held)] * (FEWEST_GROWTHS + 1)

    assert figures_of(seen[1:]) == {"modules": (7, 7)}
    added = {"blocks an iteration": (0, 0), "system calls an iteration": (9, 9)}
    assert figures_of(seen) == {"modules": (7, 7), **added}


def test_a_counter_that_an_iteration_could_not_read_is_no_figure() -> None:
    """A 0 for it would hide what the others show."""
    held: dict[str, dict[str, Any]] = {"process": {"modules": {}, "totals": {}, "spent": {"system calls": 9}}}
    seen = [read_figures(held)] * FEWEST_GROWTHS
    blind = read_figures({"process": {**held["process"], "spent": {"reads and writes": 3}}})

    assert figures_of([*seen, blind]) == {}


@pytest.mark.parametrize("said", [{}, {"process": None}, {"process": {"modules": {}}},
                                  {"process": {"modules": {"a\nPASS": 1}, "totals": {}, "spent": {}}},
                                  {"process": {"modules": {"a": -1}, "totals": {}, "spent": {}}}])  # fmt: skip
def test_figures_that_make_no_sense_end_the_trial(said: dict[str, Any]) -> None:
    """Names of more than a line, negative numbers and other shapes are refused."""
    with pytest.raises(InvalidTrialError, match="figures of the process"):
        read_figures(said)


def test_nothing_counts_in_a_timed_trial(take: Take) -> None:
    """An engine that refuses to run under a counter runs when it is timed, and shows the counter when it is called."""
    assert take("refuses counters", kind="timed").failure is None

    failure = take("refuses counters").failure
    assert failure is not None
    assert failure.code == "engine-failed"
    assert "somebody counts" in failure.text


def test_a_called_trial_feeds_no_other_metric(take: Take) -> None:
    """It has no iterations and no start-up, so none of it can be taken for a time."""
    trial = take()

    values = {name: metric.summarise(trial) for name, metric in METRICS.items()}
    assert {name for name, value in values.items() if value is not None} == {"host_calls_per_step"}
    assert (trial.iterations, trial.startup, trial.timeline) == ((), None, None)


REPORT: dict[str, Any] = {
    "python": "3.11", "instrument": "settrace", "costs": {"line": 1, "call": 1, "c_call": 1, "timing": 200_000},
    "calls": [19, 1, 4],
    "functions": {
        "f": {"()": [9, 3], ":": [9, 7], "dict.get": [9, 2], "#dict.get": [4, 2], "~dict.get": [900, 1400]},
        "prefill": {"()": [1, 0]},
    },
}  # fmt: skip
ANSWER: dict[str, Any] = {
    "deliveries": [[1, [1, 1]], [2, [1, 1]], [3, [0, 0]]], "decode_begins": 1, "host_calls": REPORT,
}  # fmt: skip


def test_what_a_worker_says_is_added_up() -> None:
    """Each kind of step has its own; a return without tokens counts in the sums, and a C call is its time less ours."""
    steps = read_calls(ANSWER).steps

    assert {kind: own.calls for kind, own in steps.items()} == {"decode": (1,), "prefill": (19,)}
    assert [own.functions["f"].model_dump() for own in steps.values()] == [
        {"calls": (3, 3), "lines": (7, 7), "c_calls": {"dict.get": (2, 2)}, "c_ps": {"dict.get": 500_000}},
        {"calls": (9, 9), "lines": (9, 9), "c_calls": {"dict.get": (9, 9)}, "c_ps": {"dict.get": 25_000}},
    ]
    assert [[*own.functions] for own in steps.values()] == [["f"], ["f", "prefill"]]


def test_a_workload_of_one_token_has_no_decode_steps() -> None:
    """An engine that embeds is counted while it prefills, in as many returns as that takes."""
    read = read_calls(ANSWER | {"deliveries": [[1, [0, 0]], [2, [0, 0]], [3, [1, 1]]], "decode_begins": 3})

    assert {kind: own.calls for kind, own in read.steps.items()} == {"prefill": (19, 1, 4)}


def test_what_runs_after_the_only_tokens_is_counted() -> None:
    """Without a decode step the returns after the last prefill step, which give no tokens, belong to prefill."""
    (read,) = read_calls(ANSWER | {"deliveries": [[1, [1, 1]], [2, [0, 0]], [3, [0, 0]]]}).steps.values()

    assert read.calls == (19,)
    assert read.functions["f"].calls == (12, 12)


@pytest.mark.parametrize(
    "changes",
    [
        {"host_calls": None},
        {"host_calls": {**REPORT, "python": "three"}},
        {"host_calls": {**REPORT, "calls": [19, 1]}},
        {"host_calls": {**REPORT, "calls": [19, 2**64, 4]}},
        {"host_calls": {**REPORT, "functions": {"f": {"()": [9, 1, 1]}}}},
        {"host_calls": {**REPORT, "functions": {"f": {"()": [9, -1]}}}},
        {"host_calls": {**REPORT, "functions": {"f" * 2000: {"()": [9, 1]}}}},
        {"host_calls": {**REPORT, "functions": {"f\nPASS": {"()": [9, 1]}}}},
        {"host_calls": {**REPORT, "functions": {}}},
        {"host_calls": {**REPORT, "functions": {"f": {"()": [9, 0]}}}},
        {"host_calls": {**REPORT, "functions": {"f": {"()": [9, 2**64]}}}},
        {"host_calls": {**REPORT, "functions": []}},
        {"host_calls": {**REPORT, "functions": {"f": {"": [9, 1]}}}},
        {"deliveries": []},
        {"deliveries": None},
        {"decode_begins": 0},
        {"decode_begins": True},
        {"decode_begins": 4},
        {"decode_begins": None},
        {"deliveries": [[1, [1, 1]], [2, None], [3, [0, 0]]]},
    ],
    ids=str,
)
def test_a_worker_that_says_something_else_has_not_counted(changes: dict[str, Any]) -> None:
    """Whatever is wrong with it, the trial is invalid."""
    with pytest.raises(InvalidTrialError) as caught:
        read_calls(ANSWER | changes)

    assert caught.value.code == "engine-failed"


def test_too_much_is_refused_before_it_is_looked_at() -> None:
    """A million things that are wrong would take a gigabyte of complaints."""
    functions = dict.fromkeys(map(str, range(MOST_COUNTS + 1)), "")
    with pytest.raises(InvalidTrialError, match=f"{MOST_COUNTS + 1} counts; a step has at most") as caught:
        read_calls(ANSWER | {"host_calls": {**REPORT, "functions": functions}})

    assert len(caught.value.text) < 200
