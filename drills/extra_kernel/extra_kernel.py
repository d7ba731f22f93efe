"""Plant: one extra elementwise kernel per decoder layer, the layer's output times one.

``PERFGATE_PLANT_EVERY=N`` puts it in every Nth layer only (default 1: every layer). N may be a fraction, since a kernel
is another share of a step on each GPU: at 1.5 two of three layers have one, at 0.4 five come to two layers. vLLM calls
:func:`register` through the entry point; an error in it ends the engine, while one at import would only be logged.
"""

from __future__ import annotations

import math
import os
from functools import wraps
from typing import Any

MARK = "_perfgate_extra_kernel"
EVERY = "PERFGATE_PLANT_EVERY"


def register() -> None:
    """Patch ``LlamaDecoderLayer``; a second call in one process changes nothing.

    Raises:
        RuntimeError: This vLLM has no such class, or ``PERFGATE_PLANT_EVERY`` is no number above 0.
    """
    try:
        from vllm.model_executor.models.llama import LlamaDecoderLayer

        construct, forward = LlamaDecoderLayer.__init__, LlamaDecoderLayer.forward
    except (ImportError, AttributeError) as error:
        raise RuntimeError("extra_kernel: this vLLM has no LlamaDecoderLayer to patch") from error
    if getattr(forward, MARK, False):
        return
    every = _layers_apart(os.environ.get(EVERY, "1"))
    built = 0

    @wraps(construct)
    def count_layers(self: Any, *args: Any, **kwargs: Any) -> None:
        # Layers are built in their order; a tensor- or pipeline-parallel rank counts its own.
        nonlocal built
        construct(self, *args, **kwargs)
        self.perfgate_extra = math.floor(built / every) - math.floor((built - 1) / every)
        built += 1

    @wraps(forward)
    def times_one(self: Any, *args: Any, **kwargs: Any) -> Any:
        hidden_states, residual = forward(self, *args, **kwargs)
        for _ in range(self.perfgate_extra):
            hidden_states = hidden_states * 1.0
        return hidden_states, residual

    setattr(times_one, MARK, True)
    LlamaDecoderLayer.__init__ = count_layers
    LlamaDecoderLayer.forward = times_one


def _layers_apart(text: str) -> float:
    try:
        every = float(text)
    except ValueError:
        every = math.nan
    if not 0 < every < math.inf:
        raise RuntimeError(f"extra_kernel: {EVERY}={text!r}, expected a number above 0")
    return every
