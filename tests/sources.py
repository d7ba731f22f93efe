"""The modules of perfgate as trees, for tests of what is written in them: to parse them all takes three seconds."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "perfgate"
FILES = {
    ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): file
    for file in sorted(PACKAGE.rglob("*.py"))
}
"""By the name of the module, without ``perfgate.``."""


@functools.cache
def tree(module: str) -> ast.Module:
    """The source of a module, parsed."""
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


def nodes() -> Iterator[tuple[str, ast.AST]]:
    """Every node of every module, with the path of its file."""
    for module, file in FILES.items():
        for node in ast.walk(tree(module)):
            yield str(file.relative_to(PACKAGE.parent)), node
