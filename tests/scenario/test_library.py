"""The scenarios of the library: each is priced, has the size of the model that it names, and fits on its GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfgate.cli.main import main
from perfgate.metrics.transformer import StepDemand, read_config, step_demand
from perfgate.scenario.declaration import load
from perfgate.scenario.plan import Cell, resolve_cells

pytestmark = pytest.mark.needs("kernels")

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "scenarios/library").glob("*.yaml"))
CELLS = {cell.name: cell for file in FILES for cell in resolve_cells(load(file))}
GPU_CELLS = [name for name in CELLS if not name.startswith("cpu-")]
H200_BYTES = 141e9

LLAMA_8B, LLAMA_70B = 8.030e9, 70.554e9
LINEAR_8B = 6.980e9
"""Of Llama 8B in the matrices of its layers; the rest stays in 16 bits."""
MIXTRAL_LAYER = 46.703e9 / 32 * 0.9944
"""Of Mixtral 8x7B, without its embedding and output matrices (0.56 %)."""
DEEPSEEK_LAYER, DEEPSEEK_EXPERTS, DEEPSEEK_MLP = 0.18711e9, 11.3183e9, 0.39636e9
"""Of DeepSeek-V3: attention of a layer, 257 experts of one, the MLP of a dense one."""
DEEPSEEK_ABSORBED = 6 * 2 * 512 * 128 * (128 + 128)
"""Bytes of the halves that decode multiplies with in 16 bits, beside the FP8 matrix that they are made of."""
DEEPSEEK_TABLES = 4 * 129280 * 7168
"""Bytes of the embedding and output matrices."""
LLAMA_1B = 1.236e9
DEEPSEEK_DRAFTER = DEEPSEEK_LAYER + DEEPSEEK_EXPERTS + 2 * 2 * 7168**2 + DEEPSEEK_TABLES
"""Bytes of the module that drafts: a layer with experts, the product before it, and tables as if they were its own."""
HELD_GB = {
    "dense-batches": 2 * LLAMA_8B,
    "dense-8b-tp2": LLAMA_8B,
    "dense-70b-tp4": LLAMA_70B / 2,
    "fp8": 2 * LLAMA_8B - LINEAR_8B,
    "fp8-online": 2 * LLAMA_8B - LINEAR_8B,
    "int4-awq": 2 * LLAMA_8B - LINEAR_8B * (2 - 0.5195),
    "int4-gptq": 2 * LLAMA_8B - LINEAR_8B * (2 - 0.5156),
    "moe-qwen3": 2 * 30.532e9,
    "moe-mixtral": 2 * (12 * MIXTRAL_LAYER + 2 * 32000 * 4096),
    "mla-deepseek": 6 * DEEPSEEK_LAYER + 3 * (DEEPSEEK_EXPERTS + DEEPSEEK_MLP) + DEEPSEEK_ABSORBED + DEEPSEEK_TABLES,
    "spec-mtp": 6 * DEEPSEEK_LAYER + 3 * (DEEPSEEK_EXPERTS + DEEPSEEK_MLP) + DEEPSEEK_ABSORBED + DEEPSEEK_TABLES,
    "sliding-gemma": 2 * 3.880e9,
    "hybrid-gpt-oss": 12.8 * 2**30,
    "spec-ngram": 2 * LLAMA_8B,
    "spec-draft": 2 * LLAMA_8B,
    "spec-eagle": 2 * LLAMA_8B,
    "long-context": 2 * LLAMA_8B,
    "kv-capacity": 2 * LLAMA_8B,
}
"""Bytes of weights on each GPU.

Published (tests/fixtures/published-models.json): Llama 8B and 70B, Qwen3 30B, Mixtral for its layers, gpt-oss 20B. By
hand from sizes in config.json: Gemma, the layers of DeepSeek-V3, and which weights of Llama 8B are quantised. These see
that a count does not change, not that it is what was published. A module that drafts is not among them.
"""


def demand(cell: Cell) -> StepDemand:
    """What a step of the cell needs, with every token decoded alone: drafts add to it and are not counted."""
    args: Mapping[str, Any] = {k: v for k, v in cell.engine.args.items() if k != "speculative_config"}
    work = cell.batch
    sizes = {"batch": work.batch, "input_tokens": work.input_tokens, "output_tokens": work.output_tokens}
    return step_demand(read_config(Path(str(cell.model_folder))), args, **sizes)


def test_check_prices_every_scenario() -> None:
    """In one call, without an engine: each cell with its looks, the minutes until each, and what it could detect."""
    result = CliRunner().invoke(main, ["check", *map(str, FILES)])
    assert result.exit_code == 0, result.output
    for name in CELLS:
        assert f"\n{name}  cell" in f"\n{result.stdout}"
    assert result.stdout.count("minutes until each look") == len(CELLS)
    assert result.stdout.count("detectable") >= len(CELLS)


@pytest.mark.parametrize("name", GPU_CELLS)
def test_weights_are_those_of_the_model_that_it_names(name: str) -> None:
    """The bytes that an engine loads on each GPU are within 1 % of what was published, or counted by hand."""
    assert demand(CELLS[name]).weights_held == pytest.approx(HELD_GB[name.partition("[")[0]], rel=0.01)


@pytest.mark.parametrize("name", GPU_CELLS)
def test_a_scenario_fits_where_it_is_meant_to_run(name: str) -> None:
    """Weights, a module that drafts and cache leave an H200 a tenth; a pinned cache holds the workload's tokens."""
    cell = CELLS[name]
    args: Mapping[str, Any] = cell.engine.args
    found, pinned, work = demand(cell), args.get("kv_cache_memory_bytes"), cell.batch
    needed = found.kv_written * (work.input_tokens + work.output_tokens)
    drafter = {"spec-mtp": DEEPSEEK_DRAFTER, "spec-draft": 2 * LLAMA_1B, "spec-eagle": 2 * 0.252e9}.get(name, 0)
    assert found.weights_held + drafter + (pinned or needed) < 0.9 * H200_BYTES
    assert pinned is None or pinned > needed
    assert args["max_num_seqs"] >= work.batch


def test_the_library_covers_the_families() -> None:
    """Formats of weights, experts, latent attention, windows, drafts, batches, lengths and an automatic cache."""
    configs = {name: read_config(Path(str(cell.model_folder))) for name, cell in CELLS.items() if name in GPU_CELLS}
    methods = {config.get("quantization_config", {}).get("quant_method") for config in configs.values()}
    assert methods == {None, "compressed-tensors", "fp8", "awq", "gptq", "mxfp4"}
    kinds = {config["model_type"] for config in configs.values()}
    assert kinds == {"llama", "qwen3_moe", "mixtral", "deepseek_v3", "gemma3_text", "gpt_oss"}
    args: list[Mapping[str, Any]] = [CELLS[name].engine.args for name in GPU_CELLS]
    drafts = [one["speculative_config"] for one in args if "speculative_config" in one]
    assert {draft["method"] for draft in drafts} == {"ngram", "mtp", "draft_model", "eagle"}
    assert all(draft["rejection_sample_method"] == "synthetic" for draft in drafts)
    assert {CELLS[name].batch.batch for name in GPU_CELLS if name.startswith("dense-batches")} == {1, 8, 64, 256}
    assert {one.get("tensor_parallel_size", 1) for one in args} == {1, 2, 4}
    assert any(one.get("kv_cache_dtype") == "fp8" for one in args)
    capacity = CELLS["kv-capacity"]
    assert "kv_cache_memory_bytes" not in capacity.engine.args
    assert "kv_token_capacity" in {plan.gate.metric for plan in capacity.gates}


@pytest.mark.parametrize("name", ["int4-gptq", "cpu-gptq"])
def test_gptq_names_what_it_quantises(name: str) -> None:
    """Without weights' files vLLM quantises the modules that the configuration names, and none where it names none."""
    named = read_config(Path(str(CELLS[name].model_folder)))["quantization_config"]["modules_in_block_to_quantize"]
    assert sorted(module for each in named for module in each) == [
        *(f"mlp.{name}_proj" for name in ("down", "gate", "up")),
        *(f"self_attn.{name}_proj" for name in ("k", "o", "q", "v")),
    ]


def test_windows_end_before_the_prompt_does() -> None:
    """Else a layer that slides would read what one that does not reads."""
    for name in ("sliding-gemma", "hybrid-gpt-oss"):
        cell = CELLS[name]
        window = read_config(Path(str(cell.model_folder)))["sliding_window"]
        assert cell.batch.input_tokens > 2 * window


def test_every_scenario_is_in_the_table() -> None:
    """docs/library.md has a row for each file, and none for another."""
    text = (ROOT / "docs/library.md").read_text()
    named = {line.split("`")[1] for line in text.splitlines() if line.startswith("| ") and "`" in line}
    assert named == {file.stem for file in FILES}
