"""Whole runs with --host-profile, on fakes whose schedulers take longer on the head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fake_collector import FakeCollector, FakeSpec
from hand_made import BOTH, scenario_file

from perfgate import gate as use_cases
from perfgate.cli.main import main
from perfgate.errors import UsageError
from perfgate.judge.outcome import CellOutcome, verdict_json
from perfgate.record.run_record import read_record, read_run, record_file
from perfgate.report.outcome_document import outcome_document
from perfgate.report.run_page import MeasuredRun, run_page
from perfgate.report.text import to_text

pytestmark = pytest.mark.usefixtures("no_orphans")


def finish(folder: Path, lines: float = 4.0, **options: Any) -> use_cases.Finished:
    """A run whose head's scheduler runs so many times the base's lines."""
    spec = FakeSpec(restart_sd=0.0003, head_ratio={"lines": lines})
    options = {"subjects": BOTH, "collector": FakeCollector(spec), "host_profile": True, **options}
    return use_cases.run([scenario_file(folder)], runs=folder / "runs", seed=1, **options)


def only(finished: use_cases.Finished) -> CellOutcome:
    """The one cell's outcome."""
    (cell,) = finished.outcome.cells
    return cell


def test_one_pair_is_taken_and_judges_nothing(tmp_path: Path) -> None:
    """A head whose host takes four times as long is told of by function, and passes as its steps do."""
    cell = only(finish(tmp_path))

    assert (cell.verdict, cell.pairs, cell.pairs_of("sampled")) == ("pass", 4, 1)
    assert cell.fact("host") is not None
    assert cell.fact("host").steps == {"base": 600, "head": 600}
    (change,) = cell.fact("host").functions
    assert change.function == "vllm.schedule"
    assert change.head_s - change.base_s == pytest.approx(495e-6)


def test_the_report_names_the_function(tmp_path: Path) -> None:
    """As in a diff, with the time of a step; the page has the head's flame graph, in which it is marked."""
    finished = finish(tmp_path)

    text = to_text(outcome_document(finished.outcome))
    assert "  + vllm.schedule: 165.0 us -> 660.0 us a step (+495.00 us)\n" in text
    assert "  base: on CPU 0, 1 of 2 CPUs allowed; threads: 3 python (held to 1)\n" in text
    assert "  a start imports 90 modules in 0.3 s on the base and 210 modules in 1.2 s on the head\n" in text
    assert "  + scipy.stats: 0 -> 120 modules; 0 us -> 900.0 ms\n" in text

    charts = [s.chart for s in run_page(MeasuredRun.of(finished.outcome, finished.folder)).sections if s.chart]
    (flame,) = [chart for chart in charts if chart.title == "Where the host's time goes"]
    looks = {mark.text.partition(":")[0]: mark.look for mark in flame.marks if mark.shape == "rect"}
    assert looks == {
        "vllm.step": "part part-rest",
        "vllm.schedule": "bar fill bad",
        "vllm.model": "part part-rest",
    }


def test_a_host_that_takes_as_long_is_told_so(tmp_path: Path) -> None:
    """That nothing differs is an answer too."""
    text = to_text(outcome_document(finish(tmp_path, lines=1.0).outcome))

    assert "no function differs by more than chance in 600 steps of base and 600 steps of head" in text


def test_one_side_alone_is_shown(tmp_path: Path) -> None:
    """It is compared with nothing, and its figures are there."""
    cell = only(finish(tmp_path, subjects={"base": BOTH["base"]}))

    assert cell.fact("host") is not None
    assert (cell.fact("host").steps, cell.fact("host").functions) == ({"base": 600}, ())


def test_a_quick_run_is_sampled_where_asked_to(tmp_path: Path) -> None:
    """One timed trial a side, and one sampled."""
    cell = only(finish(tmp_path, quick=True))

    assert (cell.pairs, cell.pairs_of("sampled")) == (1, 1)


def test_it_goes_on_after_an_interruption(tmp_path: Path) -> None:
    """The manifest remembers it, and what was taken counts."""
    finished = finish(tmp_path)

    again = use_cases.resume(
        finished.folder, collector=FakeCollector(FakeSpec(failures=dict.fromkeys(range(99), "gpu-lost")))
    )
    assert verdict_json(again.outcome) == verdict_json(finished.outcome)


def test_without_it_nothing_is_written(tmp_path: Path) -> None:
    """Records, manifests and verdicts of runs without it are as before."""
    finished = finish(tmp_path, host_profile=False)
    manifest = read_run(finished.folder)
    record = read_record(record_file(finished.folder, manifest.plan.cells[0]))

    assert not {trial.kind for trial in record.trials} - {"timed"}
    text = record.model_dump_json() + manifest.model_dump_json() + verdict_json(finished.outcome)
    assert "sampled" not in text
    assert "host_profile" not in text


def test_a_resumed_run_has_its_own_answer(tmp_path: Path) -> None:
    """Whether a run is sampled is decided when it begins."""
    asked = CliRunner().invoke(main, ["run", "--resume", str(finish(tmp_path).folder), "--host-profile"])

    assert asked.exit_code == 2
    assert "--host-profile cannot be given" in asked.output


def test_a_server_is_refused(tmp_path: Path) -> None:
    """Its loop runs in a process that is out of reach."""
    scenario = Path(__file__).parents[2] / "scenarios" / "cpu-tiny-server.yaml"

    with pytest.raises(UsageError, match="is a server"):
        use_cases.run([scenario], BOTH, runs=tmp_path / "runs", host_profile=True, collector=FakeCollector())
