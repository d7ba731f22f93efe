"""What a change is judged by: the branch it aims at, whatever event brought it, and nothing that it says itself."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from action_runner import clone, git
from fake_github import REPOSITORY, TOKEN, FakeGitHub, Refusal, listed, serving
from hand_made import scenario_file

from perfgate.errors import UsageError
from perfgate.github.api import Api
from perfgate.github.policy import Wanted, make_plan
from perfgate.github.workflow_job import GithubJob, JobPlan

Plan = Callable[..., JobPlan]
SCENARIOS = Wanted(("scenarios/*.yaml",))


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    """A GitHub with a pull request 12 that aims at a branch of releases, which is protected."""
    with serving(FakeGitHub(pulls={12: {"base": {"ref": "releases/v1"}}}, protected={"releases/v1"})) as served:
        yield served


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository: main and releases/v1 moved on after the change's branch left the release."""
    folder = tmp_path_factory.mktemp("repository")
    (folder / "scenarios").mkdir()
    scenario_file(folder / "scenarios")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    for name, branch in (("first", "main"), ("release", "releases/v1"), ("change", "pull-request/12")):
        if branch != "main":
            git(folder, "checkout", "--quiet", "-b", branch)
        git(folder, "commit", "--quiet", "--allow-empty", "-m", name)
    for branch in ("main", "releases/v1"):
        git(folder, "checkout", "--quiet", branch)
        git(folder, "commit", "--quiet", "--allow-empty", "-m", f"later on {branch}")
    return folder


@pytest.fixture
def origin(repository: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(repository, tmp_path / "origin"))


@pytest.fixture
def plan(tmp_path: Path, origin: Path, github: FakeGitHub) -> Plan:
    """A function that makes the plan of a job in a fresh checkout."""

    def make(
        event: dict[str, Any], name: str, ref: str, wanted: Wanted = SCENARIOS, run_id: str = "7", runner: str = "work"
    ) -> JobPlan:
        work = tmp_path / runner
        if not work.exists():
            clone(origin, work, "pull-request/12")
        shutil.rmtree(tmp_path / "temp", ignore_errors=True)
        (tmp_path / "event.json").write_text(json.dumps(event))
        environment = {
            "GITHUB_EVENT_PATH": str(tmp_path / "event.json"), "GITHUB_EVENT_NAME": name, "GITHUB_REF": ref,
            "GITHUB_REPOSITORY": REPOSITORY, "RUNNER_TEMP": str(tmp_path / "temp"), "GITHUB_RUN_ID": run_id,
        }  # fmt: skip
        (tmp_path / "temp").mkdir()
        return make_plan(GithubJob(environment), Api(github.url, TOKEN), wanted, work)

    return make


def subject(origin: Path, commit: str) -> str:
    """The first line of a commit's message."""
    return git(origin, "log", "-1", "--format=%s", commit)


PUSHED = ({"repository": {"default_branch": "main"}}, "push", "refs/heads/pull-request/12")


@pytest.mark.parametrize(
    ("event", "number", "base", "merge_base"),
    [
        (PUSHED, 12, "later on releases/v1", "release"),
        (({"pull_request": listed(12, {"base": {"ref": "main"}})}, "pull_request", "refs/pull/12/merge"),
         12, "later on main", "first"),
        ((PUSHED[0], "workflow_dispatch", "refs/heads/x"), None, "later on main", "first"),
    ],
    ids=["pushed", "pull-request", "by-hand"],
)  # fmt: skip
def test_events(plan: Plan, origin: Path, event: Any, number: int | None, base: str, merge_base: str) -> None:
    """Policy is the newest of the branch aimed at; the comparison is with where the change left it."""
    made = plan(*event)

    assert made.pull_request == number
    subjects = [subject(origin, commit) for commit in (made.base, made.merge_base, made.head)]
    assert subjects == [base, merge_base, "change"]
    assert git(made.policy, "rev-parse", "HEAD") == made.base


@pytest.mark.parametrize(
    ("event", "name"),
    [
        ({"pull_request": {"base": {"ref": "main"}}}, "pull_request"),
        ({"merge_group": {"base_ref": "x"}}, "merge_group"),
    ],
)
def test_an_event_of_another_shape(plan: Plan, event: dict[str, Any], name: str) -> None:
    """What the event must name and does not is an error of the job, not of perfgate."""
    with pytest.raises(UsageError, match=f"the event's {name} cannot be read: [a-z_.]+: Field required"):
        plan(event, name, "refs/heads/x")


@pytest.mark.parametrize(
    "event",
    [PUSHED, ({"pull_request": listed(12, {"base": {"ref": "releases/v1"}})}, "pull_request", "refs/pull/12/merge")],
    ids=["pushed", "pull-request"],
)
def test_a_branch_made_for_a_change_judges_nothing(
    plan: Plan, origin: Path, github: FakeGitHub, event: tuple[dict[str, Any], str, str]
) -> None:
    """Where a change aims at a branch without protection, policy and merge base are those of the default branch."""
    github.protected.clear()

    made = plan(*event)

    assert (made.base_branch, subject(origin, made.base), subject(origin, made.merge_base)) == (
        "main", "later on main", "first",
    )  # fmt: skip


def test_a_repository_that_the_environment_names(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a hook's variables name is another repository: commits are those of the checkout."""
    (tmp_path / "other").mkdir()
    git(tmp_path / "other", "init", "--quiet")
    expected = plan(*PUSHED)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))

    made = plan(*PUSHED)

    assert (made.base, made.merge_base, made.head) == (expected.base, expected.merge_base, expected.head)


def test_merge_queue(plan: Plan, origin: Path) -> None:
    """In the merge queue the base is the commit that the queue names, which may be another change in front."""
    ahead = git(origin, "rev-parse", "pull-request/12^")
    event = {"merge_group": {"base_ref": "refs/heads/main", "base_sha": ahead}}

    made = plan(event, "merge_group", "refs/heads/gh-readonly-queue/main/pr-12-0")

    assert (made.pull_request, made.base, made.merge_base, made.base_branch) == (None, ahead, ahead, "main")


def test_the_key(plan: Plan) -> None:
    """The same change keeps the key of its artifact from run to run; a night has one of its own every night."""
    night = Wanted(SCENARIOS.scenarios, command="nightly", base=("ref=v1",))

    assert plan(*PUSHED).artifact == plan(*PUSHED, run_id="8").artifact
    assert plan(*PUSHED).artifact == plan(*PUSHED, Wanted(SCENARIOS.scenarios, more=("--budget", "9"))).artifact
    assert plan(*PUSHED).artifact != plan(*PUSHED, Wanted(SCENARIOS.scenarios, head=("env.A=1",))).artifact
    assert plan(*PUSHED, night).artifact != plan(*PUSHED, night, run_id="8").artifact


def test_a_second_try_has_a_name_of_its_own(plan: Plan) -> None:
    """Also that of a whole shard: on GitHub it would take the place of the first try, of which a visit may be good."""
    shard = {"shard": "1/1", "runs-on": ["gpu"], "machine": "", "minutes": None, "cells": ["tiny"], "gates": 1,
             "plan": "0" * 64, "run": "tiny-run", "seed": 1}  # fmt: skip
    whole = json.dumps({"include": [shard]})
    first = Wanted(SCENARIOS.scenarios, shard="1/1", plan=whole)

    assert plan(*PUSHED, first).artifact.startswith("perfgate-shard-1-of-1-")
    assert "-again-" not in plan(*PUSHED, first).artifact
    assert plan(*PUSHED, replace(first, left=whole)).artifact.startswith("perfgate-shard-1-of-1-again-")


def test_builds_by_relative_paths(plan: Plan, tmp_path: Path) -> None:
    """Builds that a job made are named from its checkout, wherever that lies; the key is the same on every runner."""
    wanted = Wanted(
        SCENARIOS.scenarios,
        base=("python=envs/main/bin/python",),
        head=("python=python3", "path=src:/abs", "env.PATH=src"),
    )

    made = plan(*PUSHED, wanted)

    assert made.words == (
        "scenarios/tiny.yaml", "--base", f"python={tmp_path}/work/envs/main/bin/python",
        "--head", "python=python3", "--head", f"path={tmp_path}/work/src:/abs", "--head", "env.PATH=src",
    )  # fmt: skip
    assert plan(*PUSHED, wanted, runner="elsewhere").artifact == made.artifact


@pytest.mark.parametrize("ref", [".", "HEAD", "@", "HEAD~1", "@^", "main...HEAD", "main..."])
def test_refs_that_would_mean_the_base(plan: Plan, ref: str) -> None:
    """A ref by what is checked out would be the base branch against itself, and pass; it is refused."""
    with pytest.raises(UsageError, match="is the base branch, not the change"):
        plan(*PUSHED, Wanted(SCENARIOS.scenarios, head=(f"ref={ref}",)))


def test_what_is_compared(plan: Plan) -> None:
    """The builds of merge base and head, or the head alone with the baseline; other refs are left to the build."""
    made = plan(*PUSHED)
    assert made.words == ("scenarios/tiny.yaml", "--base", f"ref={made.merge_base}", "--head", f"ref={made.head}")
    stored = plan(*PUSHED, Wanted(SCENARIOS.scenarios, against="baseline"))
    assert stored.words == ("scenarios/tiny.yaml", "--against", "baseline", "--head", f"ref={made.head}")
    for ref in ("main", "origin/HEADER", "v1.0", "topic@{1}", "origin/main...topic"):
        assert f"ref={ref}" in plan(*PUSHED, Wanted(SCENARIOS.scenarios, head=(f"ref={ref}",))).words


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("elsewhere/*.yaml", "has no scenario elsewhere/*.yaml"),
        ("../*.yaml", "leads out of the repository"),
        ("scenarios/**.yaml", "expected ** between slashes only"),
    ],
)
def test_patterns_of_no_scenario(plan: Plan, pattern: str, said: str) -> None:
    """Patterns that match no scenario of the base branch, lead out of it or cannot be read are refused."""
    with pytest.raises(UsageError, match=re.escape(said)):
        plan(*PUSHED, Wanted((pattern,)))


def test_a_changed_name_that_is_no_text(plan: Plan, origin: Path) -> None:
    """A name that is not UTF-8 is shown with a mark in its place, and the plan can be kept."""
    git(origin, "checkout", "--quiet", "pull-request/12")
    Path(os.fsdecode(os.fsencode(origin / "scenarios") + b"/new\xff.yaml")).touch()
    git(origin, "add", ".")
    git(origin, "commit", "--quiet", "-m", "a file")
    git(origin, "checkout", "--quiet", "main")

    assert plan(*PUSHED).changed == ("scenarios/new\ufffd.yaml",)


def test_refusals(plan: Plan, github: FakeGitHub, origin: Path) -> None:
    """A branch that cannot be asked for, or is not in the checkout, and a night without reference say what to do."""
    with pytest.raises(UsageError, match="a night needs a reference"):
        plan(*PUSHED, Wanted(SCENARIOS.scenarios, command="nightly"))
    with pytest.raises(UsageError, match="against: baseline does not go with command: nightly"):
        plan(*PUSHED, Wanted(SCENARIOS.scenarios, command="nightly", base=("ref=v1",), against="baseline"))
    github.pulls[12]["base"]["ref"] = "--output=/tmp/x"
    github.protected.add("--output%3D/tmp/x")
    with pytest.raises(UsageError, match="fetch-depth: 0"):
        plan(*PUSHED)
    github.refusals.append(Refusal("GET", ".*/pulls/12", 403))
    with pytest.raises(UsageError, match="pull-requests: read"):
        plan(*PUSHED)
    assert git(origin, "status", "--porcelain") == ""
