"""Plant: rows of zeros behind a weight, whose outputs are thrown away, so that one gemm moves more bytes.

``PERFGATE_PLANT_GEMM`` says behind which: ``lm-head`` (default, 1280 rows) or ``qkv`` (64 rows in each layer): of Llama
8B's 128256 and 6144 rows about 1 %. ``PERFGATE_PLANT_ROWS=N`` makes it N rows. The tokens stay the same. vLLM calls
:func:`register` through the entry point; an error in it ends the engine, while one at import would only be logged.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

MARK = "_perfgate_padded_rows"
GEMM, ROWS = "PERFGATE_PLANT_GEMM", "PERFGATE_PLANT_ROWS"
USUAL = {"lm-head": 1280, "qkv": 64}


def register() -> None:
    """Patch the method that the gemm runs in; a second call in one process changes nothing.

    Raises:
        RuntimeError: This vLLM has no such method, or a variable says what no gemm or number of rows is.
    """
    gemm = os.environ.get(GEMM, "lm-head")
    if gemm not in USUAL:
        raise RuntimeError(f"padded_rows: {GEMM}={gemm!r}, expected one of {', '.join(USUAL)}")
    rows = os.environ.get(ROWS, str(USUAL[gemm]))
    if not rows.isdecimal() or int(rows) < 1:
        raise RuntimeError(f"padded_rows: {ROWS}={rows!r}, expected a number from 1")
    try:
        from vllm.model_executor.models.llama import (
            LlamaAttention,
            LlamaForCausalLM,
        )

        if gemm == "qkv":
            LlamaAttention.forward = _padding(LlamaAttention.forward, lambda one: one.qkv_proj, int(rows), cut=True)
        else:  # vLLM cuts logits to the vocabulary itself
            method = LlamaForCausalLM.compute_logits
            LlamaForCausalLM.compute_logits = _padding(method, lambda one: one.lm_head, int(rows), cut=False)
    except (ImportError, AttributeError) as error:
        raise RuntimeError(f"padded_rows: this vLLM has no {gemm} of a Llama to patch") from error


def _padding(method: Any, find: Callable[[Any], Any], rows: int, *, cut: bool) -> Any:
    """The method, which pads what ``find`` finds when it first runs: by then the weights are loaded."""
    if getattr(method, MARK, False):
        return method

    @wraps(method)
    def padded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not getattr(find(self), MARK, False):
            pad(find(self), rows, cut=cut)
        return method(self, *args, **kwargs)

    setattr(padded, MARK, True)
    return padded


def pad(layer: Any, rows: int, *, cut: bool) -> None:
    """Put rows of zeros behind a layer's weight and, with ``cut``, take what they yield from its output.

    Raises:
        RuntimeError: The weights are not on a GPU: the CPU's linear layers keep them in a packed form.
    """
    import torch

    weight = layer.weight
    if not weight.is_cuda:
        raise RuntimeError("padded_rows: needs a GPU")
    own = weight.shape[0]
    longer = torch.zeros(own + rows, *weight.shape[1:], dtype=weight.dtype, device=weight.device)
    longer[:own] = weight.data
    layer.weight = torch.nn.Parameter(longer, requires_grad=False)
    setattr(layer, MARK, True)
    if not cut:
        return
    forward = layer.forward

    def shortened(*args: Any, **kwargs: Any) -> Any:
        output, bias = forward(*args, **kwargs)
        return output[..., :own], bias

    layer.forward = shortened
