"""Times that no work on a device can have: set aside, counted once, or refused."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from damaged_traces import LAYER, LAYERS, Event, kernels_of, whole_trace, write_events, write_export

from perfgate.errors import NotMeasuredError, RecordError
from perfgate.trace.kernel_table import Trace
from perfgate.trace.nsys import read_nsys
from perfgate.trace.selection import by_role, select
from perfgate.trace.torch_profiler import read_torch

STEP = LAYERS * len(LAYER) + 1
"""Kernels of a step."""


def read(folder: Path, events: list[Event]) -> Trace:
    """What a Chrome trace holds."""
    return read_torch(write_events(folder / "trace.json", events))


@pytest.mark.parametrize("sort", ["graph", "eager"])
@pytest.mark.parametrize("times", [{"ts": 0, "dur": 0}, {"ts": 0}, {"dur": 0}, {"dur": 2e6}, {"dur": 610_000e6}])
def test_a_kernel_without_a_possible_time(tmp_path: Path, times: dict[str, float], sort: str) -> None:
    """It is set aside and counted, and its step has no figures; in either format."""
    events = whole_trace(sort)
    kernels_of(events)[2 * STEP + 3] |= times
    for trace in (read(tmp_path, events), read_nsys(write_export(tmp_path / "export.sqlite", events))):
        with pytest.raises(NotMeasuredError, match="1 kernels, copies or memsets have no time"):
            select(trace)
        assert len(trace.kernels) == 6 * STEP - 1
        assert select(trace, 4).what == "step 4 (decode)"


def test_no_kernel_has_a_time(tmp_path: Path) -> None:
    """A file of nothing else is refused."""
    events = whole_trace("graph")
    for one in kernels_of(events):
        one |= {"ts": 0, "dur": 0}
    with pytest.raises(RecordError, match="holds no kernel with a time that the capture can hold"):
        read(tmp_path, events)


@pytest.mark.parametrize("names", [["rotary_embedding_kernel"], None])
def test_kernels_of_which_no_launch_has_a_length(tmp_path: Path, names: list[str] | None) -> None:
    """In whole microseconds, too, a kernel that never lasts anything has lost its times."""
    events = whole_trace("graph")
    for one in kernels_of(events):
        one["dur"] = 0 if names is None or one["name"] in names else round(one["dur"])
    with pytest.raises(RecordError, match="no kernel with a time") if names is None else contextlib.nullcontext():
        cautions = read(tmp_path, events).cautions
        assert any("have no time that the capture can hold" in one.text for one in cautions)


@pytest.mark.parametrize("factor", [4, 100])
def test_times_that_are_too_long_all_alike(tmp_path: Path, factor: int) -> None:
    """Kernels that end in order but run beside many of their stream, or for most of their time, have no times."""
    events = whole_trace("graph")
    for one in kernels_of(events):
        one["dur"] *= factor
    with pytest.raises(NotMeasuredError, match="run beside others of their stream as no stream does"):
        select(read(tmp_path, events))


def test_a_duration_that_rounds_to_nothing(tmp_path: Path) -> None:
    """In whole microseconds a short kernel lasts none, if no other launch of it lasts long."""
    events = whole_trace("graph")
    for one in kernels_of(events):
        if one["name"] == "rotary_embedding_kernel":
            one["dur"] = 0 if one["args"]["graph node id"] > len(LAYER) else 1
    trace = read(tmp_path, events)
    assert select(trace).what == "5 decode steps"
    assert len(trace.kernels) == 6 * STEP


def test_kernels_that_end_out_of_order(tmp_path: Path) -> None:
    """A kernel that lasts beyond the end of the next ones on its stream is no time of anything."""
    events = whole_trace("graph")
    for one in kernels_of(events):
        if one["name"].startswith("flash"):
            one["dur"] *= 4
    with pytest.raises(
        NotMeasuredError, match=r"the times of 5 decode steps are not known: 30 of 105 kernels"
    ) as raised:
        select(read(tmp_path, events))
    assert raised.value.code == "trace-damaged"


def test_dependent_launches_count_once(tmp_path: Path) -> None:
    """Kernels that begin before the one before them has ended, and end in order, share no time: each adds its own."""
    events = whole_trace("graph")
    for one in kernels_of(events):
        one["dur"] += 4 if one["name"] != LAYER[-1] and "graph id" in one["args"] else 0
    trace = read(tmp_path, events)
    shown = select(trace)
    assert set(shown.figures.kernel_ns.tolist()) == set(shown.figures.busy_ns.tolist()) == {2 * 109_000 + 10_000}
    assert sum(role.time_ns for role in by_role(shown)) == shown.figures.kernel_ns.sum()
    said = [note for note in trace.cautions if note.code == "trace-damaged"]
    assert len(said) == 1
    assert "begin before the one before them on their stream has ended, by 3.000 us each" in said[0].text


def test_streams_side_by_side(tmp_path: Path) -> None:
    """Kernels of two streams may run at one time, for as long as they like."""
    events = whole_trace("eager")
    for one in kernels_of(events)[3::STEP]:
        one["args"]["stream"] = 8
        one["dur"] = 150
    trace = read(tmp_path, events)
    assert not [note for note in trace.cautions if note.code == "trace-damaged"]
    shown = select(trace)
    assert (shown.figures.kernel_ns > shown.figures.busy_ns).all()


def test_rounded_microseconds(tmp_path: Path) -> None:
    """Times in whole microseconds overlap by one where they were rounded, which is neither damage nor worth a word."""
    events = whole_trace("graph", kernel_us=12)
    for one in kernels_of(events):
        one["ts"], one["dur"] = int(one["ts"]), 13 if "graph id" in one["args"] else 12
    for number, one in enumerate(kernels_of(events)):
        one["ts"] -= number % 2 and "graph id" in one["args"]
    trace = read(tmp_path, events)
    assert not [note for note in trace.cautions if note.code == "trace-damaged"]
    assert select(trace).what == "5 decode steps"
