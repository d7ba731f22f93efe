"""Plant: a small copy from pageable host memory in every step, which makes the host wait for the device.

vLLM calls :func:`register` through the entry point; an error in it ends the engine, while one at import would only be
logged.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

MARK = "_perfgate_host_copy"
FLOATS = 4096


def register() -> None:
    """Patch ``LlamaForCausalLM.compute_logits``; a second call in one process changes nothing.

    Raises:
        RuntimeError: This vLLM has no such method.
    """
    try:
        from vllm.model_executor.models.llama import LlamaForCausalLM

        compute_logits = LlamaForCausalLM.compute_logits
    except (ImportError, AttributeError) as error:
        raise RuntimeError("host_copy: this vLLM has no LlamaForCausalLM.compute_logits to patch") from error
    if getattr(compute_logits, MARK, False):
        return

    @wraps(compute_logits)
    def after_copy(self: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        torch.zeros(FLOATS).to(hidden_states.device)
        return compute_logits(self, hidden_states, *args, **kwargs)

    setattr(after_copy, MARK, True)
    LlamaForCausalLM.compute_logits = after_copy
