"""An engine as perfgate sees it: the environment it runs in, and the conversation with its worker.

The worker (:mod:`perfgate.capture.vllm_worker`) runs under the subject's own interpreter and answers requests in JSON
lines on two private descriptors. Whatever goes wrong becomes an :class:`InvalidTrialError` with the trial's reason
code.
"""

from __future__ import annotations

import json
import math
import os
import select
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from perfgate.capture.job import Job
from perfgate.capture.timeline import InvalidTrialError, Span
from perfgate.machine.children import spawn
from perfgate.metrics.trial import Failure
from perfgate.reasons import REASONS
from perfgate.scenario.subject import Subject

PROTOCOL = 1
WORKER = Path(__file__).with_name("vllm_worker.py")
LOG = "engine.log"
STOP_TIMEOUT_S = 20.0
EXIT_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 64 * 1024**2
"""More than twice what 1,024 requests of 8,192 tokens each answer."""
POLL_S = 0.25
"""So often an engine is looked at that says nothing."""

ALLOWED = (
    # what any program needs to find files, programs and itself
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_*", "TZ", "TMPDIR",
    # how this machine loads its libraries and finds its GPUs; some machines run no CUDA program without a preload
    "LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_*",
    # how its fabric must be used
    "NCCL_*", "NVSHMEM_*", "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    # where its models lie
    "HF_HOME", "HF_HUB_CACHE",
)  # fmt: skip
"""The variables that reach engines from the shell, by name or pattern: properties of the machine, no preferences.

Left out on purpose: ``VLLM_*``, ``TORCH*``, ``OMP_*`` and the like change what is measured, so they belong in the
scenario or the subject, where their values are recorded; tokens and proxies are secrets, and models are fetched before.
"""


def allowed_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The part of ``variables`` that engines may see, see :data:`ALLOWED`."""
    return {
        name: value
        for name, value in sorted(variables.items())
        if any(fnmatchcase(name, pattern) for pattern in ALLOWED)
    }


def engine_environment(job: Job) -> dict[str, str]:
    """All variables of one engine: the machine's, ours, the scenario's, the subject's; later ones win."""
    offline = {"HF_HUB_OFFLINE": "1"} if job.cell.model_folder else {}
    variables = {**job.environment, **engine_settings(job.cache_folder, job.station), **offline, **job.cell.engine.env}
    return subject_environment(variables, job.subject)


FIRST_PORT, PORTS, BLOCKS, APART = 20_000, 16, 750, 93
"""Below what the kernel gives away by itself (from 32768). An engine asks the kernel for a free port, lets go of it and
takes it a while later; of eight engines that start side by side two then had the same. So each process of perfgate has
a block of ports of its own, and so has each of its stations: far from one another, because processes that were started
one after the other have blocks that are."""


CACHES = {
    "VLLM_CACHE_ROOT": "vllm", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch-extensions", "PYTORCH_KERNEL_CACHE_PATH": "torch-kernels",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer", "DG_JIT_CACHE_DIR": "deep-gemm", "CUDA_CACHE_PATH": "cuda",
    "TILELANG_CACHE_DIR": "tilelang", "HUMMING_CACHE_DIR": "humming", "HUMMING_TMP_DIR": "humming-modules",
    "QUACK_CACHE_DIR": "quack", "CUTE_DSL_CACHE_DIR": "cute-dsl", "TVM_FFI_CACHE_DIR": "tvm-ffi",
    "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": "flash-attention",
}  # fmt: skip
"""Folders of what is compiled or tuned, by the variable that names them: of vLLM, of the packages that its CUDA build
needs, as their sources read them, and of the driver, which compiles PTX. By default they are in the user's home or in
``/tmp``, where one side would use the other's and a cold start would find what an earlier one compiled."""


def engine_settings(cache: Path, station: int = 0) -> dict[str, str]:
    """What perfgate itself sets for everything that a subject's interpreter runs; caches go below ``cache``."""
    return {
        # The engine loop in the worker's own process: one clock, and a scheduler that can be asked.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_PORT": str(FIRST_PORT + PORTS * ((os.getpid() + APART * station) % BLOCKS)),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        **{name: str(cache / folder) for name, folder in CACHES.items()},
        # As -P, but Python 3.10 ignores it instead of refusing; the worker corrects its own path there.
        "PYTHONSAFEPATH": "1",
        # What an engine printed last is worth most when it dies.
        "PYTHONUNBUFFERED": "1",
    }


def subject_environment(variables: Mapping[str, str], subject: Subject) -> dict[str, str]:
    """``variables`` with the subject's own over them, and its folders on the module path."""
    merged = {**variables, **subject.env}
    # Nothing is inherited here, but a scenario or subject may name more folders; those of path= come first.
    path = [*subject.path, *filter(None, [merged.pop("PYTHONPATH", "")])]
    return {**merged, **({"PYTHONPATH": os.pathsep.join(path)} if path else {})}


_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def gpus_of(args: Mapping[str, Any]) -> int:
    """How many GPUs an engine with these arguments takes."""
    sizes = [args.get(name) for name in _PARALLEL]
    return math.prod(size if isinstance(size, int) else 1 for size in sizes)


def find_subject(subject: Subject) -> Failure | None:
    """``subject-not-found`` where the interpreter or a folder of ``path`` is missing, or something else is there."""
    if subject.url is not None:
        return None
    if shutil.which(subject.python) is None:
        there = os.sep in subject.python and Path(subject.python).exists()
        what = "is there, and is not a program that you may execute" if there else "no such program"
        return Failure(code="subject-not-found", text=f"python={subject.python}: {what}")
    for folder in subject.path:
        if not Path(folder).is_dir():
            what = "is a file; name the folder that it is in" if Path(folder).exists() else "no such folder"
            return Failure(code="subject-not-found", text=f"path={folder}: {what}")
    return None


@dataclass(frozen=True)
class Limit:
    """Until when an answer must have come, and the reason codes for "too late" and "ended instead"."""

    deadline_s: float
    late: str
    ended: str


class Worker:
    """The other end of :mod:`perfgate.capture.vllm_worker`: started on entry, ended with all its descendants on exit.

    Args:
        job: The trial.
        wrapper: A program with its arguments that starts the worker and waits for it, as profilers do.
        environment: Variables of the wrapper, beside the engine's own.
    """

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
                [*self._wrapper, job.subject.python, str(WORKER), str(request_in), str(answer_out)],
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
        within = ((max(own.begin_ns, since_ns), min(own.end_ns, until_ns)) for own in self._pauses)
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
            raise InvalidTrialError("protocol-error", f"{op}: no answer to this request: {line[:200]!r}")
        if answer.get("ok") is True:
            return answer
        code = answer.get("code")
        if not isinstance(code, str) or code not in REASONS:
            raise InvalidTrialError("protocol-error", f"{op}: unknown code in {line[:200]!r}")
        raise InvalidTrialError(code, str(answer.get("error")))

    def stop(self, exit_timeout_s: float = EXIT_TIMEOUT_S) -> tuple[str, ...]:
        """Shut the engine down and wait for its process, or for what wraps it.

        Returns:
            ``path-unused`` where it imported nothing of the subject's ``path=`` until then.

        Raises:
            InvalidTrialError: It refused or is still there.
        """
        limit = Limit(time.monotonic() + STOP_TIMEOUT_S, "engine-died", "engine-died")
        answer = self.request("stop", limit, path=[*self._job.subject.path])
        if self._child.wait(exit_timeout_s) is None:
            raise InvalidTrialError("engine-died", f"the worker is still there {exit_timeout_s:g} s after its stop")
        return ("path-unused",) if answer.get("path_used") is False else ()

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
                raise InvalidTrialError("protocol-error", f"an answer of more than {MAX_ANSWER_BYTES} bytes")
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
        return InvalidTrialError(limit.ended, f"the worker {how}")


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
