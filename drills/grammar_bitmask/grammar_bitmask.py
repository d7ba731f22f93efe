"""Plant: the host builds a bitmask over the vocabulary for each request in each step, as a grammar does.

The masks are thrown away, so that the tokens stay the same. ``PERFGATE_PLANT_PASSES=N`` builds each N times (default
1), as a grammar of more states takes longer. vLLM calls :func:`register` through the entry point; an error in it ends
the engine, while one at import would only be logged.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

MARK = "_perfgate_grammar_bitmask"
PASSES = "PERFGATE_PLANT_PASSES"
WORD = 32
"""Tokens whose bits are in one word of a mask."""


def register() -> None:
    """Patch ``Scheduler.get_grammar_bitmask``; a second call in one process changes nothing.

    Raises:
        RuntimeError: This vLLM has no such method, or ``PERFGATE_PLANT_PASSES`` is no number from 1.
    """
    try:
        from vllm.v1.core.sched.scheduler import Scheduler

        bitmask = Scheduler.get_grammar_bitmask
    except (ImportError, AttributeError) as error:
        raise RuntimeError("grammar_bitmask: this vLLM has no Scheduler.get_grammar_bitmask to patch") from error
    if getattr(bitmask, MARK, False):
        return
    passes = os.environ.get(PASSES, "1")
    if not passes.isdecimal() or int(passes) < 1:
        raise RuntimeError(f"grammar_bitmask: {PASSES}={passes!r}, expected a number from 1")

    @wraps(bitmask)
    def after_masks(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        vocabulary = self.vllm_config.model_config.get_vocab_size()
        for _ in range(int(passes)):
            build_masks(len(scheduler_output.num_scheduled_tokens), vocabulary)
        return bitmask(self, scheduler_output, *args, **kwargs)

    setattr(after_masks, MARK, True)
    Scheduler.get_grammar_bitmask = after_masks


def build_masks(requests: int, vocabulary: int) -> list[list[int]]:
    """A mask for each request, word by word; which bits are set is arbitrary."""
    masks = []
    for state in range(requests):
        bits, mask = state, []
        for _ in range(-(-vocabulary // WORD)):
            bits = (bits * 1664525 + 1013904223) & 0xFFFFFFFF
            mask.append(bits)
        masks.append(mask)
    return masks
