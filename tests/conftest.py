"""Fixtures shared by the tests of capture: small cells, jobs, and where a real engine is."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fake_nvml as nvml_stand_in
import pytest
from browser import CHROMIUM, started
from fake_nvml import FakeMachine
from few_files import asked, linking
from filelock import FileLock
from forking_perfgate import forking
from hypothesis import settings
from playwright.sync_api import Browser
from terminal import Terminal

from perfgate.capture.compile_caches import VARIABLE
from perfgate.capture.engine import allowed_environment
from perfgate.capture.job import Job
from perfgate.capture.parking import SWITCH
from perfgate.machine import nvml
from perfgate.machine.clocks import ClockGuard
from perfgate.machine.cpu_load import CpuLoad
from perfgate.machine.locks import STATE
from perfgate.machine.nvml import NoDriverError, Nvml
from perfgate.machine.processes import owner_mark
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Kind
from perfgate.rooms import FOLDER, SHIPPED, tables
from perfgate.scenario.declaration import loads
from perfgate.scenario.plan import Cell, resolve_cells
from perfgate.scenario.subject import Subject

REMOVED = {*SHIPPED} - {*tables()}
"""Optional rooms that are not here, or need one that is not; none but in a copy that a test made."""
SHARED = ("tests", "benchmarks", "research", "docs")
"""Folders whose modules tests import."""
NEEDED = re.compile(r'^pytestmark = pytest\.mark\.needs\("(\w+)"\)', re.MULTILINE)
"""How a file says that it cannot even be collected without a room."""
ENGINE_PYTHON = "PERFGATE_ENGINE_PYTHON"
nvml_of_the_machine = vars(nvml)["pynvml"]

settings.register_profile("short", max_examples=12, derandomize=True, deadline=None, database=None)
settings.register_profile("long", max_examples=500, deadline=None, print_blob=True)
settings.register_profile("fuzz", max_examples=3000, deadline=None, print_blob=True)
# A change is tried on the same few inputs each time, the night on many others; a test may ask for a multiple.
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "short"))

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 688,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 2048,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""A Llama so small that it starts in seconds."""

ENGINE_ARGS = (
    "{dtype: bfloat16, max_model_len: 256, max_num_seqs: 4, enable_prefix_caching: false, enforce_eager: true, "
    "kv_cache_memory_bytes: 67108864}"
)


def pytest_configure() -> None:
    """SIGINT interrupts, though a shell has it ignored in background jobs and in the children they start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.pop("GITHUB_RUN_ATTEMPT", None)  # plans and shards of tests are of no job


@pytest.hookimpl(trylast=True)  # when -m has chosen
def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """A test goes with a room that it needs, wherever the test lies."""
    return True if REMOVED and collection_path.suffix == ".py" and _needs_a_removed_room(collection_path) else None


def _needs_a_removed_room(file: Path) -> bool:
    """Whether a file imports a room that was removed, or something that the tests share does for it."""
    files, needed = [file], set[str]()
    for each in files:
        text = each.read_text(encoding="utf-8")
        modules = re.findall(r"^ *(?:from|import) ([\w.]+)", text, re.MULTILINE)
        needed |= {*NEEDED.findall(text)} | {name.split(".")[1] for name in modules if name.startswith("perfgate.")}
        folders = (each.parent, *(FOLDER.parent / folder for folder in SHARED))
        shared = (folder / f"{name}.py" for folder in folders for name in modules)
        files += [place for place in shared if place.is_file() and place not in files]
    return bool(needed & REMOVED)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need an engine begin the parts that pytest-xdist hands its workers, those with most starts first.

    They take longest, and other tests fill the cores beside them. Where no engine is named they are skipped, with the
    way to run them. A test goes with an optional room that it says it needs.
    """
    if REMOVED:
        items[:] = [one for one in items if not any(REMOVED & {*mark.args} for mark in one.iter_markers("needs"))]
    engine = sorted(filter(engine_starts, items), key=engine_starts, reverse=True)
    if not os.environ.get(ENGINE_PYTHON):
        for item in engine:
            item.add_marker(pytest.mark.skip(reason=f"{ENGINE_PYTHON} names no interpreter that has vllm"))
    others = [item for item in items if not engine_starts(item)]
    parts: list[list[pytest.Item]] = [[] for _ in range(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))]
    for item in engine:
        min(parts, key=lambda part: sum(map(engine_starts, part))).append(item)
    left = len(items)
    for number, part in enumerate(parts):
        size = max(0, left // (len(parts) - number) - len(part))
        part.extend(others[:size])
        del others[:size]
        left -= len(part)
    items[:] = [item for part in parts for item in part]


def pytest_collection_finish() -> None:
    """What was collected is not searched for garbage anew while the tests run."""
    gc.collect()
    gc.freeze()


def engine_starts(item: pytest.Item) -> int:
    """How many engines a test starts, as its mark says."""
    mark = item.get_closest_marker("engine")
    return int(mark.kwargs["starts"]) if mark else 0


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--update-golden`` writes the golden files anew; read their diff before committing it."""
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/ anew instead of comparing")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """A function that compares a text with the file of that name in ``tests/golden``, or writes it anew."""
    folder = Path(__file__).parent / "golden"

    def compare(name: str, text: str) -> None:
        if request.config.getoption("--update-golden"):
            (folder / name).write_text(text, encoding="utf-8")
        assert text == (folder / name).read_text(encoding="utf-8"), f"if {name} is meant to change: --update-golden"

    return compare


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Terminal]]:
    """A function that opens a terminal of so many columns, with colours and nobody's CI."""
    for name, value in {"TERM": "xterm-256color", "COLORTERM": "", "CI": "", "NO_COLOR": "", "FORCE_COLOR": ""}.items():
        monkeypatch.setenv(name, value)
    opened: list[Terminal] = []

    def open_terminal(columns: int = 80, rows: int = 24) -> Terminal:
        opened.append(Terminal(columns, rows))
        return opened[-1]

    yield open_terminal
    for one in opened:
        one.close()


@pytest.fixture(autouse=True)
def state_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has host locks and leases of its own, so that tests at once do not wait for each other.

    Compile caches are not kept, unless a test names a folder.
    """
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv(STATE, str(folder))
    monkeypatch.setenv(VARIABLE, "0")
    return folder


@pytest.fixture(autouse=True)
def idle_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run takes a look at the cores, nor does doctor: what the other tests do with them is not to be warned of."""
    for module in ("capture.session", "doctor.machine_checks"):
        if module.partition(".")[0] not in REMOVED:
            monkeypatch.setattr(f"perfgate.{module}.look_at_cores", lambda: CpuLoad(0.0, 8))


@pytest.fixture(scope="session")
def shared_bytecode(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """What links bytecode in tests, see :mod:`few_files`."""
    return linking(tmp_path_factory.mktemp("bytecode"))


@pytest.fixture(autouse=True)
def few_files(monkeypatch: pytest.MonkeyPatch, shared_bytecode: Callable[..., None]) -> None:
    """What is installed beside the tests is of no build in them, see :mod:`few_files`."""
    monkeypatch.setattr("perfgate.capture.build_digest.ask", asked)
    monkeypatch.setattr("perfgate.capture.watched_builds.link_bytecode", shared_bytecode)


@pytest.fixture
def never_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """No client is late, however busy the machine is that the tests run on: neither with sending nor with reading."""
    for limit in ("LATEST_NS", "LATEST_READ_NS"):
        monkeypatch.setattr(f"perfgate.load.exchange.{limit}", 10**12)


@pytest.fixture(autouse=True)
def no_driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no driver but that of ``fake_nvml``, but for the mark ``gpu``: to ask for it takes a process a run."""

    def connected() -> Nvml:
        if vars(nvml)["pynvml"] is nvml_of_the_machine:
            raise NoDriverError("none in tests", code="gpu-unreadable")
        return Nvml()

    if not request.node.get_closest_marker("gpu"):
        monkeypatch.setattr(nvml, "Nvml", connected)


@pytest.fixture
def fake_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """A machine with one H200, in NVML's place; ``FakeMachine.build(fake_nvml.file, ...)`` makes another of it.

    Its pids are those of this namespace, also where the tests run in a container.
    """
    machine = FakeMachine.build(tmp_path / "nvml.json")
    monkeypatch.setenv(nvml_stand_in.STATE, str(machine.file))
    monkeypatch.setattr("perfgate.machine.nvml.pynvml", nvml_stand_in)
    monkeypatch.setattr("perfgate.machine.sampler.sees_host_pids", lambda: True)
    return machine


@pytest.fixture
def guard(fake_nvml: FakeMachine) -> Iterator[ClockGuard]:
    """A guard for a run named r; whatever a test does, signals are handled as before when it ends."""
    assert fake_nvml.file.exists()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with Nvml() as nvml:
        yield ClockGuard(nvml, "r")
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def engine_python() -> str:
    """The interpreter that has vllm; a name that leads nowhere is an error, no reason to skip."""
    python = os.environ[ENGINE_PYTHON]
    assert Path(python).is_file(), f"{ENGINE_PYTHON}={python} does not exist"
    return python


@pytest.fixture(scope="session")
def engine_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all engines share, those of other pytest workers too."""
    folder = tmp_path_factory.getbasetemp()
    return (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "engine-cache"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium, see :mod:`browser`; of a module, as nothing beside it in this process may use asyncio."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on PATH: apt install chromium")
    with started() as chromium:
        yield chromium


@pytest.fixture(scope="session")
def forked() -> Iterator[Path]:
    """A program ``perfgate`` that starts at once, see :mod:`forking_perfgate`."""
    with tempfile.TemporaryDirectory() as folder, forking(Path(folder)) as program:
        yield program


@pytest.fixture
def orphans_alone() -> Iterator[None]:
    """Holds a lock while a test makes orphans, lest one of another pytest process ends them."""
    with FileLock(Path(tempfile.gettempdir()) / "perfgate-tests-orphans.lock"):
        yield


@pytest.fixture(autouse=True)
def no_disk_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of a test needs to outlive the machine: some forty waits for a disk in each run are slower than the test.

    Tests of what is brought to the disk, and when, put a function of their own here.
    """
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(autouse=True)
def nobody_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials start their own workers, however many cores there are, unless a test says otherwise."""
    monkeypatch.setenv(SWITCH, "0")


@pytest.fixture(autouse=True)
def no_orphans(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session in this process finds no process of a dead run, unless its test holds ``orphans_alone``.

    The search goes through the whole machine: it would end the orphans of a test in another worker, or refuse to start
    beside them, and it takes longer than the trial of a fake. A process of perfgate's own that the test starts finds
    only what has the mark of such tests.
    """
    if "orphans_alone" not in request.fixturenames:
        monkeypatch.setenv("PERFGATE_TESTS_OWNER", "PERFGATE_TESTED_ALONGSIDE")
        for module in ("session", "station"):
            monkeypatch.setattr(f"perfgate.capture.{module}.end_orphans", lambda **_: ())
        monkeypatch.setattr("perfgate.capture.station.find_orphans", lambda _: ())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a test that gets one of its own; that for temporary files is ``kept`` below it."""
    (tmp_path / "kept").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "kept"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def make_cell(tmp_path: Path) -> Callable[..., Cell]:
    """A function that makes a cell of a tiny Llama from workload and measurement figures."""

    def make(  # noqa: PLR0913 (the figures of a scenario, by name)
        *,
        batch: int = 2,
        input_tokens: int = 4,
        output_tokens: int = 5,
        warmup_iterations: int = 1,
        iterations: int = 2,
        limits: str = "",
        env: str = "{}",
        args: str = ENGINE_ARGS,
        config: dict[str, Any] | None = None,
    ) -> Cell:
        model = tmp_path / "model"
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(json.dumps(CONFIG | (config or {})))
        (tmp_path / "perfgate.toml").touch()
        text = f"""
schema: 1
name: tiny
engine: {{model: {{config: model}}, args: {args}, env: {env}}}
workload: {{batch: {batch}, input_tokens: {input_tokens}, output_tokens: {output_tokens}}}
measure: {{warmup_iterations: {warmup_iterations}, iterations: {iterations}{limits}}}
gates: [{{metric: itl_median, ignorable: 10%, must_catch: 50%}}]
"""
        (cell,) = resolve_cells(loads(text, tmp_path / "tiny.yaml"))
        return cell

    return make


@pytest.fixture
def make_job(tmp_path: Path) -> Callable[..., Job]:
    """A function that makes the job of one trial, with a folder of its own for each index."""

    def make(cell: Cell, subject: Subject, index: int = 0, side: Side = "base", kind: Kind = "timed") -> Job:
        folder = tmp_path / "run" / "trials" / f"{index:03d}"
        folder.mkdir(parents=True)
        return Job(
            kind=kind,
            cell=cell,
            side=side,
            subject=subject,
            index=index,
            pair=index // 2,
            position=index % 2,
            visit=0,
            run_folder=tmp_path / "run",
            folder=folder,
            cache_folder=tmp_path / "cache",
            environment=allowed_environment(os.environ),
            owner=owner_mark("tests"),
        )

    return make


@pytest.fixture
def cache_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where caches are kept in this test."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture
def build_named(tmp_path: Path) -> Callable[[str], Subject]:
    """A function that makes an environment of that name: an interpreter, and one package."""

    def make(name: str) -> Subject:
        packages = tmp_path / name / "site-packages"
        (packages / "vllm").mkdir(parents=True)
        (packages / "vllm" / "__init__.py").write_text("version = 1\n")
        python = tmp_path / name / "python"
        answer = json.dumps(["3.12", [str(packages)], "/nowhere", "/nowhere", "", "/nowhere"])
        python.write_text(f"#!/bin/sh\necho '{answer}'\n")
        python.chmod(0o755)
        return Subject(python=str(python))

    return make
