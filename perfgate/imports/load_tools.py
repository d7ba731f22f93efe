"""The results of other load drivers that are read: a declaration each of its marks, what was asked for, and figures.

Read from the tools' sources, at the versions that docs/load.md names: vLLM's ``vllm/benchmarks``
(https://github.com/vllm-project/vllm), SGLang's ``bench_serving.py`` (https://github.com/sgl-project/sglang),
``guidellm.benchmark`` (https://github.com/vllm-project/guidellm), ``aiperf.exporters``
(https://github.com/ai-dynamo/aiperf), ``genai_perf.export_data``
(https://github.com/triton-inference-server/perf_analyzer) and ``llama-bench.cpp``
(https://github.com/ggml-org/llama.cpp).
A path is keys and numbers of a list, ``phases[0].rate``. What has no counterpart here is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from perfgate.metrics.catalogue import Metric

Content = Mapping[str, Any]

ABSENT: Final = object()  # what a path leads to where there is nothing; `null` is something

SECONDS: Final = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "us": 1e-6, "ns": 1e-9}
PER_SECOND: Final = {"requests/sec": 1.0, "tokens/sec": 1.0}
MS: Final = {"": 1e-3}
# Units that a file says beside a number, and their factors to the base unit; under the empty name where none does
S: Final = {"": 1.0}

# What these tools measure and no trial of perfgate does
OWN_METRICS: Final = {
    metric.name: metric
    for metric in (
        Metric("prompt_throughput", "tok/s", "higher", "tokens of prompts processed per second", lambda _: None),
        Metric("token_throughput", "tok/s", "higher", "tokens of prompts and answers per second", lambda _: None),
    )
}


def at(content: Any, path: str) -> Any:
    """The value at a path; :data:`ABSENT` where there is nothing."""
    for key in re.findall(r"[^.\[\]]+", path):
        if isinstance(content, dict) and key in content:
            content = content[key]
        elif isinstance(content, list) and key.isdecimal() and int(key) < len(content):
            content = content[int(key)]
        else:
            return ABSENT
    return content


@dataclass(frozen=True)
class Figure:
    """Numbers of a run that are one quantity."""

    path: str  # a pattern of their paths; its group is the statistic
    # `ttft`, `itl`, `tpot` or `e2e`, or the name of a metric; or what finds that for a run
    of: str | Callable[[Content], str]
    units: Mapping[str, float]  # see :data:`MS`


def _whole(content: Content) -> Iterator[tuple[str, Any]]:
    yield "", content


@dataclass(frozen=True)
class Format:
    """What one tool writes."""

    name: str  # the tool
    marks: tuple[str, ...]  # what each file of it holds, and is known by
    asked: tuple[str, ...]  # where it says what was asked for: these, and all below them
    figures: tuple[Figure, ...]  # the numbers that are read
    # What should be known of a load, and where a file says it; what none says is told
    tells: Mapping[str, tuple[str, ...]]
    label: Mapping[str, str]  # paths by which runs of a file are told apart, with words for each
    any_of: tuple[str, ...] = ()  # of these it holds at least one, where there are any
    none_of: tuple[str, ...] = ()  # of these it holds none
    # Whether what was left at its default is not written, so that a path in one file alone is a difference
    only_set: bool = False
    # A pattern of paths among them that say where, or how results are kept
    unasked: re.Pattern[str] = re.compile(r"(?!)")
    needs: tuple[str, ...] = ()  # what each run holds besides
    # What a path of `asked` means that a release does not write
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # Paths of how many requests were asked for, were answered, failed, and were cut off at the end
    requests: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Paths of how many tokens prompts and answers had, in the whole or as means
    tokens: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    mean_tokens: bool = False  # whether they are means
    streamed: tuple[str, ...] = ()  # where it says whether answers were streamed
    whole: Mapping[str, bool] = field(default_factory=dict)  # paths with what they say where a run ended by itself
    runs: Callable[[Content], Iterator[tuple[str, Any]]] = _whole  # the runs of a file, with their paths
    # Paths of rates, each with two paths whose quotient or product it is, and how far rounding may move it
    rates: Mapping[str, tuple[str, str, str, float]] = field(default_factory=dict)
    whole_numbers: tuple[str, ...] = ()  # paths that hold a whole number from 0 on

    def lacks(self, content: Content) -> list[str]:
        """The marks that a file does not hold."""
        lacking = [mark for mark in self.marks if at(content, mark) is ABSENT]
        if self.any_of and all(at(content, mark) is ABSENT for mark in self.any_of):
            lacking.append(" or ".join(self.any_of))
        return lacking

    def fits(self, content: Content) -> bool:
        """Whether a file is of this tool."""
        return not self.lacks(content) and all(at(content, mark) is ABSENT for mark in self.none_of)


def _times(end: str, *names: tuple[str, str]) -> tuple[Figure, ...]:
    return tuple(Figure(rf"(median|mean|p[\d.]+)_{name}{end}", of, MS) for name, of in names)


_RATES: Final = tuple(Figure(name, name, S) for name in ("request_throughput", "output_throughput"))
_TOKENS: Final = {"input": ("total_input_tokens", "total_input"), "output": ("total_output_tokens", "total_output")}
ROUNDED: Final = 0.01  # rates are written in full; where somebody rounded them to three figures they are off by less
# `calculate_metrics` of `vllm/benchmarks/serve.py` and of SGLang's `bench_serving.py`
_OF_SERVING: Final = {
    "request_throughput": ("completed", "/", "duration", ROUNDED),
    "output_throughput": ("total_output_tokens", "/", "duration", ROUNDED),
}
_BY_LOAD: Final = {"request_rate": "{} a second", "max_concurrency": "{} at once"}

VLLM_SERVE: Final = Format(
    name="vllm bench serve",
    marks=("model_id", "tokenizer_id", "num_prompts", "request_rate", "completed", "total_input_tokens",
           "total_output_tokens", "request_throughput", "output_throughput"),
    asked=("backend", "endpoint_type", "model_id", "tokenizer_id", "num_prompts", "request_rate", "burstiness",
           "max_concurrency", "ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps"),
    defaults={"burstiness": 1.0, "max_concurrency": None, "ramp_up_strategy": None, "ramp_up_start_rps": None,
              "ramp_up_end_rps": None},
    tells={"backend": ("backend", "endpoint_type"), "dataset": ()},
    label=_BY_LOAD,
    figures=(*_times("_ms", ("ttft", "ttft"), ("itl", "itl"), ("tpot", "tpot"), ("e2el", "e2e")), *_RATES),
    requests={"asked": ("num_prompts",), "answered": ("completed",), "failed": ("failed",)},
    tokens=_TOKENS,
    rates=_OF_SERVING,
)  # fmt: skip

VLLM_LATENCY: Final = Format(
    name="vllm bench latency",
    marks=("avg_latency", "latencies", "percentiles"),
    asked=("model_id",),
    tells={"model": ("model_id",), "batch": (), "input and output lengths": ()},
    label={},
    figures=(Figure(r"percentiles\.(\d+(?:\.\d+)?)", "e2e", S), Figure(r"(avg)_latency", "e2e", S)),
)

VLLM_THROUGHPUT: Final = Format(
    name="vllm bench throughput",
    marks=("elapsed_time", "num_requests", "total_num_tokens", "requests_per_second", "tokens_per_second"),
    asked=("model_id", "num_requests"),
    tells={"model": ("model_id",), "backend": (), "input and output lengths": ()},
    label={},
    figures=(
        Figure("requests_per_second", "request_throughput", S),
        Figure("tokens_per_second", "token_throughput", S),
    ),
    requests={"answered": ("num_requests",)},
    tokens={"input and output": ("total_num_tokens",)},
    rates={
        "requests_per_second": ("num_requests", "/", "elapsed_time", ROUNDED),
        "tokens_per_second": ("total_num_tokens", "/", "elapsed_time", ROUNDED),
    },
)

SGLANG: Final = Format(
    name="sglang.bench_serving",
    marks=("backend", "dataset_name", "request_rate", "random_input_len", "random_output_len", "random_range_ratio",
           "completed", "request_throughput", "output_throughput", "mean_e2e_latency_ms"),
    asked=("backend", "dataset_name", "request_rate", "max_concurrency", "sharegpt_output_len", "random_input_len",
           "random_output_len", "random_range_ratio", "num_prompts", "server_info.model_path",
           "server_info.tokenizer_path"),
    defaults={"max_concurrency": None, "sharegpt_output_len": None},
    unasked=re.compile(r"server_info\.(?:internal_states|scheduler_info|status|random_seed|max_total_num_tokens|"
                       r"max_req_input_len|base_gpu_id|served_model_name|\w*log\w*|\w*metrics\w*)\b.*"),
    tells={"model": ("server_info.model_path",)},
    label=_BY_LOAD,
    figures=(*_times("_ms", ("ttft", "ttft"), ("itl", "itl"), ("tpot", "tpot"), ("e2e_latency", "e2e")), *_RATES),
    requests={"asked": ("num_prompts",), "answered": ("completed",), "failed": ("failed",)},
    tokens=_TOKENS,
    rates=_OF_SERVING,
)  # fmt: skip


def _distribution(name: str, of: str, units: Mapping[str, float]) -> Figure:
    return Figure(rf"metrics\.{name}\.successful\.(?:percentiles\.)?(mean|median|p(?!50)\d\d)", of, units)


def _benchmarks(content: Content) -> Iterator[tuple[str, Any]]:
    """The runs of a report of GuideLLM, each with what the report says of all of them."""
    report = {key: value for key, value in content.items() if key != "benchmarks"}
    runs = content["benchmarks"]
    for number, run in enumerate(runs if isinstance(runs, list) else [runs]):
        yield f"benchmarks[{number}]", {**run, "report": report} if isinstance(run, dict) else run


# Its inter-token latency is one number a request, the mean of its gaps; so are those of aiperf and genai-perf
GUIDELLM: Final = Format(
    name="GuideLLM",
    marks=("benchmarks",),
    needs=("metrics.requests_per_second.successful.mean", "metrics.request_latency.successful"),
    asked=("report.args", "report.config.spec", "config.strategy", "args.strategy", "args.max_number",
           "args.max_duration", "worker.backend_type", "worker.backend_model", "request_loader.data",
           "request_loader.data_args", "request_loader.processor"),
    unasked=re.compile(r".*\b(?:target|backend_target|output_dir|output_path|outputs|output_extras|api_key|labels|"
                       r"worker_count|warnings|sample_requests|sample_size)\b.*|(?:metrics|requests|request_totals|"
                       r"run_stats|extras|scheduler\w*|config\.(?:run_index|environment|requests)|report\.metadata)\b.*|"
                       r".*\b(?:measured_\w+|completed_strategies)\b.*"),
    tells={"model": ("report.args.model", "report.args.backend_kwargs.model", "report.config.spec.backend.model",
                     "worker.backend_model"),
           "arrival": ("config.strategy.type_", "args.strategy.type_"),
           "tokens of prompts and answers": ("metrics.prompt_token_count.successful.mean",)},
    label={f"{place}.strategy.{key}": words for place in ("config", "args") for key, words in
           (("type_", "{}"), ("rate", "{} a second"), ("streams", "{} at once"), ("max_concurrency", "at most {}"))},
    figures=(_distribution("time_to_first_token_ms", "ttft", MS), _distribution("inter_token_latency_ms", "tpot", MS),
             _distribution("request_latency", "e2e", S),
             Figure(r"metrics\.requests_per_second\.successful\.mean", "request_throughput", S),
             Figure(r"metrics\.output_tokens_per_second\.successful\.mean", "output_throughput", S)),
    requests={key: (f"metrics.request_totals.{name}", f"request_totals.{name}") for key, name in
              (("answered", "successful"), ("failed", "errored"), ("cut off", "incomplete"))},
    tokens={"input": ("metrics.prompt_token_count.successful.mean",),
            "output": ("metrics.output_token_count.successful.mean",)},
    mean_tokens=True,
    streamed=("report.config.spec.backend.stream",),
    runs=_benchmarks,
)  # fmt: skip


def _table(name: str, of: str) -> Figure:
    return Figure(rf"{name}\.(avg|p\d\d?)", of, SECONDS)


_NVIDIA: Final[dict[str, Any]] = {
    "figures": (_table("time_to_first_token", "ttft"), _table("inter_token_latency", "tpot"),
                _table("request_latency", "e2e"), Figure(r"request_throughput\.avg", "request_throughput", PER_SECOND),
                Figure(r"output_token_throughput\.avg", "output_throughput", PER_SECOND)),
    "asked": ("input_config",),
    "tokens": {"input": ("input_sequence_length.avg", "num_input_token.avg"),
               "output": ("output_sequence_length.avg", "num_output_token.avg")},
    "mean_tokens": True,
    "needs": ("request_throughput.avg", "request_latency.avg"),
    "rates": {"output_token_throughput.avg": ("request_throughput.avg", "*", "output_sequence_length.avg", 0.05)},
}  # fmt: skip
_AIPERF_ALONE: Final = ("schema_version", "aiperf_version", "was_cancelled", "error_summary", "input_config.loadgen")

AIPERF: Final = Format(
    name="aiperf",
    marks=("request_throughput", "request_latency", "input_config"),
    any_of=_AIPERF_ALONE,
    only_set=True,
    unasked=re.compile(r"input_config\.(?:output|artifacts|cli_command|gpu_telemetry|server_metrics|network_latency|otel|"
                       r"mlflow|wandb|runtime|logging)\b.*|.*\.(?:urls?|api_key|timeout|timeout_seconds)\b.*"),
    tells={"model": ("input_config.endpoint.model_names", "input_config.models", "input_config.model"),
           "load": ("input_config.loadgen", "input_config.phases", "input_config.profiling"),
           "tokens of prompts and answers": ("output_sequence_length.avg",)},
    label={f"input_config.{key}": words for key, words in (
        ("loadgen.request_rate", "{} a second"), ("loadgen.concurrency", "{} at once"), ("phases[0].type", "{}"),
        ("phases[0].rate", "{} a second"), ("phases[0].concurrency", "{} at once"))},
    requests={"answered": ("request_count.avg",), "failed": ("error_request_count.avg",)},
    streamed=("input_config.endpoint.streaming",),
    whole={"was_cancelled": False, "is_complete": True},
    **_NVIDIA,
)  # fmt: skip

GENAI_PERF: Final = Format(
    name="genai-perf",
    marks=("request_throughput", "request_latency", "input_config"),
    none_of=_AIPERF_ALONE,
    unasked=re.compile(r"input_config\.(?:output|process|analyze|subcommand|template_filename|verbose|u|url|artifact_dir|"
                       r"profile_export_file|generate_plots|formatted_model_name|perf_analyzer\.(?:path|verbose)|"
                       r"\w*metrics_urls?|endpoint\.(?:url|server_metrics_urls))\b.*"),
    tells={"model": ("input_config.model_names", "input_config.model"),
           "load": ("input_config.perf_analyzer.stimulus", "input_config.concurrency", "input_config.request_rate"),
           "tokens of prompts and answers": ("output_sequence_length.avg", "num_output_token.avg")},
    label={f"input_config.{place}{key}": words for place in ("", "perf_analyzer.stimulus.") for key, words in
           (("request_rate", "{} a second"), ("concurrency", "{} at once"))},
    requests={"answered": ("request_count.avg",)},
    streamed=("input_config.endpoint.streaming", "input_config.streaming"),
    **_NVIDIA,
)  # fmt: skip


def _of_llama(run: Content) -> str:
    """Which metric its rate is: of answers, of prompts, or of both together; all three are whole numbers."""
    if run["n_prompt"] == 0:
        return "output_throughput"
    return "prompt_throughput" if run["n_gen"] == 0 else "token_throughput"


LLAMA_BENCH: Final = Format(
    name="llama-bench",
    marks=("build_commit", "model_filename", "model_type", "n_batch", "n_threads", "n_gpu_layers", "n_prompt", "n_gen",
           "avg_ts"),
    asked=("",),
    unasked=re.compile(r"build_commit|build_number|test_time|(?:avg|stddev)_(?:ns|ts)|samples_(?:ns|ts).*"),
    tells={},
    label={"n_prompt": "pp{}", "n_gen": "tg{}", "n_depth": "depth {}"},
    figures=(Figure("avg_ts", _of_llama, S),),
    whole_numbers=("n_prompt", "n_gen", "n_depth"),
)  # fmt: skip

# Every result that is read. A new one is an entry here, a file in the tests, and a row in docs/load.md.
FORMATS: Final = (VLLM_SERVE, VLLM_LATENCY, VLLM_THROUGHPUT, SGLANG, GUIDELLM, AIPERF, GENAI_PERF, LLAMA_BENCH)
