"""The workflows of a fleet: which jobs of a night run, whatever becomes of its runners, and when it is cancelled."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from action_runner import ROOT, read_yaml

TEMPLATES = ROOT / "perfgate" / "templates" / "github"
FLEET, SHARD, DEADLINE = (TEMPLATES / f"perfgate-{name}.yml" for name in ("fleet", "shard", "fleet-deadline"))


@dataclass(frozen=True)
class Ended:
    """How a job ended, as those that need it see it."""

    result: str = "success"
    outputs: Mapping[str, str] = field(default_factory=dict)


def wanted(job: Mapping[str, Any], needs: Mapping[str, Ended], *, cancelled: bool) -> bool:
    """Whether GitHub runs a job: its ``if``, to which ``success()`` belongs where no status is asked for."""
    terms = str(job.get("if", "")).removeprefix("${{").removesuffix("}}").strip().split(" && ")
    terms = [term for term in terms if term]
    statuses = {
        "always()": True,
        "!cancelled()": not cancelled,
        "success()": not cancelled and all(one.result == "success" for one in needs.values()),
    }
    if not {*terms} & {*statuses}:
        terms.append("success()")
    return all(statuses[term] if term in statuses else _holds(term, needs) for term in terms)


def _holds(term: str, needs: Mapping[str, Ended]) -> bool:
    found = re.fullmatch(r"(\S+) (==|!=) '(.*)'", term)
    assert found, f"no condition that is known here: {term}"
    named = re.fullmatch(r"needs\.(\w+)\.(?:(result)|outputs\.(\w+))", found[1])
    if named:
        value = needs[named[1]].result if named[2] else needs[named[1]].outputs.get(named[3], "")
    else:
        value = {"vars.PERFGATE_FLEET": "true"}[found[1]]
    return (value == found[3]) == (found[2] == "==")


def ran_in_shard(tries: Sequence[str]) -> tuple[list[str], bool]:
    """The jobs of one shard that ran, and whether one waited until the deadline.

    Args:
        tries: What becomes of those that measure: ``measured``, ``lost`` with the runner, or ``waits`` for one.
    """
    ended, ran, cancelled = dict[str, Ended](), list[str](), False
    for name, job in read_yaml(SHARD)["jobs"].items():
        needs = {one: ended[one] for one in job.get("needs", [])}
        if not wanted(job, needs, cancelled=cancelled):
            ended[name] = Ended("skipped")
        elif name == "left":
            ended[name] = Ended(outputs={"matrix": "" if tries[0] == "measured" else "{}"})
            ran.append(name)
        elif tries[ran.count("left")] == "waits":
            ended[name], cancelled = Ended("cancelled"), True
        else:
            ended[name] = Ended()  # continue-on-error: lost or not
            ran.append(name)
    return ran, cancelled


def ran_in_night(*shards: Sequence[str], plan: str = "success", candidate: str = "run") -> list[str]:
    """The jobs of a night that ran.

    Args:
        shards: The tries of each shard, see :func:`ran_in_shard`.
        plan: How the job that plans ended.
        candidate: The runs that the verdict names for promotion.
    """
    jobs = read_yaml(FLEET)["jobs"]
    ended, ran, cancelled = {"plan": Ended(plan)}, ["plan"], False
    if wanted(jobs["shard"], ended, cancelled=False):
        for number, tries in enumerate(shards, 1):
            own, waited = ran_in_shard(tries)
            ran += [f"{number} {name}" for name in own]
            cancelled |= waited
        ended["shard"] = Ended("cancelled" if cancelled else "success")
    else:
        ended["shard"] = Ended("skipped")
    for name in ("verdict", "promote"):
        needs = {one: ended[one] for one in jobs[name]["needs"]}
        ended[name] = Ended("skipped")
        if wanted(jobs[name], needs, cancelled=cancelled):
            ended[name] = Ended("failure", {"candidate": candidate} if name == "verdict" else {})  # red: not all passed
            ran.append(name)
    return ran


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (["measured"], ["1 measure", "1 left"]),
        (["lost", "measured"], ["1 measure", "1 left", "1 again"]),
        (["lost", "lost"], ["1 measure", "1 left", "1 again"]),
        (["lost", "waits"], ["1 measure", "1 left"]),
    ],
)
@pytest.mark.parametrize(("second", "there"), [(["measured"], ["2 measure", "2 left"]), (["waits"], [])])
def test_a_runner_that_is_away_costs_its_shard_alone(
    first: list[str], again: list[str], second: list[str], there: list[str]
) -> None:
    """Other shards are measured, and again where their machine was lost; verdict and visits come in any case."""
    assert ran_in_night(first, second) == ["plan", *again, *there, "verdict", "promote"]


def test_what_has_nothing_to_do_is_skipped() -> None:
    """Nothing is promoted where no reference held still, and nothing is judged where there is no plan."""
    assert ran_in_night(["measured"], candidate="")[-1] == "verdict"
    assert ran_in_night(["measured"], plan="failure", candidate="") == ["plan"]


def test_a_shard_is_called_as_it_is_written() -> None:
    """The night gives each shard's workflow what it asks for, and rights that are no less than its jobs have."""
    call, called = read_yaml(FLEET)["jobs"]["shard"], read_yaml(SHARD)

    assert call["uses"] == f"./.github/workflows/{SHARD.name}"
    assert {*call["with"]} == {*called["on"]["workflow_call"]["inputs"]}
    assert [job["permissions"] for job in called["jobs"].values()] == [call["permissions"]] * len(called["jobs"])


def test_the_history_takes_every_kind_of_night() -> None:
    """Its workflow starts after each workflow that measures a night, and its action asks for the runs of the same."""
    nights = [TEMPLATES / "perfgate-nightly.yml", FLEET]
    action = read_yaml(ROOT / ".github" / "actions" / "history" / "action.yml")

    started_by = read_yaml(TEMPLATES / "perfgate-history.yml")["on"]["workflow_run"]["workflows"]
    assert started_by == [read_yaml(file)["name"] for file in nights]
    assert action["inputs"]["workflow"]["default"].split() == [file.name for file in nights]


GH = f"""#!{sys.executable}
import pathlib, subprocess, sys
asked = next((word for word in sys.argv if word.startswith("repos/")), "")
here = pathlib.Path(__file__).parent
if sys.argv[1:3] == ["run", "cancel"]:
    print(*sys.argv[3:], file=(here / "cancelled").open("a"))
else:
    known = ("workflows/perfgate-fleet.yml/runs", "runs/7/jobs")
    assert asked.startswith(tuple(f"repos/me/it/actions/{{name}}" for name in known)), asked
    answer = here / ("jobs.json" if "/jobs" in asked else "runs.json")
    subprocess.run(["jq", "-r", sys.argv[sys.argv.index("--jq") + 1], answer], check=True)
"""
"""GitHub's command line, which has jq's language built in."""


def at(minutes: int) -> str:
    """So many minutes ago, as GitHub writes times."""
    return (datetime.now(UTC) - timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(
    ("left", "cancelled"),
    [
        ([("queued", 90)], True),
        ([("queued", 90), ("queued", 500)], True),
        ([("queued", 90), ("in_progress", 500)], False),
        ([("queued", 90), ("queued", 5)], False),
        ([("queued", 90), ("pending", 90)], False),
        ([("in_progress", 500)], False),
        ([], False),
    ],
)
def test_the_deadline_ends_a_night_in_which_all_that_is_left_waits(
    tmp_path: Path, left: Sequence[tuple[str, int]], *, cancelled: bool
) -> None:
    """A night is cancelled where its jobs have waited for a runner for an hour, and none measures or has just begun.

    A job that waits for a machine that another workflow's run keeps busy is queued like one whose machine is away.
    """
    jobs = [{"status": status, "created_at": at(minutes)} for status, minutes in [("completed", 600), *left]]
    runs = [{"id": 6, "status": "completed"}, {"id": 7, "status": "in_progress"}]
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": jobs}))
    (tmp_path / "runs.json").write_text(json.dumps({"workflow_runs": runs}))
    (tmp_path / "gh").write_text(GH)
    (tmp_path / "gh").chmod(0o755)
    (step,) = read_yaml(DEADLINE)["jobs"]["deadline"]["steps"]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "GH_REPO": "me/it", "NIGHTS": FLEET.name}

    subprocess.run(["/bin/bash", "-e", "-o", "pipefail", "-c", step["run"]], env=environment, check=True)

    assert step["env"]["NIGHTS"] == FLEET.name
    told = tmp_path / "cancelled"
    assert (told.read_text().split() if told.exists() else []) == ["7"] * cancelled
