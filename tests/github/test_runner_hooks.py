"""The hooks of .github/runner before and after a job, with the real perfgate and a stand-in GPU."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from fake_nvml import FakeMachine
from perfgate_process import DEADLINE_S, marking
from runner_machine import HOOKS, JOB, Ended, Host

from perfgate.machine.locks import STATE

pytestmark = pytest.mark.usefixtures("orphans_alone")


HOLDER = """
import os, signal, sys, time
from perfgate.machine.clocks import ClockGuard
from perfgate.machine.nvml import connect
nvml = connect()
guard = ClockGuard(nvml, "the-run")
guard.apply([gpu.uuid for gpu in nvml.gpus()], 1500)
print("ready", flush=True)
time.sleep(600)
"""
"""A run that holds the clocks."""

MARK = "PERFGATE_TESTED_OWNER"
"""The variable that marks processes here: no perfgate that measures on this machine ends ours, and ours ends none."""

OWNER = f"""
import subprocess, time
from perfgate.machine.processes import owner_mark
child = subprocess.Popen(["/bin/sleep", "600"], env={{"{MARK}": owner_mark("the-run")}}, start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""
"""A run that has an engine, and no supervisor that would end it with the run."""

Start = Callable[..., tuple[subprocess.Popen[str], str]]


@pytest.fixture
def host(tmp_path: Path, fake_nvml: FakeMachine, state_of_its_own: Path, forked: Path) -> Host:
    """A host with everything installed, whose hooks wait for nobody and call a perfgate that starts at once."""
    host = Host(tmp_path, fake_nvml, state_of_its_own)
    assert host.install().returncode == 0
    host.configure("IDLE_WAIT_S", "0")
    program = tmp_path / "perfgate"
    program.write_text(f'#!/bin/sh\nPERFGATE_TESTS_OWNER={MARK} exec {forked} "$@"\n')
    program.chmod(0o755)
    host.configure("PERFGATE", str(program))
    return host


@pytest.fixture
def start(host: Host, state_of_its_own: Path) -> Iterator[Start]:
    """A function that starts a Python program with variables of its own and returns it with its first line."""
    started: list[subprocess.Popen[str]] = []

    def one(program: str, **variables: str) -> tuple[subprocess.Popen[str], str]:
        everything = {**os.environ, **host.machine.environment, STATE: str(state_of_its_own), **variables}
        process = subprocess.Popen([sys.executable, "-c", program], env=everything, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    yield one
    for process in started:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children():
                child.kill()
            process.kill()
        process.communicate()


def occupy(host: Host, pid: int, gib: int = 4) -> None:
    """Let a process compute on the GPU."""
    host.machine.gpu().update(processes=[{"pid": pid, "memory_bytes": gib * 2**30}])


def said(ended: Ended, kind: str) -> str:
    """The one annotation of a kind."""
    (line,) = (line for line in ended.stdout.splitlines() if line.startswith(f"::{kind} title=perfgate::"))
    return line


def gone(pid: int) -> bool:
    """Whether a process ends before the deadline, or is a zombie then."""
    deadline = time.monotonic() + DEADLINE_S
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_a_clean_machine_is_ready(host: Host, tmp_path: Path) -> None:
    """Both hooks succeed with the installed perfgate, and annotate nothing."""
    program = tmp_path / "alone"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(marking(MARK))} "$@"\n')
    program.chmod(0o755)
    host.configure("PERFGATE", str(program))

    for name in ("job-started", "job-completed"):
        ended = host.hook(name)

        assert (ended.returncode, "::" in ended.stdout) == (0, False), ended.stdout + ended.stderr


def test_a_dead_runs_lock_is_undone_before_the_job(host: Host, start: Start) -> None:
    """What a killed run locked is free again when the job starts."""
    holder, ready = start(HOLDER)
    assert (ready, host.machine.gpu().locked) == ("ready", (1500, None))
    holder.kill()
    holder.wait()

    ended = host.hook("job-started")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert host.machine.gpu().locked == (None, None)


def test_a_living_runs_lock_fails_the_job(host: Host, start: Start) -> None:
    """Another run that holds the clocks keeps them, and the job does not start beside it."""
    holder, _ = start(HOLDER)

    ended = host.hook("job-started")

    assert ended.returncode == 1
    assert "the clocks of a GPU are locked" in said(ended, "error")
    assert f"by run the-run (pid {holder.pid})" in ended.stderr
    assert host.machine.gpu().locked == (1500, None)


def test_engines_of_dead_runs_are_ended_before_the_job(host: Host, start: Start) -> None:
    """An engine whose run was killed is ended; one whose run lives is not, nor is anybody else's process."""
    dead, engine = start(OWNER)
    _, other_engine = start(OWNER)
    dead.kill()
    dead.wait()

    ended = host.hook("job-started")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"ended sleep (pid {engine}, of run the-run)" in ended.stdout
    assert gone(int(engine))
    assert psutil.pid_exists(int(other_engine))


def test_a_foreign_process_on_the_gpu_fails_the_job_and_lives(host: Host, start: Start) -> None:
    """Before a job it is an error that names the process; after a job a warning, for no verdict hangs on it."""
    stranger, _ = start("import time; print(flush=True); time.sleep(600)")
    occupy(host, stranger.pid)

    before, after = host.hook("job-started"), host.hook("job-completed")

    process = psutil.Process(stranger.pid)
    named = f"{process.name()} (pid {stranger.pid}, user {process.username()}, 4096 MiB) on {host.machine.gpu().uuid}"
    assert (before.returncode, after.returncode) == (1, 0)
    assert named in said(before, "error")
    assert named in said(after, "warning")
    assert stranger.poll() is None


@pytest.mark.parametrize(
    ("harm", "error"),
    [
        (lambda host: host.machine.gpu().update(memory_reserved_bytes=6 * 2**30),
         "cannot be seen from here (another container?) holds 6144 MiB on "),
        (lambda host: host.machine.update(errors={"nvidia-smi": 15}),
         "cannot tell whether the GPUs are idle: Unable to do that: status 15"),
        (lambda host: host.configure("PERFGATE", "/nowhere/perfgate"), "there is no program /nowhere/perfgate"),
    ],
    ids=["memory of another container", "unreadable GPU", "no perfgate"],
)  # fmt: skip
def test_what_is_not_known_to_be_idle_fails_the_job(host: Host, harm: Callable[[Host], None], error: str) -> None:
    """Memory of a process that cannot be seen, no answer of the GPU, no program: the job does not start."""
    harm(host)

    before, after = host.hook("job-started"), host.hook("job-completed")

    assert (before.returncode, after.returncode) == (1, 0)
    assert error in said(before, "error")


def test_only_the_runners_own_gpus_count(host: Host) -> None:
    """Where CUDA_VISIBLE_DEVICES gives a runner some of the GPUs, the others may be busy."""
    machine = FakeMachine.build(host.machine.file, {}, {"memory_reserved_bytes": 6 * 2**30})

    alone = host.hook("job-started", CUDA_VISIBLE_DEVICES=machine.gpu(0).uuid)

    assert (alone.returncode, host.hook("job-started").returncode) == (0, 1), alone.stdout


def test_a_process_that_just_ended_is_waited_for(host: Host) -> None:
    """A context needs seconds to leave the GPU after its process; the job starts when it has."""
    host.configure("IDLE_WAIT_S", "60")
    occupy(host, pid=2**22 + 1)
    with host.start_hook("job-started") as hook:
        assert hook.stdout is not None
        assert any("looking for processes" in line for line in hook.stdout)
        host.machine.gpu().update(processes=[])
        rest = hook.stdout.read()

    assert (hook.returncode, "the machine is ready" in rest) == (0, True), rest


@pytest.mark.parametrize(
    ("hung", "at"), [("PERFGATE", "ending processes of dead runs"), ("NVIDIA_SMI", "looking for processes on the GPUs")]
)
def test_a_hanging_program_ends_with_the_time_limit(host: Host, tmp_path: Path, hung: str, at: str) -> None:
    """GitHub would wait for a hook for ever: it stops itself, says at what, and leaves no process behind."""
    program, pid = tmp_path / "hangs", tmp_path / "pid"
    program.write_text(f"#!/bin/sh\necho $$ >{pid}\nexec sleep 600\n")
    program.chmod(0o755)
    host.configure("PERFGATE", "/bin/true")
    host.configure(hung, str(program))
    host.configure("LIMIT_S", "2")

    before, after = host.hook("job-started"), host.hook("job-completed")

    assert (before.returncode, after.returncode) == (1, 0)
    assert "took longer than 2 s" in said(before, "error")
    assert before.stdout.splitlines()[-2] == f"perfgate: {at}"
    assert "took longer than 2 s" in said(after, "warning")
    assert gone(int(pid.read_text()))


def test_a_full_disk_is_swept_and_then_fails_the_job(host: Host) -> None:
    """Compile caches of killed runs go first; what is nobody's stays, and the job does not start without room."""
    run = host.work / "repository" / "runs" / "dead"
    (run / "cache-x" / "vllm").mkdir(parents=True)
    (run / "run.json").write_text('{"format": "perfgate-run/1"}')
    host.configure("MIN_FREE_GIB", "999999")

    ended = host.hook("job-started")

    assert ended.returncode == 1
    assert f"are free in {host.work}, 999999 are needed" in said(ended, "error")
    assert (run.exists(), (run / "cache-x").exists()) == (True, False)


def test_names_of_processes_command_nothing(host: Host) -> None:
    """What a warning says is one line, whatever a process is called, and steers no terminal."""
    hook = host.root / HOOKS / "hook.bash"
    words = ["bash", "-c", f"source {hook}; warn $'50%\\r::add-mask::a\\n::error::b\\e[2J'"]

    ended = subprocess.run(words, capture_output=True, text=True, check=True)

    assert ended.stdout == "::warning title=perfgate::50%25%0D::add-mask::a%0A::error::b?[2J\n"


def test_what_a_job_left_running_ends_with_it(host: Host, start: Start) -> None:
    """After a job its own runs and their engines are ended; those of another runner's job go on."""
    ours, engine = start(OWNER, **JOB)
    other, other_engine = start(OWNER, **{**JOB, "RUNNER_NAME": "runner-2"})

    ended = host.hook("job-completed")

    assert (ended.returncode, "::" in ended.stdout) == (0, False), ended.stdout + ended.stderr
    assert (gone(ours.pid), gone(int(engine))) == (True, True)
    assert (other.poll() is None, psutil.pid_exists(int(other_engine))) == (True, True)
