"""The user's own folders."""

from __future__ import annotations

import os
from pathlib import Path


def users_caches() -> Path | None:
    """What is perfgate's of the user's caches (``$XDG_CACHE_HOME``, else ``~/.cache``); ``None`` without a home."""
    users = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 (which leaves the tilde where there is none)
    folder = Path(users) if Path(users).is_absolute() else home / ".cache"
    return folder / "perfgate" if folder.is_absolute() else None
