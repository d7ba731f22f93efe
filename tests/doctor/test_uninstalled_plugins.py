"""A project folder that is given as ``path=`` without being installed is warned of before anything runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perfgate.doctor.vllm_source import uninstalled
from perfgate.scenario.subject import Subject


def warned(*files: str, folder: Path, data: bool = False) -> list[str]:
    """The warnings of a head whose folder has these files."""
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    path = (str(folder),)
    return [*map(str, uninstalled({"head": Subject(python=sys.executable, path=path, data=path if data else ())}))]


@pytest.mark.parametrize("file", ["pyproject.toml", "setup.py", "setup.cfg"])
def test_a_project(tmp_path: Path, file: str) -> None:
    """It is named by option and folder, with the command that installs it; metadata without entry points is no help."""
    (warning,) = warned(file, "my_plugin/__init__.py", "my_plugin.egg-info/PKG-INFO", folder=tmp_path)

    assert warning.startswith(f"--head or [subjects.head]: path: {tmp_path} is a project that is not installed")
    assert f"pip install --no-deps --target DIR {tmp_path}, and path=DIR" in warning


@pytest.mark.parametrize(
    "files",
    [("my_plugin.py",), ("pyproject.toml", "my_plugin-0.1.dist-info/entry_points.txt"),
     ("setup.py", "my_plugin.egg-info/entry_points.txt"), ("pyproject.toml", "vllm/__init__.py")],
)  # fmt: skip
def test_what_needs_none(tmp_path: Path, files: tuple[str, ...]) -> None:
    """A plain folder, one with entry points, installed or in development, and vLLM's own source are not warned of."""
    assert warned(*files, folder=tmp_path) == []


def test_data(tmp_path: Path) -> None:
    """Nor is a folder that is declared as data."""
    assert warned("pyproject.toml", folder=tmp_path, data=True) == []
