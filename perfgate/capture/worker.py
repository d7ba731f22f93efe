"""The conversation with a worker, which runs under the subject's own interpreter.

It answers requests in JSON lines on two private descriptors. Whatever goes wrong becomes an :class:`InvalidTrialError`
with the trial's reason code.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from perfgate.capture.engine import LOG, engine_environment
from perfgate.capture.job import Job
from perfgate.capture.timeline import InvalidTrialError, Span
from perfgate.machine.children import Child, spawn
from perfgate.metrics.path_use import ProcessUse, read_uses
from perfgate.reasons import REASONS

PROTOCOL = 1
WORKER = Path(__file__).with_name("vllm_worker.py")
STOP_TIMEOUT_S = 20.0
EXIT_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 64 * 1024**2
"""More than twice what 1,024 requests of 8,192 tokens each answer."""
POLL_S = 0.25
"""So often an engine is looked at that says nothing."""


@dataclass(frozen=True)
class Limit:
    """Until when an answer must have come, and the reason codes for "too late" and "ended instead"."""

    deadline_s: float
    late: str
    ended: str


def start_limit(job: Job) -> Limit:
    """Until when, from now on, an engine must have started."""
    return Limit(time.monotonic() + job.cell.measure.start_timeout, "engine-start-timeout", "engine-start-failed")


class Worker:
    """The other end of :mod:`perfgate.capture.vllm_worker`: started on entry, ended with all its descendants on exit.

    Args:
        job: The trial.
        wrapper: A program with its arguments that starts the worker and waits for it, as profilers do.
        environment: Variables of the wrapper, beside the engine's own.
    """

    program = WORKER
    """What speaks the protocol."""
    noun = "worker"
    """What it is called."""

    def __init__(self, job: Job, wrapper: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        self._job = job
        self._wrapper = tuple(wrapper)
        self._environment = {**engine_environment(job), **(environment or {})}
        self._buffer = bytearray()
        self._id = 0
        self.imported_ns = 0
        """When it had imported everything, of a worker that was started ahead of its trial; 0 until that is known."""
        self.parked_ns = 0
        """How long it then waited for its trial; no part of its age."""
        self.paused_ns = 0
        """How long it was stopped before it had imported; no part of its age either."""
        self._pauses: list[Span] = []
        self._stopped_ns = 0
        self._has_more_outside = False

    def __enter__(self) -> Self:
        """Start the process."""
        job = self._job
        request_in, self._requests = os.pipe()
        self._answers, answer_out = os.pipe()
        self.born_ns = time.monotonic_ns()
        try:
            self._child = spawn(
                [*self._wrapper, job.subject.python, str(self.program), str(request_in), str(answer_out)],
                environment=self._environment,
                owner=job.owner,
                log=job.folder / LOG,
                folder=job.folder,
                pass_fds=(request_in, answer_out),
            )
        except OSError as error:
            os.close(self._requests)
            os.close(self._answers)
            if error.filename != job.subject.python:
                raise
            raise InvalidTrialError("subject-not-found", f"python={job.subject.python}: {error.strerror}") from error
        finally:
            os.close(request_in)
            os.close(answer_out)
        os.set_blocking(self._requests, False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End it, and whatever it started.

        Raises:
            InvalidTrialError: ``process-left``: something does not end, where nothing worse was raised.
        """
        self._end(gently=True, tell=error is None)

    def discard(self) -> None:
        """End one that has no engine yet, at once: nothing of it is wanted.

        Raises:
            InvalidTrialError: ``process-left``: something does not end.
        """
        self._end(gently=False, tell=True)

    def _end(self, *, gently: bool, tell: bool) -> None:
        try:
            left = self._child.end(gently=gently)
        finally:
            os.close(self._requests)
            os.close(self._answers)
        if left and tell:
            raise InvalidTrialError("process-left", f"still alive: {'; '.join(map(str, left))}")

    def hand_over(self) -> Child:
        """Its process, which has become something that speaks no more of the protocol; the caller ends it."""
        os.close(self._requests)
        os.close(self._answers)
        return self._child

    @property
    def token(self) -> str:
        """What tells its processes from those of other workers, see :mod:`perfgate.machine.processes`."""
        return self._child.token

    def age_ns(self) -> int:
        """Time since the process was spawned, without that for which it was stopped or parked."""
        return time.monotonic_ns() - self.born_ns - self.parked_ns - self.paused_ns

    def waits(self) -> bool:
        """Whether it is still there."""
        return self._child.poll() is None

    def pause(self) -> None:
        """Stop it, so that no thread of it runs beside another engine.

        One that is stopped is left as it is, unless it had something outside of its process group: that is sought anew.
        """
        if self._stopped_ns and not self._has_more_outside:
            return
        self._stopped_ns = self._stopped_ns or time.monotonic_ns()
        self._has_more_outside = self._child.send(signal.SIGSTOP)

    def may_be_waited_for(self) -> bool:
        """Whether somebody else may wait for a lock that it holds."""
        return self._child.holds_file_lock()

    def go_on(self) -> None:
        """Let it run, if it was stopped."""
        if self._stopped_ns:
            self._child.send(signal.SIGCONT)
            self._pauses.append(Span(self._stopped_ns, time.monotonic_ns()))
            self._stopped_ns = 0

    def note_imported(self, at_ns: int) -> None:
        """It had imported everything by then; how long it was stopped before that is known with it."""
        self.imported_ns = at_ns
        self.paused_ns = self.stopped_ns(self.born_ns, at_ns)

    def stopped_ns(self, since_ns: int, until_ns: int) -> int:
        """How long it was stopped between two times at which it ran."""
        within = ((max(pause.begin_ns, since_ns), min(pause.end_ns, until_ns)) for pause in self._pauses)
        return sum(max(end_ns - begin_ns, 0) for begin_ns, end_ns in within)

    def resume(self) -> None:
        """Its trial begins now: what passed since its imports was waiting."""
        self.go_on()
        self.parked_ns = time.monotonic_ns() - self.imported_ns

    def has_answered(self) -> bool:
        """Whether :meth:`answer` returns or raises at once."""
        while b"\n" not in self._buffer and len(self._buffer) <= MAX_ANSWER_BYTES:
            poll = select.poll()
            poll.register(self._answers, select.POLLIN)
            if not poll.poll(0):
                return self._child.poll() is not None
            if not (data := os.read(self._answers, 1 << 16)):
                return True
            self._buffer += data
        return True

    def request(self, op: str, limit: Limit, **fields: Any) -> dict[str, Any]:
        """Ask, and wait for the answer.

        Raises:
            InvalidTrialError: The worker refused, ended, was late, or answered something else.
        """
        self.ask(op, limit, **fields)
        return self.answer(op, limit)

    def ask(self, op: str, limit: Limit, **fields: Any) -> None:
        """The first half of :meth:`request`."""
        self._id += 1
        self._send(json.dumps({"v": PROTOCOL, "id": self._id, "op": op, **fields}).encode() + b"\n", limit)

    def answer(self, op: str, limit: Limit) -> dict[str, Any]:
        """The second half of :meth:`request`: wait for the answer to what was asked last."""
        line = self._receive(limit)
        answer = _parse(line)
        if answer is None or answer.get("v") != PROTOCOL or answer.get("id") != self._id:
            raise InvalidTrialError("engine-failed", f"{op}: no answer to this request: {line[:200]!r}")
        if answer.get("ok") is True:
            return answer
        code = answer.get("code")
        if not isinstance(code, str) or code not in REASONS:
            raise InvalidTrialError("engine-failed", f"{op}: unknown code in {line[:200]!r}")
        raise InvalidTrialError(code, str(answer.get("error")))

    def stop(self, exit_timeout_s: float = EXIT_TIMEOUT_S) -> tuple[ProcessUse, ...]:
        """Shut the engine down and wait for its process, or for what wraps it.

        Returns:
            What each of its processes used of the subject's ``path=`` until then.

        Raises:
            InvalidTrialError: It refused or is still there.
        """
        limit = Limit(time.monotonic() + STOP_TIMEOUT_S, "engine-failed", "engine-failed")
        path = self._job.subject.path
        answer = self.request("stop", limit, path=[*path])
        if self._child.wait(exit_timeout_s) is None:
            raise InvalidTrialError("engine-failed", f"the worker is still there {exit_timeout_s:g} s after its stop")
        return read_uses(answer.get("used"), len(path))

    def _send(self, data: bytes, limit: Limit) -> None:
        """Write all of it; a worker that has stopped reading must not hold perfgate up for ever."""
        rest = memoryview(data)
        while rest:
            self._wait(self._requests, select.POLLOUT, limit)
            try:
                rest = rest[os.write(self._requests, rest) :]
            except BrokenPipeError:
                raise self._ended(limit) from None

    def _receive(self, limit: Limit) -> bytes:
        seen = 0
        while (end := self._buffer.find(b"\n", seen)) < 0:
            seen = len(self._buffer)
            if seen > MAX_ANSWER_BYTES:
                raise InvalidTrialError("engine-failed", f"an answer of more than {MAX_ANSWER_BYTES} bytes")
            self._wait(self._answers, select.POLLIN, limit)
            data = os.read(self._answers, 1 << 16)
            if not data:
                raise self._ended(limit)
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _wait(self, descriptor: int, event: int, limit: Limit) -> None:
        """Return when the descriptor is ready or its other end is closed, and never after the limit.

        An engine that says a little again and again is as late as one that is silent.
        """
        poll = select.poll()
        poll.register(descriptor, event)
        while True:
            # Asked before the poll, so that what it wrote last is still read; and asked at all, because a process
            # that it left behind could hold the descriptor open.
            ended = self._child.poll() is not None
            left_s = limit.deadline_s - time.monotonic()
            if left_s <= 0:
                raise InvalidTrialError(limit.late, f"no answer within the limit, after {self.age_ns() / 1e9:.0f} s")
            if poll.poll(0 if ended else 1000 * min(left_s, POLL_S)):
                return
            if ended:
                raise self._ended(limit)

    def _ended(self, limit: Limit) -> InvalidTrialError:
        status = self._child.wait(2.0)
        how = "closed its descriptors" if status is None else f"ended with status {status}"
        if status is not None and status < 0:
            how = f"was ended by {signal_name(-status)}"
        return InvalidTrialError(limit.ended, f"the {self.noun} {how}")


def _parse(line: bytes) -> dict[str, Any] | None:
    """A worker's answer; ``None`` where it is not one. Nothing in it is trusted, least of all its nesting."""
    try:
        answer = json.loads(line)
        json.dumps(answer, ensure_ascii=False, allow_nan=False).encode()  # half a surrogate pair cannot be kept
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def signal_name(number: int) -> str:
    """``SIGKILL``, or ``signal 40`` for one of those that have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
