"""How a trial becomes one number, and how numbers are written for people."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from hand_made import trial
from hypothesis import given
from hypothesis import strategies as st

from perfgate import rooms
from perfgate.errors import UsageError
from perfgate.machine.telemetry import GpuTelemetry
from perfgate.metrics.catalogue import (
    COLD_START,
    KEYED_METRICS,
    METRICS,
    PART_METRICS,
    find_metric,
    metric_names,
    trial_value,
)
from perfgate.metrics.summaries import step_median
from perfgate.metrics.trial import Iteration, Startup, Trial
from perfgate.trace.decode_step import DecodeSteps
from perfgate.units import UNIT_SCALE, Unit, format_value, parse_quantity

MS = 1_000_000


def iteration(
    ttft_ns: tuple[int, ...], e2e_ns: tuple[int, ...], itl_ns: tuple[int, ...], tokens: int, elapsed_ns: int
) -> Iteration:
    """One iteration of a made-up trial."""
    return Iteration(ttft_ns=ttft_ns, e2e_ns=e2e_ns, itl_ns=itl_ns, output_tokens=tokens, elapsed_ns=elapsed_ns,
                     tokens_digest="", begin_ns=0)  # fmt: skip


def startup(ready_ns: int, model_memory_bytes: int | None, kv_token_capacity: int | None) -> Startup:
    """Start-up costs of a made-up trial."""
    return Startup(import_ns=0, engine_ns=0, ready_ns=ready_ns, model_memory_bytes=model_memory_bytes,
                   kv_token_capacity=kv_token_capacity)  # fmt: skip


def made(model: Any, **fields: Any) -> Any:
    """A model with these fields alone, which are not checked."""
    return model.model_construct(**fields)


def gpus(*energies_uj: int | None) -> tuple[GpuTelemetry, ...]:
    """What made-up GPUs took."""
    return tuple(made(GpuTelemetry, energy_uj=energy_uj) for energy_uj in energies_uj)


def trial_of(*iterations: Iteration, started: Startup | None = None) -> Trial:
    """A made-up trial."""
    return trial(0, 0, "base", iterations=iterations, startup=started)


def changed(measured: Trial, **changes: Any) -> Trial:
    """The same trial but for these fields, which are not checked."""
    return measured.model_copy(update=changes)


TRIAL = changed(
    trial_of(
        iteration((10 * MS, 12 * MS), (40 * MS, 45 * MS), (9 * MS, 10 * MS, 17 * MS), 5, 45 * MS),
        iteration((11 * MS, 13 * MS), (41 * MS, 47 * MS), (8 * MS, 11 * MS, 12 * MS), 5, 47 * MS),
        iteration((50 * MS, 90 * MS), (80 * MS, 120 * MS), (7 * MS, 30 * MS, 90 * MS), 5, 120 * MS),
        started=startup(7_500 * MS, 2**30, 12_345),
    ),
    telemetry=gpus(45_000_000, 15_000_000),
    figures={COLD_START: 6_500 * MS},
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ttft_median", 0.012),  # medians 11, 12, 70 ms
        ("itl_median", 0.011),  # medians 10, 11, 30 ms
        ("e2e_median", 0.044),  # medians 42.5, 44, 100 ms
        ("tpot_mean", (0.0315 + 0.032 + 0.03) / 3 / 4),  # decode of 31.5, 32, 30 ms a request, four tokens each
        ("output_throughput", 30 / 0.212),
        ("start_time", 7.5),
        (COLD_START, 6.5),
        ("model_memory", 2.0**30),
        ("kv_token_capacity", 12_345.0),
        ("energy_per_token", 2.0),  # 45 and 15 J on two GPUs for 3 iterations of 2 requests of 5 tokens
    ],
)
def test_values_agree_with_those_worked_out_by_hand(name: str, value: float) -> None:
    """Each metric of a trial of three iterations is what pencil and paper say."""
    assert trial_value(name, TRIAL) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(("name", "field", "percent"), [("itl_p95", "itl_ns", 95), ("itl_p99", "itl_ns", 99),
                                                        ("ttft_p95", "ttft_ns", 95)])  # fmt: skip
def test_percentiles_pool_all_iterations(name: str, field: str, percent: int) -> None:
    """Tails are taken over every value of the trial, interpolated linearly between order statistics."""
    pooled = sorted(v for i in TRIAL.iterations for v in getattr(i, field))
    place = (len(pooled) - 1) * percent / 100
    low, share = math.floor(place), place - math.floor(place)
    expected = (pooled[low] * (1 - share) + pooled[min(low + 1, len(pooled) - 1)] * share) / 1e9
    assert trial_value(name, TRIAL) == pytest.approx(expected, rel=1e-12)


TRACED = changed(
    TRIAL,
    decode=made(
        DecodeSteps,
        slack_ns=(None, 4_000, -2_000, 3_000, 9_000),
        work_ns=(*range(9_000, 2_000, -700), None, 99_000),
        role_ns={"gemm": (400, 420, 410, 9_000, 405), "norm": (7, 8)},
    ),
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("host_slack_per_step", 3.5e-6),  # -2, 3, 4, 9 us
        ("host_work_per_step", 3.4e-6),  # the second smallest of eleven
        ("kernel_time_per_step[gemm]", 410e-9),
        ("kernel_time_per_step[norm]", 7.5e-9),
        ("kernel_throughput[gemm]", 2 / 410e-9),  # a batch of two
    ],
)
def test_metrics_of_traces_are_quantiles_over_steps(name: str, value: float) -> None:
    """Steps whose slack is unknown do not count, and one disturbed step moves nothing."""
    assert trial_value(name, TRACED) == pytest.approx(value, rel=1e-12)
    assert trial_value(name, TRIAL) is None
    assert find_metric(name).kind == "traced"


def test_a_role_that_did_not_run_has_no_time() -> None:
    """No kernel of a role is None, not zero seconds; nor has a trace without iterations a throughput."""
    assert trial_value("kernel_time_per_step[rope]", TRACED) is None
    assert trial_value("kernel_throughput[gemm]", changed(TRACED, iterations=())) is None


@pytest.mark.parametrize(("name", "room"), [("request_throughput", "load"), ("ttft_quantile[p99]", "load")])
def test_a_metric_of_a_removed_room_is_refused_by_name(name: str, room: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result, a night or a plant that names it is not read without it."""
    for table in (METRICS, KEYED_METRICS):
        for metric in [metric for metric in table if rooms.home("metrics", metric) == room]:
            monkeypatch.delitem(table, metric)
    with pytest.raises(UsageError, match=f"the room '{room}'"):
        find_metric(name)


@pytest.mark.parametrize("name", ["itl_median[gemm]", "kernel_time_per_step", "kernel_time_per_step[gemm", "speed"])
def test_no_such_metric(name: str) -> None:
    """A role stands in brackets, beside the metrics that are measured by role and no others."""
    with pytest.raises(KeyError):
        find_metric(name)


def test_a_gpu_that_does_not_tell_its_energy_leaves_no_energy() -> None:
    """A sum over some of the GPUs would be a number for something else; on the CPU there is none either."""
    for telemetry in (gpus(), gpus(45_000_000, None)):
        assert trial_value("energy_per_token", changed(TRIAL, telemetry=telemetry)) is None


def test_one_disturbed_iteration_does_not_move_a_median() -> None:
    """Nested medians ignore how far the worst of three iterations lies."""
    worse = TRIAL.iterations[2].model_copy(update={"itl_ns": (10**12,) * 3, "ttft_ns": (10**12,) * 2})
    disturbed = changed(TRIAL, iterations=(*TRIAL.iterations[:2], worse))
    for name in ("itl_median", "ttft_median"):
        assert trial_value(name, disturbed) == trial_value(name, TRIAL)


def test_a_trial_without_iterations_or_start_up_has_no_values() -> None:
    """Nothing measured is None for every metric, never zero and never a crash."""
    assert {name: trial_value(name, trial_of()) for name in METRICS} == dict.fromkeys(METRICS)


def test_a_step_with_several_tokens_is_longer_than_the_time_of_one() -> None:
    """Its time is that of all of them; a record that does not hold it has none."""
    one = iteration((10,), (20,), (5_000_000,), 3, 20)
    several = one.model_copy(update={"multi_token": True, "step_ns": 12_500_000})
    unknown = one.model_copy(update={"multi_token": True})
    steps = [step_median(trial(0, 0, "base", iterations=own)) for own in ((one,), (several,), (one, unknown), ())]
    assert steps == [0.005, 0.0125, None, None]
    short = unknown.model_copy(update={"itl_ns": ()})
    assert step_median(trial(0, 0, "base", iterations=(several, short))) == 0.0125


def test_too_few_tokens_have_no_inter_token_latency() -> None:
    """One token has neither a gap nor a time per further token, but a time to first token."""
    short = trial_of(iteration((5 * MS,), (5 * MS,), (), 1, 5 * MS))
    assert [trial_value(n, short) for n in ("itl_median", "itl_p95", "itl_p99", "tpot_mean")] == [None] * 4
    assert trial_value("ttft_median", short) == pytest.approx(0.005)


def test_what_the_engine_does_not_tell_has_no_value() -> None:
    """Memory and capacity are None where the engine keeps them to itself."""
    silent = trial_of(started=startup(1, None, None))
    assert trial_value("model_memory", silent) is None
    assert trial_value("kv_token_capacity", silent) is None


def test_an_unknown_metric_is_a_key_error() -> None:
    """Names are checked where scenarios are read; here they must exist."""
    with pytest.raises(KeyError):
        trial_value("speed", TRIAL)


NS = st.integers(min_value=1, max_value=10**12)


@st.composite
def made_up(draw: st.DrawFn) -> Trial:
    """Trials of one to five iterations of two requests."""
    iterations = []
    for _ in range(draw(st.integers(1, 5))):
        first, decode = (draw(NS), draw(NS)), (draw(NS), draw(NS))
        last = (first[0] + decode[0], first[1] + decode[1])
        gaps = tuple(draw(st.lists(NS, min_size=1, max_size=6)))
        iterations.append(iteration(first, last, gaps, draw(st.integers(3, 50)), max(last)))
    return trial_of(*iterations, started=startup(draw(NS), draw(st.none() | NS), draw(st.none() | NS)))


TIMES = [
    n
    for n, m in METRICS.items()
    if m.unit == "s" and m.kind == "timed" and n not in ("start_time", COLD_START, "queue_time")
]


@given(made_up(), st.integers(2, 1000))
def test_times_scale_with_the_clock_and_throughput_against_it(one: Trial, factor: int) -> None:
    """A machine k times slower has k times the latencies and a k-th of the throughput."""
    slower = trial_of(
        *(
            iteration(
                tuple(v * factor for v in i.ttft_ns),
                tuple(v * factor for v in i.e2e_ns),
                tuple(v * factor for v in i.itl_ns),
                i.output_tokens,
                i.elapsed_ns * factor,
            )
            for i in one.iterations
        )
    )
    for name in TIMES:
        assert trial_value(name, slower) == pytest.approx(factor * (trial_value(name, one) or 0), rel=1e-9)
    throughput = trial_value("output_throughput", one)
    assert throughput is not None
    assert trial_value("output_throughput", slower) == pytest.approx(throughput / factor, rel=1e-9)


@given(made_up(), st.randoms(use_true_random=False))
def test_the_order_of_iterations_does_not_matter(one: Trial, shuffler: random.Random) -> None:
    """A trial's summary is the same in whatever order its iterations ran."""
    order = list(one.iterations)
    shuffler.shuffle(order)
    shuffled = changed(one, iterations=tuple(order))
    for name in (*TIMES, "output_throughput"):
        assert trial_value(name, shuffled) == pytest.approx(trial_value(name, one) or 0, rel=1e-12)


@given(made_up())
def test_summaries_lie_between_the_smallest_and_the_largest_value(one: Trial) -> None:
    """No median or percentile leaves the range of what was measured, and tails are ordered."""
    gaps = np.array([v for i in one.iterations for v in i.itl_ns]) / 1e9
    median, p95, p99 = (trial_value(n, one) or 0.0 for n in ("itl_median", "itl_p95", "itl_p99"))
    tolerance = 1e-12 * gaps.max()
    assert gaps.min() - tolerance <= median <= gaps.max() + tolerance
    assert p95 <= p99 + tolerance
    assert p99 <= gaps.max() + tolerance


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.005357, "s", "5.357 ms"),
        (0.0053, "s", "5.300 ms"),
        (0.0879, "s", "87.90 ms"),
        (0.8791, "s", "879.1 ms"),
        (0.99996, "s", "1.000 s"),
        (1.0, "s", "1.000 s"),
        (41.2, "s", "41.20 s"),
        (123.4, "s", "123.4 s"),
        (12345.6, "s", "12346 s"),
        (4.2e-6, "s", "4.200 us"),
        (4.2e-9, "s", "0.004200 us"),
        (0.0, "s", "0 us"),
        (-0.0053, "s", "-5.300 ms"),
        (1493.2, "tok/s", "1493 tok/s"),
        (99.5, "tok/s", "99.50 tok/s"),
        (123456.7, "tok/s", "123457 tok/s"),
        (0.0, "tok/s", "0 tok/s"),
        (16.1e9, "B", "14.99 GiB"),
        (2.0**30, "B", "1.000 GiB"),
        (2.0**30 - 1, "B", "1.000 GiB"),
        (1536.0, "B", "1.500 KiB"),
        (512.0, "B", "512 B"),
        (0.0, "B", "0 B"),
        (12345.0, "tok", "12345 tok"),
        (500.0, "tok", "500 tok"),
        (500.5, "tok", "500.5 tok"),
        (math.nan, "s", "nan us"),
        (math.inf, "s", "inf s"),
        (0.60712, "ratio", "60.71 %"),
        (0.0, "ratio", "0 %"),
        (math.nan, "tok", "nan tok"),
        (math.inf, "B", "inf GiB"),
    ],
)
def test_values_are_written_with_four_digits_and_a_fitting_unit(value: float, unit: Unit, text: str) -> None:
    """Small values get small units, trailing zeros stay, and things that are counted have no decimals."""
    assert format_value(value, unit) == text


@given(st.floats(min_value=1e-5, max_value=1e6))
def test_a_written_time_reads_back_within_its_four_digits(value: float) -> None:
    """What format_value writes, parse_quantity reads, to half of the last of four digits."""
    assert parse_quantity(format_value(value, "s"))[0] == pytest.approx(value, rel=5.1e-4)


def test_each_metric_has_a_meaning_a_unit_and_a_direction() -> None:
    """The table is complete, keyed by name, and promises nothing twice."""
    families = {name: family.of("gemm") for name, family in PART_METRICS.items()}
    for name, metric in (METRICS | families).items():
        assert metric.name == (f"{name}[gemm]" if name in families else name)
        assert metric.meaning
        assert metric.sign == (1 if metric.better == "lower" else -1)
        assert metric.unit in {unit for unit, _ in UNIT_SCALE.values()}
    assert len({*metric_names()}) == len(metric_names())
