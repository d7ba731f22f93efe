"""Project folders given as ``path=``: without installed metadata vLLM finds no entry point there, so no plugin."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from perfgate.errors import Problem
from perfgate.metrics.sides import SIDES
from perfgate.scenario.subject import Builds

PROJECT: Final = ("pyproject.toml", "setup.py", "setup.cfg")
ENGINE: Final = Path("vllm") / "__init__.py"
"""A folder that has it is the source of vLLM, which needs no entry point."""


def uninstalled(subjects: Builds) -> Iterator[Problem]:
    """A warning for each folder of a build that is a project, and declares no entry point as an installed one does."""
    for name, subject in subjects.items():
        option = f"--{name} or [subjects.{name}]" if name in SIDES else f"--head {name}"
        for folder in subject.path:
            if folder not in subject.data and _is_bare_project(Path(folder)):
                text = (
                    f"{folder} is a project that is not installed: vLLM finds plugins by the entry points of installed "
                    f"packages, and there are none; for a plugin: pip install --no-deps --target DIR {folder}, and "
                    "path=DIR"
                )
                yield Problem(option, 0, 0, "path", text)


def _is_bare_project(folder: Path) -> bool:
    if not any((folder / name).is_file() for name in PROJECT) or (folder / ENGINE).is_file():
        return False
    installed = chain.from_iterable(folder.glob(f"*.{kind}-info/entry_points.txt") for kind in ("dist", "egg"))
    return not any(file.is_file() for file in installed)
