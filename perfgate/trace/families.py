"""What a kernel is called and what it is for: readable names, names to match by, and roles.

Pure text. A role is found by regular expressions tried in order on the demangled name, the scenario's own before the
shipped list; the first that matches wins. What none matches is ``unlisted``, which every table shows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from perfgate.errors import UsageError

UNLISTED = "unlisted"
"""The role of a kernel that no rule matches."""

GEMM, GEMM_REDUCE, ATTENTION, NORM = "gemm", "gemm-reduce", "attention", "norm"
ACTIVATION, KV_WRITE, ROPE, COMMUNICATION = "activation", "kv-write", "rope", "communication"
MOE, SAMPLER = "moe", "sampler"


@dataclass(frozen=True)
class RoleRule:
    """One line of a role list.

    Args:
        role: The family's name.
        pattern: A regular expression, searched in the demangled name; upper and lower case differ.
        about: What the family does.
    """

    role: str
    pattern: str
    about: str = ""


SHIPPED = (
    RoleRule(COMMUNICATION, r"nccl|cross_device_reduce|[Aa]ll_?[Rr]educe|[Aa]ll_?[Gg]ather|reduce_?scatter|multimem|"
             r"nvshmem|deep_ep|^c10d::", "between GPUs: NCCL, custom and symmetric-memory collectives"),
    RoleRule(KV_WRITE, r"reshape_and_cache|concat_and_cache|[Kk]v_?[Cc]ache_?(write|store|scatter|update)|"
             r"append_paged_kv|set_kv_buffer", "writes this step's keys and values into the cache"),
    RoleRule(MOE, r"[Mm]oe|topkGating|expert|GroupProblemShape|[Gg]roup(ed)?_?[Gg]emm|^bmm_",
             "mixture of experts: routing, grouped gemms"),
    RoleRule(ATTENTION, r"\bflash::|\bflash_|[Ff]mha|FlashAttn|FlashMLA|flashinfer::.*(Decode|Prefill|Merge|MLA)|"
             r"Batch(Decode|Prefill)|[Aa]ttention|\bmla_|reduce_segments|merge_attn_states|_fwd_grouped_kernel|attn_fwd|"
             r"cpu_attn|scheduler_metadata", "attention, its metadata, the merge of its splits; FlashAttention 3 is a "
             "cutlass::device_kernel<flash::...>, hence before gemm"),
    RoleRule(ROPE, r"[Rr]otary|[Rr]o[Pp][Ee]\b|rope_|_rope", "rotary position embedding"),
    RoleRule(NORM, r"(rms|layer|group)_?norm|(RMS|Layer|Group)_?Norm|_norm_|rsqrt|var_mean",
             "layer normalisation, fused residual and quantisation included; Inductor names it by its rsqrt"),
    RoleRule(GEMM_REDUCE, r"splitKreduce|split_?[kK]_?[rR]educe", "adds up the parts of a split-K gemm"),
    RoleRule(GEMM, r"nvjet|[Gg]emm|GEMM|[Gg]emv|xmma|cutlass.*(Sm80|sm80|s16816|h16816)|[Mm]arlin|[Mm]achete|matmul|"
             r"scaled_mm|linear_kernel|^aten::(_?linear|addmm|mm|bmm|baddbmm|matmul|mv|einsum)$|"
             r"(onednn|mkldnn).*(mm|linear)|^_C.*(_mm|_linear)|triton_tem_\w*mm(_|$)",
             "matrix products: cuBLAS nvjet (Hopper, Blackwell), CUTLASS, Marlin, DeepGEMM, oneDNN, Inductor"),
    RoleRule(ACTIVATION, r"act_and_mul|[Ss]ilu|SiLU|[Gg]elu|[Ss]wi[Gg]lu|\brelu|_relu", "activation of the MLP"),
    RoleRule("quantize", r"_quant|[Qq]uantize|cvt_fp16_to_fp4|cvt_", "scales and casts to FP8, FP4 or INT8"),
    RoleRule("prepare", r"_prepare_|_combine_sampled_and_draft|_gather_block_tables|slot_mapping|_post_update|"
             r"_get_num_sampled|_apply_write|advance_step|prepare_inputs|_update_|block_table",
             "vLLM's own bookkeeping between steps"),
    RoleRule(SAMPLER, r"[Gg]umbel|[Ss]ampl|[Tt]op_?[KkPp]|[Aa]rg_?[Mm]ax|[Ss]oft_?[Mm]ax|multinomial|exponential|"
             r"penalt|[Ll]ogits|bincount|temperature|min_p|philox|distribution_|aten::sort", "from logits to tokens"),
    RoleRule("index", r"indexSelect|index_(elementwise|put|kernel|select)|^aten::(index|take)|[Ee]mbedding|[Gg]ather|"
             r"[Ss]catter", "embedding lookups, gathers, scatters"),
    RoleRule("copy", r"[Cc]opy|CatArray|swap_blocks|^aten::(cat|to|clone|contiguous|stack|repeat|_pin_memory)$",
             "copies and casts made by kernels"),
    RoleRule("reduce", r"reduce_kernel|triton_(red|per)_|ReduceOp|[Ss]can|cumsum|"
             r"^aten::(sum|mean|max|min|amax|any|all)$", "reductions outside the families above"),
    RoleRule("elementwise", r"elementwise|triton_poi_|FillFunctor|^aten::(add|sub|mul|div|rsub|neg|pow|exp|log|eq|ne|"
             r"lt|le|gt|ge|where|clamp|minimum|maximum|bitwise_\w+|logical_\w+|fill|zero|zeros|ones|full|arange|cos|sin|"
             r"remainder|floor_divide|masked_fill)_?$", "one output a point"),
    RoleRule("view", r"^aten::(empty|empty_like|empty_strided|new_empty|view|_unsafe_view|reshape|as_strided|slice|"
             r"select|narrow|split|split_with_sizes|chunk|unbind|unsqueeze|squeeze|transpose|t|permute|expand|flatten|"
             r"unflatten|detach|alias|item|is_nonzero|_local_scalar_dense|numpy_T|movedim|resize_|set_|lift_fresh|result_type|resolve_conj|resolve_neg)$",
             "tensor bookkeeping on the CPU: views and allocations"),
)  # fmt: skip
"""The shipped list, for vLLM's kernels on Ampere, Hopper and Blackwell and for its operators on the CPU."""


def classify(names: Sequence[str], own: Sequence[RoleRule] = ()) -> tuple[str, ...]:
    """The role of each demangled name: the first rule that matches, those of ``own`` before the shipped ones.

    Raises:
        UsageError: A pattern is not a regular expression.
    """
    rules = [(rule.role, _compiled(rule)) for rule in (*own, *SHIPPED)]
    return tuple(next((role for role, pattern in rules if pattern.search(name)), UNLISTED) for name in names)


def _compiled(rule: RoleRule) -> re.Pattern[str]:
    try:
        return re.compile(rule.pattern)
    except re.error as error:
        raise UsageError(f"role {rule.role}: {rule.pattern!r} is not a regular expression: {error}") from error


_WRAPPERS = {"device_kernel", "Kernel", "Kernel2", "kernel", "enable_sm90_or_later", "enable_sm80_to_sm89"}
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
    text = _BOOL.sub(lambda found: _BOOLS[found[0]], text)
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
    while True:
        head, _, inside = text.partition("<")
        name = re.split(r"::|\s", re.split(r"[,>]", head.strip())[0])[-1].strip("*&")
        if name not in _WRAPPERS or not inside:
            return name or demangled
        text = inside


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
