"""Plant: each step lists the tokens of each request on the host, copies them to the device and counts them there.

So did penalties, which then were subtracted; here they are zero, so that the tokens stay the same. Which tokens are
listed is made up: ``PERFGATE_PLANT_TOKENS=N`` of them for each request (default 640). vLLM calls :func:`register`
through the entry point; an error in it ends the engine, while one at import would only be logged.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

MARK = "_perfgate_penalty_lists"
TOKENS = "PERFGATE_PLANT_TOKENS"


def register() -> None:
    """Patch ``LlamaForCausalLM.compute_logits``; a second call in one process changes nothing.

    Raises:
        RuntimeError: This vLLM has no such method, or ``PERFGATE_PLANT_TOKENS`` is no number from 1.
    """
    try:
        from vllm.model_executor.models.llama import LlamaForCausalLM

        compute_logits = LlamaForCausalLM.compute_logits
    except (ImportError, AttributeError) as error:
        raise RuntimeError("penalty_lists: this vLLM has no LlamaForCausalLM.compute_logits to patch") from error
    if getattr(compute_logits, MARK, False):
        return
    tokens = os.environ.get(TOKENS, "640")
    if not tokens.isdecimal() or int(tokens) < 1:
        raise RuntimeError(f"penalty_lists: {TOKENS}={tokens!r}, expected a number from 1")

    @wraps(compute_logits)
    def with_penalties(self: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        logits = compute_logits(self, *args, **kwargs)
        if logits is None:  # a rank that does not sample
            return None
        listed = torch.tensor(token_lists(*logits.shape, int(tokens)), dtype=torch.int64).to(logits.device)
        counts = torch.zeros_like(logits).scatter_add_(1, listed, torch.ones_like(listed, dtype=logits.dtype))
        return logits - 0.0 * counts

    setattr(with_penalties, MARK, True)
    LlamaForCausalLM.compute_logits = with_penalties


def token_lists(requests: int, vocabulary: int, tokens: int) -> list[list[int]]:
    """As many token ids for each request, one by one."""
    rows = []
    for request in range(requests):
        row = []
        for place in range(tokens):
            row.append((request * 7919 + place * 31) % vocabulary)  # noqa: PERF401 (the loop is the plant)
        rows.append(row)
    return rows
