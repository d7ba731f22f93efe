"""What an engine's process imports and how long that takes: CPython's own table (``-X importtime``) in its log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from perfgate.models import Frozen

READ_BYTES = 8 << 20
"""Of the log; vLLM imports some five thousand modules, 80 bytes each, before anything else fills it."""
MOST_PACKAGES = 5000
DEPTH = 2
"""Parts of a name that tell a package: ``torch._dynamo``, ``vllm.v1``."""
_LINE = re.compile(rb"(?m)^import time: +(\d{1,12}) \| +\d{1,12} \| +([A-Za-z_][\w.]{0,200})$")


def read_imports(log: Path) -> dict[str, tuple[int, int]]:
    """Modules and their own microseconds by package, from a log that anything may be in; empty where it has none."""
    with log.open("rb") as stream:
        found = {name: int(own_us) for own_us, name in _LINE.findall(stream.read(READ_BYTES))}
    packages: dict[str, tuple[int, int]] = {}
    for name, own_us in found.items():
        package = ".".join(name.decode("ascii").split(".")[:DEPTH])
        modules, spent_us = packages.get(package, (0, 0))
        if package in packages or len(packages) < MOST_PACKAGES:
            packages[package] = (modules + 1, spent_us + own_us)
    return packages


class HostImports(Frozen):
    """A package of which the sides import another number of modules.

    Args:
        package: The first two parts of its modules' names.
        modules: Of base and head.
        spent_s: What importing them takes, of base and head; it differs with every start.
    """

    package: str
    modules: tuple[int, int]
    spent_s: tuple[float, float]


def changed_imports(base: Mapping[str, tuple[int, int]], head: Mapping[str, tuple[int, int]]) -> list[HostImports]:
    """The packages that differ, those first that take longest on either side; times alone differ with every start."""
    changes = []
    for package in sorted(base.keys() | head.keys()):
        (before, before_us), (after, after_us) = base.get(package, (0, 0)), head.get(package, (0, 0))
        if before != after:
            spent_s = (before_us * 1e-6, after_us * 1e-6)
            changes.append(HostImports(package=package, modules=(before, after), spent_s=spent_s))
    return sorted(changes, key=lambda change: (-max(change.spent_s), change.package))
