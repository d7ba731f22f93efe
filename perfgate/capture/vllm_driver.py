"""The driver ``vllm``: how an engine is started, given batches and stopped."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perfgate.capture.driver_protocol import MAX_VERSION, MAX_VERSIONS, Engine, Launch
from perfgate.capture.engine import find_subject
from perfgate.capture.job import Job
from perfgate.capture.parking import BESIDE_A_START, Parking, beside_the_first
from perfgate.capture.timeline import LARGEST, InvalidTrialError, Span
from perfgate.capture.worker import EXIT_TIMEOUT_S, Limit, Worker, start_limit
from perfgate.machine.cleanup import count_files
from perfgate.metrics.kinds import TRIAL_KINDS
from perfgate.metrics.path_use import ProcessUse
from perfgate.metrics.trial import Failure, Startup
from perfgate.models import Strict
from perfgate.scenario.plan import prompts
from perfgate.scenario.subject import Subject
from perfgate.scenario.workload import Workload

_Version = Annotated[str, Field(max_length=MAX_VERSION)]
_Count = Annotated[int, Field(gt=0, lt=LARGEST)]
_Size = Annotated[int | None, Field(ge=0, lt=LARGEST)]


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

    The worker of a trial that is foreseen to come next is parked meanwhile (:mod:`perfgate.capture.parking`).
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
            parked = self._parking.take(job) if _starts_as_it_is(job, launch) else None
            if parked is not None:
                worker = parked
                stack.push(worker)
            else:
                self._parking.release()
                worker = stack.enter_context(Worker(job, launch.wrapper, launch.environment))
            self._parking.begin(job.ahead, BESIDE_A_START)
            yield VllmEngine(worker, job, launch, self._parking)

    def release(self) -> None:
        """See :class:`Driver`."""
        self._parking.release()


class VllmEngine:
    """The engine that a worker builds on construction, see :class:`Engine`.

    Args:
        worker: Running, without an engine so far.
        job: The trial.
        launch: What its instrument asks of the start.
        parking: Where the next trials' workers import meanwhile.

    Raises:
        InvalidTrialError: It did not start, or not in time.
    """

    def __init__(self, worker: Worker, job: Job, launch: Launch, parking: Parking) -> None:
        self._worker, self._job, self._parking = worker, job, parking
        cache_files = count_files(job.cache_folder)
        limit = start_limit(job)
        worker.request("hello", limit)
        if job.ahead and not worker.imported_ns and _starts_as_it_is(job, launch):
            worker.request("imports", limit, count_calls=launch.count_calls)
            parking.begin(job.ahead, beside_the_first())  # not before: three imports at once take half as long again
        asked = job.engine_request
        asked["engine_args"] |= launch.engine_args
        counts = {"count_calls": launch.count_calls, "sample_host": launch.sample_host}
        answer = worker.request("start", limit, **asked, **counts)
        ready_ns = worker.age_ns()
        try:
            started = _Started.model_validate(answer)
        except ValidationError as error:
            text = f"the answer to start has another shape: {str(answer)[:200]}"
            raise InvalidTrialError("engine-failed", text) from error
        import_ns = started.import_ns - worker.stopped_ns(worker.imported_ns - started.import_ns, worker.imported_ns)
        if (claimed_ns := import_ns + started.engine_ns) > ready_ns:
            text = f"the engine claims to have started for {claimed_ns} ns, {ready_ns} ns after its process did"
            raise InvalidTrialError("engine-failed", text)
        self.versions, self._vocabulary = started.versions, started.vocabulary
        figures = started.model_dump(exclude={"versions", "vocabulary"})
        figures["import_ns"] = import_ns
        self.startup = Startup(ready_ns=ready_ns, cache_files=cache_files, parked_ns=worker.parked_ns, **figures)

    def iterate(
        self, workload: Strict, number: int, limit: Limit | None = None, *, probe: bool = False
    ) -> tuple[dict[str, Any], Span]:
        """See :class:`Engine`."""
        if not isinstance(workload, Workload):
            raise TypeError("this driver decodes batches")
        batch = prompts(workload, self._vocabulary, number)
        timeout_s = self._job.cell.measure.iteration_timeout
        limit = limit or Limit(time.monotonic() + timeout_s, "engine-failed", "engine-failed")
        begin_ns = time.monotonic_ns()
        asked = {"prompts": batch, "output_tokens": workload.output_tokens, "probe": probe}
        if workload.images is not None:
            asked["images"] = {**workload.images.model_dump(), "seed": [workload.seed, number]}
        answer = self._worker.request("iterate", limit, **asked)
        return answer, Span(begin_ns, time.monotonic_ns())

    def wait_alone(self) -> None:
        """See :class:`Engine`; imports go on beside a warm-up trial from whose iterations nothing follows."""
        if self._job.times_count:
            self._parking.pause()

    def profile(self, *, on: bool, ranges: str, window: bool) -> None:
        """See :class:`Engine`."""
        limit = Limit(time.monotonic() + self._job.cell.measure.start_timeout, "engine-failed", "engine-failed")
        self._worker.request("profile", limit, on=on, ranges=ranges, window=window)

    def stop(self, exit_timeout_s: float = EXIT_TIMEOUT_S) -> tuple[ProcessUse, ...]:
        """See :class:`Engine`; what is foreseen imports, or goes on with it, from here on.

        Not after a warm-up trial: what that leaves in its caches is kept before anybody else works there.
        """
        if self._job.pair is None:
            self._parking.pause()
        else:
            self._parking.begin(self._job.ahead)
        return self._worker.stop(exit_timeout_s)


def _starts_as_it_is(job: Job, launch: Launch) -> bool:
    """Whether nothing is asked of the start by an instrument, so that a parked worker could be taken."""
    kind = TRIAL_KINDS[job.kind]
    return kind.parked and launch == Launch(**kind.launch)
