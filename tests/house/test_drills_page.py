"""The page of the catalogue."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from perfgate.drill.plants import load_catalogue

ROOT = Path(__file__).parents[2]
page: Any = importlib.import_module("drills_page")


def test_the_committed_page_is_current() -> None:
    """It is written from the plants' files; ``make docs`` writes it anew."""
    assert (ROOT / "docs" / "drills.md").read_text() == page.render_drills_page()


def test_every_plant_and_issue_is_on_the_page() -> None:
    """Each plant has a row, and each regression that it re-creates another."""
    text = page.render_drills_page()
    for plant in load_catalogue(ROOT / "drills"):
        assert f"| `{plant.name}` | {plant.what} |" in text
        assert all(f"| {one.issue} | `{plant.name}` | {one.mechanism} |" in text for one in plant.recreates)
