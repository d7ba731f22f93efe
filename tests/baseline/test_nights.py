"""The drift of a build that changes every night, held against its scenario's budget."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hand_made import BASE, HEAD, MACHINE, STEP_S, scenario_file, trial
from stored import GATES, measured

from perfgate.baseline.drift_page import finding, measured_builds
from perfgate.baseline.lineage import Baseline, Entry, draft
from perfgate.baseline.night_series import Drift, drifts
from perfgate.baseline.store import baseline_path
from perfgate.cli.main import main
from perfgate.record.run_record import Record, Visit
from perfgate.scenario.declaration import load
from perfgate.scenario.margins import Budget
from perfgate.scenario.plan import Cell, resolve_cells

BEGUN = datetime.fromisoformat("2026-01-01T02:00:00+00:00")
WOBBLE = (0.0, 0.0004, -0.0003, 0.0002, -0.0004)


def night(number: int, ratio: float, *, anchor: str = "0.8", head: str = "", of: Cell | None = None) -> Record:
    """Six pairs of an anchor and of that night's head, on a machine that is slower every night."""
    level = STEP_S * math.exp(0.01 * number)
    ratio += WOBBLE[number % len(WOBBLE)]
    taken = []
    for pair in range(6):
        taken.append(trial(2 * pair, pair, "base", level, versions={"vllm": anchor}))
        version = {"vllm": head or f"1.{number}"}
        taken.append(trial(2 * pair + 1, pair, "head", level * math.exp(ratio), versions=version))
    where = Visit(machine=MACHINE, t0_utc=(BEGUN + timedelta(days=number)).isoformat())
    cell = of or measured("cell", GATES)
    return Record(cell=cell, subjects={"base": BASE, "head": HEAD}, seed=1, visits=(where,), trials=tuple(taken))


def lineage(records: Sequence[Record]) -> Baseline:
    """Nights as they were promoted: every head is another build, and begins anew."""
    entries: list[Entry] = []
    for one in records:
        changes: dict[str, Any] = {"kind": "changed" if entries else "first", "reason": "nightly"}
        changes |= {"parent": entries[-1].digest if entries else ""}
        entries.append(draft(one, "head", anchored=True).model_copy(update=changes).sealed())
    return Baseline(entries=tuple(entries))


LOSING = [night(n, 0.0005 * n) for n in range(30)]
"""A twentieth of a percent every night: 1.5 % in all."""
STEADY = [night(n, 0.01) for n in range(30)]


@pytest.mark.parametrize(
    ("metric", "nights", "budget", "over"),
    [
        ("itl_median", LOSING, Budget(0.01, 30), True),
        ("itl_median", LOSING, Budget(0.02, 30), False),
        ("itl_median", LOSING, Budget(0.01, 10), False),
        ("itl_median", STEADY, Budget(0.002, 30), False),
        ("output_throughput", LOSING, Budget(0.01, 30), True),
    ],
)
def test_many_small_losses_are_one(metric: str, nights: Sequence[Record], budget: Budget, *, over: bool) -> None:
    """They count together, whatever the machine does meanwhile; a throughput that falls is a loss."""
    ((_, (found,)),) = drifts([(lineage(nights), {metric: budget})])

    assert len(found.nights) == 30
    assert found.over == over


def test_a_new_anchor_goes_on_where_one_build_was_measured_beside_both() -> None:
    """What was lost before the anchor was exchanged still counts, with the error of the link."""
    before = [night(n, 0.0005 * n) for n in range(16)]
    both = [night(15, 0.0075 - 0.03, anchor="0.9"), night(16, 0.0075 - 0.03, anchor="0.9", head="1.15")]
    after = [night(n, 0.0005 * n - 0.03, anchor="0.9") for n in range(17, 30)]

    linked, cut = (drifts([(lineage(nights), {"itl_median": Budget(0.008, 40)})])[0][1][0]
                   for nights in ([*before, *both, *after], [*before, *after]))  # fmt: skip

    assert (linked.over, cut.over) == (True, False)
    assert (len(linked.nights), len(cut.nights)) == (31 - 1, 13)
    assert linked.change is not None
    assert linked.change.mean == pytest.approx(0.0005 * 23, abs=0.0006)


def test_other_cells_are_another_series() -> None:
    """Nights of a scenario that was changed do not count, before or after."""
    batch = measured("cell", GATES).workload.model_copy(update={"batch": 4})
    other = measured("cell", GATES).model_copy(update={"cell_id": "other", "workload": batch})
    mixed = [*(night(n, 0.5, of=other) for n in range(5)), *LOSING[5:]]

    ((_, (found,)),) = drifts([(lineage(mixed), {"itl_median": Budget(0.01, 30)})])

    assert len(found.nights) == 25


def test_runs_of_one_day_are_one_night() -> None:
    """Eight runs within the same hours are no eight nights: two days tell nothing of how nights spread."""
    runs = []
    for day, ratio, hour in [(0, 0.0, hour) for hour in range(4)] + [(29, 0.05, hour) for hour in range(4)]:
        begun = (BEGUN + timedelta(days=day, hours=hour)).isoformat()
        runs.append(night(hour, ratio).model_copy(update={"visits": (Visit(machine=MACHINE, t0_utc=begun),)}))

    ((_, (found,)),) = drifts([(lineage(runs), {"itl_median": Budget(0.01, 30)})])

    assert (len(found.nights), found.change) == (2, None)


def test_a_link_that_the_window_does_not_reach() -> None:
    """Once a window has one anchor alone, how well that was linked to the one before no longer matters."""
    before = [night(n, 0.01) for n in range(10)]
    link = [night(10, 0.01 - 0.03, anchor="0.9", head="1.9")]
    after = [night(n, 0.01 - 0.03, anchor="0.9") for n in range(11, 40)]

    linked, cut = (drifts([(lineage(nights), {"itl_median": Budget(0.01, 20)})])[0][1][0].change
                   for nights in ([*before, *link, *after], after))  # fmt: skip

    assert linked is not None
    assert cut is not None
    assert linked.standard_error == cut.standard_error


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[Any], str], Any]:
    """A function that runs ``baseline drift`` for nights of a scenario with this budget."""
    monkeypatch.chdir(tmp_path)

    def told(nights: Sequence[tuple[int, float]], budget: str, *words: str) -> Any:
        file = scenario_file(tmp_path, more=budget)
        (cell,) = resolve_cells(load(file))
        baseline = lineage([night(number, ratio, of=cell) for number, ratio in nights])
        target = tmp_path / "heads" / baseline_path(cell, baseline.machine_class)
        target.parent.mkdir(parents=True)
        target.write_text(baseline.text)
        return CliRunner().invoke(main, ["baseline", "drift", str(file), "--baselines", "heads", *words])

    return told


def test_the_builds_in_between_are_named(project: Callable[..., Any]) -> None:
    """Over budget it ends with 10, says how much was lost between which builds, and draws the nights."""
    ended = project([(n, 0.0005 * n) for n in range(30)], "drift: {itl_median: 1% in 30 days}\n")

    assert ended.exit_code == 10, ended.output
    assert "OVER BUDGET" in ended.stdout
    assert "changes after vllm 1.0 and up to vllm 1.29, with 28 builds measured in between" in ended.stdout
    assert "▁" in ended.stdout
    assert "2026-01-05: vllm 1.4\n- ... 20 more\n- 2026-01-26: vllm 1.25\n" in ended.stdout
    assert "2026-01-01 to 2026-01-30" in ended.stdout
    assert "the anchor's own, vllm 0.8" in ended.stdout


def test_every_build_in_json(project: Callable[..., Any]) -> None:
    """It names all builds of the window, which text cuts short, each with its night and with all that it is told by."""
    budget = "drift: {itl_median: 1% in 30 days}\n"
    (found,) = json.loads(project([(n, 0.0005 * n) for n in range(30)], budget, "--format", "json").stdout)

    assert (found["metric"], found["over"], len(found["nights"])) == ("itl_median", True, 30)
    assert found["budget"] == {"most": pytest.approx(0.01), "days": 30}
    told = [(build["date"], build["name"], build["versions"]) for build in found["builds"]]
    assert told[11] == ("2026-01-12", "vllm 1.11", {"vllm": "1.11"})
    assert len(told) == 30


def test_no_night_beside_an_anchor(project: Callable[..., Any]) -> None:
    """Nights of other metrics leave a budget undecided, in every format."""
    ended = project([(n, 0.0) for n in range(9)], "drift: {kv_token_capacity: 1% in 30 days}\n", "--format", "json")

    assert ended.exit_code == 20, ended.output
    (found,) = json.loads(ended.stdout)
    assert (found["nights"], found["builds"], found["moved"]) == ([], [], None)


def of_builds(builds: Iterable[tuple[dict[str, str], dict[str, Any]]]) -> Drift:
    """The drift of losing nights whose heads have these packages and arguments."""
    nights = []
    for number, (versions, args) in enumerate(builds):
        one = night(number, 0.0005 * number)
        head = one.subjects["head"].model_copy(update={"args": args})
        taken = [t if t.subject == "base" else t.model_copy(update={"versions": versions}) for t in one.trials]
        nights.append(one.model_copy(update={"trials": tuple(taken), "subjects": {**one.subjects, "head": head}}))
    ((_, (found,)),) = drifts([(lineage(nights), {"itl_median": Budget(0.01, 30)})])
    assert found.over
    return found


@pytest.mark.parametrize(
    ("builds", "first", "last"),
    [
        ([({"vllm": "1", "torch": f"2.{n}"}, {}) for n in range(30)], "vllm 1, torch 2.0", "vllm 1, torch 2.29"),
        ([({"vllm": "1"}, {"seed": n}) for n in range(30)], "vllm 1, args.seed=0", "vllm 1, args.seed=29"),
        (
            [({"vllm": f"1.{n}", "vllm commit": f"c{n}", "torch": f"2.{n}"}, {}) for n in range(30)],
            "vllm 1.0, vllm commit c0", "vllm 1.29, vllm commit c29",
        ),
    ],
)  # fmt: skip
def test_builds_are_told_apart(builds: list[tuple[dict[str, str], dict[str, Any]]], first: str, last: str) -> None:
    """Builds of one version of vLLM that differ in other packages or arguments are several, named by what differs."""
    found = of_builds(builds)

    assert finding(found).startswith(f"the loss is of changes after {first} and up to {last}, with 28 builds")
    assert [*measured_builds(found)][-1] == f"2026-01-30: {last}"


def test_one_build_all_along() -> None:
    """Its ratio to the anchor moved, which no machine that slows both does: that is said, and no list of one build."""
    found = of_builds([({"vllm": "1"}, {})] * 30)

    assert "one build was measured all along, vllm 1: what slows the anchor as much cancels" in finding(found)
    assert [*measured_builds(found)] == []


@pytest.mark.parametrize(
    ("nights", "budget", "status"),
    [(30, "drift: {itl_median: 2% in 30 days}\n", 0), (5, "drift: {itl_median: 2% in 30 days}\n", 20), (5, "", 0)],
)
def test_exit_status(project: Callable[..., Any], nights: int, budget: str, status: int) -> None:
    """Within its budget 0, with too few nights 20, without a budget 0."""
    assert project([(n, 0.0005 * n) for n in range(nights)], budget).exit_code == status


def test_a_scenario_without_nights(project: Callable[..., Any], tmp_path: Path) -> None:
    """It is named, and no pass: beside one that is within its budget, too."""
    budget = "drift: {itl_median: 2% in 30 days}\n"
    project([(n, 0.0) for n in range(30)], budget)
    other = tmp_path / "other.yaml"
    other.write_text((tmp_path / "tiny.yaml").read_text().replace("name: tiny", "name: other"))

    ended = CliRunner().invoke(main, ["baseline", "drift", "tiny.yaml", "other.yaml", "--baselines", "heads"])

    assert ended.exit_code == 20
    assert "heads: no nights of other as other.yaml has it" in ended.stderr
    assert "within" in ended.stdout


def test_a_scenario_without_a_budget(project: Callable[..., Any], tmp_path: Path) -> None:
    """Beside one that has one its nights are drawn, and the other's nights decide."""
    project([(n, 0.0005 * n) for n in range(30)], "drift: {itl_median: 2% in 30 days}\n")
    (tmp_path / "other.yaml").write_text((tmp_path / "tiny.yaml").read_text().partition("drift:")[0])

    ended = CliRunner().invoke(main, ["baseline", "drift", "tiny.yaml", "other.yaml", "--baselines", "heads"])

    assert ended.exit_code == 0, ended.output
    assert "other.yaml: no drift budget, so its nights are drawn and held against nothing" in ended.stderr
    assert "| `itl_median` | 2% in 30 days | +1.15 % | 30 | within |" in ended.stdout
    assert "| `itl_median` | none | +1.15 % | 30 | only drawn |" in ended.stdout


def test_what_is_only_drawn_loosens_no_budget() -> None:
    """A series without a budget is no member of the family that Holm's correction is of."""
    limit = {"itl_median": Budget(0.0104, 30)}
    ((_, (alone,)),) = drifts([(lineage(LOSING), limit)])
    nothing: dict[str, Budget | None] = {"itl_median": None}

    *_, (_, (beside,)) = drifts([*[(lineage(LOSING), nothing)] * 50, (lineage(LOSING), limit)])

    assert alone == beside
    assert alone.over


@pytest.mark.parametrize(("lost", "status"), [(0.0005, 10), (0.0, 0)])
def test_the_step_of_a_job(
    project: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: float, status: int
) -> None:
    """An overdrawn budget is an annotation that says between which builds, and the summary has the nights."""
    project([(n, lost * n) for n in range(30)], "drift: {itl_median: 1% in 30 days}\n")
    summary = tmp_path / "summary"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))

    ended = CliRunner().invoke(main, ["github", "drift", "heads", "--scenarios", "*.yaml"])

    assert ended.exit_code == status, ended.output
    said = "tiny: itl_median lost more than 1%25 in 30 days: the loss is of changes after vllm 1.0"
    assert (said in ended.stdout) == (status == 10)
    assert ("%0A2026-01-30: vllm 1.29" in ended.stdout) == (status == 10)
    assert "| itl_median | 1% in 30 days |" in summary.read_text().replace("`", "")


def test_the_reference_is_drawn_by_the_job(
    project: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nights are beside the anchor too: the summary has them, and whatever they lost fails no job."""
    project([(n, 0.0005 * n) for n in range(30)], "drift: {itl_median: 1% in 30 days}\n")
    (tmp_path / "heads").rename(tmp_path / "baselines")
    summary = tmp_path / "summary"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))

    ended = CliRunner().invoke(main, ["github", "drift", "heads", "--scenarios", "*.yaml", "--draw", "baselines"])

    assert ended.exit_code == 0, ended.output
    assert "## Nights in `baselines`" in summary.read_text()
    assert "| `itl_median` | none | +1.15 % | 30 | only drawn |" in summary.read_text()


@pytest.mark.parametrize(
    "budget",
    [
        *(f"itl_median: {words}" for words in ("1%", "1 in 30 days", "0% in 30 days", "1% in 0 days", "[1]")),
        "itl_median: 1% in 99999 days",
        "itl_medain: 1% in 30 days",
    ],
)
def test_budgets_that_are_refused(tmp_path: Path, budget: str) -> None:
    """A budget names a metric, a slowdown and days; nothing, or nobody's lifetime, is neither."""
    ended = CliRunner().invoke(main, ["check", str(scenario_file(tmp_path, more=f"drift: {{{budget}}}\n"))])

    assert ended.exit_code == 2
    assert "drift" in ended.stderr
    assert budget.partition(":")[0] in ended.stderr
