"""Drivers: how an engine is started, given its load and stopped; a scenario's ``engine.driver`` names one.

:data:`perfgate.scenario.workload.DRIVERS` lists the names that a scenario may use: a scenario is checked, and a record
is judged, without any of this.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perfgate.capture.engine import EXIT_TIMEOUT_S, Limit, Worker, find_subject
from perfgate.capture.job import Job
from perfgate.capture.parking import Parking
from perfgate.capture.timeline import LARGEST, InvalidTrialError, Span
from perfgate.metrics.trial import Failure, Startup
from perfgate.scenario.plan import prompts
from perfgate.scenario.subject import Subject
from perfgate.scenario.workload import Workload

MAX_VERSIONS, MAX_VERSION = 64, 200
"""Packages that an engine may name, and characters of a name or version."""
_Version = Annotated[str, Field(max_length=MAX_VERSION)]
_Count = Annotated[int, Field(gt=0, lt=LARGEST)]
_Size = Annotated[int | None, Field(ge=0, lt=LARGEST)]


@dataclass(frozen=True)
class Launch:
    """What an instrument asks of the start of an engine.

    Args:
        wrapper: A program with its arguments that starts the engine's process and waits for it, as profilers do.
        environment: Variables beside the engine's own.
        engine_args: Arguments over those of scenario and subject.
        count_calls: Whether the worker counts what the host calls and adds it to the answer of each iteration.
    """

    wrapper: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    count_calls: bool = False


class Engine(Protocol):
    """A started engine, as instruments drive it; whatever goes wrong with it is an :class:`InvalidTrialError`."""

    versions: dict[str, str]
    startup: Startup

    def iterate(
        self, workload: Workload, number: int, limit: Limit | None = None, *, probe: bool = False
    ) -> tuple[dict[str, Any], Span]:
        """Run a workload once to completion.

        Args:
            workload: What to decode.
            number: Of the iteration, from 0; it draws the prompts.
            limit: Until when; by default the scenario's ``iteration_timeout``.
            probe: Whether each rank times a fixed piece of work before and after, ``probe_ns`` of the deliveries.

        Returns:
            The raw deliveries that :func:`perfgate.capture.timeline.read_iteration` reads, and when they were asked
            for and came.
        """

    def profile(self, *, on: bool, ranges: str, window: bool) -> None:
        """Begin or end numbered ranges around the engine's steps.

        Args:
            on: Whether to begin.
            ranges: ``nvtx`` or ``record_function``.
            window: Whether the profiler that the engine was started with records meanwhile.
        """

    def stop(self, exit_timeout_s: float = EXIT_TIMEOUT_S) -> None:
        """Shut it down and wait so long for its process, or for what wraps it."""


class Driver(Protocol):
    """Starts engines of one kind."""

    def probe(self, subject: Subject) -> Failure | None:
        """Why no engine of this subject can be started, found without starting one; ``None`` when it can."""

    def start(self, job: Job, launch: Launch) -> AbstractContextManager[Engine]:
        """A started engine for the length of a block; nothing that it started is left behind.

        Raises:
            InvalidTrialError: It does not start, or something that it started does not end.
        """

    def release(self) -> None:
        """End whatever was started for :attr:`Job.ahead`, because no such trial comes."""


class _Started(BaseModel):
    """A worker's answer to ``start``."""

    model_config = ConfigDict(strict=True)

    versions: Annotated[dict[_Version, _Version], Field(max_length=MAX_VERSIONS)]
    import_ns: _Count
    engine_ns: _Count
    vocabulary: _Count
    model_memory_bytes: _Size = None
    kv_memory_bytes: _Size = None
    kv_token_capacity: _Size = None


class VllmDriver:
    """vLLM's engine loop in a worker of its own (:mod:`perfgate.capture.vllm_worker`), one batch at a time.

    The worker of a trial that is known to come next is parked meanwhile (:mod:`perfgate.capture.parking`).
    """

    def __init__(self) -> None:
        self._parking = Parking()

    def probe(self, subject: Subject) -> Failure | None:
        """See :func:`find_subject`."""
        return find_subject(subject)

    @contextlib.contextmanager
    def start(self, job: Job, launch: Launch) -> Iterator[Engine]:
        """See :class:`Driver`."""
        with contextlib.ExitStack() as stack:
            worker = self._parking.take(job) if job.kind == "timed" and launch == Launch() else None
            if worker is None:
                self._parking.release()
                worker = stack.enter_context(Worker(job, launch.wrapper, launch.environment))
            else:
                stack.push(worker)
            if job.ahead is not None:
                self._parking.begin(job.ahead)
            engine = VllmEngine(worker, job, launch)
            # From here on the engine gets work: no import runs beside that.
            self._parking.settle()
            yield engine

    def release(self) -> None:
        """See :class:`Driver`."""
        self._parking.release()


class VllmEngine:
    """The engine that a worker builds on construction, see :class:`Engine`.

    Args:
        worker: Running, without an engine so far.
        job: The trial.
        launch: What its instrument asks of the start.

    Raises:
        InvalidTrialError: It did not start, or not in time.
    """

    def __init__(self, worker: Worker, job: Job, launch: Launch) -> None:
        self._worker, self._job = worker, job
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
            engine_args={**job.engine_args, **launch.engine_args},
            count_calls=launch.count_calls,
        )
        ready_ns = worker.age_ns()
        try:
            started = _Started.model_validate(answer)
        except ValidationError as error:
            text = f"the answer to start has another shape: {str(answer)[:200]}"
            raise InvalidTrialError("protocol-error", text) from error
        if (claimed_ns := started.import_ns + started.engine_ns) > ready_ns:
            text = f"the engine claims to have started for {claimed_ns} ns, {ready_ns} ns after its process did"
            raise InvalidTrialError("protocol-error", text)
        self.versions, self._vocabulary = started.versions, started.vocabulary
        figures = started.model_dump(exclude={"versions", "vocabulary"})
        self.startup = Startup(ready_ns=ready_ns, cache_files=cache_files, parked_ns=worker.parked_ns, **figures)

    def iterate(
        self, workload: Workload, number: int, limit: Limit | None = None, *, probe: bool = False
    ) -> tuple[dict[str, Any], Span]:
        """See :class:`Engine`."""
        batch = prompts(workload, self._vocabulary, number)
        timeout_s = self._job.cell.measure.iteration_timeout
        limit = limit or Limit(time.monotonic() + timeout_s, "iteration-timeout", "engine-died")
        begin_ns = time.monotonic_ns()
        asked = {"prompts": batch, "output_tokens": workload.output_tokens, "probe": probe}
        answer = self._worker.request("iterate", limit, **asked)
        return answer, Span(begin_ns, time.monotonic_ns())

    def profile(self, *, on: bool, ranges: str, window: bool) -> None:
        """See :class:`Engine`."""
        limit = Limit(time.monotonic() + self._job.cell.measure.start_timeout, "iteration-timeout", "engine-died")
        self._worker.request("profile", limit, on=on, ranges=ranges, window=window)

    def stop(self, exit_timeout_s: float = EXIT_TIMEOUT_S) -> None:
        """See :class:`Engine`."""
        self._worker.stop(exit_timeout_s)


DRIVERS: Final[dict[str, Callable[[], Driver]]] = {"vllm": VllmDriver}
"""By name: one for each of :data:`perfgate.scenario.workload.DRIVERS`, made anew for each station."""
