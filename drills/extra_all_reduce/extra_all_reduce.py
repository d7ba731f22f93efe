"""Plant: one more all-reduce in a decoder layer, whose result is thrown away.

``PERFGATE_PLANT_EVERY=N`` puts it in every Nth layer only (default 1: every layer). It needs ``tensor_parallel_size``
of at least 2. vLLM calls :func:`register` through the entry point; an error in it ends the engine, while one at import
would only be logged.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

MARK = "_perfgate_extra_all_reduce"
EVERY = "PERFGATE_PLANT_EVERY"


def register() -> None:
    """Patch ``LlamaDecoderLayer``; a second call in one process changes nothing.

    Raises:
        RuntimeError: This vLLM has no such class, or ``PERFGATE_PLANT_EVERY`` is no number from 1.
    """
    try:
        from vllm import distributed
        from vllm.model_executor.models.llama import LlamaDecoderLayer

        construct, forward = LlamaDecoderLayer.__init__, LlamaDecoderLayer.forward
        ranks, all_reduce = (
            distributed.get_tensor_model_parallel_world_size,
            distributed.tensor_model_parallel_all_reduce,
        )
    except (ImportError, AttributeError) as error:
        raise RuntimeError("extra_all_reduce: this vLLM has no LlamaDecoderLayer or all-reduce to patch") from error
    if getattr(forward, MARK, False):
        return
    every = os.environ.get(EVERY, "1")
    if not every.isdecimal() or int(every) < 1:
        raise RuntimeError(f"extra_all_reduce: {EVERY}={every!r}, expected a number from 1")
    built = 0

    @wraps(construct)
    def count_layers(self: Any, *args: Any, **kwargs: Any) -> None:
        # Layers are built in their order; a tensor- or pipeline-parallel rank counts its own.
        nonlocal built
        if ranks() == 1:
            raise RuntimeError("extra_all_reduce: needs tensor_parallel_size of at least 2")
        construct(self, *args, **kwargs)
        self.perfgate_reduces = built % int(every) == 0
        built += 1

    @wraps(forward)
    def with_all_reduce(self: Any, *args: Any, **kwargs: Any) -> Any:
        hidden_states, residual = forward(self, *args, **kwargs)
        if self.perfgate_reduces:
            all_reduce(hidden_states)
        return hidden_states, residual

    setattr(with_all_reduce, MARK, True)
    LlamaDecoderLayer.__init__ = count_layers
    LlamaDecoderLayer.forward = with_all_reduce
