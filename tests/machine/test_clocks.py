"""GPU clocks: locked with a lease, given free however a run ends, and undone where it could not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_nvml as nvml_stand_in
import pytest
from click.testing import CliRunner
from fake_nvml import FakeMachine, fake_uuid
from perfgate_process import DEADLINE_S

from perfgate.cli.main import main
from perfgate.errors import ExitStatus, NotMeasuredError
from perfgate.machine import clock_helper, clock_lease
from perfgate.machine.accelerator import GpuError
from perfgate.machine.clock_lease import Lease, adopt, find_leases, owner_lives, take
from perfgate.machine.clocks import ClockGuard, undo_stale
from perfgate.machine.clocks import reset as reset_clocks
from perfgate.machine.fingerprint import boot_id
from perfgate.machine.nvml import Nvml

HERE = Path(__file__).parents[1]
UUID = fake_uuid(0)
OTHER = fake_uuid(1)
LOCK = (1500, None)
LOCK_BOTH = (1500, 2201)
OBSERVE = (None, None)
FREE = (None, None)

SET_SM, SET_MEMORY = "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceSetMemoryLockedClocks"
RESET_SM, RESET_MEMORY = "nvmlDeviceResetGpuLockedClocks", "nvmlDeviceResetMemoryLockedClocks"


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody here dies in the middle of starting an engine: the time given to that is cut."""
    monkeypatch.setattr(clock_lease, "GRACE_S", 0.1)


@pytest.fixture(autouse=True)
def two_gpus(fake_nvml: FakeMachine) -> None:
    """The machine has two H200s."""
    FakeMachine.build(fake_nvml.file, {}, {})


@pytest.fixture
def nvml() -> Iterator[Nvml]:
    """A connection to the machine."""
    with Nvml() as connected:
        yield connected


@pytest.fixture
def holder(fake_nvml: FakeMachine) -> Iterator[subprocess.Popen[str]]:
    """A process of its own that holds the clocks of the first GPU."""
    command = [sys.executable, str(HERE / "clock_holder.py"), UUID]
    environment = {**os.environ, **fake_nvml.environment}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def abandon(machine: FakeMachine, **facts: Any) -> None:
    """Leave the first GPU locked with the lease of an owner that is gone."""
    known: dict[str, Any] = {"run": "dead", "pid": 4711, "boot_id": boot_id(), "sm_mhz": 1500}
    os.close(take(Lease(uuid=UUID, **(known | facts))).descriptor)
    machine.gpu(0).lock(1500, facts.get("memory_mhz"))


def setters(machine: FakeMachine) -> list[str]:
    """The setters called so far, by name."""
    return [name for name, *_ in machine.calls]


def spy_on_leases(monkeypatch: pytest.MonkeyPatch, function: str, seen: Path) -> None:
    """Write down whether the first GPU has a lease whose owner lives, at each call of a setter of new connections."""
    original = getattr(nvml_stand_in, function)

    def look(*words: Any) -> Any:
        with seen.open("a") as stream:
            stream.write(f"{function} {owner_lives(UUID)}\n")
        return original(*words)

    monkeypatch.setattr(nvml_stand_in, function, look)


# --- locking and its lease


def test_clocks_are_locked_and_given_free(guard: ClockGuard, fake_nvml: FakeMachine) -> None:
    """In the block both clocks are held, after it neither, and NVML was asked in this order."""
    with guard:
        guard.apply([UUID], *LOCK_BOTH)
        assert fake_nvml.gpu(0).locked == (1500, 2201)
        assert fake_nvml.gpu(1).locked == FREE

    assert fake_nvml.gpu(0).locked == FREE
    assert setters(fake_nvml) == [SET_SM, SET_MEMORY, RESET_SM, RESET_MEMORY]


@pytest.mark.usefixtures("fake_nvml")
def test_lease_is_there_before_the_lock_and_until_it_is_undone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At the moments when NVML locks and resets the lease lies there, and its owner is seen to live."""
    for function in (SET_SM, RESET_SM):
        spy_on_leases(monkeypatch, function, tmp_path / "seen")

    with Nvml() as nvml, ClockGuard(nvml, "r") as guard:
        guard.apply([UUID], *LOCK)

    assert (tmp_path / "seen").read_text() == f"{SET_SM} True\n{RESET_SM} True\n"
    assert find_leases([UUID]) == ()


def test_lease_tells_who_holds_what(guard: ClockGuard) -> None:
    """It names run, process, boot, the clocks held and those seen before."""
    guard.apply([UUID], *LOCK_BOTH)

    (found,) = find_leases([UUID, OTHER])

    assert guard.held == (found,)
    assert (found.uuid, found.run, found.pid, found.boot_id) == (UUID, "r", os.getpid(), boot_id())
    assert (found.sm_mhz, found.memory_mhz, found.sm_mhz_before, found.memory_mhz_before) == (1500, 2201, 1980, 3201)
    assert str(found).startswith(f"SM at 1500 MHz, memory at 2201 MHz, by run r (pid {os.getpid()}) since 20")
    guard.release()


def test_the_same_clocks_are_not_locked_again(guard: ClockGuard, fake_nvml: FakeMachine) -> None:
    """A second cell at the same clocks asks nothing of NVML, one at others is given free and locked anew."""
    with guard:
        guard.apply([UUID], *LOCK_BOTH)
        guard.apply([UUID], *LOCK_BOTH)
        assert setters(fake_nvml) == [SET_SM, SET_MEMORY]
        guard.apply([UUID], *LOCK)
        assert fake_nvml.gpu(0).locked == (1500, None)
        guard.apply([OTHER], *LOCK)
        assert (fake_nvml.gpu(0).locked, fake_nvml.gpu(1).locked) == (FREE, (1500, None))
        guard.apply([OTHER], *OBSERVE)
        assert fake_nvml.gpu(1).locked == FREE
        assert guard.held == ()


def test_all_gpus_are_locked_or_none(guard: ClockGuard, fake_nvml: FakeMachine) -> None:
    """Where the second GPU cannot be locked the first one is given free, and no lease is left."""
    fake_nvml.gpu(1).update(errors={SET_SM: nvml_stand_in.NVML_ERROR_UNKNOWN})

    with pytest.raises(GpuError) as caught:
        guard.apply([UUID, OTHER], *LOCK)

    assert caught.value.where == OTHER
    assert (fake_nvml.gpu(0).locked, find_leases([UUID, OTHER]), guard.held) == (FREE, (), ())


@pytest.mark.parametrize(
    ("asked", "text", "nearest"),
    [
        ((1501, None), "the SM clock cannot be held at 1501 MHz", "1485, 1500, 1515 MHz"),
        ((9000, None), "the SM clock cannot be held at 9000 MHz", "1950, 1965, 1980 MHz"),
        ((1500, 3000), "the memory clock cannot", "2201, 3201 MHz"),
    ],
)
def test_clock_that_cannot_be_held_is_refused(
    guard: ClockGuard, fake_nvml: FakeMachine, asked: tuple[int, int | None], text: str, nearest: str
) -> None:
    """It is refused with the nearest that can, before a lease is written or NVML asked; NVML would take the nearest."""
    with pytest.raises(GpuError) as caught:
        guard.apply([UUID], *asked)

    assert caught.value.code == "clock-not-supported"
    assert caught.value.text.startswith(text)
    assert nearest in caught.value.remedy
    assert (fake_nvml.calls, find_leases([UUID])) == ([], ())


def test_sm_clocks_depend_on_the_memory_clock(guard: ClockGuard, fake_nvml: FakeMachine) -> None:
    """What can be held is looked up at the memory clock asked for, else at the highest."""
    fake_nvml.gpu(0).update(supported_clocks_mhz={"3201": [345, 1980, 15], "2201": [345, 1200, 15]})

    guard.apply([UUID], *LOCK)
    with pytest.raises(GpuError, match="SM clock cannot be held at 1500 MHz"):
        guard.apply([UUID], *LOCK_BOTH)
    guard.release()


def test_gpu_that_cannot_lock_says_so(guard: ClockGuard, fake_nvml: FakeMachine) -> None:
    """Where the GPU tells no clocks, NVML's refusal has the same code, and no lease stays."""
    fake_nvml.gpu(0).update(supported=False, errors={"nvmlDeviceGetSupportedMemoryClocks": 3, RESET_SM: 3})

    with pytest.raises(GpuError) as caught:
        guard.apply([UUID], *LOCK)

    assert caught.value.code == "clock-not-supported"
    assert find_leases([UUID]) == ()


# --- given free however it ends


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_gives_the_clocks_free_first(guard: ClockGuard, fake_nvml: FakeMachine, number: signal.Signals) -> None:
    """When the handler that was there before is called the clocks are free; then it stands alone again."""
    seen: list[Any] = []

    def engines_are_ended(*_: object) -> None:
        seen.append((fake_nvml.gpu(0).locked, find_leases([UUID])))

    signal.signal(number, engines_are_ended)
    guard.apply([UUID], *LOCK)
    assert signal.getsignal(number) is not engines_are_ended

    signal.raise_signal(number)

    assert seen == [(FREE, ())]
    assert signal.getsignal(number) is engines_are_ended


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_process_that_is_ended_by_a_signal_leaves_no_lock(
    holder: subprocess.Popen[str], fake_nvml: FakeMachine, number: signal.Signals
) -> None:
    """A process with no handler of its own dies of the signal as ever, but its clocks are free."""
    assert fake_nvml.gpu(0).locked == (1500, 2201)

    holder.send_signal(number)

    assert holder.wait(DEADLINE_S) == -number
    assert (fake_nvml.gpu(0).locked, find_leases([UUID])) == (FREE, ())
    assert setters(fake_nvml)[-2:] == [RESET_SM, RESET_MEMORY]


def test_process_whose_release_fails_still_ends(holder: subprocess.Popen[str], fake_nvml: FakeMachine) -> None:
    """SIGTERM ends it though the GPU does not answer, and the lease stays for whoever can undo the lock."""
    fake_nvml.gpu(0).update(lost=True)

    holder.terminate()

    assert holder.wait(DEADLINE_S) == -signal.SIGTERM
    assert len(find_leases([UUID])) == 1


def test_signal_in_the_midst_of_locking_waits_for_its_end(
    fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal between the locks of two clocks takes effect after both: nothing is locked behind the handler's back."""
    original = nvml_stand_in.nvmlDeviceSetMemoryLockedClocks

    def interrupted(*words: Any) -> None:
        os.kill(os.getppid(), signal.SIGINT)
        original(*words)

    monkeypatch.setattr(nvml_stand_in, SET_MEMORY, interrupted)

    with Nvml() as nvml, ClockGuard(nvml, "r") as guard, pytest.raises(KeyboardInterrupt):
        guard.apply([UUID], *LOCK_BOTH)

    assert (fake_nvml.gpu(0).locked, find_leases([UUID])) == (FREE, ())
    assert setters(fake_nvml) == [SET_SM, SET_MEMORY, RESET_SM, RESET_MEMORY]


def test_lease_ends_without_a_driver_that_answers(
    nvml: Nvml, fake_nvml: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where giving free does not return, the guard warns and goes; the lease stays for who can undo the lock later."""
    with ClockGuard(nvml, "r") as guard:
        guard.apply([UUID], *LOCK)
        nvml._limit_s = 0.2
        fake_nvml.gpu(0).update(errors={RESET_SM: nvml_stand_in.HANG})

    assert "the clocks are still locked" in (said := capsys.readouterr().err)
    assert "reset_clocks did not return within 0.2 s" in said
    assert find_leases([UUID]) == guard.held


def test_signal_while_the_driver_hangs(fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGINT in a call that never returns is heard, and ends the run within the limits of two calls."""

    def hang(*_: Any) -> None:
        os.kill(os.getppid(), signal.SIGINT)
        while True:
            signal.pause()

    monkeypatch.setattr(nvml_stand_in, "nvmlDeviceGetMemoryInfo", hang)
    with Nvml() as nvml, ClockGuard(nvml, "r", lambda _: None) as guard:
        guard.apply([UUID], *LOCK)
        nvml._limit_s = 0.2
        with pytest.raises(KeyboardInterrupt):
            nvml.memory_used_bytes(UUID)
    assert fake_nvml.gpu(0).locked == (1500, None)
    assert find_leases([UUID]) == guard.held


def test_ignored_signal_stays_ignored(guard: ClockGuard, fake_nvml: FakeMachine) -> None:
    """Who started perfgate with SIGINT ignored does not end a lock by it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    guard.apply([UUID], *LOCK)

    signal.raise_signal(signal.SIGINT)

    assert fake_nvml.gpu(0).locked == (1500, None)
    guard.release()


def test_release_that_fails_keeps_the_lease(guard: ClockGuard, fake_nvml: FakeMachine) -> None:
    """The error says what still is locked and how to mend it; once the cause is gone a second release does it."""
    guard.apply([UUID], *LOCK_BOTH)
    fake_nvml.gpu(0).update(lost=True)

    with pytest.raises(GpuError) as caught:
        guard.release()

    assert caught.value.code == "gpu-lost"
    assert "the clocks are still locked (SM at 1500 MHz, memory at 2201 MHz, by run r" in caught.value.text
    assert "perfgate clocks reset" in caught.value.remedy
    assert f"nvidia-smi -i {UUID} with -rgc and -rmc" in caught.value.remedy
    assert find_leases([UUID]) == guard.held
    fake_nvml.gpu(0).update(lost=False)
    guard.release()
    assert (fake_nvml.gpu(0).locked, find_leases([UUID])) == (FREE, ())


def test_failed_release_does_not_hide_the_error_in_flight(
    guard: ClockGuard, fake_nvml: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    """What went wrong in the block is raised, and the clocks that stay locked are told on standard error."""
    with pytest.raises(ZeroDivisionError), guard:  # noqa: PT012 (the block is what is tested)
        guard.apply([UUID], *LOCK)
        fake_nvml.gpu(0).update(lost=True)
        _ = 1 / 0

    assert f"perfgate: {UUID}: the clocks are still locked" in capsys.readouterr().err


# --- what dead runs left


@pytest.mark.parametrize("mode", [LOCK, OBSERVE])
def test_next_run_undoes_what_a_killed_one_left(
    guard: ClockGuard, fake_nvml: FakeMachine, mode: tuple[int | None, None]
) -> None:
    """Also a run that only observes, which would else measure at clocks that nobody asked for."""
    abandon(fake_nvml, memory_mhz=2201)

    guard.apply([UUID], *mode)

    assert setters(fake_nvml)[:2] == [RESET_SM, RESET_MEMORY]
    assert fake_nvml.gpu(0).locked == mode
    guard.release()


def test_killed_process_leaves_a_lock_that_can_be_undone(
    holder: subprocess.Popen[str], nvml: Nvml, fake_nvml: FakeMachine
) -> None:
    """SIGKILL leaves lock and lease, and both can be undone as soon as the process is gone."""
    holder.kill()
    holder.wait()
    assert fake_nvml.gpu(0).locked == (1500, 2201)

    (undone,) = undo_stale(nvml)

    assert (undone.run, undone.pid) == ("held-by-a-test", holder.pid)
    assert (fake_nvml.gpu(0).locked, find_leases([UUID])) == (FREE, ())
    assert undo_stale(nvml) == ()


@pytest.mark.usefixtures("holder")
def test_living_owner_is_left_alone(guard: ClockGuard, nvml: Nvml, fake_nvml: FakeMachine) -> None:
    """Its lock is not undone, and who wants the GPU is told who has it."""
    calls = fake_nvml.calls

    assert undo_stale(nvml, [UUID]) == ()
    for mode in (LOCK, OBSERVE):
        with pytest.raises(NotMeasuredError, match="by run held-by-a-test") as caught:
            guard.apply([UUID], *mode)
        assert caught.value.code == "clocks-held"

    assert fake_nvml.calls == calls
    assert len(find_leases([UUID])) == 1


def test_lease_of_an_earlier_boot_is_only_removed(nvml: Nvml, fake_nvml: FakeMachine) -> None:
    """A reboot cleared the lock, so nothing is asked of NVML, which might need rights that are not there."""
    abandon(fake_nvml, boot_id="an-earlier-one")
    assert undo_stale(nvml) == ()
    assert (fake_nvml.calls, find_leases([UUID])) == ([], ())


@pytest.mark.parametrize("text", ["", "{", "[]", '{"uuid": "GPU-another", "sm_mhz": 1500}'])
def test_lease_that_cannot_be_read_is_undone(
    nvml: Nvml, fake_nvml: FakeMachine, state_of_its_own: Path, text: str
) -> None:
    """Its name tells the GPU, and both clocks are reset; one that cannot lock its memory needs only the other."""
    abandon(fake_nvml)
    (state_of_its_own / f"{UUID}.lease.json").write_text(text)
    fake_nvml.gpu(0).update(errors={RESET_MEMORY: nvml_stand_in.NVML_ERROR_NOT_SUPPORTED})

    (undone,) = undo_stale(nvml)

    assert undone == Lease(uuid=UUID)
    assert setters(fake_nvml) == [RESET_SM]
    assert find_leases([UUID]) == ()


@pytest.mark.parametrize("trap", ["link", "pipe"])
def test_trap_in_place_of_a_lease(
    nvml: Nvml, guard: ClockGuard, state_of_its_own: Path, fake_nvml: FakeMachine, trap: str, tmp_path: Path
) -> None:
    """A link is not written through and a pipe not waited for; the error names the file, and nothing is locked."""
    file = state_of_its_own / f"{UUID}.lease.json"
    (tmp_path / "victim").write_text("precious")
    if trap == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to(tmp_path / "victim")

    for attempt in (lambda: reset_clocks(nvml, [UUID]), lambda: guard.apply([UUID], *LOCK)):
        with pytest.raises(NotMeasuredError, match=rf"{UUID}\.lease\.json: is a {trap}"):
            attempt()
    assert ((tmp_path / "victim").read_text(), fake_nvml.calls) == ("precious", [])


def test_lease_of_another_user_is_declared_over(
    nvml: Nvml, guard: ClockGuard, fake_nvml: FakeMachine, state_of_its_own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a sticky folder its file stays, but nobody takes it for a lease, and the next lease is written into it."""

    def refused(_: Path, *, missing_ok: bool = False) -> None:
        raise PermissionError(1, f"not permitted, missing_ok={missing_ok}")

    abandon(fake_nvml)
    monkeypatch.setattr(Path, "unlink", refused)

    assert len(undo_stale(nvml)) == 1
    assert (find_leases([UUID]), undo_stale(nvml)) == ((), ())
    guard.apply([UUID], *LOCK)
    assert find_leases([UUID]) == guard.held
    guard.release()
    assert (find_leases([UUID]), (state_of_its_own / f"{UUID}.lease.json").read_bytes()) == ((), clock_lease.VOID)


def test_lease_of_a_later_version_is_read(nvml: Nvml, state_of_its_own: Path, fake_nvml: FakeMachine) -> None:
    """Fields that this version does not know are no reason to reset clocks that were never locked."""
    abandon(fake_nvml)
    file = state_of_its_own / f"{UUID}.lease.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"power_limit_mw": 1}))
    assert [found.readable for found in undo_stale(nvml)] == [True]
    assert setters(fake_nvml) == [RESET_SM]


def test_undoing_goes_on_after_a_failure(nvml: Nvml, fake_nvml: FakeMachine) -> None:
    """One GPU that cannot be reset is told when the others have been."""
    abandon(fake_nvml)
    os.close(take(Lease(uuid=OTHER, run="dead", boot_id=boot_id(), sm_mhz=1500)).descriptor)
    fake_nvml.gpu(1).lock(1500)
    fake_nvml.gpu(0).update(errors={RESET_SM: nvml_stand_in.NVML_ERROR_UNKNOWN})

    with pytest.raises(GpuError) as caught:
        undo_stale(nvml)

    assert caught.value.where == UUID
    assert (fake_nvml.gpu(1).locked, [found.uuid for found in find_leases([UUID, OTHER])]) == (FREE, [UUID])


def test_who_undoes_a_lock_is_not_taken_for_its_owner(
    guard: ClockGuard, fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes, others wait for it and go on; only one that comes to no end is an error, of its own."""
    abandon(fake_nvml)
    adopted, done = threading.Event(), threading.Event()

    def undo_slowly() -> None:
        with adopt(UUID):
            adopted.set()
            done.wait(60)

    slow = threading.Thread(target=undo_slowly)
    slow.start()
    adopted.wait(60)
    lives = owner_lives(UUID)
    with monkeypatch.context() as patched:
        patched.setattr(clock_lease, "UNDO_LIMIT_S", 0.1)
        with pytest.raises(NotMeasuredError, match="another process has been giving the clocks free"):
            guard.apply([UUID], *OBSERVE)
    threading.Timer(0.3, done.set).start()  # three times as long as an owner would be waited for
    guard.apply([UUID], *OBSERVE)
    slow.join()

    assert not lives
    assert find_leases([UUID]) == ()
    assert clock_lease.UNDO_LIMIT_S > clock_helper.LIMIT_S


@pytest.mark.slow
def test_no_kill_leaves_a_lock_without_a_lease() -> None:
    """After two dozen seeded kills every lock has a lease and can be undone; 200 are in docs/measurements.md."""
    script = HERE.parent / "research" / "clock_kills.py"
    command = [sys.executable, str(script), "--kills", "24", "--seed", "7"]

    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "| all | 24 |" in ended.stdout


# --- the command


def perfgate(*words: str) -> tuple[int, str]:
    """``perfgate clocks`` with these words: exit status and all that it says."""
    result = CliRunner().invoke(main, ["clocks", *words])
    return result.exit_code, result.output


def test_show_tells_clocks_and_holder(guard: ClockGuard, fake_nvml: FakeMachine) -> None:
    """Each GPU's clocks, what it can hold and who holds it, whether that lives or not."""
    abandon(fake_nvml)
    guard.apply([OTHER], *LOCK)

    status, said = perfgate("show")

    assert status == ExitStatus.PASS
    first, second = said.split(OTHER)
    assert "now       SM 1500 MHz, memory 3201 MHz" in first
    assert "can hold  SM 345 to 1980 MHz, 110 values; memory 2201 MHz or 3201 MHz" in first
    assert "by run dead (pid 4711)" in first
    assert "that process is gone: perfgate clocks reset undoes it" in first
    assert "by run r" in second
    assert "that process lives" in second
    guard.release()
    assert "locked    not by perfgate" in perfgate("show")[1].split(OTHER)[1]


def test_reset_undoes_what_is_stale(fake_nvml: FakeMachine) -> None:
    """It tells what it undid; a second time there is nothing to do, which is no error."""
    abandon(fake_nvml)

    assert perfgate("reset", "--gpu", OTHER) == (ExitStatus.PASS, "no lock to undo\n")
    status, said = perfgate("reset")

    assert (status, fake_nvml.gpu(0).locked) == (ExitStatus.PASS, FREE)
    assert said.startswith(f"{UUID}: undone: SM at 1500 MHz, by run dead (pid 4711) since")
    assert perfgate("reset") == (ExitStatus.PASS, "no lock to undo\n")


def test_reset_leaves_a_living_owner_alone(holder: subprocess.Popen[str], fake_nvml: FakeMachine) -> None:
    """The error names process, run and since when; other GPUs are not touched by it."""
    status, said = perfgate("reset")

    assert status == ExitStatus.NOT_MEASURED
    assert "clocks-held" in said
    assert f"by run held-by-a-test (pid {holder.pid}) since 20" in said
    assert fake_nvml.gpu(0).locked == (1500, 2201)
    assert perfgate("reset", "--gpu", OTHER)[0] == ExitStatus.PASS


def test_reset_of_an_unknown_gpu() -> None:
    """The GPUs there are named."""
    status, said = perfgate("reset", "--gpu", "GPU-x")
    assert status == ExitStatus.USAGE
    assert "no visible GPU GPU-x" in said
    assert UUID in said


@pytest.mark.parametrize("word", ["show", "reset"])
def test_machine_without_a_gpu(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    """There is nothing to show or undo, and that is no error."""
    monkeypatch.delenv(nvml_stand_in.STATE)
    assert perfgate(word) == (ExitStatus.PASS, "no NVIDIA driver here, so no clocks to hold\n")
