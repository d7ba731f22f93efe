"""What a task of Ray that did not end by itself is said to have ended with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray
from hand_made_cluster import LOST, run_of
from ray.exceptions import NodeDiedError, OutOfMemoryError, RayError, TaskUnschedulableError, WorkerCrashedError

from perfgate.cluster.coordinator import Order
from perfgate.cluster.task_driver import RayTasks


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (NodeDiedError("gone"), LOST.text),  # type: ignore[no-untyped-call]
        (OutOfMemoryError("95 % used"), "hardly any memory left"),  # type: ignore[no-untyped-call]
        (WorkerCrashedError(), "its worker died, and its node did not"),
        (TaskUnschedulableError("no such label"), "TaskUnschedulableError: The task is not schedulable: no such label"),
    ],
)
def test_the_reason_is_the_one_that_ray_gives(
    here: Path, monkeypatch: pytest.MonkeyPatch, error: RayError, text: str
) -> None:
    """A node that is there is not said to be lost; whatever it was, another one may measure the cell."""

    def get(_: Any) -> None:
        raise error

    monkeypatch.setattr(ray, "get", get)
    ending = RayTasks(None, Order(run_of(here), [1], None)).ending(None)
    assert (ending.kind, text in ending.text) == ("elsewhere", True), ending.text
