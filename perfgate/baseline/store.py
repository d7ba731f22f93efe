"""Where baselines are: ``baselines/<machine class>/<scenario>[/<cell>].json`` of a repository, and copies in runs.

A run keeps a copy of every baseline that it may be judged against, so that its verdict can be had again anywhere.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from perfgate.baseline.lineage import FORMAT, Baseline, parse
from perfgate.errors import RecordError, UsageError
from perfgate.machine.atomic_files import sha256_hex, write_atomically
from perfgate.machine.json_text import BASELINE, JsonError, check_size
from perfgate.machine.locks import state_folder
from perfgate.machine.versioned_json import read_bytes
from perfgate.metrics.trial import Artifact
from perfgate.project.git import Git, NoGitError
from perfgate.record.run_record import Run
from perfgate.scenario.plan import Cell

COPIES = "baselines"
"""Folder of a run that holds the baselines it was judged against."""


@dataclass(frozen=True)
class Stored:
    """A baseline and the text it was read from."""

    text: str
    baseline: Baseline


def read(file: Path) -> Stored:
    """Read a baseline's file and verify its lineage.

    Raises:
        RecordError: It does not exist, is not a baseline, or its lineage is broken.
    """
    text = read_bytes(file, BASELINE).decode(errors="replace")  # which no digest fits
    return Stored(text, parse(text, str(file)))


def is_baseline(file: Path) -> bool:
    """Whether a file says that it is a baseline."""
    try:
        with file.open(encoding="utf-8") as stream:
            return f'"format": "{FORMAT.partition("/")[0]}/' in stream.read(BASELINE.mib << 20)
    except (OSError, UnicodeDecodeError):
        return False


def baseline_path(cell: Cell, machine_class: str) -> Path:
    """Where the baseline of a cell belongs, below the folder of baselines."""
    label = cell.name.removeprefix(cell.scenario).strip("[]")
    if not label:
        return Path(machine_class, f"{cell.scenario}.json")
    readable = re.sub(r"[^A-Za-z0-9._=,-]+", "-", label)[:80]
    # Labels that read alike are told apart, so that no two cells share a file.
    name = readable if readable == label else f"{readable}-{sha256_hex(label)[:8]}"
    return Path(machine_class, cell.scenario, f"{name}.json")


def files(root: Path) -> list[Path]:
    """Every baseline below a folder, in order."""
    return sorted(root.glob("*/**/*.json"))


def find(source: Path, cells: Iterable[Cell]) -> dict[str, tuple[Stored, ...]]:
    """The baselines that cells may be held against, by cell_id, of whatever machine; none for a cell that is new.

    ``source`` is a file, which every cell is held against, or a folder that has one for the cell.

    Raises:
        RecordError: One of them is broken.
        UsageError: ``source`` is a file that no baseline can be.
    """
    if source.suffix == ".json":
        return {cell.cell_id: (read(source),) for cell in cells}
    if source.exists() and not source.is_dir():
        raise UsageError(f"{source}: expected a folder of baselines, or a file that ends in .json")
    classes = sorted(folder.name for folder in source.iterdir() if folder.is_dir()) if source.is_dir() else []
    files = {cell.cell_id: [source / baseline_path(cell, machine_class) for machine_class in classes] for cell in cells}
    return {cell_id: tuple(read(file) for file in paths if file.is_file()) for cell_id, paths in files.items()}


def keep(folder: Path, baselines: Mapping[str, Sequence[Stored]]) -> dict[str, tuple[Artifact, ...]]:
    """Copy baselines into a run's folder; what the run's manifest keeps of them."""
    (folder / COPIES).mkdir()
    kept = {}
    for cell_id, stored in baselines.items():
        copies = [folder / COPIES / f"{source.baseline.tip[:16]}.json" for source in stored]
        for copy, source in zip(copies, stored, strict=True):
            write_atomically(copy, source.text)
        kept[cell_id] = tuple(Artifact.of(copy, folder) for copy in copies)
    return kept


def kept(folder: Path, run: Run) -> dict[str, tuple[Baseline, ...]]:
    """The baselines that a run keeps, by cell_id.

    Raises:
        RecordError: A copy is missing, or is not what the manifest names.
    """
    return {cell_id: tuple(_kept(folder, copy) for copy in copies) for cell_id, copies in (run.against or {}).items()}


def _kept(folder: Path, copy: Artifact) -> Baseline:
    stored = read(file := folder / copy.path)
    if sha256_hex(stored.text) != copy.sha256:
        raise RecordError("is not the baseline that the run was judged against", where=str(file))
    return stored.baseline


@contextmanager
def changing(files: Iterable[Path]) -> Iterator[None]:
    """Keep other promotions of this host away from files while the block lasts."""
    with ExitStack() as locks:
        for file in sorted({*files}):  # in one order, so that two promotions cannot cross
            name = f"baseline-{sha256_hex(str(file.absolute()))[:16]}.lock"
            locks.enter_context(FileLock(state_folder() / name, mode=0o666))
        yield


def write(baselines: Mapping[Path, Baseline]) -> None:
    """Put baselines in their places: all of them, each whole, or none.

    Raises:
        RecordError: A file cannot be written, or is larger than one that can be read; the others are as they were.
    """
    for target, baseline in baselines.items():
        try:
            check_size(baseline.text, BASELINE)
        except JsonError as error:
            text = f"cannot be written, because it could not be read again: it {error}"
            remedy = "Begin a new one: remove the file in a commit of its own and promote the run again."
            raise RecordError(text, where=str(target), remedy=remedy) from error
    before = {file: file.read_bytes().decode() if file.exists() else None for file in baselines}
    file = None
    try:
        for file, baseline in baselines.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, baseline.text)
    except BaseException as error:
        for earlier, was in before.items():
            if was is None:
                earlier.unlink(missing_ok=True)
            elif earlier.read_bytes().decode() != was:
                write_atomically(earlier, was)
        if isinstance(error, OSError):
            text = f"cannot be written, so nothing is promoted: {error.strerror or error}"
            raise RecordError(text, where=str(file)) from error
        raise


# --- the repository that holds the baselines


def author(folder: Path) -> str:
    """Who promotes: git's author, else the name of the user."""
    try:
        ident = _git(folder).ask("var", "GIT_AUTHOR_IDENT")
    except NoGitError:
        return getpass.getuser()
    return getpass.getuser() if ident.returncode else ident.stdout.rsplit(" ", 2)[0]


def commit(folder: Path) -> str:
    """The commit that is checked out; empty outside of a repository, and in one without a commit.

    Raises:
        UsageError: There is a repository that git does not read.
    """
    return _git(folder).commit("HEAD") if _in_a_repository(folder) else ""


def as_of(file: Path, ref: str, here: Path | None = None) -> str | None:
    """A file's text at a commit; ``None`` where it was not there.

    Asked is the repository of ``here``, from where the file is then named; that of the file where not given.

    Raises:
        UsageError: There is no such commit, or git does not read the repository.
    """
    git = _require(here or file.parent, ref)
    path = f"./{file if here else file.absolute().relative_to(git.folder)}"
    there = git.run("ls-tree", "--name-only", ref, "--", path)
    return git.run("show", f"{ref}:{path}") if there else None


def parse_as_of(file: Path, ref: str) -> Baseline | None:
    """A baseline as it was at a commit; ``None`` where it was not there.

    Raises:
        UsageError: See :func:`as_of`.
        RecordError: It was broken already.
    """
    text = as_of(file, ref)
    return None if text is None else parse(text, f"{file} at {ref}")


def verify(chosen: Sequence[Path], root: Path | None, ref: str | None) -> Iterator[tuple[Path, Baseline]]:
    """Each baseline that is whole, and only grew since a commit: ``HEAD`` where none is named and there is one.

    A lineage alone cannot show that its newest entries were taken away or that it was written anew; the repository can.
    None of the files below ``root`` may be gone since.

    Raises:
        RecordError: ``baseline-broken``: one is not; the text names the entry.
        UsageError: There is no such commit, or a repository that git does not read.
    """
    since = ref or "HEAD"
    if ref is not None and root is not None:
        _require(root, ref)
    for file in chosen:
        now = read(file).baseline
        before = parse_as_of(file, since) if ref is not None or commit(file.parent) else None
        for number, entry in enumerate(before.entries if before else (), 1):
            if number > len(now.entries) or now.entries[number - 1].digest != entry.digest:
                name = f"entry {number} ({entry.kind}, {entry.time_utc}, {entry.author})"
                text = f"{name} is not there as it was at {since}"
                raise RecordError(text, where=str(file), code="baseline-broken")
        yield file, now
    if root is not None and (ref is not None or commit(root)):
        git = _git(root)
        below = root.absolute().relative_to(git.folder)  # which may be gone whole
        for name in git.names("ls-tree", "-r", "--name-only", since, "--", str(below)):
            file = root / Path(name).relative_to(below)
            if name.endswith(".json") and not file.exists():
                raise RecordError(f"was there at {since} and is gone", where=str(file), code="baseline-broken")


def _require(folder: Path, ref: str) -> Git:
    """The repository of a folder, if it has the commit."""
    git = _git(folder)
    if not (_in_a_repository(folder) and git.commit(ref)):
        raise UsageError(f"{ref}: no such commit in the repository of {folder}")
    return git


def _in_a_repository(folder: Path) -> bool:
    """Whether there is a repository; one that git does not read is an error, since all would seem to be new in it."""
    git = _git(folder)
    try:
        asked = git.ask("rev-parse", "--git-dir")
    except NoGitError:
        if any((path / ".git").exists() for path in (git.folder, *git.folder.parents)):
            raise
        return False
    if asked.returncode and "not a git repository (or any" not in asked.stderr:
        raise UsageError(f"git does not read the repository: {asked.stderr.strip()}", where=str(folder))
    return not asked.returncode


def _git(folder: Path) -> Git:
    """Git in a folder, or in the nearest above it that exists: the first baseline's is yet to be made.

    It fetches nothing: what is looked at may have come with a repository of its own.
    """
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    return Git(there, fetches=False)
