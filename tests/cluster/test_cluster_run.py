"""What ``perfgate run --on`` refuses before it looks for a cluster, and which files of a run travel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_collector import FakeCollector
from hand_made import scenario_file

from perfgate.capture.gpus import VISIBLE
from perfgate.cli.main import main
from perfgate.cluster.cell_task import without_ray
from perfgate.cluster.cluster_run import GrowingFolder, put
from perfgate.errors import ExitStatus, RecordError

MEASURED = ["tiny.yaml", "--base", "python=/bin/true"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--attach", "latest"], "--attach looks on at a cluster"),
        ([*MEASURED, "--quick", "--on", "auto"], "--on: --quick cannot be given"),
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


def test_without_ray_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray is an extra: whoever has not got it is told its name."""
    scenario_file(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("perfgate.cli.clustering.find_spec", lambda _: None)
    result = CliRunner().invoke(main, ["run", *MEASURED, "--on", "auto"])

    assert (result.exit_code, "pip install 'perfgate[ray]'" in result.stderr) == (ExitStatus.USAGE, True)


def test_files_that_changed_travel_once(tmp_path: Path) -> None:
    """Records come last; locks, caches, workers ahead of their trial and half-written files stay."""
    names = ("r/run.json", "r/records/a.json", "r/trials/001/engine.log")
    put(tmp_path, dict.fromkeys((*names, "r/lock", "r/cache-x/a", "r/parked-1/a", "r/records/.a.json.1.part"), b"1"))
    growing = GrowingFolder(tmp_path)

    assert [*growing.changed()] == ["r/run.json", "r/trials/001/engine.log", "r/records/a.json"]
    assert growing.changed() == {}
    put(tmp_path, {"r/records/a.json": b"22"})
    assert growing.changed() == {"r/records/a.json": b"22"}


@pytest.mark.parametrize("path", ["../out", "/etc/out", "a/../../out", ""])
def test_no_file_leads_out(tmp_path: Path, path: str) -> None:
    """What a node sends is written below the folder of its cell, or not at all."""
    with pytest.raises(RecordError, match="leads out"):
        put(tmp_path / "cell", {path: b""})


def test_what_ray_sets_is_out_of_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its place is the environment of a run alone; the GPUs that Ray chose stay, and none chosen is no choice."""
    for name, value in {"RAY_JOB_ID": "1", "OMP_NUM_THREADS": "1", VISIBLE: ""}.items():
        monkeypatch.setenv(name, value)
    with without_ray():
        assert {"RAY_JOB_ID", "OMP_NUM_THREADS", VISIBLE} & {*os.environ} == set()
    assert os.environ["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv(VISIBLE, "1")
    with without_ray():
        assert os.environ[VISIBLE] == "1"
