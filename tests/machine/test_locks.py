"""One measurement at a time on a set of GPUs, across processes of one host."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_nvml import FakeMachine
from filelock import FileLock
from perfgate_process import DEADLINE_S, PerfgateProcess, fake_words

from perfgate.errors import InterruptedRunError, NotMeasuredError
from perfgate.machine.locks import hold_devices, holder_of, open_shared, state_folder
from perfgate.record.run_record import Record, read_records, read_run


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

    assert [one.process.wait(DEADLINE_S) for one in started] == [0, 0], [one.stderr for one in started]

    ends = sorted(_ends(next(read_records(one.run_folder, read_run(one.run_folder)))) for one in started)
    assert max(ends[0]) < min(ends[1])
    (told,) = [one.stderr for one in started if "perfgate: waiting for" in one.stderr]
    assert f"waiting for {fake_nvml.gpu().uuid}, in use by process " in told
    assert not list(state_folder().glob("*.holder"))


def _ends(record: Record) -> list[int]:
    """When each trial ended, on the host's clock."""
    return [trial.iterations[-1].window.end_ns for trial in record.trials if trial.failure is None]


def test_who_waits_is_told_for_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder's process, run and time are said once; at the deadline waiting ends as out of budget."""
    monkeypatch.setattr("perfgate.machine.locks.POLL_S", 0.01)
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


def test_who_holds_a_device() -> None:
    """A holder is named without waiting for him; a note that a killed one left names nobody, and nothing is made."""
    assert not holder_of("GPU-a")
    assert not list(state_folder().iterdir())
    with hold_devices(["GPU-a"], "first in /runs/first", quiet, math.inf):
        assert holder_of("GPU-a").startswith(f"process {os.getpid()} (run first in /runs/first) since ")
    (state_folder() / "GPU-a.holder").write_text("process 1 (run killed)")
    assert not holder_of("GPU-a")


def test_what_is_not_waited_for_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever tries one name after the other, as a client does with cores, loses no time with those that are held."""
    monkeypatch.setattr("perfgate.machine.locks.POLL_S", 30.0)
    began_s = time.monotonic()
    with (
        hold_devices(["GPU-a"], "first", quiet, math.inf),
        pytest.raises(InterruptedRunError),
        hold_devices(["GPU-a"], "second", quiet, began_s),
    ):
        pass
    assert time.monotonic() - began_s < 10.0


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


def test_a_lock_may_be_released_by_another_thread() -> None:
    """The thread of a station takes it, and the run's own ends the station: whoever comes then gets it at once."""
    held = contextlib.ExitStack()
    taking = threading.Thread(target=lambda: held.enter_context(hold_devices(["GPU-a"], "first", quiet, math.inf)))
    taking.start()
    taking.join()
    held.close()

    with hold_devices(["GPU-a"], "second", pytest.fail, time.monotonic()):
        pass


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
    """The sticky folder and locks are open to all users of the host, whatever the umask of the one who came first."""
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))
    before = os.umask(0o077)
    try:
        with hold_devices(["GPU-a"], "mine", quiet, math.inf):
            assert state_folder().stat().st_mode & 0o7777 == 0o1777
            assert (state_folder() / "GPU-a.lock").stat().st_mode & 0o666 == 0o666
    finally:
        os.umask(before)


@pytest.mark.parametrize("mode", [0o777, 0o2775])
def test_state_folder_of_an_earlier_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    """A folder of ours that others write into becomes sticky, so that they cannot put files in the place of ours."""
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(mode)

    assert state_folder().stat().st_mode & 0o7777 == mode | 0o1000


def test_state_folder_that_is_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no folder is chosen, somebody's link in the folder for temporary files is not followed."""
    monkeypatch.delenv("PERFGATE_STATE")
    monkeypatch.setattr("perfgate.machine.locks.os.access", lambda *_: False)
    monkeypatch.setattr("perfgate.machine.locks.Path.is_dir", lambda _: False)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    (tmp_path / "perfgate-state").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(NotMeasuredError, match="is a link, not a folder"):
        state_folder()
    assert (tmp_path / "elsewhere").stat().st_mode & 0o7777 == 0o755


Trap = Callable[[Path, Path], object]
TRAPS: dict[str, Trap] = {
    "a link": lambda file, victim: file.symlink_to(victim),
    "a pipe": lambda file, _: os.mkfifo(file),
    "another name": lambda file, victim: file.hardlink_to(victim),
}


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC], ids=["read", "write"])
def test_only_a_regular_file_of_its_own_is_opened(tmp_path: Path, trap: str, flags: int) -> None:
    """What another user may have put into the folder is refused by name, never followed and never waited for."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    TRAPS[trap](tmp_path / "GPU-a.holder", victim)

    with pytest.raises(NotMeasuredError, match=trap) as caught:
        os.close(open_shared(tmp_path / "GPU-a.holder", flags))

    assert caught.value.where == str(tmp_path / "GPU-a.holder")
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_in_place_of_the_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trap: str) -> None:
    """A note that is somebody's link is not written through, also where the sticky folder keeps it."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    TRAPS[trap](state_folder() / "GPU-a.holder", victim)
    monkeypatch.setattr(Path, "unlink", refused)

    with pytest.raises(NotMeasuredError, match=trap), hold_devices(["GPU-a"], "mine", quiet, math.inf):
        pass

    assert victim.read_text() == "precious"


def test_the_note_of_another_user_is_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a sticky folder does not let go is emptied and used again."""
    (state_folder() / "GPU-a.holder").write_text("process 1 (run of somebody else who was killed) since long ago")
    monkeypatch.setattr(Path, "unlink", refused)

    with hold_devices(["GPU-a"], "mine", quiet, math.inf):
        assert "(run mine)" in (state_folder() / "GPU-a.holder").read_text()
    assert (state_folder() / "GPU-a.holder").read_text() == ""


def refused(_: Path, *, missing_ok: bool = False) -> None:
    """As for the file of another user in a sticky folder."""
    raise PermissionError(1, f"not permitted, missing_ok={missing_ok}")
