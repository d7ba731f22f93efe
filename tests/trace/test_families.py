"""Kernel names: readable, comparable across builds and profilers, and given to the right family."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from perfgate.errors import UsageError
from perfgate.scenario.kernel_names import ROLES, UNLISTED, RoleRule
from perfgate.trace.families import (
    SHIPPED,
    classify,
    normalised_name,
    short_name,
    unqualified_name,
)

FLASH3 = (
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<"
    "(int)2, cute::tuple<cute::C<(int)1>, cute::C<(int)1>>>>>>(T1::Params)"
)
FUSED_NORM = (
    "std::enable_if<T2>(int)0&&vllm::_typeConvert<T1>::exists, void>::type "
    "vllm::fused_add_rms_norm_kernel<c10::BFloat16, (int)8, (bool)1>(T1 *, long, T1 *, const T1 *, float, int, int)"
)


BY_NAME = {
    FLASH3: "attention",
    FUSED_NORM: "norm",
    "void cutlass::device_kernel<vllm::cutlass_3x_gemm<cutlass::bfloat16_t>>(T1::Params)": "gemm",
    "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT": "gemm",
    "nvjet_sm100_tst_mma_128x256x64_4_256x128x64_cga2x1x1_2cta_h_bz_TNT": "gemm",
    "ampere_bf16_s16816gemm_bf16_64x64_ldg8_f2f_stages_64x5_tn": "gemm",
    "void gemv2T_kernel_val<int, int, __nv_bfloat16>(cublasGemvParamsEx<T1>)": "gemm",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasLt::cublasSplitKParams<T6>)": "gemm-reduce",
    "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>>(T1 *, int)": "activation",
    "void vllm::rotary_embedding_kernel<c10::BFloat16, 1>(const long *, T1 *)": "rope",
    "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(const T1 *)": "kv-write",
    "void vllm::concat_and_cache_mla_kernel<__nv_bfloat16>(const T1 *)": "kv-write",
    "fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvCausal": "attention",
    "kernel_unified_attention_2d": "attention",
    "fused_moe_kernel": "moe",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "communication",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData *)": "communication",
    "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0": "norm",
    "triton_poi_fused_mul_silu_1": "activation",
    "triton_tem_fused_mm_mul_silu_t_4": "gemm",
    "triton_tem_fused_addmm_0": "gemm",
    "triton_tem_fused_flex_attention_2": "attention",
    "triton_poi_fused_add_3": "elementwise",
    "void vllm::dynamic_per_token_scaled_fp8_quant_kernel<c10::BFloat16>(T1 *)": "quantize",
    "_gumbel_sample_kernel": "sampler",
    "_combine_sampled_and_draft_tokens_kernel": "prepare",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>(T3)": "sampler",
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>(int)": "elementwise",
    "_C::onednn_mm": "gemm",
    "aten::addmm": "gemm",
    "vllm::unified_attention_with_output": "attention",
    "vllm::unified_kv_cache_update": "kv-write",
    "aten::slice": "view",
    "wholly_new_thing": UNLISTED,
    "void at::native::segment_reduce_forward_kernel<float, int>(at::native::ReductionType, float*)": UNLISTED,
    "_layernorm_reduce_forward": "norm",
    "_reduce_grouped.kd": "moe",
    "_reduce_grouped_query_attention": "attention",
    "void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 256u, 128u, (deep_gemm::GemmType)2>(__nv_bfloat16*, float*)": "moe",
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 4096u, 1024u, 132u, (deep_gemm::GemmType)0>(float*, int*)": "gemm",
    "triton_red_fused_argmax_0": "sampler",
    "triton_poi_fused_embedding_0": "index",
    "triton_per_fused_copy__mul_sum_0": "reduce",
    "triton_poi_fused__to_copy_add_1": "elementwise",
    "triton_poi_fused__to_copy_1": "copy",
    "create_flashinfer_kv_indices_triton": "prepare",
    "void marlin::Marlin<256, 4, 16, 4, true>(int4 const*)": "gemm",
    "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<512>": "sampler",
    "build_tree_efficient": "sampler",
    "xqa_kernel_dt_bf16_d_128_beam_1": "attention",
    "void mmha::masked_multihead_attention_kernel<__nv_bfloat16>(T1)": "attention",
    "nvshmemi_transfer_rma_put": "communication",
    "void moe_comm::moeAllToAllKernel(int)": "communication",
    "at::native::xpu::VectorizedElementwiseKernel<4, at::native::xpu::AddFunctor>": "elementwise",
    "at::native::xpu::ReduceKernel<1, at::native::xpu::ReduceOp<float>>": "reduce",
    "{ForeignNode[/model/input_layernorm/Cast.../lm_head/MatMul]}": UNLISTED,
    "cudaDeviceProperties_probe": UNLISTED,
}


@pytest.mark.parametrize(("name", "role"), BY_NAME.items())
def test_shipped_roles(name: str, role: str) -> None:
    """Kernels of vLLM on three generations of GPUs, and its operators on the CPU, have the role that they play."""
    assert classify([name]) == (role,)


with (Path(__file__).parents[1] / "fixtures/kernel-names.csv").open(encoding="utf-8", newline="") as stream:
    NAMED = list(csv.DictReader(stream))


def test_the_families_that_engines_run() -> None:
    """Routing, grouped gemms, exchanges, latent attention, each format of weights, collectives and drafts are named."""
    assert {row["family"] for row in NAMED} >= {
        "moe routing", "grouped gemm", "all-to-all", "mla", "sparse attention", "windows", "fp8", "fp4", "int4",
        "cublas", "flashinfer", "trt-llm", "inductor", "nccl", "custom collective", "symmetric memory",
        "speculative", "lora",
    }  # fmt: skip


@pytest.mark.parametrize("family", sorted({row["family"] for row in NAMED}))
def test_kernels_of_a_family(family: str) -> None:
    """Each kernel by which vLLM runs it has the role that was written down for it."""
    rows = [row for row in NAMED if row["family"] == family]
    found = classify([row["kernel"] for row in rows])
    assert {row["kernel"]: role for row, role in zip(rows, found, strict=True)} == {
        row["kernel"]: row["role"] for row in rows
    }


def test_own_roles_come_first() -> None:
    """The scenario's list is tried in its order before the shipped one, and what it leaves keeps its role."""
    own = [RoleRule("mine", "nvjet"), RoleRule("never", "nvjet_sm90")]
    assert classify(["nvjet_sm90_x", FLASH3], own) == ("mine", "attention")


def test_a_broken_pattern_is_the_users_error() -> None:
    """A role whose pattern is no regular expression is named."""
    with pytest.raises(UsageError, match=r"role mine: '\(' is not a regular expression"):
        classify([], [RoleRule("mine", "(")])


def test_every_shipped_role_is_explained() -> None:
    """A role says what it does, a line of the list which kernels it is for, and every role has a line."""
    assert {rule.role for rule in SHIPPED} == {*ROLES, UNLISTED}
    assert all(ROLES.values())
    assert all(rule.about for rule in SHIPPED)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (FLASH3, "FlashAttnFwdSm90"),
        (FUSED_NORM, "fused_add_rms_norm_kernel"),
        ("void <unnamed>::elementwise_kernel_with_index<int, f(T1 &)::[lambda(long) (instance 1)]>(T1)",
         "elementwise_kernel_with_index"),
        ("void at::native::(anonymous namespace)::indexSelectSmallIndex<c10::BFloat16>(int)", "indexSelectSmallIndex"),
        ("ncclDevKernel_AllReduce_Sum(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_AllReduce_Sum"),
        ("nvjet_sm90_tst_64x8", "nvjet_sm90_tst_64x8"),
        ("aten::add_", "add_"),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELb1EEEvPT0_PT_PfS4_i", "add_rmsnorm_quant_kernel"),
        ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipeline", "Rmsnorm2dFwd"),
        ("_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalINS1_17GroupProblemShapeIN4cute", "GemmUniversal"),
        ("_Z", "_Z"),
        ("", ""),
        ("<<<(", "<<<("),
    ],
)  # fmt: skip
def test_short_names(name: str, short: str) -> None:
    """The function's own name; a wrapper gives way to what it wraps, and nonsense stays what it is."""
    assert short_name(name) == short


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("void f<(int)4, at::native::FillFunctor<int>, std::array<char *, (unsigned long)1>>(int, T2, T3)",
         "void f<4, at::native::FillFunctor<int>, std::array<char*, 1ul> >(int, at::native::FillFunctor<int>, char*)"),
        ("void g<(bool)1, (bool)0>(T1 *)", "void g<true, false>(float*)"),
        ("void at::native::<unnamed>::h<long>(T1)", "void at::native::(anonymous namespace)::h<long>(long)"),
        ("triton_poi_fused_add_mul_3", "triton_poi_fused_add_mul_17"),
        ("kernel_cutlass_gemm_3f9a0b12c4d5", "kernel_cutlass_gemm_ffeedd0011aa"),
    ],
)  # fmt: skip
def test_the_same_kernel_by_another_name(one: str, other: str) -> None:
    """Demanglers, literals, counters and hashes do not make another kernel."""
    assert normalised_name(one) == normalised_name(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", "nvjet_sm90_tst_128x8_64x12_2x1_v_bz_TNT"),
        ("void f<(int)4>(int)", "void f<(int)8>(int)"),
        ("triton_poi_fused_add_0", "triton_poi_fused_mul_0"),
    ],
)
def test_another_kernel_keeps_its_own_name(one: str, other: str) -> None:
    """Tiles, template arguments and fused operations do."""
    assert normalised_name(one) != normalised_name(other)


@pytest.mark.parametrize(
    ("nsys", "ncu"),
    [
        ("at::native::vectorized_elementwise_kernel<4,at::native::FillFunctor<int>>",
         "at::vectorized_elementwise_kernel<4,at::FillFunctor<int>>"),
        ("vllm::reshape_and_cache_flash_kernel<__nv_bfloat16,(vllm::Fp8KVCacheDataType)0>",
         "vllm::reshape_and_cache_flash_kernel<__nv_bfloat16,0>"),
        ("cutlass::device_kernel<flash::FlashAttnFwdCombine<cutlass::arch::Sm90>>",
         "cutlass::device_kernel<flash::FlashAttnFwdCombine<arch::Sm90>>"),
        ("at::native::{anonymous}::indexSelectSmallIndex<long,-2>", "at::{anonymous}::indexSelectSmallIndex<long,-2>"),
    ],
)  # fmt: skip
def test_two_tools_name_one_kernel(nsys: str, ncu: str) -> None:
    """Without namespaces and types of enumerators both spellings of a recorded kernel agree."""
    assert unqualified_name(nsys) == unqualified_name(ncu)
    assert unqualified_name(nsys) != unqualified_name(nsys.replace(">", ",1>", 1))
