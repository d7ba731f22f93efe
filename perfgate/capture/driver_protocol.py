"""What a driver of engines is, and what an instrument can ask of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from perfgate.capture.job import Job
from perfgate.capture.timeline import Span
from perfgate.capture.worker import EXIT_TIMEOUT_S, Limit
from perfgate.metrics.path_use import ProcessUse
from perfgate.metrics.trial import Failure, Startup
from perfgate.models import Strict
from perfgate.scenario.subject import Subject

MAX_VERSIONS, MAX_VERSION = 64, 200
"""Packages that an engine may name, and characters of a name or version."""


@dataclass(frozen=True)
class Launch:
    """What an instrument asks of the start of an engine.

    Args:
        wrapper: A program with its arguments that starts the engine's process and waits for it, as profilers do.
        environment: Variables beside the engine's own.
        engine_args: Arguments over those of scenario and subject.
        count_calls: Whether the worker counts what the host calls and adds it to the answer of each iteration.
        sample_host: Whether it samples where the host's time goes and adds that.
    """

    wrapper: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    count_calls: bool = False
    sample_host: bool = False


class Engine(Protocol):
    """A started engine, as instruments drive it; whatever goes wrong with it is an :class:`InvalidTrialError`."""

    versions: dict[str, str]

    @property
    def startup(self) -> Startup | None:
        """What its start cost; ``None`` for one that was not started here."""

    def iterate(
        self, workload: Strict, number: int, limit: Limit | None = None, *, probe: bool = False
    ) -> tuple[dict[str, Any], Span]:
        """Run a workload once to completion.

        Args:
            workload: What to do.
            number: Of the iteration, from 0; it draws the prompts.
            limit: Until when; by default the scenario's ``iteration_timeout``.
            probe: Whether each rank times a fixed piece of work before and after, ``probe_ns`` of the deliveries.

        Returns:
            What the ``read`` of the driver's entry reads (:mod:`perfgate.scenario.drivers`), and when they were asked
            for and came.
        """

    def wait_alone(self) -> None:
        """See that nothing works beside it that was started for :attr:`Job.ahead`, until it is stopped.

        Beside a trial whose times do not count (:attr:`Job.times_count`) it may.
        """

    def profile(self, *, on: bool, ranges: str, window: bool) -> None:
        """Begin or end numbered ranges around the engine's steps.

        Args:
            on: Whether to begin.
            ranges: ``nvtx`` or ``record_function``.
            window: Whether the profiler that the engine was started with records meanwhile.
        """

    def stop(self, exit_timeout_s: float = EXIT_TIMEOUT_S) -> tuple[ProcessUse, ...]:
        """Shut it down and wait so long for its process, or for what wraps it.

        Returns:
            What each of its processes used of the subject's ``path=`` until then; empty where none can be asked.
        """


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
