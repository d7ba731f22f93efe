"""What the folders of runs, nights and campaigns are called, and the files that they are known by."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime
from pathlib import Path

RUN, NIGHT, DRILL = "run.json", "night.json", "drill.json"
"""The file that each kind of folder is known by."""
_TIME = "%Y%m%dT%H%M%SZ"
_STAMP = re.compile(r"-(\d{8}T\d{6}Z)-[0-9a-f]+$")


def stamped(name: str) -> str:
    """A name for a new folder: unique, and in the order of time."""
    return f"{name}-{datetime.now(UTC):{_TIME}}-{secrets.token_hex(3)}"


def begun_of(name: str) -> datetime | None:
    """When the folder of a name was begun, in UTC; ``None`` where perfgate did not name it."""
    stamp = _STAMP.search(name)
    return datetime.strptime(stamp[1], _TIME).replace(tzinfo=UTC) if stamp else None


def run_below(folder: Path) -> Path | None:
    """The first run folder in a folder; ``None`` before one has begun."""
    return next((file.parent for file in sorted(folder.glob(f"*/{RUN}"))), None)
