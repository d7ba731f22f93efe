"""What can end a run before its verdict: each with a reason code, an exit status, and everything finished kept."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fake_collector import FakeCollector, FakeSpec
from hand_made import scenario_file
from perfgate_process import DEADLINE_S, PerfgateProcess, fake_words, marked_processes, stub_words

from perfgate import gate
from perfgate.capture.job import Job
from perfgate.cli.main import main
from perfgate.errors import InterruptedRunError
from perfgate.machine.locks import hold, measuring_into
from perfgate.metrics.trial import Trial
from perfgate.reasons import REASONS
from perfgate.record.run_record import read_records, read_run

SAME = FakeSpec(restart_sd=0.0003)
PACKAGE = Path(gate.__file__).parent
PARTS = ("scenario.yaml", "--base", "python=/bin/true", "--head", "env.BUILD=new", "--seed", "1")

Invoke = Callable[..., Result]


class Doing(FakeCollector):
    """A fake that does something in front of the trial of that index."""

    def __init__(self, something: Callable[[Job], object], at: int) -> None:
        super().__init__(SAME)
        self.something = something
        self.at = at

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Do it, and take a fake trial."""
        if job.index == self.at:
            self.something(job)
        return super().collect(job, progress)


def perfgate(*words: str, collector: FakeCollector | None = None) -> Result:
    """Run perfgate in this process with a fake that takes the trials."""
    return CliRunner().invoke(main, words, obj=collector or FakeCollector(SAME))


def trials_on_disk(folder: Path) -> list[int]:
    """Numbers of the trials in the records of a run folder."""
    return [trial.index for record in read_records(folder, read_run(folder)) for trial in record.trials]


def begin(folder: Path, collector: FakeCollector) -> tuple[Result, Path]:
    """A new run in a project of its own below ``folder``; what it printed, and its run folder."""
    file = scenario_file(folder)
    both = ("--base", "python=/bin/true", "--head", "env.BUILD=new")
    result = perfgate("run", str(file), *both, "--seed", "1", "--runs", str(folder / "runs"), collector=collector)
    (found,) = (folder / "runs").iterdir()
    return result, found


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 4 MB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system to fill up")
    folder = tmp_path / "disk"
    folder.mkdir()
    fault = mount("-t", "tmpfs", "-o", "size=4m", "perfgate-tests", str(folder))
    if fault:
        pytest.skip(f"no file system can be mounted here: {fault}")
    yield folder
    subprocess.run([shutil.which("umount") or "umount", "--lazy", folder], check=True)


def mount(*words: str) -> str:
    """Call mount; what it complains of, if it does."""
    command = [shutil.which("mount") or "mount", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr.strip()


def fill(disk: Path) -> None:
    """Leave not a byte on a disk."""
    with (disk / "filler").open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(bytes(4096))
        except OSError:
            return


# --- the run folder


@pytest.mark.usefixtures("no_orphans")
@pytest.mark.parametrize("at", [0, 5])
def test_full_disk(disk: Path, at: int) -> None:
    """A full disk ends 22 with what was finished readable; once there is room, --resume ends in the verdict."""
    result, folder = begin(disk, Doing(lambda _: fill(disk), at))

    assert (result.exit_code, result.stdout) == (22, "")
    assert f"perfgate: storage-failed: {folder}: " in result.stderr
    assert "No space left on device" in result.stderr
    assert f"perfgate run --resume {folder}" in result.stderr
    assert trials_on_disk(folder) == list(range(at))

    assert perfgate("run", "--resume", str(folder)).exit_code == 22
    (disk / "filler").unlink()
    resumed = perfgate("run", "--resume", str(folder))
    assert resumed.exit_code == 0, resumed.stderr
    assert trials_on_disk(folder)[:at] == list(range(at))


@pytest.mark.usefixtures("no_orphans")
def test_disk_that_was_full_from_the_start(disk: Path) -> None:
    """Where no run folder can be made nothing is measured, and the advice is to name another folder."""
    file = scenario_file(disk)
    fill(disk)

    result = perfgate("run", str(file), "--base", "python=/bin/true", "--runs", str(disk / "runs"))

    assert (result.exit_code, result.stdout) == (22, "")
    assert "perfgate: storage-failed: " in result.stderr
    assert "name another folder with --runs" in result.stderr


@pytest.mark.usefixtures("no_orphans")
def test_read_only_folder(disk: Path) -> None:
    """On a read-only file system a run cannot go on, but judge prints the verdict and says what it could not write."""

    def interrupt(_: Job) -> None:
        raise KeyboardInterrupt

    _, folder = begin(disk, Doing(interrupt, 6))
    verdict = (folder / "verdict.json").read_bytes()
    assert mount("-o", "remount,ro", str(disk)) == ""

    resumed, judged = perfgate("run", "--resume", str(folder)), perfgate("judge", str(folder))

    assert (resumed.exit_code, resumed.stdout) == (22, "")
    assert "storage-failed" in resumed.stderr
    assert "Read-only file system" in resumed.stderr
    assert (judged.exit_code, judged.stdout.startswith("**INCONCLUSIVE")) == (20, True)
    assert judged.stderr.startswith(f"perfgate: {folder / 'verdict.json'} ")
    assert (folder / "verdict.json").read_bytes() == verdict


@pytest.mark.usefixtures("no_orphans")
@pytest.mark.parametrize("at", [0, 4])
def test_folder_that_vanishes(tmp_path: Path, at: int) -> None:
    """A run folder that is taken away under a run is not made again: the run ends 22."""
    result = perfgate(
        "run", str(scenario_file(tmp_path)), "--base", "python=/bin/true", "--head", "env.A=1", "--runs",
        str(tmp_path / "runs"), collector=Doing(lambda job: shutil.rmtree(job.run_folder), at),
    )  # fmt: skip

    assert (result.exit_code, result.stdout) == (22, "")
    assert "perfgate: storage-failed: " in result.stderr
    assert list((tmp_path / "runs").iterdir()) == []


# --- records


@pytest.mark.usefixtures("no_orphans")
@pytest.mark.parametrize(
    ("command", "change", "says"),
    [
        ("judge", lambda text: text[: len(text) // 2], "invalid JSON, or truncated"),
        ("judge", lambda _: "", "invalid JSON, or truncated"),
        ("judge", lambda text: text.replace('"visit": 0', '"visit": 1', 1), "the digest does not fit the content"),
        ("judge", lambda text: text.replace("perfgate-record/1", "perfgate-record/2"), "has format perfgate-record/2"),
        ("run --resume", lambda text: text[: len(text) // 2], "invalid JSON, or truncated"),
    ],
    ids=["truncated", "empty", "tampered", "newer", "resumed"],
)
def test_record_that_cannot_be_trusted(tmp_path: Path, command: str, change: Callable[[str], str], says: str) -> None:
    """A record that is damaged, changed or newer ends 2 with its name, and is left as it is."""
    _, folder = begin(tmp_path, FakeCollector(SAME))
    (file,) = (folder / "records").iterdir()
    changed = change(file.read_text())
    file.write_text(changed)

    result = perfgate(*command.split(), str(folder))

    assert (result.exit_code, result.stdout) == (2, "")
    assert f"perfgate: {file}" in result.stderr
    assert says in result.stderr
    assert file.read_text() == changed


# --- two at once

HOLDER = """
import pathlib, sys, time
from perfgate.errors import InterruptedRunError
from perfgate.machine.locks import hold
with hold(pathlib.Path(sys.argv[1])):
    print("ready", flush=True)
    time.sleep(600)
"""


@contextlib.contextmanager
def telling(program: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A Python program on a folder that has said that it is ready; killed in the end."""
    with subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_busy_folder(tmp_path: Path) -> None:
    """While one perfgate measures into a folder another ends 22 and names it; its death frees the folder."""
    _, folder = begin(tmp_path, FakeCollector(FakeSpec(restart_sd=0.02)))

    with telling(HOLDER, folder) as holder:
        result = perfgate("run", "--resume", str(folder), "--more", "4")
        holder.kill()

    assert (result.exit_code, result.stdout) == (22, "")
    assert f"run-folder-busy: {folder}: process {holder.pid} is measuring into it" in result.stderr
    assert (folder / "lock").read_text() == f"{holder.pid}\n"
    assert measuring_into(folder) == measuring_into(folder / "records") == ""
    with hold(folder):
        assert (folder / "lock").read_text() == f"{os.getpid()}\n"


@pytest.mark.usefixtures("no_orphans")
def test_a_run_holds_its_folder(tmp_path: Path) -> None:
    """A run that measures holds its folder from the first trial on and releases it at the end."""
    statuses = []

    def try_to_resume(job: Job) -> None:
        statuses.append(perfgate("run", "--resume", str(job.run_folder)).exit_code)

    _, folder = begin(tmp_path, Doing(try_to_resume, 0))

    assert statuses == [22]
    assert perfgate("run", "--resume", str(folder)).exit_code == 0


# --- trials that fail


@pytest.mark.usefixtures("no_orphans")
@pytest.mark.parametrize("code", ["subject-not-found", "engine-start-timeout", "engine-failed"])
def test_trial_that_fails(tmp_path: Path, code: str) -> None:
    """Whatever fails in a trial ends 22 with its code, words and remedy, and is measured once it is mended."""
    result, folder = begin(tmp_path, FakeCollector(FakeSpec(restart_sd=0.0003, failures={1: code})))

    assert result.exit_code == 22
    assert f"reason `{code}`" in result.stdout
    assert REASONS[code].remedy.split(".")[0] in result.stdout
    assert perfgate("run", "--resume", str(folder)).exit_code == 0


# --- signals and deaths, of processes with a worker

LOCKED = pytest.mark.usefixtures("orphans_alone")


@pytest.fixture
def started(tmp_path: Path) -> Iterator[PerfgateProcess]:
    """A run on the stand-in engine that has taken a pair's first trial; a process of its own."""
    one = PerfgateProcess(tmp_path, stub_words(tmp_path))
    one.wait_for(lambda: 2 in one.reported())
    yield one
    one.process.kill()
    one.process.wait()


@LOCKED
@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGTERM, signal.SIGHUP))],
    ids=lambda number: number.name,
)
def test_signal(started: PerfgateProcess, number: signal.Signals) -> None:
    """Ctrl-C, SIGTERM and SIGHUP end 130 with the way on, the engine ended and every finished trial kept."""
    started.worker()
    started.process.send_signal(number)

    assert started.process.wait(DEADLINE_S) == 130
    folder = started.run_folder
    *_, text, way_on = started.stderr.splitlines()
    assert text.startswith("perfgate: interrupted: stopped; ")
    assert way_on == f"  Go on with: perfgate run --resume runs/{folder.name}"
    assert marked_processes(folder.name) == []
    assert started.reported() == set(trials_on_disk(folder))


INTERRUPTED_IMPORT = """
import os, signal, sys
import perfgate.__main__

module, sys.argv[1:] = sys.argv[1], ["check", "none.yaml"]

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
perfgate.__main__.main()
"""


@pytest.mark.parametrize("module", ["perfgate.cli.main", "pydantic"])
def test_interrupt_while_importing(module: str) -> None:
    """Ctrl-C before anything has begun says so and ends 130, wherever it comes."""
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, module]

    ended = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "perfgate: interrupted\n")


INTERRUPTED_STRING = """
import signal
import perfgate.__main__, perfgate.reasons

class Interrupting(dict):
    def get(self, *_):
        exec("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    __getitem__ = __contains__ = __iter__ = get

signal.signal(signal.SIGINT, signal.default_int_handler)
perfgate.reasons.REASONS = Interrupting(perfgate.reasons.REASONS)
perfgate.__main__.main()
"""


def test_interrupt_within_a_string_that_is_executed(tmp_path: Path) -> None:
    """An interpreter under -m ends by the signal then, and perfgate by its status."""
    (tmp_path / "interrupted.py").write_text(INTERRUPTED_STRING)
    command = [sys.executable, "-m", "interrupted", "explain", "undecided"]

    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "perfgate: interrupted\n")


INTERRUPTED_END = """
import atexit, os, signal, sys
import perfgate.__main__

signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(os.kill, os.getpid(), signal.SIGINT)
sys.argv[1:] = ["--version"]
perfgate.__main__.main()
"""


def test_interrupt_when_all_is_said() -> None:
    """Ctrl-C while the interpreter goes down takes nothing from the status."""
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED_END], capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stderr) == (0, "")


ONE_THREAD = """
import contextlib, os, subprocess, sys
import perfgate.__main__
sys.argv[1:] = ["--version"]
with contextlib.suppress(SystemExit):
    perfgate.__main__.main()
import numpy, scipy.special
print(len(os.listdir("/proc/self/task")), os.environ["OPENBLAS_NUM_THREADS"])
"""


def test_numpy_gets_no_threads_of_its_own() -> None:
    """The process of perfgate has one thread, whatever the shell says; what the shell says is what builds get."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "4"}

    ended = subprocess.run(
        [sys.executable, "-c", ONE_THREAD], env=environment, capture_output=True, text=True, check=False
    )

    assert ended.stdout.splitlines()[1:] == ["1 4"], ended.stderr


def test_error_that_an_interrupt_became(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ctrl-C while a library builds its classes comes out as an error of that library, and is an interruption."""

    def build(*_: object) -> None:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr(gate, "judge_folder", build)

    result = perfgate("judge", str(tmp_path))

    assert (result.exit_code, result.stderr) == (130, "perfgate: interrupted\n")


@LOCKED
@pytest.mark.parametrize(
    "victims",
    [
        ("perfgate",),
        *(pytest.param(both, marks=pytest.mark.slow) for both in (("perfgate", "worker"), ("worker", "perfgate"))),
    ],
)
def test_kill(started: PerfgateProcess, victims: tuple[str, ...]) -> None:
    """After kill -9 of perfgate, also with its worker, the next start ends what is left and goes on to the verdict."""
    worker = started.worker()
    assert worker is not None
    pids = {"perfgate": started.process.pid, "worker": worker.pid}
    for victim in victims:
        with contextlib.suppress(ProcessLookupError):  # it dies with perfgate
            os.kill(pids[victim], signal.SIGKILL)

    assert started.process.wait(DEADLINE_S) == -signal.SIGKILL
    folder = started.run_folder
    kept = trials_on_disk(folder)
    assert started.reported() <= set(kept)
    with pytest.raises(InterruptedRunError, match="budget"):
        gate.resume(folder, budget_s=0.0)
    assert marked_processes(folder.name) == []
    assert trials_on_disk(folder)[: len(kept)] == kept
    if victims == ("perfgate",):
        assert gate.resume(folder).outcome.verdict == "pass"


@LOCKED
def test_kill_of_the_worker(started: PerfgateProcess) -> None:
    """After kill -9 of the worker its pair is dropped and replaced, and the report says so."""
    worker = started.worker()
    assert worker is not None
    worker.kill()

    assert started.process.wait(DEADLINE_S) == 0
    (caution,) = (
        note for note in gate.judge_folder(started.run_folder).cells[0].cautions if note.code == "dropped-pairs"
    )
    assert caution.text.startswith("1 dropped: engine-")


@pytest.mark.slow
@LOCKED
def test_engine_that_breaks_off(tmp_path: Path) -> None:
    """A head whose engine dies in mid-iteration ends 22 with the base unharmed and nothing left running."""
    started = PerfgateProcess(tmp_path, stub_words(tmp_path, "step dies"))

    assert started.process.wait(DEADLINE_S) == 22
    (reason,) = gate.judge_folder(started.run_folder).cells[0].reasons
    assert reason.code == "engine-failed"
    assert marked_processes(started.run_folder.name) == []


OWNER_OF_A_SLEEPER = """
import pathlib, sys, time
from perfgate.machine.children import spawn
from perfgate.machine.processes import owner_mark
folder = pathlib.Path(sys.argv[1])
path = {"PATH": "/usr/bin:/bin"}
spawn(["sleep", "600"], environment=path, owner=owner_mark("killed-run"), log=folder / "log", folder=folder)
print("ready", flush=True)
time.sleep(600)
"""


@LOCKED
def test_orphan_of_a_killed_run(tmp_path: Path) -> None:
    """A process that outlives its killed run is ended by the next start, whichever run that is."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    with telling(OWNER_OF_A_SLEEPER, first) as owner:
        assert len(marked_processes("killed-run")) == 2  # it and its supervisor
        assert PerfgateProcess(second, [*fake_words(second), "--quick"], 0.001).process.wait(DEADLINE_S) == 20
        assert len(marked_processes("killed-run")) == 2  # it and its supervisor
        owner.kill()

    assert PerfgateProcess(second, [*PARTS, "--quick"], 0.001).process.wait(DEADLINE_S) == 20
    assert marked_processes("killed-run") == []


# --- clocks


def test_no_duration_from_the_wall_clock() -> None:
    """Nothing reads seconds of the clock that people and NTP set: a jump of it cannot change a figure or an owner."""
    read = re.compile(r"\b(?:time\.(?:time|time_ns|clock_gettime)|create_time)\(")

    assert [file.name for file in PACKAGE.rglob("*.py") if read.search(file.read_text())] == []


def test_lock_left_to_a_copy_of_a_killed_holder(tmp_path: Path) -> None:
    """A holder killed while it starts a child leaves the lock to the copy for a moment, and the next start waits."""
    program = (
        "import os, subprocess, sys\n"
        "from pathlib import Path\n"
        "from perfgate.machine.locks import hold\n"
        "folder = Path(sys.argv[1])\n"
        "with hold(folder):\n"
        "    for held in Path('/proc/self/fd').iterdir():\n"
        "        if held.exists() and held.samefile(folder / 'lock'):\n"
        "            os.set_inheritable(int(held.name), True)\n"
        "    subprocess.Popen(['sleep', '0.5'], close_fds=False)\n"
        "    os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)

    with hold(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
