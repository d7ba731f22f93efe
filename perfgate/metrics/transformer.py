"""What one decode step of a model must move and compute, from its ``config.json`` and the engine's arguments alone.

Counted for one GPU of a tensor-parallel group. Only models whose layers are understood are counted: a decoder with
grouped, full or latent attention and gated MLPs, dense or a mixture of experts. Anything else is refused, because a
count that forgets a part is not a floor. Biases and norms within a layer's attention are left out (below 0.2 %).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfgate.errors import UsageError
from perfgate.machine.json_text import read_json
from perfgate.metrics.gpu_roofs import Precision
from perfgate.metrics.model_shape import is_tied, layer_count, require_known, spans, text_part, vocabulary, whole
from perfgate.metrics.quantization import WIDTHS, Formats, checkpoint_quantisation, weight_formats
from perfgate.metrics.weight_matrices import ABSORBED, attention, matrices

REFUSED_SIZES = (
    "pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size",
)  # fmt: skip
"""Engine arguments that split a step in a way that is not counted; 1 and nothing are fine."""
REFUSED_ARGS = (
    "speculative_config", "spec_method", "spec_model", "enable_expert_parallel", "cpu_offload_gb", "offload_group_size",
    "quantization_config", "kv_cache_dtype_skip_layers", "hf_overrides", "hf_config_path",
)  # fmt: skip
"""Engine arguments under which a step is another one, or weights are in the host's memory; 0 and nothing are fine."""
LONGEST_TEXT = 300
QUANTISED_BESIDE = "hf_quant_config.json"
"""Where ModelOpt before 0.31 wrote what it now writes into ``config.json``."""
QUANTISED_BY = (QUANTISED_BESIDE, "quantize_config.json", "quant_config.json", "quantization_config.json")
"""The files beside ``config.json`` by which vLLM quantises: ``get_config_filenames`` of its methods."""
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


def read_config(folder: Path) -> dict[str, Any]:
    """The ``config.json`` of a model's folder.

    Where vLLM would read :data:`QUANTISED_BESIDE` too, a key of that name says so: then no step is counted.

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
    if config.get("quantization_config") is None and (beside := folder / QUANTISED_BESIDE).is_file():
        config[QUANTISED_BESIDE] = str(beside)
    return config


def step_demand(
    config: Mapping[str, Any], args: Mapping[str, Any], *, batch: int, input_tokens: int, output_tokens: int
) -> StepDemand:
    """What the mean decode step of a workload needs.

    Args:
        config: The model's ``config.json`` by :func:`read_config`; of a multimodal one the text part is counted.
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
    _require_one_file(config)
    config = text_part(config)
    require_known(config)
    _refuse(args)
    parallel = int(1 if (size := args.get("tensor_parallel_size")) is None else size)
    if parallel < 1:
        raise UsageError(f"tensor_parallel_size {parallel} is not counted, expected at least 1")
    formats = weight_formats(config, args)
    layers, hidden, wide = layer_count(config), whole(config, "hidden_size"), formats.plain.bytes_each
    all_matrices = tuple(
        (m, m.elements * formats.of(m.family).bytes_for(m.inputs)) for m in matrices(config, batch, parallel)
    )
    norms = (2 * layers + 1) * hidden * wide
    tied, table = is_tied(config), vocabulary(config) * hidden * wide / parallel
    beside = norms + (0 if tied else batch * hidden * wide / parallel)
    token, attended = attention(config, parallel), sum(spans(config, input_tokens, output_tokens))
    kv_bytes = _kv_bytes(config, args, formats)
    kv_token = token.cached * kv_bytes
    # Backends that quantise the query multiply an FP8 cache at FP8, others widen it: a floor takes the faster rate.
    operations: dict[Precision, float] = {"fp8" if kv_bytes == 1 else "fp16": batch * token.operations * attended}
    for m, _ in all_matrices:
        precision = formats.of(m.family).operations
        operations[precision] = operations.get(precision, 0.0) + 2 * batch * m.elements * m.used
    held = sum(m.count * size for m, size in all_matrices) + norms + (0 if tied else table)
    if "attention" in formats.families:  # what was absorbed is kept beside what was loaded
        absorbed = (m for m, _ in all_matrices if m.family == ABSORBED)
        held += sum(m.count * m.elements * formats.quantised.bytes_for(m.inputs) for m in absorbed)
    return StepDemand(
        weights_held=held,
        weights_read=sum(m.read * size for m, size in all_matrices) + beside,
        kv_read=batch * attended * kv_token,
        kv_written=batch * layers * kv_token,
        operations=operations,
    )


def _kv_bytes(config: Mapping[str, Any], args: Mapping[str, Any], formats: Formats) -> float:
    kind = str(args.get("kv_cache_dtype") or "auto")
    if kind == "auto":
        return _kv_bytes_of_checkpoint(checkpoint_quantisation(config), formats)
    if kind in _KV_FP8:
        return 1.0
    if kind in WIDTHS:
        return WIDTHS[kind]
    raise UsageError(f"kv_cache_dtype {kind!r} is not counted", remedy=f"Counted are auto, {', '.join(_KV_FP8)}.")


def _kv_bytes_of_checkpoint(quantisation: Mapping[str, Any], formats: Formats) -> float:
    """What a checkpoint asks for: a scheme, or ModelOpt's name of an algorithm, which may be one level down."""
    modelopt = str(quantisation.get("quant_method", "")).lower().startswith("modelopt")
    names = ("kv_cache_scheme", "kv_cache_quant_algo") if modelopt else ("kv_cache_scheme",)
    places = (quantisation.get("quantization") or {}, quantisation) if modelopt else (quantisation,)
    asked = next((place[name] for name in names for place in places if place.get(name)), None)
    if asked is None:
        return formats.plain.bytes_each
    if isinstance(asked, dict) and asked.get("num_bits") == 8 and asked.get("type") == "float":  # noqa: PLR2004
        return 1.0
    if isinstance(asked, str) and asked.lower() == "fp8":
        return 1.0
    raise UsageError(f"quantization_config asks for a KV cache of {asked!r}, which is not counted"[:LONGEST_TEXT])


def _require_one_file(config: Mapping[str, Any]) -> None:
    """See that all that vLLM reads of a model's sizes is in ``config.json``, which alone is counted.

    Raises:
        UsageError: It is not.
    """
    if beside := config.get(QUANTISED_BESIDE):
        raise UsageError(
            f"{QUANTISED_BESIDE} beside config.json is not counted",
            where=str(beside),
            remedy="Copy its content as quantization_config into config.json, where vLLM reads it first.",
        )


def _refuse(args: Mapping[str, Any]) -> None:
    for name in (*REFUSED_SIZES, *REFUSED_ARGS):
        if args.get(name) and not (name in REFUSED_SIZES and args[name] == 1):
            raise UsageError(f"steps under {name} are not counted")
