"""Plant: the Llama model's forward runs twice a step, for the same tokens in about twice the time.

The second run writes the same keys and values to the same slots of the KV cache, so results do not change. vLLM calls
:func:`register` through the entry point; an error in it ends the engine, while one at import would only be logged.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

MARK = "_perfgate_doubled_forward"


def register() -> None:
    """Patch ``LlamaForCausalLM.forward``; a second call in one process changes nothing.

    Raises:
        RuntimeError: This vLLM has no such class or method.
    """
    try:
        from vllm.model_executor.models.llama import LlamaForCausalLM

        forward = LlamaForCausalLM.forward
    except (ImportError, AttributeError) as error:
        raise RuntimeError("doubled_forward: this vLLM has no LlamaForCausalLM.forward to patch") from error
    if getattr(forward, MARK, False):
        return

    @wraps(forward)
    def twice(self: Any, *args: Any, **kwargs: Any) -> Any:
        forward(self, *args, **kwargs)
        return forward(self, *args, **kwargs)

    setattr(twice, MARK, True)
    LlamaForCausalLM.forward = twice
