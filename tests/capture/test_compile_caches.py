"""Compile caches between visits: who gets what, and what is never given to whom."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compiling import Compiling, measure, visit
from fake_collector import FakeCollector
from fake_nvml import FakeMachine
from hand_made import cell, gate, run

from perfgate.capture import compile_caches
from perfgate.capture.compile_caches import VARIABLE
from perfgate.capture.job import Job
from perfgate.capture.neighbours import FOLDER
from perfgate.capture.session import Session
from perfgate.machine.fingerprint import Machine
from perfgate.machine.sealed_folders import Store
from perfgate.metrics.catalogue import METRICS
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Trial
from perfgate.record.run_record import Record
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import Source, Subject


@pytest.mark.usefixtures("cache_store")
def test_a_later_visit_finds_what_the_first_filled(tmp_path: Path, build_named: Callable[[str], Subject]) -> None:
    """Only the first trial of the first visit compiles, where both sides are one build: they share the draw."""
    base = build_named("base")
    first, _ = measure(tmp_path / "one", one := Compiling(), base)
    again, _ = measure(tmp_path / "two", two := Compiling(), base)

    assert [there for _, _, there in one.found] == ["", *["by base of one"] * 4]
    assert {there for _, _, there in two.found} == {"by base of one"}
    fills = {trial.fill for record in (first, again) for trial in record.trials[1:]}
    assert first.trials[0].fill is None
    assert len(fills) == 1
    assert None not in fills


def warm_ups(collector: Compiling) -> list[Side]:
    """Whose warm-up trials a visit took, in order."""
    return [side for side, pair, _ in collector.found if pair is None]


@pytest.mark.usefixtures("cache_store")
def test_a_head_whose_caches_are_whole_needs_no_warm_up(tmp_path: Path, build_named: Callable[[str], Subject]) -> None:
    """Its first visit fills them, as does a base of the same build; the first trial of a visit warms the machine."""
    base, head = build_named("base"), build_named("head")

    assert warm_ups(visit(tmp_path / "one", base, head)) == ["base", "head"]
    assert warm_ups(visit(tmp_path / "two", base, head)) == ["base"]
    assert warm_ups(visit(tmp_path / "three", base)) == ["base"]


@pytest.mark.usefixtures("cache_store")
def test_a_start_that_is_gated_is_warmed_up(tmp_path: Path, build_named: Callable[[str], Subject]) -> None:
    """What a start reads beside its caches is in memory after the first one only."""
    measured = cell(gates=(gate("start_time"),))

    base = build_named("base")

    for name in ("one", "two"):
        assert warm_ups(visit(tmp_path / name, base, measured=measured)) == ["base", "head"]


@pytest.mark.usefixtures("cache_store")
def test_an_engine_that_leaves_no_file(tmp_path: Path, build_named: Callable[[str], Subject]) -> None:
    """That it compiles nothing is known after its first warm-up trial; there is no draw to tell of."""

    def clear(job: Job) -> None:
        shutil.rmtree(job.cache_folder)

    record, _ = measure(tmp_path / "one", collector := Compiling(clear), build_named("base"))
    assert warm_ups(collector) == ["base"]
    assert {trial.fill for trial in record.trials} == {None}


def test_none_are_kept_unless_asked_for(tmp_path: Path, build_named: Callable[[str], Subject]) -> None:
    """Where the variable is 0, every visit compiles for each side, and the record is as it always was."""
    base = build_named("base")
    record, _ = measure(tmp_path / "one", Compiling(), base)
    assert visit(tmp_path / "two", base).first("base") == ""
    assert all(trial.fill is None for trial in record.trials)
    assert "fill" not in record.trials[0].model_dump(mode="json")


def _edit(packages: Path) -> None:
    (packages / "vllm" / "__init__.py").write_text("version = 2\n")


def _add(packages: Path) -> None:
    (packages / "sitecustomize.py").write_text("")


@pytest.mark.usefixtures("cache_store")
@pytest.mark.parametrize("change", [_edit, _add])
def test_a_build_that_changed_compiles_anew(
    tmp_path: Path, build_named: Callable[[str], Subject], change: Callable[[Path], None]
) -> None:
    """One letter in a file of the same length is another build, and so is a file more."""
    base = build_named("base")
    visit(tmp_path / "one", base)
    change(tmp_path / "base" / "site-packages")
    assert visit(tmp_path / "two", base).first("base") == ""


@pytest.mark.usefixtures("cache_store")
@pytest.mark.parametrize(
    "other", [{"args": {"max_num_seqs": 4}}, {"env": {"VLLM_ATTENTION_BACKEND": "X"}}, {"path": ("/nowhere",)}],
    ids=["args", "env", "path"],
)  # fmt: skip
def test_other_engines_compile_for_themselves(
    tmp_path: Path, build_named: Callable[[str], Subject], other: dict[str, object]
) -> None:
    """Arguments, variables and folders on the path are part of what a cache depends on."""
    base = build_named("base")
    visit(tmp_path / "one", base)
    changed = Subject.model_validate({**base.model_dump(), **other})
    assert visit(tmp_path / "two", changed).first("base") == ""


@pytest.mark.usefixtures("cache_store")
def test_another_driver_compiles_anew(
    tmp_path: Path, build_named: Callable[[str], Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it compiles PTX to is its own."""
    base = build_named("base")
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


@pytest.mark.usefixtures("cache_store")
def test_another_workload_of_an_engine_is_warmed_up(tmp_path: Path, build_named: Callable[[str], Subject]) -> None:
    """It finds what others filled, compiles the rest before it is judged, and the next visit finds both."""
    base, head = build_named("base"), build_named("head")
    one, _ = measure_batches(tmp_path / "one", base, head, 2)
    two, (first,) = measure_batches(tmp_path / "two", base, head, 4)
    three, (again, other) = measure_batches(tmp_path / "three", base, head, 4, 2)

    assert one.compiled == [(2, "base", False), (2, "head", False)]
    assert two.compiled == [(4, "base", False), (4, "head", False)]
    assert three.compiled == []
    assert [trial.subject for trial in again.trials if trial.pair is None] == ["base"]
    assert draws(first, "head") == draws(again, "head")
    assert len(draws(again, "base") | draws(again, "head") | draws(other, "base") | draws(other, "head")) == 4


@pytest.mark.usefixtures("cache_store")
def test_workloads_of_one_visit(tmp_path: Path, build_named: Callable[[str], Subject]) -> None:
    """No judged trial of a second cell compiles; where both sides are one build they share its draw, too."""
    base, head = build_named("base"), build_named("head")
    apart, _ = measure_batches(tmp_path / "one", base, head, 2, 4)
    assert apart.compiled == [(2, "base", False), (2, "head", False), (4, "base", False), (4, "head", False)]

    alike, records = measure_batches(tmp_path / "two", head, head, 2, 4)
    assert alike.compiled == [(2, "base", False), (4, "base", False)]
    for record in records:
        assert None not in draws(record, "base")
        assert len(draws(record, "base") | draws(record, "head")) == 1


def test_what_judged_trials_of_another_cell_write_is_not_kept(
    tmp_path: Path, build_named: Callable[[str], Subject], cache_store: Path
) -> None:
    """The warm-up trial of a cell fills what is kept with its own files alone."""
    base = build_named("base")
    measure_batches(tmp_path / "one", base, base, 2, 4)
    assert {file.name for file in cache_store.glob("*/files/**/*") if file.is_file()} == {"batch-2.so", "batch-4.so"}


@pytest.mark.usefixtures("cache_store")
def test_what_a_head_filled_serves_no_base(tmp_path: Path, build_named: Callable[[str], Subject]) -> None:
    """A head that became the base is compiled once more, by a base; that serves heads of the build too."""
    base, head = build_named("base"), build_named("head")
    visit(tmp_path / "one", base, head)
    two = visit(tmp_path / "two", head, head)
    assert (two.first("base"), two.first("head")) == ("", "by base of two")
    assert visit(tmp_path / "three", base, head).first("head") == "by base of two"


@pytest.mark.usefixtures("cache_store")
def test_heads_of_other_commits_share_nothing(tmp_path: Path, build_named: Callable[[str], Subject]) -> None:
    """Two commits may claim the same files, one of them to be served what the other filled."""
    base, head = build_named("base"), build_named("head")

    def of(commit: str) -> Subject:
        source = Source(ref=commit, commit=commit * 40, changes="", recipe="r", folder=str(tmp_path / "head"))
        return head.model_copy(update={"built_from": source})

    visit(tmp_path / "one", base, of("1"))
    assert visit(tmp_path / "two", base, of("2")).first("head") == ""
    assert visit(tmp_path / "three", base, of("1")).first("head") == "by head of one"


@pytest.mark.usefixtures("cache_store")
def test_what_judged_trials_write_is_not_kept(tmp_path: Path, build_named: Callable[[str], Subject]) -> None:
    """A fill comes from the warm-up trial of its build; later trials of a visit work in that visit's copy."""
    base = build_named("base")

    def spoil(job: Job) -> None:
        if job.pair is not None:
            (job.cache_folder / "vllm" / "kernel.so").write_text("spoilt")

    measure(tmp_path / "one", Compiling(spoil), base)
    assert visit(tmp_path / "two", base).first("base") == "by base of one"


@pytest.mark.usefixtures("cache_store")
def test_a_failed_warm_up_keeps_nothing(tmp_path: Path, build_named: Callable[[str], Subject]) -> None:
    """Whatever it compiled may be half of something."""
    base = build_named("base")
    measure(tmp_path / "one", Compiling(fails={0}), base)
    assert visit(tmp_path / "two", base).first("base") == ""


def test_a_broken_cache_is_made_anew(tmp_path: Path, build_named: Callable[[str], Subject], cache_store: Path) -> None:
    """It is said, and the visit is measured as the first was."""
    base = build_named("base")
    visit(tmp_path / "one", base)
    kernel = next(cache_store.glob("*/files/vllm/kernel.so"))
    kernel.chmod(0o600)
    kernel.write_text("by somebody else")

    record, said = measure(tmp_path / "two", two := Compiling(), base)
    assert two.first("base") == ""
    assert any("made anew" in text and "is not what was kept" in text for text in said)
    assert record.measured() == 2
    assert visit(tmp_path / "three", base).first("base") == "by base of two"


def test_a_store_that_is_named_is_trusted(
    tmp_path: Path, build_named: Callable[[str], Subject], cache_store: Path
) -> None:
    """Who can write into it can seal what it wrote: a seal is no signature."""
    base = build_named("base")
    visit(tmp_path / "one", base)
    entry = next(folder for folder in cache_store.iterdir() if folder.name != "locks")
    forged = tmp_path / "forged"
    (forged / "vllm").mkdir(parents=True)
    (forged / "vllm" / "kernel.so").write_text("by another job")
    (workload,) = json.loads((entry / "seal.json").read_text())["draws"]
    shutil.rmtree(entry)
    Store(cache_store).keep(entry.name, forged, workload)
    assert visit(tmp_path / "two", base).first("base") == "by another job"


@pytest.mark.parametrize("unfit", ["a file", "others"])
def test_a_store_that_cannot_be_used(
    tmp_path: Path, build_named: Callable[[str], Subject], cache_store: Path, unfit: str
) -> None:
    """It is said once, and the run goes on without."""
    if unfit == "a file":
        cache_store.write_text("")
    else:
        cache_store.mkdir()
        cache_store.chmod(0o777)
    record, said = measure(tmp_path / "one", Compiling(), build_named("base"))
    assert record.measured() == 2
    assert sum("compile caches are not kept" in text for text in said) == 1


@pytest.mark.usefixtures("cache_store")
def test_an_interpreter_that_tells_nothing(tmp_path: Path, build_named: Callable[[str], Subject]) -> None:
    """Builds that cannot be told apart share nothing."""
    base = build_named("base")
    Path(base.python).write_text("#!/bin/sh\necho nothing\n")
    _, said = measure(tmp_path / "one", Compiling(), base)
    assert any("does not say what is on its module path" in text for text in said)
    assert visit(tmp_path / "two", base).first("base") == ""


@pytest.mark.usefixtures("cache_store")
def test_cold_starts(tmp_path: Path, build_named: Callable[[str], Subject]) -> None:
    """Where a gate rests on them every trial finds its caches empty, and what was kept is left alone."""
    base, cold = build_named("base"), cell(gates=[gate("start_time_cold", "1%", "5%")])
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


@pytest.mark.usefixtures("cache_store")
def test_stations_go_on_with_what_was_kept_first(
    tmp_path: Path, build_named: Callable[[str], Subject], fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each compiles in its first trial of a first visit; from then on both sides have one draw on every GPU."""
    FakeMachine.build(fake_nvml.file, {}, {}, {})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("perfgate.capture.session.check_neighbours", lambda *_: None)
    base = build_named("base")
    (tmp_path / "run").mkdir()
    manifest = run([cell()], subjects={"base": base, "head": base})
    with Session(tmp_path / "run", manifest, Compiling(), lambda _: None, gpus="all") as opened:
        record = opened.measure(cell(), 3)
    fills = {trial.fill for pair in record.pairs() for trial in pair}
    assert len(fills) == 1
    assert None not in fills
    assert {trial.gpus for trial in record.judged_trials("base")} == {(fake_nvml.gpu(n).uuid,) for n in range(3)}


@pytest.mark.usefixtures("cache_store")
def test_neighbours_compile_when_a_host_is_checked(
    tmp_path: Path, build_named: Callable[[str], Subject], fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch
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

    base = build_named("base")
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
