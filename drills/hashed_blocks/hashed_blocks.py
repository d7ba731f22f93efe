"""Plant: the prefix cache hashes each block many times over.

``PERFGATE_PLANT_TIMES=N`` says how often more (default 100). It needs ``enable_prefix_caching``: without it vLLM hashes
nothing. vLLM calls :func:`register` through the entry point; an error in it ends the engine, while one at import would
only be logged.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

MARK = "_perfgate_hashed_blocks"
TIMES = "PERFGATE_PLANT_TIMES"


def register() -> None:
    """Patch ``kv_cache_utils.hash_block_tokens``; a second call in one process changes nothing.

    Raises:
        RuntimeError: This vLLM has no such function, or ``PERFGATE_PLANT_TIMES`` is no number from 1.
    """
    try:
        from vllm.v1.core import kv_cache_utils

        hash_block = kv_cache_utils.hash_block_tokens
    except (ImportError, AttributeError) as error:
        raise RuntimeError("hashed_blocks: this vLLM has no kv_cache_utils.hash_block_tokens to patch") from error
    if getattr(hash_block, MARK, False):
        return
    times = os.environ.get(TIMES, "100")
    if not times.isdecimal() or int(times) < 1:
        raise RuntimeError(f"hashed_blocks: {TIMES}={times!r}, expected a number from 1")

    @wraps(hash_block)
    def many_times(*args: Any, **kwargs: Any) -> Any:
        for _ in range(int(times)):
            hash_block(*args, **kwargs)
        return hash_block(*args, **kwargs)

    setattr(many_times, MARK, True)
    kv_cache_utils.hash_block_tokens = many_times
