"""What a server tells of itself: its ``/metrics`` in Prometheus' text format, of which a few counters are read.

They are read before and after a window, never within one: to answer takes the server milliseconds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from perfgate.capture.timeline import LARGEST

MOST_BYTES: Final = 4 * 1024**2
"""Of the text. vLLM 0.32 with one engine answers 50 kB."""
MOST_LINE: Final = 16 * 1024
"""Of one sample with its labels: the parser's time grows with their square."""
COUNTERS: Final[Mapping[str, tuple[str, float]]] = {
    "queue_ns": ("vllm:request_queue_time_seconds_sum", 1e9),
    "queued": ("vllm:request_queue_time_seconds_count", 1),
    "preemptions": ("vllm:num_preemptions_total", 1),
    "prefix_hits": ("vllm:prefix_cache_hits_total", 1),
    "prefix_queries": ("vllm:prefix_cache_queries_total", 1),
    "drafts_accepted": ("vllm:spec_decode_num_accepted_tokens_total", 1),
    "drafts": ("vllm:spec_decode_num_draft_tokens_total", 1),
}
"""By the name of a trial's figure: the sample, summed over its labels, and a factor to whole numbers."""
KV_USE: Final = "vllm:kv_cache_usage_perc"
"""A share, in spite of its name."""
CACHE: Final = "vllm:cache_config_info"
"""Its labels tell the size of the KV cache."""

_READ: Final = tuple(name.encode() for name in (*(name for name, _ in COUNTERS.values()), KV_USE, CACHE))

Scrape = Mapping[str, list[tuple[Mapping[str, str], float]]]
"""By name of a sample: labels and value of each."""


def read_metrics(text: bytes) -> Scrape:
    """The samples of a text that are read here; none where it is too large, or one of them not of this format."""
    found: dict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
    lines = [line for line in text.splitlines() if line.startswith(_READ)]
    if len(text) > MOST_BYTES or any(len(line) > MOST_LINE for line in lines):
        return {}
    try:
        for family in text_string_to_metric_families(b"\n".join(lines).decode("utf-8", "replace")):
            for sample in family.samples:
                found[sample.name].append((sample.labels, float(sample.value)))
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError):  # what it raises for other text
        return {}
    return found


def total(scrape: Scrape, name: str) -> float | None:
    """A sample summed over its labels; ``None`` where there is none, or it is not a number."""
    values = [value for _, value in scrape.get(name, ())]
    added = sum(values)
    return added if values and math.isfinite(added) else None


def growth(before: Scrape, after: Scrape) -> dict[str, int]:
    """By how much each of :data:`COUNTERS` grew; without those that are missing or ran backwards."""
    grown: dict[str, int] = {}
    for figure, (name, factor) in COUNTERS.items():
        first, last = total(before, name), total(after, name)
        if first is not None and last is not None and 0 <= (more := (last - first) * factor) < LARGEST:
            grown[figure] = round(more)
    return grown


def kv_use_ppm(scrape: Scrape) -> int | None:
    """The share of the KV cache that is in use, in millionths, of the engine that uses most."""
    shares = [value for _, value in scrape.get(KV_USE, ()) if 0 <= value <= 1]
    return round(max(shares) * 1e6) if shares else None


def kv_token_capacity(scrape: Scrape) -> int | None:
    """Tokens that the KV caches of all engines hold; ``None`` where the server does not tell."""
    sizes = []
    for labels, _ in scrape.get(CACHE, ()):
        blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
        if not (blocks.isdecimal() and size.isdecimal() and len(blocks + size) < 18):  # noqa: PLR2004 (below LARGEST)
            return None
        sizes.append(int(blocks) * int(size))
    return sum(sizes) or None
