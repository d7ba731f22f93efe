"""What bounds a step: steps drawn by hand, and any step, whose path is always as long as the step."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsys_builder import PID, ExportBuilder, global_id

from perfgate.errors import UsageError
from perfgate.trace import critical_path
from perfgate.trace.critical_path import StepPath, critical_paths
from perfgate.trace.selection import select
from perfgate.trace.trace_file import read_trace

FIXTURES = Path(__file__).parents[1] / "fixtures"
CAPTURE = FIXTURES / "h200-llama-8b-decode.sqlite.gz"


def walked(path: StepPath) -> list[tuple[str, int]]:
    """The path piece by piece: what, and how long."""
    return [(piece.part.what, piece.time_ns) for piece in path.pieces]


def gains(path: StepPath) -> dict[str, int]:
    """What each part would gain."""
    return {part.what: gain for part, gain in path.gains_ns.items()}


Row = tuple[Any, ...]
"""A method of the builder with its arguments, and its keywords where it has some."""


def drawn(*rows: Row) -> StepPath:
    """The path of the first step that rows draw."""
    builder = ExportBuilder()
    for method, *words in rows:
        named = words.pop() if isinstance(words[-1], dict) else {}
        getattr(builder, method)(*words, **named)
    return critical_paths(select(builder.read()))[0]


def step(number: int, begin: int, end: int) -> Row:
    """The range of a step."""
    return ("span", f"perfgate.step.{number}", begin, end)


NINE: dict[str, Any] = {"stream": 9}
DRAWN: dict[str, tuple[list[Row], list[tuple[str, int]]]] = {
    "launches lie ahead: kernels and the gaps between them, up to the next step's first kernel": (
        [step(0, 0, 9000), ("launch", "rms_norm", 0, 20_000, 26_000), ("launch", "nvjet", 1000, 27_000, 29_500),
         step(1, 10_000, 19_000), ("launch", "rms_norm", 10_000, 30_000, 36_000),
         ("launch", "nvjet", 11_000, 37_000, 39_500)],
        [("norm", 6000), ("between kernels", 1000), ("gemm", 2500), ("between kernels", 500)]),
    "a kernel that a running one lets begin early: through the part before its beginning": (
        [("launch", "rms_norm", 0, 10_000, 14_000), ("launch", "nvjet", 1000, 13_000, 20_000)],
        [("norm", 3000), ("gemm", 7000)]),
    "a wait for tokens ends with their copy, though a kernel of the next step ended after it": (
        [step(0, 0, 40_000), ("launch", "nvjet", 0, 10_000, 30_000), ("copy", 2, 1000, 30_000, 31_000, 64),
         ("launch", "rms_norm", 2000, 31_500, 33_000, NINE), ("call", "cudaEventSynchronize", 4000, 36_000),
         step(1, 40_000, 50_000), ("launch", "nvjet", 41_000, 46_000, 47_000)],
        [("gemm", 20_000), ("copy d2h", 1000), ("return from a wait", 5000), ("code between calls", 5000),
         ("launch on its way", 5000)]),
    "what one thread does between two calls does not hold up the launches of another": (
        [("launch", "rms_norm", 0, 5000, 6000), ("call", "cudaEventSynchronize", 1000, 7000, {"tid": 99}),
         ("launch", "nvjet", 20_000, 25_000, 30_000)],
        [("code between calls", 15_000), ("launch on its way", 5000), ("gemm", 5000)]),
    "a kernel launched long ago, behind one that ended long ago, has a gap without a cause": (
        [("launch", "rms_norm", 0, 10_000, 11_000), ("launch", "nvjet", 1000, 99_000, 100_000)],
        [("norm", 1000), ("cause not recorded", 88_000), ("gemm", 1000)]),
    "a call that returns after its own copy waited for it": (
        [("launch", "rms_norm", 0, 5000, 9000), ("call", "cudaMemcpy", 2000, 12_000),
         ("add", "CUPTI_ACTIVITY_KIND_MEMCPY", {"start": 9000, "end": 10_000, "deviceId": 0, "streamId": 7, "bytes": 4,
          "copyKind": 2, "correlationId": 2, "globalPid": global_id(PID), "srcKind": 2, "dstKind": 0}),
         ("launch", "nvjet", 13_000, 17_000, 18_000)],
        [("norm", 4000), ("copy d2h-pageable", 1000), ("return from a wait", 2000), ("code between calls", 1000),
         ("launch on its way", 4000), ("gemm", 1000)]),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "path"), DRAWN.values(), ids=DRAWN)
def test_paths_by_hand(rows: list[Row], path: list[tuple[str, int]]) -> None:
    """The path piece by piece, as long as the step."""
    found = drawn(*rows)
    assert walked(found) == path
    assert found.length_ns == sum(ns for _, ns in path)


def test_a_host_that_launches_late_bounds_its_step() -> None:
    """The device is done at 13 us, the host launches the next kernel at 20 us, after code that follows its wait.

    Without the norm, which the host waits for, it would launch 3 us earlier; without its code, 6 us.
    """
    path = drawn(
        step(0, 0, 19_000), ("launch", "rms_norm", 0, 10_000, 13_000), ("call", "cudaStreamSynchronize", 2000, 14_000),
        step(1, 19_500, 40_000), ("launch", "rms_norm", 20_000, 25_000, 26_000),
    )  # fmt: skip
    assert walked(path) == [
        ("norm", 3000), ("return from a wait", 1000), ("code between calls", 6000), ("launch on its way", 5000),
    ]  # fmt: skip
    assert gains(path) == dict(walked(path))


def test_another_path_bounds_what_a_part_gains() -> None:
    """Two streams that a third kernel waits for: without the longer one the step would end with the shorter one."""
    path = drawn(
        step(0, 0, 4000), ("launch", "rms_norm", 0, 10_000, 11_000),
        ("launch", "ncclDevKernel_AllReduce", 1000, 11_000, 18_000, NINE), ("launch", "nvjet", 2000, 11_000, 31_000),
        ("launch", "act_and_mul_kernel", 3000, 34_500, 36_000, NINE),
    )  # fmt: skip
    assert walked(path) == [("norm", 1000), ("gemm", 20_000), ("after another stream", 3500), ("activation", 1500)]
    assert gains(path) == {"norm": 1000, "gemm": 13_000 + 3500, "after another stream": 3500, "activation": 1500}
    communication = next(part for part in path.in_step_ns if part.what == "communication")
    assert path.in_step_ns[communication] == 7000


def test_a_silent_thread_goes_on_after_another() -> None:
    """A thread that makes no call for over a millisecond, while a second one makes some, waits for that one."""
    builder = ExportBuilder()
    builder.launch("rms_norm", 0, 5000, 6000)
    for call in range(3):
        called = 1_000_000 * call + 500_000
        builder.launch("nvjet", called, called + 5000, called + 6000, stream=9, tid=99)
    builder.launch("rms_norm", 2_600_000, 2_605_000, 2_606_000)
    (path,) = critical_paths(select(builder.read()))
    code = [piece.time_ns for piece in path.pieces if piece.part.what == "code between calls"]
    assert code == [495_000, 999_000, 999_000, 99_000]


TIMES = st.integers(0, 30_000)
WORK = st.tuples(
    st.sampled_from(["kernel", "graph", "copy", "wait"]), TIMES, TIMES, st.integers(1, 9000), st.sampled_from([7, 9]),
    st.sampled_from([None, 99]),
)  # fmt: skip


@given(st.lists(WORK, min_size=1, max_size=12), st.integers(0, 2))
def test_any_path_is_as_long_as_its_step(rows: list[tuple[str, int, int, int, int, int | None]], steps: int) -> None:
    """Its pieces follow one another from the first kernel to the end; no part gains more than it has on the path."""
    builder = ExportBuilder()
    for step in range(steps):
        builder.span(f"perfgate.step.{step}", 20_000 * step, 20_000 * step + 20_000)
    builder.launch("nvjet", 0, 1000, 2000)
    free = {7: 2000, 9: 0}  # a stream runs one kernel after the other
    for what, called, delay, length, stream, tid in rows:
        on = 7 if what == "graph" else stream
        start = called + delay if what == "copy" else max(called + delay, free[on])
        if what in ("kernel", "graph"):
            free[on] = start + (2 * length if what == "graph" else length)
        if what == "kernel":
            builder.launch("rms_norm", called, start, start + length, stream=stream, tid=tid)
        elif what == "graph":
            builder.graph(called, [("nvjet", start, start + length), ("rms_norm", start + length, start + 2 * length)])
        elif what == "copy":
            builder.copy(1, called, start, start + length, 64)
        else:
            builder.call("cudaDeviceSynchronize", called, called + length, tid=tid)
    selection = select(builder.read())
    for path in critical_paths(selection):
        assert sum(piece.time_ns for piece in path.pieces) == path.length_ns
        on_path, at = Counter[object](), 0
        for piece in path.pieces:
            assert piece.begin_ns == at
            at += piece.time_ns
            on_path[piece.part] += piece.time_ns
        assert path.gains_ns.keys() == on_path.keys()
        assert all(0 <= gain <= on_path[part] <= path.in_step_ns[part] for part, gain in path.gains_ns.items())


def test_the_capture_is_bound_by_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode steps evenly spread, the first and the last among them: kernels and gaps, nothing of the host."""
    monkeypatch.setattr(critical_path, "MOST_STEPS", 8)
    selection = select(read_trace(CAPTURE))
    paths = critical_paths(selection)
    assert [path.window.step for path in paths] == [1, 19, 37, 55, 73, 91, 109, 127]
    assert [path.length_ns for path in paths[:-1]] == selection.figures.step_ns[:-1:18].tolist()
    assert paths[-1].length_ns == selection.figures.span_ns[-1] - 2880  # its first copy comes before its first kernel
    assert all(path.time_by_where()["host"] == 0 for path in paths)
    assert all(sum(piece.time_ns for piece in path.pieces) == path.length_ns for path in paths)


def test_a_step_beyond_all_measure_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to do."""
    monkeypatch.setattr(critical_path, "MOST_PIECES", 100)
    with pytest.raises(UsageError, match="more than 100: choose a shorter one with --step"):
        critical_paths(select(read_trace(CAPTURE)))


def test_operators_have_no_path() -> None:
    """On the CPU nothing is launched, so that nothing can be followed."""
    assert not critical_paths(select(read_trace(FIXTURES / "cpu-tiny.torch-2.13.json.gz")))
