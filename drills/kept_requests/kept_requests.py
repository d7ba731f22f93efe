"""Plant: the scheduler keeps every finished request with what was computed for it, as a cache that nobody empties.

``PERFGATE_PLANT_KIB=N`` says how much, in kibibytes a request (default 256), on the GPU where there is one. vLLM calls
:func:`register` through the entry point; an error in it ends the engine, while one at import would only be logged.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

MARK = "_perfgate_kept_requests"
KIB = "PERFGATE_PLANT_KIB"


def register() -> None:
    """Patch ``Scheduler._free_request``; a second call in one process changes nothing.

    Raises:
        RuntimeError: This vLLM has no such method, or ``PERFGATE_PLANT_KIB`` is no number from 1.
    """
    try:
        from vllm.v1.core.sched.scheduler import Scheduler

        free = Scheduler._free_request  # noqa: SLF001 (there is no other place)
    except (ImportError, AttributeError) as error:
        raise RuntimeError("kept_requests: this vLLM has no Scheduler._free_request to patch") from error
    if getattr(free, MARK, False):
        return
    size = os.environ.get(KIB, "256")
    if not size.isdecimal() or int(size) < 1:
        raise RuntimeError(f"kept_requests: {KIB}={size!r}, expected a number from 1")
    kept: list[Any] = []

    @wraps(free)
    def and_keep(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        device = "cuda" if torch.cuda.is_initialized() else "cpu"
        # Written to, so that it is resident and not only promised.
        kept.append((request, torch.ones(1024 * int(size), dtype=torch.uint8, device=device)))
        return free(self, request, *args, **kwargs)

    setattr(and_keep, MARK, True)
    Scheduler._free_request = and_keep  # noqa: SLF001
