"""Decode steps made by hand: what a Llama's step runs, and the ways in which a build may change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hand_made import BOTH
from hand_made import trial as taken

from perfgate.metrics.trial import Trial
from perfgate.trace.decode_step import STEADY, DecodeSteps, KernelKey, Pattern, pool, tick_of

LAYERS = 32


@dataclass(frozen=True)
class Launch:
    """One kernel of a step."""

    role: str
    name: str
    place: str = ""
    graph: bool = True


@dataclass(frozen=True)
class StepKind:
    """Steps that run the same.

    Args:
        launches: The kernels in order.
        copies: Copies by kind.
        steps: How many steps there are.
    """

    launches: tuple[Launch, ...]
    copies: dict[str, int] = field(default_factory=lambda: {"h2d": 2, "d2h": 2})
    steps: int = 100

    def with_launches(self, launches: Sequence[Launch]) -> StepKind:
        """The same with other kernels."""
        return replace(self, launches=tuple(launches))


LAYER = (
    Launch("norm", "vllm::fused_add_rms_norm_kernel<c10::BFloat16,8,1>"),
    Launch("gemm", "nvjet_sm90_64x8", "qkv"),
    Launch("rope", "vllm::rotary_embedding_kernel<c10::BFloat16,1>"),
    Launch("kv-write", "vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>"),
    Launch("attention", "cutlass::device_kernel<flash::FlashAttnFwdSm90<128>>"),
    Launch("attention", "cutlass::device_kernel<flash::FlashAttnFwdCombine<8>>"),
    Launch("gemm", "nvjet_sm90_64x8_splitK", "out"),
    Launch("norm", "vllm::fused_add_rms_norm_kernel<c10::BFloat16,8,1>"),
    Launch("gemm", "nvjet_sm90_128x8", "gate-up"),
    Launch("activation", "vllm::act_and_mul_kernel<c10::BFloat16>"),
    Launch("gemm", "nvjet_sm90_128x8_splitK", "down"),
)
FILL = "at::native::vectorized_elementwise_kernel<4,at::native::FillFunctor<int>>"
ADD = "at::native::vectorized_elementwise_kernel<4,at::native::CUDAFunctor_add<float>>"
BEFORE = (
    Launch("prepare", "_prepare_pos_seq_lens_kernel", graph=False),
    Launch("elementwise", FILL, graph=False),
)
BEHIND = (
    Launch("gemm", "nvjet_sm90_256x8", "lm-head", graph=False),
    Launch("sampler", "_gumbel_sample_kernel", graph=False),
)

USUAL = StepKind((*BEFORE, *LAYER * LAYERS, *BEHIND))
RARE = replace(
    USUAL,
    launches=(Launch("prepare", "_gather_block_tables_kernel", graph=False), *USUAL.launches),
    copies={"h2d": 3, "d2h": 2},
    steps=7,
)
"""Every sixteenth step or so allocates a block of the KV cache."""


def trial(*kinds: StepKind, **changes: Any) -> DecodeSteps:
    """A traced trial with these steps, the usual two kinds where none is named; each kernel takes 1 us."""
    return pool([_steps(kind) for kind in kinds or (USUAL, RARE)]).model_copy(update=changes)


def _steps(kind: StepKind) -> DecodeSteps:
    keys = sorted({(one.role, one.place, one.name) for one in kind.launches})
    number = {key: n for n, key in enumerate(keys)}
    kernels = [number[one.role, one.place, one.name] for one in kind.launches]
    roles = sorted({one.role for one in kind.launches})
    time_ns = 1000 * len(kernels)
    column = (time_ns,) * kind.steps
    launches = tuple(kernels.count(n) * kind.steps for n in range(len(keys)))
    pattern = Pattern(
        steps=kind.steps,
        kernels=tuple(kernels),
        outside_graphs=tuple(n for n, one in enumerate(kind.launches) if not one.graph),
        copies=kind.copies,
    )
    return DecodeSteps(
        source="by hand",
        keys=tuple(KernelKey(role=role, place=place, name=name) for role, place, name in keys),
        patterns=(pattern,),
        step_ns=column,
        span_ns=column,
        busy_ns=column,
        kernel_ns=column,
        slack_ns=column,
        work_ns=column,
        call_ns=column,
        gap_ns={},
        role_ns={r: (1000 * sum(one.role == r for one in kind.launches),) * kind.steps for r in roles},
        key_launches=launches,
        key_ns=tuple(1000 * count for count in launches),
    )


def eager(kind: StepKind) -> StepKind:
    """No graphs: eager mode, or a batch that was not captured."""
    return kind.with_launches([replace(one, graph=False) for one in kind.launches])


def other_attention(kind: StepKind) -> StepKind:
    """Another attention backend, with as many kernels."""
    names = {
        "FwdSm90": "flashinfer::BatchDecodeWithPagedKVCacheKernel<1>",
        "Combine": "flashinfer::MergeStatesKernel<1>",
    }
    return kind.with_launches(
        [
            replace(one, name=next((new for old, new in names.items() if old in one.name), one.name))
            for one in kind.launches
        ]
    )


def extra_kernel(kind: StepKind, every: int = 1) -> StepKind:
    """One more kernel behind the attention of each layer, or of every second, fourth..."""
    launches, layer = [], 0
    for one in kind.launches:
        launches.append(one)
        if "Combine" in one.name:
            layer += 1
            if layer % every == 0:
                launches.append(Launch("elementwise", ADD))
    return kind.with_launches(launches)


def pageable_copy(kind: StepKind) -> StepKind:
    """A copy from pageable memory in each step."""
    return replace(kind, copies={**kind.copies, "h2d-pageable": 1})


Kernel = tuple[str, str, int]
"""A kernel by role, name and nanoseconds."""


def decode(
    kernels: Sequence[Kernel], *, steps: int = 8, slack_ns: int = 4_000_000, work_ns: int = 2_300_000, **gaps: int
) -> DecodeSteps:
    """Equal decode steps of these kernels, in order; ``gaps`` are idle times, ``between`` that to the next step.

    ``copies`` keeps the device busy without a kernel.
    """
    between, copies = gaps.pop("between", 0), gaps.pop("copies", 0)
    keys = [*dict.fromkeys(KernelKey(role=role, name=name) for role, name, _ in kernels)]
    order = [keys.index(KernelKey(role=role, name=name)) for role, name, _ in kernels]
    kernel_ns = sum(ns for _, _, ns in kernels)
    span_ns = kernel_ns + copies + sum(gaps.values())
    by_role = {key.role: sum(ns for role, _, ns in kernels if role == key.role) for key in keys}
    by_key = [sum(ns for (_, _, ns), n in zip(kernels, order, strict=True) if n == key) for key in range(len(keys))]
    return DecodeSteps(
        source="hand-made",
        keys=tuple(keys),
        patterns=(Pattern(steps=steps, kernels=tuple(order)),),
        step_ns=(*[span_ns + between] * (steps - 1), None),
        span_ns=(span_ns,) * steps,
        busy_ns=(kernel_ns + copies,) * steps,
        kernel_ns=(kernel_ns,) * steps,
        slack_ns=(None, *[slack_ns] * (steps - 1)),
        work_ns=(work_ns,) * steps,
        held=STEADY,
        call_ns=(0,) * steps,
        gap_ns={gap: (ns,) * steps for gap, ns in gaps.items()},
        role_ns={role: (ns,) * steps for role, ns in by_role.items()},
        key_launches=tuple(order.count(key) * steps for key in range(len(keys))),
        key_ns=tuple(ns * steps for ns in by_key),
        tick_ns=tick_of(np.array([ns for _, _, ns in kernels], np.int64)),
    )


def traces(base: Sequence[DecodeSteps], head: Sequence[DecodeSteps], first: int = 0) -> tuple[Trial, ...]:
    """Pairs of traced trials with these steps, their indices from ``first``."""
    return tuple(
        taken(first + 2 * n + place, n, side, kind="traced", decode=steps)
        for n, pair in enumerate(zip(base, head, strict=True))
        for place, (side, steps) in enumerate(zip(BOTH, pair, strict=True))
    )
