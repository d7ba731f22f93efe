"""Roles of kernels from engines and devices of many makes, with the time that each took there.

``tests/fixtures/kernel-worlds.csv`` holds names and times out of public traces and tables (its sources are in the
folder's README.md). The role of each row was written down from what the kernel does.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from test_families import BY_NAME, NAMED

from perfgate.scenario.kernel_names import ROLES, UNLISTED
from perfgate.trace.families import SHIPPED, classify
from perfgate.trace.trace_file import read_trace

FIXTURES = Path(__file__).parents[1] / "fixtures"
with (FIXTURES / "kernel-worlds.csv").open(encoding="utf-8", newline="") as stream:
    ROWS = list(csv.DictReader(stream))
WORLDS = sorted({row["world"] for row in ROWS})
MOST_UNLISTED = MOST_WRONG = 0.02


def test_the_worlds() -> None:
    """There are more than twelve, of four makers of devices and of six engines."""
    assert len(WORLDS) >= 24
    for word in ("mi300x", "mi355x", "h100", "b200", "910", "sglang", "tensorrt-llm", "transformers", "atom", "vllm"):
        assert any(word in world for world in WORLDS), word


@pytest.mark.parametrize("world", WORLDS)
def test_device_time_has_the_role_that_it_plays(world: str) -> None:
    """At most a fiftieth of a world's time is unlisted, and no wrong role has more."""
    rows = [row for row in ROWS if row["world"] == world]
    total = sum(float(row["time"]) for row in rows)
    wrong: dict[str, float] = defaultdict(float)
    for row, role in zip(rows, classify([row["kernel"] for row in rows]), strict=True):
        if role != row["role"]:
            wrong[role] += float(row["time"]) / total
    assert wrong.pop(UNLISTED, 0) <= MOST_UNLISTED
    assert max(wrong.values(), default=0) <= MOST_WRONG, wrong


@pytest.mark.parametrize(
    "name", ["h200-llama-8b-decode.sqlite.gz", "h200-x2-ranks.sqlite.gz", "cpu-tiny.torch-2.13.json.gz"]
)
def test_recorded_traces_have_roles(name: str) -> None:
    """Of the time of a trace that was taken here at most a fiftieth is unlisted."""
    trace = read_trace(FIXTURES / name)
    unlisted = np.array([role == UNLISTED for role in trace.names.role])[trace.kernels.name]
    assert trace.kernels.duration_ns[unlisted].sum() <= MOST_UNLISTED * trace.kernels.duration_ns.sum()


def test_every_role_of_the_worlds_is_one() -> None:
    """The hand-written roles are shipped ones."""
    assert {row["role"] for row in ROWS} <= set(ROLES)


def test_no_row_is_dead_or_shadows_another() -> None:
    """Each line of the shipped list is the first to match some kernel of these worlds or of the tests."""
    operators = read_trace(FIXTURES / "cpu-tiny.torch-2.13.json.gz").names.demangled
    names = [*(row["kernel"] for row in ROWS), *BY_NAME, *(row["kernel"] for row in NAMED), *operators]
    first = {next((n for n, rule in enumerate(SHIPPED) if re.search(rule.pattern, name)), None) for name in names}
    assert [rule.pattern for number, rule in enumerate(SHIPPED) if number not in first] == []
