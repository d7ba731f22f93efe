"""How much of a KV cache a workload needs, by the model's configuration, before an engine starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfgate.errors import UsageError
from perfgate.metrics.transformer import read_config, step_demand
from perfgate.scenario.workload import Workload

PINNED = "kv_cache_memory_bytes"
OVERRIDES = ("num_gpu_blocks_override", "runner")
"""Engine arguments under which the pinned size is not that of the cache, or no token is decoded."""


def kept_bytes(folder: Path | None, args: Mapping[str, Any], work: Workload) -> int | None:
    """Bytes of keys and values of all requests in their last decode step, on one GPU; what windows drop is not kept.

    ``None`` where that is not known: for a model or an argument that is not counted, and beside images.
    """
    if folder is None or work.images is not None:
        return None
    tokens = max(2, work.input_tokens + work.output_tokens - 1)  # the last token of an answer is not kept
    try:
        # A step of this context is the only one of two tokens after a prompt that is one shorter.
        demand = step_demand(read_config(folder), args, batch=work.batch, input_tokens=tokens - 1, output_tokens=2)
    except UsageError:
        return None
    return int(demand.kv_read)


def pinned_bytes(args: Mapping[str, Any]) -> int | None:
    """The size that the arguments give the KV cache of each GPU, where they do."""
    pinned = args.get(PINNED)
    return pinned if type(pinned) is int and pinned > 0 and not any(args.get(key) for key in OVERRIDES) else None


def cannot_hold(folder: Path | None, args: Mapping[str, Any], work: Workload) -> int | None:
    """The bytes that a workload needs of a cache whose size is given, where that is more than there is."""
    pinned, kept = pinned_bytes(args), kept_bytes(folder, args, work)
    return kept if pinned is not None and kept is not None and kept > pinned else None
