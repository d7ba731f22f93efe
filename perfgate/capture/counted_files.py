"""Which files below a folder on a module path belong to a build.

What counts is what an import reaches and what it may read: modules, libraries, path files, bytecode without its source,
entry points and metadata of packages, all else inside a regular package, and beside a module what code reads, like the
JSON of tuned kernels. What nothing imports does not: bytecode beside its source, hidden files, object files and folders
of builds, logs, locks, files of editors, prose, and other data outside of packages. A folder that is declared as data,
or has no module, is taken whole.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from perfgate.record.run_names import RUN

_LEFT_OUT: Final = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
"""Of a package's own folder: they differ between two installations of one wheel."""
_OUTPUTS: Final = re.compile(r"build([-_.].*)?|dist|node_modules|CMakeFiles|cmake-build-.*|_skbuild|target|bazel-.*")
"""Folders of what builds leave, outside of packages, where no source of a module is directly in them."""
_MARKS: Final = {"CMakeCache.txt", ".ninja_log", "CACHEDIR.TAG"}
"""Files that say of a folder that a build or a cache fills it; by the same rule."""
_PROJECT: Final = {"pyproject.toml", "setup.cfg", "setup.py", ".git"}
_SCRIPTS: Final = {"setup.py", "conftest.py", "noxfile.py"}
"""Modules that no engine imports, so that data beside them is not theirs."""
_MODULES: Final = (".py", ".so", ".pth")
_READ: Final = (".cu", ".cubin", ".cuh", ".h", ".hsaco", ".json", ".ptx", ".toml", ".yaml", ".yml")
"""Ends of what code finds beside it: tuned sizes, and kernels, compiled or to be compiled."""
_NOISE: Final = (
    ".a", ".bak", ".d", ".egg", ".gcda", ".gcno", ".lock", ".log", ".md", ".o", ".obj", ".orig", ".part", ".pid",
    ".prof", ".pyc", ".rej", ".rst", ".swp", ".tmp", "~",
)  # fmt: skip
"""Ends of what builds, editors and tools leave inside packages, and of prose."""


_NOWHERE: Final = {errno.ELOOP, errno.EACCES, errno.ENOTDIR, errno.ENAMETOOLONG}
"""Errors of links that lead nowhere; no one of a disk that fails is among them."""


class Counted(NamedTuple):
    """A file that counts.

    Args:
        name: Its path from the folder that was searched; of a folder that cannot be entered, with a slash at the end.
        path: Its whole path.
        status: What the file system says of it, or of what it leads to.
        is_sought: Whether something finds it by its name, so that it is a change where it is new.
    """

    name: str
    path: str
    status: os.stat_result
    is_sought: bool


def counted(root: str, *, is_data: bool) -> Iterator[Counted]:
    """The files that count below a folder; links are followed, each folder once.

    One outside of packages comes once more where a link has it inside of one. A folder that cannot be entered is among
    them, with a slash at the end of its name. What goes while this looks is passed over; so are links to nothing.

    Args:
        root: The folder.
        is_data: Whether everything in it counts.

    Raises:
        OSError: A folder cannot be read for another reason.
    """
    if Path(root).is_file():  # an archive
        yield Counted("", root, Path(root).stat(), is_sought=True)
        return
    open_: list[tuple[str, str, bool]] = [(root, "", is_data)]
    links: list[tuple[str, str, bool]] = []
    seen: set[tuple[int, int, bool]] = set()
    while open_ or links:  # a folder has its own name, whatever else leads to it
        folder, below, is_packaged = (open_ or links).pop()
        try:
            place, items = _items(folder)
        except PermissionError:
            with contextlib.suppress(OSError):  # it is below another one that cannot be entered
                yield Counted(below or "/", folder, Path(folder).stat(), is_sought=True)
            continue
        names = {item.name for item in items}
        is_packaged = is_packaged or "__init__.py" in names
        is_left_out = below and not is_packaged and _is_left_out(Path(folder).name, names)
        if is_left_out or (*place, is_packaged) in seen:
            continue
        seen.add((*place, is_packaged))
        has_module = any(name.endswith(".py") and name not in _SCRIPTS for name in names)
        # Hidden folders hold git's and tools' own files, but for the libraries of older wheels.
        folders = [item for item in items if _leads_to(item.is_dir) and _is_looked_into(item.name)]
        for item in sorted(folders, key=lambda item: item.name, reverse=True):
            (links if item.is_symlink() else open_).append((item.path, f"{below}{item.name}/", is_packaged))
        for item in items:
            if _counts(item.name, below, names, is_packaged=is_packaged, has_module=has_module):
                with contextlib.suppress(FileNotFoundError):
                    if _leads_to(item.is_file):
                        is_sought = _is_sought(item.name, below, is_packaged=is_packaged)
                        yield Counted(f"{below}{item.name}", item.path, item.stat(), is_sought)


def _items(folder: str) -> tuple[tuple[int, int], list[os.DirEntry[str]]]:
    """Which folder it is, and what is in it; nothing of one that is gone."""
    try:
        status = Path(folder).stat()
        with os.scandir(folder) as scanned:
            return (status.st_dev, status.st_ino), [*scanned]
    except (FileNotFoundError, NotADirectoryError):
        return (0, 0), []


def _leads_to(look: Callable[[], bool]) -> bool:
    """Whether an entry leads to something of a kind; nothing can be imported through one that leads nowhere."""
    try:
        return look()
    except OSError as error:
        if error.errno in _NOWHERE:
            return False
        raise


def _is_looked_into(folder: str) -> bool:
    return folder == ".libs" or (folder != "__pycache__" and not folder.startswith("."))


def _is_left_out(folder: str, names: Collection[str]) -> bool:
    """Whether nothing below a folder outside of packages counts, by its name and what is in it."""
    # An environment inside a checkout is on nobody's module path by that, and run folders change with each run.
    if "pyvenv.cfg" in names or {RUN, "trials"} <= {*names}:
        return True
    is_output = _OUTPUTS.fullmatch(folder) or not _MARKS.isdisjoint(names)
    return bool(is_output) and not any(name.endswith(".py") for name in names)


def has_modules(root: str) -> bool:
    """Whether a folder is one of code: a project, or with a module anywhere below."""
    for place, folders, names in os.walk(root):
        if place == root and not _PROJECT.isdisjoint((*names, *folders)):
            return True
        folders[:] = filter(_is_looked_into, folders)
        packages = (f"{place}/{name}/__init__.py" for name in folders)  # which may be links, as no others are followed
        if any(map(_is_module, names)) or any(map(os.path.exists, packages)):
            return True
    return False


def _is_module(name: str) -> bool:
    return name.endswith(_MODULES) or ".so." in name


def _is_sought(name: str, below: str, *, is_packaged: bool) -> bool:
    """Whether something finds a file by its name, so that one which is new is a change."""
    is_metadata = below.endswith((".egg-info/", ".dist-info/"))
    return _is_module(name) or name.endswith(".pyc") or is_metadata or (is_packaged and name.endswith(_READ))


def _counts(name: str, below: str, beside: Collection[str], *, is_packaged: bool, has_module: bool) -> bool:
    """Whether a file does, by its name and the folder that it is in."""
    folder = below.rstrip("/").rpartition("/")[2]
    if folder.endswith(".egg-info"):  # written anew by each build; the rest says what the package's files say
        return name == "entry_points.txt"
    if folder.endswith(".dist-info"):
        return name not in _LEFT_OUT
    if _is_module(name):
        return True
    if name.endswith(".pyc"):
        return name[:-1] not in beside
    if name.startswith((".", "#")) or name.endswith(_NOISE):
        return False
    return is_packaged or (has_module and name.endswith(_READ))
