"""How much memory may still be taken: the host's, or what a cgroup leaves."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from perfgate.machine.memory_room import available_bytes

GIB = 1 << 30


@pytest.mark.parametrize(
    ("limit", "used", "cached", "left"),
    [("max", 5 * GIB, 0, 8 * GIB), (4 * GIB, 3 * GIB, GIB // 2, 3 * GIB // 2), (4 * GIB, 5 * GIB, 0, 0),
     (64 * GIB, GIB, 0, 8 * GIB)],
)  # fmt: skip
def test_what_a_cgroup_leaves(
    limit: int | str, used: int, cached: int, left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its limit less what it uses, without its cache of files, and never more than the host has."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 8 * GIB}))
    for name, text in {"max": limit, "current": used, "stat": f"anon 1\ninactive_file {cached}"}.items():
        (tmp_path / f"memory.{name}").write_text(f"{text}\n")
    assert available_bytes(tmp_path) == left
    assert available_bytes(tmp_path / "none") == 8 * GIB
