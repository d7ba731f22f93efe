"""A server driven over HTTP by perfgate's own client, a window of load at a time.

Client and server are apart: each has processes of its own, and where the machine has cores enough also cores.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Final, Literal

from perfgate.capture.driver_protocol import MAX_VERSION, MAX_VERSIONS, Engine, Launch
from perfgate.capture.engine import engine_environment, find_subject, gpus_of
from perfgate.capture.job import Job
from perfgate.capture.parking import BESIDE_A_START, Parking
from perfgate.capture.timeline import InvalidTrialError, Span
from perfgate.capture.worker import EXIT_TIMEOUT_S, Limit, start_limit
from perfgate.load.arrival_trace import kept_trace
from perfgate.load.arrivals import window
from perfgate.load.client import Client
from perfgate.load.dummy_files import vocabulary_of
from perfgate.load.event_stream import UNCOUNTED
from perfgate.load.exchange import Answers, Target, Window
from perfgate.load.server_http import (
    Scrape,
    fetch,
    fetch_json,
    growth,
    is_probed,
    kv_token_capacity,
    kv_use_ppm,
    probes,
    read_metrics,
    read_ranks,
    served_name,
)
from perfgate.load.server_process import RunningServer, Server, ServerWorker, held_alone, own_port
from perfgate.load.shape import Load
from perfgate.load.window_reading import WindowAnswer
from perfgate.machine.children import spawn
from perfgate.machine.cleanup import count_files
from perfgate.machine.fingerprint import usable_cores
from perfgate.machine.json_text import MANIFEST, parse_json
from perfgate.metrics.path_use import ProcessUse
from perfgate.metrics.trial import Failure, Startup
from perfgate.models import Strict
from perfgate.scenario.subject import Subject

VERSIONS: Final = Path(__file__).parents[1] / "capture" / "vllm_versions.py"
VERSIONS_LOG: Final = "versions.log"
VERSIONS_S: Final = 30.0
MOST_SAID: Final = 65_536
LEAST_CORES: Final = 4
"""From so many on the client has one for itself; with fewer, its trials have the caution ``client-shares-cores``."""
READING_S: Final = 0.5
"""Between two readings of the KV cache's use, in warm-up alone."""
NEXT_COUNTS: Final[Mapping[str, Literal["usage", "events"]]] = {"ids": "usage", "usage": "events"}
"""How tokens are counted where a server does not tell, or take the request, that way."""
NOT_SO: Final = (UNCOUNTED, "status 400", "status 422")
DYING_S: Final = 0.5
"""How long a server that dropped requests is given to be dead."""


class ServerDriver:
    """Starts servers, see :class:`perfgate.capture.driver_protocol.Driver`.

    All of them, and their clients, have the same cores, so that both sides of a pair do. One of vLLM whose trial is
    foreseen to come next imports meanwhile (:mod:`perfgate.capture.parking`).
    """

    def __init__(self) -> None:
        self._held = contextlib.ExitStack()
        self._cores: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        self._parking = Parking(lambda job: ServerWorker(job, self._cores[0] if self._cores else ()))

    def probe(self, subject: Subject) -> Failure | None:
        """See :func:`perfgate.capture.engine.find_subject`."""
        return find_subject(subject)

    @contextlib.contextmanager
    def start(self, job: Job, launch: Launch) -> Iterator[Engine]:
        """See :class:`perfgate.capture.driver_protocol.Driver`."""
        if launch != Launch():
            raise InvalidTrialError("evidence-missing", "a server is not profiled")
        if self._cores is None:
            self._cores = self._held.enter_context(apart())
        servers, clients = self._cores
        if job.subject.url is not None:
            self._parking.release()
            running = RunningServer(job.subject.url)
            running.require()
            with Client(job.folder, job.owner, clients) as client:
                yield ServedEngine(job, running, client)
            return
        limit = start_limit(job)
        cache_files = count_files(job.cache_folder)
        with contextlib.ExitStack() as stack:
            with contextlib.ExitStack() as not_served:
                # Its folder becomes the trial's, which is empty until here.
                ahead = None if job.cell.engine.command else self._parking.take(job)
                if ahead is not None:
                    not_served.push(ahead)
                versions = package_versions(job)
                port = stack.enter_context(own_port(job.station))
                not_served.pop_all()
            server = stack.enter_context(Server(job, port, limit, servers, ahead))
            self._parking.begin(importing(job.ahead), BESIDE_A_START)
            client = stack.enter_context(Client(job.folder, job.owner, clients))
            server.await_ready()
            startup = Startup(
                import_ns=server.imported_ns, engine_ns=0, ready_ns=server.age_ns(), cache_files=cache_files,
                parked_ns=server.parked_ns,
            )  # fmt: skip
            yield ServedEngine(job, server, client, Started(versions, startup, self._parking))

    def release(self) -> None:
        """Give the client's core back, and end what was started ahead."""
        try:
            self._parking.release()
        finally:
            self._held.close()
            self._cores = None


def importing(ahead: Sequence[Job]) -> list[Job]:
    """Those of the trials ahead before any of a server that somebody else starts."""
    return list(takewhile(lambda job: job.subject.url is None, ahead))


@dataclass(frozen=True)
class Started:
    """What is known of a server that was started here.

    Args:
        versions: Packages of the subject.
        startup: What it took.
        parking: Where the next ones import meanwhile.
    """

    versions: Mapping[str, str]
    startup: Startup
    parking: Parking


class ServedEngine:
    """A server that is ready, see :class:`perfgate.capture.driver_protocol.Engine`.

    Args:
        job: The trial.
        server: Running.
        client: Running.
        started: How it was started; ``None`` for one that ran already, of which no version is believed either.
    """

    def __init__(
        self, job: Job, server: Server | RunningServer, client: Client, started: Started | None = None
    ) -> None:
        self._job, self._server, self._client, self._started = job, server, client, started
        limit_s = job.cell.measure.iteration_timeout
        self._target = Target(url=server.url, model=served_name(server.url), timeout_s=limit_s)
        self._trace = kept_trace(job.run_folder, job.cell.workload)
        self._vocabulary = vocabulary_of(None if job.cell.model_folder is None else Path(job.cell.model_folder))
        self._words = "" if started else f"{job.run_folder.name} {job.index}"
        self.versions: dict[str, str] = {}
        self.startup = None
        if started is None:
            return
        capacity = kv_token_capacity(self._scrape())
        version = fetch_json(server.url, "/version").get("version")
        self.versions = {**started.versions, **_versions({"server": version})}
        self.startup = started.startup.model_copy(update={"kv_token_capacity": capacity})

    def wait_alone(self) -> None:
        """See :class:`perfgate.capture.driver_protocol.Engine`."""
        if self._started is not None:
            self._started.parking.pause()

    def iterate(
        self, workload: Strict, number: int, limit: Limit | None = None, *, probe: bool = False
    ) -> tuple[dict[str, Any], Span]:
        """A window of load, see :class:`perfgate.capture.driver_protocol.Engine`.

        Nothing asks the server for its figures while requests are measured, nor its ranks for the probe.
        """
        if not isinstance(workload, Load) or limit is not None:
            raise TypeError("this driver sends windows of load")
        requests = window(workload, number, self._vocabulary, self._trace, words=self._words)
        warm_up = number < self._job.cell.measure.warmup_iterations
        before, probe = self._scrape(), probe and is_probed(self._job)
        ranks = gpus_of(self._job.engine_args)
        probed = [read_ranks(self._server.url, ranks)] if probe else []
        begin_ns = time.monotonic_ns()
        with self._watching(asleep=not warm_up) as readings:
            answers = self._drive(requests, may_ask_otherwise=warm_up)
        span = Span(begin_ns, time.monotonic_ns())
        failed = any(answer.error for answer in answers.answers)
        if probed and not failed:
            probed.append(read_ranks(self._server.url, ranks))
        came = WindowAnswer(
            asked=tuple(request.max_tokens for request in requests.requests),
            limit_ns=round(self._target.timeout_s * 1e9),
            may_stop=tuple(request.number for request in requests.requests if not request.body.get("ignore_eos")),
            answers=answers,
            ended=self._server.ended(DYING_S if failed else 0),
            counted=growth(before, self._scrape()),
            kv_use_ppm=None if answers.void else max(readings, default=None),  # of a load that was not as declared
            shares_cores=not self._client.cores,
            counts=self._target.counts,
            probe_ns=probes(probed),
        )
        return came.model_dump(mode="json"), span

    def _drive(self, requests: Window, *, may_ask_otherwise: bool) -> Answers:
        """Send a window; one of warm-up again, where the server lets no token be counted as it was asked to.

        What it has in its cache by then is of warm-up.
        """
        answers = self._client.drive(requests, self._target)
        counts = NEXT_COUNTS.get(self._target.counts)
        if (
            not may_ask_otherwise
            or counts is None
            or not all(answer.error.startswith(NOT_SO) for answer in answers.answers)
        ):
            return answers
        self._target = self._target.model_copy(update={"counts": counts})
        return self._drive(requests, may_ask_otherwise=True)

    def profile(self, *, on: bool, ranges: str, window: bool) -> None:
        """No instrument of a server asks for it."""
        raise InvalidTrialError("evidence-missing", f"a server has no ranges {ranges}, {on}, {window}")

    def stop(self, exit_timeout_s: float = EXIT_TIMEOUT_S) -> tuple[ProcessUse, ...]:
        """See :class:`perfgate.capture.driver_protocol.Engine`; a server that ran already is not asked.

        What is foreseen imports from here on, but not after a warm-up trial: what that leaves in its caches is kept
        before anybody else works there.
        """
        used = self._server.used()
        if self._started is not None and self._job.pair is not None:
            self._started.parking.begin(importing(self._job.ahead))
        self._server.stop(exit_timeout_s)
        return used

    def _scrape(self) -> Scrape:
        return read_metrics(fetch(self._server.url, "/metrics")[1])

    @contextlib.contextmanager
    def _watching(self, *, asleep: bool) -> Iterator[list[int]]:
        """Read the KV cache's use now and then, beside a window that is not measured; ``asleep`` reads nothing."""
        readings: list[int] = []
        if asleep:
            yield readings
            return
        over = threading.Event()

        def watch() -> None:
            while not over.wait(READING_S):
                if (use := kv_use_ppm(self._scrape())) is not None:
                    readings.append(use)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield readings
        finally:
            over.set()
            thread.join()


@contextlib.contextmanager
def apart() -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The cores of server and client; nothing where there are too few, and both have all.

    Clients that are at work at once on this host have a core each, also those of other runs: on one core each would
    stamp late what comes while the other works. At most half of the cores are theirs.
    """
    cores = sorted(os.sched_getaffinity(0))
    for client_core in reversed(cores[len(cores) // 2 :] if usable_cores() >= LEAST_CORES else ()):
        with held_alone(f"client-core-{client_core}", "a client of a server") as is_ours:
            if is_ours:
                yield tuple(core for core in cores if core != client_core), (client_core,)
                return
    yield (), ()


def package_versions(job: Job) -> dict[str, str]:
    """What the subject's interpreter has installed; empty where it does not say."""
    log = job.folder / VERSIONS_LOG
    child = spawn(
        [job.subject.python, str(VERSIONS)], environment=engine_environment(job), owner=job.owner, log=log,
        folder=job.folder,
    )  # fmt: skip
    try:
        child.wait(VERSIONS_S)
    finally:
        child.end()
    try:
        with log.open("rb") as stream:
            said = parse_json(stream.read(MOST_SAID).splitlines()[-1], MANIFEST)
    except (OSError, ValueError, IndexError):
        return {}
    return _versions(said) if isinstance(said, dict) else {}


def _versions(said: Mapping[str, Any]) -> dict[str, str]:
    """Names and versions that a record may hold."""
    return {
        name: version
        for name, version in islice(said.items(), MAX_VERSIONS)
        if isinstance(version, str) and max(len(name), len(version)) <= MAX_VERSION and f"{name}{version}".isprintable()
    }
