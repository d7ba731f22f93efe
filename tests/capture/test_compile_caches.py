"""Compile caches between visits: who gets what, and what is never given to whom."""

from __future__ import annotations

import ast
import json
import os
import pprint
import shutil
import subprocess
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from fake_collector import FakeCollector
from fake_nvml import FakeMachine
from hand_made import cell, gate, run

from perfgate.capture import compile_caches
from perfgate.capture.compile_caches import VARIABLE, point_home
from perfgate.capture.job import Job
from perfgate.capture.neighbours import FOLDER
from perfgate.capture.session import Session
from perfgate.machine.fingerprint import Machine
from perfgate.machine.sealed_folders import Store
from perfgate.metrics.catalogue import METRICS
from perfgate.metrics.trial import Failure, Side, Trial
from perfgate.record.run_record import Record
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import Source, Subject


class Compiling(FakeCollector):
    """Each engine looks into its caches, and compiles what it does not find; ``spoil`` writes beside that."""

    def __init__(self, spoil: Callable[[Job], None] = lambda _: None, fails: Collection[int] = ()) -> None:
        super().__init__()
        self._fails = fails
        self.found: list[tuple[Side, int | None, str]] = []
        self._spoil = spoil

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Take one."""
        kernel = job.cache_folder / "vllm" / "kernel.so"
        there = kernel.read_text() if kernel.exists() else ""
        self.found.append((job.side, job.pair, there))
        if not there:
            kernel.parent.mkdir(parents=True)
            kernel.write_text(f"by {job.side} of {job.run_folder.name}")
        self._spoil(job)
        trial = super().collect(job, progress)
        failure = Failure(code="engine-died", text="died") if job.index in self._fails else None
        return trial.model_copy(update={"failure": failure})

    def first(self, side: Side) -> str:
        """What the first trial of a side found."""
        return next(there for whose, _, there in self.found if whose == side)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where caches are kept in this test."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture
def build(tmp_path: Path) -> Callable[[str], Subject]:
    """A function that makes an environment of that name: an interpreter, and one package."""

    def make(name: str) -> Subject:
        packages = tmp_path / name / "site-packages"
        (packages / "vllm").mkdir(parents=True)
        (packages / "vllm" / "__init__.py").write_text("version = 1\n")
        python = tmp_path / name / "python"
        answer = json.dumps(["3.12", [str(packages)], "/nowhere", "/nowhere"])
        python.write_text(f"#!/bin/sh\necho '{answer}'\n")
        python.chmod(0o755)
        return Subject(python=str(python))

    return make


def measure(
    folder: Path, collector: Compiling, base: Subject, head: Subject | None = None, measured: Cell | None = None
) -> tuple[Record, list[str]]:
    """One visit of a run of its own, and what was said in it."""
    folder.mkdir()
    said: list[str] = []
    subjects: dict[Side, Subject] = {"base": base, "head": head or base}
    manifest = run([measured or cell()], subjects=subjects)
    with Session(
        folder, manifest, collector, lambda step: said.append(step) if isinstance(step, str) else None
    ) as open_:
        return open_.measure(measured or cell(), 2), said


def visit(folder: Path, base: Subject, head: Subject | None = None, measured: Cell | None = None) -> Compiling:
    """What the engines of one visit found."""
    collector = Compiling()
    measure(folder, collector, base, head, measured)
    return collector


@pytest.mark.usefixtures("store")
def test_a_later_visit_finds_what_the_first_filled(tmp_path: Path, build: Callable[[str], Subject]) -> None:
    """Only the first trial of the first visit compiles, where both sides are one build: they share the draw."""
    base = build("base")
    first, _ = measure(tmp_path / "one", one := Compiling(), base)
    again, _ = measure(tmp_path / "two", two := Compiling(), base)

    assert [there for _, _, there in one.found] == ["", *["by base of one"] * 4]
    assert {there for _, _, there in two.found} == {"by base of one"}
    fills = {trial.fill for record in (first, again) for trial in record.trials[1:]}
    assert first.trials[0].fill is None
    assert len(fills) == 1
    assert None not in fills


@pytest.mark.usefixtures("store")
def test_kernels_of_triton_are_found_where_they_are_copied_to(tmp_path: Path, build: Callable[[str], Subject]) -> None:
    """Each engine of a later visit reads absolute paths of its own side's folder, and of no other."""
    read: list[tuple[Path, Path]] = []

    def compile_kernel(job: Job) -> None:
        kernel = job.cache_folder / "triton" / "ABC" / "add.cubin"
        group = kernel.with_name("__grp__add.json")
        if not group.exists():
            kernel.parent.mkdir(parents=True)
            kernel.touch()
            group.write_text(json.dumps({"child_paths": {kernel.name: str(kernel)}}))
        read.append((kernel, Path(json.loads(group.read_text())["child_paths"][kernel.name])))

    base = build("base")
    for folder in ("one", "two"):
        measure(tmp_path / folder, Compiling(compile_kernel), base)
    assert len({kernel for kernel, _ in read}) == 4
    assert all(kernel == named for kernel, named in read)


@pytest.mark.parametrize(
    ("text", "moved"),
    [
        ("lib = '/runs/one/cache/a'\r\nof /runs/one", "lib = '/runs/two — b/cache/a'\r\nof /runs/two — b"),
        ("/runs/one-more/a /runs/one.txt", "/runs/one-more/a /runs/one.txt"),
        ("/runs/other", "/runs/other"),
        ("/runs/one \0", "/runs/one \0"),
        (f"/runs/one {'x' * 9000}\0", f"/runs/one {'x' * 9000}\0"),
    ],
    ids=["named", "longer names", "not named", "binary", "binary later on"],
)
def test_text_files_of_a_copy_name_the_copy(tmp_path: Path, text: str, moved: str) -> None:
    """Each place in a text file that names the old folder names the new one; other names and binary files stay."""
    file = tmp_path / "two — b" / "below" / "file"
    file.parent.mkdir(parents=True)
    file.write_bytes(text.encode())
    os.utime(file, ns=(1, 2))
    point_home(tmp_path / "two — b", Path("/runs/one"))
    assert file.read_bytes().decode() == moved.replace("/runs/two — b", str(tmp_path / "two — b"))
    assert file.stat().st_mtime_ns == 2


@pytest.mark.parametrize("content", [b"/runs/one \xff", b"/runs/one \x80\x04"])
def test_what_is_no_utf8_stays(tmp_path: Path, content: bytes) -> None:
    """A pickle without a zero byte is not text either."""
    (tmp_path / "file").write_bytes(content)
    point_home(tmp_path, Path("/runs/one"))
    assert (tmp_path / "file").read_bytes() == content


def test_handles_of_vllm_name_files_of_the_copy(tmp_path: Path) -> None:
    """What vLLM 0.25.1 keeps of compiled graphs is a Python literal in many lines, which it reads as such."""
    was, below = Path("/runs/one/cache-a1b2c3d4/base-d5883367b274"), "vllm/torch_compile_cache/0a1b2c/rank_0_0/backbone"
    keys = [f"artifact_compile_range_1_4096_subgraph_{number}" for number in range(3)]
    handles = {
        ((1, 4096), n, "inductor_standalone"): {"graph_handle": (k, f"{was}/{below}/{k}")} for n, k in enumerate(keys)
    }
    file = tmp_path / below / "vllm_compile_cache.py"
    file.parent.mkdir(parents=True)
    file.write_text(pprint.PrettyPrinter(indent=4).pformat(handles))
    point_home(tmp_path, was)
    named = [value["graph_handle"] for value in ast.literal_eval(file.read_text()).values()]
    assert named == [(key, str(file.with_name(key))) for key in keys]


def test_escaped_paths_of_a_copy_name_the_copy(tmp_path: Path) -> None:
    """JSON may write letters by number, and its paths are read as they were written."""
    (tmp_path / "ü").mkdir()
    file = tmp_path / "ü" / "__grp__add.json"
    file.write_text(json.dumps({"child_paths": {"add.cubin": "/runs/é/add.cubin"}}))
    point_home(tmp_path / "ü", Path("/runs/é"))
    assert json.loads(file.read_text()) == {"child_paths": {"add.cubin": str(tmp_path / "ü" / "add.cubin")}}
    assert file.read_text().isascii()


@pytest.mark.engine(starts=1)
def test_triton_itself_finds_a_kernel_in_a_copy(tmp_path: Path, engine_python: str) -> None:
    """The engine's own Triton, which finds nothing in a folder that was moved, does after its paths were moved."""
    program = """
import sys
from triton.runtime.cache import FileCacheManager
cache = FileCacheManager("abc")
if sys.argv[1:]:
    cache.put_group("add.json", {"add.cubin": cache.put(b"code", "add.cubin")})
print(cache.get_group("add.json"))
"""

    def told(folder: Path, *words: str) -> str:
        environment = {**os.environ, "TRITON_CACHE_DIR": str(folder)}
        command = [engine_python, "-c", program, *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    (tmp_path / "one").mkdir()
    assert str(tmp_path / "one") in told(tmp_path / "one", "write")
    (tmp_path / "one").rename(tmp_path / "two")
    assert told(tmp_path / "two") == "None\n"
    point_home(tmp_path / "two", tmp_path / "one")
    assert str(tmp_path / "two") in told(tmp_path / "two")


class Unfit(Compiling):
    """Engines that do not come up, by what they find: by default with what an earlier visit compiled."""

    def __init__(
        self, fails: Callable[[str], bool] = "by base of one".__eq__, code: str = "engine-start-failed"
    ) -> None:
        super().__init__()
        self._does_not_start, self._code = fails, code

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Take one."""
        trial = super().collect(job, progress)
        if not self._does_not_start(self.found[-1][2]):
            return trial
        return trial.model_copy(update={"startup": None, "failure": Failure(code=self._code, text="no such file")})


@pytest.mark.usefixtures("store")
def test_kept_caches_that_let_no_engine_start_are_made_anew(tmp_path: Path, build: Callable[[str], Subject]) -> None:
    """The visit goes on with empty ones, which are kept in their place, and says so."""
    base = build("base")
    measure(tmp_path / "one", Compiling(), base)
    record, said = measure(tmp_path / "two", two := Unfit(), base)

    assert said == ["base: an engine with kept compile caches did not start; they are made anew"]
    assert record.stopped is None
    assert [there for _, _, there in two.found] == ["by base of one", "", *["by base of two"] * 4]
    assert visit(tmp_path / "three", base).first("base") == "by base of two"


@pytest.mark.usefixtures("store")
def test_an_engine_that_never_starts_is_started_twice(tmp_path: Path, build: Callable[[str], Subject]) -> None:
    """With the kept caches and without; then its own failure ends the cell."""
    base = build("base")
    measure(tmp_path / "one", Compiling(), base)
    record, _ = measure(tmp_path / "two", two := Unfit(lambda _: True), base)

    assert [there for _, _, there in two.found] == ["by base of one", ""]
    assert record.stopped is not None
    assert record.stopped.code == "engine-start-failed"


@pytest.mark.usefixtures("store")
def test_an_engine_that_dies_later_keeps_its_caches(tmp_path: Path, build: Callable[[str], Subject]) -> None:
    """What ends an engine that had started, or what kept it from the GPU, says nothing about its caches."""
    base = build("base")
    measure(tmp_path / "one", Compiling(), base)
    _, said = measure(tmp_path / "two", Unfit(code="gpu-busy"), base)
    assert said == []
    assert visit(tmp_path / "three", base).first("base") == "by base of one"


def warm_ups(collector: Compiling) -> list[Side]:
    """Whose warm-up trials a visit took, in order."""
    return [side for side, pair, _ in collector.found if pair is None]


@pytest.mark.usefixtures("store")
def test_a_head_whose_caches_are_whole_needs_no_warm_up(tmp_path: Path, build: Callable[[str], Subject]) -> None:
    """Its first visit fills them, as does a base of the same build; the first trial of a visit warms the machine."""
    base, head = build("base"), build("head")

    assert warm_ups(visit(tmp_path / "one", base, head)) == ["base", "head"]
    assert warm_ups(visit(tmp_path / "two", base, head)) == ["base"]
    assert warm_ups(visit(tmp_path / "three", base)) == ["base"]


@pytest.mark.usefixtures("store")
def test_a_start_that_is_gated_is_warmed_up(tmp_path: Path, build: Callable[[str], Subject]) -> None:
    """What a start reads beside its caches is in memory after the first one only."""
    measured = cell(gates=(gate("start_time"),))

    base = build("base")

    for name in ("one", "two"):
        assert warm_ups(visit(tmp_path / name, base, measured=measured)) == ["base", "head"]


@pytest.mark.usefixtures("store")
def test_an_engine_that_leaves_no_file(tmp_path: Path, build: Callable[[str], Subject]) -> None:
    """That it compiles nothing is known after its first warm-up trial; there is no draw to tell of."""

    def clear(job: Job) -> None:
        shutil.rmtree(job.cache_folder)

    record, _ = measure(tmp_path / "one", collector := Compiling(clear), build("base"))
    assert warm_ups(collector) == ["base"]
    assert {trial.fill for trial in record.trials} == {None}


def test_none_are_kept_unless_asked_for(tmp_path: Path, build: Callable[[str], Subject]) -> None:
    """Where the variable is 0, every visit compiles for each side, and the record is as it always was."""
    base = build("base")
    record, _ = measure(tmp_path / "one", Compiling(), base)
    assert visit(tmp_path / "two", base).first("base") == ""
    assert all(trial.fill is None for trial in record.trials)
    assert "fill" not in record.trials[0].model_dump(mode="json")


def _edit(packages: Path) -> None:
    (packages / "vllm" / "__init__.py").write_text("version = 2\n")


def _add(packages: Path) -> None:
    (packages / "sitecustomize.py").write_text("")


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("change", [_edit, _add])
def test_a_build_that_changed_compiles_anew(
    tmp_path: Path, build: Callable[[str], Subject], change: Callable[[Path], None]
) -> None:
    """One letter in a file of the same length is another build, and so is a file more."""
    base = build("base")
    visit(tmp_path / "one", base)
    change(tmp_path / "base" / "site-packages")
    assert visit(tmp_path / "two", base).first("base") == ""


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    "other", [{"args": {"max_num_seqs": 4}}, {"env": {"VLLM_ATTENTION_BACKEND": "X"}}, {"path": ("/nowhere",)}],
    ids=["args", "env", "path"],
)  # fmt: skip
def test_other_engines_compile_for_themselves(
    tmp_path: Path, build: Callable[[str], Subject], other: dict[str, object]
) -> None:
    """Arguments, variables and folders on the path are part of what a cache depends on."""
    base = build("base")
    visit(tmp_path / "one", base)
    changed = Subject.model_validate({**base.model_dump(), **other})
    assert visit(tmp_path / "two", changed).first("base") == ""


@pytest.mark.usefixtures("store")
def test_another_driver_compiles_anew(
    tmp_path: Path, build: Callable[[str], Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it compiles PTX to is its own."""
    base = build("base")
    visit(tmp_path / "one", base)
    inner = compile_caches.CompileCaches.__init__

    def on_another(
        self: compile_caches.CompileCaches, folder: Path, machine: Machine, *more: Any, **named: Any
    ) -> None:
        inner(self, folder, machine.model_copy(update={"driver": "999.1"}), *more, **named)

    monkeypatch.setattr(compile_caches.CompileCaches, "__init__", on_another)
    assert visit(tmp_path / "two", base).first("base") == ""


class ByBatch(FakeCollector):
    """Engines that compile for the batch they run, as tuned kernels are."""

    def __init__(self) -> None:
        super().__init__()
        self.compiled: list[tuple[int, Side, bool]] = []
        """Batch and side of each trial that had to compile, and whether it is judged."""

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Take one."""
        batch = job.cell.workload.model_dump()["batch"]
        kernel = job.cache_folder / "triton" / f"batch-{batch}.so"
        if not kernel.exists():
            self.compiled.append((batch, job.side, job.pair is not None))
            kernel.parent.mkdir(parents=True, exist_ok=True)
            kernel.write_text(f"by {job.side} of {job.run_folder.name}")
        if job.pair is not None:
            (job.cache_folder / f"judged-{batch}").write_text("")
        return super().collect(job, progress)


def of_batch(batch: int) -> Cell:
    """A cell of that batch."""
    plain = cell(f"batch-{batch}")
    return plain.model_copy(
        update={"cell_id": f"{batch:064}", "workload": plain.workload.model_copy(update={"batch": batch})}
    )


def measure_batches(folder: Path, base: Subject, head: Subject, *batches: int) -> tuple[ByBatch, list[Record]]:
    """One visit that measures a cell after the other."""
    folder.mkdir()
    cells = [of_batch(batch) for batch in batches]
    manifest = run(cells, subjects={"base": base, "head": head})
    with Session(folder, manifest, collector := ByBatch(), lambda _: None) as opened:
        return collector, [opened.measure(measured, 2) for measured in cells]


def draws(record: Record, side: Side) -> set[str | None]:
    """What the judged trials of a side ran."""
    return {trial.fill.draw if trial.fill else None for trial in record.judged_trials(side)}


@pytest.mark.usefixtures("store")
def test_another_workload_of_an_engine_is_warmed_up(tmp_path: Path, build: Callable[[str], Subject]) -> None:
    """It finds what others filled, compiles the rest before it is judged, and the next visit finds both."""
    base, head = build("base"), build("head")
    one, _ = measure_batches(tmp_path / "one", base, head, 2)
    two, (first,) = measure_batches(tmp_path / "two", base, head, 4)
    three, (again, other) = measure_batches(tmp_path / "three", base, head, 4, 2)

    assert one.compiled == [(2, "base", False), (2, "head", False)]
    assert two.compiled == [(4, "base", False), (4, "head", False)]
    assert three.compiled == []
    assert [trial.subject for trial in again.trials if trial.pair is None] == ["base"]
    assert draws(first, "head") == draws(again, "head")
    assert len(draws(again, "base") | draws(again, "head") | draws(other, "base") | draws(other, "head")) == 4


@pytest.mark.usefixtures("store")
def test_workloads_of_one_visit(tmp_path: Path, build: Callable[[str], Subject]) -> None:
    """No judged trial of a second cell compiles; where both sides are one build they share its draw, too."""
    base, head = build("base"), build("head")
    apart, _ = measure_batches(tmp_path / "one", base, head, 2, 4)
    assert apart.compiled == [(2, "base", False), (2, "head", False), (4, "base", False), (4, "head", False)]

    alike, records = measure_batches(tmp_path / "two", head, head, 2, 4)
    assert alike.compiled == [(2, "base", False), (4, "base", False)]
    for record in records:
        assert None not in draws(record, "base")
        assert len(draws(record, "base") | draws(record, "head")) == 1


def test_what_judged_trials_of_another_cell_write_is_not_kept(
    tmp_path: Path, build: Callable[[str], Subject], store: Path
) -> None:
    """The warm-up trial of a cell fills what is kept with its own files alone."""
    base = build("base")
    measure_batches(tmp_path / "one", base, base, 2, 4)
    assert {file.name for file in store.glob("*/files/**/*") if file.is_file()} == {"batch-2.so", "batch-4.so"}


@pytest.mark.usefixtures("store")
def test_what_a_head_filled_serves_no_base(tmp_path: Path, build: Callable[[str], Subject]) -> None:
    """A head that became the base is compiled once more, by a base; that serves heads of the build too."""
    base, head = build("base"), build("head")
    visit(tmp_path / "one", base, head)
    two = visit(tmp_path / "two", head, head)
    assert (two.first("base"), two.first("head")) == ("", "by base of two")
    assert visit(tmp_path / "three", base, head).first("head") == "by base of two"


@pytest.mark.usefixtures("store")
def test_heads_of_other_commits_share_nothing(tmp_path: Path, build: Callable[[str], Subject]) -> None:
    """Two commits may claim the same files, one of them to be served what the other filled."""
    base, head = build("base"), build("head")

    def of(commit: str) -> Subject:
        source = Source(ref=commit, commit=commit * 40, changes="", recipe="r", folder=str(tmp_path / "head"))
        return head.model_copy(update={"built_from": source})

    visit(tmp_path / "one", base, of("1"))
    assert visit(tmp_path / "two", base, of("2")).first("head") == ""
    assert visit(tmp_path / "three", base, of("1")).first("head") == "by head of one"


@pytest.mark.usefixtures("store")
def test_what_judged_trials_write_is_not_kept(tmp_path: Path, build: Callable[[str], Subject]) -> None:
    """A fill comes from the warm-up trial of its build; later trials of a visit work in that visit's copy."""
    base = build("base")

    def spoil(job: Job) -> None:
        if job.pair is not None:
            (job.cache_folder / "vllm" / "kernel.so").write_text("spoilt")

    measure(tmp_path / "one", Compiling(spoil), base)
    assert visit(tmp_path / "two", base).first("base") == "by base of one"


@pytest.mark.usefixtures("store")
def test_a_failed_warm_up_keeps_nothing(tmp_path: Path, build: Callable[[str], Subject]) -> None:
    """Whatever it compiled may be half of something."""
    base = build("base")
    measure(tmp_path / "one", Compiling(fails={0}), base)
    assert visit(tmp_path / "two", base).first("base") == ""


def test_a_broken_cache_is_made_anew(tmp_path: Path, build: Callable[[str], Subject], store: Path) -> None:
    """It is said, and the visit is measured as the first was."""
    base = build("base")
    visit(tmp_path / "one", base)
    kernel = next(store.glob("*/files/vllm/kernel.so"))
    kernel.chmod(0o600)
    kernel.write_text("by somebody else")

    record, said = measure(tmp_path / "two", two := Compiling(), base)
    assert two.first("base") == ""
    assert any("made anew" in text and "is not what was kept" in text for text in said)
    assert record.measured() == 2
    assert visit(tmp_path / "three", base).first("base") == "by base of two"


def test_a_store_that_is_named_is_trusted(tmp_path: Path, build: Callable[[str], Subject], store: Path) -> None:
    """Who can write into it can seal what it wrote: a seal is no signature."""
    base = build("base")
    visit(tmp_path / "one", base)
    entry = next(folder for folder in store.iterdir() if folder.name != "locks")
    forged = tmp_path / "forged"
    (forged / "vllm").mkdir(parents=True)
    (forged / "vllm" / "kernel.so").write_text("by another job")
    (workload,) = json.loads((entry / "seal.json").read_text())["draws"]
    shutil.rmtree(entry)
    Store(store).keep(entry.name, forged, workload)
    assert visit(tmp_path / "two", base).first("base") == "by another job"


@pytest.mark.parametrize("unfit", ["a file", "others"])
def test_a_store_that_cannot_be_used(tmp_path: Path, build: Callable[[str], Subject], store: Path, unfit: str) -> None:
    """It is said once, and the run goes on without."""
    if unfit == "a file":
        store.write_text("")
    else:
        store.mkdir()
        store.chmod(0o777)
    record, said = measure(tmp_path / "one", Compiling(), build("base"))
    assert record.measured() == 2
    assert sum("compile caches are not kept" in text for text in said) == 1


@pytest.mark.usefixtures("store")
def test_an_interpreter_that_tells_nothing(tmp_path: Path, build: Callable[[str], Subject]) -> None:
    """Builds that cannot be told apart share nothing."""
    base = build("base")
    Path(base.python).write_text("#!/bin/sh\necho nothing\n")
    _, said = measure(tmp_path / "one", Compiling(), base)
    assert any("does not say what is on its module path" in text for text in said)
    assert visit(tmp_path / "two", base).first("base") == ""


@pytest.mark.usefixtures("store")
def test_cold_starts(tmp_path: Path, build: Callable[[str], Subject]) -> None:
    """Where a gate rests on them every trial finds its caches empty, and what was kept is left alone."""
    base, cold = build("base"), cell(gates=[gate("start_time_cold", "1%", "5%")])
    visit(tmp_path / "one", base)
    record, _ = measure(tmp_path / "two", two := Compiling(), base, measured=cold)

    assert {there for _, _, there in two.found} == {""}
    values = [METRICS["start_time_cold"].summarise(trial) for trial in record.trials]
    assert values == pytest.approx([METRICS["start_time"].summarise(trial) for trial in record.trials])
    assert not any(folder for folder in (tmp_path / "two").iterdir() if folder.name.startswith("cache-"))
    warm, _ = measure(tmp_path / "three", Compiling(), base)
    assert METRICS["start_time_cold"].summarise(warm.trials[0]) is None


def test_where_caches_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable goes before the user's folder for caches, and 0 is no folder."""
    monkeypatch.setenv(VARIABLE, "~/mine")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert compile_caches.caches_folder() == tmp_path / "mine"
    monkeypatch.setenv(VARIABLE, "0")
    assert compile_caches.caches_folder() is None
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert compile_caches.caches_folder() == tmp_path / "caches" / "perfgate" / "caches"
    assert not os.path.lexists(tmp_path / "caches")


@pytest.mark.usefixtures("store")
def test_stations_go_on_with_what_was_kept_first(
    tmp_path: Path, build: Callable[[str], Subject], fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each compiles in its first trial of a first visit; from then on both sides have one draw on every GPU."""
    FakeMachine.build(fake_nvml.file, {}, {}, {})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("perfgate.capture.session.check_neighbours", lambda *_: None)
    base = build("base")
    (tmp_path / "run").mkdir()
    manifest = run([cell()], subjects={"base": base, "head": base})
    with Session(tmp_path / "run", manifest, Compiling(), lambda _: None, gpus="all") as opened:
        record = opened.measure(cell(), 3)
    fills = {trial.fill for pair in record.pairs() for trial in pair}
    assert len(fills) == 1
    assert None not in fills
    assert {trial.gpus for trial in record.judged_trials("base")} == {(fake_nvml.gpu(n).uuid,) for n in range(3)}


@pytest.mark.usefixtures("store")
def test_neighbours_compile_when_a_host_is_checked(
    tmp_path: Path, build: Callable[[str], Subject], fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each begins with empty caches beside the station that is measured, whose own are warm; nobody keeps these."""
    FakeMachine.build(fake_nvml.file, {}, {}, {})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))
    found: list[tuple[int, bool]] = []

    def look(job: Job) -> None:
        if FOLDER in job.folder.parts:
            kernels = job.cache_folder / "vllm" / "kernel.so"
            found.append((job.station, "before" in kernels.read_text()))
            kernels.write_text(f"before, {job.cold}")

    base = build("base")
    (tmp_path / "run").mkdir()
    manifest, collector = run([cell()], subjects={"base": base, "head": base}), Compiling(look)
    with Session(tmp_path / "run", manifest, collector, lambda _: None, gpus="all") as opened:
        opened.measure(cell(), 3)
    own = {number: [warm for station, warm in found if station == number] for number in range(3)}
    assert own[0] == [False, True, True, True, True]
    for number in (1, 2):
        assert not own[number][0]
        assert all(own[number][1:])
    assert {there for _, pair, there in collector.found if pair is not None} == {"before, False"}
