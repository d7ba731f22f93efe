"""Every setting that two results have is compared, known to perfgate or not; figures, builds and places are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from changed_results import compared, said, with_value
from other_results import AIPERF, GUIDELLM, LLAMA_BENCH, SAMPLES, SGLANG, VLLM, VLLM_LATENCY, Sample

from perfgate.errors import RecordError
from perfgate.imports.two_results import compare_results


@pytest.mark.parametrize(
    ("sample", "path", "values", "words"),
    [
        (VLLM, "[0].tensor_parallel_size", (1, 8), "tensor_parallel_size 1 and 8"),
        (VLLM, "[0].tp", ("1", "8"), "tp 1 and 8"),
        (VLLM, "[0].quantization", (None, "fp8"), "quantization null and fp8"),
        (VLLM, "[0].gpu_memory_utilization", (None, 0.5), "gpu_memory_utilization null and 0.5"),
        (VLLM, "[0].pipeline_parallel_size", (2, 1.5), "pipeline_parallel_size 2 and 1.5"),
        (VLLM, "[0].enforce_eager", (True, False), "enforce_eager true and false"),
        (VLLM, "[0].max_model_len", (4096, 8192), "max_model_len 4096 and 8192"),
        (VLLM, "[0].engine", ({"dtype": "bf16"}, {"dtype": "fp8"}), "engine.dtype bf16 and fp8"),
        (VLLM_LATENCY, "[0].batch_size", (8, 16), "batch_size 8 and 16"),
        (SGLANG, "[0].server_info.tp_size", (1, 4), "server_info.tp_size 1 and 4"),
        (SGLANG, "[0].server_info.quantization", ("awq", "fp8"), "server_info.quantization awq and fp8"),
        (SGLANG, "[0].server_info.kv_cache_dtype", ("auto", "fp8"), "server_info.kv_cache_dtype auto and fp8"),
        (GUIDELLM, "[0].benchmarks[0].config.constraints", ({"max_requests": 5}, {"max_requests": 9}),
         "config.constraints.max_requests 5 and 9"),
        (GUIDELLM, "[0].gpu", ("H100", "H200"), "gpu H100 and H200"),
        (AIPERF, "[0].tensor_parallel_size", (1, 8), "tensor_parallel_size 1 and 8"),
        (LLAMA_BENCH, "[0][0].split_mode", ("layer", "row"), "split_mode layer and row"),
    ],
)  # fmt: skip
def test_another_setting_is_another_experiment(
    tmp_path: Path, sample: Sample, path: str, values: tuple[Any, Any], words: str
) -> None:
    """Whoever wrote it: it is named, and nothing is shown."""
    outcome = compared(tmp_path, *(with_value(sample, path, value) for value in values))
    assert outcome.exit_status == 21
    assert words in said(outcome)
    same = compared(tmp_path, *[with_value(sample, path, values[0])] * 2)
    assert same.verdict == "advisory"
    assert path.rpartition(".")[2] not in said(same)
    alone = compared(tmp_path, sample.text, with_value(sample, path, values[1]))
    assert alone.exit_status == 21 or path.rpartition(".")[2] in said(alone)


@pytest.mark.parametrize(
    ("sample", "path", "values"),
    [
        (VLLM, "[0].vllm_version", ("0.9", "0.32")), (VLLM, "[0].commit", ("a", "b")), (VLLM, "[0].host", ("a", "b")),
        (VLLM, "[0].max_concurrent_requests", (16, 18)), (VLLM, "[0].max_output_tokens_per_s", (700.0, 720.0)),
        (VLLM, "[0].itls", ([[0.1], [0.2]], [[0.2], [0.1]])), (VLLM, "[0].spec_decode_num_drafts", (10, 12)),
        (VLLM, "[0].mean_client_queue_time_ms", (1.5, 1.6)), (VLLM, "[0].start_times", ([1.0], [2.0])),
        (SGLANG, "[0].server_info.random_seed", (1, 2)), (SGLANG, "[0].server_info.port", (30000, 30001)),
        (SGLANG, "[0].server_info.max_total_num_tokens", (100000, 100016)),
        (SGLANG, "[0].server_info.internal_states", ([{"last_gen_throughput": 1}], [{"last_gen_throughput": 2}])),
        (SGLANG, "[0].accept_length", (2.5, 2.6)),
        (GUIDELLM, "[0].metadata.guidellm_version", ("0.6.0", "0.6.1")),
        (GUIDELLM, "[0].benchmarks[0].config.run_id", ("a", "b")),
        (GUIDELLM, "[0].benchmarks[0].start_time", (1.5, 2.5)),
        (AIPERF, "[0].total_osl", ({"unit": "tokens", "avg": 1}, {"unit": "tokens", "avg": 2})),
        (AIPERF, "[0].aiperf_version", ("1", "2")), (AIPERF, "[0].end_time", ("a", "b")),
    ],
)  # fmt: skip
def test_what_is_no_setting_may_differ(tmp_path: Path, sample: Sample, path: str, values: tuple[Any, Any]) -> None:
    """Builds, identifiers, places, times of day and figures that have no name here."""
    outcome = compared(tmp_path, *(with_value(sample, path, value) for value in values))
    assert outcome.verdict == "advisory", said(outcome)
    assert path.rpartition(".")[2] not in said(outcome)


def test_a_fraction_that_nobody_knows_is_named(tmp_path: Path) -> None:
    """It may be a setting or a figure: the rest is compared, and both values are said."""
    outcome = compared(tmp_path, *(VLLM.changed(gpu_memory_utilization=value) for value in (0.9, 0.5)))
    assert outcome.verdict == "advisory"
    assert "gpu_memory_utilization 0.9 and 0.5: whether that was asked for or measured is not known" in said(outcome)


@pytest.mark.parametrize(
    ("sample", "key"), [(VLLM, "request_goodput"), (VLLM, "spec_decode_acceptance_rate"), (SGLANG, "accept_length")]
)
def test_a_figure_that_must_be_asked_for_on_one_side_is_named(tmp_path: Path, sample: Sample, key: str) -> None:
    """Goodput needs limits, and a rate of acceptance speculative decoding: neither side says more of them."""
    for base, head, side in ((None, 2.5, "head"), (2.5, None, "base")):
        outcome = compared(tmp_path, *(with_value(sample, f"[0].{key}", value) for value in (base, head)))
        assert f"only the {side} tells {key}: what it takes was not asked for on both sides" in said(outcome)
    assert key not in said(compared(tmp_path, *[with_value(sample, f"[0].{key}", 2.5)] * 2))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_word_of_the_user_is_compared_in_every_format(tmp_path: Path, name: str) -> None:
    """Beside whatever the tool writes."""
    documents = SAMPLES[name].documents
    first = "[0][0].gpus" if isinstance(documents[0], list) else "[0].gpus"
    outcome = compared(tmp_path, *(with_value(SAMPLES[name], first, value) for value in (4, 8)))
    assert "gpus 4 and 8" in said(outcome)
    assert outcome.exit_status == 21


@pytest.mark.parametrize(("here", "there"), [(5.0, "5.0"), (5, 5.0), ("5", 5), ("inf", float("inf"))])
def test_a_number_as_text_is_that_number(tmp_path: Path, here: Any, there: Any) -> None:
    """A rate of 5.0 is no other than one of "5.0"."""
    assert compared(tmp_path, *(VLLM.changed(request_rate=value) for value in (here, there))).verdict == "advisory"
    for one, other in (("1.1", "1.10"), ("007", 7)):
        assert compared(tmp_path, VLLM.changed(profile=one), VLLM.changed(profile=other)).exit_status == 21


@pytest.mark.parametrize("value", ["0", "512", 0.0, True, None, -1, [], "x"])
@pytest.mark.parametrize("key", ["n_prompt", "n_gen", "n_depth"])
def test_how_long_a_test_is_must_be_a_whole_number(tmp_path: Path, key: str, value: Any) -> None:
    """Or the rate of answers would be taken for that of prompts."""
    file = tmp_path / "result.json"
    file.write_text(json.dumps([{**LLAMA_BENCH.documents[0][1], key: value}]))
    with pytest.raises(RecordError, match=rf"\[0\]\.{key} is .*, expected a (whole )?number"):
        compare_results(file, file)
