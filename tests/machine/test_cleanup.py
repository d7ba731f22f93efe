"""Making room: what goes of old and killed runs, and what never does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from deep_tree import deep_tree

from perfgate.capture.compile_caches import VARIABLE
from perfgate.cli.main import main
from perfgate.errors import ExitStatus
from perfgate.machine.cleanup import remove_tree, sweep
from perfgate.machine.locks import hold
from perfgate.machine.sealed_folders import SEAL, Store
from perfgate.project.build import CACHE

RUN = {"format": "perfgate-run/1"}
DAY_S = 86400


def make_run(folder: Path, *, days: float = 0.0, manifest: object = RUN) -> Path:
    """A run folder with a record and a compile cache, measured so many days ago."""
    for part in ("records", "cache-x/base/vllm"):
        (folder / part).mkdir(parents=True)
    (folder / "cache-x" / "base" / "vllm" / "kernel.so").write_bytes(b"compiled")
    (folder / "records" / "cell.json").write_text("{}")
    (folder / "run.json").write_text(json.dumps(manifest))
    for file in (folder / "run.json", folder / "records" / "cell.json"):
        os.utime(file, (time.time() - days * DAY_S,) * 2)
    return folder


def test_caches_go_and_measurements_stay(tmp_path: Path) -> None:
    """A run folder of late keeps all but the compile caches of a killed visit; it is found at any depth."""
    run = make_run(tmp_path / "work" / "repository" / "runs" / "late", days=13)

    swept = [str(one) for one in sweep(tmp_path, days=14)]

    assert swept == [f"removed {run / 'cache-x'}"]
    assert {"records", "run.json"} <= {file.name for file in run.iterdir()}


def test_what_a_program_under_test_made_does_not_hold_cleaning_up(tmp_path: Path) -> None:
    """Folders in folders, more than Python can go down, in the trial of an old run and in the caches of a late one."""
    old, late = make_run(tmp_path / "old", days=15), make_run(tmp_path / "late")
    trial = old / "trials" / "000"
    trial.mkdir(parents=True)
    with deep_tree(trial), deep_tree(late / "cache-x"):
        assert {one.folder for one in sweep(tmp_path, days=14) if not one.kept} == {old, late / "cache-x"}
        assert not old.exists()


def test_a_run_goes_by_its_last_measurement(tmp_path: Path) -> None:
    """A folder in which nothing was measured for long goes whole; one begun long ago but gone on with does not."""
    make_run(tmp_path / "old", days=15)
    resumed = make_run(tmp_path / "resumed", days=15)
    (resumed / "records" / "cell.json").write_text('{"later": true}')

    list(sweep(tmp_path, days=14))

    assert (tmp_path / "old").exists() is False
    assert (resumed / "run.json").exists()


@pytest.mark.parametrize("manifest", [{}, {"format": "other-run/1"}, [], "perfgate-run/1"])
def test_folders_of_others_are_left_alone(tmp_path: Path, manifest: object) -> None:
    """A run.json that is not ours protects its folder, however old."""
    folder = make_run(tmp_path / "theirs", days=1000, manifest=manifest)

    assert list(sweep(tmp_path, days=14)) == []
    assert (folder / "cache-x").exists()


def test_links_are_not_followed(tmp_path: Path) -> None:
    """What a link leads to lies elsewhere and stays."""
    elsewhere = make_run(tmp_path / "elsewhere", days=1000)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "link").symlink_to(elsewhere)

    assert list(sweep(tmp_path / "work", days=14)) == []


def test_a_run_under_way_is_kept(tmp_path: Path) -> None:
    """A folder that somebody measures into keeps everything, and the command says who that is."""
    run = make_run(tmp_path / "busy", days=1000)

    with hold(run):
        ended = CliRunner().invoke(main, ["clean", "--runs", str(tmp_path)])

    assert ended.stdout == f"kept {run}: {run}: process {os.getpid()} is measuring into it\n"
    assert (run / "cache-x").exists()


def test_clean_needs_a_job_to_end_one() -> None:
    """--job outside a job of GitHub is refused: it could not tell whose runs to end."""
    ended = CliRunner().invoke(main, ["clean", "--job"], env={"RUNNER_NAME": "x", "GITHUB_RUN_ID": None})

    assert (ended.exit_code, "GITHUB_RUN_ID" in ended.stderr) == (2, True)


def test_a_user_without_a_home_has_no_builds_to_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All else that was asked for is removed, and told."""
    for name in (VARIABLE, CACHE, "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    old = make_run(tmp_path / "old", days=15)

    ended = CliRunner().invoke(main, ["clean", "--runs", str(tmp_path), "--builds", "--caches"])

    assert (ended.exit_code, ended.stdout) == (0, f"removed {old}\n")


def test_a_wrong_configuration_is_told_before_anything_is_removed(here: Path) -> None:
    """What is gone would not be in the error."""
    make_run(here / "old", days=15)
    (here / "perfgate.toml").write_text("[build")

    assert CliRunner().invoke(main, ["clean", "--runs", ".", "--builds"]).exit_code == ExitStatus.USAGE
    assert (here / "old").exists()


def test_clean_makes_room_in_the_caches(tmp_path: Path) -> None:
    """--caches removes what no visit used for --days, and keeps the rest."""
    filled, root = tmp_path / "filled", tmp_path / "caches"
    filled.mkdir()
    (filled / "kernel.so").write_bytes(b"compiled")
    old, new = "0" * 64, "1" * 64
    for key in (old, new):
        Store(root).keep(key, filled, "batch 1")
    os.utime(root / old / SEAL, (1, 1))

    ended = CliRunner().invoke(main, ["clean", "--caches"], env={VARIABLE: str(root)})

    assert (ended.exit_code, ended.stdout) == (0, f"removed {root / old}\n")
    assert (root / new / SEAL).exists()


@pytest.mark.parametrize("ignoring", ["", "ignoring"])
def test_a_tree_of_more_levels_than_files_may_be_open_is_removed(tmp_path: Path, ignoring: str) -> None:
    """Removing has a file open for each level, and a system may permit a process a thousand."""
    (tmp_path / "own" / "/".join("d" * 100)).mkdir(parents=True)
    program = (
        "import resource, sys; from pathlib import Path; from perfgate.machine.cleanup import remove_tree; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); "
        "remove_tree(Path(sys.argv[1]), ignore_errors=bool(sys.argv[2]))"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path / "own", ignoring], check=True)
    assert [*tmp_path.iterdir()] == []


def test_a_link_in_place_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    """Nor is it removed."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to("kept")
    remove_tree(tmp_path / "link", ignore_errors=True)
    with pytest.raises(OSError, match="symbolic link"):
        remove_tree(tmp_path / "link")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["kept", "link"]


def test_what_cannot_be_removed_is_said_unless_it_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the system has no program to remove it."""

    def too_deep(*_: object, **__: object) -> None:
        raise RecursionError

    monkeypatch.setattr(shutil, "rmtree", too_deep)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "own").mkdir()
    remove_tree(tmp_path / "own", ignore_errors=True)
    with pytest.raises(FileNotFoundError, match="rm"):
        remove_tree(tmp_path / "own")
