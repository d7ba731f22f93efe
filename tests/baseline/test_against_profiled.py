"""Kernels and counters of a head measured alone: gated against a baseline's visits, and held against the scenario."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fake_collector import FakeCollector, FakeSpec
from hand_made import BOTH, HEAD, codes, scenario_file
from rank_traces import engine
from stored import of_day, said

from perfgate import gate as use_cases
from perfgate.baseline.lineage import Baseline
from perfgate.baseline.promotion import promote
from perfgate.baseline.store import files, read
from perfgate.capture.job import Job
from perfgate.errors import NotMeasuredError, UsageError
from perfgate.judge.outcome import CellOutcome
from perfgate.metrics.trial import Kind, Trial
from perfgate.record.run_record import read_records, read_run, record_file, write_record

pytestmark = pytest.mark.usefixtures("no_orphans")

TIME = "{metric: itl_median, ignorable: 1%, must_catch: 5%}"
GEMM = "{metric: kernel_time_per_step, role: gemm, ignorable: 1%, must_catch: 5%}"
BYTES = "{metric: dram_bytes, role: gemm, ignorable: 0.5%, must_catch: 3%}"
TRACED = "kernels: {traced: {iterations: 2}}\n"


def measure(
    folder: Path,
    seed: int,
    *,
    gates: str = f"{TIME}, {GEMM}, {BYTES}",
    kernels: str = TRACED,
    counters: str = "{role: gemm, profile: 4}",
    ratio: dict[str, float] | None = None,
) -> use_cases.Finished:
    """One visit of a head with timed, traced and counted trials."""
    spec = FakeSpec(restart_sd=0.001, head_ratio=ratio or {})
    file = scenario_file(folder, gates=gates, more=f"{kernels}counters: [{counters}]\n")
    return use_cases.run(
        [file],
        {"head": HEAD},
        runs=folder / "runs",
        seed=1,
        against=folder / "baselines",
        collector=FakeCollector(spec, seed),
    )


def only(finished: use_cases.Finished) -> CellOutcome:
    """The one cell's outcome."""
    (cell,) = finished.outcome.cells
    return cell


def test_gates_on_kernels_and_counters(tmp_path: Path) -> None:
    """Their visits are kept restart by restart, and a head that moves more or computes longer is told."""
    for seed in range(4):
        promote(of_day(1 + seed, measure(tmp_path, seed).folder), tmp_path / "baselines", reason="more")

    same = only(measure(tmp_path, 9))
    slower = only(measure(tmp_path, 9, ratio={"gemm": 1.2, "dram_bytes": 1.2}))

    assert [said(one) for one in same.gates] == ["pass", "pass", "pass"]
    assert [one.visits.visits for one in same.gates if one.visits] == [4, 4, 4]
    assert [said(one) for one in slower.gates] == ["pass", "regressed", "regressed"]
    assert slower.counters.rows[0].launches == {"base": 4, "head": 32}


@pytest.mark.parametrize("kind", ["traced", "counted"])
def test_a_visit_that_was_cut_short(tmp_path: Path, kind: Kind) -> None:
    """Without its traced or counted trials a visit is neither judged nor promoted, though no gate rests on them."""
    for seed in range(4):
        folder = of_day(1 + seed, measure(tmp_path, seed, gates=TIME).folder)
        promote(folder, tmp_path / "baselines", reason="more")
    whole = measure(tmp_path, 9, gates=TIME)
    (record,) = read_records(whole.folder, read_run(whole.folder))
    file = record_file(whole.folder, record.cell)
    write_record(file, record.model_copy(update={"trials": tuple(t for t in record.trials if t.kind != kind)}))
    (stored,) = files(tmp_path / "baselines")

    outcome = use_cases.judge_folder(whole.folder)

    (reason,) = outcome.cells[0].reasons
    assert (said(whole.outcome), outcome.verdict, reason.code) == ("pass", "not-measured", "too-few-pairs")
    assert f"0 of 1 {kind} trials of the head" in reason.text
    with pytest.raises(NotMeasuredError, match=f"0 of 1 {kind} trials were taken"):
        promote(whole.folder, tmp_path / "baselines")
    assert use_cases.compare_with_baseline(str(file), stored).verdict == "not-measured"


def test_pairs_that_were_cut_short(tmp_path: Path) -> None:
    """The base of pairs whose head regressed is no visit of the baseline before it was traced and counted."""
    spec = FakeSpec(restart_sd=0.0001, head_ratio={"step": 1.2})
    file = scenario_file(tmp_path, gates=TIME, more=f"{TRACED}counters: [{{role: gemm, profile: 4}}]\n")
    folder = use_cases.run([file], BOTH, runs=tmp_path, seed=1, collector=FakeCollector(spec)).folder
    (record,) = read_records(folder, read_run(folder))
    timed = tuple(t for t in record.trials if t.kind == "timed")
    write_record(record_file(folder, record.cell), record.model_copy(update={"trials": timed}))

    with pytest.raises(NotMeasuredError, match="0 of 1 traced pairs were taken"):
        promote(folder, tmp_path / "baselines", reason="first")

    write_record(record_file(folder, record.cell), record)
    (done,) = promote(folder, tmp_path / "baselines", reason="first")
    assert (done.kind, done.side) == ("first", "base")


def test_roles_that_changed_are_no_comparison(tmp_path: Path) -> None:
    """Kernel times by other roles, or counters of other launches, are not those of the baseline."""
    promote(measure(tmp_path, 0).folder, tmp_path / "baselines", reason="first")
    roles = 'kernels: {traced: {iterations: 2}, roles: {mine: {match: "^nothing"}}}\n'

    other = measure(tmp_path, 1, kernels=roles)

    (reason,) = only(other).reasons
    assert (other.outcome.exit_status, reason.code) == (21, "different-cells")
    assert "traced with other roles" in reason.text
    assert "counted with other roles" in reason.text
    with pytest.raises(UsageError, match="tiny: changed"):
        promote(other.folder, tmp_path / "baselines")


def test_a_file_does_not_grow_with_the_steps_traced(tmp_path: Path) -> None:
    """It keeps what steps ran and not how long each took, so that a year of nights fits in it; shares are as traced."""
    folder = measure(tmp_path, 0, gates=TIME).folder
    promote(folder, tmp_path / "baselines", reason="first")
    (file,) = files(tmp_path / "baselines")
    (entry,) = read(file).baseline.entries
    (record,) = read_records(folder, read_run(folder))
    traced = record.judged_trials("head", "traced")[0].decode

    assert entry.decode is not None
    assert traced is not None
    assert traced.steps > 1
    assert entry.decode.step_ns == entry.decode.call_ns == ()
    assert (entry.decode.steps, entry.decode.patterns) == (traced.steps, traced.patterns)
    assert entry.decode.unlisted_share == traced.unlisted_share


def without_exact_parts(baselines: Path) -> None:
    """Make the only baseline one of an earlier version, which kept neither steps nor counters."""
    (file,) = files(baselines)
    (entry,) = read(file).baseline.entries
    older = entry.model_copy(update={"decode": None, "counted": None}).sealed()
    file.write_text(Baseline(entries=(older,)).text)


@pytest.mark.parametrize(("older", "status", "code"), [(True, 10, "outside-envelope"), (False, 21, "envelope-stale")])
def test_an_envelope_holds_a_head(tmp_path: Path, status: int, code: str, *, older: bool) -> None:
    """A step outside the scenario's envelope blocks; not if the baseline's build ran it too, as in pairs."""
    promote(measure(tmp_path, 0, gates=TIME).folder, tmp_path / "baselines", reason="first")
    if older:
        without_exact_parts(tmp_path / "baselines")
    declared = "kernels: {traced: {iterations: 2}, per_decode_step: {patterns: [{launches: 3}]}}\n"

    finished = measure(tmp_path, 1, gates=TIME, kernels=declared)

    assert finished.outcome.exit_status == status
    assert code in codes(only(finished).reasons)


@pytest.mark.parametrize(
    ("condition", "ratio", "older", "status", "code"),
    [
        ("registers: same", 1.0, False, 20, None),
        ("registers: same", 1.5, False, 10, "counter-differs"),
        ("registers: same", 1.5, True, 20, "no-profile"),
        ('registers: "<= 200"', 1.5, False, 10, "counter-out-of-bounds"),
        ('registers: "<= 1"', 1.0, True, 10, "counter-out-of-bounds"),
        ('registers: "<= 1"', 1.0, False, 21, "counter-bound-stale"),
    ],
)
def test_conditions_on_counters(
    tmp_path: Path, condition: str, ratio: float, status: int, code: str | None, *, older: bool
) -> None:
    """What must be the same is held against what the baseline's build counted; bounds hold without it too."""
    counters = f"{{role: gemm, profile: 4, metrics: {{{condition}}}}}"
    promote(measure(tmp_path, 0, gates=TIME, counters=counters).folder, tmp_path / "baselines", reason="first")
    if older:
        without_exact_parts(tmp_path / "baselines")

    finished = measure(tmp_path, 1, gates=TIME, counters=counters, ratio={"registers": ratio})

    said = {*codes(only(finished).reasons), *codes(only(finished).cautions)}
    assert (finished.outcome.exit_status, code is None or code in said) == (status, True)


def test_a_build_that_counts_otherwise_is_another(tmp_path: Path) -> None:
    """As fast as the baseline, by all that can be told the same build, and yet not: no spread explains a register."""
    counters = "{role: gemm, profile: 4, metrics: {registers: same}}"
    promote(measure(tmp_path, 0, gates=TIME, counters=counters).folder, tmp_path / "baselines", reason="first")
    other = measure(tmp_path, 1, gates=TIME, counters=counters, ratio={"registers": 1.5})

    with pytest.raises(UsageError, match="it differs in more than time: counter-differs"):
        promote(of_day(2, other.folder), tmp_path / "baselines")
    (anew,) = promote(other.folder, tmp_path / "baselines", reason="another compiler")

    assert anew.kind == "changed"
    assert [entry.counted is not None for entry in anew.baseline.entries] == [True, True]


class _OfTwoRanks(FakeCollector):
    """Traces an engine of two ranks."""

    def collect(self, job: Job, say: Callable[[str], None]) -> Trial:
        """See :class:`FakeCollector`."""
        taken = super().collect(job, say)
        return taken if job.kind != "traced" else taken.model_copy(update={"ranks": engine()[1]})


def test_a_baseline_keeps_no_ranks(tmp_path: Path) -> None:
    """The ranks of a head measured alone are shown alone: they are not taken for those of the baseline."""
    promote(of_day(1, measure(tmp_path, 0).folder), tmp_path / "baselines", reason="first")
    file = scenario_file(tmp_path, gates=f"{TIME}, {GEMM}", more=TRACED)
    finished = use_cases.run(
        [file],
        {"head": HEAD},
        runs=tmp_path / "runs",
        seed=1,
        against=tmp_path / "baselines",
        collector=_OfTwoRanks(FakeSpec(restart_sd=0.001), 1),
    )

    found = only(finished).fact("ranks")
    assert found is not None
    assert [*found.skew_s] == ["head"]
