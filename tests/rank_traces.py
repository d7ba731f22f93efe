"""Traces of engines with several ranks, made by hand: each rank is a process with a device of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hand_made import cell, gate, record, run, spread, trial, trials
from nsys_builder import ExportBuilder

from perfgate.judge.cell_verdict import judge
from perfgate.judge.outcome import Outcome
from perfgate.kernels.envelope import learn
from perfgate.metrics.sides import Side
from perfgate.metrics.trial import Trial
from perfgate.trace.decode_step import DecodeSteps
from perfgate.trace.rank_steps import RankSteps, summarise_ranks

REDUCE, SEND = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "ncclDevKernel_SendRecv"
STEP_NS = 100_000
NUMBERED = "perfgate.step.{}.decode"
Told = tuple[DecodeSteps, tuple[RankSteps, ...]]
"""The steps of an engine, and those of each rank."""
Work = tuple[str, int, int]
"""A kernel by name, start after the begin of its step and length."""


def add_rank(
    builder: ExportBuilder, rank: int, steps: Mapping[int, Sequence[Work]], *, name: str = NUMBERED, late_ns: int = 0
) -> None:
    """A rank in a process of its own: steps by number, each with its kernels; those at odd times in a second stream."""
    for number, kernels in steps.items():
        at = number * STEP_NS + late_ns
        builder.span(name.format(number), at, at + STEP_NS - 10_000, pid=100 + rank)
        for kernel, after, length in kernels:
            where = {"pid": 100 + rank, "device": rank, "stream": 7 + after % 2}
            builder.launch(kernel, at + 10, at + after, at + after + length, **where)


def reduced(compute_ns: Sequence[int], transfer_ns: int = 2000) -> list[list[Work]]:
    """One step of each rank: it computes, and then all are in an all-reduce until the last one has brought its part."""
    end = 1000 + max(compute_ns) + transfer_ns
    return [[("nvjet", 1000, own), (REDUCE, 1000 + own, end - 1000 - own)] for own in compute_ns]


def traced_ranks(*ranks: Mapping[int, Sequence[Work]], expected: int = 1, name: str = NUMBERED) -> Told:
    """What ranks of one export did."""
    builder = ExportBuilder()
    for number, steps in enumerate(ranks):
        add_rank(builder, number, steps, name=name)
    return summarise_ranks([builder.read()], expected)


CUSTOM = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, int)"
LAYERS = 4


def step_of(rank: int, reduce: str, transfer_ns: int, late_ns: int) -> list[Work]:
    """One step of one of two ranks, of which the second computes for longer in each layer."""
    at, works = 1000, []
    for _ in range(LAYERS):
        own = 6000 + rank * late_ns
        works += [("nvjet_sm90_64x8", at, own - 2000), ("flash_fwd_kernel", at + own - 2000, 2000)]
        together = at + 6000 + late_ns + transfer_ns
        works.append((reduce, at + own, together - at - own))
        at = together
    return works


def engine(reduce: str = CUSTOM, transfer_ns: int = 2000, late_ns: int = 400) -> Told:
    """Eight decode steps of an engine of two ranks."""
    return traced_ranks(
        *(dict.fromkeys(range(8), step_of(rank, reduce, transfer_ns, late_ns)) for rank in range(2)), expected=2
    )


def other_collective() -> Outcome:
    """An A/B over two ranks in which the head exchanges data by NCCL, against an envelope learnt from the base."""
    base, head = engine(), engine(REDUCE, 2600, 900)
    measured = cell("llama-8b-tp2", [gate("itl_median", "1%", "3%")])
    measured = measured.model_copy(update={"kernels": learn([base[0], base[0]])})
    taken = [*trials(spread(0.05, 0.0002, 6)), *pair(base, head)]
    return judge(run([measured]), {measured.cell_id: record(measured, taken)})


def pair(base: Told, head: Told) -> list[Trial]:
    """A traced pair of engines of several ranks."""
    sides: tuple[tuple[Side, Told], ...] = (("base", base), ("head", head))
    return [
        trial(90 + place, 0, side, kind="traced", decode=every, ranks=ranks)
        for place, (side, (every, ranks)) in enumerate(sides)
    ]
