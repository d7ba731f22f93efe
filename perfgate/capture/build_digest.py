"""What a subject's build consists of, as one digest: its interpreter, its packages, and what its module path names.

A file that a package's ``RECORD`` lists has that digest as long as its size fits and it is not newer than the record;
whatever else could be imported is read: editable installs, folders of ``path=``, files changed in place. So an
environment of 50,000 files takes about a second, most of it for looking at each. Bytecode and what only says where a
package came from do not count.

Nothing of it is imported here. The subject's interpreter is asked for its module path alone, and what it answers is
its own claim: it can lie about itself, and gets a digest of its own by that. What is on that path may be anything, so
files are read by the size that they say they have, and how many and how much is bounded.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from pydantic import TypeAdapter, ValidationError

from perfgate.machine.atomic_files import canonical_json, sha256_hex
from perfgate.machine.children import spawn
from perfgate.machine.processes import owner_mark
from perfgate.record.run_names import RUN
from perfgate.scenario.subject import Subject

TIMEOUT_S: Final = 30.0
MOST_FILES: Final = 400_000
MOST_BYTES: Final = 64 << 30
"""Of files to read. A build with more of either has no digest."""
_MOST_ANSWER_BYTES: Final = 1 << 20
_MOST_RECORD_BYTES: Final = 64 << 20
"""Each line has a file: a record of 400,000 takes half of it."""
_MOST_DIGITS: Final = 15
_CHUNK: Final = 1 << 20
_ASK: Final = (
    "import json, sys, sysconfig; paths = sysconfig.get_paths(); "
    "print(); print(json.dumps([sys.version, [p for p in sys.path if p], paths['stdlib'], paths['platstdlib']]))"
)
_ANSWER: Final = TypeAdapter(tuple[str, list[str], str, str])
_LEFT_OUT: Final = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
"""Of a package's own folder: they differ between two installations of one wheel."""
_NEWER_NS: Final = 1_000_000_000
"""The record is written when the files are; file systems keep time less finely than that at worst."""


class UnknownBuildError(Exception):
    """A build cannot be told from others; the text says why."""


@dataclass
class _Left:
    """How much more of a build may be looked at."""

    files: int = field(default_factory=lambda: MOST_FILES)
    size: int = field(default_factory=lambda: MOST_BYTES)

    def take(self, files: int, size: int) -> None:
        """Take so many files, and so many bytes to read.

        Raises:
            UnknownBuildError: That is too much.
        """
        self.files, self.size = self.files - files, self.size - size
        if self.files < 0 or self.size < 0:
            raise UnknownBuildError(f"more than {MOST_FILES} files, or {MOST_BYTES >> 30} GiB to read")


def digest_build(subject: Subject, variables: Mapping[str, str], scratch: Path) -> str:
    """The digest of a build's content and of where it is.

    Args:
        subject: The build.
        variables: All that an engine of it gets.
        scratch: A folder for the interpreter's answer.

    Raises:
        UnknownBuildError: Its interpreter does not answer, or there is too much to look at.
        OSError: A file of it cannot be read.
    """
    version, folders, libraries = _module_path(subject, variables, scratch)
    digest = hashlib.sha256(canonical_json([version, folders]).encode())
    seen: set[str] = set()
    left = _Left()
    roots = [folder for folder in folders if not _below(folder, libraries)]
    while roots:
        root = roots.pop(0)
        if (real := os.path.realpath(root)) in seen:
            continue
        seen.add(real)
        if Path(real).is_file():  # an archive
            left.take(1, Path(real).stat().st_size)
            digest.update(f"{root} {_read(Path(real))}\n".encode())
        elif Path(real).is_dir():
            packages = sorted(Path(real).glob("*.dist-info"))
            roots += [editable for editable in map(_editable, packages) if editable]
            recorded = {name: of for package in packages for name, of in _recorded(package)}
            for line in sorted(_lines(real, recorded, left)):
                digest.update(f"{line}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _module_path(subject: Subject, variables: Mapping[str, str], scratch: Path) -> tuple[str, list[str], list[str]]:
    """Version, module path and folders of the standard library, which is known by its version."""
    log = scratch / f"module-path-{os.getpid()}.log"
    log.unlink(missing_ok=True)
    try:
        try:
            child = spawn([subject.python, "-c", _ASK], environment=variables, owner=owner_mark("caches"), log=log,
                          folder=scratch)  # fmt: skip
        except OSError as error:
            raise UnknownBuildError(f"python={subject.python}: {error.strerror}") from error
        try:
            child.wait(TIMEOUT_S)
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
            return version, folders, libraries
    raise UnknownBuildError(f"python={subject.python} does not say what is on its module path")


def _below(folder: str, libraries: Iterable[str]) -> bool:
    """Whether a folder is of the standard library; packages installed inside it are not."""
    inside = any(folder == library or folder.startswith(f"{library}{os.sep}") for library in libraries)
    return inside and not folder.endswith(("site-packages", "dist-packages"))


def _editable(package: Path) -> str | None:
    """Where the source of an editable install is."""
    try:
        said = json.loads(_content(package / "direct_url.json", _MOST_ANSWER_BYTES))
        url = urlsplit(str(said["url"]))
        folder = unquote(url.path) if said["dir_info"]["editable"] is True and url.scheme == "file" else "\0"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # most packages come from an archive
        return None
    return None if "\0" in folder else folder


def _recorded(package: Path) -> Iterator[tuple[str, tuple[int, int, str]]]:
    """Of each file in a package's record: its size, until when it may have been written, and its digest."""
    try:
        record = package / "RECORD"
        until_ns = record.stat().st_mtime_ns + _NEWER_NS
        rows = list(csv.reader(_content(record, _MOST_RECORD_BYTES).decode(errors="replace").splitlines()))
    except (OSError, csv.Error):  # its files are read
        return
    for row in rows:
        if len(row) != 3 or len(row[2]) > _MOST_DIGITS:  # noqa: PLR2004 (file, digest, size)
            continue
        if row[1].startswith("sha256=") and row[2].isdecimal():
            yield row[0], (int(row[2]), until_ns, _hexadecimal(row[1].removeprefix("sha256=")))


def _hexadecimal(digest: str) -> str:
    try:
        return base64.urlsafe_b64decode(f"{digest}=").hex()
    except ValueError:
        return digest


def _lines(root: str, recorded: Mapping[str, tuple[int, int, str]], left: _Left) -> Iterator[str]:
    """``path digest`` of every file below a folder that an import could reach."""
    for name, file in _files(root):
        status = file.stat()
        size, until_ns, digest = recorded.get(name, (-1, 0, ""))
        to_read = status.st_size != size or status.st_mtime_ns > until_ns
        left.take(1, status.st_size if to_read else 0)
        yield f"{name} {_read(Path(file)) if to_read else digest}"


def _files(root: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Files below a folder with their paths from it; links are followed, each folder once."""
    open_: list[tuple[str, str]] = [(root, "")]
    seen: set[tuple[int, int]] = set()
    while open_:
        folder, below = open_.pop()
        status = Path(folder).stat()
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(folder) as scanned:
            items = list(scanned)
        names = {item.name for item in items}
        # An environment inside a checkout is on nobody's module path by that, and run folders change with each run.
        if below and ("pyvenv.cfg" in names or {RUN, "trials"} <= names):
            continue
        for item in items:
            if item.is_dir():
                # Hidden folders hold git's and tools' own files, but for the libraries of older wheels.
                if item.name == ".libs" or (item.name != "__pycache__" and not item.name.startswith(".")):
                    open_.append((item.path, f"{below}{item.name}/"))
            elif item.is_file() and not (below.endswith(".dist-info/") and item.name in _LEFT_OUT):
                yield f"{below}{item.name}", item


def _read(file: Path) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(file):
        digest.update(chunk)
    return digest.hexdigest()


def _content(file: Path, most: int) -> bytes:
    """A small file; nothing of one with more bytes than ``most``."""
    return b"".join(_chunks(file)) if file.stat().st_size <= most else b""


def _chunks(file: Path) -> Iterator[bytes]:
    """A file by the size that it says it has: devices, and what the kernel makes up, have none and may never end."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:
        left = os.fstat(stream.fileno()).st_size
        while left > 0 and (chunk := stream.read(min(left, _CHUNK))):
            left -= len(chunk)
            yield chunk


def digest_of(content: object) -> str:
    """The digest of what JSON can say."""
    return sha256_hex(canonical_json(content))
