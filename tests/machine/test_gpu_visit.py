"""``benchmarks/gpu_visit.py``: its tasks run in the order wanted, and whatever interrupts a visit ends them."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
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


def visited(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A visit by three tasks that print what they are, or wait, begun as a shell begins a background job."""
    (folder / "tasks.toml").write_text(
        "".join(f'[[task]]\nname = "{name}"\nwords = ["{folder}/{name}.py"]\nminutes = {minutes}\n'
                for name, minutes in (("first", 0.1), ("second", 0.1), ("waits", 0.01)))
    )  # fmt: skip
    for name in ("first", "second"):
        (folder / f"{name}.py").write_text("")
    (folder / "waits.py").write_text("import signal\nsignal.pause()\n")
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    program = [sys.executable, benchmark.__file__, "--build", "path=.", "--minutes", "2",
               "--into", str(folder / "into"), "--tasks", str(folder / "tasks.toml")]  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", ignoring, *program, *words], capture_output=True, text=True, check=False
    )


def test_tasks_run_in_the_order_wanted(tmp_path: Path) -> None:
    """The words on the command line say what comes first, not the list; what is named twice runs once."""
    visited(tmp_path, "--only", "second", "--only", "first", "--only", "s*")

    lines = (tmp_path / "into" / "ended.jsonl").read_text().splitlines()
    assert [json.loads(line)["task"] for line in lines] == ["second", "first"]


def test_a_task_may_be_given_other_minutes() -> None:
    """Of all that a word names, and by the last word that names it."""
    listed = [benchmark.Task(name, [], 5.0) for name in ("first", "second", "third")]
    chosen = benchmark.chosen_of(listed, ["s*=2.5", "*ir*", "third=7"])
    assert [(task.name, task.minutes) for task in chosen] == [("second", 2.5), ("first", 5.0), ("third", 7.0)]


def test_a_task_that_takes_too_long_is_interrupted(tmp_path: Path) -> None:
    """Also where a shell began the visit in the background and had it ignore interruptions."""
    visited(tmp_path, "--only", "waits")

    (line,) = (tmp_path / "into" / "ended.jsonl").read_text().splitlines()
    assert json.loads(line)["status"] == -signal.SIGINT
