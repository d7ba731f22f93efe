"""Trees of more folders than Python calls itself; a test that fails leaves none, which later ones could not remove."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

LEVELS = 1500


@contextlib.contextmanager
def deep_tree(folder: Path) -> Iterator[None]:
    """Such a tree in a folder, while the block lasts."""
    deep = folder
    for _ in range(LEVELS):
        (deep := deep / "d").mkdir()
    try:
        yield
    finally:
        subprocess.run(["rm", "-rf", "--", folder], check=True)  # noqa: S607
