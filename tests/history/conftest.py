"""The history needs an extra, and of ruptures there are no wheels yet for the newest Python."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("ruptures") else ["test_*.py"]
