"""Figures of one result that cannot all be right are named, and none of the run is shown; odd ones are shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from other_results import (
    AIPERF,
    GENAI_PERF,
    GUIDELLM,
    SAMPLES,
    SGLANG,
    VLLM,
    VLLM_LATENCY,
    VLLM_THROUGHPUT,
    Sample,
    placed,
)

from perfgate.imports.result_file import read_runs
from perfgate.imports.two_results import compare_results


def found(folder: Path, text: str) -> str:
    """What is said of the runs of a file with this text."""
    file = folder / "result.json"
    file.write_text(text, encoding="utf-8")
    return "; ".join(said for run in read_runs(file) for said in run.contradictions)


METRICS = "[0].benchmarks[0].metrics"


@pytest.mark.parametrize("name", SAMPLES)
def test_a_whole_result_does_not_contradict_itself(tmp_path: Path, name: str) -> None:
    """Whichever tool wrote it."""
    assert not found(tmp_path, SAMPLES[name].text)


@pytest.mark.parametrize(
    ("sample", "path", "value", "said"),
    [
        (VLLM, "[0].request_throughput", 6.0, "request_throughput is 6, and completed / duration is 5"),
        (VLLM, "[0].output_throughput", 6400, "output_throughput is 6400, and total_output_tokens / duration is 640"),
        (VLLM, "[0].duration", 4.0, "request_throughput is 5, and completed / duration is 50"),
        (SGLANG, "[0].output_throughput", 1350.0, "output_throughput is 1350, and total_output_tokens / duration is 1"),
        (VLLM_THROUGHPUT, "[0].tokens_per_second", 1.0, "tokens_per_second is 1, and total_num_tokens / elapsed_time"),
        (VLLM_THROUGHPUT, "[0].elapsed_time", 5, "requests_per_second is 20, and num_requests / elapsed_time is 200"),
        (AIPERF, "[0].output_token_throughput.avg", 121.6, "is 121.6, and request_throughput.avg * output_sequence"),
        (GENAI_PERF, "[0].request_throughput.avg", 95.0, "output_token_throughput.avg is 1216, and request_throughput"),
        (VLLM_LATENCY, "[0].percentiles.99", 13.2, "percentiles.99 is 13.2, by E2E latencies 1.3198"),
        (VLLM_LATENCY, "[0].avg_latency", 1.0, "avg_latency is 1, by E2E latencies 1.31"),
        (VLLM_LATENCY, "[0].latencies[0]", None, "latencies are not all positive numbers"),
        (VLLM, "[0].mean_tpot_ms", 200.0, "mean of TPOT is 200 ms, and E2E less TTFT is 20 ms for each of 128 tokens"),
        (VLLM, "[0].mean_tpot_ms", 10.0, "mean of TPOT is 10 ms, and E2E less TTFT is 20 ms"),
        (VLLM, "[0].mean_e2el_ms", 9000.0, "mean of TPOT is 20 ms, and E2E less TTFT is 70.47 ms"),
        (VLLM, "[0].mean_ttft_ms", 2000.0, "mean of TPOT is 20 ms, and E2E less TTFT is 4.646 ms"),
        (AIPERF, "[0].inter_token_latency.avg", 1.05, "mean of TPOT is 1.05 ms, and E2E less TTFT is 10.87 ms"),
        (GUIDELLM, f"{METRICS}.request_latency.successful.mean", 13.0, "mean of TPOT is 10 ms, and E2E less TTFT is 1"),
        (VLLM, "[0].median_ttft_ms", 95.0, "p99 of TTFT is 90 ms, below its median of 95 ms"),
        (VLLM, "[0].p99_e2el_ms", 270.0, "p99 of E2E is 270 ms, below its median of 2580 ms"),
        (SGLANG, "[0].median_e2e_latency_ms", 280.0, "median of E2E is 280 ms, below that of TTFT, 290 ms"),
        (SGLANG, "[0].mean_ttft_ms", 30.0, "median of TTFT is 290 ms, more than twice its mean of 30 ms"),
    ],
)  # fmt: skip
def test_figures_that_cannot_all_be_right_are_named(
    tmp_path: Path, sample: Sample, path: str, value: Any, said: str
) -> None:
    """With both numbers; the run is not compared and none of its figures is shown."""
    text = Sample("", placed(sample.documents, path, value), "", {}, "").text
    assert said in found(tmp_path, text)
    files = tmp_path / "result.json", tmp_path / "base.json"
    files[1].write_text(sample.text)
    for pair in (files, files[::-1]):
        outcome = compare_results(*pair)
        assert outcome is not None
        assert outcome.exit_status == 21
        assert not outcome.cells[0].ungated
        (note,) = (note for note in outcome.cells[0].reasons if "contradicts itself" in note.text)
        assert said in note.text
        assert str(files[0]) in note.text


ODD: list[dict[str, Any]] = [
    {"request_throughput": 5.02, "output_throughput": 643.0},
    {"mean_tpot_ms": 24.0, "p99_tpot_ms": 30.0},
    {"median_ttft_ms": 45.0, "p99_ttft_ms": 44.8},
    {"mean_tpot_ms": 60.0, "median_tpot_ms": 21.0, "p99_tpot_ms": 900.0},
    {"mean_e2el_ms": ..., "mean_tpot_ms": 40.0},
    {"p99_tpot_ms": ..., "mean_tpot_ms": 40.0},
    {"mean_ttft_ms": ..., "median_ttft_ms": 85.0},
    {"duration": ..., "request_throughput": 7.0},
    {"duration": "40", "request_throughput": 7.0},
    {"mean_tpot_ms": 12.0, "median_tpot_ms": 11.0, "p99_tpot_ms": 26.0},
    {"total_output_tokens": 400, "output_throughput": 10.0, "mean_tpot_ms": 900.0, "p99_tpot_ms": 990.0},
]


@pytest.mark.parametrize("values", ODD)
def test_what_a_load_may_do_is_no_contradiction(tmp_path: Path, values: dict[str, Any]) -> None:
    """Rounding, requests that differ much, answers of two tokens, and files that say too little to tell."""
    assert not found(tmp_path, VLLM.changed(**values))


REAL: list[dict[str, Any]] = [
    # sgl-project/sglang#12389: without streaming, TTFT and ITL are 0.
    {"duration": 91.82476212800248, "completed": 300, "total_input_tokens": 75000000, "total_output_tokens": 300000,
     "request_throughput": 3.267092590795978, "output_throughput": 3267.0925907959777,
     "mean_e2e_latency_ms": 4760.202868748844, "median_e2e_latency_ms": 4825.5520130333025,
     "p99_e2e_latency_ms": 5812.809163999625, "mean_ttft_ms": 0.0, "median_ttft_ms": 0.0, "p99_ttft_ms": 0.0,
     "mean_tpot_ms": 4.76496783658543, "median_tpot_ms": 4.830382395428731, "p99_tpot_ms": 5.818627791791416,
     "mean_itl_ms": 0.0, "median_itl_ms": 0.0, "p95_itl_ms": 0.0, "p99_itl_ms": 0.0},
    # The cookbook of DeepSeek-OCR: answers of several lengths, printed to two digits.
    {"duration": 4.45, "completed": 10, "total_input_tokens": 1972, "total_output_tokens": 2784,
     "request_throughput": 2.25, "output_throughput": 625.26, "mean_e2e_latency_ms": 443.32,
     "median_e2e_latency_ms": 493.29, "mean_ttft_ms": 21.59, "median_ttft_ms": 20.89,
     "p99_ttft_ms": 24.81, "mean_tpot_ms": 1.47, "median_tpot_ms": 1.52, "p99_tpot_ms": 1.53, "mean_itl_ms": 1.52,
     "median_itl_ms": 1.51, "p95_itl_ms": 1.76, "p99_itl_ms": 1.93},
]  # fmt: skip
"""Figures of public reports, as far as they give them."""


@pytest.mark.parametrize("values", REAL)
def test_public_results_do_not_contradict_themselves(tmp_path: Path, values: dict[str, Any]) -> None:
    """Such as they were reported."""
    assert not found(tmp_path, json.dumps(SGLANG.documents[0] | values))
