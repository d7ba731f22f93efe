"""Presets: a scenario as it is measured in seconds, in minutes, or over all that a machine can scale."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from perfgate.errors import UsageError
from perfgate.metrics.model_shape import key_value_heads, text_part
from perfgate.metrics.transformer import read_config
from perfgate.scenario.cache_size import cannot_hold
from perfgate.scenario.declaration import LoadedScenario, loads, model_folder
from perfgate.scenario.workload import Workload
from perfgate.scenario.yaml_writing import replace_block

QUICK_ITERATIONS, QUICK_WARMUP = 5, 1
ENVELOPE = ("per_decode_step", "unlisted")
"""Of the ``kernels:`` block."""
OTHER_GROUPS = ("pipeline_parallel_size", "data_parallel_size")
"""Engine arguments that multiply the GPUs which tensor parallelism takes."""
CAPTURED, MOST_CAPTURED = "cudagraph_capture_sizes", "max_cudagraph_capture_size"
"""Sizes of CUDA graphs, and the largest of them; engine arguments of their own, or of ``compilation_config``."""
BATCH_STEP = 4
"""Each batch of a curve is so many times the one before it."""


def with_preset(loaded: LoadedScenario, preset: str, gpus: int) -> LoadedScenario:
    """A scenario as a preset measures it.

    Args:
        loaded: The scenario.
        preset: ``quick``: the first cell of its matrix, few iterations. ``comprehensive``: as it is. ``scaling``: a
            matrix over batch, lengths and tensor parallel size; what its own matrix has is kept. What a pinned size
            of the KV cache cannot hold is left out. Where sizes of CUDA graphs are declared, each batch has one. Its
            envelope was learnt of other batches, and is left out where there are cells that it does not declare.
        gpus: How many GPUs there are; tensor parallelism is scaled to at most so many.

    Raises:
        UsageError: It declares a load, which has no batch to scale.
        ScenarioError: Its text cannot be edited in place, or there are too many cells.
    """
    scenario = loaded.scenario
    if preset == "comprehensive":
        return loaded
    if preset == "quick":
        measure = scenario.measure
        few = {
            "iterations": min(measure.iterations, QUICK_ITERATIONS),
            "warmup_iterations": min(measure.warmup_iterations, QUICK_WARMUP),
        }
        declared = {key: value for key, value in (loaded.content.get("measure") or {}).items() if key != "choose"}
        first = {key: [values[0]] for key, values in scenario.matrix.items()}
        changed = _replaced(loaded, "matrix", first) if first else loaded
        return _replaced(changed, "measure", declared | few) if isinstance(scenario.workload, Workload) else changed
    if not isinstance(scenario.workload, Workload):
        text = "--preset scaling scales a batch, and the scenario declares a load"
        raise UsageError(text, where=loaded.where("workload"), remedy="Seek its rate: arrival: {find: ...}.")
    matrix = {key: list(values) for key, values in scenario.matrix.items()}
    sizes = {key: values for key, values in _sizes(loaded, scenario.workload, gpus) if len(values) > 1}
    if sizes | matrix == matrix:
        return loaded
    scaled = _replaced(loaded, "matrix", sizes | matrix)
    engine = loaded.content["engine"]
    captured = _captured(scenario.engine.args, _whole(scaled, "batch", [scenario.workload.batch]))
    if captured != scenario.engine.args:
        scaled = _replaced(scaled, "engine", engine | {"args": captured})
    kernels = loaded.content.get("kernels") or {}
    traced = {key: value for key, value in kernels.items() if key not in ENVELOPE}
    return _replaced(scaled, "kernels", traced) if traced != kernels else scaled


def _replaced(loaded: LoadedScenario, key: str, content: Any) -> LoadedScenario:
    return loads(replace_block(loaded.text, loaded.file, key, content), loaded.file)


def _sizes(loaded: LoadedScenario, workload: Workload, gpus: int) -> Iterator[tuple[str, list[int]]]:
    """The values that a scaling run measures, by key of the matrix."""
    args = loaded.scenario.engine.args
    most = args.get("max_num_seqs")
    most = most if isinstance(most, int) else workload.batch
    folder = model_folder(loaded)

    def fits(batch: int, input_tokens: int) -> bool:
        sizes = {"batch": batch, "input_tokens": input_tokens}
        return cannot_hold(folder, args, workload.model_copy(update=sizes)) is None

    batches = sorted({*_steps(1, most - 1, BATCH_STEP), workload.batch, most})
    prompt = max(_whole(loaded, "input_tokens", [workload.input_tokens]))
    batches = [batch for batch in batches if batch == workload.batch or fits(batch, prompt)]
    largest = max(_whole(loaded, "batch", batches))
    yield "batch", batches
    longest = args.get("max_model_len")
    room = workload.input_tokens
    if isinstance(longest, int) and workload.images is None:  # how much of it images take is not known
        room = longest - workload.output_tokens
    longer = [tokens for tokens in _steps(workload.input_tokens, room, 2) if fits(largest, tokens)]
    yield "input_tokens", [*dict.fromkeys([workload.input_tokens, *longer[-1:]])]
    others = [args.get(key, 1) for key in OTHER_GROUPS]
    groups = [size for size in others if isinstance(size, int)]
    if groups == others and not loaded.scenario.matrix.keys() & {*OTHER_GROUPS}:
        least = args.get("tensor_parallel_size", 1)
        sizes = _steps(least if isinstance(least, int) else 1, gpus // math.prod(groups), 2)
        config = text_part(read_config(folder)) if folder else {}
        yield "tensor_parallel_size", [size for size in sizes if _divides(size, config)]


def _whole(loaded: LoadedScenario, key: str, default: list[int]) -> list[int]:
    """The numbers of a key of a scenario's matrix; the default where it has none."""
    return [value for value in loaded.scenario.matrix.get(key, ()) if isinstance(value, int)] or default


def _steps(first: int, most: int, factor: int) -> list[int]:
    """The first, and each so many times the one before it, up to the most."""
    steps = []
    while first <= most:
        steps.append(first)
        first *= factor
    return steps


def _divides(size: int, config: Mapping[str, Any]) -> bool:
    """Whether so many GPUs may share the model's heads; any number may where they are not known.

    Each GPU has as many attention heads. Of keys and values it has whole heads, or each head is on whole GPUs; a latent
    is on every GPU.
    """
    heads = config.get("num_attention_heads")
    if not isinstance(heads, int):
        return True
    shared, latent = key_value_heads(config), config.get("kv_lora_rank") is not None
    return heads % size == 0 and (latent or shared % size == 0 or size % shared == 0)


def _captured(args: Mapping[str, Any], batches: Sequence[int]) -> dict[str, Any]:
    """Engine arguments with a CUDA graph for each batch, where the sizes of graphs are declared.

    A batch beyond the largest size runs without graphs, and one between two sizes as the larger one: neither is what
    the curve is of. Sizes are tokens, so a batch that also checks drafts has one for all of them.
    """
    speculation = args.get("speculative_config")
    drafts = speculation.get("num_speculative_tokens") if isinstance(speculation, dict) else 0
    tokens = {1, 1 + drafts} if isinstance(drafts, int) else {1}
    compilation = args.get("compilation_config")
    inner = _with_sizes(compilation, batches, tokens) if isinstance(compilation, dict) else compilation
    return _with_sizes(args, batches, tokens) | ({"compilation_config": inner} if inner != compilation else {})


def _with_sizes(declared: Mapping[str, Any], batches: Sequence[int], tokens: Collection[int]) -> dict[str, Any]:
    sizes = declared.get(CAPTURED)
    if not isinstance(sizes, list) or not all(type(size) is int for size in sizes):
        return dict(declared)
    every = sorted({*sizes, *(batch * each for batch in batches for each in tokens)})
    largest = {MOST_CAPTURED: every[-1]} if declared.get(MOST_CAPTURED) is not None else {}
    return dict(declared) if every == sorted(sizes) else {**declared, CAPTURED: every, **largest}
