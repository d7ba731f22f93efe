"""Plant: the host runs a full garbage collection in every step, over everything that vLLM did not freeze.

``PERFGATE_PLANT_COLLECTIONS=N`` runs N of them (default 1). vLLM calls :func:`register` through the entry point; an
error in it ends the engine, while one at import would only be logged.
"""

from __future__ import annotations

import gc
import os
from functools import wraps
from typing import Any

MARK = "_perfgate_collected_garbage"
COLLECTIONS = "PERFGATE_PLANT_COLLECTIONS"


def register() -> None:
    """Patch ``Scheduler.schedule``; a second call in one process changes nothing.

    Raises:
        RuntimeError: This vLLM has no such method, or ``PERFGATE_PLANT_COLLECTIONS`` is no number from 1.
    """
    try:
        from vllm.v1.core.sched.scheduler import Scheduler

        schedule = Scheduler.schedule
    except (ImportError, AttributeError) as error:
        raise RuntimeError("collected_garbage: this vLLM has no Scheduler.schedule to patch") from error
    if getattr(schedule, MARK, False):
        return
    collections = os.environ.get(COLLECTIONS, "1")
    if not collections.isdecimal() or int(collections) < 1:
        raise RuntimeError(f"collected_garbage: {COLLECTIONS}={collections!r}, expected a number from 1")

    @wraps(schedule)
    def after_collection(self: Any, *args: Any, **kwargs: Any) -> Any:
        for _ in range(int(collections)):
            gc.collect()
        return schedule(self, *args, **kwargs)

    setattr(after_collection, MARK, True)
    Scheduler.schedule = after_collection
