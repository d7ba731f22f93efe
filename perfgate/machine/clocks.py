"""GPU clocks: held for a run, given free however it ends, and undone where it could not.

NVML cannot tell what is locked, and a lock outlives its process. So every lock has a lease
(:mod:`perfgate.machine.clock_lease`): written before it, removed after it. What a killed run leaves is undone at the
next run's start, by ``perfgate clocks reset`` and by the runner's hooks, and never while its owner lives.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from types import FrameType, TracebackType
from typing import Any, Self

from perfgate.errors import NotMeasuredError
from perfgate.machine.accelerator import Accelerators, GpuError, NothingDoneError
from perfgate.machine.clock_helper import ask_helper
from perfgate.machine.clock_lease import Hold, Lease, adopt, find_leases, held_by_another, owner_lives, take
from perfgate.machine.fingerprint import Gpu, boot_id
from perfgate.machine.supervisor import INTERRUPTIONS


class ClockGuard:
    """Holds the clocks of GPUs for a run; a context manager that gives them free at its end.

    While something is locked, SIGINT, SIGTERM and SIGHUP first give the clocks free and then do what they did before:
    so the clocks come first, whatever else has to be ended. A signal in the midst of locking waits for its end.

    Args:
        nvml: Connected as long as this lives.
        run: Name of the run, for those who find the lease.
        warn: Told of clocks that could not be given free where nothing can be raised; by default standard error.
    """

    def __init__(self, nvml: Accelerators, run: str, warn: Callable[[str], object] | None = None) -> None:
        self._nvml = nvml
        self._run = run
        self._warn = warn or (lambda text: sys.stderr.write(f"perfgate: {text}\n"))
        self._held: dict[str, Hold] = {}
        self._signals = _Signals(self._release_or_warn)

    def __enter__(self) -> Self:
        """Return itself; nothing is locked yet."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Give everything free, or warn: the lease stays then, and what was measured is not lost to it."""
        self._release_or_warn()
        self._signals.leave()

    @property
    def held(self) -> tuple[Lease, ...]:
        """The leases in force."""
        return tuple(hold.lease for hold in self._held.values())

    def apply(self, uuids: Sequence[str], sm_mhz: int | None, memory_mhz: int | None = None) -> None:
        """Hold the clocks of these GPUs, and those of no other; all of them or none; no SM clock: hold nothing.

        Locks that dead processes left on these GPUs are undone first, also for ``observe``. What is held already at the
        same clocks is left as it is.

        Raises:
            NotMeasuredError: ``clocks-held``: another living process holds them.
            GpuError: ``clock-not-supported`` (before anything is written), ``clock-no-permission``, ``gpu-lost``.
            OSError: The state folder cannot be written.
        """
        if sm_mhz is not None:
            for uuid in uuids:
                check_supported(self._nvml, uuid, sm_mhz, memory_mhz)
        same = {lease.uuid for lease in self.held if (lease.sm_mhz, lease.memory_mhz) == (sm_mhz, memory_mhz)}
        with self._signals.put_off():
            self._release(set(self._held) - (same & set(uuids)))
            others = sorted(set(uuids) - same)
            for uuid in others:
                _undo(self._nvml, uuid)
            try:
                for uuid in others:
                    if sm_mhz is not None:
                        self._lock(uuid, sm_mhz, memory_mhz)
            except BaseException:
                self._release_or_warn()
                raise

    def release(self) -> None:
        """Give all clocks free; harmless where none is held.

        Raises:
            GpuError: It could not be done. The lease stays, and the text says how to fix it.
        """
        with self._signals.put_off():
            self._release(set(self._held))

    def _release(self, uuids: Collection[str]) -> None:
        failures = []
        for uuid in sorted(uuids):
            try:
                _reset(self._nvml, self._held[uuid].lease)
            except GpuError as error:
                failures.append(error)
            else:
                self._held.pop(uuid).drop()
        if not self._held:
            self._signals.leave()
        if failures:
            raise failures[0]

    def _release_or_warn(self) -> None:
        try:
            self.release()
        except (GpuError, OSError) as error:
            self._warn(str(error))

    def _lock(self, uuid: str, sm_mhz: int, memory_mhz: int | None) -> None:
        before = self._nvml.sample(uuid)
        lease = Lease(
            uuid=uuid,
            run=self._run,
            pid=os.getpid(),
            boot_id=boot_id(),
            since=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            sm_mhz=sm_mhz,
            memory_mhz=memory_mhz,
            sm_mhz_before=before.sm_mhz,
            memory_mhz_before=before.memory_mhz,
        )
        self._signals.watch()
        self._held[uuid] = take(lease)
        try:
            _set(self._nvml, lease)
        except NothingDoneError:  # and who may not lock could not undo it either
            self._held.pop(uuid).drop()
            raise


class _Signals:
    """Does something before what SIGINT, SIGTERM and SIGHUP would do, and never in the midst of a ``put_off`` block.

    Only the main thread can watch; signals that are ignored stay so.

    Args:
        first: What is to be done first; it raises nothing.
    """

    def __init__(self, first: Callable[[], None]) -> None:
        self._first = first
        self._before: dict[int, Any] = {}
        self._depth = 0
        self._waiting: tuple[int, FrameType | None] | None = None

    def watch(self) -> None:
        """Come before the handlers there are."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in INTERRUPTIONS:
            before = signal.getsignal(number)
            if before not in (self._handle, signal.SIG_IGN, None):
                self._before[number] = before
                signal.signal(number, self._handle)

    def leave(self) -> None:
        """Put the handlers back; where another has been put before this one, it goes on handing signals through."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, before in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, before)

    @contextlib.contextmanager
    def put_off(self) -> Iterator[None]:
        """A block that a watched signal does not interrupt: it takes effect at the end."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth and self._waiting:
                waiting, self._waiting = self._waiting, None
                self._handle(*waiting)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._depth:
            self._waiting = (number, frame)
            return
        self._first()
        before = self._before[number]
        if callable(before):
            before(number, frame)
        else:
            signal.signal(number, before)
            os.kill(os.getpid(), number)


def undo_stale(nvml: Accelerators, uuids: Collection[str] | None = None) -> tuple[Lease, ...]:
    """Undo the locks of these GPUs (by default all that are visible) whose owners are gone; returns their leases.

    A lock whose owner lives is left alone. A lease from before the last boot is only removed: its lock is gone.

    Raises:
        GpuError: It could not be done on one; all others have been undone. The lease stays, and the text says how to
            fix it.
    """
    undone, failures = [], []
    for uuid in [gpu.uuid for gpu in nvml.gpus()] if uuids is None else uuids:
        try:
            if not owner_lives(uuid) and (lease := _undo(nvml, uuid)) is not None:
                undone.append(lease)
        except (NotMeasuredError, OSError) as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return tuple(undone)


def reset(nvml: Accelerators, uuids: Collection[str]) -> tuple[Lease, ...]:
    """Undo the locks of these GPUs whose owners are gone, for somebody who wants the clocks to be free.

    Raises:
        NotMeasuredError: ``clocks-held``: an owner lives; everything else has been undone.
        GpuError: It could not be done.
    """
    undone = undo_stale(nvml, uuids)
    living = [lease for lease in find_leases(uuids) if owner_lives(lease.uuid)]
    if living:
        raise held_by_another(living[0])
    return undone


def describe(nvml: Accelerators, gpu: Gpu) -> str:
    """The clocks of a GPU for people, several lines: now, what can be held, and who holds them."""
    now, supported = nvml.sample(gpu.uuid), nvml.supported_clocks_mhz(gpu.uuid)
    lines = [f"{gpu.uuid}  {gpu.name}", f"  now       SM {_mhz(now.sm_mhz)}, memory {_mhz(now.memory_mhz)}"]
    if supported:
        sm = sorted(supported[max(supported)])
        steps = f"{sm[0]} to {sm[-1]} MHz, {len(sm)} values" if sm else "unknown"
        memory = " or ".join(f"{mhz} MHz" for mhz in sorted(supported))
        lines.append(f"  can hold  SM {steps}; memory {memory}")
    else:
        lines.append("  can hold  not told by this GPU")
    leases = find_leases([gpu.uuid])
    lines += [f"  locked    {lease}\n            {_state(lease)}" for lease in leases]
    return "\n".join(lines if leases else [*lines, "  locked    not by perfgate"])


def _state(lease: Lease) -> str:
    if owner_lives(lease.uuid):
        return "that process lives"
    if lease.outlived_a_boot:
        return "the machine was booted since, which undid it"
    return "that process is gone: perfgate clocks reset undoes it"


def _mhz(value: int | None) -> str:
    return "unknown" if value is None else f"{value} MHz"


def _undo(nvml: Accelerators, uuid: str) -> Lease | None:
    """Undo the lock that a dead process left; ``None`` where there is none."""
    with adopt(uuid) as lease:
        if lease is None or lease.outlived_a_boot:
            return None
        _reset(nvml, lease)
    return lease


def check_supported(nvml: Accelerators, uuid: str, sm_mhz: int, memory_mhz: int | None) -> None:
    """Refuse clocks that this GPU cannot hold; NVML itself takes the nearest ("closest desired") without a word.

    Raises:
        GpuError: ``clock-not-supported``, with the nearest that can be held.
    """
    supported = nvml.supported_clocks_mhz(uuid)
    if not supported:
        return  # this GPU does not tell; it may still refuse
    if memory_mhz is not None:
        _check_one("memory", memory_mhz, sorted(supported), uuid)
    # Without a lock of its own the memory runs at its highest clock under load.
    _check_one("SM", sm_mhz, supported[memory_mhz or max(supported)], uuid)


def _check_one(what: str, wanted: int | None, offered: Collection[int], uuid: str) -> None:
    if wanted is None or wanted in offered:
        return
    nearest = sorted(sorted(offered, key=lambda mhz: abs(mhz - wanted))[:3])
    raise GpuError(
        f"the {what} clock cannot be held at {wanted} MHz",
        where=uuid,
        code="clock-not-supported",
        remedy=f"The nearest it can hold: {', '.join(map(str, nearest))} MHz (perfgate clocks show).",
    )


def _set(nvml: Accelerators, lease: Lease) -> None:
    assert lease.sm_mhz is not None, "only leases that were read may lack it"  # noqa: S101 (for the type checker)
    try:
        nvml.lock_clocks(lease.uuid, lease.sm_mhz, lease.memory_mhz)
    except NothingDoneError as refusal:
        memory = [] if lease.memory_mhz is None else [str(lease.memory_mhz)]
        ask_helper(["lock", lease.uuid, str(lease.sm_mhz), *memory], lease.uuid, refusal)


def _reset(nvml: Accelerators, lease: Lease) -> None:
    """Give the clocks of a lease free; the error says what a person can do."""
    try:
        try:
            nvml.reset_clocks(lease.uuid, memory=lease.holds_memory)
        except GpuError as error:
            if error.code != "clock-no-permission":
                raise
            ask_helper(["reset", lease.uuid, *(["memory"] * lease.holds_memory)], lease.uuid, error)
    except GpuError as error:
        if error.code == "clock-not-supported":
            return  # the SM clock comes first, and a clock that cannot be given free cannot have been locked
        options = "-rgc and -rmc" if lease.holds_memory else "-rgc"
        raise GpuError(
            f"the clocks are still locked ({lease}): {error.text}",
            where=lease.uuid,
            code=error.code,
            remedy=f"perfgate clocks reset undoes it; or, as root: nvidia-smi -i {lease.uuid} with {options}",
        ) from error
