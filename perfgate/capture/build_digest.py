"""What a subject's build consists of, as one digest: its interpreter, its packages, and what its module path names.

The files are those of :mod:`perfgate.capture.build_files`, of every folder on the interpreter's module path, ``path=``
first, and of the sources of editable installs. So an environment of 50,000 files takes about a second, most of it for
looking at each.

Nothing of it is imported here. The subject's interpreter is asked for its module path alone, and what it answers is
its own claim: it can lie about itself, and gets a digest of its own by that.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from pydantic import TypeAdapter, ValidationError

from perfgate.capture.build_files import MOST_AGAIN_BYTES, FolderFiles, Left, UnknownBuildError, content_of, packages_of
from perfgate.machine.atomic_files import canonical_json, sha256_hex
from perfgate.machine.children import spawn
from perfgate.machine.processes import owner_mark
from perfgate.scenario.subject import Subject

TIMEOUT_S: Final = 30.0
_MOST_ANSWER_BYTES: Final = 1 << 20
_ASK: Final = (
    "import json, sys, sysconfig; paths = sysconfig.get_paths(); "
    "finders = [vars(m).get('MAPPING') for n, m in [*sys.modules.items()] if n.startswith('__editable__')]; "
    "sources = [str(v) for m in finders if isinstance(m, dict) for v in m.values()]; "
    "print(); print(json.dumps([sys.version, [p for p in sys.path if p] + sources, paths['stdlib'], "
    "paths['platstdlib']]))"
)
_ANSWER: Final = TypeAdapter(tuple[str, list[str], str, str])


class NoAnswerError(UnknownBuildError):
    """A program that does not say what is on its module path: no interpreter that an engine could run in."""


@dataclass(frozen=True)
class ModulePath:
    """What an interpreter says of itself.

    Args:
        version: Its own.
        folders: Where it looks for modules, in order; archives are among them, and at the end come packages and modules
            to which finders of editable installs lead.
        libraries: Folders of its standard library, which is known by the version.
    """

    version: str
    folders: tuple[str, ...]
    libraries: tuple[str, ...] = ()


class Builds:
    """The builds of a visit: each is read once, and a folder that several have in common is, too.

    Args:
        scratch: A folder for the interpreters' answers.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._known: dict[tuple[str, str], Build | UnknownBuildError] = {}
        self._folders: dict[str, FolderFiles] = {}

    def of(self, subject: Subject, variables: Mapping[str, str]) -> Build:
        """A build as it was when it was asked for first.

        Args:
            subject: The build.
            variables: All that an engine of it gets.

        Raises:
            UnknownBuildError: Its interpreter does not answer, a file cannot be read, or there is too much to look at.
        """
        asked = (subject.python, variables.get("PYTHONPATH", ""))
        if asked not in self._known:
            try:
                self._known[asked] = self._read(ask(subject, variables, self._scratch))
            except (UnknownBuildError, OSError) as error:
                self._known[asked] = error if isinstance(error, UnknownBuildError) else UnknownBuildError(str(error))
        known = self._known[asked]
        if isinstance(known, UnknownBuildError):
            raise known
        return known

    def of_path(self, subject: Subject) -> Build:
        """The folders of ``path=`` alone, of a subject whose interpreter does not answer; raises as :meth:`of`."""
        try:
            return self._read(ModulePath("", subject.path))
        except OSError as error:
            raise UnknownBuildError(str(error)) from error

    def _read(self, path: ModulePath) -> Build:
        left = Left()
        roots: list[FolderFiles] = []
        open_ = [folder for folder in path.folders if not _below(folder, path.libraries)]
        seen: set[str] = set()
        while open_:
            real = os.path.realpath(open_.pop(0))
            if real in seen or not Path(real).exists():
                continue
            seen.add(real)
            if real not in self._folders:
                self._folders[real] = FolderFiles(real, left)
            roots.append(self._folders[real])
            open_ += [editable for editable in map(_editable, packages_of(real)) if editable]
        return Build(path, tuple(roots))


@dataclass(frozen=True)
class Build:
    """A build as it was read.

    Args:
        path: Its module path.
        folders: Its files, folder by folder, in order.
    """

    path: ModulePath
    folders: tuple[FolderFiles, ...]

    @property
    def digest(self) -> str:
        """That of its content, wherever it is: the same on every machine that has the same files in these folders."""
        version = self.path.version.partition(" ")[0]
        return digest_of([version, [folder.digest for folder in self.folders]])

    @property
    def placed_digest(self) -> str:
        """The digest of its content and of where it is, by the word of its interpreter."""
        return digest_of([self.path.version, self.path.folders, [folder.digest for folder in self.folders]])

    def changes(self) -> list[str]:
        """What has changed since it was read, a sentence for each file.

        Raises:
            UnknownBuildError: A file cannot be read, or there is too much to read again.
        """
        left = Left(size=MOST_AGAIN_BYTES)
        try:
            return [change for folder in self.folders for change in folder.changes(left)]
        except OSError as error:
            raise UnknownBuildError(str(error)) from error

    def written_since(self, ns: int) -> list[str]:
        """Files of which anything is newer than a time, nanoseconds since 1970, in words."""
        return [file for folder in self.folders for file in folder.written_since(ns)]


def ask(subject: Subject, variables: Mapping[str, str], scratch: Path) -> ModulePath:
    """What a subject's interpreter says of itself.

    Args:
        subject: Whose.
        variables: All that an engine of it gets.
        scratch: A folder for its answer.

    Raises:
        NoAnswerError: The program is not there, or answers something else.
        UnknownBuildError: It took too long.
        OSError: The folder cannot be written.
    """
    log = scratch / f"module-path-{os.getpid()}.log"
    log.unlink(missing_ok=True)
    try:
        try:
            child = spawn([subject.python, "-B", "-c", _ASK], environment=variables, owner=owner_mark("caches"),
                          log=log, folder=scratch)  # fmt: skip
        except OSError as error:
            raise NoAnswerError(f"python={subject.python}: {error.strerror}") from error
        try:
            if child.wait(TIMEOUT_S) is None:
                raise UnknownBuildError(f"python={subject.python}: no answer within {TIMEOUT_S:g} s")
        finally:
            child.end()
        with log.open("rb") as stream:
            lines = stream.read(_MOST_ANSWER_BYTES).splitlines()
    finally:
        log.unlink(missing_ok=True)
    for line in reversed(lines):
        try:
            version, folders, *libraries = _ANSWER.validate_json(line, strict=True)
        except ValidationError:
            continue
        if not any("\0" in text for text in (*folders, *libraries)):
            return ModulePath(version, tuple(folders), tuple(libraries))
    raise NoAnswerError(f"python={subject.python} does not say what is on its module path")


def _below(folder: str, libraries: Iterable[str]) -> bool:
    """Whether a folder is of the standard library; packages installed inside it are not."""
    inside = any(folder == library or folder.startswith(f"{library}{os.sep}") for library in libraries)
    return inside and not folder.endswith(("site-packages", "dist-packages"))


def _editable(package: Path) -> str | None:
    """Where the source of an editable install is."""
    try:
        said = json.loads(content_of(package / "direct_url.json", _MOST_ANSWER_BYTES))
        url = urlsplit(str(said["url"]))
        folder = unquote(url.path) if said["dir_info"]["editable"] is True and url.scheme == "file" else "\0"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # most packages come from an archive
        return None
    return None if "\0" in folder else folder


def digest_of(content: object) -> str:
    """The digest of what JSON can say."""
    return sha256_hex(canonical_json(content))
