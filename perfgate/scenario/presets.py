"""Presets: a scenario as it is measured in seconds, in minutes, or over all that a machine can scale."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from perfgate.counters.model_shape import text_part
from perfgate.counters.transformer import read_config
from perfgate.errors import UsageError
from perfgate.scenario.declaration import LoadedScenario, loads, model_folder
from perfgate.scenario.workload import Workload
from perfgate.scenario.yaml_writing import replace_block

QUICK_ITERATIONS, QUICK_WARMUP = 5, 1
ENVELOPE = ("per_decode_step", "unlisted")
"""Of the ``kernels:`` block."""
OTHER_GROUPS = ("pipeline_parallel_size", "data_parallel_size")
"""Engine arguments that multiply the GPUs which tensor parallelism takes."""
BATCH_STEP = 4
"""Each batch of a curve is so many times the one before it."""


def with_preset(loaded: LoadedScenario, preset: str, gpus: int) -> LoadedScenario:
    """A scenario as a preset measures it.

    Args:
        loaded: The scenario.
        preset: ``quick``: the first cell of its matrix, few iterations. ``comprehensive``: as it is. ``scaling``: a
            matrix over batch, lengths and tensor parallel size; what its own matrix has is kept. Its envelope was
            learnt of other batches, and is left out where there are cells that it does not declare.
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
    own = {key: list(values) for key, values in scenario.matrix.items()}
    sizes = {key: values for key, values in _sizes(loaded, scenario.workload, gpus) if len(values) > 1}
    if sizes | own == own:
        return loaded
    scaled = _replaced(loaded, "matrix", sizes | own)
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
    yield "batch", sorted({*_steps(1, most - 1, BATCH_STEP), workload.batch, most})
    longest = args.get("max_model_len")
    room = workload.input_tokens
    if isinstance(longest, int) and workload.images is None:  # how much of it images take is not known
        room = longest - workload.output_tokens
    yield "input_tokens", [*dict.fromkeys([workload.input_tokens, *_steps(workload.input_tokens, room, 2)[-1:]])]
    others = [args.get(key, 1) for key in OTHER_GROUPS]
    known = [size for size in others if isinstance(size, int)]
    if known == others and not loaded.scenario.matrix.keys() & {*OTHER_GROUPS}:
        heads, least = _heads(loaded), args.get("tensor_parallel_size", 1)
        sizes = _steps(least if isinstance(least, int) else 1, gpus // math.prod(known), 2)
        yield "tensor_parallel_size", [size for size in sizes if heads % size == 0]


def _steps(first: int, most: int, factor: int) -> list[int]:
    """The first, and each so many times the one before it, up to the most."""
    found = []
    while first <= most:
        found.append(first)
        first *= factor
    return found


def _heads(loaded: LoadedScenario) -> int:
    """Attention heads of the model, which tensor parallelism divides; 0, which any number divides, if unknown."""
    folder = model_folder(loaded)
    heads = text_part(read_config(folder)).get("num_attention_heads") if folder else None
    return heads if isinstance(heads, int) else 0
