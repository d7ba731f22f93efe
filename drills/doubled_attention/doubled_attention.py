"""Plant: attention runs twice in a decoder layer, for the same result.

The second run writes the same keys and values to the same slots of the KV cache. ``PERFGATE_PLANT_EVERY=N`` does so in
every Nth layer only (default 1: every layer). vLLM calls :func:`register` through the entry point; an error in it ends
the engine, while one at import would only be logged.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

MARK = "_perfgate_doubled_attention"
EVERY = "PERFGATE_PLANT_EVERY"


def register() -> None:
    """Patch ``LlamaAttention``; a second call in one process changes nothing.

    Raises:
        RuntimeError: This vLLM has no such class, or ``PERFGATE_PLANT_EVERY`` is no number from 1.
    """
    try:
        from vllm.model_executor.models.llama import LlamaAttention

        construct = LlamaAttention.__init__
    except (ImportError, AttributeError) as error:
        raise RuntimeError("doubled_attention: this vLLM has no LlamaAttention to patch") from error
    if getattr(construct, MARK, False):
        return
    every = os.environ.get(EVERY, "1")
    if not every.isdecimal() or int(every) < 1:
        raise RuntimeError(f"doubled_attention: {EVERY}={every!r}, expected a number from 1")
    built = 0

    @wraps(construct)
    def with_second_run(self: Any, *args: Any, **kwargs: Any) -> None:
        # Layers are built in their order; a tensor- or pipeline-parallel rank counts its own.
        nonlocal built
        construct(self, *args, **kwargs)
        if not hasattr(self, "attn"):
            raise RuntimeError("doubled_attention: LlamaAttention has no attn to run twice")
        if built % int(every) == 0:
            self.attn.forward = twice(self.attn.forward)
        built += 1

    setattr(with_second_run, MARK, True)
    LlamaAttention.__init__ = with_second_run


def twice(forward: Any) -> Any:
    """The forward, run twice."""

    @wraps(forward)
    def doubled(*args: Any, **kwargs: Any) -> Any:
        forward(*args, **kwargs)
        return forward(*args, **kwargs)

    return doubled
