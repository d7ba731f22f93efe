"""What a subject's build consists of, as one digest: its interpreter, its packages, and what its module path names.

The files are those of :mod:`perfgate.capture.build_files`, of every folder on the interpreter's module path, ``path=``
first, and of the sources of editable installs. So an environment of 50,000 files takes about a second, most of it for
looking at each. Engines get folders by name, and a name may be a link: where each leads is looked at, too, and whether
what is not there is there later. So are the program of ``python=`` and what says where its environment is; of these a
script alone is of the digest, because the version tells of the others.

Nothing of it is imported here. The subject's interpreter is asked for its module path alone, and what it answers is
its own claim: it can lie about itself, and gets a digest of its own by that.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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
    "paths['platstdlib'], sys.executable or '', sys.prefix]))"
)
_ANSWER: Final = TypeAdapter(tuple[str, list[str], str, str, str, str])


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
        programs: Files that say which interpreter it is, and in which environment; not all need be there.
    """

    version: str
    folders: tuple[str, ...]
    libraries: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()


class Builds:
    """The builds of a visit: each is read once, and a folder that several have in common is, too.

    Args:
        scratch: A folder for the interpreters' answers.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._known: dict[tuple[object, ...], Build | UnknownBuildError] = {}
        self._folders: dict[tuple[str, bool], FolderFiles] = {}

    def of(self, subject: Subject, variables: Mapping[str, str]) -> Build:
        """A build as it was when it was asked for first.

        Args:
            subject: The build.
            variables: All that an engine of it gets.

        Raises:
            UnknownBuildError: Its interpreter does not answer, a file cannot be read, or there is too much to look at.
            OSError: The folder for answers cannot be written.
        """
        asked = (subject.python, variables.get("PYTHONPATH", ""), subject.data)
        if asked not in self._known:
            try:
                self._known[asked] = self._read(ask(subject, variables, self._scratch), subject)
            except UnknownBuildError as error:
                self._known[asked] = error
        build = self._known[asked]
        if isinstance(build, UnknownBuildError):
            raise build
        return build

    def of_path(self, subject: Subject) -> Build:
        """The folders of ``path=`` alone, of a subject whose interpreter does not answer; raises as :meth:`of`."""
        return self._read(ModulePath("", subject.path), subject)

    def _read(self, path: ModulePath, subject: Subject) -> Build:
        try:
            return self._files_of(path, subject)
        except OSError as error:
            raise UnknownBuildError(str(error)) from error

    def _files_of(self, path: ModulePath, subject: Subject) -> Build:
        left, data = Left(), {*map(os.path.realpath, subject.data)}
        roots: dict[str, FolderFiles] = {}
        leads: dict[str, str] = {}
        open_ = [folder for folder in path.folders if not _below(folder, path.libraries)]
        while open_:
            name = open_.pop(0)
            leads[name] = real = _led_to(name)
            if real and real not in roots:
                roots[real] = self._folder(real, left, is_data=real in data)
                open_ += [editable for editable in map(_editable, packages_of(real)) if editable]
        programs = {name: _led_to(name) for name in path.programs}
        watched = [self._folder(real, left) for real in dict.fromkeys(programs.values()) if Path(real).is_file()]
        scripts = [file for file in watched if _is_script(file.root)]
        return Build(path, (*scripts, *roots.values()), tuple(watched), {**leads, **programs})

    def _folder(self, real: str, left: Left, *, is_data: bool = False) -> FolderFiles:
        if (real, is_data) not in self._folders:
            self._folders[real, is_data] = FolderFiles(real, left, is_data=is_data)
        return self._folders[real, is_data]


@dataclass(frozen=True)
class Build:
    """A build as it was read.

    Args:
        path: Its module path.
        folders: Its files, folder by folder, in order.
        programs: Files that are looked at beside them.
        leads: The real path of each name that an engine gets or reads; empty where nothing is there.
    """

    path: ModulePath
    folders: tuple[FolderFiles, ...]
    programs: tuple[FolderFiles, ...] = ()
    leads: Mapping[str, str] = field(default_factory=dict)

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
        led = [
            f"{name} leads to {now or 'nothing'}, led to {real or 'nothing'}"
            for name, real in self.leads.items()
            if (now := _led_to(name)) != real
        ]
        try:
            looked = dict.fromkeys((*self.folders, *self.programs))  # a script is in both
            return led + [change for folder in looked for change in folder.changes(left)]
        except OSError as error:
            raise UnknownBuildError(str(error)) from error

    @property
    def new(self) -> str:
        """A file that was found at the last look and changes nothing, in words; empty where there was none."""
        return next((folder.new for folder in self.folders if folder.new), "")

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
            if error.errno == errno.ENOSPC:
                raise
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
            version, folders, *libraries, program, prefix = _ANSWER.validate_json(line, strict=True)
        except ValidationError:
            continue
        if not any("\0" in text for text in (*folders, *libraries, program, prefix)):
            programs = _programs(shutil.which(subject.python, path=variables.get("PATH")) or "", program, prefix)
            return ModulePath(version, tuple(folders), tuple(libraries), programs)
    raise NoAnswerError(f"python={subject.python} does not say what is on its module path")


def _programs(*words: str) -> tuple[str, ...]:
    """The program that was asked, the interpreter that answered, and what says in which environment each is."""
    *programs, prefix = filter(None, words)
    around = [folder for name in programs for folder in [*Path(name).parents][:2]]  # as Python looks for it
    return tuple(dict.fromkeys((*programs, *(str(folder / "pyvenv.cfg") for folder in (*around, Path(prefix))))))


def _is_script(file: str) -> bool:
    try:
        with Path(file).open("rb") as stream:
            return stream.read(2) == b"#!"
    except OSError:  # it can be executed and not read
        return False


def _led_to(name: str) -> str:
    """Where a name leads, through all links; empty where nothing is there."""
    real = os.path.realpath(name)
    return real if os.path.exists(real) else ""  # noqa: PTH110 (which raises where a folder cannot be entered)


def _below(folder: str, libraries: Iterable[str]) -> bool:
    """Whether a folder is of the standard library; packages installed inside it are not."""
    inside = any(folder == library or folder.startswith(f"{library}{os.sep}") for library in libraries)
    return inside and not is_of_packages(folder)


def is_of_packages(folder: str) -> bool:
    """Whether a folder is one that installers fill, by its name."""
    return folder.endswith(("site-packages", "dist-packages"))


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
