"""One measurement at a time on a set of GPUs, across processes of one host."""

from __future__ import annotations

import math
import os
import threading
import time
from pathlib import Path

import pytest
from fake_nvml import FakeMachine
from filelock import FileLock
from perfgate_process import PerfgateProcess, fake_words

from perfgate.errors import InterruptedRunError
from perfgate.lock import hold_devices, state_folder
from perfgate.record import Record, read_records, read_run


def quiet(_: str) -> None:
    """Somebody who is not told."""


def test_two_runs_on_one_gpu_run_one_after_the_other(
    tmp_path: Path, fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started together, the second waits, says for whom, and takes its first trial after the other's last."""
    for name, value in fake_nvml.environment.items():
        monkeypatch.setenv(name, value)
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    started = [PerfgateProcess(folder, fake_words(folder), sleep_s=0.2) for folder in folders]

    assert [one.process.wait(120) for one in started] == [0, 0], [one.stderr for one in started]

    ends = sorted(_ends(next(read_records(one.run_folder, read_run(one.run_folder)))) for one in started)
    assert max(ends[0]) < min(ends[1])
    (told,) = [one.stderr for one in started if "perfgate: waiting for" in one.stderr]
    assert f"waiting for {fake_nvml.gpu().uuid}, in use by process " in told
    assert not list(state_folder().glob("*.holder"))


def _ends(record: Record) -> list[int]:
    """When each trial ended, on the host's clock."""
    return [trial.iterations[-1].window.end_ns for trial in record.trials]


def test_who_waits_is_told_for_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder's process, run and time are said once; at the deadline waiting ends as out of budget."""
    monkeypatch.setattr("perfgate.lock.POLL_S", 0.01)
    told: list[str] = []
    with hold_devices(["GPU-a"], "first", quiet, math.inf):
        deadline_s = time.monotonic() + 0.1
        with (
            pytest.raises(InterruptedRunError, match="GPU-a is still in use by process") as caught,
            hold_devices(["GPU-a"], "second", told.append, deadline_s),
        ):
            pass
    assert caught.value.code == "out-of-budget"
    (words,) = told
    assert f"GPU-a, in use by process {os.getpid()} (run first) since " in words


def test_runs_that_share_some_gpus_never_wait_for_each_other() -> None:
    """Whatever order GPUs are named in, they are taken in one: two runs that cross do not block each other."""
    rounds = 20

    def run(names: list[str]) -> None:
        for _ in range(rounds):
            with hold_devices(names, "crossing", quiet, math.inf):
                done.append(names[0])

    done: list[str] = []
    threads = [threading.Thread(target=run, args=(names,)) for names in (["GPU-a", "GPU-b"], ["GPU-b", "GPU-a"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) == 2 * rounds


def test_note_of_a_killed_run_is_replaced() -> None:
    """Its file belongs to another user, perhaps: it is not written into but taken away."""
    note, old = state_folder() / "GPU-a.holder", state_folder() / "old"
    note.write_text("killed")
    old.hardlink_to(note)
    with hold_devices(["GPU-a"], "mine", quiet, math.inf):
        assert "(run mine)" in note.read_text()
    assert old.read_text() == "killed"


def test_note_that_goes_while_it_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder that has just gone, or has not written yet, is another process."""
    told: list[str] = []
    monkeypatch.setattr(Path, "exists", lambda _: True)  # as far as one can tell beforehand
    with (
        FileLock(state_folder() / "GPU-a.lock"),
        pytest.raises(InterruptedRunError, match="still in use by another process"),
        hold_devices(["GPU-a"], "second", told.append, time.monotonic()),
    ):
        pass
    assert told == []


def test_every_user_may_use_the_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folder and locks are open to all users of the host, whatever the umask of the one who came first."""
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))
    before = os.umask(0o077)
    try:
        with hold_devices(["GPU-a"], "mine", quiet, math.inf):
            assert state_folder().stat().st_mode & 0o777 == 0o777
            assert (state_folder() / "GPU-a.lock").stat().st_mode & 0o666 == 0o666
    finally:
        os.umask(before)
