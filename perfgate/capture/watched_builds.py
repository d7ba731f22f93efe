"""The builds of a visit: what their files are, whether they change while it lasts, and where their bytecode is kept.

All files are read at the beginning, and held against what earlier visits of the run measured. Before each trial those
of its build are looked at; after the last one those of every build that was measured since. A change ends what was
measured of that build: nobody knows which of its trials ran what. Engines import while the files may change, so a look
says of the trial before it that its files stayed, and of the trial after it what it begins with.

Engines write no bytecode beside sources: for each build of a visit there is a folder in their place
(``PYTHONPYCACHEPREFIX``), which begins with links to the bytecode that interpreter and installers left. So an engine
starts nearly as fast as it would, nothing under test fills what another build reads, and a folder of ``path=`` stays as
it was. Bytecode beside sources that people edit is compiled anew: it is executed and in no digest, and need not fit.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from perfgate.capture.build_digest import Build, Builds, ModulePath, NoAnswerError, is_of_packages
from perfgate.capture.build_files import UnknownBuildError, packages_of
from perfgate.capture.compile_caches import FOLDERS
from perfgate.capture.engine import engine_settings, subject_environment
from perfgate.capture.job import Job
from perfgate.machine.cleanup import remove_tree
from perfgate.metrics.trial import Failure
from perfgate.record.compared_builds import BuildDigest
from perfgate.record.dropped_pairs import CHANGED, UNKNOWN
from perfgate.record.run_record import Record, Run
from perfgate.scenario.plan import Cell
from perfgate.scenario.subject import Subject

_NAMED: Final = 3
"""So many files are named in a sentence."""
_MOST_LINKS: Final = 200_000
_WITHOUT: Final = {"__pycache__", "test", "tests", "idlelib", "lib2to3"}
"""Folders in which no bytecode is sought: they are large, and no engine imports them."""


@dataclass(frozen=True)
class Looked:
    """What a look at a build found.

    Args:
        failure: What has changed; no further trial is taken then.
        unknown: Why that is not known; empty where it is.
    """

    failure: Failure | None = None
    unknown: str = ""

    def after(self, record: Record, label: str) -> Record:
        """A record whose last trial of a build was taken before this look, with a caution where nothing is known."""
        places = [place for place, trial in enumerate(record.trials) if trial.label == label]
        if not self.unknown or not places:
            return record
        trials = [*record.trials]
        last = trials[places[-1]]
        trials[places[-1]] = last.model_copy(update={"cautions": (*dict.fromkeys((*last.cautions, UNKNOWN)),)})
        return record.model_copy(update={"trials": (*trials,)})


class WatchedBuilds:
    """The builds of one visit; a context manager that removes what it keeps beside them.

    Args:
        run_folder: The run's folder.
        run: Its manifest.
        environment: What engines may see of the shell's variables.
    """

    def __init__(self, run_folder: Path, run: Run, environment: Mapping[str, str]) -> None:
        self._run_folder, self._run, self._environment = run_folder, run, environment
        self._found: dict[tuple[str, str], Build | UnknownBuildError] = {}  # by build and cell
        self._unproven: dict[str, set[str]] = {}  # cells of which a build was measured since it was looked at
        self._changed: dict[str, Failure] = {}
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        """Read all builds.

        Raises:
            OSError: The run folder cannot be written.
        """
        self._folder = Path(tempfile.mkdtemp(prefix=FOLDERS, dir=self._run_folder.resolve()))
        self.builds = Builds(self._folder)
        for cell in self._run.cells:
            for label, subject in self._run.built.items():
                if subject.url is None:
                    self._found[label, cell.cell_id] = build = self._read(cell, subject)
                    if isinstance(build, Build) and build.path.version and not self.bytecode(label).exists():
                        link_bytecode(self.bytecode(label), build.path, subject.path)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Remove the bytecode."""
        remove_tree(self._folder, ignore_errors=True)

    def bytecode(self, label: str) -> Path:
        """Where engines of a build keep their bytecode."""
        return self._folder / f"bytecode-{label}"

    def build(self, label: str, cell_id: str) -> Build | None:
        """A build as a cell measures it; ``None`` where that is not known."""
        build = self._found.get((label, cell_id))
        return build if isinstance(build, Build) else None

    def digests(self, cell: Cell) -> dict[str, BuildDigest]:
        """What a record of a cell keeps of the builds."""
        builds = {label: self._found.get((label, cell.cell_id)) for label in self._run.built}
        return {label: _kept(build) for label, build in builds.items() if build is not None}

    def look(self, job: Job) -> Looked:
        """Whether the build of a trial that is about to be taken is as it was."""
        with self._lock:
            looked = self._look(job.label, job.cell.cell_id)
            if looked.failure is None:
                if not looked.unknown:
                    self._unproven.pop(job.label, None)
                self._unproven.setdefault(job.label, set()).add(job.cell.cell_id)
            return looked

    def last_look(self) -> Iterator[tuple[str, str, Looked]]:
        """Cells whose build was measured since the last look: the cell's id, the build, and what is wrong with it."""
        with self._lock:
            for label, cells in self._unproven.items():
                for cell_id in sorted(cells):
                    if (looked := self._look(label, cell_id)) != Looked():
                        yield cell_id, label, looked

    def _look(self, label: str, cell_id: str) -> Looked:
        build = self._found.get((label, cell_id))
        if build is None or isinstance(build, NoAnswerError):
            return Looked()
        if isinstance(build, UnknownBuildError):
            return Looked(unknown=str(build))
        if label not in self._changed:
            try:
                changes = build.changes()
            except UnknownBuildError as error:
                return Looked(unknown=str(error))
            if not changes:
                return Looked(unknown=build.new)
            self._changed[label] = Failure(code=CHANGED, text=in_brief(changes))
        return Looked(self._changed[label])

    def _read(self, cell: Cell, subject: Subject) -> Build | UnknownBuildError:
        variables = {**self._environment, **engine_settings(self._folder), **cell.engine.env}
        try:
            try:
                return self.builds.of(subject, subject_environment(variables, subject))
            except NoAnswerError:
                if not subject.path:
                    raise
                return self.builds.of_path(subject)
        except UnknownBuildError as error:
            return error


def _kept(build: Build | UnknownBuildError) -> BuildDigest:
    return BuildDigest(digest=build.digest) if isinstance(build, Build) else BuildDigest(unknown=str(build))


def in_brief(files: Sequence[str]) -> str:
    """The first of some files, and how many more there are."""
    more = len(files) - _NAMED
    return "; ".join([*files[:_NAMED], *([f"and {more} more"] if more > 0 else [])])


def link_bytecode(folder: Path, path: ModulePath, without: Iterable[str] = ()) -> None:
    """Make a folder for the bytecode of an interpreter, with links to that of its library and of what was installed.

    An interpreter that writes a module's bytecode anew replaces the link, not what it leads to.

    Args:
        folder: To be made.
        path: Where that interpreter looks for modules.
        without: Folders of which none is linked, wherever they are.

    Raises:
        OSError: The folder cannot be written.
    """
    folder.mkdir()
    installed = [root for root in path.folders if is_of_packages(root) and packages_of(root)]
    roots = dict.fromkeys((*path.libraries, *installed))
    links = (link for root in roots if Path(root).is_absolute() for link in _bytecode_below(root, {*without}))
    made = ""
    for place, name in islice(links, _MOST_LINKS):
        to = f"{folder}{place}"  # as Python does
        if to != made:
            Path(to).mkdir(parents=True, exist_ok=True)
            made = to
        os.symlink(f"{place}/__pycache__/{name}", f"{to}/{name}")  # noqa: PTH211 (10,000 of them)


def _bytecode_below(root: str, without: Collection[str]) -> Iterator[tuple[str, str]]:
    """The files of bytecode below a folder and in no other root of modules, each with the folder of its source."""
    for place, folders, _ in os.walk(root):
        if place in without:
            folders.clear()
        is_there = "__pycache__" in folders
        folders[:] = [
            name for name in folders if not (name in _WITHOUT or name.startswith(".") or is_of_packages(name))
        ]
        if is_there:
            with contextlib.suppress(OSError):  # it is compiled then
                for name in os.listdir(f"{place}/__pycache__"):  # noqa: PTH208
                    if name.endswith(".pyc") and ".opt-" not in name:
                        yield place, name
