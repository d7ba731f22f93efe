"""What the requests of a server's windows come to."""

from __future__ import annotations

import pytest
from hand_made import trial
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from perfgate.judge.machine_states import follows_states
from perfgate.load.under_load import Slo, read_objective, write_objective
from perfgate.metrics.catalogue import KEYED_METRICS, find_metric, trial_value
from perfgate.metrics.trial import Iteration, Trial

MS = 1_000_000


def window(*requests: tuple[int, int, int], elapsed_ms: int = 1000) -> Iteration:
    """A window of requests: time to first token and to the last one in ms, and tokens."""
    ttft, e2e, lengths = zip(*requests, strict=True)
    return Iteration(
        ttft_ns=tuple(t * MS for t in ttft), e2e_ns=tuple(t * MS for t in e2e), itl_ns=(5 * MS, 10 * MS),
        output_tokens=0, lengths=lengths, elapsed_ns=elapsed_ms * MS, tokens_digest="", begin_ns=7,
    )  # fmt: skip


def served(*windows: Iteration, **figures: int) -> Trial:
    """A trial of windows."""
    return trial(0, 0, "base", iterations=windows, figures=figures)


TRIAL = served(
    window((100, 190, 10), (200, 200, 1)),
    window((300, 700, 41), elapsed_ms=2000),
    queue_ns=6 * MS, queued=3, preemptions=2, prefix_hits=25, prefix_queries=100, drafts_accepted=30,
    drafts=40, kv_use_ppm=125_000,
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ttft_quantile[p50]", 0.2),
        ("ttft_quantile[p75]", 0.25),
        ("e2e_quantile[p50]", 0.2),
        ("tpot_quantile[p50]", 0.01),  # 90 ms / 9 and 400 ms / 40; one token has none
        ("itl_quantile[p99.9]", 0.01),
        ("tpot_mean", 0.01),
        ("output_throughput", 52 / 3),
        ("request_throughput", 1.0),  # three in 3 s
        ("goodput[ttft<=250ms]", 2 / 3),
        ("goodput[ttft<=200ms,tpot<=9ms]", 1 / 3),  # the request of one token has no time per token to miss
        ("goodput[e2e<=1ms]", 0.0),
        ("queue_time", 0.002),
        ("preemptions", 2.0),
        ("prefix_hit_share", 0.25),
        ("draft_acceptance", 0.75),
        ("kv_use", 0.125),
    ],
)
def test_values_agree_with_those_worked_out_by_hand(name: str, value: float) -> None:
    """Three requests in two windows are what pencil and paper say."""
    assert trial_value(name, TRIAL) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    "name", ["request_throughput", "queue_time", "preemptions", "prefix_hit_share", "draft_acceptance", "kv_use"]
)
def test_batches_have_no_figures_of_a_server(name: str) -> None:
    """A trial of the engine's own loop carries none of them."""
    assert trial_value(name, trial(0, 0, "base")) is None


@pytest.mark.parametrize(
    "name",
    ["goodput", "goodput[ttft]", "goodput[ttft<=1MiB]", "goodput[ttft<=1s,ttft<=2s]", "goodput[queue<=1s]",
     "ttft_quantile[99]", "ttft_quantile[p100]", "ttft_quantile[p0]", "ttft_median[p99]"],
)  # fmt: skip
def test_a_name_with_another_parameter_names_nothing(name: str) -> None:
    """Such a metric is not known, as one that is misspelt."""
    with pytest.raises(KeyError):
        find_metric(name)


@given(st.dictionaries(st.sampled_from(["ttft", "tpot", "e2e"]), st.integers(1, 10**16), min_size=1))
def test_an_objective_is_read_as_it_was_written(bounds_ns: dict[str, int]) -> None:
    """From a nanosecond to months nothing is lost, in whatever order they were named."""
    bounds = {name: ns / 1e9 for name, ns in bounds_ns.items()}
    assert read_objective(write_objective(Slo.model_construct(None, **bounds))) == pytest.approx(bounds, rel=1e-9)


def test_a_window_has_a_length_for_each_request() -> None:
    """Neither fewer lengths than requests, nor both lengths and one length of all."""
    one = window((1, 2, 3))
    for wrong in ({"lengths": (3, 4)}, {"output_tokens": 3}):
        with pytest.raises(ValidationError, match="a length for each"):
            Iteration.model_validate({**one.model_dump(), **wrong})


def test_lengths_are_written_only_where_there_are_some() -> None:
    """So records of batches keep their digest."""
    plain = Iteration(ttft_ns=(1,), e2e_ns=(2,), itl_ns=(), output_tokens=2, elapsed_ns=2, tokens_digest="", begin_ns=0)
    assert "lengths" not in plain.model_dump()
    assert (plain.tokens, window((1, 2, 3)).tokens) == ((2,), (3,))


def test_readings_of_a_window_under_load_are_of_all_of_it() -> None:
    """Requests decode from its beginning, whoever still waits for a first token."""
    assert window((100, 190, 10)).window == (7, 7, 7 + 1000 * MS)


def test_quantiles_of_a_server_follow_the_states() -> None:
    """All of them but the time to the first token, which is prefill."""
    follow = {name: follows_states(own.of("p99")) for name, own in KEYED_METRICS.items() if name != "goodput"}
    assert follow == {"ttft_quantile": False, "itl_quantile": True, "tpot_quantile": True, "e2e_quantile": True}
