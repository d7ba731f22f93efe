"""Layers of models of many makes, in the order in which published traces show their kernels: right, or left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from test_layers import cautions_of, layers_of

from perfgate.trace.kernel_table import NONE

NORM, ROPE, WRITE = "add_rmsnorm_quant_kernel", "rotary_embedding_kernel", "store_kvcache"
CIJK, NVJET, SPLIT = "Cijk_Alik_Bljk_BBS_BH", "nvjet_sm100_tst_64x16", "cublasLt::splitKreduce_kernel"
COPY, FILL = "elementwise_kernel<direct_copy_kernel_cuda>", "vectorized_elementwise_kernel<FillFunctor>"
ALLREDUCE = "multimem_all_reduce_kernel"

MI300X = [
    NORM, CIJK + "_qkv", COPY, NORM, COPY, NORM, ROPE, WRITE, "paged_attention_ll4mi_QKV_mfma16_kernel",
    "paged_attention_ll4mi_reduce_kernel", CIJK + "_o", NORM, CIJK + "_gu", "act_and_mul_kernel", CIJK + "_down",
]  # fmt: skip
"""SGLang, Qwen3-8B on MI300X: norms of query and key."""

TRITON_MOE = [
    "_topk_forward", "_sum_bitmatrix_rows", "_combined_routing_memset", "_combined_routing_compute",
    "_matmul_ogs_NNT_swiglu", "_matmul_ogs_NNT", "_finalize_matmul_scatter_bf16",
]  # fmt: skip


def gpt_oss(attention: list[str], *, cast: bool = True) -> list[str]:
    """vLLM, gpt-oss-20b on MI300X; the first layer casts nothing."""
    casts = ["triton_poi_fused__to_copy_1"] if cast else []
    mixing = ["Rmsnorm2dFwd", CIJK + "_qkv", *casts, ROPE, "reshape_and_cache_flash_kernel", *attention, CIJK + "_o"]
    return [*mixing, "Rmsnorm2dFwd", CIJK + "_router", "triton_poi_fused_constant_pad_nd_moe_forward_0", *TRITON_MOE]


WINDOW, WHOLE = ["kernel_unified_attention_2d"], ["kernel_unified_attention_3d", "reduce_segments"]

TENSOR_PARALLEL = [
    "fused_add_rms_norm_kernel", NVJET + "_qkv", ROPE, COPY, "scaled_fp8_quant_kernel_strided",
    "reshape_and_cache_flash_kernel", "fmhaSm100aKernel_QkvE4m3", NVJET + "_o", ALLREDUCE, "fused_add_rms_norm_kernel",
    NVJET + "_router", FILL, COPY, "quantize_with_block_size", "moe::dev::routing::routingIndicesHistogramKernel",
    "bmm_MxE4m3_MxE2m1MxE4m3", "bmm_Bfloat16_MxE2m1MxE4m3", "moe::dev::finalize::finalizeKernelVecLoad", ALLREDUCE,
]  # fmt: skip
"""vLLM, gpt-oss-120b on two B200: collectives after attention and experts."""

TRTLLM = [
    "flashinfer::norm::FusedAddRMSNormKernel", "nvjet_qkv", SPLIT, "tensorrt_llm::kernels::fusedQKNormRopeKernel",
    "tensorrt_llm::kernels::applyBiasRopeUpdateKVCacheV2", "kernel_mha", "nvjet_o", SPLIT,
    "flashinfer::norm::FusedAddRMSNormKernel", "nvjet_gu", SPLIT, "silu_and_mul_kernel", "nvjet_down", SPLIT,
]  # fmt: skip
"""TensorRT-LLM, Qwen3-32B on H100."""

LATENT = [
    "RMSNormKernel", "nvjet_qkv_a", SPLIT, "RMSNormKernel", "RMSNormKernel", "nvjet_q_b", "applyMLARopeAndAssignQKV",
    "fmhaSm100fKernel_QkvE4m3", "nvjet_v", "quantize_with_block_size", "nvjet_o", "userbuffers_fp16_sum_rmsnorm",
    "userbuffers_fp16_sum_inplace_res_allgather",
]  # fmt: skip
DENSE_MLP = ["nvjet_gu", "silu_and_mul", "nvjet_down", "userbuffers_rmsnorm"]
EXPERTS = [
    "nvjet_router", SPLIT, "quantize_with_block_size", "routingMainKernel", "routingIndicesClusterKernel", "bmm_E2m1",
    "bmm_Bfloat16_E2m1", "quantize_with_block_size", "nvjet_shared", "silu_and_mul", "nvjet_shared_down",
    "moefinalize_allreduce_fusion_kernel_oneshot_lamport",
]  # fmt: skip
"""TensorRT-LLM, DeepSeek-R1 on B200: three dense layers, then 58 with experts."""

ATOM = [
    "local_device_load_rmsnorm", "bf16gemm_fp32bf16_tn_32x64_splitk", "add_rmsnorm_quant_kernel",
    "bf16gemm_fp32bf16_tn_64x64_splitk", "batched_gemm_a8w8_q", "fuse_qk_rope_concat_and_cache_mla_per_head",
    "mla_a8w8_qh16_qseqlen1_gqaratio16", "kn_mla_reduce_v1", "batched_gemm_a8w8_v", "bf16gemm_fp32bf16_tn_o",
    "reduce_scatter_cross_device_store", "local_device_load_rmsnorm", "bf16gemm_fp32bf16_tn_router",
    "grouped_topk_opt_sort", "ck_tile::MoeSortingKernel", "ck::kernel_moe_mxgemm_2lds", "act_and_mul_kernel",
    "ck::kernel_moe_mxgemm_2lds", "reduce_scatter_cross_device_store",
]  # fmt: skip
"""ATOM, DeepSeek-R1 on MI355X."""

MOE_TAIL = ["FusedAddRMSNormKernel", NVJET + "_router", "routingIndicesDynBlockKernel", "NVFP4QuantizeLinearKernel",
            "bmm_E2m1", "bmm_Bfloat16_E2m1", "finalize::finalizeKernel_moe"]  # fmt: skip
LINEAR = [
    "FusedAddRMSNormKernel", NVJET + "_in", SPLIT, "fused_qkvzba_split_reshape_cat_contiguous_kernel",
    "_causal_conv1d_update_kernel", "fused_sigmoid_gating_delta_rule_update_kernel", "_layer_norm_fwd_1pass_kernel",
    NVJET + "_out", *MOE_TAIL,
]  # fmt: skip
FULL = [
    "FusedAddRMSNormKernel", NVJET + "_qkv", SPLIT, "_fused_qk_rmsnorm_rope_gate_kernel", "reshape_and_cache_flash",
    "fmhaSm100fKernel_QkvE4m3", "_fused_sigmoid_mul_kernel", NVJET + "_o", *MOE_TAIL,
]  # fmt: skip
"""SGLang, Qwen3.5 on B200: three layers with a gated delta rule, then one with attention."""

MAMBA = ["_layer_norm_fwd_1pass_kernel", "ampere_gemm_in", "causal_conv1d_update_kernel",
         "_selective_scan_update_kernel", "_layer_norm_fwd_1pass_kernel", "ampere_gemm_out"]  # fmt: skip
ATTENTION_ONLY = ["rms_norm_kernel", "gemm_qkv", ROPE, "reshape_and_cache_flash", "flash::fwd", "gemm_o"]
MLP_ONLY = ["rms_norm_kernel", "gemm_up", "relu2_kernel", "gemm_down"]
PARALLEL = ["rms_norm_kernel", "gemm_in", "causal_conv1d_update_kernel", "_selective_scan_update_kernel", "gemm_out",
            "gemm_qkv", ROPE, "reshape_and_cache_flash", "flash::fwd", "gemm_o", *MLP_ONLY]  # fmt: skip

LOCAL = [name.replace("reshape_and_cache", "reshape_and_cache<256>") for name in [*ATTENTION_ONLY, *DENSE_MLP]]
GLOBAL = [name.replace("reshape_and_cache", "reshape_and_cache<512>") for name in [*ATTENTION_ONLY, *DENSE_MLP]]
"""Layers whose heads differ in size, so that templates write the cache."""
TWICE = [*ATTENTION_ONLY[:4], "reshape_and_cache_flash", *ATTENTION_ONLY[4:], *DENSE_MLP]
"""Keys and values are written one after the other."""

HEAD = ["_prepare_inputs_kernel", "indexSelectSmallIndex"]
SUMMED = [*HEAD, ALLREDUCE]
TAIL = ["final_rms_norm_kernel", COPY, "nvjet_lm_head", "_gumbel_sample_kernel"]

MODELS = {
    "dense, MI300X": (HEAD, [MI300X] * 36, TAIL),
    "gpt-oss, MI300X": (
        HEAD, [gpt_oss(WINDOW, cast=False), *[gpt_oss(WHOLE), gpt_oss(WINDOW)] * 11, gpt_oss(WHOLE)], TAIL,
    ),
    "gpt-oss, two B200": (SUMMED, [TENSOR_PARALLEL] * 36, [*TAIL[:3], "ncclDevKernel_AllGather", TAIL[3]]),
    "dense, TensorRT-LLM": (HEAD, [TRTLLM] * 64, TAIL),
    "latent attention, TensorRT-LLM": (HEAD, [LATENT + DENSE_MLP] * 3 + [LATENT + EXPERTS] * 58, TAIL),
    "latent attention, MI355X": (HEAD, [ATOM] * 58, TAIL),
    "hybrid of delta rule and attention": (HEAD, [LINEAR, LINEAR, LINEAR, FULL] * 15, TAIL),
    "hybrid, attention first": (HEAD, [FULL, LINEAR, LINEAR, LINEAR] * 12, TAIL),
    "state space": (HEAD, [MAMBA] * 48, TAIL),
    "attention beside a state in each layer": (HEAD, [PARALLEL] * 24, TAIL),
    "two sizes of heads by turns": (HEAD, [LOCAL, GLOBAL] * 21, TAIL),
    "two sizes of heads": (HEAD, [LOCAL, LOCAL, LOCAL, LOCAL, LOCAL, GLOBAL] * 8, TAIL),
    "keys and values apart": (HEAD, [TWICE] * 32, TAIL),
    "delta rule before a dense MLP": (HEAD, [LINEAR[:8] + MLP_ONLY] * 24, TAIL),
}  # fmt: skip


@pytest.mark.parametrize(("head", "blocks", "tail"), MODELS.values(), ids=MODELS)
def test_layers_of_a_model(head: list[str], blocks: list[list[str]], tail: list[str]) -> None:
    """Each layer is its own kernels and no other's; a collective that ends one may be counted to either side."""
    sequence = [*head, *(name for block in blocks for name in block), *tail]
    expected = [NONE] * len(head) + [n for n, block in enumerate(blocks) for _ in block] + [NONE] * len(tail)
    layer, _ = layers_of(sequence)
    wrong = [(row, sequence[row]) for row, (a, b) in enumerate(zip(layer, expected, strict=True)) if a != b]
    assert wrong == []


def test_attention_in_a_hybrid_has_its_places() -> None:
    """Layers in a dense layer's order have places among others that have none."""
    block = [*LINEAR[:8], *MLP_ONLY]
    full = [*FULL[:6], FULL[7], "rms_norm_kernel", "gemm_up", "silu_and_mul", "gemm_down"]
    sequence = [*HEAD, *[*block * 3, *full] * 4, *TAIL]
    _, place = layers_of(sequence)
    assert [place.count(word) for word in ("qkv", "out", "gate-up", "down", "lm-head")] == [8, 4, 4, 4, 1]


@pytest.mark.parametrize(
    "blocks",
    [
        [MAMBA, MLP_ONLY, MAMBA, MLP_ONLY, MAMBA, ATTENTION_ONLY, MLP_ONLY] * 4,
        [LINEAR, FULL] * 12,
        [LINEAR, LINEAR, LINEAR, FULL],
        [FULL, FULL, LINEAR, FULL],
    ],
    ids=["MLPs as layers of their own", "two sorts by turns", "one with attention", "one with a state"],
)
def test_layers_that_the_sequence_does_not_show_are_left_out(blocks: Sequence[list[str]]) -> None:
    """A number that may be wrong is worse than none, and a caution says that there is none."""
    sequence = [*HEAD, *(name for block in blocks for name in block), *TAIL]
    layer, place = layers_of(sequence)
    assert set(layer) == {NONE}
    assert not any(place)
    assert any("kernels that run once a layer are in none" in text for text in cautions_of(sequence))


@pytest.mark.parametrize(
    ("sequence", "why"),
    [
        (
            [*ATTENTION_ONLY[:5], *MLP_ONLY] * 12 + ["flash::flash_bwd_kernel", *MLP_ONLY] * 12,
            "they train, which runs each layer a second time in reverse order",
        ),
        (
            ["convolve_a", "relu", "convolve_a", "relu", "pool", "convolve_a", "gemm_fc"],
            "the sequence of their kernels does not repeat as layers do",
        ),
    ],
    ids=["training", "a kernel repeats, no layer"],
)
def test_repetition_that_is_no_layer(sequence: list[str], why: str) -> None:
    """Where layers run backwards too, or where only a kernel comes again, nothing is numbered, which is said."""
    layer, place = layers_of([*HEAD, *sequence])
    assert set(layer) == {NONE}
    assert not any(place)
    assert cautions_of(sequence) == [f"layers of these steps are left out: {why}"]


@pytest.mark.parametrize("where", ["before", "behind", "both"])
def test_a_draft_models_layers_are_left_out(where: str) -> None:
    """The model is what has most layers between two samplers, whether its draft runs before it or behind it."""
    draft = [*HEAD, "nvjet_fc", *MI300X, *TAIL]
    model = [*HEAD, *MI300X * 36, *TAIL]
    sequence = [*(draft * 3 if where != "behind" else []), *model, *(draft if where != "before" else [])]
    layer, place = layers_of(sequence)
    begin = len(draft) * 3 * (where != "behind") + len(HEAD)
    assert layer[begin : begin + 36 * len(MI300X)] == np.repeat(np.arange(36), len(MI300X)).tolist()
    assert layer.count(NONE) == len(sequence) - 36 * len(MI300X)
    assert [place.count(word) for word in ("qkv", "out", "gate-up", "down", "lm-head")] == [36, 36, 36, 36, 1]
