"""Instruments: what watches a trial's engine, what that asks of the engine, and what it tells of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from perfgate import rooms
from perfgate.capture.driver_protocol import Engine, Launch
from perfgate.capture.job import Job
from perfgate.capture.timeline import Span
from perfgate.errors import PerfgateError
from perfgate.metrics.trial import Iteration
from perfgate.scenario.drivers import DRIVERS

Say = Callable[[str], None]
"""Told what is going on, in short phrases for people."""


class Instrument:
    """Watches one trial; a subclass says what is different under it.

    :func:`perfgate.capture.trial_taking.take_trial` calls :meth:`prepare`, starts the engine, lets :meth:`drive` run
    it, stops it, and calls :meth:`collect`; then, however far that came, :meth:`fields`.

    Args:
        job: The trial.
    """

    name: ClassVar[str] = ""
    """As people are told while it is at work."""
    report_s: ClassVar[float] = 0.0
    """How long it may take to write its report once the engine has stopped; 0 where it has none."""
    probe: ClassVar[bool] = False
    """Whether the state of the GPUs is probed around each iteration; a profiler would show that."""
    warms_up_beside: ClassVar[bool] = False
    """Whether all iterations of warm-up but the last may run while the next trial's worker imports."""
    measures: ClassVar[bool] = True
    """Whether what it runs after warm-up are iterations of the trial; what slows an engine down measures none."""
    unreadable: ClassVar[str] = "internal-error"
    """Reason code of an error that has none of its own."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.workload = job.cell.workload

    @property
    def iterations(self) -> tuple[int, int]:
        """How many to run for warm-up, and how many to measure."""
        measure = self.job.cell.measure
        return measure.warmup_iterations, self.job.iterations or measure.iterations

    def prepare(self) -> Launch:
        """What it asks of the start of the engine.

        Raises:
            NotMeasuredError: It cannot be used here.
        """
        return Launch()

    def drive(self, engine: Engine, say: Say) -> Iterator[Iteration]:
        """Run the engine; yields the iterations that are measured.

        Raises:
            InvalidTrialError: The engine failed; what was yielded is kept.
        """
        warmup, measured = self.iterations
        first_alone = max(warmup - 1, 0) if self.warms_up_beside else 0
        last = None
        for number in range(warmup + measured):
            if number == first_alone:
                engine.wait_alone()
            if number == warmup:
                self.settle(engine, last, say)
                self.window(engine, on=True)
            say(f"iteration {number + 1} of {warmup + measured}{self.name and f', {self.name}'}")
            last = self.run(engine, number, warmup=number < warmup)
            if number >= warmup and self.measures:
                yield last
        self.window(engine, on=False)

    def run(self, engine: Engine, number: int, *, warmup: bool) -> Iteration:
        """One iteration; its number draws the prompts.

        Raises:
            InvalidTrialError: The engine failed.
        """
        answer, asked = engine.iterate(self.workload, number, probe=self.probe)
        self.note(number, answer, warmup=warmup)
        return self.read(answer, asked, warmup=warmup)

    def read(self, answer: Mapping[str, Any], asked: Span, *, warmup: bool) -> Iteration:
        """What came of an iteration that ran in this span.

        Raises:
            NotMeasuredError: It failed, or does not count.
        """
        del warmup
        iteration: Iteration = rooms.bring(DRIVERS[self.job.cell.engine.driver].read)(answer, self.workload, asked)
        return iteration

    def settle(self, engine: Engine, last: Iteration | None, say: Say) -> None:
        """Called after the last iteration of warm-up; by more of them the machine may come to rest."""

    def window(self, engine: Engine, *, on: bool) -> None:
        """Begin or end to record; called before the first measured iteration and after the last."""

    def note(self, number: int, answer: Mapping[str, Any], *, warmup: bool) -> None:
        """See the raw answer of an iteration, of warm-up or measured, before it is judged."""

    def collect(self, say: Say) -> None:
        """Read what it has recorded, once the engine has ended.

        Raises:
            NotMeasuredError: It recorded nothing, or not what was asked for.
            RecordError: What it left cannot be read.
        """

    def explain(self, error: PerfgateError) -> PerfgateError:
        """The error that a failed trial is told by, where the instrument knows more of it."""
        return error

    def fields(self) -> dict[str, Any]:
        """Fields of :class:`perfgate.metrics.trial.Trial` that it knows, also of a failed one; over the skeleton's."""
        return {}
