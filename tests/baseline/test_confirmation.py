"""A head that would regress by a baseline's visits: pairs with the build that was promoted decide, and nothing else."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fake_collector import FakeCollector, FakeSpec
from hand_made import scenario_file
from stored import of_day

from perfgate import gate as use_cases
from perfgate.baseline.confirmation import run_of_pairs
from perfgate.baseline.promotion import promote
from perfgate.cli.main import main
from perfgate.confirming import in_pairs
from perfgate.errors import RecordError
from perfgate.scenario.declaration import load
from perfgate.scenario.subject import Subject

pytestmark = pytest.mark.usefixtures("no_orphans")

BASE = ("--base", "python=/bin/true")
SLOW = ("--head", "args.max_num_seqs=4")
Measure = Callable[..., Result]


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Measures a head against eight visits of one build, on a machine of so many times the visits' step."""
    monkeypatch.chdir(tmp_path)
    file = scenario_file(tmp_path, gates="{metric: itl_median, ignorable: 1%, must_catch: 5%}")

    def run(*words: str, head: float = 1.0, machine: float = 1.0, seed: int = 99) -> Result:
        step_s = FakeSpec().step_s * machine
        collector = FakeCollector(FakeSpec(step_s=step_s, restart_sd=0.003, head_ratio={"step": head}), seed)
        return CliRunner().invoke(main, ["run", str(file), "--against", "baseline", *words], obj=collector)

    for day in range(1, 9):
        run(*BASE, seed=day)
        promote(of_day(day, newest()), tmp_path / "baselines", reason="one more")
    return run


def newest() -> Path:
    """The run that was begun last."""
    return max(Path("runs").iterdir(), key=lambda one: one.stat().st_mtime_ns)


def test_pairs_block_what_is_slower(measure: Measure) -> None:
    """What visits say alone ends 20; pairs with the named base, taken at once, end 10, and so does judging again."""
    ended = measure(*BASE, *SLOW, head=1.1)

    pairs = run_of_pairs(newest())
    assert pairs is not None
    assert json.loads((pairs / "run.json").read_text())["against"] is None
    assert (ended.exit_code, use_cases.outcome_of(newest()).verdict) == (10, "regressed")
    assert json.loads((newest() / "verdict.json").read_text())["verdict"] == "regressed"
    assert "would regress by the baseline's visits: pairs with the build that was promoted last decide" in ended.output
    shutil.rmtree(newest() / "pairs")
    alone = use_cases.outcome_of(newest())
    assert (alone.verdict, alone.exit_status, alone.would_be) == ("advisory", 20, "regressed")


def test_pairs_pass_what_only_met_a_slow_day(measure: Measure) -> None:
    """A machine that is 10 % slower than on all days before slows base and head alike: nothing regressed."""
    ended = measure(*BASE, *SLOW, machine=1.1)

    assert (ended.exit_code, use_cases.outcome_of(newest()).verdict) == (0, "pass")
    assert "would-regress" in ended.output


def test_a_head_that_passes_takes_no_pairs(measure: Measure) -> None:
    """Eight visits pass an unchanged head; nothing more is measured."""
    ended = measure(*BASE, *SLOW)

    assert ended.exit_code == 0
    assert run_of_pairs(newest()) is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "pairs decide: perfgate run "),
        (("--base", "args.max_num_seqs=8"), "Name that build: perfgate run "),
    ],
    ids=["no base", "another base"],
)
def test_without_pairs_nothing_is_decided(measure: Measure, words: tuple[str, ...], told: str) -> None:
    """It ends 20, and says with which command pairs are taken."""
    ended = measure(*words, *SLOW, head=1.1)

    assert ended.exit_code == 20
    assert told in ended.output
    assert "ADVISORY: itl_median +10" in ended.output
    assert run_of_pairs(newest()) is None


def test_no_time_for_pairs(measure: Measure) -> None:
    """Where the budget does not reach the first look that may block, none are begun: the command is said instead."""
    measure(*SLOW, head=1.1)
    finished = use_cases.Finished(newest(), use_cases.outcome_of(newest()))
    told: list[object] = []

    again = in_pairs(finished, [load(Path("tiny.yaml"))], Subject(python="/bin/true"), told.append, budget_s=1e-3)

    assert again == finished
    assert re.search(
        r"Pairs decide, and take about \d min more: perfgate run tiny.yaml --base python=/bin/true --head ", str(told)
    )


def test_pairs_of_another_head_are_refused(measure: Measure) -> None:
    """A folder of pairs that belong to another run decides nothing: it is named, and the run is not judged."""
    measure(*BASE, *SLOW, head=1.1)
    slower, pairs = newest(), run_of_pairs(newest())
    assert pairs is not None
    measure("--head", "args.max_num_seqs=6", head=1.1)
    shutil.copytree(slower / "pairs", newest() / "pairs")

    with pytest.raises(RecordError, match="is of another head"):
        use_cases.outcome_of(newest())
