"""Exercises side by side: each in a process of its own, on GPUs of its own."""

from __future__ import annotations

import math
import os
import shlex
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import psutil

from perfgate.capture.pace import Progress
from perfgate.errors import InterruptedRunError
from perfgate.units import plural

LOG = "perfgate.log"  # in the folder of an exercise: what its process says
LOOK_S = 0.5  # how often processes side by side are looked at


def run_side_by_side(
    folder: Path, exercises: Sequence[str], slots: Sequence[str], deadline_s: float, progress: Progress
) -> None:
    """Run exercises in processes of their own, one a station; each is ``perfgate drill --only``.

    Args:
        folder: The campaign's.
        exercises: Their names.
        slots: The stations.
        deadline_s: When the budget ends, on the monotonic clock.
        progress: Told of each that begins or ends.

    Raises:
        InterruptedRunError: Stopped or out of budget; what was measured is kept.
    """
    waiting, free = deque(exercises), deque(slots)
    at_work: dict[psutil.Process, tuple[str, str]] = {}
    stopped = False
    counted = f"{plural(len(exercises), 'exercise')}, at most {len(slots)} at once"
    progress(f"{counted}; how far each is: tail -f {shlex.quote(str(folder))}/*/{LOG}")
    try:
        while at_work or (waiting and not stopped):
            while waiting and free and not stopped:
                exercise, slot = waiting.popleft(), free.popleft()
                at_work[_start(folder, exercise, slot, deadline_s)] = (exercise, slot)
                progress(f"{exercise} begins on GPU {slot}")
            gone, _ = psutil.wait_procs(list(at_work), timeout=LOOK_S)
            for process in gone:
                exercise, slot = at_work.pop(process)
                free.append(slot)
                stopped |= process.wait() == InterruptedRunError.exit_status
                # Not its exit status, which is that of the whole board: 22 as long as another exercise is to be done.
                progress(f"{exercise} ended, {len(waiting)} waiting")
    except KeyboardInterrupt as error:
        raise InterruptedRunError("stopped", remedy=way_on(folder), code="interrupted") from error
    finally:
        for process in at_work:
            process.terminate()
        psutil.wait_procs(list(at_work))
    if stopped:
        raise InterruptedRunError("stopped or out of budget", remedy=way_on(folder), code="out-of-budget")


def _start(folder: Path, exercise: str, slot: str, deadline_s: float) -> psutil.Popen:
    command = [sys.executable, "-m", "perfgate", "drill", "--resume", str(folder), "--only", exercise]
    if deadline_s < math.inf:
        command += ["--budget", str(max((deadline_s - time.monotonic()) / 60, 0.001))]
    (folder / exercise).mkdir(exist_ok=True)
    with (folder / exercise / LOG).open("ab") as log:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": slot}
        return psutil.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


def way_on(folder: Path) -> str:
    """How to go on with a campaign."""
    return f"Go on with: perfgate drill --resume {shlex.quote(str(folder))}"
