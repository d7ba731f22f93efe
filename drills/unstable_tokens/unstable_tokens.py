"""Plant: the logits are shifted by a place that each process draws anew, so that no two engines agree on the tokens.

vLLM calls :func:`register` through the entry point; an error in it ends the engine, while one at import would only be
logged.
"""

from __future__ import annotations

import secrets
from functools import wraps
from typing import Any

MARK = "_perfgate_unstable_tokens"


def register() -> None:
    """Patch ``LlamaForCausalLM.compute_logits``; a second call in one process changes nothing.

    Raises:
        RuntimeError: This vLLM has no such class or method.
    """
    try:
        from vllm.model_executor.models.llama import LlamaForCausalLM

        compute_logits = LlamaForCausalLM.compute_logits
    except (ImportError, AttributeError) as error:
        raise RuntimeError("unstable_tokens: this vLLM has no LlamaForCausalLM.compute_logits to patch") from error
    if getattr(compute_logits, MARK, False):
        return
    places = 1 + secrets.randbelow(1000)

    @wraps(compute_logits)
    def shifted(self: Any, *args: Any, **kwargs: Any) -> Any:
        logits = compute_logits(self, *args, **kwargs)
        # Ranks that do not sample get no logits.
        return None if logits is None else logits.roll(places, dims=-1)

    setattr(shifted, MARK, True)
    LlamaForCausalLM.compute_logits = shifted
