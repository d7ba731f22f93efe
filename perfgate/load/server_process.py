"""A server of the subject: its command, its port, and its life from a process to an answer on ``/health``."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from perfgate.capture.engine import APART, BLOCKS, FIRST_PORT, LOG, PORTS, engine_environment
from perfgate.capture.job import Job
from perfgate.capture.timeline import InvalidTrialError
from perfgate.capture.worker import Limit, Worker, signal_name
from perfgate.errors import InterruptedRunError
from perfgate.load.dummy_files import RANK, with_tokenizer, write_adapters
from perfgate.load.server_http import DEVELOPMENT, EXTENSION, is_probed, is_ready
from perfgate.load.server_use import ask_processes
from perfgate.load.shape import Load
from perfgate.machine.children import Child, spawn
from perfgate.machine.locks import hold_named, state_folder
from perfgate.metrics.path_use import ProcessUse
from perfgate.metrics.transformer import read_config

VLLM: Final = Path(__file__).with_name("vllm_server.py")
HOST: Final = "127.0.0.1"
POLL_S: Final = 0.02
"""So often a server that starts is asked whether it is ready."""
IN_PROCESS: Final = "VLLM_ENABLE_V1_MULTIPROCESSING"
"""What :mod:`perfgate.capture.engine` sets for its worker; a server is measured as it ships."""


class RunningServer:
    """A server that somebody else started, and ends.

    Args:
        url: Where it is.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def require(self) -> None:
        """See that it is there.

        Raises:
            InvalidTrialError: It does not say that it is ready.
        """
        if not is_ready(self.url):
            raise InvalidTrialError("engine-start-failed", f"no server says at {self.url} that it is ready")

    def ended(self, wait_s: float) -> str:
        """Nobody here knows whether it ended, however long they wait."""
        del wait_s
        return ""

    def used(self) -> tuple[ProcessUse, ...]:
        """Nobody knows its processes."""
        return ()

    def stop(self, wait_s: float) -> None:
        """It goes on."""


class ServerWorker(Worker):
    """A server of vLLM that has yet to be told what it serves; it can import before that.

    Args:
        job: The trial.
        cores: The cores it may use; empty for all.
    """

    program = VLLM
    noun = "server"

    def __init__(self, job: Job, cores: tuple[int, ...] = ()) -> None:
        super().__init__(job, _pinned(cores))
        self._environment = server_environment(job)


class Server:
    """A server: started on entry, ended with all its descendants on exit.

    Args:
        job: The trial.
        port: Where it is to listen.
        limit: Until when it has to be ready.
        cores: The cores it may use; empty for all.
        ahead: One of vLLM that was started ahead of its trial, and imported.
    """

    def __init__(
        self, job: Job, port: int, limit: Limit, cores: tuple[int, ...] = (), ahead: Worker | None = None
    ) -> None:
        self._job = job
        self.port = port
        self.url = f"http://{HOST}:{port}"
        self._limit = limit
        self._cores = cores
        self._ahead = ahead
        self._born_ns = 0
        self.imported_ns = 0
        """How long it imported, of one that did so ahead of its trial."""
        self.parked_ns = 0
        """How long it then waited for its trial."""

    def __enter__(self) -> Self:
        """Start the process; it is not ready yet."""
        self._child = self._started() if self._job.cell.engine.command else self._told()
        return self

    def _started(self) -> Child:
        """That of the scenario's command."""
        job, command = self._job, [*_pinned(self._cores), *server_command(self._job, self.port)]
        self._born_ns = time.monotonic_ns()
        try:
            return spawn(
                command, environment=server_environment(job), owner=job.owner, log=job.folder / LOG, folder=job.folder
            )
        except OSError as error:
            if error.filename != command[0]:
                raise
            raise InvalidTrialError("subject-not-found", f"{command[0]}: {error.strerror}") from error

    def _told(self) -> Child:
        """That of vLLM, which is told what to serve."""
        with contextlib.ExitStack() as stack:
            if self._ahead is not None:
                stack.push(self._ahead)
            words = served_words(self._job, self.port)
            if (worker := self._ahead) is None:
                worker = stack.enter_context(ServerWorker(self._job, self._cores))
            else:
                worker.resume()  # its start does not count what was done since it was taken
                self.parked_ns = worker.parked_ns
                self.imported_ns = worker.imported_ns - worker.born_ns - worker.paused_ns
            self._born_ns = worker.born_ns + worker.paused_ns
            worker.request("serve", self._limit, words=words)
            stack.pop_all()
        return worker.hand_over()

    def age_ns(self) -> int:
        """Time since its process was started, without that for which it was stopped or parked."""
        return time.monotonic_ns() - self._born_ns - self.parked_ns

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End it, and whatever it started.

        Raises:
            InvalidTrialError: ``process-left``: something does not end, where nothing worse was raised.
        """
        left = self._child.end()
        if left and error is None:
            raise InvalidTrialError("process-left", f"still alive: {'; '.join(map(str, left))}")

    def await_ready(self) -> None:
        """Wait until it says that it is ready.

        Raises:
            InvalidTrialError: It ended instead, or was not in time.
        """
        while time.monotonic() < self._limit.deadline_s:
            if ended := self.ended(0):
                raise InvalidTrialError(self._limit.ended, f"the server {ended}")
            if is_ready(self.url):
                return
            time.sleep(POLL_S)
        raise InvalidTrialError(self._limit.late, f"not ready within {self._job.cell.measure.start_timeout:g} s")

    def ended(self, wait_s: float) -> str:
        """How it ended, in words, if it does so within some seconds; empty while it runs."""
        status = self._child.wait(wait_s)
        if status is None:
            return ""
        return f"was ended by {signal_name(-status)}" if status < 0 else f"ended with status {status}"

    def used(self) -> tuple[ProcessUse, ...]:
        """What each of its processes used of the subject's ``path=`` until now."""
        return ask_processes(self._job, self._child.below())

    def stop(self, wait_s: float) -> None:
        """Ask it to shut down, as Ctrl-C does, and wait.

        Raises:
            InvalidTrialError: It is still there.
        """
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child.pid, signal.SIGINT)
        if not self.ended(wait_s):
            text = f"the server is still there {wait_s:g} s after it was asked to stop"
            raise InvalidTrialError("engine-failed", text)


@contextlib.contextmanager
def own_port(station: int = 0) -> Iterator[int]:
    """A port that nobody listens on, of the station's own block; from its end, because engines begin at the other.

    No other run of perfgate gets it during the block. A server listens only once it has started, and two of vLLM's may
    then listen on one port (``SO_REUSEPORT``): each would answer half of the requests of both.

    Raises:
        InvalidTrialError: ``process-left``: somebody listens on each.
    """
    first = FIRST_PORT + PORTS * ((os.getpid() + APART * station) % BLOCKS)
    for port in range(first + PORTS - 1, first, -1):
        with held_alone(f"port-{port}", "a server") as is_ours:
            if is_ours and _is_free(port):
                yield port
                return
    raise InvalidTrialError("process-left", f"somebody listens on each port from {first + 1} to {first + PORTS - 1}")


@contextlib.contextmanager
def held_alone(name: str, doing: str) -> Iterator[bool]:
    """Whether nobody else on this host holds that name; held then while the block lasts."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(hold_named(state_folder(), name, doing, lambda _: None, 0.0))
        except InterruptedRunError:
            yield False
        else:
            yield True


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            tried.bind((HOST, port))
            return True
    return False


def _pinned(cores: tuple[int, ...]) -> list[str]:
    return ["taskset", "-c", ",".join(map(str, cores))] if cores and shutil.which("taskset") else []


def server_environment(job: Job) -> dict[str, str]:
    """The variables of a server: those of an engine, but that its processes are as many as it likes."""
    environment = engine_environment(job)
    if IN_PROCESS not in {**job.cell.engine.env, **job.subject.env}:
        environment.pop(IN_PROCESS, None)
    return {DEVELOPMENT: "1", **environment} if is_probed(job) else environment


def server_command(job: Job, port: int) -> list[str]:
    """The scenario's own command."""
    names = {"{port}": str(port), "{model}": str(_model(job)), "{python}": job.subject.python}
    return [*(_filled(word, names) for word in job.cell.engine.command or ()), *as_options(job.engine_args)]


def served_words(job: Job, port: int) -> list[str]:
    """What ``vllm serve`` is told: the model and its options."""
    model = job.cell.engine.model
    dummy = ["--load-format", "dummy"] if model.config is not None else []
    revision = ["--revision", model.revision] if model.revision else []
    probed = ["--worker-extension-cls", EXTENSION] if is_probed(job) else []
    named = ["--host", HOST, "--port", str(port), *dummy, *revision, *probed, *_adapters(job)]
    return [str(_model(job)), *named, *as_options(job.engine_args)]


def _adapters(job: Job) -> list[str]:
    """The dummy adapters that a load asks for, of a model with dummy weights; others are the scenario's to name."""
    load, folder = job.cell.workload, job.cell.model_folder
    if not isinstance(load, Load) or load.lora is None or folder is None or job.cell.engine.model.config is None:
        return []
    place = _beside_caches(job, "adapters")
    made = write_adapters(place, load.lora.names, read_config(Path(folder)))
    options = ["--enable-lora", "--max-lora-rank", str(RANK), "--max-loras", str(len(made))]
    return [*options, "--lora-modules", *(f"{name}={path}" for name, path in made.items())]


def as_options(arguments: Mapping[str, Any]) -> list[str]:
    """Engine arguments as a command line has them: ``--max-num-seqs 8``, ``--no-enable-prefix-caching``."""
    options: list[str] = []
    for name, value in arguments.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            options.append(f"--{option}" if value else f"--no-{option}")
        elif isinstance(value, list) and not any(isinstance(entry, list | dict) for entry in value):
            options += [f"--{option}", *map(_word, value)]
        elif value is not None:
            options += [f"--{option}", _word(value)]
    return options


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _filled(word: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        word = word.replace(name, value)
    return word


def _model(job: Job) -> Path | str:
    """The model's folder, with a tokenizer where its weights are dummies, or its name on the hub."""
    cell = job.cell
    if cell.model_folder is None:
        return cell.engine.model.hub or ""
    folder = Path(cell.model_folder)
    if cell.engine.model.config is None:
        return folder
    return with_tokenizer(folder, _beside_caches(job, "model"))


def _beside_caches(job: Job, what: str) -> Path:
    """A folder for what is made of a model once a visit, and goes with the compile caches."""
    return job.cache_folder.parent / f"{what}-{job.cell.model_digest[:12]}"
