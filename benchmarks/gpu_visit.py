"""What docs/measurements.md lacks from GPUs, measured in one visit to a host: as much as fits into the time.

``python benchmarks/gpu_visit.py --build python=PYTHON --minutes 26 [--gpus 0,1] [--only 'tight*'] [--into FOLDER]``

``gpu_visit.toml`` lists tasks, the most wanted first: commands of perfgate, and other benchmarks. One visit holds a
part of them: choose with ``--only NAME`` or ``--only NAME=MINUTES``, in the order that it is given. Each task takes
GPUs of its own and an equal share of the cores, and they run side by side; one that would not end in time is not begun.
A later visit into the same folder runs no task again that ended as expected, and resumes a run that was cut short.
Nothing of a GPU is changed: scenarios only observe clocks, and NVLink multicast is off, because a fault in it takes a
whole host down.

PYTHON finds vllm and torch by itself: engines get no ``PYTHONPATH``. FOLDER gets ``TASK/TASK.txt``, which is what a
task printed, its run folders, and ``ended.jsonl``, a line a task. Prints what begins and ends, and last a table. Ends
with 1 where a task did not end as expected, and with 2 where perfgate or the build cannot be imported.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[1]
TASKS = Path(__file__).with_suffix(".toml")
CUT_SHORT = 130
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "NVSHMEM_DISABLE_NVLS": "1", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
OF_ENGINES = {**NO_MULTICAST, "VLLM_ALLREDUCE_USE_SYMM_MEM": "0", "VLLM_USE_NCCL_SYMM_MEM": "0"}
"""What an engine over several GPUs is given for that; perfgate passes on no variable that a build does not name."""
POLL_S = 0.5
END_S = 30.0
"""For a task to end its engine and to judge what it has."""


@dataclass(frozen=True)
class Task:
    """One command.

    Args:
        name: Unique; also the name of its folder.
        words: ``perfgate`` is left out; a first word that ends in ``.py`` is a benchmark. ``{build}``, ``{gpus}``,
            ``{minutes}``, ``{root}``, ``{into}``, ``{plant}`` and, for one of several that are alike, ``{each}`` are
            filled in; ``{no_multicast}`` stands for the words that give the base :data:`OF_ENGINES`.
        minutes: What it takes at most; it is stopped then.
        gpus: How many it takes.
        alone: Whether it takes all there are, whatever it needs, so that nothing runs beside it.
        expect: Exit statuses that are as they should be.
        after: Tasks that must have ended as expected before.
        folder: Shared with other tasks of the same word; its own by default.
        config: Content of its ``perfgate.toml``; ``{anchor}`` stands for the build.
    """

    name: str
    words: list[str]
    minutes: float
    gpus: int = 1
    expect: list[int] = field(default_factory=lambda: [0])
    after: list[str] = field(default_factory=list)
    folder: str = ""
    config: str = ""
    alone: bool = False


@dataclass
class Begun:
    """A task under way."""

    task: Task
    gpus: list[str]
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    since_s: float
    asked: bool = False

    def end_in_time(self) -> None:
        """As Ctrl-C does once it has had its time, and for good where it does not go."""
        over_s = time.monotonic() - self.since_s - 60 * self.task.minutes
        if over_s > 0 and not self.asked:
            self.asked = True
            os.killpg(self.process.pid, signal.SIGINT)
        elif over_s > END_S:
            os.killpg(self.process.pid, signal.SIGKILL)


class Visit:
    """What runs where, until the time is up.

    Args:
        into: Where everything goes.
        build: As perfgate's ``--base`` takes it.
        gpus: Indices of the GPUs to use.
        minutes: Until nothing runs any more.
        plant: How often the plant of 0.9 % is in a step of these GPUs: its ``PERFGATE_PLANT_EVERY``.
    """

    def __init__(self, into: Path, build: str, gpus: list[str], minutes: float, plant: str = "1") -> None:
        self._into, self._build, self._free, self._plant = into, build, gpus, plant
        cores = sorted(os.sched_getaffinity(0))
        each = len(cores) // len(gpus)
        self._cores = {gpu: cores[each * place : each * (place + 1)] for place, gpu in enumerate(gpus)}
        self._until_s = time.monotonic() + 60 * minutes
        self._begun: list[Begun] = []
        into.mkdir(parents=True, exist_ok=True)
        self._file = into / "ended.jsonl"
        lines = self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else []
        self.ended: list[dict[str, object]] = [json.loads(line) for line in lines]

    def done(self, name: str) -> bool:
        """Whether a task of that name ended as expected."""
        return any((one["task"], one["build"], one["as_expected"]) == (name, self._build, True) for one in self.ended)

    def _was_cut_short(self, name: str) -> bool:
        """Whether its run was ended with trials to come when it was begun last."""
        last = [one["status"] for one in self.ended if (one["task"], one["build"]) == (name, self._build)][-1:]
        return last == [CUT_SHORT]

    def take(self, tasks: list[Task]) -> None:
        """Run what fits; returns when nothing is left that would."""
        waiting = [task for task in tasks if not self.done(task.name)]
        try:
            self._take(waiting)
        finally:
            for one in self._begun:  # a task has a session of its own: Ctrl-C came here alone
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(one.process.pid, signal.SIGINT)
            for one in self._begun:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    one.process.wait(END_S)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(one.process.pid, signal.SIGKILL)

    def _take(self, waiting: list[Task]) -> None:
        while waiting or self._begun:
            self._end_some()
            for task in [task for task in waiting if self._may_begin(task)]:
                if len(self._free) < task.gpus:
                    break  # it is wanted more than what would take its GPUs
                waiting.remove(task)
                self._begin(task)
            promised = {one.task.name for one in self._begun} | {task.name for task in waiting}
            waiting = [
                task
                for task in waiting
                if self._left_s() >= 60 * task.minutes and all(self.done(one) or one in promised for one in task.after)
            ]
            time.sleep(POLL_S)

    def _left_s(self) -> float:
        return self._until_s - time.monotonic() - END_S

    def _may_begin(self, task: Task) -> bool:
        return self._left_s() >= 60 * task.minutes and all(map(self.done, task.after))

    def _begin(self, task: Task) -> None:
        gpus, self._free = sorted(self._free[: task.gpus]), self._free[task.gpus :]
        folder = self._into / (task.folder or task.name)
        folder.mkdir(exist_ok=True)
        if task.config:
            key, _, value = self._build.partition("=")
            content = task.config.replace("{anchor}", f"{key} = {json.dumps(value)}")
            (folder / "perfgate.toml").write_text(content, encoding="utf-8")
        known = {"build": self._build, "root": str(ROOT), "into": str(self._into), "gpus": ",".join(gpus)}
        known["plant"] = self._plant
        known["minutes"] = f"{task.minutes - 1:g}"
        words = list(task.words)
        if words[0] == "run" and not task.folder and self._was_cut_short(task.name):
            words = ["run", "--resume", "latest", "--budget", "{minutes}"]
        for name, value in known.items():
            words = [word.replace("{" + name + "}", value) for word in words]
        program = [str(ROOT / "benchmarks" / words.pop(0))] if words[0].endswith(".py") else ["-m", "perfgate"]
        environment = {**os.environ, **NO_MULTICAST, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
        if "{gpus}" not in " ".join(task.words):
            environment["CUDA_VISIBLE_DEVICES"] = known["gpus"]
        log = (folder / f"{task.name}.txt").open("wb")
        process = subprocess.Popen(
            [sys.executable, *program, *words], cwd=folder, env=environment, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        if cores := [core for gpu in gpus for core in self._cores[gpu]]:
            os.sched_setaffinity(process.pid, cores)  # before it starts anything
        self._begun.append(Begun(task, gpus, process, log, time.monotonic()))
        print(f"{task.name} begins on GPU {known['gpus']}", flush=True)

    def _end_some(self) -> None:
        """Note what has ended, and end what has had its time as Ctrl-C does."""
        for one in list(self._begun):
            one.end_in_time()
            status = one.process.poll()
            if status is None:
                continue
            one.log.close()
            self._begun.remove(one)
            self._free += one.gpus
            took = round((time.monotonic() - one.since_s) / 60, 2)
            fine = status in one.task.expect
            ended = {"task": one.task.name, "build": self._build, "gpus": one.gpus, "status": status}
            ended |= {"as_expected": fine, "minutes": took}
            self.ended.append(ended)
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(ended) + "\n")
            print(f"{one.task.name} ended with {status} after {took:g} min", flush=True)


def tasks_of(declared: dict[str, Any]) -> list[Task]:
    """A task, or one for each value of ``each``."""
    variables = [word for name, value in OF_ENGINES.items() for word in ("--base", f"env.{name}={value}")]
    words = ([word] if word != "{no_multicast}" else variables for word in declared["words"])
    declared["words"] = [*itertools.chain.from_iterable(words)]
    values = declared.pop("each", None)
    if values is None:
        return [Task(**declared)]
    text = json.dumps(declared)
    return [Task(**json.loads(text.replace("{each}", str(value)))) for value in values]


def chosen_of(listed: Sequence[Task], wanted: Sequence[str]) -> list[Task]:
    """Tasks in the order in which they are wanted, each as the last word has it that names it."""
    found = {}
    for word in wanted:
        name, _, minutes = word.partition("=")
        for task in listed:
            if fnmatch.fnmatch(task.name, name):
                found[task.name] = replace(task, minutes=float(minutes)) if minutes else task
    return [*found.values()]


def check_imports(build: str) -> None:
    """End with 2 where perfgate cannot be imported, or vllm by a build's interpreter: no task would run."""
    wanted = [[sys.executable, "import perfgate.gate"]]
    if build.startswith("python="):
        wanted.append([build.removeprefix("python="), "import vllm"])
    for python, statement in wanted:
        if subprocess.run([python, "-c", statement], cwd=ROOT, check=False).returncode != 0:
            print(f"{python} -c {statement!r} failed", file=sys.stderr)
            raise SystemExit(2)


def main() -> None:
    """Measure, and print a table."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would tasks
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, metavar="KEY=VALUE", help="the build, as perfgate's --base takes it")
    parser.add_argument("--minutes", type=float, required=True, help="until nothing runs any more")
    parser.add_argument("--gpus", type=lambda names: names.split(","), default=["0"], help="indices")
    parser.add_argument("--only", action="append", metavar="NAME[=MINUTES]",
                        help="tasks, with wildcards, and what they take at most; default: all")  # fmt: skip
    parser.add_argument("--into", type=Path, default=Path("gpu-visit"), help="folder of logs and runs")
    parser.add_argument(
        "--plant", default="1", metavar="EVERY", help="of the plant of 0.9 %%: 1 on an H200, 0.5 on an H100"
    )
    parser.add_argument("--tasks", type=Path, default=TASKS, help="the list")
    given = parser.parse_args()
    key, _, value = given.build.partition("=")
    given.build = f"{key}={Path(value).absolute()}" if key == "python" else given.build  # each task has its own folder
    listed = [task for one in tomllib.loads(given.tasks.read_text(encoding="utf-8"))["task"] for task in tasks_of(one)]
    chosen = chosen_of(listed, given.only or ["*"])
    check_imports(given.build)
    visit = Visit(given.into.resolve(), given.build, given.gpus, given.minutes, given.plant)
    fitting = (task for task in chosen if task.gpus <= len(given.gpus))
    visit.take([replace(task, gpus=len(given.gpus)) if task.alone else task for task in fitting])
    print("| task | exit | as expected | minutes | GPUs |\n|---|---|---|---|---|")
    for one in visit.ended:
        print(f"| {one['task']} | {one['status']} | {one['as_expected']} | {one['minutes']} | {one['gpus']} |")
    for task in chosen:
        if not visit.done(task.name):
            print(f"still to run: {task.name}")
    if not all(one["as_expected"] for one in visit.ended):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
