"""Results that other load drivers wrote, as metrics of perfgate: aiperf, GuideLLM, ``vllm bench serve``, llama-bench.

They are the files that these tools write themselves: ``profile_export_aiperf.json``
(https://github.com/ai-dynamo/aiperf), GuideLLM's ``benchmarks.json`` (https://github.com/vllm-project/guidellm),
``vllm bench serve --save-result`` and ``llama-bench -o json`` (https://github.com/ggml-org/llama.cpp). What has no
counterpart here is left out. Anybody may have written such a file: numbers and their count are bounded.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from perfgate.errors import RecordError
from perfgate.machine.json_text import Size, read_json
from perfgate.units import plural

RESULT: Final = Size(64, 4_000_000)
"""``vllm bench serve --save-detailed`` keeps every gap between tokens."""
MOST_RUNS: Final = 256
MOST_LOST: Final = 10**9

Result = dict[str, float]
"""By the name of a metric its value in base units."""

_BY_TIME: Final = {"ttft": "ttft", "itl": "itl", "tpot": "tpot", "e2el": "e2e"}
_SECONDS: Final = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "us": 1e-6, "ns": 1e-9}


def read_results(file: Path) -> dict[str, Result] | None:
    """What a file of another load driver says, by the name of each of its runs; ``None`` for any other file.

    Raises:
        RecordError: It is of such a tool, and holds nothing that can be compared.
    """
    try:
        content = read_json(file, RESULT, finite=False)
    except (OSError, ValueError):
        return None
    read = next((read for told, read in _TOOLS if told(content)), None)
    if read is None:
        return None
    runs = [(name, result) for name, result in _first(read(content)) if result]
    found = dict(runs)
    if len(found) < len(runs):
        twice = next(name for name, count in Counter(name for name, _ in runs).items() if count > 1)
        raise RecordError(
            f"holds {twice} more than once, and nobody could tell which is compared", where=str(file),
            remedy="Keep one run of each in the file: the same threads, batches and model on both sides.",
        )  # fmt: skip
    if not found:
        raise RecordError("holds no figure that can be compared", where=str(file))
    return found


def _first(runs: Iterator[tuple[str, Result]]) -> Iterator[tuple[str, Result]]:
    for _, run in zip(range(MOST_RUNS), runs, strict=False):
        yield run


def _number(value: Any, factor: float = 1.0) -> float | None:
    """A positive number in base units."""
    if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
        return None
    return float(value) * factor


def _named(time: str, statistic: str) -> str | None:
    """The metric that is this statistic of a time: ``ttft`` and ``p99`` are ``ttft_quantile[p99]``."""
    if statistic in ("median", "p50") and time != "tpot":
        return f"{time}_median"
    if statistic == "mean" and time == "tpot":
        return "tpot_mean"
    found = re.fullmatch(r"p(\d{1,2}(?:\.\d{1,4})?)", statistic)
    return f"{time}_quantile[p{float(found[1]):g}]" if found and float(found[1]) > 0 else None


def _add(result: Result, name: str | None, value: float | None) -> None:
    if name is not None and value is not None:
        result[name] = value


def _vllm(content: Mapping[str, Any]) -> Iterator[tuple[str, Result]]:
    result: Result = {}
    for key, value in content.items():
        found = re.fullmatch(r"(median|mean|p[\d.]+)_(ttft|itl|tpot|e2el)_ms", key)
        if found:
            _add(result, _named(_BY_TIME[found[2]], found[1]), _number(value, 1e-3))
    for name in ("request_throughput", "output_throughput"):
        _add(result, name, _number(content.get(name)))
    offered = _offered(content.get("request_rate"), content.get("max_concurrency"))
    lost = content.get("failed")
    if lost is None:  # older ones say how many there were
        asked, answered = (content.get(key) for key in ("num_prompts", "completed"))
        lost = asked - answered if type(asked) is int and type(answered) is int else None
    yield f"vllm bench serve{offered}{_failed(lost)}", result


def _offered(rate: Any, users: Any) -> str:
    """The load of a run in words, so that runs of other loads have other names; empty where a file tells none."""
    told = [f"{_number(rate):g} a second"] if _number(rate) else []
    told += [f"{users} at once"] if _number(users) else []
    return f", {', '.join(told)}" if told else ""


def _failed(requests: Any) -> str:
    """What a run lost, in words: its times are those of the rest, so it has another name than a run that lost none."""
    lost = _number(requests) or 0
    if not lost:
        return ""
    return f", {plural(round(lost), 'request') if 1 <= lost < MOST_LOST else 'requests'} failed"


_OF_AIPERF: Final = {"time_to_first_token": "ttft", "inter_token_latency": "tpot", "request_latency": "e2e"}
"""Its inter-token latency is one number a request, the mean of its gaps."""


def _aiperf(content: Mapping[str, Any]) -> Iterator[tuple[str, Result]]:
    result: Result = {}
    for key, time in _OF_AIPERF.items():
        table = content.get(key)
        factor = _SECONDS.get(str(table.get("unit"))) if isinstance(table, dict) else None
        for statistic, value in table.items() if isinstance(table, dict) and factor else ():
            named = _named(time, "mean" if statistic == "avg" else str(statistic))
            _add(result, named, _number(value, factor or 1.0))
    _add(result, "request_throughput", _average(content.get("request_throughput")))
    _add(result, "output_throughput", _average(content.get("output_token_throughput")))
    lost = _average(content.get("error_request_count")) or _summed(content.get("error_summary"))
    ended = ", cancelled" if content.get("was_cancelled") is True else ""
    yield f"aiperf{_failed(lost)}{ended}", result


def _summed(errors: Any) -> float:
    """How many requests a list of errors speaks of."""
    counts = [error.get("count") for error in errors if isinstance(error, dict)] if isinstance(errors, list) else []
    return sum(_number(count) or 0 for count in counts)


def _average(table: Any) -> float | None:
    return _number(table.get("avg")) if isinstance(table, dict) else None


_OF_GUIDELLM: Final = {
    "time_to_first_token_ms": ("ttft", 1e-3), "inter_token_latency_ms": ("tpot", 1e-3), "request_latency": ("e2e", 1.0),
}  # fmt: skip


_RATES_OF_GUIDELLM: Final = {
    "requests_per_second": "request_throughput", "output_tokens_per_second": "output_throughput",
}  # fmt: skip


def _guidellm(content: Mapping[str, Any]) -> Iterator[tuple[str, Result]]:
    for number, run in enumerate(content["benchmarks"]):
        metrics = run.get("metrics") if isinstance(run, dict) else None
        result: Result = {}
        for key, (time, factor) in _OF_GUIDELLM.items():
            told = _successful(metrics, key)
            shares = told.get("percentiles")
            for statistic, value in {**(shares if isinstance(shares, dict) else {}), **told}.items():
                _add(result, _named(time, str(statistic)), _number(value, factor))
        for key, name in _RATES_OF_GUIDELLM.items():
            _add(result, name, _number(_successful(metrics, key).get("mean")))
        yield f"GuideLLM {number + 1}{_strategy(run)}{_failed(_errored(run))}", result


def _strategy(run: Any) -> str:
    """How a run of GuideLLM offered its load, in words; where it tells none there are only numbers."""
    match run:
        case {"config": {"strategy": dict(strategy)}} | {"args": {"strategy": dict(strategy)}}:
            return _offered(strategy.get("rate"), strategy.get("streams"))
    return ""


def _errored(run: Any) -> Any:
    """How many requests of a run of GuideLLM failed, as it says."""
    if not isinstance(run, dict):
        return None
    tables = [own.get("request_totals") for own in (run.get("metrics"), run) if isinstance(own, dict)]
    return next((own["errored"] for own in tables if isinstance(own, dict) and _number(own.get("errored"))), None)


def _successful(metrics: Any, key: str) -> Mapping[str, Any]:
    """The part of a metric that is about requests that were answered."""
    table = metrics.get(key) if isinstance(metrics, dict) else None
    told = table.get("successful") if isinstance(table, dict) else None
    return told if isinstance(told, dict) else {}


def _llama(content: list[Any]) -> Iterator[tuple[str, Result]]:
    for run in content:
        if not isinstance(run, dict) or run.get("n_prompt") != 0 or type(run.get("n_gen")) is not int:
            continue  # prompts alone have no counterpart
        depth = run.get("n_depth")
        result: Result = {}
        _add(result, "output_throughput", _number(run.get("avg_ts")))
        yield f"llama-bench tg{run['n_gen']}{f' @ d{depth}' if type(depth) is int and depth else ''}", result


def _object_with(*keys: str) -> Callable[[Any], bool]:
    return lambda content: isinstance(content, dict) and {*keys} <= content.keys()


def _is_llama(content: Any) -> bool:
    first = content[0] if isinstance(content, list) and content else None
    return isinstance(first, dict) and {"n_prompt", "n_gen", "avg_ts"} <= first.keys()


_TOOLS: Final[tuple[tuple[Callable[[Any], bool], Callable[[Any], Iterator[tuple[str, Result]]]], ...]] = (
    (_object_with("request_throughput", "mean_ttft_ms"), _vllm),
    (_object_with("request_throughput", "request_latency"), _aiperf),
    (lambda content: _object_with("benchmarks")(content) and isinstance(content["benchmarks"], list), _guidellm),
    (_is_llama, _llama),
)
