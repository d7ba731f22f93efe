"""What one decode step of a model must move and compute, from its ``config.json`` and the engine's arguments alone.

Counted for one GPU of a tensor-parallel group. Only models whose layers are understood are counted: a decoder with
grouped or full attention and a gated MLP, dense or a mixture of experts. Anything else is refused, because a count that
forgets a part is not a floor. Biases and the routers' own few weights are left out (below 0.1 %).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfgate.counters.gpu_roofs import Precision
from perfgate.counters.quantization import WIDTHS, Formats, weight_formats
from perfgate.errors import UsageError
from perfgate.machine.json_text import read_json

KNOWN = (
    "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text", "phi3",
    "granite", "olmo2", "olmoe", "gpt_oss",
)  # fmt: skip
"""Values of ``model_type`` whose layers are as counted here."""
REFUSED_SIZES = (
    "pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size",
)  # fmt: skip
"""Engine arguments that split a step in a way that is not counted; 1 and nothing are fine."""
REFUSED_ARGS = (
    "speculative_config", "spec_method", "spec_model", "enable_expert_parallel", "cpu_offload_gb", "offload_group_size",
    "quantization_config", "kv_cache_dtype_skip_layers", "hf_overrides", "hf_config_path",
)  # fmt: skip
"""Engine arguments under which a step is another one, or weights are in the host's memory; 0 and nothing are fine."""
MOST_LAYERS = 10_000
"""Far more than any model has; what is counted layer by layer is as long."""
LONGEST_TEXT = 300
_TIED = ("gemma", "gemma2", "gemma3_text")
"""Models whose output matrix is the embedding unless their configuration says otherwise."""
_WINDOWED = ("mistral", "mixtral", "phi3")
"""Models that slide their window in every layer."""
_FULL_EVERY = {"gemma2": 2, "gemma3_text": 6}
"""Models in which every so many layers one attends to everything and the others slide; their configuration need not
say so (Gemma2Config and Gemma3TextConfig of transformers 5.19)."""
_VOCABULARY = {"gemma3_text": 262_208}
"""Sizes of vocabularies that a configuration may leave out, as that of Gemma 3 27B does (transformers 5.19)."""
_KV_FP8 = ("fp8", "fp8_e4m3", "fp8_e5m2")


@dataclass(frozen=True)
class StepDemand:
    """What one decode step needs of one GPU; everything in bytes but the operations.

    What kernels hand to each other is not counted: it may stay in L2, and a floor holds what cannot be avoided.

    Args:
        weights_held: All weights, embedding table included: what the engine loads.
        weights_read: Those that a step reads, each once: all matrices and norms, of the experts those that the batch is
            expected to choose, of an untied embedding table only the batch's rows.
        kv_read: Keys and values of all requests at the mean context of the workload.
        kv_written: Those of the step's own tokens.
        operations: By the precision they run at; a multiplication and an addition are two.
    """

    weights_held: float
    weights_read: float
    kv_read: float
    kv_written: float
    operations: Mapping[Precision, float]

    @property
    def bytes_moved(self) -> float:
        """All bytes of a step that device memory must move."""
        return self.weights_read + self.kv_read + self.kv_written


@dataclass(frozen=True)
class _Matrix:
    """A product's matrix, ``count`` of them alike, of which a step reads ``read`` and each token passes ``used``."""

    family: str
    inputs: int
    outputs: int
    count: float
    read: float
    used: float


def read_config(folder: Path) -> dict[str, Any]:
    """The ``config.json`` of a model's folder.

    Raises:
        UsageError: It is not there, or no JSON object.
    """
    file = folder / "config.json"
    try:
        config = read_json(file, finite=False)  # Mamba-2's time_step_limit ends with Infinity
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot be read: {error}", where=str(file)) from error
    if not isinstance(config, dict):
        raise UsageError("not a JSON object", where=str(file))
    return config


def step_demand(
    config: Mapping[str, Any], args: Mapping[str, Any], *, batch: int, input_tokens: int, output_tokens: int
) -> StepDemand:
    """What the mean decode step of a workload needs.

    Args:
        config: The model's ``config.json``; of a multimodal one the text part is counted.
        args: The scenario's engine arguments; ``dtype``, ``quantization``, ``kv_cache_dtype`` and
            ``tensor_parallel_size`` matter.
        batch: Requests decoded together, at least 1.
        input_tokens: Prompt of each, at least 1.
        output_tokens: Tokens generated for each, at least 2: the first is prefill's.

    Raises:
        UsageError: A model, quantisation or argument that is not counted here, or a configuration of another shape.
    """
    try:
        demand = _step_demand(config, args, batch, input_tokens, output_tokens)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        text = f"config.json has another shape than is counted: {type(error).__name__}: {error}"
        raise UsageError(text[:LONGEST_TEXT]) from error
    if not math.isfinite(demand.bytes_moved + demand.weights_held + sum(demand.operations.values())):
        raise UsageError("config.json has sizes that give no number of bytes")
    return demand


def _step_demand(
    config: Mapping[str, Any], args: Mapping[str, Any], batch: int, input_tokens: int, output_tokens: int
) -> StepDemand:
    if batch < 1 or input_tokens < 1 or output_tokens < 2:  # noqa: PLR2004 (see above)
        raise UsageError(f"batch {batch}, {input_tokens} + {output_tokens} tokens has no decode step")
    config = _text_part(config)
    _refuse(config, args)
    parallel = int(args.get("tensor_parallel_size") or 1)
    formats = weight_formats(config, args)
    layers, heads, width = _layers(config), _whole(config, "num_attention_heads"), _head_width(config)
    kv_heads = max(int(config.get("num_key_value_heads") or heads) / parallel, 1.0)
    matrices = tuple(_matrices(config, batch))
    hidden, vocabulary = _whole(config, "hidden_size"), _vocabulary(config)
    tied = bool(config.get("tie_word_embeddings", config["model_type"] in _TIED))
    wide = formats.plain.bytes_each
    norms = (2 * layers + 1) * hidden * wide
    held = sum(m.inputs * m.outputs * m.count * formats.of(m.family).bytes_each for m in matrices)
    read = sum(m.inputs * m.outputs * m.read * formats.of(m.family).bytes_each for m in matrices)
    table = vocabulary * hidden * wide
    spans = _spans(config, input_tokens, output_tokens)
    attended = sum(spans)  # tokens over all layers
    kv_token = 2 * kv_heads * width * _kv_bytes(config, args, formats)
    return StepDemand(
        weights_held=(held + (0 if tied else table)) / parallel + norms,
        weights_read=(read + (0 if tied else batch * hidden * wide)) / parallel + norms,
        kv_read=batch * attended * kv_token,
        kv_written=batch * layers * kv_token,
        operations=_operations(matrices, formats, batch, 4 * heads * width * attended, parallel),
    )


def _operations(
    matrices: Iterable[_Matrix], formats: Formats, batch: int, attention: float, parallel: int
) -> dict[Precision, float]:
    """Two for each weight a token passes; attention, ``attention`` a request, runs at fp16 whatever the cache holds."""
    operations: dict[Precision, float] = {"fp16": batch * attention / parallel}
    for m in matrices:
        precision = formats.of(m.family).operations
        operations[precision] = operations.get(precision, 0.0) + 2 * batch * m.inputs * m.outputs * m.used / parallel
    return operations


def _matrices(config: Mapping[str, Any], batch: int) -> Iterable[_Matrix]:
    """Every matrix of the model but the embedding table."""
    hidden, heads, width = _whole(config, "hidden_size"), _whole(config, "num_attention_heads"), _head_width(config)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    layers = _layers(config)
    yield _Matrix("attention", hidden, (heads + 2 * kv_heads) * width, layers, layers, layers)
    yield _Matrix("attention", heads * width, hidden, layers, layers, layers)
    routed = _routed_layers(config)
    if layers - routed:
        yield from _mlp("mlp", hidden, _whole(config, "intermediate_size"), [layers - routed] * 3)
    if routed:
        yield from _experts(config, hidden, routed, batch)
    yield _Matrix("lm-head", hidden, _vocabulary(config), 1, 1, 1)


def _mlp(family: str, hidden: int, inner: int, counts: Sequence[float]) -> Iterable[_Matrix]:
    """Both products of a gated MLP; ``counts`` are how many of each there are, are read, and a token passes."""
    yield _Matrix(family, hidden, 2 * inner, *counts)
    yield _Matrix(family, inner, hidden, *counts)


def _experts(config: Mapping[str, Any], hidden: int, layers: int, batch: int) -> Iterable[_Matrix]:
    experts, chosen = _expert_count(config), _whole(config, "num_experts_per_tok", "experts_per_token")
    inner = int(config.get("moe_intermediate_size") or _whole(config, "intermediate_size"))
    # A token that chooses evenly misses a given expert with probability 1 - chosen / experts; dummy and trained routers
    # choose less evenly, so this is the usual estimate and not a bound. The bounds are chosen and batch x chosen.
    met = experts * (1 - (1 - chosen / experts) ** batch)
    yield from _mlp("experts", hidden, inner, (layers * experts, layers * met, layers * chosen))
    shared = int(config.get("shared_expert_intermediate_size") or int(config.get("n_shared_experts") or 0) * inner)
    if shared:
        yield from _mlp("mlp", hidden, shared, [layers] * 3)


def _routed_layers(config: Mapping[str, Any]) -> int:
    """Layers with experts in place of one MLP."""
    layers = _layers(config)
    if not _expert_count(config):
        return 0
    dense = set(config.get("mlp_only_layers") or ())
    first, every = int(config.get("first_k_dense_replace") or 0), int(config.get("decoder_sparse_step") or 1)
    return sum(layer >= first and layer not in dense and (layer + 1) % every == 0 for layer in range(layers))


def _expert_count(config: Mapping[str, Any]) -> int:
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    return next((int(config[name]) for name in names if config.get(name)), 0)


def _spans(config: Mapping[str, Any], input_tokens: int, output_tokens: int) -> list[float]:
    """For each layer the tokens a request attends to, mean over the decode steps; a sliding window ends it."""
    layers, window = _layers(config), config.get("sliding_window")
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
    layers = range(1, _layers(config) + 1)
    return ["sliding" if layer % int(every) else "full" for layer in layers]


def _kv_bytes(config: Mapping[str, Any], args: Mapping[str, Any], formats: Formats) -> float:
    kind = str(args.get("kv_cache_dtype") or "auto")
    if kind == "auto":
        scheme = (config.get("quantization_config") or {}).get("kv_cache_scheme")
        return 1.0 if scheme else formats.plain.bytes_each
    if kind in _KV_FP8:
        return 1.0
    if kind in WIDTHS:
        return WIDTHS[kind]
    raise UsageError(f"kv_cache_dtype {kind!r} is not counted", remedy=f"Counted are auto, {', '.join(_KV_FP8)}.")


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("text_config")
    if not isinstance(inner, dict):
        return config
    outer = {name: config[name] for name in ("quantization_config", "tie_word_embeddings") if name in config}
    kind = config.get("torch_dtype") or config.get("dtype")  # vLLM asks the text part only where the whole has none
    return {**inner, **outer, **({"torch_dtype": kind} if kind else {})}


def _refuse(config: Mapping[str, Any], args: Mapping[str, Any]) -> None:
    kind = config.get("model_type")
    if kind not in KNOWN:
        remedy = f"Counted are {', '.join(KNOWN)}."
        raise UsageError(f"decode steps of model_type {kind!r} are not counted", remedy=remedy)
    if config.get("kv_lora_rank"):
        raise UsageError("multi-head latent attention (kv_lora_rank) is not counted")
    if any("linear" in str(layer) or "mamba" in str(layer) for layer in config.get("layer_types") or ()):
        raise UsageError("layers without a KV cache (layer_types) are not counted")
    for name in (*REFUSED_SIZES, *REFUSED_ARGS):
        if args.get(name) and not (name in REFUSED_SIZES and args[name] == 1):
            raise UsageError(f"steps under {name} are not counted")


def _head_width(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or _whole(config, "hidden_size") // _whole(config, "num_attention_heads"))


def _vocabulary(config: Mapping[str, Any]) -> int:
    return _whole({"vocab_size": _VOCABULARY.get(config["model_type"]), **config}, "vocab_size")


def _layers(config: Mapping[str, Any]) -> int:
    if (layers := _whole(config, "num_hidden_layers")) > MOST_LAYERS:
        raise UsageError(f"config.json has num_hidden_layers {layers}; at most {MOST_LAYERS} are counted")
    return layers


def _whole(config: Mapping[str, Any], *names: str) -> int:
    """A positive whole number by the first name that is there."""
    value = next((config[name] for name in names if config.get(name) is not None), None)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"config.json has {names[0]} {value!r}, expected a positive whole number")
    return value
