"""What ``perfgate run --on`` refuses before it looks for a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_collector import FakeCollector
from hand_made import scenario_file

from perfgate.cli.main import main
from perfgate.errors import ExitStatus

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
