"""Whole runs on stand-ins for vLLM whose sides differ by a folder of ``path=`` that no process of an engine uses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from conftest import CONFIG
from perfgate_process import stub_words
from stub_engine import bare_python

from perfgate.cli.main import main
from perfgate.metrics.trial import Trial
from perfgate.record.run_record import Record, read_records, read_run

STUB_SERVER = Path(__file__).parent / "stub_server.py"
SERVER = """
schema: 1
name: served
engine: {driver: server, model: {config: model}, env: {PERFGATE_PROBE: "0"}}
workload: {arrival: {constant: 200}, requests: 10, input_tokens: 5, output_tokens: 4}
measure: {warmup_iterations: 1, iterations: 1, start_timeout: 60s, iteration_timeout: 20s, looks: [4]}
gates: [{metric: itl_median, ignorable: 900%, must_catch: 1000%}]
"""
API_SERVER = f"""
import multiprocessing, runpy, sys
from vllm.engine_core import run
def main():
    ready = multiprocessing.get_context("spawn").Barrier(2)
    core = multiprocessing.get_context("spawn").Process(target=run, args=(ready,), name="EngineCore", daemon=True)
    core.start()
    ready.wait()
    sys.argv = [{str(STUB_SERVER)!r}, "--port", sys.argv[sys.argv.index("--port") + 1]]
    runpy.run_path({str(STUB_SERVER)!r}, run_name="__main__")
if __name__ == "__main__":
    main()
"""
TORCH = "import types\ncuda = types.SimpleNamespace(is_initialized=lambda: False)\n"
ENGINE_CORE = """
import importlib, os, signal
def run(ready):
    if module := os.environ.get("CORE_IMPORTS"):
        importlib.import_module(module)
    if os.environ.get("CORE_IS_SILENT"):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 9])
    ready.wait()
    while True:
        signal.pause()
"""


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A clean source folder of a plugin: no metadata, so no entry point, so nobody imports it."""
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "my_plugin.py").write_text("def register(): ...\n")
    return folder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, never_late: None) -> Callable[..., Result]:  # noqa: ARG001
    """A function that has the stand-in measured; both sides have its folder unless the head names others."""
    words = stub_words(tmp_path)
    base = words[: words.index("--head")]
    monkeypatch.chdir(tmp_path)

    def start(*more: str, with_path: bool = True) -> Result:
        return CliRunner().invoke(main, ["run", *(base if with_path else base[:-2]), "--seed", "1", *more])

    return start


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, never_late: None) -> Callable[..., Result]:  # noqa: ARG001
    """The same of a server of two processes."""
    package = tmp_path / "stub" / "vllm"
    (package / "entrypoints" / "openai").mkdir(parents=True)
    (package / "entrypoints" / "cli").mkdir()
    for folder in [package, *package.rglob("*")]:
        (folder / "__init__.py").touch()
    (package / "engine_core.py").write_text(ENGINE_CORE)
    (package / "entrypoints" / "openai" / "api_server.py").write_text(API_SERVER)
    (package / "entrypoints" / "cli" / "main.py").write_text("from vllm.entrypoints.openai.api_server import main\n")
    (package.parent / "torch.py").write_text(TORCH)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "perfgate.toml").touch()
    (tmp_path / "scenario.yaml").write_text(SERVER)
    monkeypatch.chdir(tmp_path)

    python = bare_python(tmp_path / "env")

    def start(*more: str) -> Result:
        base = ["--base", f"python={python}", "--base", f"path={package.parent}"]
        return CliRunner().invoke(main, ["run", "scenario.yaml", *base, "--seed", "1", *more])

    return start


def record() -> Record:
    """The record of the only cell of the only run below this folder."""
    (folder,) = (Path.cwd() / "runs").iterdir()
    (found,) = read_records(folder, read_run(folder))
    return found


def used(trial: Trial) -> list[tuple[str, list[bool] | None]]:
    """Which folders each process of a trial used."""
    assert trial.used is not None
    return [
        (process.process, None if process.folders is None else [one.used for one in process.folders])
        for process in trial.used
    ]


@pytest.mark.parametrize("more", [(), ("--profile-only",)], ids=["timed", "called"])
def test_a_folder_beside_the_engine(run: Callable[..., Result], plain: Path, tmp_path: Path, more: tuple[str]) -> None:
    """Not measured, after the first trial of each side: the folder is named though the tree beside it was used."""
    if more:
        scenario = tmp_path / "scenario.yaml"
        scenario.write_text(scenario.read_text() + "calls: {ignorable: 1ms}\n")
    ended = run("--head", f"path={plain}:{tmp_path / 'stub'}", *more)

    assert ended.exit_code == 22, ended.output
    assert f"head by path={plain} (1 engine)" in ended.output
    assert "path-unused" in ended.output
    assert len(record().trials) == 2
    assert [used(trial) for trial in record().trials if trial.subject == "head"] == [[("MainProcess", [False, True])]]


def test_a_plain_folder(run: Callable[..., Result], plain: Path, tmp_path: Path) -> None:
    """The same where the interpreter has the engine, and the folder is all that the head has."""
    scenario = tmp_path / "scenario.yaml"
    with_engine = f"STUB_MODE: none, PYTHONPATH: {tmp_path}/stub"
    scenario.write_text(scenario.read_text().replace("STUB_MODE: none", with_engine))
    ended = run("--head", f"path={plain}", with_path=False)

    assert ended.exit_code == 22, ended.output
    assert f"head by path={plain} (1 engine)" in ended.output


def test_folders_that_are_used_or_hold_data(run: Callable[..., Result], plain: Path, tmp_path: Path) -> None:
    """A module that Python itself imports is use enough; a folder that is declared as data needs none."""
    (plain / "sitecustomize.py").touch()
    data = tmp_path / "data"
    data.mkdir()
    ended = run("--head", f"path={plain}:{data},data:{tmp_path / 'stub'}", "--quick")

    assert ended.exit_code == 20, ended.output
    assert "path-unused" not in ended.output
    assert record().subjects["head"].data == (str(data),)


def test_a_side_that_differs_in_more(run: Callable[..., Result], plain: Path, tmp_path: Path) -> None:
    """What else differs is measured; the folder is a caution."""
    ended = run("--head", f"path={plain}:{tmp_path / 'stub'}", "--head", "env.MORE=1", "--quick")

    assert ended.exit_code == 20, ended.output
    assert "path-unused" in ended.output


@pytest.mark.slow
def test_several_heads(run: Callable[..., Result], plain: Path, tmp_path: Path) -> None:
    """The head with the folder is not measured, and goes no further; the other one is."""
    ended = run("--head", f"bare:path={plain}:{tmp_path / 'stub'}", "--head", "other:env.MORE=1")

    assert ended.exit_code == 22, ended.output
    taken = [trial.label for trial in record().trials]
    assert (taken.count("bare"), taken.count("other")) == (1, 5)


@pytest.mark.slow
def test_a_server(serve: Callable[..., Result], plain: Path, tmp_path: Path) -> None:
    """Not measured: each of its processes said that it used nothing of the folder."""
    ended = serve("--head", f"path={plain}:{tmp_path / 'stub'}")

    assert ended.exit_code == 22, ended.output
    assert f"head by path={plain} (1 engine)" in ended.output
    (head,) = (trial for trial in record().trials if trial.subject == "head")
    assert sorted(used(head)) == [("EngineCore", [False, True]), ("MainProcess", [False, True])]
    assert not [*(tmp_path / "runs").rglob("*use*.json")]


def test_a_server_of_which_one_process_uses_it(serve: Callable[..., Result], plain: Path, tmp_path: Path) -> None:
    """What the engine's process alone has imported is used."""
    ended = serve("--head", f"path={plain}:{tmp_path / 'stub'}", "--head", "env.CORE_IMPORTS=my_plugin", "--quick")

    assert ended.exit_code == 20, ended.output
    assert "path-u" not in ended.output


@pytest.mark.slow
def test_a_server_of_which_a_process_does_not_tell(
    serve: Callable[..., Result], plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not claimed that nothing used the folder; the caution says that nobody knows."""
    monkeypatch.setattr("perfgate.load.server_use.ANSWER_S", 0.5)
    ended = serve("--head", f"path={plain}:{tmp_path / 'stub'}", "--base", "env.CORE_IS_SILENT=1")

    assert ended.exit_code == 0, ended.output
    assert "load-unproven" in ended.output
    assert "path-unused" not in ended.output
