"""What the processes of a server used of its subject's ``path=``: each that we started is asked once, before its end.

A server of vLLM has one process that serves, one for the engine and one a rank; only what each has imported itself is
in it. All of them ran :mod:`perfgate.load.vllm_server` first, or are forks of one that did, and answer a signal by a
file. One that does not, of a scenario's own command say, is left alone: the signal would end it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from perfgate.capture.engine import gpus_of
from perfgate.capture.job import Job
from perfgate.load.server_http import CHILDREN
from perfgate.machine.json_text import MANIFEST, parse_json
from perfgate.machine.processes import wait_until
from perfgate.metrics.path_use import ProcessUse, read_uses

ASKED: Final = "asked-use.json"
"""In the server's working folder, which is the trial's: the folders that it is asked about."""
TOLD: Final = "told-use-{}.json"
"""The answer of a process, by its number."""
SIGNAL: Final = signal.SIGRTMIN + 9
"""All three as in :mod:`perfgate.load.vllm_server`, which imports nothing from here."""
ANSWER_S: Final = 5.0
"""How long the answers may take. A process that has to start its own main thread first takes a tenth of a second."""
MOST_BYTES: Final = 1 << 18


def ask_processes(job: Job, processes: Sequence[psutil.Process]) -> tuple[ProcessUse, ...]:
    """What each process of a server says; one that is missing, or does not say it in time, is there as one not told.

    Args:
        job: The trial.
        processes: All that came of the server.
    """
    folders = job.subject.path
    asked = [process for process in processes if _answers(process.pid)]
    with contextlib.suppress(OSError):
        (job.folder / ASKED).write_text(json.dumps({"folders": folders}), encoding="utf-8")
        for process in asked:
            with contextlib.suppress(psutil.Error, OSError):
                process.send_signal(SIGNAL)
        files = [job.folder / TOLD.format(process.pid) for process in asked]
        wait_until(lambda: all(map(os.path.lexists, files)), ANSWER_S)
        answers = [_read(file) for file in files]
        for file in (job.folder / ASKED, *files):
            file.unlink(missing_ok=True)
        missing = max(_expected(job) - len(answers), 0)
        return read_uses([*answers, *[None] * missing], len(folders))
    return read_uses(None, len(folders))


def _expected(job: Job) -> int:
    """How many processes a server has at least, one more where not all of them can be ours: then something is missing.

    One serves, one is each engine's, and an engine of several ranks has one for each.
    """
    arguments = job.engine_args
    engines, ranks = arguments.get("data_parallel_size") or 1, gpus_of(arguments)
    engines = engines if isinstance(engines, int) else 1
    elsewhere = (arguments.get("distributed_executor_backend") or CHILDREN[0]) not in CHILDREN
    return 1 + engines + (ranks if ranks > engines else 0) + elsewhere


def _answers(pid: int) -> bool:
    """Whether a process has a handler of the signal; without one it would be ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
        return any(int(line[7:], 16) >> (SIGNAL - 1) & 1 for line in lines if line.startswith("SigCgt:"))
    except (OSError, ValueError):
        return False


def _read(file: Path) -> Any:
    """The answer of a process; ``None`` where there is none, and where it is anything but a small file of JSON."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            return parse_json(stream.read(MOST_BYTES), MANIFEST)
    except (OSError, ValueError):
        return None
