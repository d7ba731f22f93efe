"""Timed trials: one fresh vLLM engine, driven through its worker, with nothing in it but the workload.

The parent decides each iteration and writes each answer to disk as it arrives, so that a killed trial still shows how
far it came. Whatever goes wrong with the engine becomes the trial's failure, in the engine's own words.
"""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from perfgate.capture.engine import LOG, Limit, Worker, find_subject
from perfgate.capture.job import Job
from perfgate.capture.timeline import LARGEST, InvalidTrialError, Span, read_iteration
from perfgate.machine.process_log import last_words
from perfgate.metrics.trial import Artifact, Failure, Iteration, Startup, Trial
from perfgate.scenario.plan import Cell, prompts
from perfgate.scenario.subject import Subject

MAX_FAILURE_CHARACTERS = 2000
OF_THE_REQUESTS = ("request-failed", "wrong-token-count", "preempted")
"""Reason codes of an engine that runs, so that its log explains nothing."""
MAX_VERSIONS, MAX_VERSION = 64, 200
"""Packages that an engine may name, and characters of a name or version."""


class TimedCollector:
    """Takes timed trials: no profiler, no hooks, no ranges, asynchronous scheduling as vLLM ships it."""

    kind = "timed"

    def probe(self, cell: Cell, subject: Subject) -> Failure | None:  # noqa: ARG002 (the protocol's shape)
        """See :func:`find_subject`."""
        return find_subject(subject)

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Take one trial, see :class:`perfgate.capture.job.Collector`."""
        begin_ns, t0_utc = time.monotonic_ns(), datetime.now(UTC).isoformat(timespec="seconds")
        failure = self.probe(job.cell, job.subject)
        taken = _Taken()
        if failure is None:
            with _Timeline(job) as timeline:
                try:
                    with Worker(job) as worker:
                        _measure(worker, job, timeline, taken, progress)
                except InvalidTrialError as error:
                    failure = Failure(code=error.code, text=in_words(error.code, error.text, job.folder / LOG))
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


def _measure(worker: Worker, job: Job, timeline: _Timeline, taken: _Taken, progress: Callable[[str], None]) -> None:
    """Start the engine and run every iteration; ``taken`` keeps what was reached."""
    cell = job.cell
    progress("starting the engine")
    started = start_engine(worker, job)
    taken.versions, taken.startup = started.versions, started.startup
    warmup = cell.measure.warmup_iterations
    total = warmup + cell.measure.iterations
    for number in range(total):
        progress(f"iteration {number + 1} of {total}")
        answer, asked = run_iteration(worker, cell, started.vocabulary, number)
        timeline.write(number, number < warmup, answer)
        iteration = read_iteration(answer, cell.workload, asked)
        taken.preemptions_known &= answer.get("preemptions") is not None
        if number >= warmup:
            taken.iterations.append(iteration)
    progress("stopping the engine")
    try:
        worker.stop()
    except InvalidTrialError as error:  # everything is measured; the ladder ends what is left
        progress(f"the engine did not stop cleanly: {error.text}")


class Started(NamedTuple):
    """What a started engine tells: versions of its packages, start-up costs, tokens of its vocabulary."""

    versions: dict[str, str]
    startup: Startup
    vocabulary: int


def start_engine(worker: Worker, job: Job, engine_args: Mapping[str, Any] | None = None) -> Started:
    """Have a worker build the engine of a job, with ``engine_args`` over the scenario's and the subject's.

    Raises:
        InvalidTrialError: It did not start, or not in time.
    """
    cell = job.cell
    cache_files = sum(len(names) for _, _, names in os.walk(job.cache_folder))
    limit = Limit(time.monotonic() + cell.measure.start_timeout, "engine-start-timeout", "engine-start-failed")
    worker.request("hello", limit)
    answer = worker.request(
        "start",
        limit,
        model=cell.model_folder or cell.engine.model.hub,
        revision=cell.engine.model.revision,
        dummy=cell.engine.model.config is not None,
        engine_args={**cell.engine.args, **job.subject.args, **(engine_args or {})},
    )
    return _read_start(answer, worker.age_ns(), cache_files)


def run_iteration(worker: Worker, cell: Cell, vocabulary: int, number: int) -> tuple[dict[str, Any], Span]:
    """Run one batch to completion; the worker's answer, and when it was asked for and came.

    Raises:
        InvalidTrialError: It failed, or took too long.
    """
    batch = prompts(cell.workload, vocabulary, number)
    limit = Limit(time.monotonic() + cell.measure.iteration_timeout, "iteration-timeout", "engine-died")
    begin_ns = time.monotonic_ns()
    answer = worker.request("iterate", limit, prompts=batch, output_tokens=cell.workload.output_tokens)
    return answer, Span(begin_ns, time.monotonic_ns())


def _read_start(answer: Mapping[str, Any], ready_ns: int, cache_files: int) -> Started:
    versions: Any = answer.get("versions")
    vocabulary: Any = answer.get("vocabulary")
    times: list[Any] = [answer.get("import_ns"), answer.get("engine_ns")]
    sizes = [answer.get("model_memory_bytes"), answer.get("kv_token_capacity")]
    if (
        not isinstance(versions, dict)
        or len(versions) > MAX_VERSIONS
        or not all(isinstance(text, str) and len(text) <= MAX_VERSION for pair in versions.items() for text in pair)
        or not all(type(number) is int and 0 < number < LARGEST for number in [*times, vocabulary])
        or not all(size is None or (type(size) is int and 0 <= size < LARGEST) for size in sizes)
    ):
        raise InvalidTrialError("protocol-error", f"the answer to start has another shape: {str(answer)[:200]}")
    if sum(times) > ready_ns:
        text = f"the engine claims to have started for {sum(times)} ns, {ready_ns} ns after its process did"
        raise InvalidTrialError("protocol-error", text)
    startup = Startup(
        import_ns=times[0],
        engine_ns=times[1],
        ready_ns=ready_ns,
        model_memory_bytes=sizes[0],
        kv_token_capacity=sizes[1],
        cache_files=cache_files,
    )
    return Started(versions, startup, vocabulary)


def in_words(code: str, text: str, log: Path) -> str:
    """What went wrong, then what else the engine's log says of it; at most :data:`MAX_FAILURE_CHARACTERS`."""
    text = text if len(text) <= MAX_FAILURE_CHARACTERS // 2 else text[: MAX_FAILURE_CHARACTERS // 2 - 3] + "..."
    more = () if code in OF_THE_REQUESTS else last_words(log, text)
    return "\n".join([text, *(f"{LOG}: {line}" for line in more)])[:MAX_FAILURE_CHARACTERS]


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
        return Artifact.of(file, self._root)
