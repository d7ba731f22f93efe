"""The gate's action, run step by step as GitHub would, on a fake engine: what each end leaves behind."""

from __future__ import annotations

import copy
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from action_runner import ROOT, ActionRunner, clone, git
from click.testing import CliRunner
from fake_github import REPOSITORY, TOKEN, FakeGitHub, Refusal, listed, serving, zipped
from hand_made import scenario_file
from perfgate_process import MARKED, marked_processes
from stub_engine import bare_python

from perfgate.cli.main import main
from perfgate.errors import ExitStatus
from perfgate.judge.outcome import Outcome
from perfgate.machine.atomic_files import canonical_json, sha256_hex
from perfgate.machine.locks import STATE, hold
from perfgate.record.run_record import read_records, read_run

PROGRAM = f"""#!{sys.executable}
{MARKED}
import json, os, sys
sys.path[:0] = {[str(ROOT), str(ROOT / "tests")]!r}
from fake_collector import FakeCollector, FakeSpec
from few_files import asked
from perfgate.capture import build_digest
from perfgate.cli.main import main
from perfgate.errors import ExitStatus
from perfgate.machine.atomic_files import canonical_json, sha256_hex
build_digest.ask = asked
fake = json.loads(os.environ["FAKE"])
fake["failures"] = {{int(trial): code for trial, code in fake.get("failures", {{}}).items()}}
main(obj=FakeCollector(FakeSpec(**fake)), prog_name="perfgate")
"""
"""A perfgate whose trials are invented."""

SAME: dict[str, Any] = {"restart_sd": 0.0003}
SLOWER: dict[str, Any] = {"restart_sd": 0.0003, "head_ratio": {"step": 1.01}}
NOISY: dict[str, Any] = {"restart_sd": 0.02, "by_pair": True}
FAILING: dict[str, Any] = {"failures": {"1": "engine-start-failed"}}

WORKFLOW = ".github/workflows/perfgate.yml"

Gate = Callable[..., ActionRunner]


def committed(origin: Path, message: str, branch: str = "main") -> None:
    """Commit everything in the working tree, which is that of a branch; the next is that of main."""
    git(origin, "add", ".")
    git(origin, "commit", "--quiet", "--allow-empty", "-m", message)
    if branch != "main":
        git(origin, "checkout", "--quiet", "--force", "main")


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a scenario on main and a branch that adds a file."""
    origin = tmp_path_factory.mktemp("repository")
    (origin / "scenarios").mkdir()
    scenario_file(origin / "scenarios")
    git(origin, "init", "--quiet")
    committed(origin, "first")
    git(origin, "checkout", "--quiet", "-b", "pull-request/12")
    (origin / "engine.py").write_text("slow = True\n")
    committed(origin, "change", "pull-request/12")
    return origin


@pytest.fixture
def github(repository: Path, tmp_path: Path) -> Iterator[FakeGitHub]:
    """A GitHub with a copy of it in ``origin``, and a pull request 12 of that branch."""
    shutil.copytree(repository, tmp_path / "origin")
    head = git(repository, "rev-parse", "pull-request/12")
    with serving(FakeGitHub(pulls={12: {"state": "open", "head": {"sha": head}, "base": {"ref": "main"}}})) as served:
        yield served


@pytest.fixture
def attempts() -> Iterator[int]:
    """Numbers of the attempts that a test's jobs are, from 0."""
    return itertools.count()


@pytest.fixture
def gate(github: FakeGitHub, tmp_path: Path, forked: Path, attempts: Iterator[int]) -> Gate:
    """A function that runs a job of the gate on a fresh runner.

    perfgate is one that starts at once, but for measuring where ``alone`` says so; by default where a step is ended.
    """
    measuring, program = tmp_path / "measuring", tmp_path / "perfgate"
    measuring.write_text(PROGRAM)
    program.write_text(f'#!/bin/sh\n[ "$2" = measure ] && exec {measuring} "$@"\nexec {forked} "$@"\n')
    for file in (measuring, program):
        file.chmod(0o755)
    (tmp_path / "event.json").write_text(json.dumps({"repository": {"default_branch": "main"}}))

    def one(
        fake: Mapping[str, Any], *, branch: str = "pull-request/12", alone: bool | None = None,
        action: str = "action.yml", **more: Any,
    ) -> ActionRunner:  # fmt: skip
        number = next(attempts)
        workspace = clone(tmp_path / "origin", tmp_path / f"work-{number}", branch)
        environment = {
            "FAKE": json.dumps(fake),
            "GITHUB_API_URL": github.url, "GITHUB_REPOSITORY": REPOSITORY, "TOKEN": TOKEN,
            "GITHUB_EVENT_NAME": "push", "GITHUB_REF": f"refs/heads/{branch}", "GITHUB_RUN_ID": "7",
            "GITHUB_EVENT_PATH": str(tmp_path / "event.json"), "RUNNER_NAME": str(tmp_path),
            # The jobs of one plan are of one attempt; any other is the next.
            "GITHUB_RUN_ATTEMPT": "1" if action == PLAN or "plan" in more.get("inputs", {}) else str(number + 1),
            "GITHUB_WORKFLOW_REF": f"{REPOSITORY}/{WORKFLOW}@refs/heads/{branch}", **more.pop("environment", {}),
        }  # fmt: skip
        github.runs.setdefault(7, {
            "id": 7, "path": WORKFLOW, "event": environment["GITHUB_EVENT_NAME"],
            "head_sha": git(workspace, "rev-parse", "HEAD"), "head_repository": {"full_name": REPOSITORY},
        })  # fmt: skip
        started = program if ("cancel" in more if alone is None else alone) else forked
        inputs = {"resume": "true", "perfgate": str(started), "base": "python=/bin/true", "head": "env.BUILD=new",
                  **more.pop("inputs", {})}  # fmt: skip
        temp = tmp_path / f"temp-{number}"
        runner = ActionRunner(ROOT / action, temp, workspace, environment, inputs, github, **more)
        runner.run()
        return runner

    return one


Earlier = tuple[list[dict[str, Any]], dict[int, dict[str, Any]]]
EARLIER: dict[str, Earlier] = {}
"""Artifacts and workflow runs that a first attempt leaves, by what it measured: each is measured once."""


@pytest.fixture
def earlier(gate: Gate, github: FakeGitHub, attempts: Iterator[int]) -> Callable[[Mapping[str, Any]], None]:
    """A function that has an attempt of the job measured, whose artifacts are those of the same measured before."""

    def measured(fake: Mapping[str, Any]) -> None:
        name = json.dumps(fake)
        if name not in EARLIER:
            gate(fake)
            EARLIER[name] = github.artifacts, github.runs
        else:
            next(attempts)
        github.artifacts, github.runs = copy.deepcopy(EARLIER[name])

    return measured


def kept(github: FakeGitHub, name: str) -> dict[str, bytes]:
    """Files of the one artifact whose name begins so."""
    (item,) = [item for item in github.artifacts if item["name"].startswith(name)]
    with zipfile.ZipFile(io.BytesIO(item["archive"])) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def nothing_is_left(runner: ActionRunner) -> None:
    """No process of the run is alive, and neither its folder nor the machine is locked."""
    folder = Path(runner.outputs["report"]["run_folder"])
    with hold(folder):
        assert not marked_processes(folder.name)
    assert not list(Path(os.environ[STATE]).glob("*.holder"))
    assert runner.steps["clean"].outcome == "success"


# --- how it can end


@pytest.mark.parametrize(
    ("fake", "result", "status", "sentence", "annotation"),
    [
        (SAME, "success", 0, "**PASS: ", ""),
        (SLOWER, "failure", 10, "**REGRESSED: itl_median +",
         "::error file=scenarios/tiny.yaml,line=6,title=tiny%3A itl_median regressed::"),
        (NOISY, "success", 20, "**INCONCLUSIVE: ",
         "::warning file=scenarios/tiny.yaml,line=6,title=tiny%3A itl_median inconclusive::"),
        (FAILING, "failure", 22, "**NOT MEASURED: ",
         "::error file=scenarios/tiny.yaml,line=1,title=tiny%3A engine-start-failed::head: a fake failure"),
    ],
    ids=["pass", "regressed", "inconclusive", "not-measured"],
)  # fmt: skip
def test_ends(
    gate: Gate, github: FakeGitHub, fake: dict[str, Any], result: str, status: int, sentence: str, annotation: str
) -> None:
    """Each verdict has its status, summary, annotation, outputs and artifacts, and ends red only in the last step."""
    runner = gate(fake)

    outputs = runner.outputs["report"]
    assert runner.result == result
    assert runner.steps["enforce"].status == (status if result == "failure" else 0)
    assert [name for name, step in runner.steps.items() if step.outcome != "success"] == ["enforce"] * (
        result == "failure"
    )
    obeys_no_engine(runner.steps["measure"].log.splitlines())
    assert runner.summary.count(sentence) == 1
    assert annotation in runner.steps["report"].log
    verdict = Outcome.model_validate_json(kept(github, "perfgate-verdict")["verdict.json"])
    assert (outputs["exit_status"], outputs["verdict"], verdict.exit_status) == (str(status), verdict.verdict, status)
    uploaded, folder = kept(github, "perfgate-run-"), Path(outputs["run_folder"]).name
    assert {f"{folder}/run.json", f"{folder}/report.html"} <= uploaded.keys()
    nothing_is_left(runner)


def obeys_no_engine(log: Sequence[str]) -> None:
    """What perfgate prints while it measures stands between words that keep GitHub from obeying it."""
    first = next(line for line in log if line.startswith("::"))
    token = first.removeprefix("::stop-commands::")
    assert len(token) == 64
    assert [line for line in log if line.startswith("::")] == [first, f"::{token}::"]
    (verdict,) = (n for n, line in enumerate(log) if line.startswith(("PASS: ", "REGRESSED: ", "INCONCL", "NOT MEAS")))
    assert log.index(first) < verdict < log.index(f"::{token}::")


def test_cancelled_and_re_run(gate: Gate, tmp_path: Path) -> None:
    """A cancelled job ends in time and keeps its trials; its re-run on a fresh runner goes on with them."""
    trials = tmp_path / "temp-0" / "perfgate" / "runs"
    cancelled = gate(
        SAME | {"sleep_s": 0.1}, cancel=lambda step, _: step == "measure" and len(list(trials.glob("*/trials/*"))) > 4
    )

    assert cancelled.result == "cancelled"
    assert cancelled.steps["measure"].status == 130
    assert cancelled.steps["measure"].seconds < 7.5
    assert cancelled.outputs["report"]["exit_status"] == "130"
    assert "The job was stopped or out of budget." in cancelled.summary
    assert "**PASS" not in cancelled.summary
    nothing_is_left(cancelled)
    (before,) = read_records(folder := Path(cancelled.outputs["report"]["run_folder"]), read_run(folder))

    again = gate(SAME)

    assert (again.result, again.outputs["report"]["verdict"]) == ("success", "pass")
    assert f"goes on with {folder.name}" in again.steps["prepare"].log
    resumed = Path(again.outputs["report"]["run_folder"])
    (after,) = read_records(resumed, read_run(resumed))
    assert resumed.name == folder.name
    assert after.trials[: len(before.trials)] == before.trials
    assert len(after.visits) == 2
    nothing_is_left(again)


def test_a_decided_run_is_closed(gate: Gate, earlier: Callable[..., None], github: FakeGitHub) -> None:
    """A re-run of a regression measures nothing and says the same, whatever the engine would do now."""
    earlier(SLOWER)
    before = kept(github, "perfgate-run-")

    again = gate(SAME)

    assert (again.result, again.outputs["report"]["exit_status"]) == ("failure", "10")
    assert {name for name in kept(github, "perfgate-run-") if "trials" in name} == {n for n in before if "trials" in n}


def test_re_run_on_pull_request(gate: Gate, github: FakeGitHub, tmp_path: Path) -> None:
    """On pull_request the merge commit is measured, and listed at the change's head: a re-run goes on with it."""
    origin, change = tmp_path / "origin", git(tmp_path / "origin", "rev-parse", "pull-request/12")
    git(origin, "checkout", "--quiet", "-b", "merge", "main")
    git(origin, "merge", "--quiet", "--no-ff", "-m", "merge", "pull-request/12")
    git(origin, "checkout", "--quiet", "main")
    event = {"pull_request": listed(12, {"base": {"ref": "main"}, "head": {"sha": change}})}
    (tmp_path / "event.json").write_text(json.dumps(event))
    asked = {"GITHUB_EVENT_NAME": "pull_request", "GITHUB_REF": "refs/pull/12/merge"}
    github.runs[7] = {"id": 7, "path": WORKFLOW, "event": "pull_request", "head_sha": change,
                      "head_repository": {"full_name": REPOSITORY}}  # fmt: skip
    gate(SLOWER, branch="merge", environment=asked)

    again = gate(SAME, branch="merge", environment=asked)

    assert "goes on with" in again.steps["prepare"].log
    assert again.outputs["report"]["exit_status"] == "10"


def test_caches_stay(gate: Gate, github: FakeGitHub, tmp_path: Path) -> None:
    """Compile caches do not go up, neither those of a run nor those of a run within a night's folder."""
    left: list[Path] = []

    def leave(step: str, _: int) -> bool:
        if step == "report" and not left:
            (folder,) = (tmp_path / "temp-0" / "perfgate" / "runs").iterdir()
            left.extend(folder / one / "cache-x" / "deep" / "kernel" for one in ("", "night"))
            for file in left:
                file.parent.mkdir(parents=True)
                file.touch()
        return False

    runner = gate(SAME, cancel=leave, alone=False)

    assert left
    assert runner.steps["keep"].outcome == "success"
    assert not [name for name in kept(github, "perfgate-run-") if "cache-" in name]


def test_killed(gate: Gate, github: FakeGitHub, tmp_path: Path) -> None:
    """A step that was killed outright leaves its trials and no verdict of its own: interrupted, never a pass."""
    trials = tmp_path / "temp-0" / "perfgate" / "runs"

    def kill(step: str, pid: int) -> bool:
        if step == "measure" and len(list(trials.glob("*/trials/*"))) > 4:
            os.kill(pid, signal.SIGKILL)
        return False

    runner = gate(SAME | {"sleep_s": 0.1}, cancel=kill)

    assert runner.result == "failure"
    assert runner.outputs["report"]["exit_status"] == "130"
    assert runner.steps["enforce"].status == 130
    assert any(name.endswith("run.json") for name in kept(github, "perfgate-run-"))
    assert gate(SAME).outputs["report"]["verdict"] == "pass"


def promoting(measured: ActionRunner, temp: Path, **inputs: str) -> ActionRunner:
    """The action that promotes and proposes runs of a night."""
    return ActionRunner(
        ROOT / ".github" / "actions" / "promote" / "action.yml", temp, measured.workspace,
        {**measured.environment, "GITHUB_REF_NAME": "main"}, {"perfgate": measured.inputs["perfgate"], **inputs},
    )  # fmt: skip


def test_a_night(gate: Gate, github: FakeGitHub, tmp_path: Path) -> None:
    """A night that is cut begins anew when it is re-run, and its candidate is promoted and proposed."""
    schedule = {"GITHUB_EVENT_NAME": "schedule"}
    cut = gate(SAME, branch="main", environment=schedule, inputs={"command": "nightly", "budget": "0.00001"})

    assert (cut.result, cut.outputs["report"]["exit_status"]) == ("failure", "130")
    assert cut.outputs["report"]["candidate"] == ""

    again = gate(SAME, branch="main", environment=schedule, inputs={"command": "nightly"})

    outputs = again.outputs["report"]
    assert (again.result, outputs["verdict"]) == ("success", "pass")
    assert "goes on with" not in again.steps["prepare"].log
    assert f"{outputs['candidate']}/run.json" in kept(github, "perfgate-run-")
    assert "reference against itself" in again.summary

    candidate = str(Path(outputs["run_folder"]).parent / outputs["candidate"])
    unasked, asked = (promoting(again, tmp_path / f"temp-{reason}", run=candidate, side="base", reason=reason)
                      for reason in ("", "the release"))  # fmt: skip
    assert unasked.run() == "failure"
    assert "tiny: first: there was none" in unasked.steps["promote"].log
    assert not any("title" in pull for pull in github.pulls.values())
    assert asked.run() == "success", asked.steps
    (written,) = [item for item in github.objects.values() if "content" in item]
    (entry,) = json.loads(written["content"])["entries"]
    assert (entry["reason"], entry["build"].get("env")) == ("the release", None)
    (pull,) = [pull for pull in github.pulls.values() if "title" in pull]
    assert pull["head"] == "perfgate/baselines"
    assert "\n      the release\n" in pull["body"]


def test_a_night_beside_an_anchor(gate: Gate, github: FakeGitHub, tmp_path: Path) -> None:
    """The head's visit is proposed below heads/, also where the reference's is refused; one night fails no budget."""
    origin = tmp_path / "origin"
    scenario_file(origin / "scenarios", more="drift: {itl_median: 1% in 30 days}\n")
    (origin / "perfgate.toml").write_text('[subjects.anchor]\npython = "/bin/true"\nargs = {max_num_seqs = 8}\n')
    committed(origin, "anchor")
    night = gate(SAME, branch="main", environment={"GITHUB_EVENT_NAME": "schedule"}, inputs={"command": "nightly"})
    outputs = night.outputs["report"]
    runs = Path(outputs["run_folder"]).parent
    parts = {"run": str(runs / outputs["candidate"]), "night": str(runs / outputs["night"])}
    promoted = promoting(night, tmp_path / "temp-promote", **parts)

    assert promoted.run() == "failure"
    assert "tiny: first: there was none" in promoted.steps["promote"].log
    assert (promoted.steps["propose"].outcome, promoted.steps["drift"].outcome) == ("success", "success")
    (pull,) = [pull for pull in github.pulls.values() if "title" in pull]
    assert "heads/" in pull["body"]
    assert "too few nights" in promoted.summary


def test_no_baseline_yet(gate: Gate) -> None:
    """Against a baseline that the base branch does not have the check is red with 21, and the summary says why."""
    runner = gate(SAME, inputs={"against": "baseline"})

    assert (runner.result, runner.outputs["report"]["exit_status"]) == ("failure", "21")
    assert "`no-baseline`" in runner.summary


# --- what it is judged by


def test_policy_of_the_base_branch(gate: Gate, tmp_path: Path) -> None:
    """A change that widens its margins is judged by the old ones, and its summary says that it touches them."""
    origin = tmp_path / "origin"
    git(origin, "checkout", "--quiet", "pull-request/12")
    file = origin / "scenarios" / "tiny.yaml"
    file.write_text(file.read_text().replace("0.1%", "10%").replace("0.5%", "50%"))
    (origin / "baselines").mkdir()
    (origin / "baselines" / "tiny.json").write_text("{}")
    committed(origin, "wider", "pull-request/12")

    runner = gate(SLOWER)

    assert runner.outputs["report"]["exit_status"] == "10"
    assert "ignorable is 0.1 %25, 0.5 %25 must be caught" in runner.steps["report"].log
    assert "alters what changes are judged by: baselines/tiny.json, scenarios/tiny.yaml. It was" in runner.summary


def test_builds_of_the_base_branch(gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without words the builds of merge base and head are compared, made in this job and as the base branch says."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "written-by-earlier-jobs"))
    monkeypatch.delenv("PERFGATE_BUILDS", raising=False)
    monkeypatch.delenv("PERFGATE_CACHES")
    origin, trap = tmp_path / "origin", tmp_path / "trap"
    build = f'[build]\npython = "{bare_python(tmp_path / "env")}"\npath = "{{tree}}"\n'
    for branch, text in (("main", build), ("pull-request/12", f'{build}commands = [["touch", "{trap}"]]\n')):
        git(origin, "checkout", "--quiet", branch)
        (origin / "perfgate.toml").write_text(text)
        committed(origin, "how to build", branch)

    runner = gate(SAME, inputs={"base": "", "head": ""})

    assert runner.result == "success", runner.steps
    manifest = read_run(Path(runner.outputs["report"]["run_folder"]))
    built = {side: one.built_from.commit for side, one in manifest.subjects.items() if one.built_from}
    head = git(origin, "rev-parse", "pull-request/12")
    assert built == {"base": git(origin, "merge-base", "main", head), "head": head}
    folders = {Path(one.built_from.folder).parent for one in manifest.subjects.values() if one.built_from}
    assert folders == {runner.temp / "perfgate" / "builds"}
    assert (runner.temp / "perfgate" / "caches" / "locks").is_dir()
    assert not trap.exists()
    assert not (tmp_path / "written-by-earlier-jobs").exists()
    assert "alters what changes are judged by: perfgate.toml. It was" in runner.summary


def test_a_checkout_made_to_do_harm(gate: Gate, tmp_path: Path) -> None:
    """Submodules that fetch by a command, links and packaging of the change do nothing and judge nothing.

    What its interpreter imports by itself runs as an engine does, and sees nothing of the job.
    """
    origin, trap, seen, wide = tmp_path / "origin", tmp_path / "trap", tmp_path / "seen", tmp_path / "wide"
    (origin / "perfgate.toml").write_text(f'[build]\npython = "{bare_python(tmp_path / "env")}"\npath = "{{tree}}"\n')
    committed(origin, "how to build")
    git(origin, "checkout", "--quiet", "pull-request/12")
    git(origin, "merge", "--quiet", "main")
    wide.mkdir()
    file = scenario_file(wide)
    file.write_text(file.read_text().replace("0.1%", "10%").replace("0.5%", "50%"))
    (origin / "perfgate.toml").unlink()
    (origin / "perfgate.toml").symlink_to("/dev/zero")
    git(origin, "rm", "--quiet", "-r", "scenarios")
    for name, target in (("scenarios", wide), ("baselines", wide), ("pip.conf", "/dev/zero"), ("loop", "loop")):
        (origin / name).symlink_to(target)
    harm = f"ext::sh -c touch% {trap}"
    module = f'[submodule "m"]\n\tpath = m\n\turl = {harm}\n\tupdate = !touch {trap}\n'
    (origin / ".gitmodules").write_text(module)
    (origin / "pyproject.toml").write_text('[build-system]\nrequires = []\nbuild-backend = "b"\nbackend-path = ["."]\n')
    (origin / "b.py").write_text(f"open({str(trap)!r}, 'w')\n")
    (origin / "sitecustomize.py").write_text(f"import os\nopen({str(seen)!r}, 'a').write(' '.join(os.environ))\n")
    git(origin, "add", ".")
    git(origin, "update-index", "--add", "--cacheinfo", f"160000,{git(origin, 'rev-parse', 'main')},m")
    git(origin, "commit", "--quiet", "-m", "harm")
    git(origin, "checkout", "--quiet", "--force", "main")

    runner = gate(SLOWER, inputs={"base": "", "head": ""}, environment={"GIT_ALLOW_PROTOCOL": "ext:file"})

    assert runner.outputs["report"]["exit_status"] == "10", runner.steps
    assert "ignorable is 0.1 %25, 0.5 %25 must be caught" in runner.steps["report"].log
    assert "alters what changes are judged by: baselines, perfgate.toml, scenarios" in runner.summary
    assert not trap.exists()
    assert not re.search("GITHUB|ACTIONS|RUNNER|TOKEN", seen.read_text())


def test_git_configuration_left_by_an_earlier_job(gate: Gate, tmp_path: Path) -> None:
    """Hooks and monitors are not run when the base branch's tree is made; filters are, as LFS needs them."""
    ran = tmp_path / "ran"
    ran.mkdir()
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("post-checkout", "reference-transaction", "post-index-change", "monitor"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {ran}/{name}\n")
        (hooks / name).chmod(0o755)
    (tmp_path / "attributes").write_text("* filter=left\n")
    (tmp_path / "config").write_text(
        f"[core]\nhooksPath = {hooks}\nfsmonitor = {hooks}/monitor\nattributesFile = {tmp_path}/attributes\n"
        f'[filter "left"]\nsmudge = "touch {ran}/filter; cat"\n[diff]\nexternal = touch {ran}/diff\n'
    )

    runner = gate(SAME, environment={"GIT_CONFIG_GLOBAL": str(tmp_path / "config")})

    assert runner.result == "success", runner.steps
    assert [file.name for file in ran.iterdir()] == ["filter"]


IN_ENFORCE = 'if [ -n "${PERFGATE_INCONCLUSIVE:-}" ]; then exit 0; fi\n'
PRELOADED = """
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void first(void) { if (getenv("PERFGATE_INCONCLUSIVE")) _exit(0); }
"""


@pytest.mark.parametrize(
    "variable", ["BASH_ENV", *(pytest.param(v, marks=pytest.mark.slow) for v in ("PATH", "LD_PRELOAD"))]
)
def test_a_job_whose_own_steps_steer_it(gate: Gate, tmp_path: Path, variable: str) -> None:
    """What a step of the job writes for later ones runs before any line of ours: a regression ends green."""
    folder = tmp_path / "left"
    folder.mkdir()
    if variable == "LD_PRELOAD":
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler on PATH")
        (folder / "left.c").write_text(PRELOADED)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "left.so", folder / "left.c"], check=True)
        value = str(folder / "left.so")
    elif variable == "PATH":
        (folder / "bash").write_text(f'#!/bin/sh\n{IN_ENFORCE}exec {shutil.which("bash")} "$@"\n')
        (folder / "bash").chmod(0o755)
        value = f"{folder}{os.pathsep}{os.environ['PATH']}"
    else:
        (folder / "left.sh").write_text(IN_ENFORCE)
        value = str(folder / "left.sh")

    runner = gate(SLOWER, environment={variable: value})

    assert (runner.result, runner.outputs["report"]["verdict"]) == ("success", "regressed")


def test_builds_that_the_job_made(gate: Gate) -> None:
    """Builds named by paths from the checkout are measured, though the base branch's tree is the policy."""
    runner = gate(SAME, inputs={"base": "python=envs/main/bin/python", "head": "python=envs/head/bin/python"})

    manifest = read_run(Path(runner.outputs["report"]["run_folder"]))
    assert {side: one.python for side, one in manifest.subjects.items()} == {
        side: str(runner.workspace / "envs" / name / "bin" / "python")
        for side, name in (("base", "main"), ("head", "head"))
    }


@pytest.mark.parametrize("resume", ["false", "true"])
def test_measured_anew(gate: Gate, earlier: Callable[..., None], github: FakeGitHub, resume: str) -> None:
    """Unless the workflow asks for it nothing of an earlier attempt counts; what another run uploaded never does."""
    earlier(SAME)
    for item in github.artifacts if resume == "true" else ():
        item |= {"run_id": 8}

    again = gate(SLOWER, inputs={"resume": resume})

    assert again.outputs["report"]["exit_status"] == "10"
    assert "goes on with" not in again.steps["prepare"].log


def _poison(github: FakeGitHub, change: Callable[[str, Any], bytes | None]) -> None:
    """Change the JSON files of an earlier attempt's run folder, as whoever runs code in its job can."""
    (item,) = [item for item in github.artifacts if item["name"].startswith("perfgate-run-")]
    files = kept(github, "perfgate-run-")
    for name, data in files.items():
        if "/scenario/" in name:
            files[name] = change("scenario", data) or data
        elif name.endswith("run.json") or "/records/" in name:
            content = json.loads(data)
            change("run" if name.endswith("run.json") else "record", content)
            if content.pop("digest", None):  # sealed anew
                content["digest"] = sha256_hex(canonical_json(content))
            files[name] = json.dumps(content).encode()
    item["archive"] = zipped(files)


def _other_subjects(kind: str, content: Any) -> None:
    """Subjects that run a program of the poisoner's."""
    if kind != "scenario":
        content["subjects"]["head"] |= {"python": "/evil"}


def _wider(kind: str, content: Any) -> None:
    """Margins that block nothing."""
    if kind != "scenario":
        for cell in content["plan"]["cells"] if kind == "run" else [content["cell"]]:
            cell["gates"][0]["gate"] |= {"ignorable": "10%", "must_catch": "50%"}


def _wider_everywhere(kind: str, content: Any) -> bytes | None:
    """The same, declared by the kept scenario as well."""
    _wider(kind, content)
    return content.replace(b"0.1%", b"10%").replace(b"0.5%", b"50%") if kind == "scenario" else None


def _swapped(kind: str, content: Any) -> None:
    """What was measured of the head as the base's."""
    for trial in content["trials"] if kind == "record" else []:
        trial["subject"] = {"base": "head", "head": "base"}[trial["subject"]]


def _renamed(kind: str, content: Any) -> None:
    """A scenario whose name leads out of its folder."""
    for cell in content["plan"]["cells"] if kind == "run" else []:
        cell["scenario"] = "../../x"


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        (_other_subjects, "21", "its subjects differ from what is to be measured"),
        (_wider, "2", "gates: not what the scenario"),
        (_wider_everywhere, "21", "its plan differs from what is to be measured"),
        (_swapped, "2", "the seed draws the other side for its place"),
        (_renamed, "2", "plan.cells.0.scenario: expected at most 63"),
    ],
)
def test_a_poisoned_artifact(
    gate: Gate, earlier: Callable[..., None], github: FakeGitHub, change: Any, status: str, said: str
) -> None:
    """An earlier attempt's run with other subjects, margins or sides runs and passes nothing: the check is red."""
    earlier(SAME)
    _poison(github, change)

    again = gate(SAME)

    assert (again.result, again.steps["enforce"].status) == ("failure", int(status))
    assert said in again.steps["measure"].log


@pytest.mark.parametrize("how", ["refused", "broken off"])
def test_what_was_measured_cannot_be_had(
    gate: Gate, earlier: Callable[..., None], github: FakeGitHub, how: str
) -> None:
    """Where an earlier job's artifact is not to be had, or breaks off, measuring begins anew and says so."""
    earlier(SAME)
    first = {name.partition("/")[0] for name in kept(github, "perfgate-run-")}
    if how == "refused":
        github.refusals.append(Refusal("GET", ".*/artifacts", 403))
    else:
        github.broken = "reset"

    again = gate(SAME)

    log = again.steps["prepare"].log
    assert "::warning title=perfgate::what an earlier attempt measured cannot be had, so measuring begins anew" in log
    assert {"refused": "GitHub answered 403", "broken off": "earlier.zip: the download broke off"}[how] in log
    assert Path(again.outputs["report"]["run_folder"]).name not in first


@pytest.mark.parametrize(
    ("status", "inconclusive", "ended"),
    [
        (b"20\n", "warn", 0), (b"20\n", "fail", 20), (b"10\n", "warn", 10),
        # Code under test can write any file of its job.
        (b"pass\n", "warn", 1), (b"\xff", "warn", 1), (b"", "warn", 1),
    ],
)  # fmt: skip
def test_policy_on_what_decides_nothing(tmp_path: Path, status: bytes, inconclusive: str, ended: int) -> None:
    """A verdict that decides nothing is a warning or a failure, as the workflow says; other ends are red."""
    (tmp_path / "perfgate").mkdir()
    (tmp_path / "perfgate" / "status").write_bytes(status)
    words = ["github", "enforce", "--inconclusive", inconclusive]

    result = CliRunner().invoke(main, words, env={"RUNNER_TEMP": str(tmp_path)})

    assert (result.exit_code, result.output.startswith("::warning ")) == (ended, ended == 0)
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("change", "inputs", "said"),
    [
        ("gates: [", {}, "::error file=scenarios/tiny.yaml,line="),
        ("", {"budget": "soon"}, "'soon' is not a valid float"),
    ],
    ids=["scenario", "budget"],
)
def test_nothing_to_measure(gate: Gate, tmp_path: Path, change: str, inputs: dict[str, str], said: str) -> None:
    """A base branch that cannot be judged by is an error with its place; the check is red and says not measured."""
    with (tmp_path / "origin" / "scenarios" / "tiny.yaml").open("a") as stream:
        stream.write(change)
    committed(tmp_path / "origin", "more")

    runner = gate(SAME, inputs=inputs)

    assert runner.result == "failure"
    assert runner.steps["enforce"].status == 2
    assert runner.outputs["report"]["verdict"] == "not-measured"
    assert "NOT MEASURED: perfgate ended with 2" in runner.summary
    assert said in runner.steps["prepare"].log + runner.steps["measure"].log


# --- shards

PLAN = ".github/actions/plan/action.yml"


def two_cells(origin: Path) -> None:
    """Let the scenario on main have two cells."""
    scenario_file(origin / "scenarios", more="matrix: {batch: [1, 2]}")
    committed(origin, "two cells")


def downloaded(github: FakeGitHub, folder: Path) -> Path:
    """The shards' artifacts as actions/download-artifact leaves them: each in a folder of its name."""
    for item in github.artifacts:
        if item["name"].startswith("perfgate-shard-"):
            for name, data in kept(github, item["name"]).items():
                file = folder / item["name"] / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
    return folder


def test_jobs_measure_shards_and_one_judges_them(gate: Gate, github: FakeGitHub, tmp_path: Path) -> None:
    """A shard's job shows no verdict of the whole; the judging job has it, with a page; 22 where a shard is away."""
    night = {"command": "nightly", "resume": "false"}
    two_cells(tmp_path / "origin")
    both = {"inputs": {"shards": "2", "base": "", "head": ""}}
    matrix = gate(SAME, action=PLAN, **both).outputs["plan"]["matrix"]
    first = gate(SAME, inputs={"plan": matrix, "shard": "1/2", **night})

    assert [entry["shard"] for entry in json.loads(matrix)["include"]] == ["1/2", "2/2"]
    ends = (first.result, first.outputs["report"]["exit_status"], first.steps["show"].outcome)
    assert ends == ("success", "0", "skipped")
    there = downloaded(github, tmp_path / "one")
    left = gate(SAME, action=PLAN, inputs={"plan": matrix, "done": str(there), "base": "", "head": ""})
    assert [entry["shard"] for entry in json.loads(left.outputs["left"]["matrix"])["include"]] == ["2/2"]
    asked = {"plan": matrix, "done": str(there), "base": "", "head": ""}
    own = [
        gate(SAME, action=PLAN, inputs={**asked, "shard": f"{number}/2"}).outputs["left"]["matrix"] for number in (1, 2)
    ]
    assert own == ["", left.outputs["left"]["matrix"]]
    judging = {"plan": matrix, "command": "judge", "resume": "false"}
    lacking = gate(SAME, inputs={**judging, "shards": str(there)})
    assert (lacking.result, lacking.steps["enforce"].status) == ("failure", ExitStatus.NOT_MEASURED)
    assert "shard 2 of 2: 1 cell" in Path(lacking.outputs["report"]["issue"]).read_text()

    gate(SAME, inputs={"plan": matrix, "shard": "2/2", **night})
    there = downloaded(github, tmp_path / "both")
    judged = gate(SAME, inputs={**judging, "shards": str(there)})

    assert (judged.result, judged.outputs["report"]["verdict"]) == ("success", "pass"), judged.steps["measure"].log
    candidates = judged.outputs["report"]["candidate"].split()
    assert [bool((there / one / "run.json").is_file()) for one in candidates] == [True] * 2
    assert any(name.endswith("report.html") for name in kept(github, judged.outputs["prepare"]["artifact"]))
    assert judged.steps["show"].outcome == "success"


def test_a_second_try_measures_what_is_left(gate: Gate, github: FakeGitHub, tmp_path: Path) -> None:
    """What a lost GPU left of a shard is measured beside the rest of it, by its plan alone, and both are judged."""
    two_cells(tmp_path / "origin")
    matrix = gate(SAME, action=PLAN, inputs={"shards": "1", "base": "", "head": ""}).outputs["plan"]["matrix"]
    measuring = {"plan": matrix, "shard": "1/1", "resume": "false"}
    gate({**SAME, "failures": {"10": "gpu-lost"}}, inputs=measuring)  # the first trial of the second cell
    there = downloaded(github, tmp_path / "one")
    asked = {"plan": matrix, "shard": "1/1", "done": str(there), "base": "", "head": ""}
    left = gate(SAME, action=PLAN, inputs=asked).outputs["left"]["matrix"]

    again = gate(SAME, inputs={**measuring, "left": left})
    there = downloaded(github, tmp_path / "both")
    judged = gate(SAME, inputs={"plan": matrix, "command": "judge", "resume": "false", "shards": str(there)})

    assert [entry["cells"] for entry in json.loads(left)["include"]] == [["tiny[batch=2]"]]
    assert again.outputs["prepare"]["artifact"].startswith("perfgate-shard-1-of-1-again-")
    assert len([*there.iterdir()]) == 2
    assert (judged.result, judged.outputs["report"]["verdict"]) == ("success", "pass"), judged.steps["measure"].log


def test_a_shard_needs_its_plan(gate: Gate) -> None:
    """A job that is given half of what names a shard measures nothing, nor does one whose plan is not one."""
    for inputs, text in (
        ({"shard": "1/2"}, "plan goes with shard"),
        ({"command": "judge"}, "plan goes with shard"),
        ({"left": "{}"}, "left goes with shard"),
        ({"shard": "1/2", "plan": "{}"}, "include: Field required"),
    ):
        runner = gate(SAME, inputs=inputs)
        assert (runner.result, text in runner.steps["prepare"].log) == ("failure", True), runner.steps["prepare"].log
