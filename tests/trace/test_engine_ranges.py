"""Ranges of engines and of PyTorch's profiler: which begin a step, and what they say that it computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from nsys_builder import ExportBuilder

from perfgate.errors import RecordError
from perfgate.trace.kernel_table import NONE, STEP_KINDS, Trace
from perfgate.trace.nsys import read_nsys
from perfgate.trace.scrub import scrub
from perfgate.trace.steps import Range, find_steps, is_step, kind_of, steps_at


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("execute_context_0(0)_generation_8(8)", "decode"),
        ("execute_8192_context_9(sq8155sk8430sqsq74sqsk76)_generation_0(sq0sk0sqsq0sqsk0)", "prefill"),
        ("step[DECODE bs=32]", "decode"),
        ("step[DECODE bs=32 g=32 g_sq=32 g_sk=4096]", "decode"),
        ("step[TARGET_VERIFY bs=4]", "decode"),
        ("step[EXTEND bs=15 toks=15360]", "prefill"),
        ("step[MIXED bs=2]", "mixed"),
        ("step[IDLE bs=0]", "idle"),
        ("step[A_NEW_MODE bs=2]", "unknown"),
        ("scheduler.run_batch", "unknown"),
        ("[Executor] _forward_step 71: 0 ctx reqs, 8 gen reqs", "decode"),
        ("[Executor] _forward_step 72: 1 ctx reqs, 512 ctx tokens, 8 gen reqs", "mixed"),
        ("[Executor] _forward_step: 2 ctx reqs, 0 gen reqs", "prefill"),
        ("ProfilerStep#5", "unknown"),
    ],
)
def test_names_of_steps(name: str, kind: str) -> None:
    """Each is a step's, and says what it computed, as far as it says anything."""
    assert is_step(name)
    assert kind_of([name]) == kind


@pytest.mark.parametrize("name", ["step[", "step[loss 3/4]", "Optimizer.step#SGD.step", "## forward ##", "layers.5"])
def test_other_names(name: str) -> None:
    """What is called like a step may be something else."""
    assert not is_step(name)


def trace_of(folder: Path, spans: list[tuple[str, int, int]]) -> Trace:
    """Ranges, and a kernel launched every 100 ns from 50 on; read again from a scrubbed copy."""
    builder = ExportBuilder()
    for name, start, end in spans:
        builder.span(name, start, end, registered=True)
    for at in range(50, spans[-1][2] + 200, 100):
        builder.launch("gemm", at, at + 10_000, at + 10_020)
    scrub(builder.write(folder / "export.sqlite"), folder / "copy.sqlite")
    return read_nsys(folder / "copy.sqlite")


def steps_of(trace: Trace) -> list[tuple[int, str, bool]]:
    """Number, kind and whether it is complete."""
    steps = trace.steps
    columns = (steps.index.tolist(), (STEP_KINDS[kind] for kind in steps.kind), steps.complete.tolist())
    return list(zip(*columns, strict=True))


SPANS: dict[str, tuple[list[tuple[str, int, int]], list[tuple[int, str, bool]], list[int]]] = {
    "SGLang: a batch with a draft's passes is one step, to the next one's range, so that the sampler is inside": (
        [("scheduler.run_batch", 0, 180), ("step[EXTEND bs=2 toks=64]", 10, 90), ("step[DRAFT_EXTEND bs=2]", 100, 170),
         ("scheduler.run_batch", 300, 480), ("step[DECODE bs=2]", 310, 330), ("step[TARGET_VERIFY bs=2]", 340, 400),
         ("scheduler.run_batch", 600, 780), ("step[DECODE bs=2]", 610, 700)],
        [(0, "prefill", True), (1, "decode", True), (2, "decode", False)], [0, 0, 0, 1, 1, 1, 2, 2, 2]),
    "SGLang without the scheduler's range: the verification begins a step, and a draft's passes do not": (
        [("step[EXTEND bs=2 toks=64]", 0, 90), ("step[DECODE bs=2]", 100, 130),
         ("step[TARGET_VERIFY bs=2]", 200, 290), ("step[DRAFT_EXTEND_V2 bs=2]", 300, 330),
         ("step[DECODE bs=2]", 340, 380), ("step[TARGET_VERIFY bs=2]", 400, 490)],
        [(0, "prefill", True), (1, "decode", True), (2, "decode", False)], [0, 0, 1, 1, 2, 2, 2]),
    "TensorRT-LLM's executor numbers its steps": (
        [("[Executor] _forward_step 71: 1 ctx reqs, 64 ctx tokens, 0 gen reqs", 0, 90),
         ("[Executor] _forward_step 72: 0 ctx reqs, 0 ctx tokens, 1 gen reqs", 100, 190)],
        [(71, "prefill", True), (72, "decode", False)], [0, 1, 1, 1]),
    "PyTorch's profiler's have an end, and do not say what they computed; what is behind them is in none": (
        [("ProfilerStep#3", 0, 99), ("ProfilerStep#4", 100, 199)],
        [(3, "unknown", True), (4, "unknown", True)], [0, 1, NONE, NONE]),
}  # fmt: skip


@pytest.mark.parametrize(("spans", "steps", "of_kernels"), SPANS.values(), ids=SPANS)
def test_steps_of_engines(
    tmp_path: Path, spans: list[tuple[str, int, int]], steps: list[tuple[int, str, bool]], of_kernels: list[int]
) -> None:
    """Number, kind and completeness of each step, and the step of each kernel."""
    trace = trace_of(tmp_path, spans)
    assert steps_of(trace) == steps
    assert trace.kernels.step.tolist() == of_kernels


@pytest.mark.parametrize(
    ("spans", "numbers", "text"),
    [
        (
            [("ProfilerStep#2", 0, 99), ("ProfilerStep#2", 100, 199)],
            [0, 1],
            "the steps are numbered from 0 in order of time: ProfilerStep#2 is there 2 times",
        ),
        (
            [(f"ProfilerStep#{10**18}", 0, 99), ("ProfilerStep#2", 100, 199)],
            [0, 1],
            f"the steps are numbered from 0 in order of time: ProfilerStep#{10**18}... is too large",
        ),
        (
            [("[Executor] _forward_step 5: 0 ctx reqs, 1 gen reqs", 0, 90),
             ("[Executor] _forward_step: 0 ctx reqs, 1 gen reqs", 100, 190)],
            [0, 1],
            "the steps are numbered from 0 in order of time: some of their ranges have no number",
        ),
        (
            [("ProfilerStep#2", 0, 150), ("ProfilerStep#3", 100, 199)],
            [2, 3],
            (
                "1 of 2 steps begin before an earlier one has ended, such as ProfilerStep#3: what is launched in both "
                "belongs to the later one"
            ),
        ),
        (
            [("perfgate.step.2", 0, 300), ("perfgate.step.3", 100, 150), ("perfgate.step.4", 200, 299)],
            [2, 3, 4],
            (
                "2 of 3 steps begin before an earlier one has ended, such as perfgate.step.3: what is launched in both "
                "belongs to the later one"
            ),
        ),
    ],
)  # fmt: skip
def test_odd_ranges_are_said(spans: list[tuple[str, int, int]], numbers: list[int], text: str, tmp_path: Path) -> None:
    """Numbers that are there twice, too large or missing, and steps that overlap: no step is lost."""
    trace = trace_of(tmp_path, spans)
    assert trace.steps.index.tolist() == numbers
    assert [note.text for note in trace.cautions if "numbered" in note.text or "begin" in note.text] == [text]


def test_a_number_of_our_own_that_is_too_large(tmp_path: Path) -> None:
    """It is refused: perfgate never writes one."""
    with pytest.raises(RecordError, match=r"a number that is too large: perfgate\.step\.1000000000"):
        trace_of(tmp_path, [(f"perfgate.step.{10**18}", 0, 99)])


def test_ranges_of_another_process() -> None:
    """An engine whose workers launch has its loop elsewhere: its steps are theirs, and that is said."""
    builder = ExportBuilder()
    for n in range(2):
        builder.span(f"perfgate.step.{n}.decode", n * 1000, n * 1000 + 900, pid=100)
        for pid in (200, 300):
            builder.launch(f"kernel_of_{pid}", n * 1000 + 10, 5000 + n * 100, 5050 + n * 100, pid=pid)
    trace = builder.read()
    assert trace.processes == (200, 300)
    assert (trace.steps.process.tolist(), trace.steps.index.tolist()) == ([0, 0, 1, 1], [0, 1, 0, 1])
    assert (trace.steps.process[trace.kernels.step] == trace.kernels.process).all()
    assert [note.code for note in trace.cautions] == ["steps-unclear"]


def test_ranges_of_several_other_processes() -> None:
    """Which of them the kernels belong to is not known: they have no steps."""
    builder = ExportBuilder()
    for pid in (100, 101):
        builder.span("perfgate.step.0", 0, 900, pid=pid)
    builder.launch("kernel", 10, 5000, 5050, pid=200)
    assert not len(builder.read().steps)


def test_the_last_process_that_a_column_can_number_has_its_steps() -> None:
    """Numbers of processes have 16 bits: one more than the largest is none of them."""
    last = np.iinfo(np.int16).max
    ranges = [Range(f"perfgate.step.{n}", 10 * n, 10 * n + 9, process) for process in (0, last) for n in range(2)]
    steps, _ = find_steps(ranges, [0, last], "")
    found = steps_at(steps, np.array([0, last, last, last], np.int16), np.array([15, 5, 15, 25]))
    assert found.tolist() == [1, 2, 3, NONE]
