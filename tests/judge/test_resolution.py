"""What an instrument cannot tell decides nothing: the resolution of every metric, and gates whose values are ties."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from decode_steps import decode, traces
from hand_made import BOTH, cell, codes, gate, iteration, judged, only, record, run, trial, trials

from perfgate import gate as use_cases
from perfgate.judge.cell_verdict import judge
from perfgate.judge.outcome import GateOutcome
from perfgate.machine.telemetry import GpuTelemetry
from perfgate.metrics.catalogue import METRICS, find_metric
from perfgate.metrics.trial import Startup
from perfgate.scenario.expected_kernels import Expectation
from perfgate.trace.decode_step import summarise, tick_of
from perfgate.trace.trace_file import read_trace

TICK_NS = 32
KERNEL_NS = 320 * TICK_NS
"""A role of 10 us, of which a step of the GPU's clock is 0.3 %."""


FROM_FOUR = Expectation.model_validate({"traced": {"looks": [4, 6, 8, 12]}})


def kernels(base: list[int], head: list[int], ignorable: str = "0.1%", must_catch: str = "0.5%") -> GateOutcome:
    """The gate on a role whose kernel times are these numbers of steps longer than :data:`KERNEL_NS`."""
    b, h = (
        [decode([("norm", "rms_norm", KERNEL_NS + TICK_NS * n), ("gemm", "nvjet", 7 * TICK_NS)]) for n in side]
        for side in (base, head)
    )
    measured = cell(gates=[gate("kernel_time_per_step", ignorable, must_catch, role="norm")])
    measured = measured.model_copy(update={"kernels": FROM_FOUR})
    return only(judge(run([measured]), {measured.cell_id: record(measured, traces(b, h))}))


@pytest.mark.needs("kernels")
def test_one_step_of_the_clock_in_six_pairs_is_no_regression() -> None:
    """Six pairs of ties, all of them one step of 0.3 % slower, are not above 0.1 %: the truth may be just below it."""
    found = kernels([0] * 6, [1] * 6)

    assert found.change == pytest.approx(1 / 320)
    assert (found.verdict, codes(found.cautions)) == ("inconclusive", ["near-margins"])
    assert found.change_low is not None
    assert found.change_low < 0
    assert "one step of the instrument is 0.312 %" in found.cautions[0].text


@pytest.mark.needs("kernels")
def test_a_change_within_one_step_is_no_pass() -> None:
    """Identical medians do not exclude 0.5 %, of which a step is more than half."""
    found = kernels([0] * 4, [0] * 4)

    assert found.verdict == "inconclusive"
    assert found.change_high is not None
    assert found.change_high > 1 / 320


@pytest.mark.needs("kernels")
@pytest.mark.parametrize(("steps", "verdict"), [(0, "pass"), (20, "regressed")])
def test_margins_much_wider_than_a_step_are_decided(steps: int, verdict: str) -> None:
    """With margins of 1 and 5 %, sixteen steps apart, ties pass where they are equal and block 6 % above."""
    found = kernels([0] * 6, [steps] * 6, "1%", "5%")

    assert found.verdict == verdict


def test_identical_host_times_pass_with_a_caution() -> None:
    """The host's clock counts nanoseconds, of which a step of 5 ms is far below any margin."""
    found = only(judged(trials([0.0] * 4)))

    assert (found.verdict, codes(found.cautions)) == ("pass", ["near-margins"])


def test_exact_counts_that_differ_in_every_pair_block() -> None:
    """One percent more memory in each of six pairs is a fact: it blocks, and nothing is said of a resolution."""
    sizes = {"base": 16_000_000_000, "head": 16_160_000_000}
    taken = [
        trial(2 * n + place, n, side,
              startup=Startup(import_ns=1, engine_ns=1, ready_ns=3, model_memory_bytes=sizes[side]))
        for n in range(6)
        for place, side in enumerate(BOTH)
    ]  # fmt: skip

    found = only(judged(taken, cell(gates=[gate("model_memory", "0.1%", "0.5%")])))

    assert (found.verdict, found.p, found.cautions) == ("regressed", 0.0, ())


@pytest.mark.parametrize(
    ("times", "tick"),
    [
        ([96, 160], 32),
        ([100, 33], 1),
        ([5_000_000, 10_000_000], 1000),
        ([0, 0], 1),
        ([], 1),
        ([32 * n + n % 3 - 1 for n in range(60, 300)], 32),
        ([1000 * n for n in range(60, 300)], 1000),
        ([10 * n for n in range(60, 300)], 10),
        ([7 * n * n + n for n in range(60, 300)], 1),
    ],
)
def test_the_step_of_a_clock_is_read_from_the_times(times: list[int], tick: int) -> None:
    """It is the longest step that the kernels' times are multiples of, a nanosecond of conversion beside it or not."""
    assert tick_of(np.array(times, np.int64)) == tick


@pytest.mark.parametrize(("file", "tick"), [("h200-llama-8b-decode.sqlite.gz", 32), ("cpu-tiny.torch-2.13.json.gz", 1)])
def test_the_step_of_a_real_clock(file: str, tick: int) -> None:
    """An H200 stamps kernels in steps of 32 ns, of which one in six is a nanosecond off; a CPU's clock shows none."""
    found = summarise(read_trace(Path(__file__).parents[1] / "fixtures" / file))

    assert found.tick_ns == tick


def test_resolution_of_every_metric() -> None:
    """Times have the host's nanosecond, rates that of the time they rest on, energy a millijoule, counts none."""
    one = trial(0, 0, "base", iterations=(iteration(0.005), iteration(0.005)),
                telemetry=(GpuTelemetry.model_construct(gpu="GPU-0", energy_uj=2_000_000),),
                startup=Startup(import_ns=1, engine_ns=1, ready_ns=2 * 10**9, model_memory_bytes=5,
                                kv_token_capacity=7))  # fmt: skip
    expected = {
        "itl_median": 1 / 5e6, "itl_p95": 1 / 5e6, "itl_p99": 1 / 5e6, "tpot_mean": 1 / 5e6, "ttft_median": 1 / 100e6,
        "ttft_p95": 1 / 100e6, "e2e_median": 1 / 110e6, "output_throughput": 1 / 220e6,
        "request_throughput": 1 / 220e6, "start_time": 1 / 2e9,
        "mbu": 1 / 5e6, "mfu": 1 / 5e6, "energy_per_token": 1 / 2000,
    }  # fmt: skip

    found = {name: metric.resolution(one) for name, metric in METRICS.items()}

    assert {name: share for name, share in found.items() if share} == pytest.approx(expected)


@pytest.mark.needs("kernels")
def test_resolution_of_traced_metrics() -> None:
    """Kernel times and rates made of them have the step of the device's clock, the host's work its own nanosecond."""
    steps = decode([("norm", "a", KERNEL_NS), ("gemm", "b", TICK_NS)], slack_ns=64_000, work_ns=2_000_000)
    one = trial(0, 0, "base", kind="traced", decode=steps)

    names = ("kernel_time_per_step[norm]", "kernel_throughput[norm]", "host_slack_per_step", "host_work_per_step")
    found = [find_metric(name).resolution(one) for name in names]

    assert found == pytest.approx([1 / 320, 1 / 320, 1 / 2000, 1 / 2e6])
    assert find_metric("registers[gemm]").resolution(one) == 0.0


def test_a_csv_is_known_to_its_last_digit(tmp_path: Path) -> None:
    """Times in whole milliseconds do not pass a margin of 0.5 % for being equal; with more digits they do."""
    for digits, verdict in (("5", "inconclusive"), ("5.00000", "pass")):
        rows = [f"{n},{side},itl_median,ms,{digits}" for n in range(6) for side in BOTH]
        (tmp_path / "t.csv").write_text("\n".join(["pair,subject,metric,unit,value", *rows]))

        outcome = use_cases.compare_table(tmp_path / "t.csv", [use_cases.parse_gate("itl_median:0.1%:0.5%")])

        assert outcome.verdict == verdict


@pytest.mark.parametrize("pairs", [2, 4])
def test_a_few_pairs_of_a_csv_pass_nothing(tmp_path: Path, pairs: int) -> None:
    """However equal they are: all of four pairs are on the faster of two levels in one table of sixteen."""
    rows = [f"{n},{side},itl_median,ms,{5 + n * 1e-7:.9f}" for n in range(pairs) for side in BOTH]
    (tmp_path / "t.csv").write_text("\n".join(["pair,subject,metric,unit,value", *rows]))

    outcome = use_cases.compare_table(tmp_path / "t.csv", [use_cases.parse_gate("itl_median:10%:50%")])

    found = only(outcome)
    assert (found.verdict, found.pairs, found.change_high) == ("inconclusive", pairs, None)
    assert "no look passes before 5 pairs; no look blocks before 7 pairs" in found.reasons[0].text


def test_modes_are_told_at_four_pairs() -> None:
    """Two of four restarts of the base 2 % above the others have their caution at the first look."""
    steps = [0.005, 0.0051, 0.005000001, 0.005100001]
    taken = trials([0.0001, -0.0001, 0.00005, 0.0], steps)

    found = only(judged(taken))

    assert found.pairs == 4
    assert "times-uneven" in codes(found.cautions)
    assert math.isclose(found.change or 0.0, 0.0, abs_tol=1e-4)
