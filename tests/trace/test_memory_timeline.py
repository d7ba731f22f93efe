"""Memory over time, from the three files that record it, and files that hold something else there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsys_builder import PID, TABLES, ExportBuilder, global_id

from perfgate.errors import RecordError
from perfgate.trace.memory_timeline import Holding, _holding, read_memory

USAGE = "CUDA_GPU_MEMORY_USAGE_EVENTS"


def torch_trace(file: Path, *events: tuple[int, int, int], **changed: Any) -> Path:
    """A Chrome trace with changes of one device's memory: microsecond, bytes, allocated after it."""
    rows = [
        {"ph": "i", "name": "[memory]", "ts": at, "args": {"Device Type": 1, "Device Id": 0, "Bytes": size,
         "Total Allocated": level, "Total Reserved": 1 << 20, **changed}}
        for at, size, level in events
    ]  # fmt: skip
    file.write_text(json.dumps({"traceEvents": rows}))
    return file


def test_the_allocator_of_pytorch(tmp_path: Path) -> None:
    """Levels are those recorded, so that what was there before is in them; events may be in any order."""
    file = torch_trace(tmp_path / "trace.json", (30, -300, 1100), (10, 400, 1400), (20, 0, 1400))
    found = read_memory(file).holdings["cuda:0"]
    assert found.time_ns.tolist() == [10_000, 20_000, 30_000]
    assert found.level_bytes.tolist() == [1400, 1400, 1100]
    assert found.reserved_bytes.tolist() == [1 << 20] * 3
    assert (found.at(9999), found.at(10_000), found.at(29_999), found.at(99_000)) == (1000, 1400, 1400, 1100)


def test_cuda_by_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Allocations less releases of each device, from nothing, which is said; pinned memory is the host's."""
    columns = ["start", "globalPid", "deviceId", "address", "bytes", "memKind", "memoryOperationType"]
    monkeypatch.setitem(TABLES, USAGE, columns)
    builder = ExportBuilder()
    for start, device, size, kind, operation in (
        (10, 0, 500, 2, 0), (20, 0, 200, 2, 0), (30, 0, 500, 2, 1), (15, 1, 50, 4, 0), (12, 0, 70, 1, 0),
    ):  # fmt: skip
        builder.add(USAGE, start=start, globalPid=global_id(PID), deviceId=device, bytes=size, memKind=kind,
                    memoryOperationType=operation, address=start)  # fmt: skip
    found = read_memory(builder.write(tmp_path / "export.sqlite"))
    assert {name: holding.level_bytes.tolist() for name, holding in found.holdings.items()} == {
        "host": [70], "cuda:0": [500, 700, 200], "cuda:1": [50],
    }  # fmt: skip
    assert [note.code for note in found.cautions] == ["not-recorded"]


def test_the_memory_timeline_of_pytorch(tmp_path: Path) -> None:
    """Categories are holders; what has no time was there before."""
    file = tmp_path / "timeline.json"
    file.write_text(json.dumps([[-1, 1, 100, 0], [-1, 1, 7, 7], [50, 2, 40, 4], [60, 3, 30, 0], [70, 4, -40, 4]]))
    found = read_memory(file)
    assert not found.traced
    levels = {name: holding.level_bytes.tolist() for name, holding in found.holdings.items()}
    assert levels == {"parameter": [130], "activation": [40, 0], "unknown": [7]}
    assert found.holdings["parameter"].at(55) == 100


def test_a_memory_timeline_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would end this process for want of memory is refused before it is read."""
    (tmp_path / "m.raw.json").write_text(json.dumps([[0, 1, 1, 0]] * 99))
    monkeypatch.setattr("perfgate.trace.limits.available_bytes", lambda: 1000)

    with pytest.raises(RecordError, match="of memory to read"):
        read_memory(tmp_path / "m.raw.json")


def test_a_file_without_memory(tmp_path: Path) -> None:
    """Holds nothing, which is no error."""
    builder = ExportBuilder()
    builder.launch("gemm", 0, 10, 20)
    assert not read_memory(builder.write(tmp_path / "export.sqlite")).holdings
    assert not read_memory(torch_trace(tmp_path / "trace.json")).holdings


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"Bytes": "x"}, "damaged memory event 0: Bytes is 'x', expected a whole number"),
        ({"Total Allocated": None}, "Total Allocated is 'None'"),
        ({"Total Reserved": 1 << 60}, "Total Reserved is '1152921504606846976'"),
        ({"Device Id": True}, "Device Id is 'True'"),
    ],
)
def test_damaged_events_are_refused(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    """By their number, key and value."""
    with pytest.raises(RecordError, match=message):
        read_memory(torch_trace(tmp_path / "trace.json", (1, 2, 3), **changed))


@pytest.mark.parametrize("rows", [[[1, 2, 3]], [[1, 2, 3, 8]], [[1, 2, "3", 0]], [[-2, 2, 3, 0]], [[1, 2, 3, 0], 4]])
def test_rows_that_are_no_timeline_are_refused(rows: list[Any], tmp_path: Path) -> None:
    """With what was expected."""
    file = tmp_path / "timeline.json"
    file.write_text(json.dumps(rows))
    with pytest.raises(RecordError, match="expected rows of time, action, bytes and category"):
        read_memory(file)


CHANGES = st.lists(st.tuples(st.integers(0, 50), st.integers(-9, 9)), min_size=1, max_size=12)


@given(CHANGES, st.integers(-2, 52), st.integers(0, 20))
def test_a_peak_is_the_highest_of_all_times(changes: list[tuple[int, int]], begin: int, length: int) -> None:
    """The most that is held at any nanosecond of a stretch of time, and while several changes share one."""
    ordered = sorted(changes, key=lambda change: change[0])
    found: Holding = _holding([at for at, _ in changes], [size + 100 for _, size in changes], None, None)
    levels = [(at, sum(size + 100 for _, size in ordered[: n + 1])) for n, (at, _) in enumerate(ordered)]

    def at(time: int) -> int:
        return next((level for when, level in reversed(levels) if when <= time), 0)

    inside = [level for when, level in levels if begin <= when < begin + length]
    assert found.at(begin) == at(begin)
    assert found.peak(begin, begin + length) == max([at(begin), *inside])
