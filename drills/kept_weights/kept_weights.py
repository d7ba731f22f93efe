"""Plant: some decoder layers keep a second copy of their weights, as after a conversion that keeps its source.

``PERFGATE_PLANT_EVERY=N`` says which: every Nth layer (default 8). vLLM calls :func:`register` through the entry point;
an error in it ends the engine, while one at import would only be logged.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

MARK = "_perfgate_kept_weights"
EVERY = "PERFGATE_PLANT_EVERY"


def register() -> None:
    """Patch ``LlamaDecoderLayer.__init__``; a second call in one process changes nothing.

    Raises:
        RuntimeError: This vLLM has no such class, or ``PERFGATE_PLANT_EVERY`` is no number from 1.
    """
    try:
        from vllm.model_executor.models.llama import LlamaDecoderLayer

        construct = LlamaDecoderLayer.__init__
    except (ImportError, AttributeError) as error:
        raise RuntimeError("kept_weights: this vLLM has no LlamaDecoderLayer to patch") from error
    if getattr(construct, MARK, False):
        return
    every = os.environ.get(EVERY, "8")
    if not every.isdecimal() or int(every) < 1:
        raise RuntimeError(f"kept_weights: {EVERY}={every!r}, expected a number from 1")
    built = 0

    @wraps(construct)
    def with_copies(self: Any, *args: Any, **kwargs: Any) -> None:
        # Layers are built in their order; a tensor- or pipeline-parallel rank counts its own.
        nonlocal built
        construct(self, *args, **kwargs)
        if built % int(every) == 0:
            # A list is no module and no buffer: nothing loads, moves or uses these.
            self.perfgate_kept = [weight.detach().clone() for weight in self.parameters()]
        built += 1

    setattr(with_copies, MARK, True)
    LlamaDecoderLayer.__init__ = with_copies
