"""The pages of the reason codes."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from perfgate.cli.main import main
from perfgate.reasons import REASONS

page: Any = importlib.import_module("codes_page")
PAGES = Path(__file__).parents[2] / "docs" / "reasons.md"


def test_every_code_has_a_page() -> None:
    """``perfgate explain CODE`` prints meaning and remedy, ``docs/reasons.md`` holds the same."""
    pages = PAGES.read_text()
    for code, reason in REASONS.items():
        printed = CliRunner().invoke(main, ["explain", code])

        assert printed.exit_code == 0, code
        assert " ".join(printed.stdout.split()) == f"{code} {reason.meaning} What to do: {reason.remedy}"
        assert f"## {code}\n" in pages


def test_the_committed_pages_are_current() -> None:
    """They are written from the table; ``make docs`` writes them anew."""
    assert PAGES.read_text() == page.render_codes_page()


def test_a_code_that_does_not_exist() -> None:
    """It ends 2 and names the nearest one."""
    ended = CliRunner().invoke(main, ["explain", "times-unevn"])

    assert ended.exit_code == 2
    assert "did you mean 'times-uneven'" in ended.stderr


def test_a_code_of_an_earlier_version() -> None:
    """The page is that of the code that says so today."""
    today, before = (CliRunner().invoke(main, ["explain", code]).stdout for code in ("times-uneven", "mode-share"))

    assert before == today


def test_the_list() -> None:
    """Without a code every code is listed with what it means, one a line."""
    printed = CliRunner().invoke(main, ["explain"])

    assert [line.split()[0] for line in printed.stdout.splitlines()] == list(REASONS)
