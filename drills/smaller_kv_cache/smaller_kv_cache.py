"""Plant: a share of the memory for the KV cache is reserved for something else, so that it holds fewer tokens.

``PERFGATE_PLANT_PERCENT=N`` says how large a share (default 20). It is taken from what the worker found, and from a
size that is given by ``kv_cache_memory_bytes`` too. vLLM calls :func:`register` through the entry point; an error in it
ends the engine, while one at import would only be logged.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

MARK = "_perfgate_smaller_kv_cache"
SHARE = "PERFGATE_PLANT_PERCENT"
WHOLE = 100


def register() -> None:
    """Patch ``Executor.determine_available_memory``; a second call in one process changes nothing.

    Raises:
        RuntimeError: This vLLM has no such method, or ``PERFGATE_PLANT_PERCENT`` is no number from 1 to 99.
    """
    try:
        from vllm.v1.executor.abstract import Executor

        available = Executor.determine_available_memory
    except (ImportError, AttributeError) as error:
        raise RuntimeError("smaller_kv_cache: this vLLM has no Executor.determine_available_memory to patch") from error
    if getattr(available, MARK, False):
        return
    share = os.environ.get(SHARE, "20")
    if not share.isdecimal() or not 1 <= int(share) < WHOLE:
        raise RuntimeError(f"smaller_kv_cache: {SHARE}={share!r}, expected a number from 1 to 99")

    @wraps(available)
    def without_reserve(self: Any, *args: Any, **kwargs: Any) -> list[int]:
        return [memory - memory * int(share) // WHOLE for memory in available(self, *args, **kwargs)]

    setattr(without_reserve, MARK, True)
    Executor.determine_available_memory = without_reserve
