"""How many bytes a weight takes and at which precision it is multiplied, by ``quantization_config`` and arguments."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from perfgate.errors import UsageError
from perfgate.metrics.gpu_roofs import Precision
from perfgate.metrics.model_shape import expert_count

WIDTHS = {"bfloat16": 2.0, "float16": 2.0, "half": 2.0}
"""Bytes of the data types that decode runs in unquantised; float32 runs on other pipes, and no roof is known for it."""
_HALVED = ("float32", "float")
"""What vLLM runs at half the width where ``dtype`` is ``auto``: at bfloat16, or float16 where a GPU has none."""
_UNTOUCHED = re.compile(r"lm_head|\w*embed\w*|\w*norm\d*|router|gate|shared_expert_gate")
"""Modules that are never counted as quantised, so that an ignore list may name them: the last part of their names."""
_SEEING = re.compile(r"\w*vision\w*|visual\w*|mm_projector|multi_modal_projector")
"""Parts of names below which nothing is counted: encoders of images, and what leads from them to the text part."""
_ATTENTION = re.compile(r"[\w.*-]*attn[.*_]*(?:\[qkvo\][.*_]*)?(?:proj)?[.*]*")
"""Names that end with attention as a whole, whatever wildcards follow."""
_LISTS = ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules", "llm_int8_skip_modules")
_RULES = ("dynamic", "lm_head", "modules_in_block_to_quantize")
"""What GPTQ's and AWQ's configurations say of single modules; nothing and ``false`` change none."""
_LINEAR = frozenset({"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
                     "mlp.up_proj", "mlp.down_proj"})  # fmt: skip
"""All linear layers of a dense model: without its weights' files vLLM quantises of GPTQ's only what is named."""
_ANYTHING = re.compile(r"\.[*+]\??|\\d\+|\[0-9\]\+")
_GROUP = re.compile(r"\((?:\?:)?([^()]*)\)")
MOST_ALTERNATIVES = 64
"""Of a regular expression in an ignore list, about as many; those of checkpoints have a handful."""
LONGEST_ENTRY = 300
"""Characters of an entry; one that is longer is refused unread."""
_SHOWN = 100


@dataclass(frozen=True)
class Format:
    """How weights are stored and multiplied.

    Args:
        bytes_each: Of a weight, its share of a group's or block's scales and zero points included.
        operations: The precision of the product.
        bytes_row: Of the scale, and zero point, that a row of the matrix (an output) has for itself.
    """

    bytes_each: float
    operations: Precision
    bytes_row: float = 0.0

    def bytes_for(self, inputs: int) -> float:
        """Bytes of a weight in a matrix whose rows have so many."""
        return self.bytes_each + self.bytes_row / inputs


@dataclass(frozen=True)
class Formats:
    """Formats by family of matrices.

    Args:
        plain: Of what is not quantised: the output matrix, embeddings and norms at least.
        quantised: Of what is.
        families: Which families are: ``attention``, ``mlp``, ``experts``.
    """

    plain: Format
    quantised: Format
    families: frozenset[str]

    def of(self, family: str) -> Format:
        """The format of a family."""
        return self.quantised if family in self.families else self.plain


def weight_formats(config: Mapping[str, Any], args: Mapping[str, Any]) -> Formats:
    """How the matrices of a model are stored and multiplied.

    Raises:
        UsageError: A data type or quantisation that is not counted.
    """
    plain = _plain(config, args)
    linear = frozenset({"attention", "mlp", "experts"})
    quantisation = checkpoint_quantisation(config)
    if not quantisation:
        method = args.get("quantization")
        if method is None:
            return Formats(plain, plain, frozenset())
        if (online := _ONLINE.get(str(method))) is not None:  # vLLM quantises while it loads
            return Formats(plain, online(plain), linear)
        raise UsageError(f"quantization {method!r} without a quantization_config in config.json is not counted")
    method = quantisation["quant_method"]
    reader = _METHODS.get(method)
    if reader is None:
        raise UsageError(f"quant_method {method!r} is not counted", remedy=f"Counted are {', '.join(_METHODS)}.")
    if quantisation.get("modules_in_block_to_quantize") and (expert_count(config) or config.get("kv_lora_rank")):
        raise UsageError("modules_in_block_to_quantize of a model with experts or latent attention is not counted")
    families = (frozenset({"experts"}) if method == "mxfp4" else linear) - _ignored(quantisation)
    return Formats(plain, reader(quantisation, plain), families)


def checkpoint_quantisation(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a checkpoint says of its quantisation, its method named as vLLM names it; empty if it is not quantised.

    As vLLM 0.32 reads it: ``compression_config`` where there is no ``quantization_config``, and ModelOpt's known by its
    producer.

    Args:
        config: As :func:`perfgate.metrics.model_shape.text_part` returns it.
    """
    section = config.get("quantization_config")
    section = config.get("compression_config") if section is None else section
    if not section:
        return {}
    method, inner = str(section.get("quant_method") or "").lower(), section.get("quantization")
    if isinstance(inner, dict) and inner.get("quant_algo") and (
        (section.get("producer") or {}).get("name") == "modelopt" or "modelopt_quant_config" in inner
    ):  # fmt: skip
        method = "modelopt"
    return {**section, "quant_method": method.replace("compressed_tensors", "compressed-tensors")}


def _plain(config: Mapping[str, Any], args: Mapping[str, Any]) -> Format:
    name = str(args.get("dtype") or "auto").lower()
    if name == "auto":
        name = str(config.get("torch_dtype") or config.get("dtype") or "").removeprefix("torch.")
        name = "bfloat16" if name in _HALVED else name
    if name not in WIDTHS:
        raise UsageError(f"dtype {name or 'unknown'!r} is not counted", remedy=f"Counted are {', '.join(WIDTHS)}.")
    return Format(WIDTHS[name], "fp16")


def _fp8(quantisation: Mapping[str, Any], _plain: Format) -> Format:
    block = quantisation.get("weight_block_size")
    return Format(1.0 + (4 / (block[0] * block[1]) if block else 0.0), "fp8")


def _grouped(quantisation: Mapping[str, Any], plain: Format) -> Format:
    """GPTQ and AWQ: a group shares a 16-bit scale and a zero point; multiplied at the plain precision.

    Symmetric weights have no zero points: a checkpoint may store them, no kernel reads them.

    Raises:
        UsageError: It has rules for single modules.
    """
    for name in _RULES:
        if (rule := quantisation.get(name)) and not (name == "modules_in_block_to_quantize" and _names_all(rule)):
            raise UsageError(f"quantization_config has {name} {_shown(rule)}: single modules are not counted",
                             remedy="Counted is one format of all linear layers but lm_head.")  # fmt: skip
    bits, group = _bits(quantisation.get("bits", quantisation.get("w_bit"))), quantisation.get("group_size", 128)
    symmetric = quantisation.get("sym") is True or quantisation.get("zero_point") is False
    return _scaled(bits / 8, group, 2 + (0.0 if symmetric else bits / 8), plain.operations)


def _names_all(modules: Any) -> bool:
    """Whether a list of modules, or of lists of them, is of all linear layers of a dense model."""
    lists = [each if isinstance(each, list) else [each] for each in modules] if isinstance(modules, list) else []
    return {str(name) for each in lists for name in each} == _LINEAR


def _scaled(width: float, group: int, scale: float, operations: Precision) -> Format:
    """Weights of ``width`` bytes with ``scale`` bytes for each group of a row, or each row where there are none."""
    return Format(width + scale / group, operations) if group > 0 else Format(width, operations, bytes_row=scale)


def _mxfp4(_quantisation: Mapping[str, Any], plain: Format) -> Format:
    """4 bits and a byte of scale for 32 weights (OCP Microscaling 1.0); counted as widened before the product."""
    return Format(0.5 + 1 / 32, plain.operations)


def _modelopt(quantisation: Mapping[str, Any], plain: Format) -> Format:
    """FP8 or NVFP4, in vLLM 0.32 of the output matrix as well unless the checkpoint leaves it out.

    Raises:
        UsageError: It does not, or the algorithm is not counted.
    """
    algorithm = str(
        quantisation.get("quant_algo") or (quantisation.get("quantization") or {}).get("quant_algo")
    ).upper()
    if algorithm not in ("FP8", "NVFP4"):
        raise UsageError(f"quant_algo {algorithm!r} is not counted", remedy="Counted are FP8 and NVFP4.")
    if not any("lm_head" in entry for entry in _entries(quantisation)):
        raise UsageError("quantization_config of ModelOpt does not leave out lm_head: a quantised one is not counted",
                         remedy="Counted is what exclude_modules (or ignore) leaves unquantised there.")  # fmt: skip
    return _fp8({}, plain) if algorithm == "FP8" else Format(0.5 + 1 / 16, "fp4")


def _compressed(quantisation: Mapping[str, Any], plain: Format) -> Format:
    groups = list((quantisation.get("config_groups") or {}).values())
    if len(groups) != 1:
        raise UsageError(f"quantization_config has {len(groups)} config_groups; one is counted")
    if (targets := groups[0].get("targets")) != ["Linear"]:
        raise UsageError(f"quantization_config has a group with targets {_shown(targets)}, which is not counted",
                         remedy='Counted is ["Linear"]: all linear layers but those that ignore names.')  # fmt: skip
    weights, inputs = groups[0].get("weights") or {}, groups[0].get("input_activations")
    bits, group = _bits(weights.get("num_bits")), weights.get("group_size") or 0
    real, strategy = weights.get("type") == "float", weights.get("strategy")
    precisions: dict[tuple[int, bool], Precision] = {(8, True): "fp8", (8, False): "int8", (4, True): "fp4"}
    wide = inputs is None or int(inputs.get("num_bits") or 16) > bits
    operations = plain.operations if wide else precisions.get((bits, real), plain.operations)
    if strategy == "block":
        return Format(bits / 8 + 4 / math.prod(weights["block_structure"]), operations)
    if strategy == "tensor" or (strategy is None and group <= 0):
        return Format(bits / 8, operations)
    zero = 0.0 if weights.get("symmetric", True) else bits / 8
    if group > 0:
        scale = 1 if real and bits == 4 else 2  # noqa: PLR2004 (FP4 has 8-bit scales)
        return _scaled(bits / 8, group, scale + zero, operations)
    return _scaled(bits / 8, 0, 4 + zero, operations)  # a channel's scale is kept at 32 bits


def _bitsandbytes(quantisation: Mapping[str, Any], plain: Format) -> Format:
    """NF4 shares a scale among 64 weights and is multiplied at the plain precision, 8 bits at int8.

    The scale has 32 bits; double quantisation makes it 8, and 256 of these share a scale of 32 (QLoRA, section 3).
    """
    if quantisation.get("load_in_4bit"):
        scale = 1 + 4 / 256 if quantisation.get("bnb_4bit_use_double_quant") else 4
        return Format(0.5 + scale / 64, plain.operations)
    return Format(1.0, "int8")


_ONLINE: dict[str, Callable[[Format], Format]] = {
    "fp8": lambda _: Format(1.0, "fp8"),
    "fp8_per_tensor": lambda _: Format(1.0, "fp8"),
    "fp8_per_channel": lambda _: Format(1.0, "fp8", bytes_row=4.0),
    "fp8_per_block": lambda _: Format(1.0 + 4 / 128**2, "fp8"),
    "int8_per_channel_weight_only": lambda plain: Format(1.0, plain.operations, bytes_row=4.0),
    "mxfp8": lambda _: Format(1.0 + 1 / 32, "fp8"),
}
"""What the engine can make of unquantised weights while it loads them (``quantization`` of vLLM 0.32)."""

_METHODS = {
    "fp8": _fp8, "gptq": _grouped, "awq": _grouped, "mxfp4": _mxfp4, "modelopt": _modelopt, "modelopt_fp4": _modelopt,
    "compressed-tensors": _compressed, "bitsandbytes": _bitsandbytes,
}  # fmt: skip


def _ignored(quantisation: Mapping[str, Any]) -> frozenset[str]:
    """Families that an ignore list takes out as a whole.

    Raises:
        UsageError: It names modules that are not a whole family.
    """
    families = set()
    for entry in _entries(quantisation):
        names = _names(entry)
        if all(_is_untouched(name) for name in names):
            continue
        if len(names) == 1 and _ATTENTION.fullmatch(names[0]) and not re.search(r"\d", names[0]):  # no layer by number
            families.add("attention")
            continue
        raise UsageError(f"quantization_config leaves out {_shown(entry)}: single modules are not counted",
                         remedy="Counted are lists of what no method quantises (lm_head, embeddings, norms, routers, "
                                "vision) and entries that are attention as a whole.")  # fmt: skip
    return frozenset(families)


def _entries(quantisation: Mapping[str, Any]) -> list[str]:
    """What is left out, by all names of such lists; ModelOpt's may be one level down, beside the algorithm."""
    inner = quantisation.get("quantization") if quantisation["quant_method"].startswith("modelopt") else None
    places = (quantisation, inner) if isinstance(inner, dict) else (quantisation,)
    return [str(entry) for place in places for name in _LISTS for entry in place.get(name) or ()]


def _names(entry: str) -> list[str]:
    """The names that an entry is for, with ``*`` for anything; of a regular expression one for each alternative.

    What is neither a name nor a wildcard stays as it is, and is then known as no module. An expression without an end
    matches longer names too; vLLM starts no engine where one takes part of a fused matrix, as ``gate`` ``gate_proj``.
    """
    if len(entry) > LONGEST_ENTRY:
        return [""]
    if not entry.startswith("re:"):
        return [entry.replace("[0-9]+", "*")]
    text = entry.removeprefix("re:").removeprefix("^").removesuffix("$")
    names = [_ANYTHING.sub("*", text).replace(r"\.", ".")]
    while len(names) <= MOST_ALTERNATIVES:
        group = next((match for name in names if (match := _GROUP.search(name))), None)
        if group is None:
            break
        names = [name.replace(group[0], part, 1) for name in names for part in group[1].split("|")]
    return [part for name in names for part in name.split("|")]


def _is_untouched(name: str) -> bool:
    """True where a name is that of modules which are never counted as quantised: by its last part, and only as a whole.

    ``gate*`` is more than a router: in a layer with one MLP it takes ``gate_up_proj``.
    """
    parts = re.findall(r"[^.*]+", name)
    if not parts or not re.fullmatch(r"[\w.*-]+", name):
        return False
    if any(_SEEING.fullmatch(part) for part in parts):
        return True
    return _UNTOUCHED.fullmatch(parts[-1]) is not None and not (parts[-1] == "gate" and name.endswith("gate*"))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _bits(value: Any) -> int:
    if value not in (2, 3, 4, 8):
        raise UsageError(f"quantization_config has weights of {value!r} bits; counted are 2, 3, 4 and 8")
    return int(value)
