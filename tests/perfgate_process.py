"""perfgate as a process of its own, to be watched and killed: on a fake, on the stand-in engine or on a real one."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
from hand_made import begin_project
from stub_engine import bare_python, write_stub

from perfgate.machine.processes import OWNER

DEADLINE_S = 300.0

MARKED = """
import os
from perfgate.machine import cgroup, processes
if "PERFGATE_TESTS_OWNER" in os.environ:
    processes.OWNER = cgroup.PREFIX = os.environ["PERFGATE_TESTS_OWNER"]
"""
"""How a program begins whose processes and cgroups carry the mark of their test: it finds no orphans of other tests."""

PROGRAM = f"""{MARKED}
import signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from fake_collector import FakeCollector, FakeSpec
from perfgate.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs have it ignored
sleep_s, _, waits_from = sys.argv.pop(1).partition("@")
invented = FakeSpec(restart_sd=0.0003, sleep_s=float(sleep_s), waits_from=float(waits_from or "inf"))
main(obj=FakeCollector(invented) if invented.sleep_s else None)
"""
"""perfgate's command line.

The first word is how long a fake trial sleeps, 0 for trials of an engine; behind an ``@`` the index of the first that
takes until the run is interrupted.
"""

SCENARIO = """\
schema: 1
name: {name}
engine: {{model: {{config: model}}{engine}}}
workload: {{batch: 2, input_tokens: 4, output_tokens: 8}}
measure: {{warmup_iterations: 1, iterations: 2{measure}}}
gates: [{{metric: itl_median, ignorable: {ignorable}, must_catch: {must_catch}}}]
"""
FOUR_PAIRS = ", looks: [4]"


def marking(variable: str) -> list[str]:
    """Words that start perfgate with another variable as the mark of its processes.

    No perfgate that other tests start takes them for orphans, and it takes none of theirs.
    """
    program = f"""
from perfgate.machine import cgroup, processes
processes.OWNER = cgroup.PREFIX = "{variable}"
from perfgate.__main__ import main
main()
"""
    return [sys.executable, "-c", program]


class PerfgateProcess:
    """``perfgate run`` in a folder of its own.

    Args:
        folder: Its working directory; run folders appear in ``runs`` below it.
        words: What follows ``perfgate run``.
        sleep_s: How long a fake trial sleeps; 0 for an engine.
    """

    def __init__(self, folder: Path, words: Sequence[str], sleep_s: float = 0.0) -> None:
        self.folder = folder
        with (folder / "stdout").open("ab") as stdout, (folder / "stderr").open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(sleep_s), "run", *words], cwd=folder, stdout=stdout, stderr=stderr
            )

    @property
    def run_folder(self) -> Path:
        """The run folder, as soon as it has its manifest."""
        self.wait_for(lambda: any((self.folder / "runs").glob("*/run.json")))
        (file,) = (self.folder / "runs").glob("*/run.json")
        return file.parent

    @property
    def stderr(self) -> str:
        """What it has written to standard error."""
        return (self.folder / "stderr").read_text()

    def reported(self) -> set[int]:
        """Numbers of the trials that it has reported as finished."""
        lines = self.stderr.splitlines(keepends=True)
        found = (re.search(r" trial (\d+) .*\n", line) for line in lines)
        return {int(match[1]) for match in found if match}

    def worker(self) -> psutil.Process | None:
        """The worker of the trial under way, waited for; ``None`` where perfgate ends first."""
        found: list[psutil.Process] = []

        def appeared() -> bool:
            with contextlib.suppress(psutil.NoSuchProcess):  # one that has just ended: looked for again
                if self.process.poll() is None:
                    below = psutil.Process(self.process.pid).children(recursive=True)
                    found.extend(one for one in below if one.ppid() != self.process.pid)  # not its supervisor
            return bool(found) or self.process.poll() is not None

        self.wait_for(appeared)
        return found[0] if found else None

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Poll until the condition holds; it must within the deadline."""
        wait_for(condition, lambda: f"stderr of perfgate:\n{self.stderr}", poll_s=0.005)


def wait_for(condition: Callable[[], object], told: Callable[[], str] = str, poll_s: float = 0.02) -> None:
    """Poll until the condition holds.

    Raises:
        TimeoutError: It does not within the deadline; with what is ``told`` then.
    """
    until_s = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > until_s:
            raise TimeoutError(f"never came true {told()}".rstrip())
        time.sleep(poll_s)


def marked_processes(run_name: str) -> list[psutil.Process]:
    """Live processes that carry the mark of a run."""
    found = []
    variables = {OWNER, os.environ.get("PERFGATE_TESTS_OWNER", OWNER)}  # of a session in this process, and of another
    for process in psutil.process_iter():
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            marks = process.environ() if alive else {}
            if any(marks.get(variable, "").partition(":")[0] == run_name for variable in variables):
                found.append(process)
        except psutil.Error:
            continue
    return found


def fake_words(folder: Path) -> list[str]:
    """Write a scenario for fake trials and return the words that run it: four pairs, tight margins."""
    _write(
        folder,
        SCENARIO.format(name="fake", engine="", measure=", looks: [4, 6, 8, 12]", ignorable="0.1%", must_catch="0.5%"),
    )
    return ["scenario.yaml", "--base", "python=/bin/true", "--head", "env.BUILD=new", "--seed", "1"]


def stub_words(folder: Path, mode: str = "none") -> list[str]:
    """Write the stand-in engine and a scenario for it, and return the words: four pairs, margins that always pass.

    Args:
        folder: Where they are written.
        mode: The fault of the head's engine, see :mod:`stub_engine`.
    """
    write_stub(folder / "stub")
    measure = f"{FOUR_PAIRS}, start_timeout: 60s, iteration_timeout: 60s"
    # Without a probe: on an invented GPU its readings are those of a busy CPU, and at times show two states.
    engine = ", args: {max_num_seqs: 2}, env: {STUB_MODE: none, PERFGATE_PROBE: '0'}"
    text = SCENARIO.format(name="stub", engine=engine, measure=measure, ignorable="900%", must_catch="1000%")
    _write(folder, text)
    both = ["--base", f"python={bare_python(folder / 'env')}", "--base", f"path={folder / 'stub'}"]
    return ["scenario.yaml", *both, "--head", f"env.STUB_MODE={mode}", "--seed", "1"]


def _write(folder: Path, scenario: str) -> None:
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    begin_project(folder)
    (folder / "scenario.yaml").write_text(scenario)
