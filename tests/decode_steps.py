"""Decode steps made by hand: what a Llama's step runs, and the ways in which a build may change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perfgate.trace.decode_step import DecodeSteps, KernelKey, Pattern, pool

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
