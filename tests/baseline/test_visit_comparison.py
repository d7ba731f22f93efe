"""One measured side against stored baselines: verdicts, advice, refusals, and that they can be had again."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from click.testing import CliRunner
from fake_collector import FakeCollector, FakeSpec
from hand_made import HEAD, MACHINE, STEP_S, codes, gate, only, record, run, scenario_file, trial, trials
from stored import GATES, alone, chained, held, lineage, measured, of_day, said, visit

from perfgate import gate as use_cases
from perfgate.baseline.lineage import Baseline, draft
from perfgate.baseline.promotion import promote
from perfgate.baseline.stored_visit import BaselineVisit
from perfgate.baseline.visit_comparison import compare_with_baseline
from perfgate.cli.main import main
from perfgate.errors import InterruptedRunError, RecordError, UsageError
from perfgate.judge.outcome import Outcome
from perfgate.machine.telemetry import GpuTelemetry, Spread
from perfgate.metrics.trial import Startup
from perfgate.record.run_record import Record, Visit, read_run, write_record, write_run
from perfgate.report.formats import render

pytestmark = pytest.mark.usefixtures("no_orphans")

QUIET = [[mean + 0.001 * (-1) ** n for n in range(6)] for mean in (0.0, 0.002, -0.002, 0.001)]
"""Visits of six restarts whose means spread by 0.17 %."""
LOUD = [[20 * value for value in one] for one in QUIET]


def against(visits: Sequence[Sequence[float]], head: Sequence[float], **machine: Any) -> Outcome:
    """A head of these log ratios against a baseline of these visits."""
    return held(alone(head), lineage(visits, **machine))


SIX = [0.0, 0.001, -0.001, 0.0, 0.001, -0.001]
"""Restarts of a head measured to its end."""


def shifted(by: float) -> list[float]:
    """The head with every restart slower by a log ratio."""
    return [one + by for one in SIX]


# --- verdicts


@pytest.mark.parametrize(
    ("visits", "by", "verdict", "would_be", "told"),
    [
        (QUIET, 0.0, "advisory", "pass", ["advisory-unpaired"]),
        (QUIET, 0.1, "advisory", "regressed", ["would-regress"]),
        (QUIET, -0.1, "advisory", "improved", ["advisory-unpaired"]),
        (LOUD, 0.0, "inconclusive", None, ["advisory-unpaired"]),
        (LOUD, 0.6, "advisory", "regressed", ["would-regress"]),
    ],
)
def test_four_visits_advise(
    visits: list[list[float]], by: float, verdict: str, would_be: str | None, told: list[str]
) -> None:
    """Four visits say which head would regress, and neither block nor pass: their spread may show too little."""
    outcome = against(visits, shifted(by))

    assert (outcome.verdict, outcome.exit_status, outcome.would_be) == (verdict, 20, would_be)
    assert codes([*only(outcome).reasons, *outcome.cells[0].reasons]) == told
    assert only(outcome).pairs == 4
    assert only(outcome).change == pytest.approx(math.expm1(by - math.fsum(map(mean, visits)) / 4), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("by", "verdict", "status"), [(0.0, "pass", 0), (-0.1, "improved", 0), (0.1, "advisory", 20)])
def test_eight_visits_pass(by: float, verdict: str, status: int) -> None:
    """From eight visits on a head passes; however many there are, none blocks."""
    outcome = against([*QUIET, *QUIET], shifted(by))

    assert (outcome.verdict, outcome.exit_status) == (verdict, status)
    assert only(outcome).pairs == 8


@pytest.mark.parametrize(("draw_sd", "verdict"), [(0.0, "regressed"), (0.05, "inconclusive")])
def test_what_compilations_differ_by_is_in_the_error(draw_sd: float, verdict: str) -> None:
    """Visits of one build share what was compiled for them, so their spread does not tell what the head's draws."""
    side = alone(shifted(0.1))
    (plan,) = side.cell.gates
    drawn = plan.model_copy(update={"gate": plan.gate.model_copy(update={"draw_sd": draw_sd})})
    cell = side.cell.model_copy(update={"gates": (drawn,)})

    found = only(held(side.model_copy(update={"cell": cell}), lineage(QUIET)))

    assert said(found) == verdict
    assert found.carried_sd == pytest.approx(draw_sd * math.sqrt(2))


@pytest.mark.parametrize(("visits", "by", "would_be"), [(3, 0.2, "regressed"), (2, 0.0, "pass"), (1, 0.1, "regressed")])
def test_fewer_advise(visits: int, by: float, would_be: str) -> None:
    """Below four visits no pairs are asked for: what the verdict would be is told, and how many visits are missing."""
    outcome = against(QUIET[:visits], shifted(by))

    assert (outcome.verdict, outcome.exit_status, outcome.would_be) == ("advisory", 20, would_be)
    assert (only(outcome).verdict, only(outcome).would_be) == ("advisory", would_be)
    (reason,) = outcome.cells[0].reasons
    assert reason.code == "advisory-unpaired"
    assert reason.text.startswith(f"{visits} visit")


@pytest.mark.parametrize(("hours", "counted"), [(0, 1), (2, 1), (4, 2), (7, 4)])
def test_visits_within_hours_are_one(hours: int, counted: int) -> None:
    """Visits that began within six hours met one state of the machine: their spread is not that of days."""
    begun = datetime.fromisoformat(visit(1).t0_utc)
    entries = []
    for n, entry in enumerate(lineage(QUIET).entries):
        at = (begun + timedelta(hours=n * hours)).isoformat()
        moved = tuple(one.model_copy(update={"t0_utc": at}) for one in entry.visits)
        entries.append(entry.model_copy(update={"visits": moved}))

    outcome = held(alone(shifted(0.1)), Baseline(entries=tuple(entries)))

    assert outcome.verdict == "advisory"
    assert ("would-regress" in codes(only(outcome).reasons)) == (counted == 4)
    assert outcome.cells[0].baseline is not None
    assert outcome.cells[0].baseline.visits == counted


def test_a_run_that_was_resumed_is_one_visit() -> None:
    """A run resumed three times within seconds knows nothing of other days: it blocks nothing, whatever its spread."""
    trials = tuple(trial(n, n, "head", STEP_S * math.exp(0.0001 * (n % 3)), visit=n // 6) for n in range(24))
    begun = [Visit(machine=MACHINE, t0_utc=f"2026-01-01T00:00:{n:02}+00:00") for n in range(4)]
    entry = draft(alone([], trials=trials, visits=tuple(begun)), "head")

    outcome = held(alone(shifted(0.1)), Baseline(entries=(entry,)))

    assert len(entry.visits) == 4
    assert (outcome.verdict, outcome.would_be) == ("advisory", "regressed")
    assert codes(outcome.cells[0].reasons) == ["advisory-unpaired"]


def test_a_run_is_near_another_by_any_of_its_visits() -> None:
    """What was measured within hours of where a run was resumed, days after its begin, is one observation with it."""
    trials = tuple(trial(n, n, "head", visit=n // 3) for n in range(6))
    resumed = draft(alone([], trials=trials, visits=(visit(1), visit(5))), "head")
    later = draft(alone([0.0] * 6, visits=(visit(5),)), "head")

    assert len(chained((resumed, later)).occupations) == 1


def test_one_visit_knows_no_spread() -> None:
    """With one visit only restarts are counted: it says so, and claims no effect that it could have detected."""
    outcome = against(QUIET[:1], SIX)

    assert "nobody knows how far visits spread" in outcome.cells[0].reasons[0].text
    assert only(outcome).detectable is None
    assert only(outcome).visits is not None
    assert "to halve" not in render("outcome", "text", outcome)


def without(one: BaselineVisit, metric: str) -> BaselineVisit:
    """A visit that does not carry a metric."""
    return one.model_copy(update={"values": {name: found for name, found in one.values.items() if name != metric}})


def test_gates_are_one_family() -> None:
    """Two gates, one of three visits, are judged at half of alpha: what only advises loosens no other."""
    both = measured(gates=[gate("itl_median", "1%", "5%"), gate("ttft_median", "1%", "5%")])
    whole = lineage(QUIET, of=both).entries
    entries = [one.model_copy(update={"visits": (without(one.visits[0], "ttft_median"),)}) for one in whole[:3]]
    entries.append(whole[3])
    outcome = held(alone(shifted(0.1), of=both), Baseline(entries=tuple(entries)))

    itl, ttft = outcome.cells[0].gates
    assert codes(itl.reasons) == ["would-regress"]
    assert itl.block_level == pytest.approx(0.005)
    assert (ttft.verdict, ttft.would_be, ttft.reasons) == ("advisory", "regressed", ())
    assert outcome.exit_status == 20


def test_a_gate_that_the_baseline_does_not_know() -> None:
    """It has nothing to be compared with, which is no pass; the others are judged."""
    both = measured(gates=[gate("itl_median", "1%", "5%"), gate("model_memory", "1%", "5%")])

    outcome = held(alone(SIX, of=both), lineage(QUIET, of=both))

    assert [said(one) for one in outcome.cells[0].gates] == ["pass", "not-comparable"]
    assert codes(outcome.cells[0].gates[1].reasons) == ["no-baseline"]
    assert outcome.exit_status == 21


def test_what_it_could_have_detected() -> None:
    """The report names the baseline, the effect, and how many visits more would halve it, or that none do."""
    alike = [[value / 10 for value in one] for one in QUIET]
    quiet, loud = render("outcome", "text", against(alike, SIX)), render("outcome", "markdown", against(LOUD, SIX))

    assert "cell: against a baseline of 4 visits, vllm 1.0" in quiet
    assert "baseline: 4 visits of cpu-x2-observe-" in quiet
    assert "2026-01-01 to 2026-01-04" in quiet
    assert "to halve what is detectable: itl_median no number of visits (at best 1." in quiet
    assert re.search(r"Baseline: 4 visits .*to halve what is detectable: itl..?median \d+ nightly visits more", loud)


# --- what is not compared


def test_no_baseline() -> None:
    """A new cell is not comparable, with its reason, its values, and the way to a first baseline."""
    outcome = held(alone(SIX))

    assert outcome.exit_status == 21
    assert codes(outcome.cells[0].reasons) == ["no-baseline"]
    assert {row.metric for row in outcome.cells[0].ungated} >= {"itl_median", "ttft_median"}
    assert render("outcome", "text", outcome).splitlines()[-1].startswith("NOT COMPARABLE: there is no baseline yet")


def test_another_machine_or_cell() -> None:
    """Every baseline that does not fit is named with what differs; one that fits is taken, whatever lies beside it."""
    side, before = alone(shifted(0.1)), measured()
    batch = before.workload.model_copy(update={"batch": 16})
    other = held(side, lineage(QUIET, of=before.model_copy(update={"cell_id": "new", "workload": batch})))
    strangers = [lineage(QUIET, cpu="Other CPU"), lineage(QUIET, cores=64)]

    outcome, fitting = held(side, *strangers), held(side, *strangers, lineage(QUIET))

    (reason,) = outcome.cells[0].reasons
    assert (outcome.exit_status, reason.code) == (21, "different-machines")
    assert "cpu: 'Other CPU' against 'Test CPU'" in reason.text
    assert "cores: 64 against 2" in reason.text
    assert said(fitting) == "regressed"
    (reason,) = other.cells[0].reasons
    assert (other.exit_status, reason.code) == (21, "different-cells")
    assert "workload.batch: 16 against 1" in reason.text


@pytest.mark.parametrize(
    ("quick", "word"),
    [(alone(SIX[:1]), ""), (alone(SIX[:3]), ""), (record(measured(), trials([0.0])), ":head")],
    ids=["quick", "unfinished", "pair"],
)
def test_a_quick_look_is_not_compared(tmp_path: Path, quick: Record, word: str) -> None:
    """The record of a quick or unfinished run gets no verdict from a baseline, however it is named."""
    (tmp_path / "baseline.json").write_text(lineage(QUIET).text)
    write_record(tmp_path / "record.json", quick)

    outcome = compare_with_baseline(f"{tmp_path / 'record.json'}{word}", tmp_path / "baseline.json")

    assert (outcome.verdict, codes(outcome.cells[0].reasons)) == ("not-measured", ["too-few-pairs"])
    assert [*outcome.cells[0].versions] == ["head"]


def test_other_tokens() -> None:
    """A head that generates what no visit did carries the caution."""
    taken = [trial(n, n, "head") for n in range(6)]
    other = [
        t.model_copy(update={"iterations": (t.iterations[0].model_copy(update={"tokens_digest": "x"}),)}) for t in taken
    ]

    assert "outputs-differ" in codes(held(alone([], trials=tuple(other)), lineage(QUIET)).cells[0].cautions)
    assert "outputs-differ" not in codes(held(alone([], trials=tuple(taken)), lineage(QUIET)).cells[0].cautions)


def holding(tokens: int, model_bytes: int = 12_345_678_901, *gates: Any) -> Record:
    """A side whose engine holds so much."""
    started = Startup(import_ns=1, engine_ns=1, ready_ns=1, kv_token_capacity=tokens, model_memory_bytes=model_bytes)
    taken = [trial(n, n, "head").model_copy(update={"startup": started}) for n in range(6)]
    return alone([], trials=tuple(taken), of=measured(gates=[*GATES, *gates]))


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (holding(50_000), ["- kv_token_capacity: 100000 tok to 100016 tok -> 50000 tok"]),
        (holding(200_000), ["+ kv_token_capacity: 100000 tok to 100016 tok -> 200000 tok"]),
        (holding(100_008), []),
        (holding(100_000, 12_400_000_000), ["+ model_memory: 11.50 GiB -> 11.55 GiB"]),
        (holding(50_000, 12_345_678_901, gate("kv_token_capacity", "1%", "5%")), []),
    ],
)
def test_memory_that_an_engine_holds_otherwise(head: Record, told: list[str]) -> None:
    """It repeats, so what no visit of the baseline held is told with both figures, unless a gate judges it."""
    baseline = chained(draft(holding(tokens), "head") for tokens in (100_000, 100_016))

    cautions = held(head, baseline).cells[0].cautions

    assert [note.text for note in cautions if note.code == "engine-state-changed"] == told


def test_clocks_that_differ() -> None:
    """A head at another clock than the baseline's visits is not comparable, however its times look."""

    def at(mhz: int) -> Record:
        fixed = Spread(low=mhz, median=mhz, high=mhz)
        seen = GpuTelemetry(gpu="GPU-1", samples=200, aligned=True, sm_mhz=fixed, decode_sm_mhz=mhz)
        return alone([], trials=tuple(trial(n, n, "head", telemetry=(seen,)) for n in range(6)))

    four = chained(draft(at(1980).model_copy(update={"visits": (visit(day),)}), "head") for day in range(1, 5))

    same, slower = held(at(1975), four), held(at(1500), four)

    assert same.cells[0].gpus["base"].sm_mhz == 1980
    assert [said(one) for one in same.cells[0].gates] == ["pass"]
    assert (slower.exit_status, codes(slower.cells[0].reasons)) == (21, ["clocks-differ"])


# --- whole runs


@pytest.fixture
def visits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Path]:
    """A function that measures and promotes so many visits of a fake, and returns the scenario."""
    monkeypatch.chdir(tmp_path)
    file = scenario_file(tmp_path, gates="{metric: itl_median, ignorable: 1%, must_catch: 5%}")

    def some(count: int) -> Path:
        for seed in range(count):
            promote(of_day(1 + seed, measure(file, seed).folder), tmp_path / "baselines", reason="more")
        return file

    return some


def measure(file: Path, seed: int, ratio: float = 1.0) -> use_cases.Finished:
    """One side of a fake, held against the baselines of the working directory."""
    collector = FakeCollector(FakeSpec(restart_sd=0.003, head_ratio={"step": ratio}), seed)
    options: dict[str, Any] = {"runs": Path("runs"), "seed": 1, "collector": collector}
    return use_cases.run([file], {"head": HEAD}, against=Path("baselines"), **options)


def test_a_run_is_judged_again_by_its_own_copy(visits: Callable[[int], Path]) -> None:
    """The verdict is the same, byte for byte, when the baselines have moved on; a copy that was changed is refused."""
    file = visits(4)
    slower = measure(file, 9, ratio=1.1)
    verdict = (slower.folder / "verdict.json").read_bytes()
    promote(measure(file, 5).folder, Path("baselines"))
    (slower.folder / "verdict.json").unlink()

    assert said(slower.outcome) == "regressed"
    assert use_cases.judge_folder(slower.folder) == slower.outcome
    assert (slower.folder / "verdict.json").read_bytes() == verdict

    (copy,) = (slower.folder / "baselines").iterdir()
    (newer,) = Path("baselines").glob("*/*.json")
    copy.write_text(newer.read_text())
    with pytest.raises(RecordError, match="is not the baseline that the run was judged against"):
        use_cases.judge_folder(slower.folder)


def test_a_broken_baseline_stops_a_run_before_it_starts(visits: Callable[[int], Path]) -> None:
    """Nothing is measured against what cannot be trusted."""
    file = visits(1)
    before = len(list(Path("runs").iterdir()))
    (stored,) = Path("baselines").glob("*/*.json")
    stored.write_text(stored.read_text().replace("0.00", "0.01", 1))

    with pytest.raises(RecordError, match="entry 1"):
        measure(file, 1)
    assert len(list(Path("runs").iterdir())) == before


def test_command_line(visits: Callable[[int], Path]) -> None:
    """``--against baseline`` and ``--against FILE`` measure the head alone, or the base where only that is named."""
    file = visits(4)
    (stored,) = Path("baselines").glob("*/*.json")
    invoke = CliRunner().invoke
    slower = FakeCollector(FakeSpec(restart_sd=0.003, head_ratio={"step": 1.1}))

    by_folder = invoke(main, ["run", str(file), "--base", "python=/bin/true", "--against", "baseline"], obj=slower)
    by_file = invoke(main, ["run", str(file), "--head", "env.A=1", "--against", str(stored), "--seed", "1"], obj=slower)
    (record,) = max(Path("runs").iterdir(), key=lambda one: one.stat().st_mtime_ns).glob("records/*.json")
    compared = invoke(main, ["compare", str(record), str(stored)])
    neither = invoke(main, ["run", str(file), "--against", "main.txt"], obj=slower)

    assert [one.exit_code for one in (by_folder, by_file, compared, neither)] == [20, 20, 20, 2]
    assert all("against a baseline of 4 visits" in one.stdout for one in (by_folder, by_file, compared))


def test_a_glance_is_no_visit(visits: Callable[[int], Path]) -> None:
    """A quick run, which has no verdict, is not held against baselines."""
    file = visits(0)

    with pytest.raises(UsageError, match="never quick"):
        use_cases.run([file], {"head": HEAD}, against=Path("baselines"), quick=True)


def test_an_interrupted_run_goes_on(visits: Callable[[int], Path]) -> None:
    """Cut short it has no verdict; resumed it is held against the baseline that it was begun with."""
    file = visits(4)
    collector = FakeCollector(FakeSpec(restart_sd=0.003, sleep_s=0.02))

    with pytest.raises(InterruptedRunError):
        use_cases.run([file], {"head": HEAD}, against=Path("baselines"), collector=collector, budget_s=0.09)
    folder = max(Path("runs").iterdir(), key=lambda one: one.stat().st_mtime_ns)
    cut = json.loads((folder / "verdict.json").read_text())
    finished = use_cases.resume(folder, collector=collector)

    assert cut["verdict"] == "not-measured"
    assert said(finished.outcome) == "pass"
    assert finished.outcome.cells[0].baseline is not None


def test_manifest_of_before(tmp_path: Path) -> None:
    """A run of a version without baselines is read as one that has none to be held against."""
    write_run(tmp_path, run([measured()]))
    content = json.loads((tmp_path / "run.json").read_text())
    del content["against"]
    (tmp_path / "run.json").write_text(json.dumps(content))

    assert read_run(tmp_path).against is None
