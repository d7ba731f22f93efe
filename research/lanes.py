"""Scripts that measure on several GPUs at once, each in a process of its own: a lane."""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from perfgate.errors import InterruptedRunError, PerfgateError
from perfgate.scenario.subject import Subject
from perfgate.scenario.subject_words import resolve


def parser(about: str | None, into: str) -> argparse.ArgumentParser:
    """What every such script is given; ``into`` is the usual folder of its run folders."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("scenario", type=Path)
    made.add_argument("--base", action="append", default=[], metavar="KEY=VALUE", help="the build, as perfgate run")
    made.add_argument("--gpus", type=lambda names: names.split(","), default=["0"], help="indices, or cpu")
    made.add_argument("--minutes", type=float, default=math.inf, help="begin no trial that would not end within this")
    made.add_argument("--into", type=Path, default=Path(into), help="folder of the run folders")
    made.add_argument("--summarise", action="store_true", help="measure nothing: summarise what the folder holds")
    made.add_argument("--lane", type=float, help=argparse.SUPPRESS)  # one GPU's process: the deadline
    return made


def start(
    script: str, options: argparse.Namespace, gpu: str, deadline_s: float, words: Sequence[str], more: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start the process of one GPU, or of the CPU's engine, with further words and variables."""
    command = [
        sys.executable, script, str(options.scenario), "--lane", str(deadline_s), *words,
        "--into", str(options.into / f"gpu-{gpu}"), *(word for base in options.base for word in ("--base", base)),
    ]  # fmt: skip
    visible = {} if gpu == "cpu" else {"CUDA_VISIBLE_DEVICES": gpu}
    return subprocess.Popen(command, env={**os.environ, **more, **visible})


def in_lane(options: argparse.Namespace, take: Callable[[Subject], None]) -> int:
    """Be the process of one GPU: 1 where it could not measure; stopped, it has measured what it has."""
    try:
        take(resolve(options.base, (), {})["base"])
    except InterruptedRunError as error:
        print(f"{options.into.name}: {error}", file=sys.stderr)
    except PerfgateError as error:
        print(f"{options.into.name}: {error}", file=sys.stderr)
        return 1
    return 0
