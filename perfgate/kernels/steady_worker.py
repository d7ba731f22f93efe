"""What is held of the host's work in traced trials, so that engines of one build agree."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from perfgate.capture.pinning import CORES_PER_GPU
from perfgate.trace.decode_step import STEADY

HASHES, ADDRESSES = STEADY
SEED: Final = "PYTHONHASHSEED"
TRY_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True)
class Steady:
    """How to start a worker.

    Args:
        wrapper: Programs with their arguments, to put before the interpreter.
        environment: Variables that are set beside the engine's own.
        held: What they hold: of :data:`perfgate.trace.decode_step.STEADY`, and ``cores 12,13,14,15``.
    """

    wrapper: tuple[str, ...]
    environment: Mapping[str, str]
    held: tuple[str, ...]


def steady_worker(environment: Mapping[str, str], gpus: int = 1) -> Steady:
    """Hold Python's hashes, the layout of the process in memory and its cores, each only where that works here.

    The host's work of a step differs by a tenth between two engines of one build, because their sets, their caches and
    their cores do. Held, what is left is mostly how fast the CPU is at the moment, which launching calls tell
    (docs/measurements.md). For traces alone: restarts of timed trials must sample these layouts, or a verdict would
    hold for one only.

    Args:
        environment: The engine's own variables. A ``PYTHONHASHSEED`` among them is left as it is.
        gpus: How many the engine takes. It gets the last :data:`CORES_PER_GPU` cores for each that perfgate may use,
            unless these are more than half of them.
    """
    seed = environment.get(SEED)
    held = [HASHES] if seed is None or seed.isdecimal() else []
    # setarch first: containers commonly forbid personality(), and then nothing that it starts would run.
    programs = [(ADDRESSES, "setarch", ["-R"])]
    allowed = sorted(os.sched_getaffinity(0))
    wanted = CORES_PER_GPU * gpus
    if 2 * wanted <= len(allowed):
        cores = ",".join(map(str, allowed[-wanted:]))
        programs.append((f"cores {cores}", "taskset", ["-c", cores]))
    wrapper: list[str] = []
    for holds, program, arguments in programs:
        if command := _working(program, arguments, environment):
            wrapper += command
            held.append(holds)
    return Steady(tuple(wrapper), {SEED: "0"} if seed is None else {}, tuple(held))


def _working(program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The command that starts something under a program, if it has started ``true``; empty where it does not."""
    path = environment.get("PATH")
    file, nothing = shutil.which(program, path=path), shutil.which("true", path=path)
    if file is None or nothing is None:
        return []
    command = [file, *arguments]
    try:
        tried = subprocess.run([*command, nothing], capture_output=True, timeout=TRY_TIMEOUT_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):  # what cannot be held is not said to be
        return []
    return command if tried.returncode == 0 else []
