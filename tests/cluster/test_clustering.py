"""What ``perfgate run --on`` refuses before it looks for a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fake_collector import FakeCollector, FakeSpec
from hand_made import scenario_file
from hand_made_cluster import Cluster

from perfgate.cli.main import main
from perfgate.cluster.cluster_run import ClusterRun, Node
from perfgate.errors import ExitStatus, InterruptedRunError
from perfgate.scenario.declaration import load
from perfgate.scenario.plan import make_plan
from perfgate.scenario.presets import with_preset

MEASURED = ["tiny.yaml", "--base", "python=/bin/true"]
NODES = [("a", "small", 0.0), ("b", "small", 2.0), ("c", "large", 8.0)]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--attach", "latest"], "--attach looks on at a cluster"),
        ([*MEASURED, "--quick", "--on", "auto"], "--on: --quick cannot be given"),
        ([*MEASURED, "--preset", "quick", "--on", "auto"], "--on: --preset quick cannot be given"),
        ([*MEASURED, "--preset", "comprehensive", "--on", "auto"], "--on: --preset comprehensive cannot be given"),
        (["--resume", "x", "--preset", "scaling", "--on", "auto"], "--on: --preset scaling cannot be given"),
        (
            [*MEASURED, "--gpus", "all", "--host-profile", "--on", "auto"],
            "--on: --host-profile, --gpus cannot be given",
        ),
        ([*MEASURED, "--against", "baseline", "--on", "auto"], "--on: --against baseline cannot be given"),
        (["tiny.yaml", "--attach", "x", "--on", "auto"], "a scenario beside --resume or --attach cannot be given"),
        (["--attach", "x", "--budget", "5", "--on", "auto"], "--budget beside --attach cannot be given"),
        (["--resume", "latest", "--on", "auto"], "holds no run that was measured on a cluster"),
        (["--resume", "x", "--on", "auto"], "no run of that name was begun on a cluster"),
    ],
)
def test_what_does_not_go_on_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], text: str
) -> None:
    """Each is an error that says so, before anything is measured."""
    scenario_file(tmp_path)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["run", *words], obj=FakeCollector())

    assert (result.exit_code, text in result.stderr) == (ExitStatus.USAGE, True), result.output
    assert not [*tmp_path.glob("runs/*")]


def test_an_empty_cluster_is_none(here: Path) -> None:
    """A workflow whose input is empty measures on this machine."""
    scenario_file(here)
    ran = CliRunner().invoke(
        main, ["run", *MEASURED, "--head", "env.BUILD=new", "--on", ""], obj=FakeCollector(FakeSpec(restart_sd=0.0003))
    )

    assert ran.exit_code == ExitStatus.PASS, ran.output


def test_a_preset_scales_to_the_largest_node_of_the_class(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is that of a run alone on so many GPUs, and a node that has the scenario's own file measures it."""
    file = scenario_file(here)
    (here / "perfgate.toml").write_text('[machines.small]\nscenarios = "*.yaml"\nlabels = "small"\n')
    nodes = [Node(name, name, {"CPU": 4.0, "GPU": gpus, kind: 1.0}) for name, kind, gpus in NODES]
    monkeypatch.setattr("perfgate.cluster.submission.nodes_at", lambda _: nodes)
    runs: list[ClusterRun] = []

    def kept(_: str, run: ClusterRun, *__: Any) -> None:
        runs.append(run)
        raise InterruptedRunError("kept", code="interrupted")

    monkeypatch.setattr("perfgate.cluster.submission.run_on", kept)
    words = ["run", str(file), "--base", "python=/bin/true", "--head", "env.BUILD=new", "--preset", "scaling"]
    CliRunner().invoke(main, [*words, "--on", "auto"], obj=FakeCollector())

    (run,) = runs
    alone = make_plan((with_preset(load(file), "scaling", 2),), run.plan.seed)
    assert len(alone.cells) > len(make_plan((with_preset(load(file), "scaling", 1),), 1).cells) > 1
    assert [shard.cells for shard in run.plan.include] == [(cell.name,) for cell in alone.cells]
    assert {Cluster(run).measure(number).kind for number in (1, len(alone.cells))} == {"done"}


def test_without_ray_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray is an extra: whoever has not got it is told its name."""
    scenario_file(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("perfgate.cluster.commands.find_spec", lambda _: None)
    result = CliRunner().invoke(main, ["run", *MEASURED, "--on", "auto"])

    assert (result.exit_code, "pip install 'perfgate[ray]'" in result.stderr) == (ExitStatus.USAGE, True)
