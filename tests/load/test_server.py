"""A server is started, driven and ended, and whatever goes wrong with it has a name."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import psutil
import pytest
from conftest import CONFIG
from hand_made import cell

from perfgate.capture.driver_protocol import Launch
from perfgate.capture.job import Job
from perfgate.capture.timeline import InvalidTrialError
from perfgate.capture.trial_taking import EngineCollector
from perfgate.load.arrival_trace import keep_trace
from perfgate.load.server_driver import ServerDriver, apart, package_versions
from perfgate.load.server_http import fetch, probes, read_ranks, served_name
from perfgate.load.server_process import as_options, own_port, served_words, server_command
from perfgate.machine.processes import is_alive
from perfgate.metrics.catalogue import trial_value
from perfgate.metrics.trial import Probes, Trial
from perfgate.record.run_record import Record
from perfgate.scenario.declaration import loads
from perfgate.scenario.plan import Cell, resolve_cells
from perfgate.scenario.subject import Subject
from perfgate.verify.verification import _tells

STUB = Path(__file__).parents[1] / "stub_server.py"
STEP_US = 2000
TEXT = """
schema: 1
name: tiny
engine:
  driver: server
  model: {{config: model}}
  args: {{step_us: {step_us}}}
  command: ["{{python}}", "{stub}", --port, "{{port}}"]
workload: {{arrival: {{constant: 200}}, requests: {requests}, input_tokens: 5, output_tokens: 4}}
measure: {{warmup_iterations: {warmup}, iterations: 1, start_timeout: 8s, iteration_timeout: 2s}}
gates: [{{metric: itl_median, ignorable: 10%, must_catch: 50%}}]
"""

Collect = Callable[..., tuple[Trial, Job]]


@pytest.fixture
def collect(tmp_path: Path, make_job: Callable[..., Job], never_late: None) -> Collect:  # noqa: ARG001 (a limit)
    """A function that takes a trial of a stub server with some options."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "perfgate.toml").touch()

    def take(warmup: int = 0, requests: int = 10, trace: Path | None = None, **options: object) -> tuple[Trial, Job]:
        text = TEXT.format(step_us=STEP_US, stub=STUB, warmup=warmup, requests=requests)
        (cell,) = resolve_cells(loads(text, tmp_path / "tiny.yaml"))
        job = make_job(cell, Subject(python=sys.executable, args=options))
        if trace is not None:
            keep_trace(job.run_folder, trace)
        return EngineCollector().collect(job, lambda _: None), job

    return take


def alive(job: Job) -> list[psutil.Process]:
    """Processes that carry the marks of a trial's run."""
    return [process for process in psutil.process_iter(["environ"])
            if job.owner in (process.info["environ"] or {}).values() and is_alive(process)]  # fmt: skip


def test_a_trial_of_a_server(collect: Collect) -> None:
    """Its windows are iterations, what the server counted are figures, and its timeline tells the same again."""
    trial, job = collect(warmup=1)

    assert trial.failure is None
    (window,) = trial.iterations
    assert (len(window.ttft_ns), window.lengths, window.output_tokens) == (10, (4,) * 10, 0)
    assert len(window.itl_ns) == 3 * 10
    assert (trial_value("itl_median", trial) or 0) > STEP_US / 2e6
    assert (trial.figures["queued"], trial.figures["preemptions"]) == (10, 10)
    assert trial_value("queue_time", trial) == pytest.approx(0.004)
    assert trial_value("goodput[e2e<=5s]", trial) == trial_value("request_throughput", trial)
    assert (trial.versions["server"], trial.startup and trial.startup.kv_token_capacity) == ("9.9.stub", 160)
    assert trial.timeline is not None
    file = job.run_folder / trial.timeline.path
    lines = gzip.decompress(file.read_bytes()).splitlines()
    assert [json.loads(line)["warmup"] for line in lines] == [True, False]
    assert _tells(file, Record(cell=job.cell, subjects={"base": job.subject}, seed=0, trials=(trial,)), trial)
    assert "stopped" in (job.folder / "engine.log").read_text()
    assert not alive(job)


@pytest.mark.parametrize(
    ("mode", "code", "said"),
    [
        ("does not start", "engine-start-failed", "no memory for the cache blocks"),
        ("dies", "engine-failed", "the server ended with status 3"),
        ("dies, child stays", "engine-failed", "the server ended with status 4"),
        ("hangs", "engine-failed", "request 4"),
        ("500", "engine-failed", "500"),
        ("half a stream", "engine-failed", "request 4"),
        ("short", "request-failed", "request 4 got 3 tokens, expected 4"),
    ],
)
def test_what_goes_wrong_has_a_name(collect: Collect, mode: str, code: str, said: str) -> None:
    """The trial fails with what the server did, its log is kept, and nothing of it is left running."""
    trial, job = collect(mode=mode)

    assert trial.failure is not None
    assert trial.failure.code == code, trial.failure.text
    assert said in trial.failure.text
    assert (job.folder / "engine.log").exists()
    assert not alive(job)


def test_a_request_that_was_dropped_is_told(collect: Collect) -> None:
    """It was sent again, and the trial counts: it may have met the end of an idle connection."""
    trial, _ = collect(mode="drops a request")
    assert trial.failure is None, trial.failure
    assert "requests-sent-twice" in trial.cautions


@pytest.mark.parametrize(("tells", "by"), [("usage", 1), ("usage alone", 1), ("the total", 2)])
def test_a_server_that_tells_no_token_ids(collect: Collect, tells: str, by: int) -> None:
    """Warm-up asks for usage in each event, and else counts events where the usage agrees; the trial says by which."""
    trial, _ = collect(warmup=1, tells=tells)

    assert trial.failure is None, trial.failure
    assert [window.lengths for window in trial.iterations] == [(4,) * 10]
    assert trial.figures["counted_by"] == by


def test_tokens_that_nobody_counts(collect: Collect) -> None:
    """Without warm-up there is nothing to find out by, and the trial fails with what the server does not tell."""
    trial, _ = collect(tells="usage")

    assert trial.failure is not None
    assert "tells neither token ids nor usage" in trial.failure.text


def test_a_trace_is_replayed_to_a_server(collect: Collect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requests have the recorded lengths."""
    rows = [{"timestamp": 2 * at, "input_length": 5, "output_length": 2 + at} for at in range(4)]
    (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, rows)))
    recorded = "{{replay: {{file: chat.jsonl}}}}, requests: {requests}}}"
    text = TEXT.replace("{{constant: 200}}, requests: {requests}, input_tokens: 5, output_tokens: 4}}", recorded)
    monkeypatch.setattr("test_server.TEXT", text)
    trial, _ = collect(requests=3, trace=tmp_path / "chat.jsonl")
    assert trial.failure is None, trial.failure
    assert [window.lengths for window in trial.iterations] == [(2, 3, 4)]


def test_a_failure_is_told_with_the_log(collect: Collect) -> None:
    """The server's own words stand behind those of the client."""
    trial, _ = collect(mode="500")
    assert trial.failure is not None
    assert "RuntimeError: the scheduler broke" in trial.failure.text


def test_arguments_are_options_of_a_command_line() -> None:
    """Switches have a name for off, what is nested is JSON, and nothing is nothing."""
    arguments = {"max_num_seqs": 8, "enable_prefix_caching": False, "enforce_eager": True, "dtype": "bfloat16",
                 "compilation_config": {"mode": 0}, "lora_modules": ["a=b", "c=d"], "seed": None}  # fmt: skip
    assert as_options(arguments) == [
        "--max-num-seqs", "8", "--no-enable-prefix-caching", "--enforce-eager", "--dtype", "bfloat16",
        "--compilation-config", '{"mode": 0}', "--lora-modules", "a=b", "c=d",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cores", "cautions"), [(((), ()), ("client-shares-cores",)), (((), tuple(os.sched_getaffinity(0))[:1]), ())]
)
def test_a_client_without_a_core_of_its_own_is_told_of(
    collect: Collect, monkeypatch: pytest.MonkeyPatch, cores: tuple[tuple[int, ...], ...], cautions: tuple[str, ...]
) -> None:
    """The trial counts, with the caution that client and server were not apart."""
    monkeypatch.setattr("perfgate.load.server_driver.apart", lambda: contextlib.nullcontext(cores))
    trial, _ = collect()
    assert (trial.failure, trial.cautions) == (None, cautions)


def test_clients_at_work_at_once_have_a_core_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Which the servers of theirs have not; where half of the cores are taken, all may use all."""
    monkeypatch.setattr("perfgate.load.server_process.state_folder", lambda: tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    monkeypatch.setattr("perfgate.load.server_driver.usable_cores", lambda: 4)
    with contextlib.ExitStack() as at_work:
        found = [at_work.enter_context(apart()) for _ in range(3)]
    assert [client for _, client in found] == [(3,), (2,), ()]
    assert all({*server} | {*client} == set(range(4)) and len(server) == 3 for server, client in found[:2])
    with apart() as (_, client):
        assert client == (3,)


def test_both_sides_have_the_same_cores(
    monkeypatch: pytest.MonkeyPatch, make_cell: Callable[..., Cell], make_job: Callable[..., Job]
) -> None:
    """A driver keeps those of its first server until it is released, whatever becomes free meanwhile."""
    given = iter([((0, 1), (2,)), ((0,), (1,))])
    monkeypatch.setattr("perfgate.load.server_driver.apart", lambda: contextlib.nullcontext(next(given)))
    seen: list[tuple[int, ...]] = []

    @contextlib.contextmanager
    def client(_folder: Path, _owner: str, cores: tuple[int, ...]) -> Iterator[None]:
        seen.append(cores)
        yield None

    monkeypatch.setattr("perfgate.load.server_driver.Client", client)
    monkeypatch.setattr("perfgate.load.server_driver.RunningServer", MagicMock())
    monkeypatch.setattr("perfgate.load.server_driver.ServedEngine", MagicMock())
    job = make_job(make_cell(), Subject(python="", url="http://127.0.0.1:1"))
    driver = ServerDriver()
    for _ in range(2):
        with driver.start(job, Launch()):
            pass
    driver.release()
    with driver.start(job, Launch()):
        pass

    assert seen == [(2,), (2,), (1,)]


def test_a_port_is_one_that_nobody_has() -> None:
    """Neither one that listens, nor a server of perfgate that has yet to."""
    with own_port() as first, socket.create_server(("127.0.0.1", first - 1)), own_port() as second:
        assert (first - first // 16 * 16, second) == (15, first - 2)
    with own_port() as again:
        assert again == first


@pytest.fixture
def answering() -> Iterator[Callable[..., str]]:
    """A function that has a server send these pieces, one every 10 ms, and gives its URL."""
    over = threading.Event()
    threads: list[threading.Thread] = []

    def send(listening: socket.socket, pieces: Iterable[bytes]) -> None:
        with listening, contextlib.suppress(OSError):
            connection, _ = listening.accept()
            with connection:
                for piece in pieces:
                    connection.sendall(piece)
                    if over.wait(0.01):
                        return

    def begin(*pieces: bytes, last: bytes = b"") -> str:
        listening = socket.create_server(("127.0.0.1", 0))
        endless = itertools.chain(pieces, itertools.repeat(last) if last else ())
        threads.append(threading.Thread(target=send, args=(listening, endless)))
        threads[-1].start()
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    yield begin
    over.set()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("last", [b"x", b"HTTP/1.1 100 Continue\r\n\r\n"])
@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nx: ", b"HTTP/1.1 200 OK\r\n\r\n", b""])
def test_a_server_that_never_comes_to_an_end_of_its_answer(
    answering: Callable[..., str], monkeypatch: pytest.MonkeyPatch, head: bytes, last: bytes
) -> None:
    """It has a time for all of it, however often it says a little."""
    monkeypatch.setattr("perfgate.load.server_http.ASK_S", 0.1)
    assert fetch(answering(head, last=last), "/metrics") == (0, b"")


def test_a_server_without_a_usable_name_for_its_model(answering: Callable[..., str]) -> None:
    """Half a surrogate pair could not be sent to it, nor be kept."""
    body = b'{"data": [{"id": "\\ud800"}]}'
    url = answering(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    with pytest.raises(InvalidTrialError, match="names no model"):
        served_name(url)


@pytest.mark.parametrize(
    ("status", "said", "readings"),
    [
        (b"200 OK", b'{"results": ["179000", "215000"]}', (179_000, 215_000)),
        (b"200 OK", b'{"results": ["215000"]}', ()),
        (b"200 OK", b'{"results": ["179000", "215000", "179000"]}', ()),
        (b"200 OK", b'{"results": ["179000", "RuntimeError: CUDA error"]}', ()),
        (b"200 OK", b'{"results": ["179000", null]}', ()),
        (b"200 OK", b'{"results": ["179000", "0"]}', ()),
        (b"200 OK", b'{"results": ["179000", "9223372036854775808"]}', ()),
        (b"200 OK", b'{"results": ["179000", "%b"]}' % (b"9" * 5000), ()),
        (b"200 OK", b'{"results": []}', ()),
        (b"200 OK", b'{"results": "179000"}', ()),
        (b"200 OK", b"[179000, 179000]", ()),
        (b"200 OK", b"no JSON", ()),
        (b"404 Not Found", b'{"results": ["179000", "215000"]}', ()),
    ],
)
def test_what_ranks_answer_may_be_anything(
    answering: Callable[..., str], status: bytes, said: bytes, readings: tuple[int, ...]
) -> None:
    """A reading of each of two ranks counts; of one alone, an error, or whatever else a server says, counts as none."""
    url = answering(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(said), said))
    assert read_ranks(url, 2) == readings


@pytest.mark.parametrize(
    ("readings", "known"),
    [([(1,), (2,)], Probes((1,), (2,))), ([(1,), ()], None), ([(1, 2), (3,)], None), ([(1,)], None), ([], None)],
)
def test_a_window_has_readings_of_the_same_ranks(readings: list[tuple[int, ...]], known: Probes | None) -> None:
    """Before and after it, or none."""
    assert probes(readings) == known


@pytest.mark.parametrize(
    "said", ['{"vllm": "1\\ud800", "torch": "2.9"}', "[" * 60_000, "[1]", "", '{"torch": "2.9", "vllm": 5}']
)
def test_what_an_interpreter_says_of_its_packages_may_be_anything(
    tmp_path: Path, make_job: Callable[..., Job], said: str
) -> None:
    """What a record cannot hold is left out."""
    (tmp_path / "said").write_text(said)
    (tmp_path / "python").write_text(f"#!/bin/sh\ncat '{tmp_path}/said'\n")
    (tmp_path / "python").chmod(0o755)
    job = make_job(cell(), Subject(python=str(tmp_path / "python")))
    assert package_versions(job) == ({"torch": "2.9"} if "torch" in said else {})


def test_a_dummy_model_has_the_adapters_that_its_load_names(tmp_path: Path, make_job: Callable[..., Job]) -> None:
    """They are made for it and named to the server; where the scenario has a command of its own, that names them."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "perfgate.toml").touch()
    text = TEXT.format(step_us=STEP_US, stub=STUB, warmup=0, requests=4)
    text = text.replace("output_tokens: 4", "output_tokens: 4, lora: {names: [one, two]}")
    plain = "".join(line for line in text.splitlines(keepends=True) if "command:" not in line)
    cells = [resolve_cells(loads(scenario, tmp_path / "tiny.yaml"))[0] for scenario in (plain, text)]
    job = make_job(cells[0], Subject(python=sys.executable))
    words = [served_words(replace(job, cell=cells[0]), 80), server_command(replace(job, cell=cells[1]), 80)]

    at = words[0].index("--lora-modules")
    name, _, folder = words[0][at + 2].partition("=")
    before = (Path(folder) / "adapter_model.safetensors").stat()
    assert served_words(replace(job, cell=cells[0]), 80) == words[0]
    assert (Path(folder) / "adapter_model.safetensors").stat() == before, "made once a visit"
    assert not Path(folder).is_relative_to(job.folder)
    assert (name, words[0][at - 5 : at]) == ("two", ["--enable-lora", "--max-lora-rank", "16", "--max-loras", "2"])
    assert (Path(folder) / "adapter_model.safetensors").exists()
    assert "--enable-lora" not in words[1]
