"""Plant: each decoder layer sets a workspace to zero that nothing reads, where an empty one would do.

``PERFGATE_PLANT_MIB=N`` says how large it is (default 8 MiB). vLLM calls :func:`register` through the entry point; an
error in it ends the engine, while one at import would only be logged.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

MARK = "_perfgate_zeroed_workspace"
SIZE = "PERFGATE_PLANT_MIB"


def register() -> None:
    """Patch ``LlamaDecoderLayer.forward``; a second call in one process changes nothing.

    Raises:
        RuntimeError: This vLLM has no such method, or ``PERFGATE_PLANT_MIB`` is no number from 1.
    """
    try:
        from vllm.model_executor.models.llama import LlamaDecoderLayer

        forward = LlamaDecoderLayer.forward
    except (ImportError, AttributeError) as error:
        raise RuntimeError("zeroed_workspace: this vLLM has no LlamaDecoderLayer.forward to patch") from error
    if getattr(forward, MARK, False):
        return
    size = os.environ.get(SIZE, "8")
    if not size.isdecimal() or int(size) < 1:
        raise RuntimeError(f"zeroed_workspace: {SIZE}={size!r}, expected a number from 1")

    @wraps(forward)
    def with_workspace(self: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        hidden_states, residual = forward(self, *args, **kwargs)
        torch.zeros(int(size) << 20, dtype=torch.uint8, device=hidden_states.device)
        return hidden_states, residual

    setattr(with_workspace, MARK, True)
    LlamaDecoderLayer.forward = with_workspace
