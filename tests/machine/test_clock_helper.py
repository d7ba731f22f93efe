"""What the clock helper's end means: whether something may be locked, and what a person can do."""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import fake_nvml as nvml_stand_in
import psutil
import pytest
from fake_nvml import FakeMachine, fake_uuid
from perfgate_process import DEADLINE_S

from perfgate.machine import clock_helper
from perfgate.machine.accelerator import GpuError, NothingDoneError
from perfgate.machine.clock_helper import ask_helper, helper_command
from perfgate.machine.clock_lease import find_leases
from perfgate.machine.clocks import ClockGuard

HERE = Path(__file__).parents[1]
UUID = fake_uuid(0)
WORDS = ("lock", UUID, "1500")

LOCK = (1500, None)
LOCK_BOTH = (1500, 2201)
FREE = (None, None)

SET_SM, SET_MEMORY = "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceSetMemoryLockedClocks"
RESET_SM = "nvmlDeviceResetGpuLockedClocks"

Asking = Callable[[str], GpuError]
HelperOf = Callable[[int | str], Callable[[], list[list[str]]]]


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HelperOf:
    """A function that installs a helper which ends with a status; it returns one that tells what was asked of it."""

    def install(status: int | str) -> Callable[[], list[list[str]]]:
        file = tmp_path / "asked"
        file.touch()
        words = [sys.executable, str(HERE / "standins" / "clocks_helper.py"), str(status), str(file)]
        monkeypatch.setenv(clock_helper.VARIABLE, shlex.join(words))
        return lambda: [json.loads(line) for line in file.read_text().splitlines()]

    return install


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Asking:
    """A function that asks a helper which is this shell script, and gives the error."""

    def run(script: str) -> GpuError:
        monkeypatch.setenv(clock_helper.VARIABLE, shlex.join(["/bin/sh", "-c", script, "helper"]))
        with pytest.raises(GpuError) as caught:
            ask_helper(WORDS, UUID, GpuError("NVML refused", where=UUID))
        assert caught.value.where == UUID
        return caught.value

    return run


@pytest.mark.parametrize(
    ("ending", "code", "remedy"),
    [
        ("exit 2", "clock-no-permission", "of another version"),
        ("exit 3", "clock-not-supported", ""),
        ("exit 4", "clock-no-permission", "needs root's rights"),
        ("exit 5", "gpu-unreadable", "nvidia-smi that is gone"),
        ("exit 6", "gpu-unreadable", "nvidia-smi -L"),
        ("exit 9", "gpu-unreadable", "driver is not loaded"),
        ("exit 15", "gpu-lost", ""),
        ("exit 124", "gpu-unreadable", "did not end in time"),
        ("exit 137", "gpu-unreadable", "did not end in time"),
        ("exit 1", "gpu-unreadable", f"helper reset {UUID}"),
        ("exit 255", "gpu-unreadable", "It ended with 255"),
        ("kill -9 $$", "gpu-unreadable", "It ended with -9"),
    ],
)
def test_each_ending_has_its_words(ask: Asking, ending: str, code: str, remedy: str) -> None:
    """A helper that is there is never to be installed first; only three endings mean that nothing was done."""
    error = ask(f"echo said >&2; {ending}")

    assert error.code == code
    assert error.text.startswith("NVML refused; ")
    assert error.text.endswith("said: said")
    assert remedy in error.remedy
    assert "Install the helper that" not in error.remedy
    assert isinstance(error, NothingDoneError) == (ending in {"exit 2", "exit 4", "exit 5"})


@pytest.mark.parametrize(("rule", "nothing_done"), [("no rule", True), ("a rule", False)])
def test_sudo_that_refuses_is_told_from_a_helper_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, *, nothing_done: bool
) -> None:
    """Both end with 1; without a rule nothing was run, and the helper with its rule is what is missing."""
    sudo = tmp_path / "sudo"
    permitted = f"-n -l /helper {' '.join(WORDS)}" if rule == "a rule" else "nothing"
    sudo.write_text(f'#!/bin/sh\n[ "$*" = "{permitted}" ]\n')
    sudo.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(clock_helper.VARIABLE, "sudo -n /helper")

    with pytest.raises(GpuError) as caught:
        ask_helper(WORDS, UUID, GpuError("NVML refused"))

    assert isinstance(caught.value, NothingDoneError) == nothing_done
    assert caught.value.code == ("clock-no-permission" if nothing_done else "gpu-unreadable")
    assert ("Install the helper for this" in caught.value.remedy) == nothing_done


def test_helper_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has done nothing, and the system's words are in the error."""
    monkeypatch.setenv(clock_helper.VARIABLE, "/no/such/helper")
    with pytest.raises(NothingDoneError, match="/no/such/helper: No such file or directory"):
        ask_helper(WORDS, UUID, GpuError("NVML refused"))


@pytest.mark.parametrize("is_roots", [False, True])
def test_helper_that_does_not_end(ask: Asking, monkeypatch: pytest.MonkeyPatch, *, is_roots: bool) -> None:
    """It may have locked: also where it is root's and cannot be killed."""

    def refuse(*_: int) -> None:
        raise PermissionError

    if is_roots:
        monkeypatch.setattr("perfgate.machine.clock_helper.os.killpg", refuse)
    monkeypatch.setattr(clock_helper, "LIMIT_S", 0.1)

    error = ask("exec sleep 1")

    assert error.code == "gpu-unreadable"
    assert "did not end within" in error.text
    assert not isinstance(error, NothingDoneError)


def test_helper_that_does_not_end_leaves_no_child(ask: Asking, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a late helper started is killed with it."""
    monkeypatch.setattr(clock_helper, "LIMIT_S", 0.3)

    ask(f"sleep 600 & echo $! > {tmp_path / 'child'}; wait")

    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int((tmp_path / "child").read_text())).wait(DEADLINE_S)


def test_what_a_helper_says_is_cut(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper that babbles fills neither memory nor the error, and a child that keeps its output holds nobody up."""
    monkeypatch.setattr(clock_helper, "LIMIT_S", 20.0)

    error = ask("head -c 3000000 /dev/zero | tr '\\0' x >&2; sleep 1 & exit 3")

    assert error.code == "clock-not-supported"
    assert error.text.count("x") < 2 * clock_helper.SAID_BYTES


def test_no_helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable it is the installed one by sudo, or none."""
    monkeypatch.delenv(clock_helper.VARIABLE, raising=False)
    monkeypatch.setattr(clock_helper, "HELPER", str(tmp_path / "helper"))
    assert helper_command() == []
    (tmp_path / "helper").touch()
    assert helper_command() == ["sudo", "-n", str(tmp_path / "helper")]


# --- a run that NVML refuses


def test_helper_locks_where_nvml_refuses(guard: ClockGuard, fake_nvml: FakeMachine, helper: HelperOf) -> None:
    """The root-owned helper is asked for just this GPU and these clocks, and to undo them."""
    asked = helper(0)
    fake_nvml.gpu(0).update(permission=False)

    with guard:
        guard.apply([UUID], *LOCK_BOTH)
        assert fake_nvml.gpu(0).locked == (1500, 2201)
        guard.apply([UUID], *LOCK)

    assert fake_nvml.gpu(0).locked == FREE
    assert asked() == [
        ["lock", UUID, "1500", "2201"],
        ["reset", UUID, "memory"],
        ["lock", UUID, "1500"],
        ["reset", UUID],
    ]


def test_helper_is_not_asked_without_need(guard: ClockGuard, helper: HelperOf) -> None:
    """Who may lock through NVML does."""
    asked = helper(0)
    with guard:
        guard.apply([UUID], *LOCK)
    assert asked() == []


@pytest.mark.parametrize("status", [137, 1, 255, 9, -signal.SIGKILL])
def test_helper_that_fails_after_it_has_locked(
    guard: ClockGuard, fake_nvml: FakeMachine, helper: HelperOf, status: int
) -> None:
    """How it ended does not tell that nothing is locked, so what it may have locked is given free."""
    asked = helper(f"after:{status}")
    fake_nvml.gpu(0).update(permission=False)

    with pytest.raises(GpuError) as caught:
        guard.apply([UUID], *LOCK)

    assert caught.value.code == "gpu-unreadable"
    assert [verb for verb, *_ in asked()] == ["lock", "reset"]
    assert (fake_nvml.gpu(0).locked, find_leases([UUID])) == (FREE, ())


@pytest.mark.parametrize(("status", "leases"), [(2, 0), (4, 0), (5, 0), (1, 1), (9, 1), (255, 1)])
def test_lease_stays_unless_nothing_was_done(
    guard: ClockGuard,
    fake_nvml: FakeMachine,
    helper: HelperOf,
    capsys: pytest.CaptureFixture[str],
    status: int,
    leases: int,
) -> None:
    """Where the helper will not reset either, the lease is kept but for the endings that come before any lock."""
    helper(status)
    fake_nvml.gpu(0).update(permission=False)

    with pytest.raises(GpuError):
        guard.apply([UUID], *LOCK)

    assert len(find_leases([UUID])) == len(guard.held) == leases
    assert ("the clocks are still locked" in capsys.readouterr().err) == bool(leases)


def test_helper_that_is_no_command_line(
    guard: ClockGuard, fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quote that is not closed is named with its variable, and no lease stays."""
    monkeypatch.setenv(clock_helper.VARIABLE, "sudo 'x")
    fake_nvml.gpu(0).update(permission=False)

    with pytest.raises(GpuError, match="No closing quotation: sudo 'x") as caught:
        guard.apply([UUID], *LOCK)

    assert caught.value.where == "PERFGATE_CLOCKS_HELPER"
    assert (find_leases([UUID]), guard.held) == ((), ())


def test_no_permission_for_the_memory_clock(
    guard: ClockGuard, fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The SM clock that could be locked is given free again, and no lease stays."""
    monkeypatch.setattr(clock_helper, "HELPER", str(tmp_path / "nothing"))
    fake_nvml.gpu(0).update(errors={SET_MEMORY: nvml_stand_in.NVML_ERROR_NO_PERMISSION})

    with pytest.raises(GpuError) as caught:
        guard.apply([UUID], *LOCK_BOTH)

    assert caught.value.code == "clock-no-permission"
    assert [name for name, *_ in fake_nvml.calls] == [SET_SM, RESET_SM]
    assert (fake_nvml.gpu(0).locked, find_leases([UUID])) == (FREE, ())


def test_half_a_lock_that_cannot_be_undone_keeps_its_lease(guard: ClockGuard, fake_nvml: FakeMachine) -> None:
    """The SM clock stays locked, and so does the lease for whoever can undo it."""
    errors = {SET_MEMORY: nvml_stand_in.NVML_ERROR_NO_PERMISSION, RESET_SM: nvml_stand_in.NVML_ERROR_UNKNOWN}
    fake_nvml.gpu(0).update(errors=errors)

    with pytest.raises(GpuError, match="cannot release the SM clock"):
        guard.apply([UUID], *LOCK_BOTH)

    assert (fake_nvml.gpu(0).locked, len(find_leases([UUID]))) == ((1500, None), 1)
