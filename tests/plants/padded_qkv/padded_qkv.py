"""Plant: rows of zeros behind the qkv projection of every layer, whose outputs are thrown away.

``PERFGATE_PLANT_ROWS=N`` says how many (default 64: of Llama 8B's 6144 rows about 1 %). The tokens stay the same.
vLLM calls :func:`register` through the entry point; an error in it ends the engine, while one at import would only be
logged.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

MARK = "_perfgate_padded_qkv"
ROWS = "PERFGATE_PLANT_ROWS"


def register() -> None:
    """Patch ``LlamaAttention.forward``; a second call in one process changes nothing.

    Raises:
        RuntimeError: This vLLM has no such method, or ``PERFGATE_PLANT_ROWS`` is no number from 1.
    """
    try:
        from vllm.model_executor.models.llama import LlamaAttention  # noqa: PLC0415 (an error here must reach the engine)

        forward = LlamaAttention.forward
    except (ImportError, AttributeError) as error:
        raise RuntimeError("padded_qkv: this vLLM has no LlamaAttention.forward to patch") from error
    if getattr(forward, MARK, False):
        return
    rows = os.environ.get(ROWS, "64")
    if not rows.isdecimal() or int(rows) < 1:
        raise RuntimeError(f"padded_qkv: {ROWS}={rows!r}, expected a number from 1")

    @wraps(forward)
    def padded(self: Any, *args: Any, **kwargs: Any) -> Any:
        # At the first forward the weights are loaded, and no CUDA graph is captured yet.
        if not getattr(self.qkv_proj, MARK, False):
            pad(self.qkv_proj, int(rows))
        return forward(self, *args, **kwargs)

    setattr(padded, MARK, True)
    LlamaAttention.forward = padded


def pad(projection: Any, rows: int) -> None:
    """Put rows of zeros behind a projection's weight, and cut what they yield from its output.

    Raises:
        RuntimeError: The weights are not on a GPU: the CPU's linear layers keep them in a packed form.
    """
    import torch  # noqa: PLC0415 (the engine's own)

    weight = projection.weight
    if not weight.is_cuda:
        raise RuntimeError("padded_qkv: needs a GPU")
    own = weight.shape[0]
    longer = torch.zeros(own + rows, *weight.shape[1:], dtype=weight.dtype, device=weight.device)
    longer[:own] = weight.data
    projection.weight = torch.nn.Parameter(longer, requires_grad=False)
    project = projection.forward

    def cut(*args: Any, **kwargs: Any) -> Any:
        output, bias = project(*args, **kwargs)
        return output[..., :own], bias

    projection.forward = cut
    setattr(projection, MARK, True)
