"""``benchmarks/gpu_visit.py``: whatever interrupts a visit, its tasks end with it."""

from __future__ import annotations

import importlib
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

benchmark: Any = importlib.import_module("gpu_visit")


def begun(log: Path, *words: str) -> Any:
    """A task that runs a command."""
    process = subprocess.Popen(words, start_new_session=True)
    return benchmark.Begun(benchmark.Task(words[0], [*words], 1.0), ["0"], process, log.open("wb"), time.monotonic())


def test_an_interruption_ends_every_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those behind one that had ended by itself, and was waited for, as well."""
    visit = benchmark.Visit(tmp_path, "python=python", ["0"], 1.0)
    tasks = [begun(tmp_path / "true", "true"), begun(tmp_path / "sleep", "sleep", "60")]
    tasks[0].process.wait()

    def interrupted(_waiting: list[Any]) -> None:
        visit._begun += tasks
        raise KeyboardInterrupt

    monkeypatch.setattr(visit, "_take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        visit.take([])

    assert [task.process.poll() for task in tasks] == [0, -2]
    for task in tasks:
        task.log.close()
