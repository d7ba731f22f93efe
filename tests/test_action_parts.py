"""What stands around the measuring: the installation, the last job, and templates that fit the actions."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from action_runner import ROOT, ActionRunner, job_step, read_yaml

TEMPLATES = ROOT / "perfgate" / "templates" / "github"
OK = {"result": "success", "outputs": {"verdict": "pass"}}


def test_the_actions_lock() -> None:
    """Every package that perfgate or its build needs is listed with its hashes, and no registry is named."""
    lines = (ROOT / ".github" / "actions" / "requirements.txt").read_text().split("\n")
    listed = {line.split("==")[0]: number for number, line in enumerate(lines) if "==" in line}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = [*project["project"]["dependencies"], *project["dependency-groups"]["build"]]

    assert {re.split("[><=]", one)[0].replace(".", "-") for one in needed} <= set(listed)
    assert all("--hash=sha256:" in lines[number + 1] for number in listed.values())
    assert "http" not in "".join(lines)


def test_installing_runs_nothing_of_the_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules in the checkout called like those that the installation needs are not imported by any of its steps."""
    work, trap = tmp_path / "work", tmp_path / "trap"
    work.mkdir()
    for name in ("venv", "ensurepip", "pip", "sitecustomize"):
        (work / f"{name}.py").write_text(f"open({str(trap)!r}, 'a').write('{name} ')")
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # the installation fails, having passed where it could be trapped
    monkeypatch.setenv("PYTHONPATH", "")
    runner = ActionRunner(ROOT / "action.yml", tmp_path / "temp", work, {})

    runner.run()

    assert "No matching distribution found for" in runner.steps["install"].log
    assert not trap.exists(), trap.read_text()


@pytest.mark.parametrize(
    ("needs", "status", "said"),
    [
        ({"measure": OK}, 0, "ended well and gave a verdict"),
        ({"measure": OK | {"outputs": {"verdict": "inconclusive"}}}, 0, ""),
        ({"measure": OK, "more": {"result": "skipped", "outputs": {}}}, 10, "job more ended as skipped"),
        ({"measure": {"result": "cancelled", "outputs": {}}}, 10, "job measure ended as cancelled"),
        ({"measure": {"result": "failure", "outputs": {"verdict": "regressed"}}}, 10, "with verdict regressed"),
        ({"measure": {"result": "success", "outputs": {}}}, 10, "job measure gave no verdict"),
        ({"measure": OK | {"outputs": {"verdict": "regressed"}}}, 10, "green but its verdict is regressed"),
        ({}, 10, "no job is needed"),
        ("nonsense", 10, "no job is needed"),
    ],
)
def test_final(tmp_path: Path, needs: Any, status: int, said: str) -> None:
    """The required check is green only where every job that it needs ended well and gave a verdict."""
    action = ROOT / ".github" / "actions" / "final" / "action.yml"
    assert job_step(TEMPLATES / "perfgate.yml", "perfgate", "/.github/actions/final")["with"] == {
        "needs": "${{ toJSON(needs) }}"
    }
    runner = ActionRunner(action, tmp_path / "temp", tmp_path, {}, {"needs": json.dumps(needs)})

    runner.run()

    assert runner.steps["final"].status == status
    assert said in runner.steps["final"].log


def test_forks_stay_out_of_the_comments_queue() -> None:
    """Comments on one branch wait for each other; a fork's branch of that name runs nothing and has another queue."""
    job = read_yaml(TEMPLATES / "perfgate-comment.yml")["jobs"]["comment"]
    origin = "github.event.workflow_run.head_repository.full_name"

    assert job["if"] == f"{origin} == github.repository"
    assert job["concurrency"] == {
        "group": f"perfgate-comment-${{{{ {origin} }}}}-${{{{ github.event.workflow_run.head_branch }}}}",
        "cancel-in-progress": False,
    }


def test_templates_use_the_actions() -> None:
    """What the workflows give to our actions are inputs that these have, and what they take from them are outputs."""
    for file in TEMPLATES.glob("*.yml"):
        for job in read_yaml(file)["jobs"].values():
            for step in job["steps"]:
                uses = step.get("uses", "").partition("@")[0]
                if uses.startswith("OWNER/perfgate"):
                    action = read_yaml(ROOT / uses.removeprefix("OWNER/perfgate").strip("/") / "action.yml")
                    assert set(step.get("with", {})) <= set(action["inputs"]), file
