"""Look for what makes a GPU jump between two levels of step time: try leads, one after another, on every GPU at once.

``python research/gpu_states.py --gpus 0,1,2,3 --minutes 3.5 --into FOLDER`` on a host with torch and GPUs; no vLLM.

Each GPU follows the same leads in the same order and begins at another one; the list is gone through until the time
is up. A lead either acts inside a running process (``flush``, ``capture``) or is the way a new process is started
(``fresh``, a variable of the driver). Nothing is set that outlives a process: clocks, power and modes are left alone.

``FOLDER`` gets ``readings-*.csv.gz``, a row a replay, ``notes.jsonl`` (what was skipped, and why) and ``summary.json``.
The summary is printed, a line a GPU and a line a lead; ``--summarise`` makes it again from the folder. The columns are
those of ``state_replay.py``, and what a summary holds is said in ``state_summary.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, cycle, islice
from pathlib import Path

from state_summary import summary

REPLAY = Path(__file__).with_name("state_replay.py")
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "NVSHMEM_DISABLE_NVLS": "1", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
GRACE_S = 30.0
"""What a process may take beyond its stretches: its start, and the lead that it is at."""
BEGINS = "begins"
"""Lead of the first stretch of a process that was started because the next lead acts inside one."""


@dataclass(frozen=True)
class Lead:
    """Something that may change a GPU's state.

    Args:
        what: In words.
        begins: It is how a new process is started, with ``variables`` and ``words``; otherwise it acts inside one.
        variables: Of the new process.
        words: Options of ``state_replay.py`` for it.
    """

    what: str
    begins: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()


LEADS: Mapping[str, Lead] = {
    "watch": Lead("nothing: how often a GPU jumps by itself"),
    "one-stream": Lead("a new process that uses one stream alone", True, words=("--one-stream",)),
    "connections": Lead("a new process with one hardware queue", True, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
    "streams": Lead("run kernels on eight more streams, once"),
    "copies": Lead("copy a little of each step to the host on a second stream"),
    "flush": Lead("write twice what the second-level cache holds"),
    "instantiate": Lead("instantiate the graphs again: their command buffers are written anew"),
    "capture": Lead("capture the graphs again behind other allocations: their command buffers move"),
    "memory": Lead("allocate and free memory of many sizes, and return the allocator's cache"),
    "fresh": Lead("a new process", begins=True),
    "persisting": Lead("reset persisting lines of the second-level cache"),
    "idle": Lead("leave the GPU idle for two seconds"),
    "context": Lead("a second process makes a context on this GPU and ends"),
    "neighbour": Lead("a second process makes a context on another GPU and ends"),
    "nvml": Lead("a second process reads all GPUs by NVML a hundred times a second"),
    "queues": Lead("a new process with launch queues of four times the size", True, {"CUDA_SCALE_LAUNCH_QUEUES": "4x"}),
    "segments": Lead(
        "a new process with memory mapped in segments", True, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    ),
    "priority": Lead("capture and replay on a stream of high priority"),
    "blocking": Lead("the host waits for the GPU blocked, not spinning"),
    "modules": Lead("a new process that loads all kernels at once", True, {"CUDA_MODULE_LOADING": "EAGER"}),
    "node-priority": Lead("a new process that uses priorities of nodes", True, {"CUDA_GRAPHS_USE_NODE_PRIORITY": "1"}),
}  # fmt: skip
"""By promise: hardware queues in use, then what a cache, a command buffer or a mapping is left with, then the rest."""


@dataclass(frozen=True)
class Process:
    """One process of a GPU's schedule: the first lead is how it begins, the others act inside it."""

    leads: tuple[str, ...]

    @property
    def beginning(self) -> Lead:
        """How it is started."""
        return LEADS.get(self.leads[0], LEADS["fresh"])

    @property
    def plain(self) -> bool:
        """Whether it is started without variables and words of its own."""
        return not self.beginning.variables and not self.beginning.words


def processes(leads: Sequence[str]) -> Iterator[Process]:
    """The processes in which a sequence of leads is followed.

    Leads that act inside a process share a plain one; behind a lead with variables or words of its own, the next plain
    process begins.
    """
    begun: list[str] = []
    for lead in leads:
        if not LEADS[lead].begins and begun and Process(tuple(begun)).plain:
            begun.append(lead)
            continue
        if begun:
            yield Process(tuple(begun))
        begun = [lead] if LEADS[lead].begins else [BEGINS, lead]
    if begun:
        yield Process(tuple(begun))


def rotated(leads: Sequence[str], turn: int, turns: int, length: int) -> list[str]:
    """The same round of leads, begun at another one: ``turn`` of ``turns``, ``length`` leads in all."""
    offset = turn * len(leads) // turns
    return list(islice(cycle([*leads[offset:], *leads[:offset]]), length))


class Follower(threading.Thread):
    """Has one GPU follow its schedule until the time is up, process by process."""

    def __init__(self, gpus: Sequence[str], turn: int, leads: Sequence[str], options: argparse.Namespace) -> None:
        super().__init__()
        self._gpu = gpus[turn]
        self._neighbour = gpus[(turn + 1) % len(gpus)] if len(gpus) > 1 else None
        self._stretch_s: float = options.stretch
        self._deadline_s: float = options.deadline_s
        self._into: Path = options.into
        length = 1 + round(options.minutes * 60 / options.stretch)
        self._processes = list(processes(rotated(leads, turn, len(gpus), length)))
        self.notes: list[str] = []

    def run(self) -> None:
        """See :class:`threading.Thread`."""
        for number in count():
            if number == len(self._processes) or time.monotonic() + self._stretch_s > self._deadline_s:
                return
            self._follow(number, self._processes[number])

    def _follow(self, number: int, process: Process) -> None:
        labels = {"gpu": self._gpu, "process": number}
        words = [
            sys.executable, str(REPLAY), "--labels", json.dumps(labels), "--leads", ",".join(process.leads),
            "--stretch", str(self._stretch_s), "--deadline", str(self._deadline_s),
            "--into", str(self._into / f"readings-{self._gpu}-{number:02}.csv.gz"),
            *(["--neighbour", self._neighbour] if self._neighbour else []), *process.beginning.words,
        ]  # fmt: skip
        environment = {**os.environ, **NO_MULTICAST, **process.beginning.variables, "CUDA_VISIBLE_DEVICES": self._gpu}
        left_s = self._deadline_s - time.monotonic() + self._stretch_s + GRACE_S
        try:
            ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=left_s, check=False)
        except subprocess.TimeoutExpired:
            self.notes.append(json.dumps({**labels, "failed": f"ended after {left_s:.0f} s"}))
            return
        self.notes += [line for line in ended.stdout.splitlines() if line.startswith("{")]
        if ended.returncode:
            last = (ended.stderr.strip().splitlines() or ["no word"])[-1]
            self.notes.append(json.dumps({**labels, "failed": last, "status": ended.returncode}))


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    """The options; the leads are those named, in their order of promise.

    Raises:
        SystemExit: A lead is not known.
    """
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="leads:\n" + "\n".join(f"  {name:14}{lead.what}" for name, lead in LEADS.items()),
    )
    parser.add_argument("--gpus", default="0", help="indices, with commas between them")
    parser.add_argument("--minutes", type=float, default=3.5)
    parser.add_argument("--stretch", type=float, default=5.0, help="seconds that are timed after each lead")
    parser.add_argument("--leads", default=",".join(LEADS), help="names, with commas between them; default: all")
    parser.add_argument("--into", type=Path, default=Path("gpu-states"), help="folder of readings, notes and summary")
    parser.add_argument("--summarise", action="store_true", help="measure nothing: summarise what the folder holds")
    options = parser.parse_args(words)
    named = options.leads.split(",")
    if unknown := [name for name in named if name not in LEADS]:
        parser.error(f"no lead is called {', '.join(unknown)}; there are {', '.join(LEADS)}")
    options.leads = [name for name in LEADS if name in named]
    options.gpus = options.gpus.split(",")
    return options


def main(words: Sequence[str] | None = None) -> int:
    """Follow the leads on every GPU at once, then summarise; 1 where nothing was timed."""
    options = parsed(words)
    if not options.summarise:
        options.into.mkdir(parents=True, exist_ok=True)
        options.deadline_s = time.monotonic() + options.minutes * 60
        followers = [Follower(options.gpus, turn, options.leads, options) for turn in range(len(options.gpus))]
        for follower in followers:
            follower.start()
        for follower in followers:
            follower.join()
        notes = [note for follower in followers for note in follower.notes]
        (options.into / "notes.jsonl").write_text("".join(f"{note}\n" for note in notes))
    lines = summary(options.into)
    (options.into / "summary.json").write_text(json.dumps(lines, indent=1) + "\n")
    for line in lines:
        print(json.dumps(line))
    return int(not lines)


if __name__ == "__main__":
    sys.exit(main())
