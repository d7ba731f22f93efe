"""A replay is reported with its declared rates beside the observed ones, and from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfgate.cli.main import main
from perfgate.drill.peer_rules import PEERS
from perfgate.drill.recordings import read_recordings
from perfgate.drill.replay import Declared, Share
from perfgate.drill.replay_document import ReplayReport, replay_document, replay_report
from perfgate.report.formats import render
from perfgate.report.markdown import to_markdown
from perfgate.report.text import to_text
from perfgate.scenario.declaration import load

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
TIGHT = ROOT / "scenarios" / "llama-8b-decode-tight.yaml"
QUIET = FIXTURES / "h200-llama-8b-iterations.csv"


@pytest.fixture(scope="module")
def report() -> ReplayReport:
    """A small replay of real pairs."""
    return replay_report(read_recordings(QUIET), Declared.of(load(TIGHT)), draws=60, seed=1)


def test_text_and_markdown_show_the_same_tables(report: ReplayReport) -> None:
    """Every truth, size, rule and recording is a row in both."""
    document = replay_document(report)

    for shown in (to_text(document), to_markdown(document)):
        assert "replay of llama-8b-decode-tight: no declared rate is refuted in 60 draws of each truth" in shown
        for word in ("every gate at its ignorable", "+0.05 %", "+0.35 %", "+1 %", "missed, +0.15 %", "benchstat",
                     "twelve pairs, same build", "60 draws from 54 pairs of 8 visits, seed 1"):  # fmt: skip
            assert word in shown


def test_a_broken_rate_is_in_the_headline_and_named(report: ReplayReport) -> None:
    """What is refuted is said first, with its exact bound."""
    rows = [report.rows[0].model_copy(update={"regressed": Share.counted(41, 1000)}), *report.rows[1:]]
    document = replay_document(report.model_copy(update={"rows": tuple(rows)}))

    assert document.headline == ("replay of llama-8b-decode-tight: 1 declared rate broken in 60 draws of each truth",)
    said = "nothing slower: broken: false-blocks 4.1 % (at least 3.1 %) against 1 % declared"
    assert said in to_text(document)
    assert said in to_markdown(document)


def test_the_report_is_read_back_from_json(report: ReplayReport) -> None:
    """Nothing is lost on the way."""
    assert ReplayReport.model_validate_json(render("replay", "json", report)) == report


def test_the_command_replays_without_measuring(tmp_path: Path) -> None:
    """A scenario and recordings are enough; what is left out is named, and the report is written to files too."""
    states, output = FIXTURES / "h200-x4-states.csv", tmp_path / "replay.json"
    words = ["drill", str(TIGHT), "--replay", str(states), "--draws", "20", "--format", "text"]

    ended = CliRunner().invoke(main, [*words, "--output", str(output)], catch_exceptions=False)

    assert ended.exit_code == 0, ended.output
    assert "tp2-other-all-reduce: 5 pairs of h200-x4-states x2, and the last look is at 12" in ended.output
    assert {one["name"] for one in json.loads(output.read_text())["recordings"]} == {
        "block-size-64", "same-build-card-1",
    }  # fmt: skip


def test_a_broken_rate_ends_with_10(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that passes what it must catch ends the command like a plant that passed."""
    monkeypatch.setattr("perfgate.stats.Estimate.p_below", lambda self, bound: float(self.mean >= bound))
    words = ["drill", str(TIGHT), "--replay", str(QUIET), "--draws", "60"]

    ended = CliRunner().invoke(main, words, catch_exceptions=False)

    assert ended.exit_code == 10
    assert "itl_median slower by 0.15 %: broken: false-passes" in ended.output


def test_the_committed_page_has_every_part() -> None:
    """docs/drills-replay.txt has the curve of each scenario and every rule, on quiet pairs and on those of states."""
    page = (ROOT / "docs" / "drills-replay.txt").read_text()

    assert page.count("### detection curve of itl_median") == 4
    assert page.count("broken:") == 0
    for row in ("+0.05 %", "+0.25 %", "+1 %", *(rule.name for rule in PEERS)):
        assert page.count(f"\n| {row} |") == 4
