"""The words by which scenarios and traces speak of kernels: roles, places in a layer, kinds of copies.

Which kernel has which role is read off its name (:mod:`perfgate.trace.families`).
"""

from __future__ import annotations

from dataclasses import dataclass

UNLISTED = "unlisted"
"""The role of a kernel that no rule matches."""

GEMM, GEMM_REDUCE, ATTENTION, NORM = "gemm", "gemm-reduce", "attention", "norm"
ACTIVATION, KV_WRITE, ROPE, COMMUNICATION = "activation", "kv-write", "rope", "communication"
MOE, SAMPLER, RECURRENCE, RESIDUAL = "moe", "sampler", "recurrence", "residual"
QUANTIZE, PREPARE, INDEX, COPY = "quantize", "prepare", "index", "copy"
REDUCE, ELEMENTWISE, VIEW = "reduce", "elementwise", "view"

ROLES = {
    COMMUNICATION: "between GPUs: NCCL, RCCL, HCCL, NVSHMEM, DeepEP, custom and symmetric-memory collectives",
    KV_WRITE: "writes this step's keys and values into the cache",
    RECURRENCE: "gated delta rule, state-space scans and the short convolutions before them: layers that keep a state",
    MOE: "mixture of experts: routing, grouped gemms",
    ATTENTION: "attention, its metadata and indexer, the merge of its splits",
    ROPE: "rotary position embedding",
    RESIDUAL: "hyper-connections: several residual streams mixed, norm and product included",
    NORM: "normalisation, fused residual and quantisation included",
    GEMM_REDUCE: "adds up the parts of a split-K gemm",
    GEMM: "matrix products, convolutions included",
    ACTIVATION: "activation of the MLP",
    QUANTIZE: "scales and casts to FP8, FP4 or INT8, and the rotation before them",
    PREPARE: "the engine's own bookkeeping between steps",
    SAMPLER: "from logits to tokens, acceptance of drafts included",
    INDEX: "embedding lookups, gathers, scatters",
    COPY: "copies, casts and transpositions made by kernels",
    REDUCE: "reductions outside the families above",
    ELEMENTWISE: "one output a point",
    VIEW: "tensor bookkeeping on the CPU: views and allocations",
}
"""What each role is. A kernel that fuses several has the first of them here: a norm in a collective is one."""

PLACES = ("", "qkv", "out", "gate-up", "down", "lm-head")
"""Where in a layer a gemm is, which its name cannot tell; empty for every other kernel."""

COPY_KINDS = ("h2d", "h2d-pageable", "d2h", "d2h-pageable", "d2d", "peer", "other")
"""Copies by direction; from or to pageable host memory they cannot overlap with the host."""


@dataclass(frozen=True)
class RoleRule:
    """One line of a role list.

    Args:
        role: The family's name.
        pattern: A regular expression, searched in the demangled name; upper and lower case differ.
        about: Which kernels it is for, and what tells them.
    """

    role: str
    pattern: str
    about: str = ""
