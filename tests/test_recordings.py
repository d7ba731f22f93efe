"""What was recorded on a real GPU is read and judged as it was there."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from perfgate.capture.timeline import read_iteration
from perfgate.judge import Series, judge_series
from perfgate.plan import ALPHA, BETA, GatePlan
from perfgate.scenario import load
from perfgate.table import read_table

FIXTURES = Path(__file__).with_name("fixtures")
LLAMA = load(Path(__file__).parents[1] / "scenarios" / "llama-8b-decode.yaml")
GATES = [GatePlan(gate=gate, where="") for gate in LLAMA.scenario.gates]


def test_a_real_timeline_of_asynchronous_scheduling() -> None:
    """An empty first return, a prefill over three deliveries and stragglers at the end leave 124 pure decode steps."""
    answer = json.loads((FIXTURES / "h200-vllm-0.25.1-iteration.json").read_text())

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
    ("recording", "pairs", "verdicts"),
    [
        ("same-build", 4, ["pass", "pass", "pass"]),
        ("extra-kernel", 6, ["regressed", "pass", "pass"]),
    ],
)
def test_real_restarts_are_judged_as_they_were(recording: str, pairs: int, verdicts: list[str]) -> None:
    """Unchanged code passes at four pairs; one more kernel a layer (+0.9 %) blocks at six, by ITL alone."""
    table = read_table(FIXTURES / f"h200-llama-8b-{recording}.csv")
    schedule = LLAMA.scenario.measure.schedule
    from_record = [
        Series(gate, table.metrics[gate.gate.metric].base, table.metrics[gate.gate.metric].head, schedule)
        for gate in GATES
    ]

    judged = judge_series(from_record, ALPHA, BETA)

    assert [gate.verdict for gate in judged] == verdicts
    assert {gate.pairs for gate in judged} == {pairs}
