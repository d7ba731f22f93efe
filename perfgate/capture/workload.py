"""Timed trials: one fresh vLLM engine, driven through its worker, with nothing in it but the workload.

The parent decides each iteration and writes each answer to disk as it arrives, so that a killed trial still shows how
far it came. Whatever goes wrong with the engine becomes the trial's failure, in the engine's own words.
"""

from __future__ import annotations

import gzip
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self

from perfgate.capture.collector import Job
from perfgate.capture.process import spawn, tail
from perfgate.capture.timeline import InvalidTrialError, read_iteration
from perfgate.plan import Cell, prompts
from perfgate.reasons import REASONS
from perfgate.record import Artifact, Failure, Iteration, Startup, Trial, sha256_hex
from perfgate.subject import Subject

PROTOCOL = 1
WORKER = Path(__file__).with_name("worker.py")
LOG = "engine.log"
STOP_TIMEOUT_S = 20.0
EXIT_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 256 * 1024**2
MAX_FAILURE_CHARACTERS = 2000
LOG_LINES = 12

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
    variables = {**job.environment, **engine_settings(job.cache_folder), **offline, **job.cell.engine.env}
    return subject_environment(variables, job.subject)


def engine_settings(cache: Path) -> dict[str, str]:
    """What perfgate itself sets for everything that a subject's interpreter runs; caches go below ``cache``."""
    return {
        # The engine loop in the worker's own process: one clock, and a scheduler that can be asked.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        # As -P, but Python 3.10 ignores it instead of refusing; the worker mends its own path there.
        "PYTHONSAFEPATH": "1",
        # What an engine printed last is worth most when it dies.
        "PYTHONUNBUFFERED": "1",
    }


def subject_environment(variables: Mapping[str, str], subject: Subject) -> dict[str, str]:
    """``variables`` with the subject's own over them, and its folders on the module path."""
    merged = {**variables, **subject.env}
    # Nothing is inherited here, but a scenario or subject may name more folders; those of path= stand in front.
    path = [*subject.path, *filter(None, [merged.pop("PYTHONPATH", "")])]
    return {**merged, **({"PYTHONPATH": os.pathsep.join(path)} if path else {})}


def find_subject(subject: Subject) -> Failure | None:
    """``subject-not-found`` where the interpreter or a folder of ``path`` is missing."""
    if shutil.which(subject.python) is None:
        return Failure(code="subject-not-found", text=f"python={subject.python}: no such program")
    for folder in subject.path:
        if not Path(folder).is_dir():
            return Failure(code="subject-not-found", text=f"path={folder}: no such folder")
    return None


class TimedCollector:
    """Takes timed trials: no profiler, no hooks, no ranges, asynchronous scheduling as vLLM ships it."""

    kind = "timed"

    def probe(self, cell: Cell, subject: Subject) -> Failure | None:  # noqa: ARG002 (the protocol's shape)
        """See :func:`find_subject`."""
        return find_subject(subject)

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Take one trial, see :class:`perfgate.capture.collector.Collector`."""
        begin_ns, t0_utc = time.monotonic_ns(), datetime.now(UTC).isoformat(timespec="seconds")
        failure = self.probe(job.cell, job.subject)
        taken = _Taken()
        if failure is None:
            with _Timeline(job) as timeline:
                try:
                    with _Worker(job) as worker:
                        _measure(worker, job, timeline, taken, progress)
                except InvalidTrialError as error:
                    failure = Failure(code=error.code, text=_words(error.text, job.folder / LOG))
            taken.timeline = timeline.artifact()
        return job.trial(
            t0_utc=t0_utc,
            duration_ns=time.monotonic_ns() - begin_ns,
            failure=failure,
            versions=taken.versions,
            startup=taken.startup,
            iterations=tuple(taken.iterations),
            cautions=taken.cautions(),
            timeline=taken.timeline,
        )


@dataclass
class _Taken:
    """What a trial has yielded so far; the one thing here that grows."""

    versions: dict[str, str] = field(default_factory=dict)
    startup: Startup | None = None
    iterations: list[Iteration] = field(default_factory=list)
    preemptions_known: bool = True
    timeline: Artifact | None = None

    def cautions(self) -> tuple[str, ...]:
        """Reason codes that concern the trial."""
        multi_token = any(iteration.multi_token for iteration in self.iterations)
        found = (("multi-token-deliveries", multi_token), ("preemptions-unknown", not self.preemptions_known))
        return tuple(code for code, holds in found if holds)


def _measure(worker: _Worker, job: Job, timeline: _Timeline, taken: _Taken, progress: Callable[[str], None]) -> None:
    """Start the engine and run every iteration; ``taken`` keeps what was reached."""
    cell = job.cell
    progress("starting the engine")
    cache_files = sum(len(names) for _, _, names in os.walk(job.cache_folder))
    limit = _Limit(time.monotonic() + cell.measure.start_timeout, "engine-start-timeout", "engine-start-failed")
    worker.request("hello", limit)
    answer = worker.request(
        "start",
        limit,
        model=cell.model_folder or cell.engine.model.hub,
        revision=cell.engine.model.revision,
        dummy=cell.engine.model.config is not None,
        engine_args={**cell.engine.args, **job.subject.args},
    )
    taken.versions, taken.startup, vocabulary = _read_start(answer, worker.age_ns(), cache_files)
    warmup = cell.measure.warmup_iterations
    total = warmup + cell.measure.iterations
    for number in range(total):
        progress(f"iteration {number + 1} of {total}")
        batch = prompts(cell.workload, vocabulary, number)
        limit = _Limit(time.monotonic() + cell.measure.iteration_timeout, "iteration-timeout", "engine-died")
        answer = worker.request("iterate", limit, prompts=batch, output_tokens=cell.workload.output_tokens)
        timeline.write(number, number < warmup, answer)
        iteration = read_iteration(answer, cell.workload)
        taken.preemptions_known &= answer.get("preemptions") is not None
        if number >= warmup:
            taken.iterations.append(iteration)
    progress("stopping the engine")
    try:
        worker.stop()
    except InvalidTrialError as error:  # everything is measured; the ladder ends what is left
        progress(f"the engine did not stop cleanly: {error.text}")


def _read_start(answer: Mapping[str, Any], ready_ns: int, cache_files: int) -> tuple[dict[str, str], Startup, int]:
    """Versions, start-up costs and the size of the vocabulary."""
    versions: Any = answer.get("versions")
    vocabulary: Any = answer.get("vocabulary")
    times: list[Any] = [answer.get("import_ns"), answer.get("engine_ns")]
    sizes = [answer.get("model_memory_bytes"), answer.get("kv_token_capacity")]
    if (
        not isinstance(versions, dict)
        or not all(isinstance(text, str) for pair in versions.items() for text in pair)
        or not all(type(number) is int and number > 0 for number in [*times, vocabulary])
        or not all(size is None or type(size) is int for size in sizes)
    ):
        raise InvalidTrialError("protocol-error", f"the answer to start has another shape: {str(answer)[:200]}")
    startup = Startup(
        import_ns=times[0],
        engine_ns=times[1],
        ready_ns=ready_ns,
        model_memory_bytes=sizes[0],
        kv_token_capacity=sizes[1],
        cache_files=cache_files,
    )
    return versions, startup, vocabulary


def _words(text: str, log: Path) -> str:
    """What went wrong, then the end of the engine's log; at most :data:`MAX_FAILURE_CHARACTERS`."""
    text = text if len(text) <= MAX_FAILURE_CHARACTERS // 2 else text[: MAX_FAILURE_CHARACTERS // 2 - 3] + "..."
    end = tail(log, LOG_LINES)
    room = MAX_FAILURE_CHARACTERS - len(text) - 1
    return f"{text}\n{end[-room:]}" if end else text


class _Timeline:
    """``timeline.jsonl`` of a trial: a line an iteration, on disk as soon as it is known, compressed at the end."""

    def __init__(self, job: Job) -> None:
        self._root = job.run_folder
        self._file = job.folder / "timeline.jsonl"
        self._lines = 0

    def __enter__(self) -> Self:
        self._stream = self._file.open("w", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def write(self, number: int, warmup: bool, answer: Mapping[str, Any]) -> None:  # noqa: FBT001 (part of the line)
        content = {k: v for k, v in answer.items() if k not in ("v", "id", "ok")}
        line = {"iteration": number, "warmup": warmup, **content}
        self._stream.write(json.dumps(line, sort_keys=True, separators=(",", ":")) + "\n")
        self._stream.flush()
        self._lines += 1

    def artifact(self) -> Artifact | None:
        """Compress the closed file, so that its digest depends on its content alone; ``None`` for an empty one."""
        content = self._file.read_bytes()
        self._file.unlink()
        if not self._lines:
            return None
        packed = gzip.compress(content, mtime=0)
        file = self._file.with_suffix(".jsonl.gz")
        file.write_bytes(packed)
        return Artifact(path=file.relative_to(self._root).as_posix(), sha256=sha256_hex(packed))


@dataclass(frozen=True)
class _Limit:
    """Until when an answer must have come, and the reason codes for "too late" and "ended instead"."""

    deadline_s: float
    late: str
    ended: str


class _Worker:
    """The other end of :mod:`perfgate.capture.worker`: started on entry, ended with all its descendants on exit."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._buffer = bytearray()
        self._id = 0

    def __enter__(self) -> Self:
        job = self._job
        request_in, self._requests = os.pipe()
        self._answers, answer_out = os.pipe()
        self._born_ns = time.monotonic_ns()
        try:
            self._child = spawn(
                [job.subject.python, str(WORKER), str(request_in), str(answer_out)],
                environment=engine_environment(job),
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

    def __exit__(self, *_: object) -> None:
        try:
            self._child.end()
        finally:
            os.close(self._requests)
            os.close(self._answers)

    def age_ns(self) -> int:
        """Time since the process was spawned."""
        return time.monotonic_ns() - self._born_ns

    def request(self, op: str, limit: _Limit, **fields: Any) -> dict[str, Any]:
        """Ask, and wait for the answer.

        Raises:
            InvalidTrialError: The worker refused, ended, was late, or answered something else.
        """
        self._id += 1
        self._send(json.dumps({"v": PROTOCOL, "id": self._id, "op": op, **fields}).encode() + b"\n", limit)
        line = self._receive(limit)
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or answer.get("v") != PROTOCOL or answer.get("id") != self._id:
            raise InvalidTrialError("protocol-error", f"{op}: no answer to this request: {line[:200]!r}")
        if answer.get("ok") is True:
            return answer
        code = answer.get("code")
        if code not in REASONS:
            raise InvalidTrialError("protocol-error", f"{op}: unknown code in {line[:200]!r}")
        raise InvalidTrialError(code, str(answer.get("error")))

    def stop(self) -> None:
        """Shut the engine down and wait for its process.

        Raises:
            InvalidTrialError: It refused or is still there.
        """
        limit = _Limit(time.monotonic() + STOP_TIMEOUT_S, "engine-died", "engine-died")
        self.request("stop", limit)
        if self._child.wait(EXIT_TIMEOUT_S) is None:
            raise InvalidTrialError("engine-died", f"the worker is still there {EXIT_TIMEOUT_S:g} s after its stop")

    def _send(self, data: bytes, limit: _Limit) -> None:
        """Write all of it; a worker that has stopped reading must not hold perfgate up for ever."""
        rest = memoryview(data)
        while rest:
            self._wait(self._requests, select.POLLOUT, limit)
            try:
                rest = rest[os.write(self._requests, rest) :]
            except BrokenPipeError:
                raise self._ended(limit) from None

    def _receive(self, limit: _Limit) -> bytes:
        while b"\n" not in self._buffer:
            self._wait(self._answers, select.POLLIN, limit)
            data = os.read(self._answers, 1 << 16)
            if not data:
                raise self._ended(limit)
            self._buffer += data
            if len(self._buffer) > MAX_ANSWER_BYTES:
                raise InvalidTrialError("protocol-error", f"an answer of more than {MAX_ANSWER_BYTES} bytes")
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        return line

    def _wait(self, descriptor: int, event: int, limit: _Limit) -> None:
        """Return when the descriptor is ready or its other end is closed."""
        poll = select.poll()
        poll.register(descriptor, event)
        while True:
            # Asked before the poll, so that what it wrote last is still read; and asked at all, because a process
            # that it left behind could hold the descriptor open.
            ended = self._child.poll() is not None
            if poll.poll(0 if ended else 250):
                return
            if ended:
                raise self._ended(limit)
            if time.monotonic() > limit.deadline_s:
                raise InvalidTrialError(limit.late, f"no answer within the limit, after {self.age_ns() / 1e9:.0f} s")

    def _ended(self, limit: _Limit) -> InvalidTrialError:
        status = self._child.wait(2.0)
        how = "closed its descriptors" if status is None else f"ended with status {status}"
        if status is not None and status < 0:
            how = f"was ended by {signal.Signals(-status).name}"
        return InvalidTrialError(limit.ended, f"the worker {how}")
