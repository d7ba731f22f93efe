"""Plant: weights are copied from host memory to the device in every step, as of an adapter that is loaded again.

``PERFGATE_PLANT_MIB=N`` says how many MiB (default 16). The memory is pinned where there is a GPU, so the host does not
wait for the copy, but the device does. vLLM calls :func:`register` through the entry point; an error in it ends the
engine, while one at import would only be logged.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

MARK = "_perfgate_adapter_copies"
SIZE = "PERFGATE_PLANT_MIB"


def register() -> None:
    """Patch ``LlamaForCausalLM.compute_logits``; a second call in one process changes nothing.

    Raises:
        RuntimeError: This vLLM has no such method, or ``PERFGATE_PLANT_MIB`` is no number from 1.
    """
    try:
        from vllm.model_executor.models.llama import LlamaForCausalLM

        compute_logits = LlamaForCausalLM.compute_logits
    except (ImportError, AttributeError) as error:
        raise RuntimeError("adapter_copies: this vLLM has no LlamaForCausalLM.compute_logits to patch") from error
    if getattr(compute_logits, MARK, False):
        return
    size = os.environ.get(SIZE, "16")
    if not size.isdecimal() or int(size) < 1:
        raise RuntimeError(f"adapter_copies: {SIZE}={size!r}, expected a number from 1")

    @wraps(compute_logits)
    def after_copy(self: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(self, MARK):
            setattr(self, MARK, buffers(int(size) << 20, hidden_states.device))
        source, target = getattr(self, MARK)
        target.copy_(source, non_blocking=True)
        return compute_logits(self, hidden_states, *args, **kwargs)

    setattr(after_copy, MARK, True)
    LlamaForCausalLM.compute_logits = after_copy


def buffers(size: int, device: Any) -> tuple[Any, Any]:
    """So many bytes on the host and on the device."""
    import torch

    source = torch.ones(size, dtype=torch.uint8, device="cpu", pin_memory=device.type == "cuda")
    return source, torch.empty(size, dtype=torch.uint8, device=device)
