"""What a record keeps of traced decode steps: patterns, times by step and role, and nothing lost on the way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from decode_steps import RARE, USUAL, eager, pageable_copy, trial
from nsys_builder import ExportBuilder

from perfgate.errors import NotMeasuredError
from perfgate.trace.decode_step import DecodeSteps, pool, summarise
from perfgate.trace.idle_gaps import GAPS
from perfgate.trace.inventory import launch_difference
from perfgate.trace.kernel_table import STEP_KINDS
from perfgate.trace.trace_file import read_trace

FIXTURES = Path(__file__).parents[1] / "fixtures"


def test_the_capture_has_two_patterns() -> None:
    """438 kernels in 119 steps; in 8 one more kernel and one more copy to the device; 419 of them from the graph."""
    found = summarise(read_trace(FIXTURES / "h200-llama-8b-decode.sqlite.gz"))
    shown = [(one.steps, len(one.kernels), one.graph_launches, one.copies) for one in found.patterns]
    assert shown == [
        (119, 438, 419, {"h2d": 2, "d2h": 2, "d2d": 2}),
        (8, 439, 419, {"h2d": 3, "d2h": 2, "d2d": 2}),
    ]
    usual, rare = (found.role_launches(one) for one in found.patterns)
    assert (usual["gemm"], usual["attention"], usual["kv-write"]) == (129, 65, 32)
    assert rare - usual == {"prepare": 1}
    assert found.graph_coverage == pytest.approx(419 * 127 / (119 * 438 + 8 * 439))
    places = [found.keys[key].place for key in found.patterns[0].kernels if found.keys[key].role == "gemm"]
    assert places[:4] == ["qkv", "out", "gate-up", "down"]
    assert places[-1] == "lm-head"


def test_launch_shapes_and_waits_are_kept() -> None:
    """The last gemm has one grid in every step; every launch has a shape; the host waits once a step."""
    found = summarise(read_trace(FIXTURES / "h200-llama-8b-decode.sqlite.gz"))

    (last,) = (n for n, key in enumerate(found.keys) if key.place == "lm-head")
    assert len(found.key_shapes[last]) == 1
    assert [sum(shapes.values()) for shapes in found.key_shapes] == list(found.key_launches)
    assert found.waits is not None
    assert round(found.waits / found.steps, 1) == 1.0
    assert launch_difference(found, pool([found, found])).waits == 0
    assert not launch_difference(found, pool([found, found]))


def test_copies_and_memsets_are_kept_with_their_times() -> None:
    """Each step of the capture sets 4 bytes once; one copy of two within the device is in the graph; none is lost."""
    trace = read_trace(FIXTURES / "h200-llama-8b-decode.sqlite.gz")
    found = summarise(trace)

    assert found.moves is not None
    totals = {
        kind: tuple(sum(one.steps * getattr(one, what) for one in own) for what in ("launches", "bytes"))
        for kind, own in found.moves.items()
    }
    assert totals == {
        "h2d": (2 * 127 + 8, 12_956),
        "d2h": (2 * 127, 12_192),
        "d2d": (2 * 127, 127 * (8192 + 100)),
        "memset": (127, 4 * 127),
    }
    assert {kind: size for kind, (_, size) in totals.items() if kind != "memset"} == found.copy_bytes
    decode = [step for step, kind in enumerate(trace.steps.kind.tolist()) if STEP_KINDS[kind] == "decode"]
    assert sum(one.ns for own in found.moves.values() for one in own) == sum(
        int(events.duration_ns[np.isin(events.step, decode)].sum()) for events in (trace.copies, trace.memsets)
    )


def test_more_copies_in_the_graph_of_the_capture_are_priced() -> None:
    """Fifty times those within the device: what is launched is the same, and they cost what they took."""
    trace = read_trace(FIXTURES / "h200-llama-8b-decode.sqlite.gz")
    again = np.where(trace.copies.graph, 50, 1)
    base, head = (
        summarise(trace),
        summarise(replace(trace, copies=trace.copies.take(np.repeat(np.arange(len(again)), again)))),
    )

    found = launch_difference(base, head)

    before, after = (sum(one.ns for one in (steps.moves or {})["d2d"]) for steps in (base, head))
    assert found.kernels == ()
    assert found.cost_s * 1e9 * 127 == pytest.approx(after - before)
    assert found.cost_s > 60e-6
    assert [line.partition(";")[0] for line in found.lines] == ["+ copy d2d: 2 -> 51 a step"]


def test_an_added_memset_of_the_capture_is_priced() -> None:
    """It is in no pattern, and the host's calls do not show one in a graph."""
    trace = read_trace(FIXTURES / "h200-llama-8b-decode.sqlite.gz")
    base = summarise(trace)
    head = summarise(replace(trace, memsets=trace.memsets.take(np.repeat(np.arange(len(trace.memsets)), 2))))

    found = launch_difference(base, head)

    assert head.patterns == base.patterns
    assert found.headline.endswith("kernels, copies and memsets: 1 more memsets a step")
    assert 0.5e-6 < found.cost_s < 1.5e-6


def test_steps_without_copies_keep_that_there_are_none() -> None:
    """An operator on the CPU copies nothing; steps of before copies were kept say nothing, and so does their file."""
    found = summarise(read_trace(FIXTURES / "cpu-tiny.torch-2.13.json.gz"))

    assert found.moves == {}
    assert "moves" not in json.loads(trial(USUAL).model_dump_json())
    assert pool([found, found]).moves == {}
    assert pool([found, found.model_copy(update={"moves": None})]).moves is None


@pytest.mark.parametrize(
    ("file", "steps"), [("h200-llama-8b-decode.sqlite.gz", 127), ("cpu-tiny.torch-2.13.json.gz", 7)]
)
def test_times_and_launches_add_up(file: str, steps: int) -> None:
    """Kernel time is the same by step, by role and by key; idle and busy make the span; nothing changes in JSON."""
    found = summarise(read_trace(FIXTURES / file))
    assert found.steps == sum(one.steps for one in found.patterns) == steps
    assert [sum(column) for column in zip(*found.role_ns.values(), strict=True)] == list(found.kernel_ns)
    assert sum(found.key_ns) == sum(found.kernel_ns)
    assert sum(found.key_launches) == sum(one.steps * len(one.kernels) for one in found.patterns)
    assert tuple(found.gap_ns) == GAPS
    idle = [sum(column) for column in zip(*found.gap_ns.values(), strict=True)]
    assert [busy + gap for busy, gap in zip(found.busy_ns, idle, strict=True)] == list(found.span_ns)
    assert found.step_ns[-1] is None
    assert None not in found.step_ns[:-1]
    assert DecodeSteps.model_validate_json(found.model_dump_json()) == found


def test_what_makes_two_steps_alike() -> None:
    """Streams in another order are the same pattern; a kernel outside the graph, or another copy, is another one."""
    builder = ExportBuilder()
    for n, (first, second) in enumerate((("gemm", "rms_norm"), ("rms_norm", "gemm"), ("gemm", "rms_norm"))):
        at = n * 1000
        builder.span(f"perfgate.step.{n}.decode", at, at + 900)
        builder.graph(at + 1, [(first, at + 100, at + 200), (second, at + 150, at + 250)])
    builder.span("perfgate.step.3.decode", 3000, 3900)
    builder.graph(3001, [("gemm", 3100, 3200)])
    builder.launch("rms_norm", 3010, 3150, 3250)
    builder.span("perfgate.step.4.decode", 4000, 4900)
    builder.graph(4001, [("gemm", 4100, 4200), ("rms_norm", 4150, 4250)])
    builder.copy(1, 4010, 4300, 4310, 8, host=0)

    found = summarise(builder.read())

    assert [(one.steps, one.outside_graphs, one.copies) for one in found.patterns] == [
        (3, (), {}),
        (1, (1,), {}),
        (1, (), {"h2d-pageable": 1}),
    ]
    assert [found.keys[key].name for key in found.patterns[0].kernels] == ["gemm", "rms_norm"]
    assert found.copy_bytes == {"h2d-pageable": 8}


def test_only_whole_decode_steps_count_on_each_device() -> None:
    """Prefill, unfinished steps and kernels outside all steps are left out; two devices make two columns entries."""
    builder = ExportBuilder()
    builder.span("perfgate.step.0.prefill", 0, 900)
    builder.launch("gemm", 1, 100, 200)
    builder.span("perfgate.step.1.decode", 1000, 1900)
    builder.launch("gemm", 1001, 1100, 1200, device=0)
    builder.launch("gemm", 1002, 1100, 1250, device=1)
    builder.launch("gemm", 1950, 1960, 1970)
    builder.span("perfgate.step.2.decode", 2000, None)
    builder.launch("gemm", 2001, 2100, 2200)

    found = summarise(builder.read())

    assert found.kernel_ns == (100, 150)
    assert [(one.steps, len(one.kernels)) for one in found.patterns] == [(2, 1)]
    assert "trace-damaged" in [code for code, _ in found.cautions]


def test_iterations_do_not_touch() -> None:
    """The gap between two iterations is no step, and running ahead of a prefill is no slack of a decode step."""
    builder = ExportBuilder()
    kinds = ("prefill", "decode", "decode", "prefill", "decode", "decode")
    for n, kind in enumerate(kinds):
        at = n * 1000 + 100_000 * (n >= 3)
        builder.span(f"perfgate.step.{n}.{kind}", at, at + 900)
        builder.launch("gemm", at + 10, at + 1000, at + 1800)
    found = summarise(builder.read())
    assert found.step_ns == (1000, None, 1000, None)
    assert found.slack_ns == (None, 790, None, 790)
    assert found.work_ns == (900,) * 4


def test_a_trace_without_decode_steps_is_not_measured() -> None:
    """Nothing to summarise is an error with its code, never an empty summary."""
    builder = ExportBuilder()
    builder.span("perfgate.step.0.prefill", 0, 900)
    builder.launch("gemm", 1, 100, 200)
    with pytest.raises(NotMeasuredError, match="steps: 1 prefill") as caught:
        summarise(builder.read())
    assert caught.value.code == "evidence-missing"


def test_trials_pool_into_one() -> None:
    """Patterns of one build add up whatever number its kernels have in a trial; columns follow each other."""
    one, other = trial(USUAL, RARE), trial(USUAL, eager(RARE), pageable_copy(USUAL))
    both = pool([one, other])
    assert [(p.steps, len(p.kernels), p.graph_launches) for p in both.patterns] == [
        (200, 356, 352), (100, 356, 352), (7, 357, 352), (7, 357, 0)
    ]  # fmt: skip
    assert both.steps == one.steps + other.steps == len(both.role_ns["gemm"])
    assert both.role_ns["gemm"] == one.role_ns["gemm"] + other.role_ns["gemm"]
    assert sum(both.key_ns) == sum(one.key_ns) + sum(other.key_ns)
    names = [[steps.keys[key].name for key in steps.patterns[0].kernels] for steps in (one, both)]
    assert names[0] == names[1]
    assert pool([both]) == both


def test_only_what_every_worker_held_was_held() -> None:
    """A trial whose worker held nothing takes that from the pool."""
    known = trial(USUAL, held=("hashes", "addresses", "cores 4,5"))

    assert pool([known, known.model_copy(update={"held": ()}), known]).held == ()
    assert pool([known, trial(USUAL, held=("cores 4,5", "hashes"))]).held == ("hashes", "cores 4,5")
