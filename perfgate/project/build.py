"""Builds: a git ref becomes a subject by the ``[build]`` table of ``perfgate.toml``, once for each commit and recipe.

A build is a folder of the cache, named by its revision and recipe: ``tree``, a worktree of the commit; ``env``,
whatever the commands made; ``build.json``, which says what it was made from and, once all of it is there, that it is
finished; a log of each attempt. Paths in a virtual environment cannot be moved, so a build is made where it stays, and
half a build is known by its ``build.json``. Who wants one that somebody else is making waits for it. GPUs are not held
meanwhile.
"""

from __future__ import annotations

import contextlib
import math
import operator
import os
import platform
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from perfgate.errors import InterruptedRunError, NotMeasuredError, RecordError, UsageError
from perfgate.machine.atomic_files import canonical_json, sha256_hex
from perfgate.machine.children import spawn
from perfgate.machine.cleanup import Swept, remove_tree
from perfgate.machine.locks import hold_named
from perfgate.machine.orphans import end_orphans
from perfgate.machine.process_log import tail
from perfgate.machine.processes import owner_mark
from perfgate.machine.user_folders import users_caches, users_home
from perfgate.machine.versioned_json import read_model, write_model
from perfgate.models import Frozen
from perfgate.project.config import Config, Recipe
from perfgate.project.git import Commit, NoRepositoryError, Repository, Snapshot, plain_environment, remove_worktree
from perfgate.scenario.subject import Source, Subject, absolute
from perfgate.scenario.subject_words import CONFIG_FILE, WORKING_TREE, absolute_paths

CACHE = "PERFGATE_BUILDS"
"""The variable that names another folder for builds."""
STATE = "build.json"
LOCKS = "locks"
LOG_LINES = 20
"""Of the log of a failed build, in its error."""

_BUILD = re.compile(r"[0-9a-f]{12}(\+dirty\.[0-9a-f]{12})?-[0-9a-f]{8}")
_NOT_FOR_COMMANDS = re.compile(
    "PYTHONPATH|PYTHONHOME|GITHUB_(ENV|PATH|OUTPUT|STATE|STEP_SUMMARY|TOKEN)|GH_TOKEN|INPUT_.*|ACTIONS_.*"
)
"""With the first two an installer finds packages that the engine, which does not get them, will lack. By the others the
code of a change that is built in a job of GitHub would steer the job's later steps, or speak in its name."""


class _State(Frozen):
    """``build.json``: made from what, since when it is whole, or in which cluster runs and on which hosts it failed."""

    format: Literal["perfgate-build/1"] = "perfgate-build/1"
    repository: str
    source: Source
    finished_utc: str | None = None
    # Not written where it is empty: versions that do not know it share the cache.
    failures: Annotated[dict[str, str], Field(exclude_if=operator.not_)] = {}


class Builder:
    """Makes subjects of refs.

    Args:
        config: ``perfgate.toml``.
        progress: Told what is being done.
        left_out: Folders in the working tree whose content is not an uncommitted change: perfgate's own run folders.
        deadline_s: Monotonic time at which building, or waiting for who builds, is given up; never by default.
        once_in: What several builders have in common, none of which tries again what failed for another; empty where
            each tries.
    """

    def __init__(
        self,
        config: Config,
        progress: Callable[[str], None],
        left_out: Sequence[Path] = (),
        deadline_s: float = math.inf,
        once_in: str = "",
    ) -> None:
        self._config = config
        self._progress = progress
        self._left_out = tuple(left_out)
        self._deadline_s = deadline_s
        self._once_in = once_in

    def __call__(self, ref: str) -> dict[str, Any]:
        """What a ref is worth: ``python``, ``path`` and ``env`` as far as ``[build]`` says them, and ``built_from``.

        Raises:
            UsageError: There is no such commit, ``perfgate.toml`` does not say how to build, or builds have no place.
            NotMeasuredError: ``build-failed``, with the last lines of the log.
            OSError: The cache cannot be written.
        """
        table, revision = self._find(ref)
        self._ensure(table["built_from"], table, lambda: revision)
        return table

    def planned(self, ref: str) -> dict[str, Any]:
        """What a ref will be worth; nothing is built, so that its folder may not be there yet."""
        return self._find(ref)[0]

    def _find(self, ref: str) -> tuple[dict[str, Any], Snapshot]:
        recipe, here, repository = self._recipe(ref)
        if (cache := cache_folder(self._config)) is None:
            raise UsageError("builds have no place: the user has no home folder", remedy=f"Name one with {CACHE}.")
        revision = repository.find(ref, (*self._left_out, cache))
        digest, made_from = _digest(recipe, here), revision.model_dump(exclude={"snapshot"})
        folder, title = str(cache / f"{revision.name}-{digest[:8]}"), repository.title(revision.commit)
        source = Source(**made_from, recipe=digest, folder=folder, title=title)
        fill = partial(_fill, here=here, source=source)
        table: dict[str, Any] = {"python": fill(recipe.python or ""), "path": [*map(fill, recipe.path)]}
        table["env"] = {name: fill(value) for name, value in recipe.env.items()}
        fields = {key: value for key, value in table.items() if value}  # as far as the recipe says them
        return {**absolute_paths(fields, here), "built_from": source}, revision

    def line(self, good: str, bad: str) -> list[Commit]:
        """The commits between two refs that can be built, see :meth:`perfgate.project.git.Repository.line`."""
        return self._recipe(bad)[2].line(good, bad)

    @property
    def has_changes(self) -> bool:
        """Whether tracked files of the working tree differ from HEAD."""
        return self._recipe("HEAD")[2].has_changes

    def restore(self, subject: Subject) -> None:
        """Make a subject's build again, in its place, where the cache has lost it; without a build nothing is done.

        Raises:
            UsageError: ``perfgate.toml`` does not say any longer how to build.
            NotMeasuredError: ``build-failed``: the recipe is another one now, the commit is gone, or a command failed.
            InterruptedRunError: ``out-of-budget``: it did not end before the deadline.
        """
        source = subject.built_from
        if source is None:
            return

        def found_again() -> Snapshot:
            recipe, here, repository = self._recipe(source.ref)
            if _digest(recipe, here) != source.recipe:
                text = f"its build is no longer in {source.folder}, and {CONFIG_FILE} has another recipe now"
                remedy = "Put the recipe back, or begin a new run: another recipe is another build."
                raise NotMeasuredError(text, where=_label(source), remedy=remedy, code="build-failed")
            return repository.again(source.ref, source.commit, source.changes)

        self._ensure(source, {"python": subject.python, "path": subject.path}, found_again)

    def _recipe(self, ref: str) -> tuple[Recipe, Path, Repository]:
        """The recipe, the folder that its relative paths start from, and the repository."""
        if self._config.build is None or self._config.file is None:
            with contextlib.suppress(NoRepositoryError):
                if ref != WORKING_TREE:  # a ref that is not there is wrong with any recipe
                    Repository(Path.cwd()).find(ref)
            raise UsageError(
                f"ref={ref} needs [build], which says how a git ref becomes a subject",
                where=str(self._config.file or f"no {CONFIG_FILE} here"),
                remedy=self._config.example_recipe(),
            )
        recipe, here = self._config.build, self._config.file.parent.absolute()
        return recipe, here, Repository(Path(absolute(here, recipe.repository or ".")))

    def _ensure(self, source: Source, table: Mapping[str, Any], find: Callable[[], Snapshot]) -> None:
        """Have the build in its place; ``find`` tells the revision where it must be made."""
        folder = Path(source.folder)
        locks = folder.parent / LOCKS
        locks.mkdir(parents=True, exist_ok=True)
        with hold_named(locks, folder.name, f"building {_label(source)}", self._progress, self._deadline_s):
            state, keys = _read_state(folder), {"commit", "changes", "recipe"}
            same = state is not None and state.source.model_dump(include=keys) == source.model_dump(include=keys)
            if state and state.finished_utc is not None and same and not _missing(folder, table):
                os.utime(folder / STATE)  # for clean: it was used
                self._progress(f"{_label(source)}: built before")
                return
            failures = state.failures if state else {}
            if self._once_in in failures:
                raise NotMeasuredError(failures[self._once_in], where=_label(source), code="build-failed")
            self._make(source, table, find(), failures)

    def _make(self, source: Source, table: Mapping[str, Any], revision: Snapshot, failures: Mapping[str, str]) -> None:
        folder, label = Path(source.folder), _label(source)
        repository = self._recipe(source.ref)[2]
        end_orphans(_owner(folder))  # what a killed perfgate started may still write into the folder
        clear(folder)
        folder.mkdir(exist_ok=True)
        state = _State(repository=str(repository.folder), source=source, failures={**failures})
        write_model(folder / STATE, state)
        self._progress(f"{label}: building in {folder}")
        repository.check_out(revision.snapshot, folder / "tree")
        try:
            self._carry_out(source, table)
        except NotMeasuredError as error:
            if self._once_in:
                failed = {**failures, self._once_in: error.text}
                write_model(folder / STATE, state.model_copy(update={"failures": failed}))
            raise
        ended_utc = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        write_model(folder / STATE, state.model_copy(update={"finished_utc": ended_utc, "failures": {}}))
        self._progress(f"{label}: built")

    def _carry_out(self, source: Source, table: Mapping[str, Any]) -> None:
        """Run the commands of the recipe in the tree."""
        folder, label = Path(source.folder), _label(source)
        recipe, here, _ = self._recipe(source.ref)
        log = folder / f"build-{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}.log"
        deadline_s = time.monotonic() + recipe.timeout
        for number, command in enumerate(recipe.commands, 1):
            words = [_fill(_from_home(word), here, source) for word in command]
            self._progress(f"{label}: {shlex.join(words)} ({number} of {len(recipe.commands)})")
            try:
                _run(words, folder, log, min(deadline_s, self._deadline_s), label)
            except NotMeasuredError as error:
                if time.monotonic() < self._deadline_s:
                    raise
                raise InterruptedRunError(f"{label} could not be built in time", code="out-of-budget") from error
        if missing := _missing(folder, table):
            text = f"the build commands succeeded but did not create {missing}"
            raise NotMeasuredError(text, where=label, code="build-failed")


def cache_folder(config: Config) -> Path | None:
    """Where builds are kept, absolute; ``None`` where nothing says that and the user has no home.

    ``$PERFGATE_BUILDS``, else ``[build] cache``, else ``perfgate/builds`` in the user's folder for caches
    (:func:`perfgate.machine.user_folders.users_caches`).
    """
    if chosen := os.environ.get(CACHE):
        return Path(chosen).expanduser().absolute()
    if config.build is not None and config.build.cache and config.file is not None:
        return Path(absolute(config.file.parent, config.build.cache))
    caches = users_caches()
    return caches / "builds" if caches else None


def sweep_builds(cache: Path, days: float) -> Iterator[Swept]:
    """Remove builds that nobody needs, with their worktrees; nothing but builds of ours.

    Finished builds go that no run has asked for in so many days; half builds go at once.
    """
    before_s = (datetime.now(UTC) - timedelta(days=days)).timestamp()
    for folder in sorted(cache.iterdir()) if cache.is_dir() else ():
        if not _BUILD.fullmatch(folder.name) or not folder.is_dir() or folder.is_symlink():
            continue
        try:
            (cache / LOCKS).mkdir(exist_ok=True)
            with hold_named(cache / LOCKS, folder.name, "cleaning", lambda _: None, time.monotonic()):
                state = _read_state(folder)
                if state and state.finished_utc and (folder / STATE).stat().st_mtime >= before_s:
                    continue
                end_orphans(_owner(folder))
                clear(folder)
                remove_tree(folder)
                yield Swept(folder)
        except InterruptedRunError as error:
            yield Swept(folder, error.finding)
        except OSError as error:
            yield Swept(folder, str(error))


def clear(folder: Path) -> None:
    """Take away what a build consists of, its worktree properly; its logs stay.

    Raises:
        OSError: Something cannot be removed.
    """
    state = _read_state(folder)
    (folder / STATE).unlink(missing_ok=True)  # first: from here on it is not a build any more
    if (folder / "tree").exists():
        remove_worktree(folder / "tree", Path(state.repository) if state else folder / "tree")
    if (folder / "env").is_dir():
        remove_tree(folder / "env")


def _run(words: Sequence[str], folder: Path, log: Path, deadline_s: float, label: str) -> None:
    """Run one command in the tree; with it ends whatever it leaves running."""
    with log.open("a") as stream:
        stream.write(f"$ {shlex.join(words)}\n")
    variables = {k: v for k, v in plain_environment(os.environ).items() if not _NOT_FOR_COMMANDS.fullmatch(k)}
    owner = owner_mark(_owner(folder))
    try:
        child = spawn(words, environment=variables, owner=owner, log=log, folder=folder / "tree")
        try:
            status = child.wait(max(0.0, deadline_s - time.monotonic()))
        finally:
            child.end()
        problem = {None: "did not end within [build] timeout", 0: ""}.get(status, f"ended with {status}")
    except OSError as error:
        problem = f"cannot be run: {error.strerror}"
    finally:
        end_orphans(_owner(folder))  # an interruption may come when the command runs and we do not know it yet
    if problem:
        text = f"{shlex.join(words)} {problem}; the last lines of {log}:\n{tail(log, LOG_LINES)}"
        raise NotMeasuredError(text, where=label, code="build-failed")


def _digest(recipe: Recipe, here: Path) -> str:
    """Of everything but the commit that decides what a build becomes.

    Raises:
        UsageError: A pattern of ``inputs`` names no file.
    """
    inputs: dict[str, str] = {}
    for pattern in recipe.inputs:
        files = [file for file in sorted(here.glob(pattern)) if file.is_file()]
        if not files:
            raise UsageError(f"build.inputs: no file is called {pattern}", where=str(here / CONFIG_FILE))
        inputs |= {str(file.relative_to(here)): sha256_hex(file.read_bytes()) for file in files}
    # {here} is the only placeholder that differs between two checkouts which make the same commit.
    commands = [[word.replace("{here}", str(here)) for word in command] for command in recipe.commands]
    return sha256_hex(canonical_json({"commands": commands, "inputs": inputs, "machine": platform.machine()}))


def _fill(template: str, here: Path, source: Source) -> str:
    folder = Path(source.folder)
    return template.format(tree=folder / "tree", env=folder / "env", commit=source.commit, here=here)


def _from_home(word: str) -> str:
    """A word that begins with ``~/``, as a shell would hand it on: there is none between a recipe and its programs.

    Raises:
        UsageError: It does, and the user has no home.
    """
    if not word.startswith("~/"):
        return word
    if (home := users_home()) is None:
        raise UsageError(f"build.commands: {word}: the user has no home folder", where=CONFIG_FILE)
    return str(home).replace("{", "{{").replace("}", "}}") + word[1:]


def _missing(folder: Path, table: Mapping[str, Any]) -> str:
    """What of a subject should be in its build and is not; empty where all is there."""
    paths: tuple[str, ...] = (table.get("python") or "", *table.get("path", ()), f"{folder / 'tree'}")
    inside = (path for path in paths if path.startswith(f"{folder}{os.sep}"))
    # A virtual environment's python is a link to another, which may have been removed.
    return next((path for path in inside if not Path(path).exists()), "")


def _read_state(folder: Path) -> _State | None:
    """What ``build.json`` says; ``None`` where there is none that this version wrote: the build is made anew then."""
    try:
        return read_model(_State, folder / STATE)
    except RecordError:
        return None


def _owner(folder: Path) -> str:
    """The name in the mark of a build's processes."""
    return f"build {folder.name}"


def _label(source: Source) -> str:
    """``1a2b3c4d5e6f (merge base of HEAD and main)``."""
    return f"{source.name} ({source.ref})"
