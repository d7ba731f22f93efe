"""What the documentation shows works."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from fake_collector import FakeCollector
from pages import blocks
from stub_engine import bare_python

from perfgate import __version__, gate, rooms
from perfgate.scenario.declaration import load
from perfgate.scenario.kernel_names import ROLES

ROOT = Path(__file__).parents[2]
README_LINES = 150


def test_the_python_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_orphans: None) -> None:  # noqa: ARG001
    """Every block of docs/python-api.md runs in order in one folder, with a fake in the engine's place."""
    shutil.copytree(ROOT / "scenarios", tmp_path / "scenarios")
    (tmp_path / "perfgate.toml").touch()
    bare_python(tmp_path / "envs/main")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("perfgate.capture.session.EngineCollector", FakeCollector)
    monkeypatch.setattr("perfgate.doctor.preflight.locate", lambda *_: "no engine is in this environment")
    names: dict[str, object] = {}

    for block in blocks("docs/python-api.md", "python"):
        exec(compile(block, "docs/python-api.md", "exec"), names)  # noqa: S102 (the point is that it runs)

    assert isinstance(names["finished"], gate.Finished)
    assert names["finished"].outcome.verdict == "pass"


def test_every_command_is_on_the_page_of_commands() -> None:
    """A command that docs/commands.md does not name does not exist for users."""
    page = (ROOT / "docs" / "commands.md").read_text()
    assert [name for name in rooms.entries("commands") if f"perfgate {name}" not in page] == []


def test_promises_name_tests_that_exist() -> None:
    """Every test that the page on security names for a promise is there."""
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "security.md").read_text())

    assert len(named) > 20
    assert not [pair for pair in named if f"def {pair[1]}(" not in (ROOT / pair[0]).read_text()]


def test_the_readme_scenario_is_valid(tmp_path: Path) -> None:
    """The scenario that the README shows loads, alone and with the kernels block that docs/kernels.md shows."""
    (scenario,) = blocks("README.md", "yaml")
    (kernels,) = blocks("docs/kernels.md", "yaml")
    shutil.copytree(ROOT / "scenarios" / "models", tmp_path / "models")
    (tmp_path / "perfgate.toml").touch()
    file = tmp_path / "shown.yaml"
    file.write_text(scenario)

    assert load(file).scenario.matrix == {"batch": (1, 8, 16)}
    file.write_text(scenario + kernels)
    expected = load(file).scenario.kernels
    assert expected is not None
    assert [pattern.launches for pattern in expected.per_decode_step.patterns] == [311]


def test_the_readme_is_short() -> None:
    """A stranger reads it at one sitting."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES


def test_links_lead_somewhere() -> None:
    """Every relative link of a page names a file of this repository, and a heading of it if it names one."""
    dead = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / ".github").rglob("*.md")]:
        for target, heading in re.findall(
            r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text(encoding="utf-8")
        ):
            file = page.parent / target if target else page
            if not file.exists() or (heading and heading not in headings(file)):
                dead.append(f"{page.relative_to(ROOT)}: {target}#{heading}")
    assert dead == []


def headings(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in found}


def test_every_role_is_on_the_page_of_kernels() -> None:
    """docs/kernels.md lists the shipped roles in their order."""
    rows = re.findall(r"^\| ([\w-]+) \| ", (ROOT / "docs/kernels.md").read_text(), re.MULTILINE)
    assert rows[1:] == [*ROLES]


def rows_without_a_table(page: Path) -> list[str]:
    """Lines of a page that look like rows of a table and belong to none: no rule follows the first."""
    lines = re.sub(r"(?ms)^```.*?^```$", "", page.read_text(encoding="utf-8")).splitlines()
    starts = [n for n, line in enumerate(lines) if line.startswith("|") and not (n and lines[n - 1].startswith("|"))]
    return [lines[n] for n in starts if not lines[n + 1].startswith(("|---", "| ---"))]


def test_rows_are_in_a_table() -> None:
    """A line that looks like a row of a table belongs to one: the first after other text is followed by its rule."""
    found = {page.name: rows_without_a_table(page) for page in sorted((ROOT / "docs").glob("*.md"))}
    assert {name: rows for name, rows in found.items() if rows} == {}


def test_the_version_is_in_the_changelog() -> None:
    """The version that perfgate says it is has a section with its changes, below those that are not released yet."""
    sections = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sections[:2] == ["Unreleased", __version__]
