"""What a kernel is called and what it is for: readable names, names to match by, and roles.

Pure text. A role is found by regular expressions tried in order on the demangled name, the scenario's own before the
shipped list; the first that matches wins. What none matches is ``unlisted``, which every table shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from perfgate.errors import UsageError
from perfgate.scenario.kernel_names import (
    ACTIVATION,
    ATTENTION,
    COMMUNICATION,
    COPY,
    ELEMENTWISE,
    GEMM,
    GEMM_REDUCE,
    INDEX,
    KV_WRITE,
    MOE,
    NORM,
    PREPARE,
    QUANTIZE,
    RECURRENCE,
    REDUCE,
    RESIDUAL,
    ROPE,
    SAMPLER,
    UNLISTED,
    VIEW,
    RoleRule,
)

_INDUCTOR = r"^triton_(poi|red|per|split_scan)_\w*"
_ASCEND = r"(?:^|_)(?:%s)(?:V\d|D|AiCore)?(?:_?\d+)?$"
"""CANN ends a kernel's name with its operator in camel case, a version and a counter; ONNX Runtime names operators."""

SHIPPED = (
    RoleRule(UNLISTED, r"^\{ForeignNode", "a region that TensorRT fused: its name has its ends, not what is between"),
    # Inductor names a kernel by the operators that it fuses, and nothing else in such a name is a kernel's own.
    RoleRule(ATTENTION, r"^triton_tem_\w*attention", "Inductor's template of flex attention"),
    RoleRule(GEMM, r"^triton_tem_", "Inductor's templates of matrix products"),
    RoleRule(NORM, _INDUCTOR + r"(rsqrt|_norm|var_mean)", "Inductor: a norm is told by its rsqrt"),
    RoleRule(ACTIVATION, _INDUCTOR + r"(silu|gelu|relu)", "Inductor: what follows the gate and up projection"),
    RoleRule(SAMPLER, _INDUCTOR + r"(argmax|softmax|multinomial|exponential|topk|sort)", "Inductor: choosing a token"),
    RoleRule(INDEX, _INDUCTOR + "(embedding|index|gather|scatter)", "Inductor: lookups"),
    RoleRule(COPY, r"^triton_poi_fused_(_(to_copy|unsafe_view)|copy_?|clone|cat|slice|view|permute|transpose|expand|"
             r"constant_pad_nd|split_with_sizes|select|t|(un)?squeeze|moe_forward(_shared)?|_)+\d*$",
             "Inductor: nothing but casts, copies and views, or a buffer made ready for an operator of vLLM's"),
    RoleRule(REDUCE, "^triton_(red|per|split_scan)_", "Inductor: any other reduction"),
    RoleRule(ELEMENTWISE, "^triton_poi_", "Inductor: any other function of a point"),
    # CANN and ONNX: the operator that a name ends with
    RoleRule(COPY, r"^Reformatting|" + _ASCEND % "Cast|TransData|TensorMove|Concat|Pack|Slice|StridedSlice|AsStrided|"
             "Tile|BroadcastTo|Identity", "CANN, ONNX; TensorRT's changes of layout"),
    RoleRule(REDUCE, _ASCEND % "Reduce(?:Sum|Mean|Max|Min|All|Any)|NonZero", "CANN"),
    RoleRule(ELEMENTWISE, _ASCEND % "Add|Sub|Mul|Muls|Div|RealDiv|Exp|Log|Sqrt|Rsqrt|Square|Neg|Abs|Pow|Reciprocal|"
             "Maximum|Minimum|Greater|GreaterEqual|Less|LessEqual|Equal|NotEqual|Logical(?:Not|And|Or)|Sigmoid|Fill|"
             "MemSet|ZerosLike|OnesLike|Range|Tril|Addcmul|Addcdiv|ApplyAdamW|DropOutDoMask|"
             "Select|Axpy", "CANN"),
    # Between GPUs
    RoleRule(COMMUNICATION, r"nccl|rccl|hcom_|[Aa]icpuKernel$|^c10d::", "NCCL, RCCL, and HCCL on AI cores and AI CPUs"),
    RoleRule(COMMUNICATION, r"cross_device_(reduce|store)|[Aa]ll_?[Rr]educe|[Aa]ll_?[Gg]ather|reduce_?scatter|multimem|"
             r"userbuffers",
             "collectives of vLLM, SGLang, FlashInfer, AITER and TensorRT-LLM, a norm in them included"),
    RoleRule(COMMUNICATION, r"nvshmem|deep_ep|[Aa]ll_?[Tt]o_?[Aa]ll|A2A|_a2a_|MoeDistribute",
             "tokens to their experts and back"),
    # Layers that keep a state, and caches
    RoleRule(KV_WRITE, r"reshape_(and_)?cache|concat_and_cache|[Kk]v_?[Cc]ache_?(write|store|scatter|update)|"
             r"append_paged_kv|set_kv_buffer|store_kvcache|rope_store|qkv_kv_cache|indexer_k_quant_and_cache",
             "keys and values of vLLM and SGLang, keys of the indexer"),
    RoleRule(KV_WRITE, r"UpdateKVCache|RopeAndAssignQKV|ReshapeAndCache|KVRope\w*Insert",
             "the same of TensorRT-LLM, vllm-ascend and DeepSeek's fused kernels, rope included"),
    RoleRule(RECURRENCE, r"[Dd]elta_?[Rr]ule|causal_conv1d|CausalConv1d|_?gdn_|_post_conv|kda_",
             "gated delta rule (FLA, FlashInfer, CANN) and its convolution"),
    RoleRule(RECURRENCE, r"scaled_dot_kkt|solve_tril|_inverse_kernel$|recompute_w_u|chunk_fwd_kernel_o|ChunkFwdO|"
             r"chunk_local_cumsum|l2norm_fwd|fused_qkvzba", "the steps of its chunked form in flash-linear-attention"),
    RoleRule(RECURRENCE, r"linear_attn|^_fwd_((none_)?diag_kernel|kv_(parallel|reduce))$|replayssm",
             "lightning attention, replayed states"),
    RoleRule(RECURRENCE, r"selective_(scan|state)|_chunk_(scan|state|cumsum)_|_bmm_chunk|_state_passing|[Mm]amba",
             "state-space scans of Mamba 1 and 2"),
    # Mixture of experts
    RoleRule(MOE, r"[Mm]o[Ee]|expert|Expert", "whatever says so: Triton, Marlin, AITER, CK, TensorRT-LLM, CANN"),
    RoleRule(ACTIVATION, r"silu_mul_\w*quant", "between the grouped gemms, with the cast of what they read"),
    RoleRule(MOE, r"_matmul_ogs|_finalize_matmul|_topk_forward|_bitmatrix|_combined_routing|_stage2_pow2|"
             r"_masked_topk_sum|^_reduce_(grouped|forward)(\b|_\d)|_expt_data|_ragged_tensor_metadata|^_(p_)?matmul_[NT]{3}_",
             "triton_kernels (gpt-oss): products gathered by expert and their sum, its routing"),
    RoleRule(MOE, r"deep_gemm::.*GemmType\)?E?[1235]",
             "DeepGEMM's grouped layouts; 0 is a plain product, 4 a batched one"),
    RoleRule(MOE, r"GroupProblemShape|[Gg]roup(ed)?_?([Gg]emm|[Mm]at_?[Mm]ul)|^bmm_[A-Z]",
             "CUTLASS, CANN, XPU; TensorRT-LLM's generated products, which batch by expert"),
    RoleRule(MOE, r"topkGating|grouped_topk|routing(Indices|Main|Custom)|_routing_|[Rr]outer_|::expandInputRows|"
             r"cutlass_kernels::(computeStrides|doActivation)|shuffle_mul_sum|DispatchFFN", "routing, rows by expert"),
    RoleRule(MOE, r"_ep_(scatter|gather)|^batched_triton_kernel|_eplb_|_dsv4_topk|topk_(to_local|idx)_|_unpermute_",
             "vLLM's Triton: rows by expert, products of batched experts, where experts are"),
    # What a layer of attention runs
    RoleRule(COPY, r"concat_mla", "the two parts of a latent query, put together"),
    RoleRule(ATTENTION, r"\bflash::|flash_(fwd|attn|bwd)|[Ff]mha|Flash(Attn|MLA|Attention|Mla)|attn_fwd|cpu_attn",
             "FlashAttention (3 is a cutlass::device_kernel<flash::...>, hence before gemm), FlashMLA, CK, AOTriton"),
    RoleRule(ATTENTION, r"flashinfer::.*(Decode|Prefill|Merge|MLA)|Batch(Decode|Prefill)|MergeStates|merge_attn_states|"
             "scheduler_metadata", "FlashInfer, merges of splits, what is planned for both"),
    RoleRule(ATTENTION, r"[Aa]ttention|reduce_segments|_fwd_grouped_kernel|_fwd_kernel_stage2|MaskedSoftmax",
             "vLLM's and SGLang's Triton, CANN"),
    RoleRule(ATTENTION, r"kernel_mha|xqa|mmha", "TensorRT-LLM in decode"),
    RoleRule(ATTENTION, r"mla_(a\d|reduce|decode|metadata)|\bmla_", "latent attention of AITER; what FlashMLA plans"),
    RoleRule(ATTENTION, r"^_fwd_kernel(_alibi|_stage1)?$|_attn_packed|^sage_fwd", "vLLM's Triton prefill and decode"),
    RoleRule(ATTENTION, r"sparse_attn|Sparse(Flash|Attn)|mqa_logits|Indexer|topKPerRow|_sparse_topk|"
             r"_scatter_topk|_topk_indices|_block_scores|_candidates?_(flags_)?kernel",
             "sparse attention and what selects for it"),
    RoleRule(ROPE, r"[Rr]otary|(?<![Pp])[Rr]o[Pp][Ee](?![a-z])|rope_",
             "rotary embedding, norm of query and key included"),
    RoleRule(RESIDUAL, r"mhc_|_hc_prenorm|Hc(Pre|Post)\b", "DeepSeek's hyper-connections"),
    RoleRule(NORM, r"(?i:(rms|layer|group|batch|qk)_?norm)|_norm_|rsqrt|var_mean|LpNorm|_qk_var|_rms_apply",
             "norms of every engine"),
    RoleRule(GEMM_REDUCE, r"splitKreduce|split_?[kK]_?[rR]educe|lora_shrink_reduce", "cuBLAS, vLLM's adapters"),
    RoleRule(COPY, r"_repack_", "weights brought into the layout of a kernel"),
    RoleRule(QUANTIZE, r"(pack|transpose|per_token)\w*ue8m0|fp32_into",
             "DeepGEMM: scales brought into its layout; cutlass::float_ue8m0_t is a type of products"),
    RoleRule(GEMM, r"nvjet|[Gg]emm|GEMM|[Gg]emv|xmma|_lora_(shrink|expand)|^bmm_kernel",
             "cuBLAS, CUTLASS, DeepGEMM, AITER's hand-written, MIOpen's igemm"),
    RoleRule(GEMM, r"Conv[123]D|convolve|[0-9_]fprop_", "CANN, cuDNN"),
    RoleRule(GEMM, r"^Cijk_", "Tensile's kernels of rocBLAS and hipBLASLt, named by their index equation"),
    RoleRule(GEMM, r"[Mm]arlin|[Mm]achete|scaled_mm|linear_kernel|[Mm]at_?[Mm]ul",
             "weights of four or eight bits; CANN"),
    RoleRule(GEMM, r"^aten::(_?linear|addmm|mm|bmm|baddbmm|matmul|mv|einsum)$|(onednn|mkldnn).*(mm|linear)|"
             "^_C.*(_mm|_linear)", "operators on the CPU"),
    RoleRule(ACTIVATION, r"act_and_mul|(?i:silu|gelu|swi_?glu|relu)", "MLPs of every engine"),
    RoleRule(QUANTIZE, r"_quant|[Qq]uantize|cvt_|(Ascend|Dynamic)Quant|hadamard|_to_mxfp|segmented_max_reduction",
             "FP8, FP4, INT8"),
    RoleRule(PREPARE, r"_prepare_|_combine_sampled_and_draft|_gather_block_tables|slot_mapping|_post_update|"
             r"_get_num_sampled|_apply_write|advance_step|prepare_inputs|_update_|block_table|zero_kv_blocks", "vLLM"),
    RoleRule(PREPARE, r"eagle_|_ngram_|_shift_input_|_draft_slots|_expand_idx|_cache_inputs|num_accepted|_seq_lens|"
             "_request_mapping", "what proposers of drafts are given, and drafts out of the prompt"),
    RoleRule(PREPARE, r"kv_indices|future_token_ids|clamp_position|page_indices", "SGLang, FlashInfer"),
    RoleRule(SAMPLER, r"[Gg]umbel|[Ss]ampl|[Tt]op_?[KkPp]|(?<!With)[Aa]rg_?[Mm]ax|[Ss]oft_?[Mm]ax|multinomial|"
             r"exponential|penalt|[Ll]ogits|bincount|temperature|min_p|philox|distribution_|aten::sort|build_tree|verify_tree|"
             "rejection", "from logits to tokens; trees of drafts"),
    RoleRule(SAMPLER, "(bitonic|radix)Sort|(Radix|Segmented|Merge)Sort|sort_postprocess|fill_reverse_indices|"
             "fill_index_and_segment", "PyTorch, CUB: logits in order, for top-k and top-p"),
    RoleRule(SAMPLER, r"_bad_words|_bias_kernel|_ranks_kernel|logprobs?_|thinking_budget|bitmask|_num_nans|"
             r"residual_mass|_log_p_|max_sumexp|^expand_kernel$",
             "vLLM's Triton: what may be chosen, how drafts are accepted"),
    RoleRule(INDEX, r"indexSelect|index_(elementwise|put|kernel|select)|^aten::(index|take)|[Ee]mbedding|_pos_embed|"
             r"[Gg]ather|[Ss]catter|PoolGrad|" + _ASCEND % "Index", "lookups; CANN"),
    RoleRule(COPY, r"[Cc]opy|CatArray|swap_blocks|memcpy|[Tt]ranspose|n[hw]*c[hw]*ToN|"
             r"^aten::(cat|to|clone|contiguous|stack|repeat|_pin_memory)$", "PyTorch, MIOpen's layouts"),
    RoleRule(REDUCE, r"[Rr]educe_?[Kk]ernel|DeviceReduce|ReduceOp|[Ss]can|cumsum|[Mm]ax_?[Pp]ool|^mean_kernel$|"
             "_order_sum|^aten::(sum|mean|max|min|amax|any|all)$", "PyTorch; pooling"),
    RoleRule(ELEMENTWISE, r"[Ee]lementwise|FillFunctor|sigmoid_mul|SubTensorOp|^PWN\(", "PyTorch, MIOpen, TensorRT"),
    RoleRule(ELEMENTWISE, r"^aten::(add|sub|mul|div|rsub|neg|pow|exp|log|eq|ne|lt|le|gt|ge|where|clamp|minimum|maximum|"
             r"bitwise_\w+|logical_\w+|fill|zero|zeros|ones|full|arange|cos|sin|remainder|floor_divide|masked_fill)_?$",
             "functions of a point on the CPU"),
    RoleRule(VIEW, r"^aten::(empty|empty_like|empty_strided|new_empty|view|_unsafe_view|reshape|as_strided|slice|"
             r"select|narrow|split|split_with_sizes|chunk|unbind|unsqueeze|squeeze|transpose|t|permute|expand|flatten|"
             r"unflatten|detach|alias|item|is_nonzero|_local_scalar_dense|numpy_T|movedim|resize_|set_|lift_fresh|"
             "result_type|resolve_conj|resolve_neg)$", "views and allocations on the CPU"),
)  # fmt: skip
"""The shipped list: tried in this order, the first that matches wins. tests/trace/test_worlds.py holds it to kernels
with times from engines and devices of many makes, and says which row each world needs."""


def classify(names: Sequence[str], roles: Sequence[RoleRule] = ()) -> tuple[str, ...]:
    """The role of each demangled name: the first rule that matches, those of ``roles`` before the shipped ones.

    Raises:
        UsageError: A pattern is not a regular expression.
    """
    rules = [(rule.role, _compiled(rule)) for rule in (*roles, *SHIPPED)]
    return tuple(next((role for role, pattern in rules if pattern.search(name)), UNLISTED) for name in names)


def _compiled(rule: RoleRule) -> re.Pattern[str]:
    try:
        return re.compile(rule.pattern)
    except re.error as error:
        raise UsageError(f"role {rule.role}: {rule.pattern!r} is not a regular expression: {error}") from error


_WRAPPERS = {"device_kernel", "kentry", "Kernel", "Kernel2", "kernel", "enable_sm90_or_later", "enable_sm80_to_sm89"}
"""Templates whose own name says nothing: what they wrap is the kernel."""

_CAST = re.compile(r"\((?:unsigned )?(?:int|long|short|char|bool|long long)\)(?=-?\d)")
_BOOLS = {"true": "1", "false": "0"}
_BOOL = re.compile(r"\b(true|false)\b")
_SUFFIXED = re.compile(r"\b(\d+)(?:[uU]?[lL]{1,2}|[uU])\b")
_ANONYMOUS = re.compile(r"<unnamed>|\(anonymous namespace\)|_GLOBAL__N__\w+")
_HASH = re.compile(r"_(?=[0-9a-f]*\d)[0-9a-f]{8,}(?=_|$)")
_COUNTER = re.compile(r"^(triton_\w*?)(?:_\d+)+(?:d\w*)?$")
_SPACE = re.compile(r"\s*([<>,*&(){}\[\]:])\s*")


def normalised_name(demangled: str) -> str:
    """A kernel's identity across builds and profilers: template arguments kept, everything accidental dropped.

    Return type, parameter list, casts and suffixes of literals, names of anonymous namespaces, hashes, spaces and the
    counters of Triton and Inductor kernels go; two names that agree here are one kernel.
    """
    text = _ANONYMOUS.sub("{anonymous}", demangled.strip())
    text = _SUFFIXED.sub(r"\1", _CAST.sub("", text))
    text = _BOOL.sub(lambda match: _BOOLS[match[0]], text)
    text = _without_parameters(text)
    text = _COUNTER.sub(r"\1", _HASH.sub("", text))
    return _SPACE.sub(r"\1", text)


_QUALIFIER = re.compile(r"(?:\{anonymous\}|\w+)::")
_ENUMERATOR = re.compile(r"\(\w+\)(?=-?\d)")


def unqualified_name(normalised: str) -> str:
    """A normalised name without namespaces and types of enumerators, which tools spell apart.

    ncu 2025.3 leaves out the namespaces that a template's arguments share with it, nsys 2023.4 does not.
    """
    return _ENUMERATOR.sub("", _QUALIFIER.sub("", normalised))


def short_name(demangled: str) -> str:
    """The function's own name, without namespaces and template arguments; wrappers give way to what they wrap.

    ``void cutlass::device_kernel<flash::FlashAttnFwdCombine<...>>(...)`` is ``FlashAttnFwdCombine``.
    """
    text = _without_parameters(_ANONYMOUS.sub("", demangled.strip()))
    if text.startswith("_Z"):
        return next((name for name in _mangled_names(text) if name not in _WRAPPERS), demangled)
    while True:
        head, _, inside = text.partition("<")
        name = re.split(r"::|\s", re.split(r"[,>]", head.strip())[0])[-1].strip("*&")
        if name not in _WRAPPERS or not inside:
            return name or demangled
        text = inside


_LITERAL_OR_REPEATED = re.compile(r"L[a-z]n?\d+E|[ST]\d*_")


def _mangled_names(mangled: str) -> Iterator[str]:
    """The names in a name that no profiler demangled, each without its namespaces (the Itanium ABI: length, name)."""
    at, name = 2, ""
    while at < len(mangled):
        if digits := _DIGITS.match(mangled, at):
            at = digits.end() + int(digits[0])
            name = mangled[digits.end() : at]
            continue
        if name:
            yield name
            name = ""
        skipped = _LITERAL_OR_REPEATED.match(mangled, at)
        at = skipped.end() if skipped else at + 1
    if name:
        yield name


_DIGITS = re.compile(r"[1-9]\d{0,3}")


def _without_parameters(text: str) -> str:
    """A function's name with its template arguments: neither the return type before nor the parameters after it.

    Read from the end, where every demangler agrees; some return types (``std::enable_if``) have brackets unbalanced.
    """
    end = len(text)
    if text.endswith(")"):
        end = _opening(text, end - 1) or end
    begin = end
    while begin > 0 and text[begin - 1] != " ":
        begin = _opening(text, begin - 1) if text[begin - 1] in ")]}>" else begin - 1
    return text[begin:end].strip() or text


def _opening(text: str, closing: int) -> int:
    """Where the bracket that ends at ``closing`` begins; 0 where it never does."""
    depth = 0
    for index in range(closing, -1, -1):
        character = text[index]
        if character in ")]}" or (character == ">" and text[index - 1 : index] != "-"):
            depth += 1
        elif character in "<([{":
            depth -= 1
            if depth == 0:
                return index
    return 0
