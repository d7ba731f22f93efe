"""A copy of perfgate in which rooms were removed, or into which one can be put."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]


def without(rooms: Iterable[str], folder: Path) -> Path:
    """A copy of perfgate and its tests in which these rooms were removed.

    Files are links to ours, bytecode too: it belongs to sources of their times, and to compile all anew takes longer
    than what is asked of most copies.
    """
    ignore = shutil.ignore_patterns(*(f"test_{room}.py" for room in rooms))
    for name in ("perfgate", "tests"):
        shutil.copytree(ROOT / name, folder / name, copy_function=os.link, ignore=ignore)
        for room in rooms:
            shutil.rmtree(folder / name / room, ignore_errors=True)
    for name in ("benchmarks", "research", "docs", "scenarios", "drills", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def called(tree: Path, *words: str, here: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Python, with the copy in front."""
    variables = {**os.environ, "PYTHONPATH": str(tree)}
    return subprocess.run(
        [sys.executable, *words], cwd=here or tree, env=variables, capture_output=True, text=True, check=False
    )
