"""Timed trials against the real worker and a stand-in engine, which misbehaves on request."""

from __future__ import annotations

import ast
import gzip
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from perfgate_process import DEADLINE_S
from stub_engine import write_stub

from perfgate.capture import vllm_driver
from perfgate.capture.driver_protocol import Launch
from perfgate.capture.engine import PORTS, allowed_environment, engine_environment
from perfgate.capture.job import Collector, Job
from perfgate.capture.parking import Parking
from perfgate.capture.timeline import InvalidTrialError, read_iteration
from perfgate.capture.trial_taking import MAX_FAILURE_CHARACTERS, EngineCollector
from perfgate.capture.worker import WORKER, Limit, Worker
from perfgate.machine.atomic_files import sha256_hex
from perfgate.machine.children import Child
from perfgate.machine.processes import CHILD, OWNER, Orphan, owner_mark
from perfgate.metrics.kinds import of_kinds
from perfgate.metrics.trial import Trial
from perfgate.record.run_record import Record
from perfgate.scenario.plan import Cell, prompts
from perfgate.scenario.subject import Subject
from perfgate.verify.verification import _tells

ROOT = Path(__file__).parents[2]
LIMITS = ", start_timeout: 20s, iteration_timeout: 20s"


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    """A folder for the module path that holds the stand-in."""
    write_stub(tmp_path / "stub")
    return tmp_path / "stub"


@pytest.fixture
def prepare(stub: Path, make_cell: Callable[..., Cell], make_job: Callable[..., Job]) -> Callable[..., Job]:
    """A function that makes a job whose engine is the stand-in in some mode."""

    def one(mode: str = "", limits: str = LIMITS, index: int = 0, **subject: Any) -> Job:
        env = {"STUB_MODE": mode, **subject.pop("env", {})}
        return make_job(
            make_cell(limits=limits, env="{FROM_SCENARIO: scenario, FROM_BOTH: scenario}"),
            Subject(**{"python": sys.executable, "path": (str(stub),), "env": env, **subject}),
            index,
        )

    return one


def collect(job: Job) -> Trial:
    """Take the trial, and see that nothing of it is left running."""
    collector: Collector = EngineCollector()
    trial = collector.collect(job, lambda _: None)
    assert remaining(job) == []
    return trial


def remaining(job: Job) -> list[psutil.Process]:
    """Live processes that were started in the trial's folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(job.folder):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_complete_trial(prepare: Callable[..., Job]) -> None:
    """A healthy engine yields the declared iterations, start-up costs and versions, and no failure."""
    job = prepare()
    trial = collect(job)
    assert trial.failure is None
    assert trial.cautions == ()
    assert len(trial.iterations) == 2
    assert [(len(i.ttft_ns), len(i.itl_ns), i.output_tokens) for i in trial.iterations] == [(2, 3, 5)] * 2
    assert (trial.versions["vllm"], trial.versions["torch"]) == ("9.9.stub", "8.8.stub")
    assert trial.startup is not None
    assert (trial.startup.model_memory_bytes, trial.startup.kv_token_capacity) == (8192, 160)
    assert 0 < trial.startup.import_ns + trial.startup.engine_ns < trial.startup.ready_ns < trial.duration_ns
    assert (trial.index, trial.pair, trial.position, trial.subject, trial.visit) == (0, 0, 0, "base", 0)
    assert (job.folder / "shut-down").exists()
    assert trial.memory is not None
    assert [size > 1 << 20 for size in trial.memory.resident] == [True, True]
    assert (trial.memory.allocated, trial.startup.kv_memory_bytes) == ((), None)


def test_path_of_which_nothing_is_imported(prepare: Callable[..., Job], stub: Path, tmp_path: Path) -> None:
    """A trial says of each folder of path= whether its engine imported a module of it, or one that it names."""
    plain = tmp_path / "plain"
    (plain / "my_plugin-0.1.dist-info").mkdir(parents=True)
    (plain / "my_plugin.py").write_text("def register(): ...\n")
    metadata = plain / "my_plugin-0.1.dist-info" / "METADATA"
    metadata.write_text("Metadata-Version: 2.1\nName: my-plugin\nVersion: 0.1\n")
    entry_points = metadata.with_name("entry_points.txt")
    elsewhere = {"PYTHONPATH": str(stub)}

    unused = prepare(path=(str(plain),), env=elsewhere)
    assert folders_used(collect(unused)) == [False]
    assert folders_used(collect(prepare(path=(str(plain), str(stub)), index=1))) == [False, True]
    entry_points.write_text("[vllm.general_plugins]\nmine = vllm.sampling_params:RequestOutputKind\n")
    assert folders_used(collect(prepare(path=(str(plain),), env=elsewhere, index=2))) == [True]


def test_ranks_that_tell_nothing(prepare: Callable[..., Job], stub: Path) -> None:
    """Where ranks are out of reach a process that does not tell is among those that do."""
    assert [one.folders for one in collect(prepare("no ranks", path=(str(stub),))).used or () if not one.state] == [
        None
    ]


def folders_used(trial: Trial) -> list[bool]:
    """Which folders the only process of a trial used."""
    (process,) = trial.used or ()
    return [folder.used for folder in process.folders or ()]


def test_tokens_digest(prepare: Callable[..., Job]) -> None:
    """The digest is SHA-256 over the token ids of each request in order of submission."""
    tokens = [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]]
    expected = hashlib.sha256(json.dumps(tokens, separators=(",", ":")).encode()).hexdigest()
    assert [i.tokens_digest for i in collect(prepare()).iterations] == [expected] * 2


def test_timeline_on_disk(prepare: Callable[..., Job]) -> None:
    """The compressed timeline holds every answer, warm-up included, and reads to the trial's iterations."""
    job = prepare()
    trial = collect(job)
    assert trial.timeline is not None
    assert trial.timeline.path == "trials/000/timeline.jsonl.gz"
    packed = (job.run_folder / trial.timeline.path).read_bytes()
    assert trial.timeline.sha256 == sha256_hex(packed)
    assert packed[4:8] == bytes(4)  # the time of compression would make the digest one of the clock
    lines = [json.loads(line) for line in gzip.decompress(packed).splitlines()]
    assert [(line["iteration"], line["warmup"]) for line in lines] == [(0, True), (1, False), (2, False)]
    assert trial.iterations == tuple(read_iteration(line, job.cell.batch) for line in lines[1:])
    assert sum(lines[0]["deliveries"][0][1]) == 0
    assert sorted(file.name for file in job.folder.glob("timeline*")) == ["timeline.jsonl.gz"]


def test_engine_arguments(prepare: Callable[..., Job]) -> None:
    """The engine gets the scenario's arguments, the subject's in their place, dummy weights and no tokenizer."""
    job = prepare(args={"max_num_seqs": 3, "seed": 7})
    collect(job)
    expected = {
        **job.cell.engine.args, "max_num_seqs": 3, "seed": 7, "model": job.cell.model_folder, "load_format": "dummy",
        "skip_tokenizer_init": True,
    }  # fmt: skip
    assert json.loads((job.folder / "arguments.json").read_text()) == expected


def test_an_engine_that_others_go_before_says_so(prepare: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the niceness of the process that starts it."""
    assert "low-priority" not in collect(prepare()).cautions
    monkeypatch.setattr(os, "getpriority", lambda *_: 15)
    assert "low-priority" in collect(prepare(index=1)).cautions


def test_environment_of_the_engine(prepare: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, stub: Path) -> None:
    """The engine sees the allow-list, ours, the scenario's and the subject's variables, and nothing else."""
    monkeypatch.setenv("VLLM_USE_SOMETHING", "1")
    monkeypatch.setenv("PYTHONPATH", "/inherited")
    monkeypatch.setenv("HF_TOKEN", "secret")
    job = prepare(env={"FROM_BOTH": "subject"})
    collect(job)
    seen = json.loads((job.folder / "environment.json").read_text())
    assert not {"VLLM_USE_SOMETHING", "HF_TOKEN"} & set(seen)
    assert (seen["FROM_SCENARIO"], seen["FROM_BOTH"]) == ("scenario", "subject")
    assert (seen["PYTHONPATH"], seen[OWNER]) == (str(stub), job.owner)
    assert (seen["VLLM_ENABLE_V1_MULTIPROCESSING"], seen["HF_HUB_OFFLINE"]) == ("0", "1")
    assert Path(seen["VLLM_CACHE_ROOT"]).is_relative_to(job.cache_folder)
    ours = {*engine_environment(job), OWNER, CHILD, "SPT_NOENV"}
    assert set(seen) - ours <= {"LC_CTYPE", "PWD", "SHLVL", "_"}


@pytest.mark.parametrize(
    "name",
    [
        "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH",
        "PYTORCH_KERNEL_CACHE_PATH", "FLASHINFER_WORKSPACE_BASE", "DG_JIT_CACHE_DIR", "TILELANG_CACHE_DIR",
        "HUMMING_CACHE_DIR", "HUMMING_TMP_DIR", "QUACK_CACHE_DIR", "CUTE_DSL_CACHE_DIR", "TVM_FFI_CACHE_DIR",
        "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR",
    ],
)  # fmt: skip
def test_what_packages_compile_stays_below_the_trials_caches(prepare: Callable[..., Job], name: str) -> None:
    """Each has a folder of its own there, in place of one in the home or in /tmp that all engines would share."""
    job = prepare()
    environment = engine_environment(job)
    assert Path(environment[name]).parent == job.cache_folder
    assert list(environment.values()).count(environment[name]) == 1


def test_engines_side_by_side_ask_for_other_ports(prepare: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process of perfgate has ports of its own for its engine, below those that the kernel gives away."""
    job, seen = prepare(), []
    for pid in (4_000_000, 4_000_001, 4_000_007):
        monkeypatch.setattr("os.getpid", lambda pid=pid: pid)
        seen.append(int(engine_environment(job)["VLLM_PORT"]))
    assert min(later - earlier for earlier, later in itertools.pairwise(sorted(seen))) >= PORTS
    assert min(seen) > 1023
    assert max(seen) + PORTS < 32_768


def test_module_path(prepare: Callable[..., Job]) -> None:
    """Folders of path= stand before a PYTHONPATH of the subject's own, and without either there is none."""
    job = prepare(path=("/a", "/b"), env={"PYTHONPATH": "/c"})
    assert engine_environment(job)["PYTHONPATH"] == "/a:/b:/c"


def test_allow_list() -> None:
    """Machine properties pass, preferences and secrets do not."""
    passing = {
        "PATH": "1",
        "LC_ALL": "1",
        "CUDA_VISIBLE_DEVICES": "0",
        "NCCL_DEBUG": "1",
        "NVIDIA_X": "1",
        "HF_HOME": "1",
    }
    stopped = {
        "VLLM_X": "1",
        "HF_TOKEN": "1",
        "PYTHONPATH": "1",
        "OMP_NUM_THREADS": "1",
        "AWS_SECRET": "1",
        "path": "1",
    }
    assert allowed_environment(passing | stopped) == passing


@pytest.mark.parametrize(
    ("mode", "code", "words"),
    [
        ("import fails", "engine-import-failed", "ImportError: libcudart.so.99: cannot open shared object file"),
        ("import dies", "engine-start-failed", "SIGSEGV"),
        ("arguments fail", "engine-start-failed", "TypeError: unexpected keyword argument 'max_num_seq'"),
        ("start fails", "engine-start-failed", "RuntimeError: No available memory for the cache blocks"),
        ("start exits", "engine-start-failed", "SystemExit: engine core failed"),
        ("start dies", "engine-start-failed", "status 3\nengine.log: loading weights"),
        ("step fails", "engine-failed", "RuntimeError: CUDA error: an illegal memory access"),
        ("step exits", "engine-failed", "SystemExit: fatal"),
        ("step dies", "engine-failed", "SIGKILL"),
        ("step dies, child stays", "engine-failed", "status 4"),
        ("garbage", "engine-failed", "rubbish"),
        ("other answer", "engine-failed", "99"),
        ("other code", "engine-failed", "bad-mood"),
        ("short outputs", "request-failed", "got 4 tokens, expected 5"),
        ("request aborted", "request-failed", "'abort'"),
        ("preempts", "preempted", "2 times"),
    ],
)
def test_failures(prepare: Callable[..., Job], mode: str, code: str, words: str) -> None:
    """Each fault becomes its own reason with the engine's words, and nothing is left running."""
    failure = collect(prepare(mode)).failure
    assert failure is not None
    assert (failure.code, words in failure.text) == (code, True), failure.text
    assert len(failure.text) <= MAX_FAILURE_CHARACTERS


@pytest.mark.parametrize(
    ("mode", "limits", "code"),
    [
        ("start hangs", ", start_timeout: 2s", "engine-start-timeout"),
        ("step hangs", ", start_timeout: 60s, iteration_timeout: 1s", "engine-failed"),
    ],
)
def test_limits(prepare: Callable[..., Job], mode: str, limits: str, code: str) -> None:
    """An engine that hangs is ended once its limit is over, long before it would go on."""
    begin = time.monotonic()
    failure = collect(prepare(mode, limits)).failure
    assert failure is not None
    assert failure.code == code
    assert time.monotonic() - begin < 60


def test_failed_trial_keeps_what_it_has(prepare: Callable[..., Job]) -> None:
    """A trial that fails in its first iteration still has versions, start-up costs and that iteration's deliveries."""
    trial = collect(prepare("short outputs"))
    assert trial.versions["vllm"] == "9.9.stub"
    assert trial.startup is not None
    assert trial.iterations == ()
    assert trial.timeline is not None


def test_no_timeline_without_an_iteration(prepare: Callable[..., Job]) -> None:
    """A trial whose engine never started leaves no timeline."""
    job = prepare("start fails")
    assert collect(job).timeline is None
    assert list(job.folder.glob("timeline*")) == []


def test_steps_of_several_tokens_can_be_verified(prepare: Callable[..., Job]) -> None:
    """The timeline gives the trial's iterations, also those of an older version that noted no whole step in any."""
    job = prepare("two tokens")
    trial = collect(job)
    older = [one.model_copy(update={"step_ns": None}) for one in trial.iterations]
    otherwise = [one.model_copy(update={"step_ns": 3}) for one in trial.iterations]
    cut = [older[0], *trial.iterations[1:]]
    assert trial.timeline is not None
    file = job.run_folder / trial.timeline.path
    kept = [trial.model_copy(update={"iterations": tuple(own)}) for own in (trial.iterations, older, otherwise, cut)]
    records = [Record(cell=job.cell, subjects={"base": job.subject}, seed=0, trials=(one,)) for one in kept]
    found = [_tells(file, record, one) for record, one in zip(records, kept, strict=True)]
    assert found == [True, True, False, False]
    for visit, told in ((0, False), (1, True)):
        beside = kept[0].model_copy(update={"visit": visit})
        assert _tells(file, records[1].model_copy(update={"trials": (beside, kept[1])}), kept[1]) == told


@pytest.mark.parametrize(
    ("mode", "cautions"),
    [
        ("two tokens", ("multi-token-deliveries",)),
        ("silent scheduler", ("preemptions-unknown",)),
        ("no ranks", ("no-probe",)),
        ("probe fails", ("no-probe",)),
    ],
)
def test_cautions(prepare: Callable[..., Job], mode: str, cautions: tuple[str, ...]) -> None:
    """What a reader must know about a trial that still counts comes with it."""
    trial = collect(prepare(mode))
    assert (trial.failure, trial.cautions) == (None, cautions)


def test_every_rank_is_probed_around_an_iteration(prepare: Callable[..., Job]) -> None:
    """Both ranks are read before and after each iteration, outside all stamps of it; warm-up is in the timeline."""
    job = prepare()

    trial = collect(job)

    probes = [i.probe_ns for i in trial.iterations if i.probe_ns]
    assert [(len(p.before), len(p.after)) for p in probes] == [(2, 2)] * 2
    assert all(reading > 0 for p in probes for reading in (*p.before, *p.after))
    for earlier, later in pairwise(trial.iterations):
        assert earlier.probe_ns
        assert later.probe_ns
        between_ns = later.begin_ns - earlier.begin_ns - earlier.elapsed_ns
        assert between_ns > sum(earlier.probe_ns.after) + sum(later.probe_ns.before)
    assert trial.timeline is not None
    lines = gzip.decompress((job.run_folder / trial.timeline.path).read_bytes()).splitlines()
    assert [len(json.loads(line)["probe_ns"]) for line in lines] == [2, 2, 2]


def test_a_failed_probe_is_in_the_log(prepare: Callable[..., Job]) -> None:
    """It is tried once; the engine's log holds each rank's own words, and the record no readings."""
    job = prepare("probe fails")

    trial = collect(job)

    assert [i.probe_ns for i in trial.iterations] == [None, None]
    said = [line for line in (job.folder / "engine.log").read_text().splitlines() if "no probe" in line]
    text = "RuntimeError: CUDA error: operation not permitted"
    assert said == [f"perfgate: no probe: {[text, text]}"]


def test_the_probe_is_switched_off_by_a_variable(prepare: Callable[..., Job]) -> None:
    """A subject with PERFGATE_PROBE=0 has no readings, and the trial says so."""
    trial = collect(prepare(env={"PERFGATE_PROBE": "0"}))

    assert [i.probe_ns for i in trial.iterations] == [None, None]
    assert (trial.failure, trial.cautions) == (None, ("no-probe",))


def test_no_probe_under_a_profiler(prepare: Callable[..., Job]) -> None:
    """Where the instrument does not ask for it, as none but a timed trial's does, the worker takes no reading."""
    job = prepare()
    with Worker(job) as worker:
        answer, _ = vllm_driver.VllmEngine(worker, job, Launch(), Parking()).iterate(job.cell.batch, 0)

    assert answer["probe_ns"] is None
    assert {kind: make(job).probe for kind, make in of_kinds("instrument").items()} == {
        "timed": True, "traced": False, "counted": False, "called": False, "sampled": False,
    }  # fmt: skip


@pytest.mark.parametrize(("mode", "expected"), [("no memory", (None, 160)), ("own capacity", (8192, 777))])
def test_what_the_engine_tells(prepare: Callable[..., Job], mode: str, expected: tuple[int | None, int]) -> None:
    """Memory is unknown where a rank does not tell; the engine's own cache size goes before blocks times their size."""
    startup = collect(prepare(mode)).startup
    assert startup is not None
    assert (startup.model_memory_bytes, startup.kv_token_capacity) == expected


@pytest.mark.parametrize("mode", ["stop fails", "leaves a child"])
def test_unclean_stop(prepare: Callable[..., Job], mode: str) -> None:
    """An engine that does not stop cleanly after its last iteration has still been measured, and is ended."""
    assert collect(prepare(mode)).failure is None


def test_what_an_engine_leaves_fails_its_trial(prepare: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial with a process that could not be ended does not count, and names it; a worse failure is told instead."""
    end = Child.end

    def leaving(child: Child, *, gently: bool = True) -> tuple[Orphan, ...]:
        return *end(child, gently=gently), Orphan(4711, "miner", "tests:1:1")

    monkeypatch.setattr(Child, "end", leaving)

    measured, failed = collect(prepare()), collect(prepare("start fails", index=1))

    assert measured.failure is not None
    assert measured.failure.code == "process-left"
    assert "still alive: miner (pid 4711, of run tests)" in measured.failure.text
    assert failed.failure is not None
    assert failed.failure.code == "engine-start-failed"


def test_interrupt(prepare: Callable[..., Job]) -> None:
    """Ctrl-C in a trial is raised after the engine has ended."""
    job = prepare()

    def progress(phrase: str) -> None:
        if phrase == "iteration 2 of 3":
            assert remaining(job)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        EngineCollector().collect(job, progress)
    assert remaining(job) == []
    lines = (job.folder / "timeline.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [0]


@pytest.mark.parametrize("subject", [{"python": "/no/such/python"}, {"python": "no-such"}, {"path": ("/no/such",)}])
def test_missing_subject(prepare: Callable[..., Job], subject: dict[str, Any]) -> None:
    """A missing interpreter or folder is found by the probe and fails the trial without starting anything."""
    job = prepare(**subject)
    probed = EngineCollector().probe(job.cell, job.subject)
    assert probed is not None
    assert probed.code == "subject-not-found"
    assert collect(job).failure == probed
    assert list(job.folder.iterdir()) == []


def test_interpreter_that_cannot_run(prepare: Callable[..., Job], tmp_path: Path) -> None:
    """A program that the kernel cannot execute is no subject either."""
    program = tmp_path / "python"
    program.write_text("no program")
    program.chmod(0o755)
    failure = collect(prepare(python=str(program))).failure
    assert failure is not None
    assert failure.code == "subject-not-found"


def test_profile_before_start_is_refused(prepare: Callable[..., Job]) -> None:
    """Without an engine there is nothing to profile: a engine-failed, and the worker goes on answering."""
    with Worker(prepare()) as worker:
        limit = Limit(time.monotonic() + DEADLINE_S, "engine-start-timeout", "engine-failed")
        with pytest.raises(InvalidTrialError, match="profile: before start") as caught:
            worker.request("profile", limit, on=True, window=True)
        assert caught.value.code == "engine-failed"
        assert worker.request("hello", limit)["python"].count(".") == 2


def test_worker_ends_with_its_descriptors(tmp_path: Path) -> None:
    """A worker whose requests end exits by itself."""
    request_in, requests = os.pipe()
    answers, answer_out = os.pipe()
    with subprocess.Popen(
        [sys.executable, str(WORKER), str(request_in), str(answer_out)],
        pass_fds=(request_in, answer_out),
        cwd=tmp_path,
    ) as worker:
        os.close(request_in)
        os.close(answer_out)
        os.close(requests)
        assert worker.wait(DEADLINE_S) == 0
    os.close(answers)


def test_worker_dies_with_perfgate(prepare: Callable[..., Job]) -> None:
    """Killing perfgate takes the worker with it, even while the engine is starting."""
    job = prepare("start hangs")
    program = f"""
from dataclasses import replace
from pathlib import Path
from perfgate.capture.job import Job
from perfgate.capture.trial_taking import EngineCollector
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import Subject
job = Job(
    "timed", Cell.model_validate_json({job.cell.model_dump_json(by_alias=True)!r}), "base",
    Subject.model_validate_json({job.subject.model_dump_json()!r}), 0, 0, 0, 0,
    *[Path(folder) for folder in {[str(job.run_folder), str(job.folder), str(job.cache_folder)]!r}],
    {dict(job.environment)!r}, {owner_mark("tests")!r})
EngineCollector().collect(job, print)
"""
    log = job.folder / "engine.log"
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT) as perfgate:
        deadline = time.monotonic() + DEADLINE_S
        while not (log.exists() and "loading weights" in log.read_text()):
            assert time.monotonic() < deadline
            assert perfgate.poll() is None
            time.sleep(0.05)
        assert len(remaining(job)) == 1
        perfgate.send_signal(signal.SIGKILL)
        perfgate.wait()
    deadline = time.monotonic() + DEADLINE_S
    while remaining(job):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_prompts_are_the_plans(prepare: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each iteration runs the plan's prompts for the engine's vocabulary, warm-up counted in."""
    asked = []

    def note(found: Any, vocabulary: int, iteration: int) -> list[list[int]]:
        asked.append((vocabulary, iteration))
        return prompts(found, vocabulary, iteration)

    monkeypatch.setattr(vllm_driver, "prompts", note)
    collect(prepare())
    assert asked == [(100, 0), (100, 1), (100, 2)]


def test_worker_imports_nothing_of_perfgate() -> None:
    """The worker parses as Python 3.10 and imports the standard library, vllm and torch alone."""
    tree = ast.parse(WORKER.read_text(), feature_version=(3, 10))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names == {"vllm", "torch"}
