"""What an engine holds: weights, KV cache, modules, and the memory of its processes and GPUs between iterations.

Part of :mod:`perfgate.capture.vllm_worker`, which loads it by its path: it imports nothing of perfgate and must run on
Python 3.10. What runs in a rank travels there by value, because no rank can import this file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CallRanks = Callable[..., "list[Any]"]
ALLOCATOR = {"allocation.all.allocated": "CUDA allocations", "segment.all.allocated": "CUDA segments"}
"""Running totals of ``torch.cuda.memory_stats``: requests to torch's allocator, and what it asked the driver for."""


def kept_bytes(engine: Any, call_ranks: CallRanks) -> dict[str, int | None]:
    """Bytes of weights and of the KV cache over all ranks; ``None`` where a rank does not tell."""
    ranks = call_ranks(engine, rank_keeps)
    answers = [rank for rank in ranks if isinstance(rank, list)]
    weights, cache = zip(*answers) if answers and len(answers) == len(ranks) else ((None,), (None,))  # noqa: B905 (3.10)
    return {
        "model_memory_bytes": None if None in weights else sum(weights),
        "kv_memory_bytes": None if None in cache else sum(cache),
    }


def rank_keeps(worker: Any) -> list[int | None]:
    """Weights and KV cache of one rank; called by vLLM.

    The weights are what loading them took, as vLLM's own figure has it. The CPU's runner has none; there it is what the
    model's parameters and buffers take.
    """
    runner = getattr(getattr(worker, "worker", worker), "model_runner", None)
    usage = getattr(runner, "model_memory_usage", None)
    if not usage:
        model: Any = getattr(runner, "model", None)
        usage = storage_bytes([*model.parameters(), *model.buffers()]) if hasattr(model, "parameters") else None
    return [int(usage) if usage else None, storage_bytes(getattr(runner, "kv_caches", ()))]


def storage_bytes(tensors: Any) -> int | None:
    """What tensors take, those that share a storage once; ``None`` without any."""
    sizes: dict[int, int] = {}
    left = [tensors]
    while left:
        entry = left.pop()
        if isinstance(entry, (list, tuple)):
            left.extend(entry)
        elif hasattr(entry, "untyped_storage"):
            storage = entry.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values()) or None


def kv_token_capacity(engine: Any) -> int | None:
    """Tokens that the KV cache holds; the engine's own figure where there is one, else blocks times their size."""
    cache = engine.vllm_config.cache_config
    tokens = getattr(cache, "kv_cache_size_tokens", None)
    if isinstance(tokens, int) and tokens > 0:
        return tokens
    blocks, size = getattr(cache, "num_gpu_blocks", None), getattr(cache, "block_size", None)
    return blocks * size if isinstance(blocks, int) and isinstance(size, int) else None


def process_figures(plain: Callable[[str], str]) -> dict[str, dict[str, int]]:
    """What this process has imported, and running totals of its allocators, of which an iteration adds some.

    Args:
        plain: A name without digests of generated code.

    Returns:
        ``modules``, all and by the package that they are in, of whose name the first two parts count; ``totals``:
        blocks that Python's allocator holds (``sys.getallocatedblocks``) and, where a GPU was touched, torch's, unless
        its allocator keeps none, as pluggable ones may: then the log says so.
    """
    modules = {"modules": len(sys.modules)}
    for name in [*sys.modules]:
        *package, _ = plain(name).split(".")
        if package:
            of = f"modules of {'.'.join(package[:2])}"
            modules[of] = modules.get(of, 0) + 1
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        stats = cuda.memory_stats() if cuda is not None and cuda.is_initialized() else {}
    except Exception as error:  # noqa: BLE001 (whatever it is, the trial goes on without these figures)
        stats = {}
        sys.stderr.write(f"perfgate: no totals of torch's allocator: {type(error).__name__}: {error}\n")
        sys.stderr.flush()
    totals = {words: int(stats[name]) for name, words in ALLOCATOR.items() if name in stats}
    return {"modules": modules, "totals": {"blocks of Python's memory": sys.getallocatedblocks(), **totals}}


class MemoryReader:
    """Readings of one engine's processes, between iterations; once one has failed there are no more.

    Args:
        call_ranks: Calls a function in each rank, given the engine and the function.
    """

    def __init__(self, call_ranks: CallRanks) -> None:
        self.call_ranks = call_ranks
        self.off = False

    def read(self, engine: Any) -> list[list[int]]:
        """A reading of this process and of each rank, see :func:`read_rank`; empty where one fails; the log says why.

        What a rank holds that shares this process is read twice; its process id tells.
        """
        if self.off:
            return []
        try:
            readings = [process_memory(), *self.call_ranks(engine, read_rank)]
        except Exception as error:  # noqa: BLE001 (whatever it is, the trial goes on without readings)
            readings = [f"{type(error).__name__}: {error}"]
        if all(isinstance(reading, list) for reading in readings):
            return readings
        self.off = True
        sys.stderr.write(f"perfgate: no reading of memory: {readings}\n")
        sys.stderr.flush()
        return []


def read_rank(_worker: Any) -> list[int] | str:
    """This rank's process, and what torch holds on its GPU where it has one, since the reading before; called by vLLM.

    Three figures as :func:`process_memory` has them, then allocated bytes, the most of them, and the most reserved.
    Nothing is raised: vLLM would leave the other ranks' answers unread, and take them for those to its next call.
    """
    try:
        import torch

        if not torch.cuda.is_initialized():
            return process_memory()
        device = torch.cuda
        figures = [device.memory_allocated(), device.max_memory_allocated(), device.max_memory_reserved()]
        device.reset_peak_memory_stats()
        return [*process_memory(), *figures]
    except Exception as error:  # noqa: BLE001 (told to the rank that asked)
        return f"{type(error).__name__}: {error}"


def process_memory() -> list[int]:
    """The process's id, its resident bytes without mapped files, and the most that were resident, files and all.

    proc(5), ``/proc/PID/status``: kibibytes. Linux before 4.5 does not tell files apart.
    """
    status = Path("/proc/self/status").read_text("ascii", "replace")
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    kib = {name: int(fields[name].split()[0]) for name in ("VmRSS", "VmHWM", "RssAnon", "RssShmem") if name in fields}
    resident = kib["RssAnon"] + kib.get("RssShmem", 0) if "RssAnon" in kib else kib["VmRSS"]
    return [os.getpid(), 1024 * resident, 1024 * kib["VmHWM"]]
