"""Results of other load drivers are read for what they are; what is no figure, no run or no result is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from other_results import (
    AIPERF,
    GENAI_PERF,
    GUIDELLM,
    LLAMA_BENCH,
    SAMPLES,
    SGLANG,
    VLLM,
    VLLM_LATENCY,
    Sample,
    leaves,
    placed,
)

from perfgate.errors import RecordError
from perfgate.imports.result_file import LoadRun, read_runs


def read(folder: Path, text: str) -> list[LoadRun]:
    """The runs of a file with this text."""
    file = folder / "result.json"
    file.write_text(text, encoding="utf-8")
    return read_runs(file)


def refusal(folder: Path, text: str) -> str:
    """What is said of a file that is refused."""
    with pytest.raises(RecordError) as refused:
        read(folder, text)
    return str(refused.value)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_result_is_read_for_what_it_is(tmp_path: Path, name: str) -> None:
    """Its tool, every figure in base units, and every field that says what was asked for."""
    sample = SAMPLES[name]
    runs = read(tmp_path, sample.text)
    assert {run.tool.name for run in runs} == {sample.tool}
    by_place: dict[str, dict[str, float]] = {}
    for path, metric, value in sample.figures(sample.documents):
        place = re.match(r"\[0\]\[\d\]|\[0\]\.benchmarks\[\d\]|", path)
        by_place.setdefault(place[0] if place else "", {})[metric] = value
    assert [run.figures for run in runs] == [pytest.approx(figures) for figures in by_place.values()]
    asked = {path for path, _ in leaves(sample.documents) if re.fullmatch(sample.asked, path)}
    assert sum(len(run.asked) for run in runs) >= len(asked) > 0


def test_a_run_of_lines_is_as_many_results(tmp_path: Path) -> None:
    """As JSON Lines and ``--append-result`` have them, with and without an end of line after the last one."""
    second = VLLM.changed(date="20260801-111213", median_ttft_ms=46.0)
    for text in (f"{VLLM.text}\n{second}", f"{VLLM.text}\n\n{second}\n", f"\ufeff{VLLM.text}\r\n{second}"):
        first, last = read(tmp_path, text)
        assert first.asked == last.asked
        assert (first.figures["ttft_median"], last.figures["ttft_median"]) == (0.045, 0.046)
    lines = "\n".join(json.dumps(row) for row in LLAMA_BENCH.documents[0])
    assert [run.figures for run in read(tmp_path, lines)] == [run.figures for run in read(tmp_path, LLAMA_BENCH.text)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (VLLM.text[:-20], r"result\.json:1:\d+: invalid JSON"),
        (f"{SGLANG.text}\n{SGLANG.text[:300]}", r"result\.json:2:\d+: invalid JSON"),
        ('{"a": 1, "a": 2}', "holds the key 'a' twice"),
        ("", "holds no run"),
        ("[]", "holds no run"),
        ('{"benchmarks": []}', "holds no run"),
        ("[" * 5000, "nested too deeply"),
        (
            '{"a": 1}',
            r"not a result of a load driver .* looked for: model_id, tokenizer_id, num_prompts \(vllm bench se",
        ),
        ("7", "looked for: "),
        (VLLM.changed(model_id=...), "of vllm bench serve it lacks model_id"),
        (
            SGLANG.changed(dataset_name=..., random_input_len=...),
            "of sglang.bench_serving it lacks dataset_name, random_i",
        ),
        (json.dumps(VLLM.documents[0] | SGLANG.documents[0]), "has all fields of vllm bench serve and sglang.bench_se"),
        (
            json.dumps(VLLM.documents[0] | VLLM_LATENCY.documents[0]),
            "has all fields of vllm bench serve and vllm bench l",
        ),
        (
            f"{VLLM.text}\n{SGLANG.text}",
            r"json:2: sglang.bench_serving, and vllm bench serve before it: one file is one",
        ),
        (f"{VLLM.text}\n{VLLM.text}", r"json:2: is the same run as .*json:1"),
        (AIPERF.changed(input_config=...), "of aiperf it lacks input_config|of genai-perf it lacks input_config"),
        (GUIDELLM.changed(benchmarks=[7]), r"benchmarks\[0\]: not a run of GuideLLM"),
        (
            GUIDELLM.changed(benchmarks={"name": "test"}),
            r"benchmarks\[0\]: not a run of GuideLLM: it lacks metrics\.req",
        ),
        (
            VLLM.changed(**{"log" * 20_000 + "\n": 1}),
            "holds a key of more than 1000 characters, which begins with 'log",
        ),
        (GUIDELLM.changed(args={"target " * 9000: 1}), r"benchmarks\[0\]: holds a key of more than 1000 characters"),
        ("\n".join(VLLM.changed(num_prompts=n) for n in range(200, 457)), "holds more than 256 runs"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """With its place and what was looked for; a file that fits two tools is guessed to be of neither."""
    assert re.search(said, refusal(tmp_path, text))


@pytest.mark.parametrize("value", ["5.0", True, -5.0, float("nan"), float("inf"), [], [5.0], {}, 10**19])
@pytest.mark.parametrize(
    ("sample", "path", "place"),
    [
        (VLLM, "[0].median_ttft_ms", "median_ttft_ms"), (VLLM, "[0].completed", "completed"),
        (VLLM, "[0].total_output_tokens", "total_output_tokens"),
        (VLLM_LATENCY, "[0].percentiles.99", "percentiles.99"),
        (GUIDELLM, "[0].benchmarks[0].metrics.request_latency.successful.median",
         "benchmarks[0].metrics.request_latency.successful.median"),
        (AIPERF, "[0].request_latency.p99", "request_latency.p99"), (LLAMA_BENCH, "[0][1].avg_ts", "[1].avg_ts"),
    ],
)  # fmt: skip
def test_what_is_no_number_is_refused_with_its_path(
    tmp_path: Path, sample: Sample, path: str, place: str, value: object
) -> None:
    """Text, truth values, negative ones, NaN, lists and empty objects."""
    text = Sample(sample.tool, placed(sample.documents, path, value), "", {}, "").text
    said = refusal(tmp_path, text)
    assert place in said or "larger than any integer" in said


@pytest.mark.parametrize("unit", ["min", "", None, 7, ...])
def test_a_unit_that_is_not_known_is_refused(tmp_path: Path, unit: object) -> None:
    """A time in another unit would be wrong by its factor."""
    documents = placed(AIPERF.documents, "[0].request_latency.unit", unit)
    said = refusal(tmp_path, Sample(AIPERF.tool, documents, "", {}, "").text)
    assert "request_latency.unit is" in said


def test_a_unit_is_read(tmp_path: Path) -> None:
    """It stands beside each metric of aiperf."""
    table: dict[str, Any] = {"unit": "sec", "avg": 1.4, "p50": 1.3}
    (run,) = read(tmp_path, AIPERF.changed(request_latency=table))
    assert run.figures["e2e_median"] == 1.3


@pytest.mark.parametrize("sample", [VLLM, SGLANG], ids=lambda sample: sample.tool)
@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"median_itl_ms": 0.02}, "tokens came in bundles"), ({"median_itl_ms": 0.0}, "tokens came in bundles"),
        ({"mean_itl_ms": 95.0, "median_itl_ms": 90.0}, "chunks hold several tokens"),
        ({"mean_tpot_ms": ..., "median_tpot_ms": ...}, "there is no TPOT"),
    ],
)  # fmt: skip
def test_gaps_that_are_not_between_tokens_are_no_itl(
    tmp_path: Path, sample: Sample, values: dict[str, Any], why: str
) -> None:
    """They are not used, and that is said; everything else is."""
    (run,) = read(tmp_path, sample.changed(**values))
    assert not [name for name in run.figures if name.startswith("itl")]
    assert [text for text in run.left_out if why in text]
    assert {"ttft_median", "e2e_median", "output_throughput"} <= run.figures.keys()


def test_without_streaming_there_is_no_time_to_a_token(tmp_path: Path) -> None:
    """SGLang writes zeros then, and the whole latency as time to first token; the others say it."""
    zeros = {f"{name}_{of}_ms": 0.0 for name in ("mean", "median") for of in ("itl", "tpot")}
    config = {**AIPERF.documents[0]["input_config"], "endpoint": {"streaming": False}}
    for text in (SGLANG.changed(**zeros), AIPERF.changed(input_config=config), GENAI_PERF.changed(input_config=config)):
        (run,) = read(tmp_path, text)
        assert not run.streamed
        assert not [name for name in run.figures if name.startswith(("itl", "tpot", "ttft"))]
        assert "not streamed" in " ".join(run.left_out)
    (one_token,) = read(tmp_path, SGLANG.changed(**zeros, total_output_tokens=1000))
    assert one_token.streamed
    assert "ttft_median" in one_token.figures


KEYS = st.sampled_from(["benchmarks", "metrics", "request_latency", "successful", "percentiles", "p99", "avg", "unit"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), inner=ANYTHING)
def test_whatever_is_in_a_result_has_finite_figures_or_is_refused(
    tmp_path: Path, data: st.DataObject, inner: Any
) -> None:
    """No other error comes of it."""
    sample = SAMPLES[data.draw(st.sampled_from([*SAMPLES]))]
    path = data.draw(st.sampled_from([path for path, _ in leaves(sample.documents)]))
    text = Sample(sample.tool, placed(sample.documents, path, inner), "", {}, "").text
    try:
        runs = read(tmp_path, text)
    except RecordError:
        return
    assert all(0 < value < float("inf") for run in runs for value in run.figures.values())
