"""Kept compile caches with which no engine starts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from compiling import Compiling, measure, visit
from fake_nvml import FakeMachine
from hand_made import cell, gate
from perfgate_process import DEADLINE_S

from perfgate.capture.job import Job
from perfgate.machine.sealed_folders import Store, UnfitError
from perfgate.metrics.trial import Failure, Trial
from perfgate.scenario.subject import Subject

pytestmark = pytest.mark.usefixtures("cache_store")
FAILED = "engine-start-failed"
ANEW = "an engine with kept compile caches did not start; they are made anew"


class Unfit(Compiling):
    """Engines that do not come up, by what they find: by default with what the base of an earlier visit compiled."""

    def __init__(self, fails: Callable[[str], bool] = "by base of one".__eq__, code: str = FAILED) -> None:
        super().__init__()
        self._does_not_start, self._code = fails, code
        self.released: list[int] = []
        """How many trials had been taken when nothing was to wait for a later one any more."""

    def release(self) -> None:
        """Note it."""
        self.released.append(len(self.found))
        super().release()

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Take one."""
        trial = super().collect(job, progress)
        if not self._does_not_start(self.found[-1][2]):
            return trial
        return trial.model_copy(update={"startup": None, "failure": Failure(code=self._code, text="no such file")})


@pytest.mark.parametrize("code", ["engine-start-failed", "engine-start-timeout"])
def test_they_are_made_anew(tmp_path: Path, build_named: Callable[[str], Subject], code: str) -> None:
    """The visit goes on with empty ones, which are kept in their place, and says so."""
    base = build_named("base")
    measure(tmp_path / "one", Compiling(), base)
    record, said = measure(tmp_path / "two", two := Unfit(code=code), base)

    assert said == [f"base: {ANEW}"]
    assert record.stopped is None
    assert [there for _, _, there in two.found] == ["by base of one", "", *["by base of two"] * 4]
    assert two.released[0] == 1
    assert visit(tmp_path / "three", base).first("base") == "by base of two"


def test_no_pair_counts_as_dropped(tmp_path: Path, build_named: Callable[[str], Subject]) -> None:
    """The trial says why it failed; where no pair may be dropped, the head is measured all the same."""
    base, head = build_named("base"), build_named("head")
    measure(tmp_path / "one", Compiling(), base, head)
    none = cell(max_dropped_pairs=0)
    record, _ = measure(tmp_path / "two", Unfit("by head of one".__eq__), base, head, none)

    (failed,) = [trial.failure for trial in record.trials if trial.failure]
    assert failed == Failure(code="unfit-caches", text="with kept compile caches: engine-start-failed: no such file")
    assert record.stopped is None
    assert len(record.pairs()) == 2


def test_an_engine_that_never_starts_is_started_twice(tmp_path: Path, build_named: Callable[[str], Subject]) -> None:
    """With the kept caches and without; then its own failure ends the cell."""
    base = build_named("base")
    measure(tmp_path / "one", Compiling(), base)
    record, _ = measure(tmp_path / "two", two := Unfit(lambda _: True), base)

    assert [there for _, _, there in two.found] == ["by base of one", ""]
    assert record.stopped is not None
    assert record.stopped.code == "engine-start-failed"


def test_a_head_that_was_warm_is_warmed_up(tmp_path: Path, build_named: Callable[[str], Subject]) -> None:
    """Its first engine was that of a judged trial; what it compiles anew is compiled in none."""
    base, head = build_named("base"), build_named("head")
    measure(tmp_path / "one", Compiling(), base, head)
    record, said = measure(tmp_path / "two", two := Unfit("by head of one".__eq__), base, head)

    assert said == [f"head: {ANEW}"]
    heads = [(pair is None, there) for side, pair, there in two.found if side == "head"]
    assert heads[:2] == [(False, "by head of one"), (True, "")]
    assert {*heads[2:]} == {(False, "by head of two")}
    assert len(record.pairs()) == 2
    assert None not in {trial.fill for trial in record.judged_trials("head")}


def test_a_head_may_have_two_bad_fills(tmp_path: Path, build_named: Callable[[str], Subject]) -> None:
    """That of a base of its build is tried first, then its own, and then it begins with empty caches."""
    base, other = build_named("base"), build_named("other")
    measured = cell(gates=(gate("start_time"),))  # so that each visit warms the head up
    measure(tmp_path / "one", Compiling(), base, other, measured)
    measure(tmp_path / "two", Compiling(), other, other, measured)
    bad = {"by head of one", "by base of two"}
    record, _ = measure(tmp_path / "three", last := Unfit(bad.__contains__), base, other, measured)

    found = [there for side, _, there in last.found if side == "head"]
    assert found[:4] == ["by base of two", "by head of one", "", "by head of three"]
    assert record.stopped is None


@pytest.mark.parametrize("code", ["gpu-busy", "engine-import-failed", "engine-failed"])
def test_a_failure_that_is_not_of_the_start_says_nothing_of_them(
    tmp_path: Path, build_named: Callable[[str], Subject], code: str
) -> None:
    """Whoever could not have the GPU, or not import vLLM, has not tried them."""
    base = build_named("base")
    measure(tmp_path / "one", Compiling(), base)
    _, said = measure(tmp_path / "two", Unfit(code=code), base)
    assert said == []
    assert visit(tmp_path / "three", base).first("base") == "by base of one"


def test_an_engine_that_started_has_shown_that_they_are_fit(
    tmp_path: Path, build_named: Callable[[str], Subject]
) -> None:
    """What keeps a later one from starting is something else, and they stay."""
    base = build_named("base")
    measure(tmp_path / "one", Compiling(), base)
    starts = iter([False, True, False, True])
    _, said = measure(tmp_path / "two", Unfit(lambda _: next(starts, True)), base)
    assert said == []
    assert visit(tmp_path / "three", base).first("base") == "by base of one"


def test_those_that_cannot_be_forgotten_are_not_used(
    tmp_path: Path, build_named: Callable[[str], Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The visit goes on with empty ones, keeps nothing, and says why."""

    def held(*_: object) -> None:
        raise UnfitError("held by process 1")

    base = build_named("base")
    measure(tmp_path / "one", Compiling(), base)
    monkeypatch.setattr(Store, "forget", held)
    _, said = measure(tmp_path / "two", two := Unfit(), base)
    assert said == [
        "base: an engine with kept compile caches did not start; they are not used: held by process 1",
        *[f"head: {said[0].removeprefix('base: ')}"] * (len(said) - 1),
    ]
    assert [there for side, _, there in two.found if side == "base"][:2] == ["by base of one", ""]
    assert visit(tmp_path / "three", base).first("base") == "by base of one"


@pytest.fixture
def two_gpus(fake_nvml: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two."""
    FakeMachine.build(fake_nvml.file, {}, {})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


class Together(Unfit):
    """The first engines of a side at both stations start at the same time."""

    def __init__(self, fails: Callable[[str], bool], side: str) -> None:
        super().__init__(fails)
        self._side, self._first, self._both = side, {0, 1}, threading.Barrier(2)

    def collect(self, job: Job, progress: Callable[[str], None]) -> Trial:
        """Take one."""
        if job.side == self._side and job.station in self._first:
            self._first.discard(job.station)
            self._both.wait(DEADLINE_S)
        return super().collect(job, progress)


@pytest.mark.usefixtures("two_gpus")
def test_two_stations_with_one_bad_fill(
    tmp_path: Path, build_named: Callable[[str], Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That both did not start with it does not show that the build cannot."""
    monkeypatch.setattr("perfgate.capture.session.check_neighbours", lambda *_: None)
    base, head = build_named("base"), build_named("head")
    measure(tmp_path / "one", Compiling(), base, head)
    collector = Together("by head of one".__eq__, "head")
    record, said = measure(tmp_path / "two", collector, base, head, pairs=4, gpus="all")
    assert said == [f"head: {ANEW}"] * 2
    assert record.stopped is None
    assert len(record.pairs()) == 4


@pytest.mark.usefixtures("two_gpus")
def test_the_check_of_a_host_makes_them_anew(
    tmp_path: Path, build_named: Callable[[str], Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first trial may be the first with kept caches, and is taken again."""
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))
    base = build_named("base")
    measure(tmp_path / "one", Compiling(), base)
    record, said = measure(tmp_path / "two", Unfit(), base, pairs=4, gpus="all")
    assert f"base: {ANEW}" in said
    assert record.stopped is None
    assert len(record.pairs()) == 4


def test_what_somebody_else_kept_meanwhile_stays(tmp_path: Path) -> None:
    """Only the very content with which no engine started is forgotten."""
    store, key = Store(tmp_path / "own"), "a" * 64
    (tmp_path / "filled").mkdir()
    old = store.keep(key, tmp_path / "filled", "one")
    assert old is not None
    store.forget(old)
    assert store.take(key, tmp_path / "nothing") is None
    (tmp_path / "filled" / "kernel.so").touch()
    store.keep(key, tmp_path / "filled", "two")
    store.forget(old)
    assert store.take(key, tmp_path / "copy") is not None
