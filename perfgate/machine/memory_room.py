"""How much memory this process may still take: what is free on the host, and what its cgroup leaves it."""

from __future__ import annotations

from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")


def available_bytes(cgroup: Path = CGROUP) -> int:
    """What can be taken without swapping.

    A container sees its own cgroup (v2) at the root of the hierarchy, and its cache of files counts as free, as it does
    for the host.
    """
    free = int(psutil.virtual_memory().available)
    try:
        limit, used = ((cgroup / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        counted = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        cached = int(counted.get("inactive_file", 0))
        return free if limit == "max" else max(min(free, int(limit) - int(used) + cached), 0)
    except (OSError, ValueError):  # no such hierarchy, or no limit in it
        return free
