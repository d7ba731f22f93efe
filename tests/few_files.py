"""What interpreters of tests say of their module path: asked once each, and without what is installed there.

The interpreter of the tests has 15,000 files that are of no build in them, and to read them takes longer than a fake
trial. ``/bin/true`` and paths that lead nowhere are the usual interpreters of fakes, and never answer. All others are
asked as ever. Links to the bytecode of an interpreter's library, of some 600 modules, are made once a process.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

from perfgate.capture.build_digest import ModulePath, NoAnswerError, ask
from perfgate.capture.watched_builds import link_bytecode
from perfgate.machine.atomic_files import sha256_hex
from perfgate.scenario.subject import Subject

SILENT = "/bin/true"
_known: dict[tuple[str, str], ModulePath | NoAnswerError] = {}


def asked(subject: Subject, variables: Mapping[str, str], scratch: Path) -> ModulePath:
    """In the place of :func:`perfgate.capture.build_digest.ask`."""
    if subject.python == SILENT or (subject.python.startswith("/") and not os.path.lexists(subject.python)):
        return _answer(subject, {}, scratch)
    if subject.python != sys.executable:
        return ask(subject, variables, scratch)
    found = _answer(subject, variables, scratch)
    bare = {name: value for name, value in variables.items() if name != "PYTHONPATH"}
    installed = _answer(subject, bare, scratch).folders
    return replace(found, folders=tuple(folder for folder in found.folders if folder not in installed))


def _answer(subject: Subject, variables: Mapping[str, str], scratch: Path) -> ModulePath:
    question = (subject.python, variables.get("PYTHONPATH", ""))
    if question not in _known:
        try:
            _known[question] = ask(subject, variables, scratch)
        except NoAnswerError as error:
            _known[question] = error
    found = _known[question]
    if isinstance(found, NoAnswerError):
        raise NoAnswerError(*found.args)
    return found


def linking(place: Path) -> Callable[..., None]:
    """What takes the place of :func:`perfgate.capture.watched_builds.link_bytecode`: folders of links are made once.

    Args:
        place: An empty folder, in which they stay.
    """

    def linked(folder: Path, path: ModulePath, without: Iterable[str] = ()) -> None:
        made = place / sha256_hex("\0".join(path.libraries))
        if not made.exists():  # processes that were forked from one share the place
            anew = Path(mkdtemp(dir=place)) / "links"
            link_bytecode(anew, replace(path, folders=()), without)
            with contextlib.suppress(OSError):  # another one was faster
                anew.rename(made)
        folder.symlink_to(made)

    return linked
