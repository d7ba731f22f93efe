"""Plant: the host computes for some microseconds more in every step, outside any CUDA graph.

``PERFGATE_PLANT_US=N`` says for how many (default 50). vLLM calls :func:`register` through the entry point; an error in
it ends the engine, while one at import would only be logged.
"""

from __future__ import annotations

import os
import time
from functools import wraps
from typing import Any

MARK = "_perfgate_host_work"
LENGTH = "PERFGATE_PLANT_US"


def register() -> None:
    """Patch ``LlamaForCausalLM.compute_logits``; a second call in one process changes nothing.

    Raises:
        RuntimeError: This vLLM has no such method, or ``PERFGATE_PLANT_US`` is no number from 1.
    """
    try:
        from vllm.model_executor.models.llama import LlamaForCausalLM

        compute_logits = LlamaForCausalLM.compute_logits
    except (ImportError, AttributeError) as error:
        raise RuntimeError("host_work: this vLLM has no LlamaForCausalLM.compute_logits to patch") from error
    if getattr(compute_logits, MARK, False):
        return
    length = os.environ.get(LENGTH, "50")
    if not length.isdecimal() or int(length) < 1:
        raise RuntimeError(f"host_work: {LENGTH}={length!r}, expected a number from 1")

    @wraps(compute_logits)
    def after_work(self: Any, *args: Any, **kwargs: Any) -> Any:
        until = time.perf_counter_ns() + 1000 * int(length)
        while time.perf_counter_ns() < until:
            pass
        return compute_logits(self, *args, **kwargs)

    setattr(after_work, MARK, True)
    LlamaForCausalLM.compute_logits = after_work
