"""What a model's ``config.json`` says of its shape, read the way vLLM reads it: sizes, kinds of layers, windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfgate.errors import UsageError

KNOWN = (
    "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text", "phi3",
    "granite", "olmo2", "olmoe", "gpt_oss", "glm4_moe", "deepseek_v2", "deepseek_v3", "kimi_k2",
)  # fmt: skip
"""Values of ``model_type`` whose layers are as counted here."""
LATENT = ("deepseek_v2", "deepseek_v3", "kimi_k2")
"""Those with multi-head latent attention."""
MOST_LAYERS = 10_000
"""Far more than any model has; what is counted layer by layer is as long."""
_TIED = ("gemma", "gemma2", "gemma3_text")
"""Models whose output matrix is the embedding unless their configuration says otherwise."""
_WINDOWED = ("mistral", "mixtral", "phi3")
"""Models that slide their window in every layer."""
_FULL_EVERY = {"gemma2": 2, "gemma3_text": 6}
"""Models in which every so many layers one attends to everything and the others slide; their configuration need not
say so (Gemma2Config and Gemma3TextConfig of transformers 5.19)."""
_VOCABULARY = {"gemma3_text": 262_208}
"""Sizes of vocabularies that a configuration may leave out, as that of Gemma 3 27B does (transformers 5.19)."""
_HEADS = {"gemma": 256, "gemma2": 256, "gemma3_text": 256, "qwen3": 128, "gpt_oss": 64}
"""Widths of heads where ``head_dim`` is left out, as Gemma 3 12B does (transformers 5.19); of the other models, Qwen3's
mixtures among them, vLLM then divides the hidden size by the heads."""
_KEY_VALUE_HEADS = {
    "mistral": 8, "mixtral": 8, "gemma": 16, "gemma2": 4, "gemma3_text": 4, "qwen2": 32, "qwen2_moe": 16, "qwen3": 32,
    "qwen3_moe": 4, "gpt_oss": 8, "glm4_moe": 8,
}  # fmt: skip
"""Heads of keys and values where ``num_key_value_heads`` is left out (transformers 5.19); other models, and those that
give it as null, have one for each head of queries."""
_QUANTISED = ("quantization_config", "compression_config")


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration of a multimodal model's text part; any other as it is."""
    inner = config.get("text_config")
    if not isinstance(inner, dict):
        return config
    outer = {name: config[name] for name in ("tie_word_embeddings",) if name in config}
    # vLLM asks the text part for a quantisation or a data type only where the whole has none.
    if any(config.get(name) is not None for name in _QUANTISED):
        outer |= {name: config.get(name) for name in _QUANTISED}
    kind = config.get("torch_dtype") or config.get("dtype")
    return {**inner, **outer, **({"torch_dtype": kind} if kind else {})}


def require_known(config: Mapping[str, Any]) -> None:
    """See that the layers of a model are as counted here.

    Raises:
        UsageError: They are not.
    """
    kind = config.get("model_type")
    if kind not in KNOWN:
        raise UsageError(
            f"decode steps of model_type {kind!r} are not counted", remedy=f"Counted are {', '.join(KNOWN)}."
        )
    if bool(config.get("kv_lora_rank")) != (kind in LATENT):
        raise UsageError(f"kv_lora_rank {config.get('kv_lora_rank')!r} in a model of type {kind} is not counted",
                         remedy=f"Latent attention is counted for {', '.join(LATENT)}.")  # fmt: skip
    if any("linear" in str(layer) or "mamba" in str(layer) for layer in config.get("layer_types") or ()):
        raise UsageError("layers without a KV cache (layer_types) are not counted")


def layer_count(config: Mapping[str, Any]) -> int:
    """Decoder layers; those of a head that predicts several tokens are not among them."""
    if (layers := whole(config, "num_hidden_layers")) > MOST_LAYERS:
        raise UsageError(f"config.json has num_hidden_layers {layers}; at most {MOST_LAYERS} are counted")
    return layers


def routed_layers(config: Mapping[str, Any]) -> int:
    """Layers with experts in place of one MLP."""
    layers = layer_count(config)
    if not expert_count(config):
        return 0
    dense = set(config.get("mlp_only_layers") or ())
    first, every = int(config.get("first_k_dense_replace") or 0), int(config.get("decoder_sparse_step") or 1)
    stride = int(config.get("moe_layer_freq") or 1)  # DeepSeek's, counted from the first layer
    return sum(
        layer >= first and layer not in dense and (layer + 1) % every == 0 and layer % stride == 0
        for layer in range(layers)
    )


def expert_count(config: Mapping[str, Any]) -> int:
    """Experts of a routed layer, without those that every token passes; 0 for a dense model."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    return next((int(config[name]) for name in names if config.get(name)), 0)


def head_width(config: Mapping[str, Any]) -> int:
    """Elements of a head's query."""
    width = config.get("head_dim") or _HEADS.get(str(config.get("model_type")))
    return int(width or whole(config, "hidden_size") // whole(config, "num_attention_heads"))


def key_value_heads(config: Mapping[str, Any]) -> int:
    """Heads of keys and values."""
    default = None if "num_key_value_heads" in config else _KEY_VALUE_HEADS.get(str(config.get("model_type")))
    heads = config.get("num_key_value_heads") or default
    return whole({"num_key_value_heads": heads or whole(config, "num_attention_heads")}, "num_key_value_heads")


def vocabulary(config: Mapping[str, Any]) -> int:
    """Rows of the embedding table."""
    return whole({"vocab_size": _VOCABULARY.get(config["model_type"]), **config}, "vocab_size")


def is_tied(config: Mapping[str, Any]) -> bool:
    """True where the embedding table is the output matrix too."""
    return bool(config.get("tie_word_embeddings", config["model_type"] in _TIED))


def spans(config: Mapping[str, Any], input_tokens: int, output_tokens: int) -> list[float]:
    """For each layer the tokens a request attends to, mean over the decode steps; a sliding window ends it."""
    layers, window = layer_count(config), config.get("sliding_window")
    contexts = range(input_tokens + 1, input_tokens + output_tokens)  # the step's own token included
    full = sum(contexts) / len(contexts)
    if not window or config.get("use_sliding_window") is False:
        return [full] * layers
    kinds = config.get("layer_types") or _alternating(config)
    if kinds is None and config["model_type"] not in _WINDOWED:
        if contexts[-1] <= window:
            return [full] * layers
        raise UsageError("config.json has a sliding_window and no layer_types that say in which layers it slides")
    cut = sum(min(context, window) for context in contexts) / len(contexts)
    slides = ["sliding" in kind for kind in kinds] if kinds is not None else [True] * layers
    if len(slides) != layers:
        raise UsageError(f"config.json has {len(slides)} layer_types for {layers} layers")
    return [cut if slid else full for slid in slides]


def _alternating(config: Mapping[str, Any]) -> list[str] | None:
    """Kinds of layers of a model whose windows follow a pattern; ``None`` for any other."""
    every = config.get("sliding_window_pattern") or _FULL_EVERY.get(config["model_type"])
    if every is None:
        return None
    return ["sliding" if layer % int(every) else "full" for layer in range(1, layer_count(config) + 1)]


def whole(config: Mapping[str, Any], *names: str) -> int:
    """A positive whole number by the first name that is there.

    Raises:
        UsageError: There is none, or it is something else.
    """
    value = next((config[name] for name in names if config.get(name) is not None), None)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"config.json has {names[0]} {value!r}, expected a positive whole number")
    return value
