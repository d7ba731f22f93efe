"""Recorded inputs have the verdicts, figures and codes that they had before the house was rebuilt."""

from __future__ import annotations

import json
import lzma
import math
from pathlib import Path
from typing import Any

import pytest
from frozen_inputs import entries

FROZEN = Path(__file__).with_name("frozen.json.xz")
"""What :func:`frozen_inputs.entries` gave; ``pytest tests/frozen --update-golden`` writes it anew."""
RELATIVE = 1e-12


@pytest.fixture(scope="module")
def frozen() -> dict[str, Any]:
    """By name of the entry."""
    content: dict[str, Any] = json.loads(lzma.decompress(FROZEN.read_bytes())) if FROZEN.exists() else {}
    return content


def same(one: Any, other: Any) -> bool:
    """Figures to a relative 1e-12, all else as it is."""
    if isinstance(one, float) and isinstance(other, (int, float)):
        return one == other or math.isclose(one, other, rel_tol=RELATIVE) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Where two differ: the innermost places."""
    if same(one, other):
        return []
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [line for key in one for line in differences(one[key], other[key], f"{path}/{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [
            line for n, both in enumerate(zip(one, other, strict=True)) for line in differences(*both, f"{path}/{n}")
        ]
    return [f"{path}: was {json.dumps(one)[:300]}, is {json.dumps(other)[:300]}"]


BROAD = ("changed", "jumping", "tampered")
"""Groups of many inputs of one kind, of which a change runs a twelfth."""
GROUPS = tuple(dict.fromkeys(name.split()[0] for name, _ in entries()))


@pytest.mark.parametrize(
    ("group", "part"),
    [(group, 0) for group in GROUPS] + [pytest.param(group, 1, marks=pytest.mark.slow) for group in BROAD],
)
def test_nothing_that_is_frozen_has_moved(
    group: str, part: int, frozen: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    """Exit status, verdict, pairs, figures, digests, codes, options, keys and schemas are equal."""
    monkeypatch.chdir(Path(__file__).parents[2])
    updating = request.config.getoption("--update-golden")
    moved: list[str] = []
    now: dict[str, Any] = {}
    for number, (name, entry) in enumerate((name, entry) for name, entry in entries() if name.split()[0] == group):
        if (group in BROAD and part == (number % 12 > 0)) or group not in BROAD:
            folder = tmp_path / str(number)
            folder.mkdir()
            now[name] = json.loads(json.dumps(entry(folder)))
            moved += [f"{name}{line}" for line in differences(frozen.get(name), now[name])]
    if updating:
        kept = json.loads(lzma.decompress(FROZEN.read_bytes())) if FROZEN.exists() else {}
        FROZEN.write_bytes(lzma.compress(json.dumps(kept | now, sort_keys=True).encode(), preset=9))
        return
    assert not moved


def test_no_input_is_lost() -> None:
    """What was frozen is still looked at."""
    assert json.loads(lzma.decompress(FROZEN.read_bytes())).keys() == {name for name, _ in entries()}
