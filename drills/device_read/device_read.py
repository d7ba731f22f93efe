"""Plant: the host reads a value back from the device in every step, so it waits until the model's forward is done.

``PERFGATE_PLANT_READS=N`` reads N values, one after the other (default 1). vLLM calls :func:`register` through the
entry point; an error in it ends the engine, while one at import would only be logged.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

MARK = "_perfgate_device_read"
READS = "PERFGATE_PLANT_READS"


def register() -> None:
    """Patch ``LlamaForCausalLM.compute_logits``; a second call in one process changes nothing.

    Raises:
        RuntimeError: This vLLM has no such method, or ``PERFGATE_PLANT_READS`` is no number from 1.
    """
    try:
        from vllm.model_executor.models.llama import LlamaForCausalLM

        compute_logits = LlamaForCausalLM.compute_logits
    except (ImportError, AttributeError) as error:
        raise RuntimeError("device_read: this vLLM has no LlamaForCausalLM.compute_logits to patch") from error
    if getattr(compute_logits, MARK, False):
        return
    reads = os.environ.get(READS, "1")
    if not reads.isdecimal() or int(reads) < 1:
        raise RuntimeError(f"device_read: {READS}={reads!r}, expected a number from 1")

    @wraps(compute_logits)
    def after_reads(self: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        if not hidden_states.is_cuda:
            raise RuntimeError("device_read: needs a GPU")
        for _ in range(int(reads)):
            hidden_states[0, 0].item()
        return compute_logits(self, hidden_states, *args, **kwargs)

    setattr(after_reads, MARK, True)
    LlamaForCausalLM.compute_logits = after_reads
