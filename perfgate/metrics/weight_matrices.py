"""The matrices of a model: how large, on how many GPUs each is divided, and how many of them a decode step reads.

Grouped or full attention and multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1), gated MLPs,
experts that a router chooses and experts that every token passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from perfgate.errors import UsageError
from perfgate.metrics.model_shape import (
    LATENT,
    expert_count,
    head_width,
    key_value_heads,
    layer_count,
    routed_layers,
    vocabulary,
    whole,
)

ABSORBED = "absorbed"
"""The family of the matrix that makes keys and values of latents. vLLM's decode multiplies queries and outputs with its
halves instead, which it keeps at the plain precision whatever the checkpoint has (``split_kv_b_proj``, 0.32)."""


@dataclass(frozen=True)
class Matrix:
    """A product's matrix, and how many there are alike.

    Args:
        family: ``attention``, ``absorbed``, ``mlp``, ``experts``, ``router``, ``lm-head``: what
            quantisation tells apart.
        inputs: Its columns.
        outputs: Its rows.
        shards: GPUs of a tensor-parallel group among which one is divided; each of the rest holds another's copy.
        count: How many a model has.
        read: How many a step is expected to read.
        used: How many a token passes.
    """

    family: str
    inputs: int
    outputs: int
    shards: int
    count: float
    read: float
    used: float

    @property
    def elements(self) -> float:
        """Weights of one on one GPU."""
        return self.inputs * self.outputs / self.shards


@dataclass(frozen=True)
class Attention:
    """What attention keeps and does for one token of context, in one layer, on one GPU.

    Args:
        cached: Elements of the KV cache.
        operations: Of one new token; a multiplication and an addition are two.
    """

    cached: float
    operations: float


def attention(config: Mapping[str, Any], parallel: int) -> Attention:
    """What a token of context costs.

    A latent token is kept once for all heads, so each GPU of a group keeps it whole; of grouped heads each GPU has at
    least one. Every head multiplies the latent with its absorbed query and adds it up again.
    """
    heads = whole(config, "num_attention_heads")
    if config["model_type"] in LATENT:
        latent, rope = whole(config, "kv_lora_rank"), whole(config, "qk_rope_head_dim")
        return Attention(cached=latent + rope, operations=2 * (2 * latent + rope) * heads / parallel)
    width, shared = head_width(config), key_value_heads(config)
    return Attention(cached=2 * max(shared / parallel, 1.0) * width, operations=4 * heads * width / parallel)


def matrices(config: Mapping[str, Any], batch: int, parallel: int) -> Iterator[Matrix]:
    """Every matrix of the model but the embedding table.

    Args:
        config: The text part of a model's ``config.json``.
        batch: Requests that are decoded together.
        parallel: GPUs of the tensor-parallel group.
    """
    hidden, layers, routed = whole(config, "hidden_size"), layer_count(config), routed_layers(config)
    yield from _latent(config, hidden, parallel) if config["model_type"] in LATENT else _heads(config, hidden, parallel)
    if layers - routed:
        yield from _mlp("mlp", hidden, whole(config, "intermediate_size"), parallel, _always(layers - routed))
    if routed:
        yield from _experts(config, hidden, routed, batch, parallel)
    yield Matrix("lm-head", hidden, vocabulary(config), parallel, **_always(1))


def _always(count: float) -> dict[str, float]:
    """As many as there are, each of which every step reads and every token passes."""
    return {"count": count, "read": count, "used": count}


def _heads(config: Mapping[str, Any], hidden: int, parallel: int) -> Iterator[Matrix]:
    heads, shared, width = whole(config, "num_attention_heads"), key_value_heads(config), head_width(config)
    each = _always(layer_count(config))
    yield Matrix("attention", hidden, heads * width, parallel, **each)
    yield Matrix("attention", hidden, 2 * shared * width, min(parallel, shared), **each)
    yield Matrix("attention", heads * width, hidden, parallel, **each)


def _latent(config: Mapping[str, Any], hidden: int, parallel: int) -> Iterator[Matrix]:
    """The projections into latents are the same for all heads, and whole on each GPU."""
    heads, latent = whole(config, "num_attention_heads"), whole(config, "kv_lora_rank")
    plain, rope, value = (whole(config, name) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    each = _always(layer_count(config))
    if config.get("q_lora_rank"):
        low = whole(config, "q_lora_rank")
        yield Matrix("attention", hidden, low, 1, **each)
        yield Matrix("attention", low, heads * (plain + rope), parallel, **each)
    else:
        yield Matrix("attention", hidden, heads * (plain + rope), parallel, **each)
    yield Matrix("attention", hidden, latent + rope, 1, **each)
    yield Matrix(ABSORBED, latent, heads * (plain + value), parallel, **each)
    yield Matrix("attention", heads * value, hidden, parallel, **each)


def _mlp(family: str, hidden: int, inner: int, parallel: int, counts: Mapping[str, float]) -> Iterator[Matrix]:
    """Both products of a gated MLP."""
    yield Matrix(family, hidden, 2 * inner, parallel, **counts)
    yield Matrix(family, inner, hidden, parallel, **counts)


def _experts(config: Mapping[str, Any], hidden: int, layers: int, batch: int, parallel: int) -> Iterator[Matrix]:
    experts, chosen = expert_count(config), whole(config, "num_experts_per_tok", "experts_per_token")
    if chosen > experts:
        raise UsageError(f"config.json has num_experts_per_tok {chosen} of {experts} experts")
    inner = int(config.get("moe_intermediate_size") or whole(config, "intermediate_size"))
    # A token that chooses evenly misses a given expert with probability 1 - chosen / experts; dummy and trained routers
    # choose less evenly, so this is the usual estimate and not a bound. The bounds are chosen and batch x chosen.
    met = experts * (1 - (1 - chosen / experts) ** batch)
    counts = {"count": layers * experts, "read": layers * met, "used": layers * chosen}
    yield Matrix("router", hidden, experts, 1, **_always(layers))
    yield from _mlp("experts", hidden, inner, parallel, counts)
    shared = int(config.get("shared_expert_intermediate_size") or int(config.get("n_shared_experts") or 0) * inner)
    if shared:
        yield from _mlp("mlp", hidden, shared, parallel, _always(layers))
