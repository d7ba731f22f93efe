"""A server is started, driven and ended, and whatever goes wrong with it has a name."""

from __future__ import annotations

import gzip
import json
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from conftest import CONFIG

from perfgate.capture.job import Job
from perfgate.capture.server_process import as_options, free_port, server_command
from perfgate.capture.trial_taking import EngineCollector
from perfgate.machine.processes import is_alive
from perfgate.metrics.catalogue import trial_value
from perfgate.metrics.trial import Trial
from perfgate.record.run_record import Record
from perfgate.scenario.declaration import loads
from perfgate.scenario.plan import resolve_cells
from perfgate.scenario.subject import Subject
from perfgate.verification import _tells

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
def collect(tmp_path: Path, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> Collect:
    """A function that takes a trial of a stub server with some options; a busy machine makes no client late here."""
    monkeypatch.setattr("perfgate.load.exchange.LATEST_NS", 10**10)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "perfgate.toml").touch()

    def take(warmup: int = 0, requests: int = 10, **options: object) -> tuple[Trial, Job]:
        text = TEXT.format(step_us=STEP_US, stub=STUB, warmup=warmup, requests=requests)
        (cell,) = resolve_cells(loads(text, tmp_path / "tiny.yaml"))
        job = make_job(cell, Subject(python=sys.executable, args=options))
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
        ("dies", "engine-died", "the server ended with status 3"),
        ("dies, child stays", "engine-died", "the server ended with status 4"),
        ("hangs", "iteration-timeout", "request 4"),
        ("500", "iteration-failed", "500"),
        ("half a stream", "iteration-failed", "request 4"),
        ("short", "wrong-token-count", "request 4 got 3 tokens, expected 4"),
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


def test_a_port_is_one_that_nobody_listens_on() -> None:
    """Two servers of one process do not get the same."""
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        assert free_port() != taken.getsockname()[1]


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
    words = [server_command(replace(job, cell=cell), 80) for cell in cells]

    at = words[0].index("--lora-modules")
    name, _, folder = words[0][at + 2].partition("=")
    assert (name, words[0][at - 5 : at]) == ("two", ["--enable-lora", "--max-lora-rank", "16", "--max-loras", "2"])
    assert (Path(folder) / "adapter_model.safetensors").exists()
    assert "--enable-lora" not in words[1]
