"""What is written of scenarios is current and whole, and of all rooms: the page, the schema, shipped files, errors."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from perfgate.errors import ScenarioError
from perfgate.scenario.declaration import json_schema, load, loads

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


def test_the_committed_schema_is_current() -> None:
    """docs/schema holds what this version generates; mend it with: perfgate schema."""
    assert (ROOT / "docs" / "schema" / "scenario.schema.json").read_text() == json.dumps(json_schema(), indent=2) + "\n"


@pytest.mark.parametrize("file", sorted((ROOT / "scenarios").glob("*.yaml")), ids=lambda file: file.stem)
def test_shipped_scenarios_are_valid(file: Path) -> None:
    """Each scenario in scenarios/ loads, satisfies the schema, names it on its first line, and is named as its file."""
    loaded = load(file)
    jsonschema.Draft7Validator(json_schema()).validate(YAML(typ="safe", pure=True).load(loaded.text))
    modeline = "# yaml-language-server: $schema=../docs/schema/scenario.schema.json"
    assert loaded.text.splitlines()[0] == modeline
    assert loaded.scenario.name == file.stem


def test_every_problem_of_a_badly_broken_scenario_is_listed() -> None:
    """The golden file holds one line a mistake, in file order."""
    text = (ROOT / "tests" / "golden" / "broken-scenario.yaml").read_text()
    with pytest.raises(ScenarioError) as caught:
        loads(text, Path("broken-scenario.yaml"))
    assert str(caught.value) + "\n" == (ROOT / "tests" / "golden" / "broken-scenario.txt").read_text()
