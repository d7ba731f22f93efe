"""Results of other load drivers are read, held side by side, and never block."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfgate.cli.main import main
from perfgate.errors import NotComparableError, RecordError
from perfgate.judge.comparison import compare_results
from perfgate.record.load_results import read_results

VLLM = {
    "backend": "openai", "request_rate": 10.0, "completed": 40, "request_throughput": 9.5, "output_throughput": 1216.0,
    "mean_ttft_ms": 20.0, "median_ttft_ms": 18.0, "std_ttft_ms": 2.0, "p99_ttft_ms": 40.0, "mean_tpot_ms": 10.5,
    "median_tpot_ms": 10.4, "p99.9_tpot_ms": 12.0, "median_itl_ms": 10.1, "p99_itl_ms": 0, "median_e2el_ms": 1300.0,
    "itls": [[0.01, 0.02]],
}  # fmt: skip
AIPERF = {
    "request_throughput": {"unit": "requests/sec", "avg": 9.5},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 1216.0},
    "time_to_first_token": {"unit": "ms", "avg": 20.0, "p1": 10.0, "p50": 18.0, "p99": 40.0, "std": 2.0, "max": 50.0},
    "inter_token_latency": {"unit": "ms", "avg": 10.5, "p99": 12.0},
    "request_latency": {"unit": "sec", "avg": 1.4, "p50": 1.3},
    "input_config": {"endpoint": {}},
}  # fmt: skip
GUIDELLM = {
    "benchmarks": [
        {"metrics": {
            "requests_per_second": {"successful": {"mean": rate}, "errored": {"mean": 3.0}},
            "output_tokens_per_second": {"successful": {"mean": 128 * rate}},
            "time_to_first_token_ms": {"successful": {"median": 18.0, "percentiles": {"p99": 40.0, "p999": 1}}},
            "inter_token_latency_ms": {"successful": {"mean": 10.5, "percentiles": None}},
            "request_latency": {"successful": {"median": 1.3}},
        }} for rate in (5.0, 9.5)
    ]
}  # fmt: skip
LLAMA: list[dict[str, Any]] = [
    {"n_prompt": 512, "n_gen": 0, "avg_ts": 900.0, "samples_ts": [900.0]},
    {"n_prompt": 0, "n_gen": 128, "avg_ts": 80.0, "stddev_ts": 0.5, "samples_ts": [80.0]},
    {"n_prompt": 0, "n_gen": 128, "n_depth": 4096, "avg_ts": 60.0},
]  # fmt: skip
COMMON = {"request_throughput": 9.5, "output_throughput": 1216.0, "ttft_median": 0.018, "ttft_quantile[p99]": 0.04,
          "tpot_mean": 0.0105, "e2e_median": 1.3}  # fmt: skip


def written(folder: Path, content: Any, name: str = "a.json") -> Path:
    """A result in a file."""
    file = folder / name
    file.write_text(json.dumps(content))
    return file


@pytest.mark.parametrize(
    ("content", "runs"),
    [
        (VLLM, {"vllm bench serve, 10 a second": COMMON | {"tpot_quantile[p99.9]": 0.012, "itl_median": 0.0101}}),
        (AIPERF, {"aiperf": COMMON | {"ttft_quantile[p1]": 0.01, "tpot_quantile[p99]": 0.012}}),
        (GUIDELLM, {"GuideLLM 1": COMMON | {"request_throughput": 5.0, "output_throughput": 640.0},
                    "GuideLLM 2": COMMON}),
        (LLAMA, {"llama-bench tg128": {"output_throughput": 80.0},
                 "llama-bench tg128 @ d4096": {"output_throughput": 60.0}}),
    ],
)  # fmt: skip
def test_a_result_is_read_in_base_units(tmp_path: Path, content: Any, runs: dict[str, dict[str, float]]) -> None:
    """Under the names that the same figures have here; what has none, or is no number, is left out."""
    read = read_results(written(tmp_path, content))
    assert read is not None
    assert read.keys() == runs.keys()
    for name, result in runs.items():
        assert read[name] == pytest.approx(result)


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (VLLM | {"request_rate": "inf", "max_concurrency": 8}, ["vllm bench serve, 8 at once"]),
        (
            {"benchmarks": [{**run, "config": {"strategy": {"rate": 4.0}}} for run in GUIDELLM["benchmarks"]]},
            ["GuideLLM 1, 4 a second", "GuideLLM 2, 4 a second"],
        ),
        (VLLM | {"failed": 3}, ["vllm bench serve, 10 a second, 3 requests failed"]),
        (VLLM | {"failed": 0}, ["vllm bench serve, 10 a second"]),
        (VLLM | {"num_prompts": 100}, ["vllm bench serve, 10 a second, 60 requests failed"]),
        (VLLM | {"failed": 1e308}, ["vllm bench serve, 10 a second, requests failed"]),
        (AIPERF | {"was_cancelled": True}, ["aiperf, cancelled"]),
        (AIPERF | {"error_summary": [{"count": 1}, {"count": 2}]}, ["aiperf, 3 requests failed"]),
        (AIPERF | {"was_cancelled": "no", "error_summary": [7, {}]}, ["aiperf"]),
        (
            {
                "benchmarks": [
                    {
                        "metrics": GUIDELLM["benchmarks"][0]["metrics"] | {"request_totals": {"errored": None}},
                        "request_totals": {"errored": 3},
                    }
                ]
            },
            ["GuideLLM 1, 3 requests failed"],
        ),
        (
            {key: value for key, value in VLLM.items() if key != "completed"} | {"num_prompts": 100},
            ["vllm bench serve, 10 a second"],
        ),
        (
            {"benchmarks": [GUIDELLM["benchmarks"][0] | {"request_totals": {"errored": 2}}]},
            ["GuideLLM 1, 2 requests failed"],
        ),
        (AIPERF | {"error_request_count": {"unit": "requests", "avg": 1.0}}, ["aiperf, 1 request failed"]),
        (
            {
                "benchmarks": [
                    {"metrics": run["metrics"] | {"request_totals": {"errored": lost, "total": 9}}}
                    for run, lost in zip(GUIDELLM["benchmarks"], (0, 2), strict=True)
                ]
            },
            ["GuideLLM 1", "GuideLLM 2, 2 requests failed"],
        ),
    ],
)
def test_runs_of_other_loads_have_other_names(tmp_path: Path, content: Any, names: list[str]) -> None:
    """So that nobody holds ten requests a second against one, nor a run that lost some against one that lost none."""
    assert [*(read_results(written(tmp_path, content)) or {})] == names


def test_runs_that_cannot_be_told_apart_are_refused(tmp_path: Path) -> None:
    """Two of one length with other threads would be one name, and one of them would be lost."""
    twice = [{**LLAMA[1], "n_threads": threads} for threads in (4, 8)]
    with pytest.raises(RecordError, match="holds llama-bench tg128 more than once"):
        read_results(written(tmp_path, twice))


def test_two_results_are_held_side_by_side(tmp_path: Path) -> None:
    """With the changes, and exit status 20: nothing of one run apart from another blocks."""
    files = written(tmp_path, VLLM), written(tmp_path, VLLM | {"median_itl_ms": 20.2}, "b.json")
    shown = CliRunner().invoke(main, ["compare", *map(str, files)])
    assert shown.exit_code == 20, shown.output
    assert re.search(r"differs?, not judged: itl_median .*\+100\.0 %", shown.output), shown.output
    outcome = compare_results(*files)
    assert outcome is not None
    assert (outcome.verdict, outcome.cells[0].name) == ("advisory", "vllm bench serve, 10 a second")


def test_only_results_of_one_tool_are_compared(tmp_path: Path) -> None:
    """Two files of others are left to whoever reads records."""
    result, other, tool = (written(tmp_path, content, f"{number}.json")
                           for number, content in enumerate([VLLM, {"a": 1}, AIPERF]))  # fmt: skip
    with pytest.raises(RecordError, match="not a result of a load driver"):
        compare_results(result, other)
    with pytest.raises(NotComparableError, match=r"holds vllm bench serve, .* holds aiperf"):
        compare_results(result, tool)
    assert compare_results(other, tmp_path / "none.json") is None
    with pytest.raises(RecordError, match="holds no figure that can be compared"):
        read_results(written(tmp_path, {"benchmarks": []}))


KEYS = st.sampled_from(["benchmarks", "metrics", "request_latency", "successful", "percentiles", "p99", "avg", "unit"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)
FRAMES = st.sampled_from([
    lambda x: {**VLLM, "p99_ttft_ms": x, "mean_ttft_ms": x}, lambda x: {**AIPERF, "request_latency": x},
    lambda x: {"benchmarks": [x, {"metrics": {"request_latency": x}}]},
    lambda x: [{"n_prompt": 0, "n_gen": x, "avg_ts": x}, x],
])  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frame=FRAMES, inner=ANYTHING)
def test_whatever_is_in_a_result_has_finite_figures_or_is_refused(tmp_path: Path, frame: Any, inner: Any) -> None:
    """No other error comes of it."""
    try:
        read = read_results(written(tmp_path, frame(inner)))
    except RecordError:
        return
    for result in (read or {}).values():
        assert all(0 < value < float("inf") for value in result.values())
