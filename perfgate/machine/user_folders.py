"""The user's own folders."""

from __future__ import annotations

import os
from pathlib import Path


def users_home() -> Path | None:
    """The user's home; ``None`` where there is none."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 (which leaves the tilde where there is none)
    return home if home.is_absolute() else None


def users_caches() -> Path | None:
    """What is perfgate's of the user's caches (``$XDG_CACHE_HOME``, else ``~/.cache``); ``None`` without a home."""
    users = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if users.is_absolute():
        return users / "perfgate"
    home = users_home()
    return home / ".cache" / "perfgate" if home else None
