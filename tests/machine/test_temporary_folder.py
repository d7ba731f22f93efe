"""A temporary folder goes with its maker, and what a killed one left goes with the next."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from deep_tree import deep_tree

from perfgate.machine.cleanup import remove_tree
from perfgate.machine.temporary_folder import left_behind, temporary_folder

MAKES_ONE = """
import sys, tempfile
from perfgate.machine.temporary_folder import temporary_folder
tempfile.tempdir = sys.argv[1]
with temporary_folder("own-") as folder:
    (folder / "file").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files are in this test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_goes_with_its_block(place: Path) -> None:
    """With all that is in it, also where the block raises; folders of two makers do not disturb each other."""
    with temporary_folder("own-") as first, temporary_folder("own-") as second:
        (first / "file").touch()
        assert {*place.iterdir()} == {first, second}
        assert first.stat().st_mode & 0o077 == 0
    with pytest.raises(KeyboardInterrupt), temporary_folder("own-"):
        raise KeyboardInterrupt
    assert [*place.iterdir()] == []


def test_what_a_killed_process_left_is_removed_and_what_one_at_work_has_stays(place: Path) -> None:
    """The kernel tells the one from the other."""
    argv = [sys.executable, "-c", MAKES_ONE, str(place)]
    with (
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as killed,
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as at_work,
    ):
        assert killed.stdout is not None
        assert at_work.stdout is not None
        left, held = (Path(one.stdout.readline().rstrip()) for one in (killed, at_work) if one.stdout)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert (left / "file").exists()
        with temporary_folder("own-") as own:
            assert {*place.iterdir()} == {own, held}
            assert (held / "file").exists()
        at_work.communicate("")
    assert [*place.iterdir()] == []


def test_only_folders_are_taken_for_left(place: Path) -> None:
    """Neither files, pipes and links of such a name are removed, nor what a link names, nor folders of another host."""
    with temporary_folder("own-") as own:
        begin = own.name[: -len("xxxxxxxx")]
    (place / "kept").mkdir()
    (place / f"{begin}link").symlink_to(place / "kept")
    (place / f"{begin}file").touch()
    os.mkfifo(place / f"{begin}pipe")
    (place / "own-0123-x").mkdir()
    before = {*place.iterdir()}
    with temporary_folder("own-"):
        assert {*place.iterdir()} > before
    assert {*place.iterdir()} == before


def test_a_folder_of_another_user_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root could remove it."""
    with temporary_folder("own-") as own:
        left = place / f"{own.name[:-1]}-"
    left.mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with temporary_folder("own-"):
            pass
        assert left.exists()
    with temporary_folder("own-"):
        assert not left.exists()


def test_a_folder_however_deep_is_removed(place: Path) -> None:
    """Code under test writes into it, and no run after it may be stopped by what is there."""
    with contextlib.ExitStack() as stack:
        with temporary_folder("own-") as own:
            stack.enter_context(deep_tree(own))
        assert [*place.iterdir()] == []


@pytest.mark.parametrize("fails", ["flock", "mkdtemp"])
def test_where_none_can_be_had_is_said(place: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    """A file system may have no locks, or no room; nothing is left there then."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl if fails == "flock" else tempfile, fails, refuse)
    with pytest.raises(OSError, match="not implemented"), temporary_folder("own-"):
        pass
    assert [*place.iterdir()] == []


@pytest.mark.parametrize("before", ["it was opened", "it was locked"])
def test_one_that_was_taken_for_left_is_made_anew(place: Path, monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    """Somebody else may look just then."""
    make, lock = tempfile.mkdtemp, fcntl.flock
    made: list[str] = []

    def sweep() -> None:
        if len(made) == 1:
            remove_tree(Path(made[0]), ignore_errors=True)

    def swept(prefix: str) -> str:
        made.append(make(prefix=prefix))
        if before == "it was opened":
            sweep()
        return made[-1]

    def swept_again(descriptor: int, how: int) -> None:
        sweep()
        lock(descriptor, how)

    monkeypatch.setattr(tempfile, "mkdtemp", swept)
    monkeypatch.setattr(fcntl, "flock", swept_again)
    with temporary_folder("own-") as own:
        assert ([str(own)], own.parent) == (made[1:], place)
        assert own.exists()


def test_folders_that_cannot_be_looked_for_stop_nobody(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place may be written and not listed, and what was listed may be gone."""

    def refuse(_: Path) -> Iterator[Path]:
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", refuse)
        with temporary_folder("own-") as own:
            assert own.exists()
    with temporary_folder("own-") as own:
        monkeypatch.setattr(Path, "iterdir", lambda _: iter([place / "own-gone", own]))
        assert left_behind("own-", own) == []
