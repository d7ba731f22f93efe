"""Launches whose kernels a trace does not hold: counted, said, and never a step that looks faster."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from click.testing import CliRunner
from damaged_traces import LAYER, LAYERS, SORTS, Event, event, kernels_of, whole_trace, write_events, write_export
from nsys_builder import ExportBuilder

from perfgate.cli.main import main
from perfgate.errors import NotMeasuredError, RecordError
from perfgate.trace.decode_step import summarise
from perfgate.trace.kernel_table import Trace
from perfgate.trace.nsys import read_nsys
from perfgate.trace.selection import select
from perfgate.trace.torch_profiler import read_torch

IN_GRAPH = LAYERS * len(LAYER)


def read(folder: Path, events: list[Event]) -> Trace:
    """What a Chrome trace holds."""
    return read_torch(write_events(folder / "trace.json", events))


def without(events: list[Event], *places: int) -> list[Event]:
    """The events without these kernels, counted in order of time."""
    gone = {id(kernels_of(events)[place]) for place in places}
    return [one for one in events if id(one) not in gone]


def refusal(trace: Trace) -> str:
    """Why the decode steps have no figures, for the table and for a record alike."""
    with pytest.raises(NotMeasuredError) as raised:
        select(trace)
    with pytest.raises(NotMeasuredError) as recorded:
        summarise(trace)
    assert recorded.value.code == raised.value.code == "trace-damaged"
    return raised.value.text


@pytest.mark.parametrize("sort", SORTS)
def test_whole_traces_are_whole(tmp_path: Path, sort: str) -> None:
    """Where every launch has its kernels there is nothing to say, in either format."""
    events = whole_trace(sort)
    for trace in (read(tmp_path, events), read_nsys(write_export(tmp_path / "export.sqlite", events))):
        assert {note.code for note in trace.cautions} <= {"steps-unclear"}
        assert select(trace).what == "5 decode steps"


@pytest.mark.parametrize("sort", SORTS)
def test_a_step_that_lost_its_kernels(tmp_path: Path, sort: str) -> None:
    """A step in the middle without any kernel is not left out silently: its launches are counted."""
    events = without(whole_trace(sort), *range(2 * (IN_GRAPH + 1), 3 * (IN_GRAPH + 1)))
    launches = IN_GRAPH + 1 if sort == "eager" else 2
    expected = f"20 % of {5 * launches} launches are not whole in the trace: {launches} without a kernel"
    assert expected in refusal(read(tmp_path, events))
    assert expected in refusal(read_nsys(write_export(tmp_path / "export.sqlite", events)))


@pytest.mark.parametrize("sort", ["graph", "hip-graph"])
def test_a_replay_with_fewer_kernels(tmp_path: Path, sort: str) -> None:
    """One kernel less in one replay of a graph is seen, whether the kernels name their graph or not."""
    events = without(whole_trace(sort), 2 * (IN_GRAPH + 1) + 4)
    expected = "1 graph with fewer kernels than in other replays"
    assert expected in refusal(read(tmp_path, events))
    assert expected in refusal(read_nsys(write_export(tmp_path / "export.sqlite", events)))


def test_replays_that_all_lost_some(tmp_path: Path) -> None:
    """Where no replay is whole and nothing names the graph, other numbers of the same kernels tell."""
    lost = [step * (IN_GRAPH + 1) + 1 + 2 * step for step in range(6)]
    assert "with fewer kernels than in other replays" in refusal(
        read(tmp_path, without(whole_trace("hip-graph"), *lost))
    )


def test_other_graphs_are_no_loss(tmp_path: Path) -> None:
    """A graph for another batch runs the same kernels in other shapes, or others, and is whole."""
    events = whole_trace("hip-graph")
    for one in kernels_of(events)[2 * (IN_GRAPH + 1) : 3 * (IN_GRAPH + 1)]:
        one["args"]["grid"] = [16, 1, 1]
    removed = without(events, 2 * (IN_GRAPH + 1) + 4)
    assert select(read(tmp_path, removed)).what == "5 decode steps"


def test_the_body_of_a_conditional_node_is_a_graph(tmp_path: Path) -> None:
    """A launch that does not enter it lacks nothing."""
    events = whole_trace("graph")
    for one in kernels_of(events):
        if one["args"].get("graph node id", 0) > IN_GRAPH // 2:
            one["args"]["graph id"] = 4
    skipped = [2 * (IN_GRAPH + 1) + place for place in range(IN_GRAPH // 2, IN_GRAPH)]
    assert select(read(tmp_path, without(events, *skipped))).what == "5 decode steps"


def test_steps_before_the_profiler_saw_the_device(tmp_path: Path) -> None:
    """Steps whose launches all come before the first kernel are left out, which is said; the others are whole."""
    trace = read(tmp_path, without(whole_trace("graph"), *range(3 * (IN_GRAPH + 1))))
    assert select(trace).what == "2 decode steps"
    (said,) = (note.text for note in trace.cautions if note.code == "trace-damaged")
    assert said.startswith("3 steps at the begin or the end of the trace are left out: 6 launches there have no kernel")


def test_steps_after_the_profiler_saw_the_device(tmp_path: Path) -> None:
    """The same at the end, where a graph was cut in its middle."""
    at = 4 * (IN_GRAPH + 1) + 5
    trace = read(tmp_path, without(whole_trace("graph"), *range(at, 6 * (IN_GRAPH + 1))))
    assert select(trace).what == "4 decode steps"
    assert [note.code for note in trace.cautions if "1 step at the begin or the end" in note.text] == ["trace-damaged"]


def test_a_step_without_kernels_and_launches(tmp_path: Path) -> None:
    """A decode step of which neither launches nor kernels are there is said to be left out."""
    events = [
        one
        for one in whole_trace("graph")
        if one["cat"] == "user_annotation" or not 2 * 1000 <= one["ts"] - 1_000_000 < 3 * 1000
    ]
    trace = read(tmp_path, events)
    assert select(trace).what == "4 decode steps"
    assert "1 of 6 decode steps have no kernel in the trace and are left out: 2" in {n.text for n in trace.cautions}


def test_a_whole_step_of_a_trace_with_losses(tmp_path: Path) -> None:
    """Step 4 can be shown where step 1 lost kernels; step 1 cannot, nor the one whose length it ends."""
    trace = read(tmp_path, without(whole_trace("graph"), IN_GRAPH + 3))
    assert select(trace, 4).what == "step 4 (decode)"
    for step in (0, 1):
        with pytest.raises(NotMeasuredError, match="1 graph with fewer kernels"):
            select(trace, step)


@pytest.mark.parametrize("maker", ["cuda", "hip"])
def test_what_a_capture_notes_down_is_no_loss(tmp_path: Path, maker: str) -> None:
    """Launches between the begin and the end of a stream capture run nothing."""
    events = whole_trace("eager")
    begun = event("cuda_runtime", f"{maker}StreamBeginCapture", 1_002_360, 1, 100, correlation=9001)
    ended = event("cuda_runtime", f"{maker}StreamEndCapture", 1_002_390, 1, 100, correlation=9002)
    noted = [
        event("cuda_runtime", f"{maker}LaunchKernel", 1_002_362 + n, 1, 100, correlation=9100 + n) for n in range(9)
    ]
    assert select(read(tmp_path, [*events, begun, *noted, ended])).what == "5 decode steps"
    assert "9 without a kernel" in refusal(read(tmp_path, [*events, *noted]))


def test_copies_and_memsets_may_leave_nothing(tmp_path: Path) -> None:
    """Calls that set or copy no bytes, or copy within the host, have no event on the device."""
    calls = [event("cuda_runtime", name, 1_002_360, 1, 100, correlation=9000 + n)
             for n, name in enumerate(("cudaMemsetAsync", "cudaMemcpyAsync", "cudaLaunchHostFunc"))]  # fmt: skip
    assert select(read(tmp_path, [*whole_trace("graph"), *calls])).what == "5 decode steps"


def test_a_launch_that_failed_left_nothing() -> None:
    """A call that returned an error launched no kernel; one that returned none did."""
    for returned, lost in ((1, False), (0, True)):
        builder = ExportBuilder()
        for step in range(4):
            at = 10_000 * step
            builder.span(f"perfgate.step.{step}.decode", at, at + 5000)
            builder.launch("gemm", at + 10, at + 2000, at + 4000)
            if step == 1:
                builder.call("cuLaunchKernel", at + 1500, at + 1600)
                builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][-1]["returnValue"] = returned
        trace = builder.read()
        assert lost == any(note.code == "trace-damaged" for note in trace.cautions)


def test_some_graphs_as_single_events() -> None:
    """An export with one launch of a graph as an event and another by its kernels hides what the first one ran."""
    builder = ExportBuilder()
    builder.graph(10, [("gemm", 3000, 4000)])
    where = {"deviceId": 0, "streamId": 7, "graphId": 1, "graphExecId": 2}
    hidden = builder.call("cudaGraphLaunch_v10000", 5000, 6000)
    owner = builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"][0]["globalPid"]
    builder.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=7000, end=8000, correlationId=hidden, globalPid=owner, **where)
    with pytest.raises(RecordError, match="holds 1 of 1 launches of CUDA graphs as single events"):
        builder.read()


def test_the_command_names_no_cause(tmp_path: Path) -> None:
    """``--diff`` of a trace that lost kernels ends with 22 and the file's name, and the table does too."""
    whole = write_events(tmp_path / "whole.json", whole_trace("eager"))
    half = write_events(tmp_path / "half.json", without(whole_trace("eager"), *range(0, 6 * (IN_GRAPH + 1), 2)))
    for words in ([str(half)], [str(whole), "--diff", str(half)], [str(half), "--diff", str(whole)]):
        ended = CliRunner().invoke(main, ["kernels", *words])
        assert ended.exit_code == 22
        assert "half.json" in ended.stderr
        assert "without a kernel" in ended.stderr
        assert not ended.stdout


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_rows_does_not_matter(tmp_path: Path, seed: int) -> None:
    """Events in another order are the same trace."""
    events = without(whole_trace("hip-graph"), IN_GRAPH + 3)
    shuffled = random.Random(seed).sample(events, len(events))  # noqa: S311 (no secret)
    assert refusal(read(tmp_path, shuffled)) == refusal(read(tmp_path, events))
