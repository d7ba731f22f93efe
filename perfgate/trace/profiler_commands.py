"""Profiler commands: how nsys and ncu are started, and what they printed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfgate.machine.children import spawn
from perfgate.machine.process_log import tail
from perfgate.machine.processes import owner_mark

NCU_SETTINGS = {"LC_ALL": "C", "NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT": "1"}
"""ncu's own variables: numbers with a point, and no files unpacked into the user's home."""

VERSION_TIMEOUT_S = 30.0

LOG_LINES = 8


@dataclass(frozen=True)
class Ran:
    """How a program ended.

    Args:
        status: Its exit status; ``None`` where it was ended after its time.
        text: All that it printed.
        end: The last lines of that, and exceptions before them.
        answer: What :mod:`perfgate.doctor.probe` wrote; ``None`` where it wrote nothing or something else ran.
    """

    status: int | None
    text: str
    end: str
    answer: Mapping[str, Any] | None = None


def run(argv: Sequence[str], environment: Mapping[str, str], folder: Path, timeout_s: float) -> Ran:
    """Run a program in ``folder`` to its end or for ``timeout_s`` seconds; nothing that it started is left.

    Its log begins anew: the folder keeps what the program printed last, and the answer holds that alone.
    """
    log = folder / f"{Path(argv[0]).name}.log"
    try:
        log.unlink(missing_ok=True)
        child = spawn(argv, environment=environment, owner=owner_mark("doctor"), log=log, folder=folder)
    except OSError as error:
        text = f"{argv[0]}: {error.strerror}"
        return Ran(127, text, text)
    try:
        status = child.wait(timeout_s)
    finally:
        child.end()
    # nsys draws its progress with carriage returns.
    kept = [line for line in log.read_text("utf-8", "replace").splitlines() if not re.search(r"\d%.*\]|\[\d+%", line)]
    log.write_text("\n".join(kept), encoding="utf-8")
    return Ran(status, "\n".join(kept), tail(log, LOG_LINES))


def nsys_profile(nsys: str, output: Path, *flags: str) -> list[str]:
    """The command that traces the program after it, kernels inside CUDA graphs included, and ends no process of it.

    Args:
        nsys: The program.
        output: The report, without its suffix.
        flags: More of them.
    """
    options = ["--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--cuda-graph-trace=node"]
    options += ["--trace-fork-before-exec=false", "--wait=primary", "--kill=none", "--force-overwrite=true"]
    return [nsys, "profile", *options, *flags, f"--output={output}"]


def nsys_settings() -> dict[str, str]:
    """The variables by which the user steers nsys, like ``NSYS_CUPTI_LIBRARY_PATH``."""
    return {name: value for name, value in os.environ.items() if name.startswith("NSYS_")}
