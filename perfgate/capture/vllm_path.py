"""Whether an engine used the folders that its subject's ``path=`` puts on the module path.

Part of :mod:`perfgate.capture.vllm_worker`, which loads it by its path: it imports nothing of perfgate and must run on
Python 3.10. What runs in a rank travels there by value, because no rank can import this file.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def path_used(engine: Any, folders: list[str], call_ranks: Callable[..., list[Any]]) -> bool | None:
    """Whether any process of the engine imported something of the folders; ``None`` where a rank does not tell."""
    if uses(None, folders):
        return True
    ranks = call_ranks(engine, uses, folders)
    return True if True in ranks else None if None in ranks or not ranks else False


def uses(_worker: Any, folders: list[str]) -> bool | None:
    """Whether this process imported a module below a folder, or one that an entry point of it names.

    vLLM imports the module of an entry point when it loads the plugin. Nothing is raised: vLLM would leave the other
    ranks' answers unread, and take them for those to its next call.
    """
    try:
        packages = importlib.metadata.distributions(path=[*folders])
        named = {entry.value.partition(":")[0].strip() for package in packages for entry in package.entry_points}
        below = tuple(f"{path}{os.sep}" for folder in folders for path in (Path(folder), Path(folder).resolve()))
        modules = [*sys.modules.items()]
        files = (getattr(module, "__file__", None) for _, module in modules)
        return not named.isdisjoint(name for name, _ in modules) or any(str(file).startswith(below) for file in files)
    except Exception:  # noqa: BLE001 (whatever a package or module does when it is looked at)
        return None
