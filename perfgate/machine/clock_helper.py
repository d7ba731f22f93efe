"""The clock helper: root's program that locks and resets clocks for users whom NVML refuses.

It is installed with a narrow sudo rule (``.github/runner/README.md``), or named by :data:`VARIABLE`. How it ends tells
whether a clock can have changed: a lock that is told to have failed may be there all the same.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from perfgate.machine.accelerator import GpuError, NothingDoneError

HELPER: Final = "/usr/local/sbin/perfgate-clocks"

VARIABLE: Final = "PERFGATE_CLOCKS_HELPER"
"""A whole command line to use in the helper's place."""

LIMIT_S: Final = 60.0
KILL_LIMIT_S: Final = 2.0
POLL_S: Final = 0.05
SAID_BYTES: Final = 2000
"""So much of what a helper says is kept for the error."""
SUDO_LIMIT_S: Final = 10.0

_HANGS: Final = "nvidia-smi did not end in time: see whether it does by itself, and the kernel's log (dmesg, Xid)."
_ENDINGS: Final[Mapping[int, tuple[str, str]]] = {
    2: ("clock-no-permission", "The helper is of another version than perfgate: install it anew."),
    3: ("clock-not-supported", ""),
    4: (
        "clock-no-permission",
        "The helper may not either: it needs root's rights, outside a container. Or write clocks: {mode: observe}.",
    ),
    5: ("gpu-unreadable", "The helper was installed for an nvidia-smi that is gone: install it anew."),
    6: ("gpu-unreadable", "nvidia-smi does not find this GPU: see what nvidia-smi -L lists."),
    9: ("gpu-unreadable", "The NVIDIA driver is not loaded: nvidia-smi says more."),
    15: ("gpu-lost", ""),
    124: ("gpu-unreadable", _HANGS),
    137: ("gpu-unreadable", _HANGS),
}
"""Reason code and remedy by the helper's exit status: its own, nvidia-smi's, and those of ``timeout``."""

_NOTHING_DONE: Final = {2, 4, 5}
"""Statuses with which the helper ends before anything has changed."""

_REFUSED_BY_SUDO: Final = 1
"""sudo's status where no rule permits the program; also where it cannot start it, and what a program itself may end
with."""


def helper_command() -> list[str]:
    """The command line of the helper; empty where none is installed.

    Raises:
        GpuError: ``clock-no-permission``: the variable's value is not a command line.
    """
    chosen = os.environ.get(VARIABLE)
    if chosen:
        try:
            return shlex.split(chosen)
        except ValueError as error:
            raise NothingDoneError(
                f"{error}: {chosen}",
                where=VARIABLE,
                code="clock-no-permission",
                remedy="Write it as for a shell, with every quote closed.",
            ) from error
    return ["sudo", "-n", HELPER] if Path(HELPER).exists() else []


def is_permitted(helper: Sequence[str], arguments: Sequence[str]) -> bool:
    """Whether the helper is there and, where it is run by sudo, a rule admits these arguments without a password."""
    if shutil.which(helper[0]) is None:
        return False
    if list(helper[:2]) != ["sudo", "-n"]:
        return True
    asked = ["sudo", "-n", "-l", *helper[2:], *arguments]  # -l with a command: tells whether, and runs nothing
    try:
        ended = subprocess.run(asked, capture_output=True, timeout=SUDO_LIMIT_S, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode == 0


def ask_helper(arguments: Sequence[str], uuid: str, refusal: GpuError) -> None:
    """Have the helper do with root's rights what NVML refused to this user.

    Raises:
        NothingDoneError: There is no helper, or it ended before it did anything.
        GpuError: It failed, and what it has done until then is not known.
    """
    helper = helper_command()
    if not helper:
        raise NothingDoneError(refusal.text, where=uuid, code="clock-no-permission") from refusal
    try:
        status, output = _run([*helper, *arguments])
    except OSError as error:
        text = f"{refusal.text}; {shlex.join(helper)}: {error.strerror}"
        raise NothingDoneError(text, where=uuid, code="clock-no-permission") from error
    if status is None:
        text = f"{shlex.join(helper)} did not end within {LIMIT_S:.0f} s"
        raise GpuError(text, where=uuid, code="gpu-unreadable", remedy=_HANGS) from refusal
    if status == 0:
        return
    text = f"{refusal.text}; {shlex.join(helper)} said: {output or f'exit status {status}'}"
    if status == _REFUSED_BY_SUDO and not is_permitted(helper, arguments):
        raise NothingDoneError(text, where=uuid, code="clock-no-permission") from refusal
    by_hand = f"It ended with {status}; try it by hand: {shlex.join([*helper, 'reset', uuid])}"
    code, remedy = _ENDINGS.get(status, ("gpu-unreadable", by_hand))
    kind = NothingDoneError if status in _NOTHING_DONE else GpuError
    raise kind(text, where=uuid, code=code, remedy=remedy) from refusal


def _run(command: Sequence[str]) -> tuple[int | None, str]:
    """Exit status (``None``: it did not end in time) and what it said, of that the first :data:`SAID_BYTES`.

    One that is late is killed with all that it started, as far as this user may; sudo is root's and is left behind
    then, because waiting for what hangs would be hanging too.
    """
    process = subprocess.Popen(  # noqa: S603 (root's own program, or what the user named)
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that Ctrl-C in the terminal does not end it half way
    )
    assert process.stdout is not None, "it is a pipe"  # noqa: S101 (for the type checker)
    with process.stdout as output:
        text = _listen(process, output.fileno())
        if process.poll() is None:
            with contextlib.suppress(PermissionError, ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(KILL_LIMIT_S)
            return None, ""
    return process.returncode, text.decode(errors="replace").strip()


def _listen(process: subprocess.Popen[bytes], output: int) -> bytes:
    """What a process writes until it ends, or :data:`LIMIT_S` are over; its children may keep the output open."""
    text, deadline = b"", time.monotonic() + LIMIT_S
    poll = select.poll()
    poll.register(output, select.POLLIN)
    while (left_s := deadline - time.monotonic()) > 0:
        ended = process.poll() is not None  # asked before reading: what it wrote last is still read
        if poll.poll(0 if ended else 1000 * min(left_s, POLL_S)):
            if not (data := os.read(output, 1 << 16)):
                poll.unregister(output)
            text = (text + data)[:SAID_BYTES]
        elif ended:
            break
    return text
