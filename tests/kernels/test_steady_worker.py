"""Workers held steady for their traces, with as much as this machine permits."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from perfgate.kernels.tracing import steady_worker

SHELL = {"PATH": os.environ["PATH"]}
Programs = Callable[..., Mapping[str, str]]


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    """A function that makes a PATH with ``true`` and these programs, each a shell script."""

    def make(**scripts: str) -> Mapping[str, str]:
        for name, script in {"true": "exit 0", **scripts}.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)
        return {"PATH": str(tmp_path)}

    return make


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A function that lets perfgate use so many cores, the first one's number being 2."""
    return lambda count: monkeypatch.setattr("os.sched_getaffinity", lambda _: {*range(2, 2 + count)})


STARTS = 'shift {}; exec "$@"'
"""A script that starts what stands behind so many words."""


def test_everything_held(programs: Programs, cores: Callable[[int], None], tmp_path: Path) -> None:
    """Hashes, addresses and the last four cores, by words that start what follows them."""
    cores(8)
    environment = programs(setarch=STARTS.format(1), taskset=STARTS.format(2))

    found = steady_worker(environment)

    assert found.held == ("hashes", "addresses", "cores 6,7,8,9")
    assert found.environment == {"PYTHONHASHSEED": "0"}
    assert found.wrapper == (f"{tmp_path}/setarch", "-R", f"{tmp_path}/taskset", "-c", "6,7,8,9")


@pytest.mark.parametrize(
    ("setarch", "taskset", "held"),
    [
        (None, None, ("hashes",)),
        ("echo 'setarch: failed to set personality: Operation not permitted' >&2; exit 1", None, ("hashes",)),
        ("exit 1", STARTS.format(2), ("hashes", "cores 6,7,8,9")),
        (STARTS.format(1), "exit 1", ("hashes", "addresses")),
    ],
)
def test_what_is_missing_or_forbidden_is_not_held(
    programs: Programs, cores: Callable[[int], None], setarch: str | None, taskset: str | None, held: tuple[str, ...]
) -> None:
    """A tool that is not there, or that a container forbids, is left out: the engine starts without it."""
    cores(8)
    scripts = {"setarch": setarch, "taskset": taskset}

    found = steady_worker(programs(**{name: script for name, script in scripts.items() if script is not None}))

    assert found.held == held
    named = {"setarch": "addresses", "taskset": "cores 6,7,8,9"}
    assert {Path(word).name for word in found.wrapper} & {*named} == {t for t, what in named.items() if what in held}


def test_a_tool_that_hangs_is_not_held(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried for a while only."""
    monkeypatch.setattr("perfgate.kernels.tracing.TRY_TIMEOUT_S", 0.05)
    assert steady_worker(programs(setarch="exec /bin/sleep 5")).wrapper == ()


@pytest.mark.parametrize(
    ("count", "gpus", "held"),
    [(7, 1, []), (8, 1, ["cores 6,7,8,9"]), (8, 2, []), (16, 2, ["cores 10,11,12,13,14,15,16,17"])],
)
def test_cores_by_gpu(programs: Programs, cores: Callable[[int], None], count: int, gpus: int, held: list[str]) -> None:
    """Four for each GPU, where as many are left for everything else."""
    cores(count)
    found = steady_worker(programs(taskset=STARTS.format(2)), gpus)
    assert [what for what in found.held if what.startswith("cores")] == held


@pytest.mark.parametrize(("seed", "held"), [("7", ("hashes",)), ("random", ())])
def test_a_seed_of_the_scenario_stays(programs: Programs, seed: str, held: tuple[str, ...]) -> None:
    """What the scenario or the subject sets is measured as it stands; only a number holds the hashes."""
    found = steady_worker({**programs(), "PYTHONHASHSEED": seed})
    assert (found.environment, found.held) == ({}, held)


@pytest.mark.skipif(shutil.which("setarch") is None, reason="no setarch here")
def test_two_interpreters_alike() -> None:
    """Where this machine permits it, two processes have the same hashes and the same addresses."""
    found = steady_worker(SHELL)
    if "addresses" not in found.held:
        pytest.skip("personality() is forbidden here")
    script = "import json; print(json.dumps([hash('perfgate'), id(object()), id(json)]))"
    seen = [
        json.loads(
            subprocess.run(
                [*found.wrapper, sys.executable, "-c", script], env={**SHELL, **found.environment}, check=True,
                capture_output=True,
            ).stdout
        )
        for _ in range(2)
    ]  # fmt: skip
    assert seen[0] == seen[1]
