"""``research/ray_on_gpus.py``: two ways of measuring that begin alike, on a Ray node of its own."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from perfgate_process import wait_for

benchmark: Any = importlib.import_module("ray_on_gpus")

pytestmark = pytest.mark.slow

RAY = """
import json, os, subprocess, sys, time
child = subprocess.Popen(["sleep", "60"])
with open(sys.argv[1], "a") as file:
    file.write(json.dumps([os.getpid(), child.pid, *sys.argv[2:]]) + "\\n")
print("--block", flush=True)
time.sleep(60)
"""
"""A node with a process more, which notes how it was begun."""


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the stand-in for Ray notes its nodes."""
    monkeypatch.setattr(benchmark, "RAY", [sys.executable, "-c", RAY, str(tmp_path / "nodes")])
    return tmp_path / "nodes"


def begun(nodes: Path) -> list[list[Any]]:
    """Of each node its processes and words."""
    return [json.loads(line) for line in nodes.read_text().splitlines()]


def test_a_node_ends_and_others_of_the_host_stay(nodes: Path) -> None:
    """With all that it started; Ray is never told to stop whatever runs."""
    with benchmark.ray_node(1, os.environ) as other:
        with benchmark.ray_node(2, os.environ) as address:
            (kept, *_), (node, child, *words) = begun(nodes)
        assert psutil.pid_exists(kept)
        assert not psutil.pid_exists(node)
        wait_for(lambda: not psutil.pid_exists(child))

    assert other != address
    assert words[words.index("--num-gpus") + 1] == "2"
    assert [words[0] for _, _, *words in begun(nodes)] == ["start", "start"]


def test_ctrl_c_waits_for_the_run_to_end_its_engines(tmp_path: Path) -> None:
    """Longer than the quarter of a second that a process is given otherwise."""
    program = "import sys, time; time.sleep(1.2); open(sys.argv[1], 'w')"
    threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        benchmark.status_of([sys.executable, "-c", program, str(tmp_path / "ended")], os.environ)

    assert (tmp_path / "ended").exists()


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize(
    ("ways", "cards", "minutes", "status"),
    [
        ([], ["2", "2,3", "2"], 4.0, 20),
        (["--way", "ray"], ["2", "2,3"], 6.0, 20),
        (["--way", "alone"], ["2", "2"], 6.0, 0),
    ],
)
def test_both_ways_begin_alike_and_share_the_time(
    ways: list[str], cards: list[str], minutes: float, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a trial that brings into memory what engines import, with empty caches each; the worst status is told."""
    now_s, runs, caches = 0.0, [], []

    def status_of(words: Sequence[str], environment: Mapping[str, str]) -> int:
        nonlocal now_s
        budget = float(words[words.index("--budget") + 1])
        runs.append((budget, environment["CUDA_VISIBLE_DEVICES"]))
        caches.append(environment["PERFGATE_CACHES"])
        if len(caches) > 1:
            assert not any(Path(caches[-1]).iterdir())
        now_s += 60 * budget
        return {"--on": 20}.get(words[-4], 0)

    monkeypatch.setattr(benchmark, "status_of", status_of)
    monkeypatch.setattr(benchmark, "time", types.SimpleNamespace(monotonic=lambda: now_s))
    words = ["ray_on_gpus.py", "a.yaml", "b.yaml", "--base", "python=x", "--gpus", "2,3", "--minutes", "12", *ways]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        benchmark.main()

    assert runs == [(minutes, visible) for visible in cards]
    assert caches[0] == "0"
    assert len(set(caches)) == len(caches)
    assert ended.value.code == status
