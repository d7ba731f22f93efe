"""The page on scenarios is current and whole."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from perfgate.scenario.declaration import loads

ROOT = Path(__file__).parents[2]
page: Any = importlib.import_module("scenario_page")


def test_the_committed_page_is_current() -> None:
    """It is written from the models; ``make docs`` writes it anew."""
    assert (ROOT / "docs" / "scenario.md").read_text() == page.render_scenario_page()


def test_every_key_is_explained() -> None:
    """A key has a meaning and an example."""
    found = dict(page.rows())

    assert len(found) > 70
    assert [key for key, field in found.items() if not field.get("description") or page.example(key) is None] == []


def test_the_scenario_with_every_key_is_one() -> None:
    """It loads as it is shown."""
    for tour, name in ((page.TOUR, "every-key"), (page.SERVER_TOUR, "a-server")):
        assert loads(tour.read_text(), ROOT / "scenarios" / "tour.yaml").scenario.name == name


def test_cpu_tiny_is_explained_key_by_key() -> None:
    """Whatever the first scenario sets has its reason, and no reason outlives its key."""
    assert [key for key, _ in page.explained()] == list(page.CPU_TINY)
