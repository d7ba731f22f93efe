"""Taking a trial: one skeleton for every driver and instrument.

Whatever goes wrong with the engine becomes the trial's failure, in the engine's own words; what was measured until then
is kept.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from typing import Any

from perfgate import rooms
from perfgate.capture.driver_protocol import Driver
from perfgate.capture.engine import LOG
from perfgate.capture.instruments import Instrument, Say
from perfgate.capture.job import Job
from perfgate.capture.timeline import InvalidTrialError
from perfgate.capture.worker import EXIT_TIMEOUT_S
from perfgate.errors import NotMeasuredError, PerfgateError, RecordError
from perfgate.machine.process_log import last_words
from perfgate.metrics.kinds import TRIAL_KINDS
from perfgate.metrics.path_use import ProcessUse
from perfgate.metrics.trial import Failure, Iteration, Trial
from perfgate.scenario.drivers import DRIVERS
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import Subject

MAX_FAILURE_CHARACTERS = 2000
OF_THE_REQUESTS = ("request-failed", "preempted", "client-late", "client-failed")
"""Reason codes of an engine that runs, so that its log explains nothing."""


def timed(job: Job) -> Instrument:
    """What times a trial of its driver."""
    instrument: Instrument = rooms.bring(DRIVERS[job.cell.engine.driver].timed)(job)
    return instrument


class EngineCollector:
    """Takes trials with the driver that the scenario names, see :class:`perfgate.capture.job.Collector`."""

    def __init__(self) -> None:
        self._drivers: dict[str, Driver] = {}

    def probe(self, cell: Cell, subject: Subject) -> Failure | None:
        """See :class:`perfgate.capture.driver_protocol.Driver`."""
        return self._driver(cell).probe(subject)

    def collect(self, job: Job, progress: Say) -> Trial:
        """Take one trial."""
        instrument = rooms.bring(TRIAL_KINDS[job.kind].instrument)
        return take_trial(job, self._driver(job.cell), instrument(job), progress)

    def release(self) -> None:
        """See :class:`perfgate.capture.driver_protocol.Driver`."""
        for driver in self._drivers.values():
            driver.release()

    def _driver(self, cell: Cell) -> Driver:
        """That of a cell, made when it is first needed."""
        name = cell.engine.driver
        if name not in self._drivers:
            self._drivers[name] = rooms.bring(DRIVERS[name].starts)()
        return self._drivers[name]


def take_trial(job: Job, driver: Driver, instrument: Instrument, say: Say) -> Trial:
    """Start an engine, have the instrument drive it, stop it, and keep what was measured.

    Raises:
        KeyboardInterrupt: The user stopped; the engine was ended first.
        OSError: The trial's folder cannot be written.
    """
    begin_ns, t0_utc = time.monotonic_ns(), datetime.now(UTC).isoformat(timespec="seconds")
    facts: dict[str, Any] = {}
    iterations: list[Iteration] = []
    used: tuple[ProcessUse, ...] | None = None
    failure = driver.probe(job.subject)
    if failure is None:
        try:
            launch = instrument.prepare()
            say("starting the engine")
            with driver.start(job, launch) as engine:
                facts = {"versions": engine.versions, "startup": engine.startup}
                for iteration in instrument.drive(engine, say):
                    iterations.append(iteration)  # noqa: PERF402 (those before an error are kept)
                say("stopping the engine")
                used = ()
                try:
                    used = engine.stop(instrument.report_s or EXIT_TIMEOUT_S)
                except InvalidTrialError as error:
                    if instrument.report_s:
                        raise
                    # Everything is measured; the ladder ends what is left.
                    say(f"the engine did not stop cleanly: {error.text}")
            instrument.collect(say)
        except (RecordError, NotMeasuredError) as error:
            failure = _failure(instrument.explain(error), instrument.unreadable, job)
    facts |= {"iterations": tuple(iterations), "used": used, **instrument.fields()}
    if os.getpriority(os.PRIO_PROCESS, 0) > 0:  # which the engine inherits
        facts["cautions"] = (*facts.get("cautions", ()), "low-priority")
    duration_ns = time.monotonic_ns() - begin_ns
    return job.trial(t0_utc=t0_utc, duration_ns=duration_ns, failure=failure, **facts)


def _failure(error: PerfgateError, unreadable: str, job: Job) -> Failure:
    """What went wrong, then what else the engine's log says of it; at most :data:`MAX_FAILURE_CHARACTERS`."""
    code, text = error.code or unreadable, error.finding
    text = text if len(text) <= MAX_FAILURE_CHARACTERS // 2 else text[: MAX_FAILURE_CHARACTERS // 2 - 3] + "..."
    more = () if code in OF_THE_REQUESTS else last_words(job.folder / LOG, text)
    return Failure(code=code, text="\n".join([text, *(f"{LOG}: {line}" for line in more)])[:MAX_FAILURE_CHARACTERS])


def lacking(cell: Cell, trial: Trial) -> Failure | None:
    """``metric-missing`` where a timed trial has no value of a gated metric, as no further one would.

    Utilisations are told of when their floor is sought.
    """
    timed = {gate.gate.metric: gate.gate.measured for gate in cell.gates if gate.gate.measured.kind == "timed"}
    without = {
        name: metric for name, metric in timed.items() if not metric.needs_floor and metric.summarise(trial) is None
    }
    if not without:
        return None
    named = ", ".join(f"{name} (only GPUs have it)" if metric.of_gpu else name for name, metric in without.items())
    return Failure(code="metric-missing", text=f"its warm-up trial has no value of {named}")
