"""Results as other load drivers write them, small and made by hand, each with what its fields are.

A sample says of every path what it is, by eye and not by perfgate's table: asked for, measured, counted, or neither.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

Measured = Mapping[str, tuple[str, float]]
"""By a pattern of paths the metric and the factor to its base unit; ``\\1`` in a metric is the pattern's group."""


@dataclass(frozen=True)
class Sample:
    """A result of one tool.

    Args:
        tool: As perfgate names it.
        documents: JSON texts that stand one after another.
        asked: A pattern of the paths that say what was asked for.
        measured: The figures.
        counted: A pattern of the paths that say how many requests and tokens there were, or how the run ended.
        exact: A pattern of the paths that follow from others in the file to less than 5 %.
        bound: A pattern of further paths that others in the file are held against.
    """

    tool: str
    documents: tuple[Any, ...]
    asked: str
    measured: Measured
    counted: str
    exact: str = r"(?!)"
    bound: str = r"(?!)"

    @property
    def text(self) -> str:
        """The file."""
        return "\n".join(map(json.dumps, self.documents))

    def changed(self, **values: Any) -> str:
        """The file with other values at the top of its first text, or without them where a value is ``...``."""
        first = {**self.documents[0], **values}
        kept = {key: value for key, value in first.items() if value is not ...}
        return "\n".join(map(json.dumps, (kept, *self.documents[1:])))

    def figures(self, documents: tuple[Any, ...]) -> Iterator[tuple[str, str, float]]:
        """Path, metric and value in base units of everything measured."""
        for path, value in leaves(documents):
            for pattern, (metric, factor) in self.measured.items():
                found = re.fullmatch(pattern, path)
                if found and type(value) in (int, float):
                    yield path, found.expand(metric), value * factor


def leaves(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that holds no others, with its path; of several texts, paths begin with the number of the text."""
    if isinstance(content, dict) and content:
        for key, value in content.items():
            yield from leaves(value, f"{path}.{key}".lstrip("."))
    elif isinstance(content, (list, tuple)) and content:
        for number, value in enumerate(content):
            yield from leaves(value, f"{path}[{number}]")
    else:
        yield path, content


def _times(start: str, end: str, of: str) -> dict[str, tuple[str, float]]:
    """The statistics that perfgate has a name for, of a flat file."""
    middle = {rf"{start}mean_{end}": ("tpot_mean", 1e-3)} if of == "tpot" else \
        {rf"{start}median_{end}": (f"{of}_median", 1e-3)}  # fmt: skip
    return middle | {rf"{start}p(\d+)_{end}": (rf"{of}_quantile[p\1]", 1e-3)}


FIRST = r"\[\d\]\."
_RATES = {rf"{FIRST}(request|output)_throughput": (r"\1_throughput", 1.0)}

VLLM = Sample(
    tool="vllm bench serve",
    documents=({
        "date": "20260801-101112", "endpoint_type": "openai-chat", "backend": "openai-chat", "label": None,
        "model_id": "org/model", "tokenizer_id": "org/model", "num_prompts": 200, "request_rate": "inf",
        "burstiness": 1.0, "max_concurrency": 16, "duration": 40.0, "completed": 200, "failed": 0,
        "total_input_tokens": 102400, "total_output_tokens": 25600, "request_throughput": 5.0, "request_goodput": None,
        "output_throughput": 640.0, "total_token_throughput": 3200.0, "mean_ttft_ms": 50.0, "median_ttft_ms": 45.0,
        "std_ttft_ms": 9.0, "p99_ttft_ms": 90.0, "mean_tpot_ms": 20.0, "median_tpot_ms": 20.0, "std_tpot_ms": 1.0,
        "p99_tpot_ms": 25.0, "mean_itl_ms": 20.0, "median_itl_ms": 19.5, "std_itl_ms": 2.0, "p99_itl_ms": 40.0,
        "mean_e2el_ms": 2590.0, "median_e2el_ms": 2580.0, "std_e2el_ms": 5.0, "p99_e2el_ms": 2700.0,
    },),
    asked=rf"{FIRST}(endpoint_type|backend|model_id|tokenizer_id|num_prompts|request_rate|burstiness|max_concurrency)",
    measured=_RATES | _times(FIRST, "ttft_ms", "ttft") | _times(FIRST, "itl_ms", "itl")
    | _times(FIRST, "tpot_ms", "tpot") | _times(FIRST, "e2el_ms", "e2e"),
    counted=rf"{FIRST}(completed|failed|total_(input|output)_tokens|mean_itl_ms|median_tpot_ms)",
    exact=rf"{FIRST}(completed|total_output_tokens|duration|(request|output)_throughput)",
    bound=rf"{FIRST}(mean|median|p\d+)_\w+_ms",
)  # fmt: skip
"""vLLM 0.32. Earlier ones have no ``endpoint_type`` or ``label``, the earliest no ``burstiness``."""

VLLM_LATENCY = Sample(
    tool="vllm bench latency",
    documents=({"model_id": "org/model", "avg_latency": 1.31, "latencies": [1.3, 1.31, 1.32],
                "percentiles": {"10": 1.3, "50": 1.31, "99": 1.32}},),
    asked=rf"{FIRST}model_id",
    measured={rf"{FIRST}percentiles\.50": ("e2e_median", 1.0),
              rf"{FIRST}percentiles\.(10|99)": (r"e2e_quantile[p\1]", 1.0)},
    counted=r"(?!)",
    exact=rf"{FIRST}(avg_latency|percentiles\.\d+)",
    bound=rf"{FIRST}latencies\[\d\]",
)  # fmt: skip

VLLM_THROUGHPUT = Sample(
    tool="vllm bench throughput",
    documents=({"model_id": "org/model", "elapsed_time": 50.0, "num_requests": 1000, "total_num_tokens": 640000,
                "requests_per_second": 20.0, "tokens_per_second": 12800.0},),
    asked=rf"{FIRST}(model_id|num_requests)",
    measured={rf"{FIRST}requests_per_second": ("request_throughput", 1.0),
              rf"{FIRST}tokens_per_second": ("token_throughput", 1.0)},
    counted=rf"{FIRST}total_num_tokens",
    exact=rf"{FIRST}(elapsed_time|num_requests|total_num_tokens|(requests|tokens)_per_second)",
)  # fmt: skip

SGLANG = Sample(
    tool="sglang.bench_serving",
    documents=({
        "tag": None, "backend": "sglang", "dataset_name": "random", "request_rate": "inf", "max_concurrency": 64,
        "sharegpt_output_len": None, "random_input_len": 1024, "random_output_len": 128, "random_range_ratio": 1.0,
        "server_info": {"model_path": "org/model", "tokenizer_path": "org/model", "version": "0.5.16", "tp_size": 1,
                        "quantization": None},
        "duration": 100.0, "completed": 1000, "total_input_tokens": 1024000, "total_output_tokens": 128000,
        "total_output_tokens_retokenized": 127990, "request_throughput": 10.0, "input_throughput": 10240.0,
        "output_throughput": 1280.0, "mean_e2e_latency_ms": 6300.0, "median_e2e_latency_ms": 6280.0,
        "std_e2e_latency_ms": 90.0, "p99_e2e_latency_ms": 6900.0, "mean_ttft_ms": 300.0, "median_ttft_ms": 290.0,
        "std_ttft_ms": 30.0, "p99_ttft_ms": 500.0, "mean_tpot_ms": 47.0, "median_tpot_ms": 47.1, "std_tpot_ms": 1.0,
        "p99_tpot_ms": 49.0, "mean_itl_ms": 47.0, "median_itl_ms": 46.0, "std_itl_ms": 9.0, "p95_itl_ms": 60.0,
        "p99_itl_ms": 90.0, "concurrency": 63.0, "accept_length": None,
    },),
    asked=rf"{FIRST}(backend|dataset_name|request_rate|max_concurrency|sharegpt_output_len|random_\w+|"
          r"server_info\.((model|tokenizer)_path|tp_size|quantization))",
    measured=_RATES | _times(FIRST, "ttft_ms", "ttft") | _times(FIRST, "itl_ms", "itl")
    | _times(FIRST, "tpot_ms", "tpot") | _times(FIRST, "e2e_latency_ms", "e2e"),
    counted=rf"{FIRST}(completed|total_(input|output)_tokens|mean_itl_ms|median_tpot_ms)",
    exact=rf"{FIRST}(completed|total_output_tokens|duration|(request|output)_throughput)",
    bound=rf"{FIRST}(mean|median|p\d+)_\w+_ms",
)  # fmt: skip
"""SGLang 0.5. Earlier ones have no ``server_info`` and no ``tag``."""


def _spread(middle: float) -> dict[str, Any]:
    shares = {f"p{name}": middle * (0.5 + int(name) / 100) for name in ("01", "05", "10", "50", "95", "99")}
    told = {"mean": middle, "median": middle, "std_dev": middle / 10, "count": 100, "percentiles": shares}
    return {"successful": told, "errored": {"mean": 0.0}, "incomplete": {"mean": 0.0}}


def _guide_metrics(rate: float) -> dict[str, Any]:
    return {
        "requests_per_second": _spread(rate), "output_tokens_per_second": _spread(128 * rate),
        "time_to_first_token_ms": _spread(20.0), "inter_token_latency_ms": _spread(10.0),
        "request_latency": _spread(1.3), "prompt_token_count": _spread(512.0), "output_token_count": _spread(128.0),
    }  # fmt: skip


TOTALS = {"successful": 100, "errored": 0, "incomplete": 0, "total": 100}
_GUIDE_FIGURES: Measured = {
    r"\[0\]\.benchmarks\[\d\]\.metrics\.time_to_first_token_ms\.successful\.median": ("ttft_median", 1e-3),
    r"\[0\]\.benchmarks\[\d\]\.metrics\.time_to_first_token_ms\.successful\.percentiles\.p0?((?!50)[1-9]\d?)":
        (r"ttft_quantile[p\1]", 1e-3),
    r"\[0\]\.benchmarks\[\d\]\.metrics\.inter_token_latency_ms\.successful\.mean": ("tpot_mean", 1e-3),
    r"\[0\]\.benchmarks\[\d\]\.metrics\.inter_token_latency_ms\.successful\.percentiles\.p0?((?!50)[1-9]\d?)":
        (r"tpot_quantile[p\1]", 1e-3),
    r"\[0\]\.benchmarks\[\d\]\.metrics\.request_latency\.successful\.median": ("e2e_median", 1.0),
    r"\[0\]\.benchmarks\[\d\]\.metrics\.request_latency\.successful\.percentiles\.p0?((?!50)[1-9]\d?)":
        (r"e2e_quantile[p\1]", 1.0),
    r"\[0\]\.benchmarks\[\d\]\.metrics\.requests_per_second\.successful\.mean": ("request_throughput", 1.0),
    r"\[0\]\.benchmarks\[\d\]\.metrics\.output_tokens_per_second\.successful\.mean": ("output_throughput", 1.0),
}  # fmt: skip
_GUIDE_COUNTED = (
    r".*\.(request_totals\.(successful|errored|incomplete)|(prompt|output)_token_count\.successful\.mean|"
    r"inter_token_latency_ms\.successful\.median)"
)
_GUIDE_BOUND = r".*\.(mean|median|p\d+)"

GUIDELLM = Sample(
    tool="GuideLLM",
    documents=({
        "metadata": {"version": 1, "guidellm_version": "0.6.0"},
        "args": {"target": "http://localhost:8000", "model": "org/model", "profile": "concurrent", "rate": [8],
                 "data": ["prompt_tokens=512,output_tokens=128"], "max_requests": 100, "output_dir": "results"},
        "benchmarks": [{
            "type_": "generative_benchmark",
            "config": {"id_": "1a", "strategy": {"type_": "concurrent", "streams": 8, "worker_count": 4}},
            "metrics": {"request_totals": dict(TOTALS), **_guide_metrics(0.7)},
        }],
    },),
    asked=r"\[0\]\.(args\.(model|profile|rate|data|max_requests)\b.*|"
          r"benchmarks\[0\]\.config\.strategy\.(type_|streams))",
    measured=_GUIDE_FIGURES,
    counted=_GUIDE_COUNTED,
    bound=_GUIDE_BOUND,
)  # fmt: skip
"""GuideLLM 0.4 to 0.6."""

GUIDELLM_LATER = Sample(
    tool="GuideLLM",
    documents=({
        "metadata": {"version": 2, "guidellm_version": "0.8.1"},
        "config": {"metadata": {"labels": {}}, "spec": {
            "backend": {"kind": "openai_http", "target": "http://localhost:8000", "model": "org/model", "stream": True},
            "profile": {"kind": "constant", "rate": [2.0, 4.0]}, "seed": {"kind": "static", "value": 42},
            "data": [{"kind": "synthetic_text", "prompt_tokens": 512, "output_tokens": 128}],
            "outputs": [{"kind": "json", "path": "benchmarks.json"}]}},
        "benchmarks": [{
            "type_": "generative_benchmark", "config": {"strategy": {"type_": "constant", "rate": rate}},
            "metrics": {"request_totals": dict(TOTALS), **_guide_metrics(rate)},
        } for rate in (2.0, 4.0)],
    },),
    asked=r"\[0\]\.(config\.spec\.(backend\.(kind|model|stream)|profile|seed|data)\b.*|"
          r"benchmarks\[\d\]\.config\.strategy\.(type_|rate))",
    measured=_GUIDE_FIGURES,
    counted=_GUIDE_COUNTED,
    bound=_GUIDE_BOUND,
)  # fmt: skip
"""GuideLLM 0.7 and 0.8."""

GUIDELLM_BEFORE = Sample(
    tool="GuideLLM",
    documents=({"benchmarks": [{
        "type_": "generative_benchmark",
        "args": {"strategy": {"type_": "poisson", "rate": 4.0}, "max_number": 100, "max_duration": None},
        "worker": {"backend_type": "openai_http", "backend_target": "http://localhost", "backend_model": "org/model"},
        "request_loader": {"data": "prompt_tokens=512", "data_args": None, "processor": "org/model"},
        "request_totals": dict(TOTALS), "metrics": _guide_metrics(4.0),
    }]},),
    asked=r"\[0\]\.benchmarks\[0\]\.(args\.(strategy\.(type_|rate)|max_number|max_duration)|"
          r"worker\.backend_(type|model)|request_loader\.(data|data_args|processor))",
    measured=_GUIDE_FIGURES,
    counted=_GUIDE_COUNTED,
    bound=_GUIDE_BOUND,
)  # fmt: skip
"""GuideLLM 0.2 and 0.3."""


def _table(unit: str, middle: float) -> dict[str, Any]:
    return {"unit": unit, "avg": middle, "p1": middle * 0.8, "p50": middle * 0.99, "p99": middle * 1.4, "std": 1.0}


_NVIDIA: dict[str, Any] = {
    "request_throughput": {"unit": "requests/sec", "avg": 9.5},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 1216.0},
    "time_to_first_token": _table("ms", 20.0), "inter_token_latency": _table("ms", 10.5),
    "request_latency": _table("ms", 1400.0), "input_sequence_length": _table("tokens", 512.0),
    "output_sequence_length": _table("tokens", 128.0), "request_count": {"unit": "requests", "avg": 80.0},
}  # fmt: skip
_NVIDIA_FIGURES: Measured = {
    r"\[0\]\.time_to_first_token\.p50": ("ttft_median", 1e-3),
    r"\[0\]\.time_to_first_token\.p(1|99)": (r"ttft_quantile[p\1]", 1e-3),
    r"\[0\]\.inter_token_latency\.avg": ("tpot_mean", 1e-3),
    r"\[0\]\.inter_token_latency\.p(1|50|99)": (r"tpot_quantile[p\1]", 1e-3),
    r"\[0\]\.request_latency\.p50": ("e2e_median", 1e-3),
    r"\[0\]\.request_latency\.p(1|99)": (r"e2e_quantile[p\1]", 1e-3),
    r"\[0\]\.request_throughput\.avg": ("request_throughput", 1.0),
    r"\[0\]\.output_token_throughput\.avg": ("output_throughput", 1.0),
}
_NVIDIA_COUNTED = (
    r"\[0\]\.((error_)?request_count\.avg|(input|output)_sequence_length\.avg|was_cancelled|is_complete|"
    r"error_summary.*)"
)
_NVIDIA_EXACT = r"\[0\]\.((request|output_token)_throughput|output_sequence_length)\.avg"
_NVIDIA_BOUND = r".*\.(avg|p\d+|unit)"

AIPERF = Sample(
    tool="aiperf",
    documents=({
        **_NVIDIA, "was_cancelled": False, "error_summary": [],
        "input_config": {
            "endpoint": {"model_names": ["org/model"], "type": "chat", "streaming": True, "url": "localhost:8000"},
            "input": {"prompt": {"input_tokens": {"mean": 512}}}, "output": {"artifact_directory": "artifacts"},
            "loadgen": {"concurrency": 16, "request_count": 80}, "cli_command": "aiperf profile",
        },
    },),
    asked=r"\[0\]\.input_config\.(endpoint\.(model_names|type|streaming)|input|loadgen)\b.*",
    measured=_NVIDIA_FIGURES,
    counted=_NVIDIA_COUNTED,
    exact=_NVIDIA_EXACT,
    bound=_NVIDIA_BOUND,
)  # fmt: skip
"""aiperf 0.1."""

AIPERF_LATER = Sample(
    tool="aiperf",
    documents=({
        "schema_version": "1.4", "aiperf_version": "0.13.0", "benchmark_id": "b0", **_NVIDIA,
        "error_request_count": {"unit": "requests", "avg": 0.0}, "is_complete": True, "was_cancelled": False,
        "input_config": {
            "models": {"items": [{"name": "org/model"}]},
            "endpoint": {"urls": ["http://localhost:8000"], "type": "completions", "streaming": True},
            "datasets": [{"name": "main", "type": "synthetic", "prompts": {"isl": {"mean": 512.0}}}],
            "phases": [{"name": "profiling", "type": "poisson", "requests": 80, "rate": 10.0}],
            "artifacts": {"dir": "artifacts"}, "tokenizer": {"name": "org/model"}, "runtime": {"ui": "none"},
        },
    },),
    asked=r"\[0\]\.input_config\.(models|endpoint\.(type|streaming)|datasets|phases|tokenizer)\b.*",
    measured=_NVIDIA_FIGURES,
    counted=_NVIDIA_COUNTED,
    exact=_NVIDIA_EXACT,
    bound=_NVIDIA_BOUND,
)  # fmt: skip

GENAI_PERF = Sample(
    tool="genai-perf",
    documents=({
        **_NVIDIA,
        "input_config": {
            "model_names": ["org/model"], "subcommand": "profile", "verbose": False,
            "endpoint": {"type": "chat", "streaming": True, "url": "localhost:8000"},
            "perf_analyzer": {"path": "perf_analyzer", "stimulus": {"concurrency": 16},
                              "measurement": {"mode": "request_count", "num": 80}},
            "tokenizer": {"name": "org/model"}, "output": {"artifact_directory": "artifacts"},
        },
    },),
    asked=r"\[0\]\.input_config\.(model_names|endpoint\.(type|streaming)|perf_analyzer\.(stimulus|measurement)|"
          r"tokenizer)\b.*",
    measured=_NVIDIA_FIGURES,
    counted=_NVIDIA_COUNTED,
    exact=_NVIDIA_EXACT,
    bound=_NVIDIA_BOUND,
)  # fmt: skip
"""genai-perf 0.0.16."""

GENAI_PERF_BEFORE = Sample(
    tool="genai-perf",
    documents=({
        **_NVIDIA, "output_token_throughput_per_request": _table("tokens/sec", 91.0),
        "input_config": {"model": ["org/model"], "formatted_model_name": "org_model", "backend": "vllm",
                         "endpoint_type": "chat", "streaming": True, "concurrency": 16, "request_rate": None,
                         "u": "localhost:8000", "artifact_dir": "artifacts", "request_count": 80},
    },),
    asked=r"\[0\]\.input_config\.(model|backend|endpoint_type|streaming|concurrency|request_rate|request_count)\b.*",
    measured=_NVIDIA_FIGURES,
    counted=_NVIDIA_COUNTED,
    exact=_NVIDIA_EXACT,
    bound=_NVIDIA_BOUND,
)  # fmt: skip
"""Earlier genai-perf, whose arguments stand in one table."""


def _llama(n_prompt: int, n_gen: int, rate: float, **more: Any) -> dict[str, Any]:
    return {
        "build_commit": "c5a3bc39b", "build_number": 9006, "cpu_info": "cpu", "gpu_info": "gpu", "backends": "CUDA",
        "model_filename": "model.gguf", "model_type": "qwen3 8B Q8_0", "model_size": 8000000000,
        "model_n_params": 8000000000, "n_batch": 2048, "n_ubatch": 512, "n_threads": 8, "type_k": "f16",
        "type_v": "f16", "n_gpu_layers": 99, "flash_attn": False, "n_prompt": n_prompt, "n_gen": n_gen, "n_depth": 0,
        "test_time": "2026-08-01T10:00:00Z", "avg_ns": 1000, "stddev_ns": 1, "avg_ts": rate, "stddev_ts": 0.3,
        "samples_ns": [999, 1001], "samples_ts": [rate, rate], **more,
    }  # fmt: skip


LLAMA_BENCH = Sample(
    tool="llama-bench",
    documents=([_llama(512, 0, 900.0), _llama(0, 128, 80.0), _llama(0, 128, 60.0, n_depth=4096),
                _llama(512, 128, 300.0)],),
    asked=r"\[0\]\[\d\]\.(cpu_info|gpu_info|backends|model_\w+|n_\w+|type_[kv]|flash_attn)",
    measured={r"\[0\]\[0\]\.avg_ts": ("prompt_throughput", 1.0), r"\[0\]\[[12]\]\.avg_ts": ("output_throughput", 1.0),
              r"\[0\]\[3\]\.avg_ts": ("token_throughput", 1.0)},
    counted=r"(?!)",
)  # fmt: skip

SAMPLES: Mapping[str, Sample] = {
    "vllm serve": VLLM, "vllm latency": VLLM_LATENCY, "vllm throughput": VLLM_THROUGHPUT, "sglang": SGLANG,
    "guidellm 0.2": GUIDELLM_BEFORE, "guidellm 0.4": GUIDELLM, "guidellm 0.7": GUIDELLM_LATER, "aiperf 0.1": AIPERF,
    "aiperf 0.13": AIPERF_LATER, "genai-perf before": GENAI_PERF_BEFORE, "genai-perf 0.0.16": GENAI_PERF,
    "llama-bench": LLAMA_BENCH,
}  # fmt: skip
"""By name and first release of the form."""


def placed(documents: tuple[Any, ...], path: str, value: Any) -> tuple[Any, ...]:
    """The same with another value at a path, or without it where the value is ``...``."""
    changed = deepcopy(list(documents))
    *above, last = re.findall(r"[^.\[\]]+(?:\.\d+_\w+)?", path)
    holder: Any = changed
    for key in above:
        holder = holder[int(key) if isinstance(holder, list) else key]
    key = int(last) if isinstance(holder, list) else last
    if value is ...:
        del holder[key]
    else:
        holder[key] = value
    return tuple(changed)
