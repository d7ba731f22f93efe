"""A format and a line of the report that somebody adds: docs/extending.md says how."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hand_made import cell, judged, spread, trials

from perfgate import rooms
from perfgate.cli.main import main
from perfgate.report.document import Document
from perfgate.report.formats import FORMATS, REPORTS, Format, formats_of, render
from perfgate.report.outcome_lines import FACTS

FIXTURES = Path(__file__).parents[1] / "fixtures"


def to_toy(document: Document) -> str:
    """A format of a few lines: titles, tables and sentences."""
    lines = [*document.headline]
    for section in document.sections:
        lines += [f"= {section.title}", *("|".join(row) for row in section.rows), *section.lines]
        lines += [f"! {note.code}" for note in section.notes]
    return "\n".join([*lines, ""])


@pytest.fixture
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, "toy", Format(to_toy, suffix=".toy"))


def run(*words: str) -> Result:
    """A command with these words."""
    return CliRunner().invoke(main, words)


@pytest.mark.usefixtures("_toy")
@pytest.mark.parametrize(
    ("command", "file", "row"),
    [
        ("kernels", "h200-nsys-ranges.sqlite.gz", "role|launches|time|share|from graphs|place|kernel"),
        ("counters", "h200-ncu-raw.txt", "counter|unit|better|repeats|meaning|usual cause and action"),
    ],
)
def test_a_format_is_an_entry(command: str, file: str, row: str) -> None:
    """With its entry alone every command that has --format takes it, and names it in its help."""
    assert row in run(command, str(FIXTURES / file), "--format", "toy").stdout.splitlines()
    assert "|toy" in run(command, "--help").stdout


@pytest.mark.usefixtures("_toy")
def test_an_outcome_is_printed_and_written_in_it(tmp_path: Path) -> None:
    """--format prints an outcome in it, --output knows its suffix; the verdict is the first line."""
    table, kept = FIXTURES / "kernel-times-h200.csv", tmp_path / "report.toy"

    gate = "kernel_time_per_step[attention]:1%:5%"
    ended = run("compare", str(table), "--gate", gate, "--format", "toy", "--output", str(kept))

    assert ended.stdout.startswith("PASS: ")
    assert any(line.startswith("kernel_time_per_step[attention]|") for line in ended.stdout.splitlines())
    assert kept.read_text() == ended.stdout


def test_a_format_that_is_not_there_is_refused() -> None:
    """Without its entry it is a fault of usage that names the formats there are."""
    ended = run("kernels", str(FIXTURES / "h200-nsys-ranges.sqlite.gz"), "--format", "toy")

    assert ended.exit_code == 2
    assert "'text', 'markdown', 'json', 'csv'" in ended.stderr


@pytest.mark.usefixtures("_toy")
def test_a_line_is_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its entry among the facts of a cell every format shows it, and it steers no terminal."""
    monkeypatch.setitem(FACTS, "weather", lambda found: f"{found.pairs} pairs in the sun\x1b[2J")
    outcome = judged(trials(spread(0.0, 0.0002, 4)), cell())

    assert "\n  weather: 4 pairs in the sun\ufffd[2J\n" in render("outcome", "text", outcome)
    assert "\n\nWeather: 4 pairs in the sun\ufffd\\[2J\n\n" in render("outcome", "markdown", outcome)
    assert "\n4 pairs in the sun\ufffd[2J\n" in render("outcome", "toy", outcome)


def test_every_report_has_text_and_markdown() -> None:
    """What the table names is there, and text and Markdown come first."""
    reports = (*REPORTS, *rooms.entries("reports"))
    assert {report: formats_of(report)[:2] for report in reports} == dict.fromkeys(reports, ("text", "markdown"))
