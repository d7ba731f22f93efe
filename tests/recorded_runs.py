"""Runs recorded on an H200, cut to eight iterations of forty steps a trial, and one on a CPU: fixtures/README.md."""

from __future__ import annotations

import functools
import gzip
import json
from pathlib import Path
from typing import Any

from perfgate.judge.cell_verdict import judge
from perfgate.machine.versioned_json import validated
from perfgate.metrics.trial import Iteration, Trial
from perfgate.record.run_record import Record, Run
from perfgate.report.run_page import MeasuredRun
from perfgate.trace.decode_step import DecodeSteps, KernelKey

FIXTURES = Path(__file__).parent / "fixtures"
ON_GPU = ("pass", "regressed", "states")
"""A build against itself; a head that copies from host memory in each step; a small plant on a GPU with two states."""
FP32_LOGITS = "fp32-logits"
"""Logits in float32 on the CPU, measured."""
RANKS = "ranks"
"""Two ranks whose head reduces by NCCL; traced, the base waits for its host."""
RUNS = (*ON_GPU, FP32_LOGITS, RANKS)


@functools.cache
def recorded(name: str) -> MeasuredRun:
    """One of :data:`RUNS`, judged."""
    kept = _kept(name)
    return _judged(_run(kept), [_record(kept)])


@functools.cache
def recorded_together() -> MeasuredRun:
    """All of them as the three cells of one run."""
    all_kept = [_kept(name) for name in ON_GPU]
    run = _run(all_kept[0])
    cells, records = [], []
    for name, kept in zip(ON_GPU, all_kept, strict=True):
        record = _record(kept)
        cell = record.cell.model_copy(update={"cell_id": name, "name": name})
        records.append(record.model_copy(update={"cell": cell}))
        cells.append(cell)
    plan = run.plan.model_copy(update={"cells": tuple(cells)})
    return _judged(run.model_copy(update={"plan": plan}), records)


def _run(kept: dict[str, Any]) -> Run:
    return validated(Run, kept["run"], "run")


def _record(kept: dict[str, Any]) -> Record:
    (one,) = kept["records"]
    return validated(Record, one, "record")


def _judged(run: Run, records: list[Record]) -> MeasuredRun:
    by_cell = {record.cell.cell_id: record for record in records}
    return MeasuredRun(judge(run, by_cell), run, by_cell)


def _kept(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(gzip.decompress((FIXTURES / f"page-{name}.json.gz").read_bytes()))
    return content


@functools.cache
def fp32_logits_worked_out() -> MeasuredRun:
    """The recorded base against itself with logits in float32: worked out, not measured.

    The projection to the vocabulary reads weights of twice the bytes, so its kernel takes twice as long, and has
    another name; a cast comes before it. Decode steps of the head are longer by just that.
    """
    kept = _kept("regressed")
    record = _record(kept)
    traced = next(trial for trial in record.trials if trial.kind == "traced" and trial.subject == "base")
    decode = _in_float32(traced.decode) if traced.decode else None
    longer_ns = LM_HEAD_NS + CAST_NS
    trials: list[Trial] = []
    for trial in (one for one in record.trials if one.subject == "base" and one.pair is not None):
        pair = [trial, trial.model_copy(update={"subject": "head", "iterations": _longer(trial.iterations, longer_ns)})]
        if trial.kind == "traced":
            pair[1] = pair[1].model_copy(update={"decode": decode})
        trials += (one.model_copy(update={"index": len(trials) + n}) for n, one in enumerate(pair))
    base = record.subjects["base"]
    subjects = {"base": base, "head": base.model_copy(update={"args": {"hf_overrides": {"head_dtype": "float32"}}})}
    run = _run(kept).model_copy(update={"name": "worked-out", "subjects": subjects})
    return _judged(run, [record.model_copy(update={"trials": tuple(trials), "subjects": subjects})])


LM_HEAD_NS, CAST_NS = 248_584, 2_048
"""Of a step: the projection to the vocabulary as recorded, and a cast of what goes into it."""


def _longer(iterations: tuple[Iteration, ...], step_ns: int) -> tuple[Iteration, ...]:
    return tuple(
        one.model_copy(
            update={
                "itl_ns": tuple(ns + step_ns for ns in one.itl_ns),
                "ttft_ns": tuple(ns + step_ns for ns in one.ttft_ns),
                "e2e_ns": tuple(ns + step_ns * (len(one.itl_ns) + 1) for ns in one.e2e_ns),
                "elapsed_ns": one.elapsed_ns + step_ns * (len(one.itl_ns) + 1),
            }
        )
        for one in iterations
    )


def _in_float32(steps: DecodeSteps) -> DecodeSteps:
    """Decode steps whose projection to the vocabulary is another kernel, twice as long, behind a cast."""
    at = next(n for n, key in enumerate(steps.keys) if key.place == "lm-head")
    cast, count = len(steps.keys), steps.key_launches[at]
    product = steps.keys[at].model_copy(update={"name": "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8"})
    keys = [*steps.keys, KernelKey(role="elementwise", name="at::native::float32_copy_kernel_cuda")]
    keys[at] = product
    times = [*steps.key_ns, CAST_NS * count]
    times[at] += LM_HEAD_NS * count
    patterns = []
    for one in steps.patterns:
        place = one.kernels.index(at)
        outside = tuple(n + (n >= place) for n in one.outside_graphs)
        patterns.append(one.model_copy(update={
            "kernels": (*one.kernels[:place], cast, *one.kernels[place:]), "outside_graphs": (*outside,),
        }))  # fmt: skip
    more = LM_HEAD_NS + CAST_NS
    columns = {name: tuple(ns and ns + more for ns in getattr(steps, name)) for name in
               ("step_ns", "span_ns", "busy_ns", "kernel_ns")}  # fmt: skip
    roles = {"gemm": LM_HEAD_NS, "elementwise": CAST_NS}
    role_ns = {role: tuple(ns + roles.get(role, 0) for ns in own) for role, own in steps.role_ns.items()}
    return steps.model_copy(update={
        "keys": tuple(keys), "key_ns": tuple(times), "key_launches": (*steps.key_launches, count),
        "patterns": tuple(patterns), "role_ns": role_ns, **columns,
    })  # fmt: skip
