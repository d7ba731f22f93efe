"""Files that a scenario names on this machine's disk: its model and what else belongs to its repository."""

from __future__ import annotations

from pathlib import Path


def repository_root(folder: Path) -> Path:
    """The nearest folder from ``folder`` up that holds ``.git``, ``perfgate.toml`` or ``pyproject.toml``."""
    for candidate in (folder, *folder.parents):
        if any((candidate / mark).exists() for mark in (".git", "perfgate.toml", "pyproject.toml")):
            return candidate
    return folder


def model_problem(folder: Path, root: Path) -> str:
    """Why a folder is not that of a model in the repository ``root``; empty where it is.

    Raises:
        OSError: It cannot be read, or RuntimeError or ValueError for a path that none can be.
    """
    if not folder.is_relative_to(root):
        return "leads out of the repository"
    config = folder / "config.json"
    if not config.is_file():
        return f"has no config.json: {folder.relative_to(root)}"
    return "" if config.resolve().is_relative_to(root) else "has a config.json that leads out of the repository"
