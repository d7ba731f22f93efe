"""Where a subject's vLLM is, and whether it finds the plugins in folders given as ``path=``.

The interpreter is asked, in a fraction of a second, and imports nothing for it.

What it answers is a claim of the subject: it is bounded, checked, and used for nothing but to find source to read.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from perfgate.capture.engine import find_subject
from perfgate.doctor.accepted_values import EngineArguments
from perfgate.doctor.engine_arguments import read_arguments
from perfgate.doctor.profilers import PROBE
from perfgate.errors import Problem, UsageError
from perfgate.machine.children import spawn
from perfgate.machine.processes import owner_mark
from perfgate.metrics.sides import SIDES
from perfgate.scenario.subject import Builds, Subject

TIMEOUT_S = 30.0
MAX_ANSWER_BYTES = 1024**2
MAX_FILES = 2000
MAX_FILE_BYTES = 4 * 1024**2
PROJECT = ("pyproject.toml", "setup.py", "setup.cfg")


class Located(BaseModel):
    """What a subject's interpreter says of its vLLM.

    Args:
        file: ``vllm/__init__.py`` as it would be imported; ``None`` where there is none.
        missing: Whether nothing at all could be imported by that name.
        version: Of the installed package.
        cpu: Whether it is a build for CPUs.
        early: Files and folders of what the interpreter or vLLM loads on its own: plugins, ``sitecustomize``.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    file: str | None
    missing: bool
    version: str | None
    cpu: bool
    early: list[str]


def locate(subject: Subject, variables: Mapping[str, str]) -> Located | str:
    """Ask a subject's interpreter under the variables of an engine; a sentence where it has no answer.

    Raises:
        UsageError: ``subject-not-found``: it cannot be executed.
    """
    missing = find_subject(subject)
    if missing is not None:
        return missing.text
    with tempfile.TemporaryDirectory(prefix="perfgate-locate-") as scratch:
        answer = Path(scratch) / "answer.json"
        argv = [subject.python, str(PROBE), "locate", str(answer)]
        try:
            child = spawn(argv, environment=variables, owner=owner_mark("check"), log=Path(os.devnull),
                          folder=Path(scratch))  # fmt: skip
        except OSError as error:
            raise UsageError(f"python={subject.python}: {error.strerror}", code="subject-not-found") from error
        try:
            status = child.wait(TIMEOUT_S)
        finally:
            child.end()
        if status is None:
            return f"python={subject.python}: no answer within {TIMEOUT_S:g} s"
        try:
            with answer.open("rb") as stream:
                return Located.model_validate_json(stream.read(MAX_ANSWER_BYTES))
        except (OSError, ValidationError):
            return f"python={subject.python} does not run a Python program (status {status})"


def arguments_of(subject: Subject, located: Located) -> EngineArguments | str:
    """The engine arguments that a subject takes; a sentence where its source does not tell them."""
    if located.file is None or not Path(located.file).is_absolute():
        return f"python={subject.python} has no vllm"
    package = Path(located.file).parent
    # Beside the package itself are the libraries or the tests of its build; what of them vLLM would load is in `early`.
    added = [folder for folder in subject.path if Path(folder) != package.parent]
    changed = _mention((*added, *located.early), package)
    if changed is not None:
        return f"{changed} may change the engine's arguments"
    arguments = read_arguments(package, located.version or "of unknown version")
    return arguments or f"the source of vllm in {package} does not tell its engine arguments"


def _mention(paths: Iterable[str], package: Path) -> Path | None:
    """The first file outside vllm itself that speaks of engine arguments, or that could not be looked into."""
    for number, file in enumerate(_python_files(paths, package)):
        try:
            if number >= MAX_FILES or file.stat().st_size > MAX_FILE_BYTES:
                return file
            text = file.read_bytes()
        except OSError:
            return file
        if b"EngineArgs" in text or b"arg_utils" in text:
            return file
    return None


def _python_files(paths: Iterable[str], package: Path) -> Iterator[Path]:
    for path in dict.fromkeys(paths):
        if (file := Path(path)).is_file():
            yield file
        for folder, inside, files in os.walk(path):
            here = Path(folder)
            if here == package:
                inside.clear()
                continue
            # An environment inside the checkout is on nobody's module path by that.
            inside[:] = [name for name in inside if name[0] != "." and not (here / name / "pyvenv.cfg").exists()]
            yield from (here / name for name in files if name.endswith(".py") and (here / name).is_file())


def option_of(name: str | None) -> str:
    """Where a build was named: by words, or where there are none in ``perfgate.toml``."""
    return f"--{name} or [subjects.{name}]" if name in SIDES else f"--head {name}"


def uninstalled(subjects: Builds) -> Iterator[Problem]:
    """A warning for each folder of a build that is a project, and declares no entry point as an installed one does.

    Without installed metadata vLLM finds no plugin there. The source of vLLM needs no entry point.
    """
    for name, subject in subjects.items():
        for folder in (folder for folder in subject.path if folder not in subject.data):
            here = Path(folder)
            project = any((here / file).is_file() for file in PROJECT) and not (here / "vllm/__init__.py").is_file()
            declared = (file for kind in ("dist", "egg") for file in here.glob(f"*.{kind}-info/entry_points.txt"))
            if project and not any(file.is_file() for file in declared):
                text = (
                    f"{folder} is a project that is not installed: vLLM finds plugins by the entry points of installed "
                    f"packages, and there are none; for a plugin: pip install --no-deps --target DIR {folder}, and "
                    "path=DIR"
                )
                yield Problem(option_of(name), 0, 0, "path", text)
