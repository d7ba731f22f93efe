"""An actor of Ray as the object that it is: each of its methods waits for the answer."""

from __future__ import annotations

from typing import Any, cast

import ray

from perfgate.cluster.coordinator import Coordinator


class _Called:
    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._actor, name)
        return lambda *given: ray.get(method.remote(*given))


def called(actor: Any) -> Coordinator:
    """The coordinator that an actor is; its methods raise RayActorError once it is gone."""
    return cast("Coordinator", _Called(actor))
