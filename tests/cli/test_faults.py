"""Every write, fsync, rename and new folder of a run fails once: nothing finished is lost, and the run goes on.

After SQLite's tests of out-of-disk and out-of-memory errors (https://sqlite.org/testing.html): the same run is repeated
with a fault at the first place, at the second, and so on, until a run meets none.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from click.testing import CliRunner, Result
from fake_collector import FakeCollector, FakeSpec
from hand_made import scenario_file

from perfgate.cli.main import main
from perfgate.record.run_record import read_records, read_run

SHORT = "warmup_iterations: 0, iterations: 1"
PASSES = "{metric: itl_median, ignorable: 900%, must_catch: 1000%}"
STRIDE = 29  # of the places the usual tests take few, beginning at a different one for each kind of fault


class Faults:
    """Counts places where the system may refuse, and refuses at one of them.

    Args:
        monkeypatch: Undoes everything.
        at: Number of the place, from 0.
        error: Raised there.
        tear: Whether a write has written half of its data by then.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, at: int, error: Callable[[], BaseException], *, tear: bool
    ) -> None:
        self.at, self.error, self.tear = at, error, tear
        self.places = itertools.count()
        self.met = ""
        for name in ("fsync", "replace", "mkdir"):
            monkeypatch.setattr(os, name, self._guarded(name, getattr(os, name)))
        plain = io.open

        def opened(file: Any, mode: str = "r", *words: Any, **named: Any) -> Any:
            if not set(mode) & set("wax+") or isinstance(file, int):  # a descriptor is a pipe's, and fills no disk
                return plain(file, mode, *words, **named)
            self._place(f"open {file}")
            return _Written(self, plain(file, mode, *words, **named))

        monkeypatch.setattr(io, "open", opened)

    def _place(self, what: str, before: Callable[[], object] = lambda: None) -> None:
        if next(self.places) == self.at:
            self.met = what
            before()
            raise self.error()

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*words: Any, **named: Any) -> Any:
            self._place(f"{name} {words[0]}")
            return function(*words, **named)

        return guarded


class _Written:
    """A file open for writing, whose writes are places."""

    def __init__(self, faults: Faults, stream: Any) -> None:
        self.faults, self.stream = faults, stream

    def write(self, data: Any) -> Any:
        def half() -> None:
            if self.faults.tear:
                self.stream.write(data[: len(data) // 2])
                self.stream.flush()

        self.faults._place(f"write {self.stream.name}", half)
        return self.stream.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.stream)


def no_space() -> BaseException:
    """What a full disk raises."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere")


KINDS: dict[str, tuple[Callable[[], BaseException], bool, set[int]]] = {
    "no space": (no_space, False, {22}),
    "half written": (no_space, True, {22}),
    "no memory": (MemoryError, False, {1}),
}
"""Error, whether half is written, and the exit statuses that are documented for it."""


def perfgate(*words: str) -> Result:
    """The command line in this process, with fake trials."""
    return CliRunner().invoke(main, words, obj=FakeCollector(FakeSpec(restart_sd=0.0003)))


def run_with_fault(folder: Path, kind: str, at: int) -> bool:
    """One run with a fault, looked at and gone on with; whether it met the fault."""
    error, tear, statuses = KINDS[kind]
    file = scenario_file(folder, gates=PASSES)
    file.write_text(file.read_text().replace("warmup_iterations: 1, iterations: 2", SHORT))
    words = ("run", str(file), "--base", "python=/bin/true", "--head", "env.A=1", "--runs", str(folder / "runs"))
    with pytest.MonkeyPatch.context() as patched:
        faults = Faults(patched, at, error, tear=tear)
        ended = perfgate(*words)
    place = f"{kind} at {at}, {faults.met}: {ended.exit_code}\n{ended.stderr}{ended.exception!r}"
    if not faults.met:
        assert ended.exit_code == 0, place
        return False
    if ended.exit_code == 0 and faults.met.startswith("mkdir"):
        return True  # that folder was there
    assert ended.exit_code in statuses, place
    check_and_go_on(folder, reported(ended.stderr), place)
    return True


def check_and_go_on(folder: Path, finished: set[int], place: str) -> None:
    """What was reported is there, and a run folder with a manifest leads to the verdict."""
    found = [one for one in (folder / "runs").glob("*") if (one / "run.json").exists()]
    if not found:
        assert not finished, place
        return
    (run_folder,) = found
    kept = {trial.index for record in read_records(run_folder, read_run(run_folder)) for trial in record.trials}
    assert finished <= kept, place
    resumed = perfgate("run", "--resume", str(run_folder))
    assert resumed.exit_code == 0, f"{place}\nresumed: {resumed.stderr}"
    assert list(run_folder.rglob(".*.part")) == [], place


def reported(stderr: str) -> set[int]:
    """Trials that were said to have finished."""
    return {int(number) for number in re.findall(r" trial (\d+) ", stderr)}


@pytest.mark.usefixtures("no_orphans")
@pytest.mark.parametrize("kind", KINDS)
def test_some_places(tmp_path: Path, kind: str) -> None:
    """A run that is refused anything ends as documented with everything finished on disk, and --resume ends it."""
    for at in itertools.count(list(KINDS).index(kind), STRIDE):
        folder = tmp_path / str(at)
        folder.mkdir()
        if not run_with_fault(folder, kind, at):
            break
    assert at > 3 * STRIDE, "the run has more places than that"


@pytest.mark.slow
@pytest.mark.usefixtures("no_orphans")
@pytest.mark.parametrize("kind", KINDS)
def test_every_place(tmp_path: Path, kind: str) -> None:
    """The same at every place of a run."""
    for at in itertools.count():
        folder = tmp_path / str(at)
        folder.mkdir()
        if not run_with_fault(folder, kind, at):
            break
