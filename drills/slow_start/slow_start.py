"""Plant: functions are generated and compiled while the model is built, as by a compiler whose cache misses.

``PERFGATE_PLANT_FUNCTIONS=N`` says how many (default 100000). vLLM calls :func:`register` through the entry point; an
error in it ends the engine, while one at import would only be logged.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

MARK = "_perfgate_slow_start"
FUNCTIONS = "PERFGATE_PLANT_FUNCTIONS"
SOURCE = (
    "def kernel_{0}(x, y):\n    if x > {0}:\n        return [x * {0} + i for i in range(y)]\n    return (x, y, {0})\n"
)


def register() -> None:
    """Patch ``LlamaForCausalLM.__init__``; a second call in one process changes nothing.

    Raises:
        RuntimeError: This vLLM has no such class, or ``PERFGATE_PLANT_FUNCTIONS`` is no number from 1.
    """
    try:
        from vllm.model_executor.models.llama import LlamaForCausalLM

        construct = LlamaForCausalLM.__init__
    except (ImportError, AttributeError) as error:
        raise RuntimeError("slow_start: this vLLM has no LlamaForCausalLM to patch") from error
    if getattr(construct, MARK, False):
        return
    functions = os.environ.get(FUNCTIONS, "100000")
    if not functions.isdecimal() or int(functions) < 1:
        raise RuntimeError(f"slow_start: {FUNCTIONS}={functions!r}, expected a number from 1")

    @wraps(construct)
    def after_compiling(self: Any, *args: Any, **kwargs: Any) -> None:
        for number in range(int(functions)):
            compile(SOURCE.format(number), f"<kernel {number}>", "exec")
        construct(self, *args, **kwargs)

    setattr(after_compiling, MARK, True)
    LlamaForCausalLM.__init__ = after_compiling
