"""What was recorded on a real GPU is read and judged as it was there."""

from __future__ import annotations

import csv
import itertools
import json
import statistics
from collections import defaultdict
from pathlib import Path

import pytest

from perfgate import gate
from perfgate.capture.timeline import read_iteration
from perfgate.judge.rule import Series, judge_series
from perfgate.record.csv_table import read_table
from perfgate.scenario.declaration import load
from perfgate.scenario.plan import ALPHA, BETA, GatePlan
from perfgate.scenario.workload import Workload
from perfgate.stats.sequential import Schedule

FIXTURES = Path(__file__).parents[1] / "fixtures"
LLAMA = load(Path(__file__).parents[2] / "scenarios" / "llama-8b-decode.yaml")
GATES = [GatePlan(gate=gate, where="") for gate in LLAMA.scenario.gates]
TIGHT = load(Path(__file__).parents[2] / "scenarios" / "llama-8b-decode-tight.yaml")


def test_a_real_timeline_of_asynchronous_scheduling() -> None:
    """An empty first return, a prefill over three deliveries and stragglers at the end leave 124 pure decode steps."""
    answer = json.loads((FIXTURES / "h200-vllm-0.25.1-iteration.json").read_text())

    assert isinstance(LLAMA.scenario.workload, Workload)
    iteration = read_iteration(answer, LLAMA.scenario.workload)

    times = [t_ns for t_ns, _ in answer["deliveries"]]
    full = [t_ns for t_ns, tokens in answer["deliveries"] if all(tokens)]
    first_full = next(n for n, (_, tokens) in enumerate(answer["deliveries"]) if all(tokens))
    assert [answer["deliveries"][n][1].count(1) for n in range(first_full + 1)] == [0, 4, 7, 8]
    assert list(iteration.itl_ns) == [b - a for a, b in itertools.pairwise(full[1:])]
    assert len(iteration.itl_ns) == 124
    assert iteration.ttft_ns[0] == times[1] - answer["submitted_ns"][0]
    assert iteration.ttft_ns[7] == times[3] - answer["submitted_ns"][7]
    assert sorted(iteration.itl_ns)[62] == pytest.approx(5.23e6, rel=0.01)


@pytest.mark.parametrize(
    ("recording", "verdicts"),
    [("same-build", ["pass", "pass", "pass"]), ("extra-kernel", ["regressed", "regressed", "pass"])],
)
def test_real_restarts_are_judged_as_they_were(recording: str, verdicts: list[str]) -> None:
    """Ten pairs of one build pass; one more kernel a layer (+0.9 %) blocks by ITL and TPOT, as a table and as a run."""
    file = FIXTURES / f"h200-llama-8b-{recording}.csv"
    metrics = read_table(file).metrics
    run = [
        Series(gate, metrics[gate.gate.metric].base, metrics[gate.gate.metric].head, Schedule((10,), (0.8,), (0.8,)))
        for gate in GATES
    ]

    (table,) = gate.compare_table(file, GATES, "randomised").cells

    assert [judged.verdict for judged in judge_series(run, ALPHA, BETA)] == verdicts
    assert [(judged.verdict, judged.pairs) for judged in table.gates] == [(verdict, 10) for verdict in verdicts]


def step_times(run: str, file: str = "h200-llama-8b-iterations.csv") -> tuple[tuple[float, ...], ...]:
    """Seconds a step of the base and of the head in each pair of a run: the median of the medians of iterations."""
    times: dict[tuple[str, int], list[float]] = defaultdict(list)
    with (FIXTURES / file).open(newline="") as stream:
        for row in csv.DictReader(stream):
            if row["run"] == run and row["pair"]:
                times[row["subject"], int(row["pair"])].append(int(row["itl_ns"]) * 1e-9)
    return tuple(
        tuple(statistics.median(times[key]) for key in sorted(times) if key[0] == side) for side in ("base", "head")
    )


@pytest.mark.parametrize(
    ("run", "verdict", "change", "low", "high"),
    [
        ("twelve pairs, same build", "pass", -0.004, -0.060, 0.034),
        ("twelve pairs, kernel in every third layer", "regressed", 0.240, 0.156, 0.297),
    ],
)
def test_twelve_pairs_at_the_tight_margins(run: str, verdict: str, change: float, low: float, high: float) -> None:
    """One look at twelve pairs tells +0.24 % from nothing with margins of 0.02 and 0.15 %, as it did on the H200."""
    (gate,) = TIGHT.scenario.gates
    base, head = step_times(run)
    schedule = Schedule((12,), (0.8,), (0.8,))

    (judged,) = judge_series([Series(GatePlan(gate=gate, where=""), base, head, schedule)], ALPHA, BETA)

    assert (judged.verdict, judged.pairs) == (verdict, 12)
    assert judged.change is not None
    assert pytest.approx(change, abs=0.001) == judged.change * 100
    assert judged.change_low is not None
    assert pytest.approx(low, abs=0.001) == judged.change_low * 100
    assert judged.change_high is not None
    assert pytest.approx(high, abs=0.001) == judged.change_high * 100


def test_a_gpu_with_two_states_blocks_no_unchanged_build() -> None:
    """A GPU that jumped between levels 3.4 % apart passes one build on both sides, and the levels are told."""
    base, head = step_times("jumps, same build", "h200-llama-8b-two-states.csv")

    (judged,) = judge_series([Series(GATES[0], base, head, LLAMA.scenario.measure.schedule)], ALPHA, BETA)

    assert (judged.verdict, judged.passed_at, judged.pairs) == ("pass", 6, 6)
    modes = [caution.text for caution in judged.cautions if caution.code == "times-uneven"]
    assert modes == [f"2 of 6 restarts of {side} lie +{above} % above the others"
                     for side, above in (("base", "3.55"), ("head", "3.44"))]  # fmt: skip


def test_pairs_of_different_states_decide_nothing() -> None:
    """Where the sides of two pairs in six were on different levels, +0.85 % is neither blocked nor passed."""
    base, head = step_times("jumps, second host, extra kernel", "h200-llama-8b-two-states.csv")

    (judged,) = judge_series([Series(GATES[0], base, head, LLAMA.scenario.measure.schedule)], ALPHA, BETA)

    assert (judged.verdict, judged.pairs) == ("inconclusive", 6)
    assert {caution.code for caution in judged.cautions} >= {"times-uneven"}


@pytest.mark.needs("kernels")
def test_kernel_times_of_one_build_repeat_to_parts_in_ten_thousand() -> None:
    """Eight traced pairs of an H200 pass margins of 0.05 and 0.2 % on gemm, and nine could block 0.08 %."""
    gates = [gate.parse_gate(f"kernel_time_per_step[{role}]:{margins}") for role, margins in
             (("gemm", "0.05%:0.2%"), ("attention", "0.1%:0.5%"), ("norm", "0.1%:0.5%"))]  # fmt: skip

    # Each pair is of a run of its own, whose seed was drawn anew.
    (cell,) = gate.compare_table(FIXTURES / "kernel-times-h200.csv", gates, "randomised").cells

    assert [(one.verdict, one.pairs) for one in cell.gates] == [("pass", 8)] * 3
    assert cell.gates[0].detectable_at == 9
    assert cell.gates[0].detectable == pytest.approx(0.00084, abs=0.00001)
