"""Two results are held side by side where the same was asked for; everything else is named, and nothing passes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from changed_results import changes, compared, said, silently_wrong, with_value
from click.testing import CliRunner
from other_results import (
    AIPERF,
    AIPERF_LATER,
    GENAI_PERF,
    GENAI_PERF_BEFORE,
    GUIDELLM,
    GUIDELLM_LATER,
    LLAMA_BENCH,
    SAMPLES,
    SGLANG,
    TOTALS,
    VLLM,
    VLLM_THROUGHPUT,
    Sample,
    placed,
)
from whole_inputs import WHOLE

from perfgate.cli.main import main
from perfgate.errors import NotComparableError, RecordError
from perfgate.imports.result_file import LoadRun, read_runs
from perfgate.imports.two_results import compare_results


def test_two_results_are_held_side_by_side(tmp_path: Path) -> None:
    """With the changes, and exit status 20: nothing of one run apart from another decides."""
    base, head = tmp_path / "a.json", tmp_path / "b.json"
    base.write_text(VLLM.changed(output_throughput=None))
    quicker = {"duration": 400 / 11, "request_throughput": 5.5, "output_throughput": None}
    head.write_text(VLLM.changed(median_itl_ms=39.0, **quicker))
    shown = CliRunner().invoke(main, ["compare", str(base), str(head)])
    assert shown.exit_code == 20, shown.output
    assert "itl_median 19.50 ms to 39.00 ms (+100.0 %)" in " ".join(shown.output.split())
    assert "request_throughput 5.000 req/s to 5.500 req/s (+10.0 %)" in " ".join(shown.output.split())
    assert "how far such runs differ by themselves is not known" in " ".join(shown.output.split())


@pytest.mark.parametrize("name", SAMPLES)
def test_a_result_beside_itself_differs_in_nothing(tmp_path: Path, name: str) -> None:
    """Every run of it is compared, and not one figure differs."""
    sample = SAMPLES[name]
    outcome = compared(tmp_path, sample.text, sample.text)
    assert (outcome.verdict, outcome.exit_status) == ("advisory", 20)
    rows = [row for cell in outcome.cells for row in cell.ungated]
    assert {row.better for row in rows if "throughput" in row.metric} <= {"higher"}
    assert {row.better for row in rows if "throughput" not in row.metric} <= {"lower"}
    assert len(rows) == len([*sample.figures(sample.documents)])
    assert {row.change for row in rows} == {0.0}


@pytest.mark.parametrize(
    ("sample", "values", "words"),
    [
        (VLLM, {"model_id": "org/small"}, "model_id org/model and org/small"),
        (VLLM, {"request_rate": 5.0, "burstiness": 0.1, "max_concurrency": None},
         "burstiness 1.0 and 0.1; max_concurrency 16 and null; request_rate inf and 5.0"),
        (VLLM, {"backend": "vllm"}, "backend openai-chat and vllm"),
        (VLLM, {"num_prompts": 400, "completed": 400, "total_input_tokens": 204800, "total_output_tokens": 51200},
         "num_prompts 200 and 400"),
        (VLLM, {"ramp_up_strategy": "linear"}, "ramp_up_strategy null and linear"),
        (VLLM, {"max_concurrency": ...}, "max_concurrency 16 and null"),
        (VLLM, {"total_output_tokens": 6400}, "output tokens a request: 128 and 32"),
        (VLLM, {"total_input_tokens": 51200}, "input tokens a request: 512 and 256"),
        (VLLM_THROUGHPUT, {"total_num_tokens": 320000}, "input and output tokens a request: 640 and 320"),
        (SGLANG, {"dataset_name": "sharegpt"}, "dataset_name random and sharegpt"),
        (SGLANG, {"completed": 549, "total_input_tokens": 562176, "total_output_tokens": 70272},
         "1000 and 549 requests were answered, and no file says that as many were asked for"),
        (SGLANG, {"mean_itl_ms": 0.0, "median_itl_ms": 0.0, "mean_tpot_ms": 0.0, "median_tpot_ms": 0.0},
         "answers were streamed in one run and not in another"),
    ],
)  # fmt: skip
def test_another_experiment_is_not_compared(tmp_path: Path, sample: Sample, values: dict[str, Any], words: str) -> None:
    """What differs is named, the exit status is 21, and no figure is shown."""
    outcome = compared(tmp_path, sample.text, sample.changed(**values))
    assert outcome.exit_status == 21
    assert not [row for cell in outcome.cells for row in cell.ungated]
    assert words in said(outcome)


@pytest.mark.parametrize(
    ("sample", "path", "value", "words"),
    [
        (LLAMA_BENCH, "[0][1].n_gpu_layers", 0, "n_gpu_layers 99 and 0"),
        (LLAMA_BENCH, "[0][0].gpu_info", "other", "gpu_info gpu and other"),
        (LLAMA_BENCH, "[0][0].n_prompt", 1024, "n_prompt 512 and 1024"),
        (GUIDELLM, "[0].benchmarks[0].config.strategy.streams", 4, "config.strategy.streams 8 and 4"),
        (GUIDELLM, "[0].args.model", "org/small", "args.model org/model and org/small"),
        (GUIDELLM_LATER, "[0].config.spec.data[0].output_tokens", 64, "config.spec.data[0].output_tokens 128 and 64"),
        (AIPERF, "[0].input_config.loadgen.concurrency", 64, "input_config.loadgen.concurrency 16 and 64"),
        (AIPERF, "[0].input_config.loadgen.concurrency", ..., "loadgen.concurrency 16 and not set"),
        (AIPERF_LATER, "[0].input_config.phases[0].rate", 20.0, "input_config.phases[0].rate 10.0 and 20.0"),
        (GENAI_PERF, "[0].input_config.perf_analyzer.stimulus.concurrency", 1, "stimulus.concurrency 16 and 1"),
        (GENAI_PERF_BEFORE, "[0].input_config.endpoint_type", "completions", "endpoint_type chat and completions"),
        (AIPERF, "[0].output_sequence_length.avg", 64.0, "output tokens a request: 128 and 64"),
    ],
)
def test_whatever_was_asked_otherwise_is_named(
    tmp_path: Path, sample: Sample, path: str, value: object, words: str
) -> None:
    """However deep it stands in the tool's own description of the run."""
    outcome = compared(tmp_path, sample.text, with_value(sample, path, value))
    assert outcome.exit_status == 21
    assert words in said(outcome)


@pytest.mark.parametrize(
    ("sample", "path", "value"),
    [
        (VLLM, "[0].date", "20260901-000000"), (VLLM, "[0].label", "head"), (VLLM, "[0].duration", 40.1),
        (SGLANG, "[0].server_info.version", "0.6.0"), (SGLANG, "[0].tag", "head"),
        (GUIDELLM, "[0].args.target", "http://other:8000"), (GUIDELLM, "[0].args.output_dir", "other"),
        (AIPERF, "[0].input_config.endpoint.url", "other:1"), (AIPERF_LATER, "[0].input_config.artifacts.dir", "b"),
        (GENAI_PERF, "[0].input_config.output.artifact_directory", "b"),
        (LLAMA_BENCH, "[0][0].build_commit", "0badc0de"),
    ],
)  # fmt: skip
def test_builds_times_and_places_are_no_difference(tmp_path: Path, sample: Sample, path: str, value: object) -> None:
    """The build is what is compared, and where a server or a file is decides nothing."""
    assert compared(tmp_path, sample.text, with_value(sample, path, value)).verdict == "advisory"


def test_runs_in_one_file_only_are_named(tmp_path: Path) -> None:
    """Each is a cell of its own that is not comparable, beside those that are compared: a sweep found other rates."""
    head = with_value(GUIDELLM_LATER, "[0].benchmarks[1].config.strategy.rate", 3.6)
    third = {**GUIDELLM_LATER.documents[0]["benchmarks"][1], "config": {"strategy": {"type_": "synchronous"}}}
    base = {**GUIDELLM_LATER.documents[0]}
    base["benchmarks"] = [*base["benchmarks"], third]
    outcome = compared(tmp_path, json.dumps(base), head)
    assert [(cell.name, cell.verdict) for cell in outcome.cells] == [
        ("GuideLLM, constant, 2 a second", "advisory"),
        ("GuideLLM, constant, 4 a second", "not-comparable"),
        ("GuideLLM, synchronous", "not-comparable"),
        ("GuideLLM, constant, 3.6 a second", "not-comparable"),
    ]
    assert outcome.exit_status == 21
    assert f"only in {tmp_path}/base.json: {tmp_path}/head.json holds no such run" in said(outcome)
    assert f"only in {tmp_path}/head.json: {tmp_path}/base.json holds no such run" in said(outcome)


def test_runs_of_one_length_are_told_apart(tmp_path: Path) -> None:
    """Those with other threads are other runs, whatever their order."""
    rows = [{**LLAMA_BENCH.documents[0][1], "n_threads": threads, "avg_ts": 10.0 * threads} for threads in (4, 8)]
    outcome = compared(tmp_path, json.dumps(rows), json.dumps(rows[::-1]))
    assert [(cell.name, cell.ungated[0].change) for cell in outcome.cells] == [
        ("llama-bench, tg128, n_threads 4", 0.0), ("llama-bench, tg128, n_threads 8", 0.0),
    ]  # fmt: skip


def test_repeats_are_held_as_their_mean(tmp_path: Path) -> None:
    """Runs of one file that were asked for the same; that there are several is said, and how far they differ."""
    again = VLLM.changed(date="20260802-000000", median_ttft_ms=80.0)
    outcome = compared(tmp_path, VLLM.text, f"{VLLM.text}\n{again}")
    (row,) = (row for row in outcome.cells[0].ungated if row.metric == "ttft_median")
    assert row.head == pytest.approx(0.06)
    text = "2 runs of the head, of which the geometric mean is shown; ttft_median differs most among them, by 77.8 %"
    assert text in said(outcome)
    assert outcome.exit_status == 20


TOTAL = "[0].benchmarks[0].metrics.request_totals"


@pytest.mark.parametrize(
    ("sample", "base", "head", "words"),
    [
        (VLLM, VLLM.text, VLLM.changed(completed=190, failed=10, total_input_tokens=97280, total_output_tokens=24320),
         "base lost 0 of 200 requests; head lost 10 of 200 requests (10 failed)"),
        (VLLM, VLLM.changed(failed=...), VLLM.changed(failed=..., completed=150, total_input_tokens=76800,
         total_output_tokens=19200), "head lost 50 of 200 requests"),
        (VLLM, *[VLLM.changed(failed=..., completed=150, total_input_tokens=76800, total_output_tokens=19200)] * 2,
         "base lost 50 of 200 requests; head lost 50 of 200 requests"),
        (VLLM, VLLM.changed(completed=0, failed=200, request_throughput=0.0, output_throughput=0.0, **{
            key: 0.0 for key in VLLM.documents[0] if key.endswith("_ms")}), VLLM.text, "base lost 200 of 200 requests"),
        (GUIDELLM, GUIDELLM.text, with_value(GUIDELLM, TOTAL, TOTALS | {"successful": 10, "incomplete": 90}),
         "head lost 90 of 100 requests (90 cut off)"),
        (GUIDELLM, *[with_value(GUIDELLM, TOTAL, TOTALS | {"successful": 90, "errored": 10})] * 2,
         "base lost 10 of 100 requests (10 failed); head lost 10 of 100 requests (10 failed)"),
        (AIPERF, AIPERF.text, AIPERF.changed(error_summary=[{"count": 3}, {"count": 2}]), "head lost 5 of 85 requests"),
        (AIPERF_LATER, AIPERF_LATER.text, AIPERF_LATER.changed(error_request_count={"unit": "requests", "avg": 5.0}),
         "head lost 5 of 85 requests (5 failed)"),
        (AIPERF, AIPERF.text, AIPERF.changed(was_cancelled=True), "was_cancelled is true"),
        (AIPERF_LATER, AIPERF_LATER.changed(is_complete=False), AIPERF_LATER.text, "is_complete is false"),
    ],
)  # fmt: skip
def test_lost_requests_are_not_compared(tmp_path: Path, sample: Sample, base: str, head: str, words: str) -> None:  # noqa: ARG001 (names the case)
    """More than one in a hundred failed, or more of them lost than on the other side: the times are of the rest."""
    outcome = compared(tmp_path, base, head)
    assert outcome.exit_status == 21
    assert "request-failed" in {reason.code for cell in outcome.cells for reason in cell.reasons}
    assert words in said(outcome)


def test_few_lost_requests_are_said(tmp_path: Path) -> None:
    """One of two hundred; and where a clock ended both runs with as many cut off."""
    outcome = compared(tmp_path, VLLM.text, VLLM.changed(completed=199, failed=1, total_input_tokens=101888,
                                                         total_output_tokens=25472))  # fmt: skip
    assert outcome.verdict == "advisory"
    assert "base lost 0 of 200 requests; head lost 1 of 200 requests (1 failed)" in said(outcome)
    by_clock = placed(GUIDELLM.documents, "[0].args.max_requests", ...)
    by_clock = placed(by_clock, "[0].args.max_seconds", 60)
    texts = [
        Sample("", placed(by_clock, TOTAL, TOTALS | {"successful": count, "incomplete": 8}), "", {}, "").text
        for count in (500, 450)
    ]
    outcome = compared(tmp_path, *texts)
    later = placed(GUIDELLM_LATER.documents, "[0].config.spec.seed", {"kind": "max_duration", "seconds": 60})
    more = with_value(Sample("", later, "", {}, ""), TOTAL, TOTALS | {"successful": 110})
    assert compared(tmp_path, Sample("", later, "", {}, "").text, more).verdict == "advisory"
    told = with_value(GUIDELLM, TOTAL, TOTALS | {"successful": 110})
    assert compared(tmp_path, GUIDELLM.text, told).exit_status == 21
    assert outcome.verdict == "advisory"
    assert "base lost 8 of 508 requests (8 cut off); head lost 8 of 458 requests (8 cut off)" in said(outcome)


def test_what_one_file_alone_has_is_said(tmp_path: Path) -> None:
    """Figures, what was asked for, and how many there were: nothing is dropped without a word."""
    outcome = compared(tmp_path, VLLM.text, VLLM.changed(p99_ttft_ms=..., endpoint_type=..., failed=...))
    assert outcome.verdict == "advisory"
    for text in (
        "only the base has ttft_quantile[p99]",
        "only the base says endpoint_type, so nothing was held against it",
        "only the base says how many requests failed there were",
        "neither file says the dataset",
    ):
        assert text in said(outcome)
    bundled = compared(tmp_path, VLLM.text, VLLM.changed(median_itl_ms=0.02))
    assert "head: ITL is not used: half of the gaps are below 0.02 ms, a token takes 20 ms" in said(bundled)
    assert "only the base has itl_median; itl_quantile[p99]" in said(bundled)


def test_only_results_of_one_tool_are_compared(tmp_path: Path) -> None:
    """What aiperf and genai-perf write is alike, and of two; perfgate's own files are left to whoever reads records."""
    with pytest.raises(NotComparableError, match=r"base\.json is of aiperf, .*head\.json of genai-perf"):
        compared(tmp_path, AIPERF.text, GENAI_PERF.text)
    with pytest.raises(RecordError, match="looked for"):
        compared(tmp_path, VLLM.text, '{"a": 1}')
    own = tmp_path / "record.json"
    own.write_bytes(WHOLE["record.json"])
    assert compare_results(own, own) is None
    assert compare_results(tmp_path, tmp_path / "none.json") is None
    for files in ((tmp_path / "base.json", own), (own, tmp_path / "base.json")):
        with pytest.raises(RecordError, match="not a result of a load driver"):
            compare_results(*files)
    with pytest.raises(RecordError, match="not a file"):
        compare_results(tmp_path / "base.json", tmp_path)


@pytest.mark.parametrize("name", SAMPLES)
def test_one_field_changed_is_never_silent(tmp_path: Path, name: str) -> None:
    """Whatever field has another value: each figure that is shown is the files', and what matters is said."""
    drawn = islice(changes(SAMPLES[name], random.Random(name)), 40)  # noqa: S311 (no secret)
    wrong = {f"{path} = {value!r}": silently_wrong(SAMPLES[name], path, value, tmp_path) for path, value in drawn}
    assert not {change: what for change, what in wrong.items() if what}


@pytest.mark.parametrize(
    ("path", "value", "spoil"),
    [
        ("[0].model_id", "other", lambda run: run.asked.clear()),
        ("[0].median_e2el_ms", 1290.0, lambda run: run.figures.update(e2e_median=2.58)),
        ("[0].median_e2el_ms", ..., lambda run: run.figures.clear()),
        ("[0].total_input_tokens", 51200, lambda run: run.tokens.clear()),
        ("[0].output_throughput", 6400.0, lambda run: object.__setattr__(run, "contradictions", ())),
    ],
)
def test_a_silent_change_would_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, value: object, spoil: Callable[[Any], None]
) -> None:
    """By that check, in a reader that forgets what was asked for, holds another figure, or drops one."""

    def spoiled(file: Path) -> list[LoadRun]:
        runs = read_runs(file)
        for each in runs:
            spoil(each)
        return runs

    assert not silently_wrong(VLLM, path, value, tmp_path)
    monkeypatch.setattr("perfgate.imports.two_results.read_runs", spoiled)
    assert silently_wrong(VLLM, path, value, tmp_path)
