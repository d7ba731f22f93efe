"""The table of counters, and how a counter finds its metric."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perfgate.counters.launch_table import ARCHITECTURES, CHECKED, COUNTERS, Device, KernelLaunch
from perfgate.errors import RecordError
from perfgate.trace.decode_step import KernelKey

ROOT = Path(__file__).parents[2]


def counted(architecture: int | None, metrics: dict[str, tuple[float, str]]) -> KernelLaunch:
    """A launch of an architecture with these metrics and their units."""
    return KernelLaunch(
        key=KernelKey(role="gemm", name="k"),
        values={name: value for name, (value, _) in metrics.items()},
        units={name: unit for name, (_, unit) in metrics.items()},
        gpu=Device(architecture=architecture),
    )


@pytest.mark.parametrize("name", COUNTERS)
def test_every_counter_is_explained_and_has_a_name_everywhere(name: str) -> None:
    """Meaning, cause and action are sentences; each architecture has a name to ask for; none is verified unseen."""
    counter = COUNTERS[name]
    for text in (counter.meaning, counter.cause, counter.action):
        assert text.endswith(".")
    for architecture in ARCHITECTURES:
        assert counter.names_on(architecture)
    for one in counter.names:
        assert set(one.verified) <= set(one.on)
        assert set(one.verified) <= set(CHECKED)


def test_the_first_name_counts() -> None:
    """Where two of a counter's names were collected the earlier is read, where one was that one."""
    both = {
        "smsp__inst_executed.sum": (7.0, "inst"),
        "sm__inst_executed.sum": (8.0, "inst"),
    }
    assert counted(90, both).read("instructions") == 7
    del both["smsp__inst_executed.sum"]
    assert counted(90, both).read("instructions") == 8
    assert counted(90, {}).read("instructions") is None


@pytest.mark.parametrize(("architecture", "found"), [(90, None), (100, 50.0), (87, 50.0), (None, 50.0)])
def test_names_of_other_architectures(architecture: int | None, found: float | None) -> None:
    """A name is read where its architecture has it, and on those that the table does not know."""
    metrics = {"sm__pipe_tensor_cycles_active_v2.avg.pct_of_peak_sustained_active": (50.0, "%")}
    assert counted(architecture, metrics).read("tensor_pipe") == found


def test_a_unit_of_another_kind() -> None:
    """A counter in a unit that it cannot have is an error, because its size is unknown."""
    with pytest.raises(RecordError, match="expected B") as caught:
        counted(90, {"dram__bytes.sum": (7.0, "Zbyte")}).read("dram_bytes")
    assert caught.value.code == "counters-unreadable"


def test_the_page_has_every_counter() -> None:
    """docs/counters.md lists them in the table's order, each with its tier and its first name."""
    rows = re.findall(
        r"^\| `(\w+)` \| (\S+) \| (\w+) \| (\w+) \| `(\S+)`", (ROOT / "docs/counters.md").read_text(), re.MULTILINE
    )
    assert rows == [(c.name, c.unit, c.better, c.tier, c.names[0].metric) for c in COUNTERS.values()]
