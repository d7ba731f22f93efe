"""What a decode step must move and compute: parameters of known models, formats of weights, and refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.errors import UsageError
from perfgate.metrics.model_shape import is_tied
from perfgate.metrics.transformer import REFUSED_ARGS, REFUSED_SIZES, StepDemand, read_config, step_demand

LLAMA = read_config(Path(__file__).parents[2] / "scenarios/models/llama-8b")
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8,
    "num_experts_per_tok": 2, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN_MOE = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
    "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN_SMALL = {
    "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA_3_27B = {
    "model_type": "gemma3", "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152},
    "text_config": {
        "model_type": "gemma3_text", "head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504,
        "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16, "sliding_window": 1024,
    },
}  # fmt: skip
"""As published: the data type beside the text part, which names neither its vocabulary nor which layers slide."""
MISTRAL_SMALL_31 = {
    "model_type": "mistral3", "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1024},
    "text_config": {
        "model_type": "mistral", "head_dim": 128, "hidden_size": 5120, "intermediate_size": 32768,
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "sliding_window": None,
        "vocab_size": 131072,
    },
}  # fmt: skip
PUBLISHED = json.loads((Path(__file__).parents[1] / "fixtures/published-models.json").read_text())
DEEPSEEK = next(entry["config"] for entry in PUBLISHED if entry["model"] == "deepseek-v3")
DEEPSEEK_LITE = next(entry["config"] for entry in PUBLISHED if entry["model"] == "deepseek-v2-lite")
LLAMA_LINEAR = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
"""Weights of Llama 8B in matrices that quantisation touches."""
LLAMA_REST = 8_030_261_248 - LLAMA_LINEAR


def demand(config: dict[str, Any], *, batch: int = 8, tokens: tuple[int, int] = (512, 128), **args: Any) -> StepDemand:
    """The step of a workload under these engine arguments."""
    return step_demand(config, args, batch=batch, input_tokens=tokens[0], output_tokens=tokens[1])


def quantised(config: dict[str, Any], **quantisation: Any) -> StepDemand:
    """The step of a model whose configuration says that it is quantised so."""
    return demand({**config, "quantization_config": quantisation})


@pytest.mark.parametrize(
    ("config", "parameters", "left_out"),
    [
        (LLAMA, 8_030_261_248, 0),
        (MIXTRAL, 46_702_792_704, 0),
        (QWEN_MOE, 30_532_122_624, 48 * 2 * 128),
        (QWEN_SMALL, 494_032_768, 24 * (896 + 128 + 128)),
        (GEMMA_3_27B, 27_009_346_304, 62 * 2 * (5376 + 128)),
        (MISTRAL_SMALL_31, 23_572_403_200, 0),
    ],
    ids=["llama-3.1-8b", "mixtral-8x7b", "qwen3-30b-a3b", "qwen2.5-0.5b", "gemma-3-27b", "mistral-small-3.1"],
)
def test_parameters_of_known_models(config: dict[str, Any], parameters: int, left_out: int) -> None:
    """The weights held are the published parameters less biases and norms of heads, at two bytes each."""
    assert demand(config).weights_held == 2 * (parameters - left_out)
    assert left_out < 0.001 * parameters


@pytest.mark.parametrize("entry", PUBLISHED, ids=lambda entry: entry["model"])
def test_published_sizes(entry: dict[str, Any]) -> None:
    """Parameters, those that one token passes, and the bytes of a checkpoint are within 1 % of what was published."""
    config = entry["config"]
    found = demand(config, batch=1)
    row = 0 if is_tied(config) else 2 * config["hidden_size"]
    counted = {
        "parameters": found.weights_held / 2, "active": (found.weights_read - row) / 2, "bytes": found.weights_held,
    }  # fmt: skip
    assert {name: counted[name] for name in entry["published"]} == pytest.approx(entry["published"], rel=0.01)


def test_ten_models_have_published_sizes() -> None:
    """They cover dense models, experts, shared experts, latent attention, windows, tied heads and MXFP4."""
    assert len({entry["model"].removesuffix("-mxfp4") for entry in PUBLISHED}) >= 10
    kinds = {entry["config"]["model_type"] for entry in PUBLISHED}
    assert kinds >= {"llama", "mixtral", "qwen2_moe", "qwen3_moe", "gemma2", "gpt_oss", "deepseek_v2", "deepseek_v3"}


def test_a_tied_table_is_read_as_the_output_matrix() -> None:
    """A tied table is held once and read whole; an untied one is held beside, and only the batch's rows are read."""
    tied, untied = demand(QWEN_SMALL), demand({**QWEN_SMALL, "tie_word_embeddings": False})
    table = 2 * 151936 * 896
    assert untied.weights_held - tied.weights_held == table
    assert tied.weights_read == tied.weights_held
    assert untied.weights_read - tied.weights_read == 8 * 2 * 896


def test_operations_of_a_dense_model() -> None:
    """Two for each weight and token, less the table, and four for each head, width and attended token."""
    found = demand(LLAMA).operations
    norms = 65 * 4096
    matrices = 8_030_261_248 - 128256 * 4096 - norms
    assert found == {"fp16": pytest.approx(8 * (2 * matrices + 4 * 32 * 128 * 32 * 576))}


@pytest.mark.parametrize(
    ("quantisation", "bytes_each", "precision"),
    [
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, 1.0, "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1 + 4 / 128**2, "fp8"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 0.5 + 2.5 / 128, "fp16"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, 0.5 + 2 / 128, "fp16"),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": None},
            0.5 + 2.5 / 128,
            "fp16",
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}, 0.5 + 1 / 16, "fp4"),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}, "ignore": ["lm_head"]}, 1.0, "fp8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.5 + 4 / 64, "fp16"),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
            0.5 + 1 / 64 + 4 / (64 * 256),
            "fp16",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "ignore": ["lm_head"],
                "config_groups": {
                    "group_0": {
                        "targets": ["Linear"],
                        "weights": {"num_bits": 8, "type": "float", "strategy": "tensor"},
                        "input_activations": {"num_bits": 8, "type": "float"},
                    }
                },
            },
            1.0,
            "fp8",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "ignore": ["lm_head"],
                "config_groups": {
                    "group_0": {
                        "targets": ["Linear"],
                        "weights": {"num_bits": 4, "type": "int", "group_size": 128},
                        "input_activations": None,
                    }
                },
            },
            0.5 + 2 / 128,
            "fp16",
        ),
    ],
)
def test_formats_of_weights(quantisation: dict[str, Any], bytes_each: float, precision: str) -> None:
    """Matrices of the layers take the format's bytes and run at its precision; the rest stays at two bytes."""
    found = quantised(LLAMA, **quantisation)
    assert found.weights_held == pytest.approx(LLAMA_LINEAR * bytes_each + LLAMA_REST * 2)
    assert found.operations[precision] >= 2 * 8 * LLAMA_LINEAR  # type: ignore[index]


LLAMA_ROWS = 32 * (6144 + 4096 + 2 * 14336 + 4096)
"""Rows of these matrices."""


@pytest.mark.parametrize(
    ("weights", "bytes_each", "bytes_row"),
    [
        ({"num_bits": 8, "type": "float", "strategy": "channel"}, 1.0, 4),
        ({"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": False}, 1.0, 5),
        ({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}, 1 + 4 / 128**2, 0),
        ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False}, 0.5 + 2.5 / 32, 0),
        ({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}, 0.5 + 1 / 16, 0),
    ],
    ids=["fp8-channel", "int8-channel-zeros", "fp8-block", "int4-group-zeros", "nvfp4"],
)
def test_scales_of_compressed_tensors(weights: dict[str, Any], bytes_each: float, bytes_row: float) -> None:
    """A channel's scale comes once a row, a group's or block's with each of its weights, a zero point beside it."""
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    found = quantised(LLAMA, quant_method="compressed-tensors", config_groups=groups)
    assert found.weights_held == pytest.approx(LLAMA_LINEAR * bytes_each + LLAMA_ROWS * bytes_row + LLAMA_REST * 2)


def test_one_scale_a_row_where_there_are_no_groups() -> None:
    """A group size of -1 is GPTQ's word for a whole row."""
    found = quantised(LLAMA, quant_method="gptq", bits=4, group_size=-1)
    assert found.weights_held == pytest.approx(LLAMA_LINEAR * 0.5 + LLAMA_ROWS * 2.5 + LLAMA_REST * 2)


def test_quantised_while_it_loads() -> None:
    """What the engine makes of plain weights is counted like what was stored so; INT8 weights alone stay wide."""
    assert demand(LLAMA, quantization="fp8") == quantised(LLAMA, quant_method="fp8")
    assert demand(LLAMA, quantization="fp8_per_tensor") == demand(LLAMA, quantization="fp8")
    channel = (
        demand(LLAMA, quantization="fp8_per_channel").weights_held - demand(LLAMA, quantization="fp8").weights_held
    )
    assert channel == 4 * LLAMA_ROWS
    blocks = quantised(LLAMA, quant_method="fp8", weight_block_size=[128, 128])
    assert demand(LLAMA, quantization="fp8_per_block") == blocks
    assert set(demand(LLAMA, quantization="int8_per_channel_weight_only").operations) == {"fp16"}
    assert demand(LLAMA, quantization="mxfp8").weights_held == pytest.approx(
        LLAMA_LINEAR * (1 + 1 / 32) + LLAMA_REST * 2
    )


def test_families_that_are_left_out() -> None:
    """An ignore list that names all attention leaves it at two bytes; MXFP4 takes the experts alone."""
    attention = 32 * (4096 * 6144 + 4096 * 4096)
    found = quantised(LLAMA, quant_method="fp8", ignored_layers=["model.layers.*.self_attn", "lm_head"])
    assert found.weights_held == pytest.approx((LLAMA_LINEAR - attention) + 2 * (LLAMA_REST + attention))

    experts = 32 * 8 * 3 * 4096 * 14336
    four_bits = quantised(MIXTRAL, quant_method="mxfp4")
    assert demand(MIXTRAL).weights_held - four_bits.weights_held == pytest.approx(experts * (2 - 0.5 - 1 / 32))


@pytest.mark.parametrize(
    "entry",
    ["re:.*self_attn.*", r"re:.*\.self_attn\..*", "*self_attn*", "re:.*self_attn.[qkvo]_proj", "re:.*attn.*_proj$",
     "model.layers.[0-9]+.self_attn"],
)  # fmt: skip
def test_an_entry_that_is_all_attention(entry: str) -> None:
    """Wildcards after the word, and all four of its projections, are the family."""
    whole = quantised(LLAMA, quant_method="fp8", ignored_layers=["model.layers.*.self_attn"])
    assert quantised(LLAMA, quant_method="fp8", ignored_layers=[entry]) == whole


@pytest.mark.parametrize(
    "entry",
    ["re:.*self_attn.o_proj", "re:.*self_attn.[qkv]_proj", "self_attn.qkv_proj", r"re:.*\.self_attn\.kv_b_proj$",
     "re:.*attn.q_a_proj", "re:.*mlp.gate_proj", "re:.*up_proj", "re:.*down_proj", r"re:.*layers\.0\.self_attn",
     "model.layers.3.self_attn"],
)  # fmt: skip
def test_an_entry_that_is_part_of_a_family(entry: str) -> None:
    """One projection, or one layer, leaves the rest quantised: a family would be too much."""
    with pytest.raises(UsageError, match="single modules are not counted"):
        quantised(LLAMA, quant_method="fp8", ignored_layers=[entry])


@pytest.mark.parametrize(("batch", "met"), [(1, 2.0), (2, 8 * (1 - 0.75**2)), (10_000, 8.0)])
def test_experts_that_a_batch_meets(batch: int, met: float) -> None:
    """One token reads its own experts, a large batch all, those between as many as even routing would choose."""
    expert = 3 * 4096 * 14336
    found = demand(MIXTRAL, batch=batch)
    unread_table = 2 * (32000 * 4096) - 2 * batch * 4096
    assert found.weights_held - found.weights_read - unread_table == pytest.approx(2 * 32 * expert * (8 - met), abs=1e6)
    assert found.operations["fp16"] == pytest.approx(batch / 8 * demand(MIXTRAL).operations["fp16"])


def test_a_latent_is_cached_once_for_all_heads() -> None:
    """DeepSeek-V3 keeps 512 + 64 elements a token and layer, at two bytes or one, on each GPU of a group."""
    found = demand(DEEPSEEK, tensor_parallel_size=8)
    assert found.kv_written == 8 * 61 * 576 * 2
    assert found.kv_read == 576 * found.kv_written
    assert demand(DEEPSEEK, kv_cache_dtype="fp8").kv_written == found.kv_written / 2


def test_latent_attention_multiplies_the_latent_for_each_head() -> None:
    """Scores take 512 + 64 elements a head and token, values 512; a longer context adds nothing else."""
    short, long = demand(DEEPSEEK, tokens=(512, 128)), demand(DEEPSEEK, tokens=(1512, 128))
    assert long.operations["fp16"] - short.operations["fp16"] == 8 * 61 * 1000 * 2 * 128 * (512 + 64 + 512)


def test_what_a_group_of_gpus_cannot_divide() -> None:
    """The projections into latents and the routers are whole on each; with fewer heads than GPUs so are these."""
    one, eight = demand(DEEPSEEK_LITE), demand(DEEPSEEK_LITE, tensor_parallel_size=8)
    norms = 55 * 2048
    shared = 27 * 2048 * 576 + 26 * 2048 * 64  # latents of keys and values, routers
    assert eight.weights_held - 2 * (norms + shared) == (one.weights_held - 2 * (norms + shared)) / 8
    four, eight = (demand(QWEN_MOE, tensor_parallel_size=parallel) for parallel in (4, 8))
    assert eight.kv_read == four.kv_read == demand(QWEN_MOE).kv_read / 4


def test_dense_layers_and_shared_experts() -> None:
    """Layers that a configuration keeps dense have one MLP; a shared expert is read by every token."""
    first_dense = demand({**QWEN_MOE, "mlp_only_layers": [0]})
    expert, dense = 3 * 2048 * 768, 3 * 2048 * 6144
    router = 2048 * 128
    assert demand(QWEN_MOE).weights_held - first_dense.weights_held == 2 * (router + 128 * expert - dense)
    every_other = demand({**DEEPSEEK_LITE, "moe_layer_freq": 2})  # 2, 4, ... 26 of 27
    layer = 2048 * 64 + 66 * 3 * 2048 * 1408 - 3 * 2048 * 10944
    assert demand(DEEPSEEK_LITE).weights_held - every_other.weights_held == 2 * 13 * layer
    shared = demand({**QWEN_MOE, "shared_expert_intermediate_size": 5632})
    assert shared.weights_read - demand(QWEN_MOE).weights_read == pytest.approx(2 * 48 * 3 * 2048 * 5632)


def test_the_kv_cache() -> None:
    """Grouped heads, context, batch and data type make its size; eight bits halve it."""
    found = demand(LLAMA)
    assert found.kv_read == 576 * found.kv_written
    assert found.kv_written == 8 * 32 * 2 * 8 * 128 * 2
    assert demand(LLAMA, kv_cache_dtype="fp8").kv_read == found.kv_read / 2
    assert demand({**LLAMA, "num_key_value_heads": 32}).kv_read == 4 * found.kv_read


@pytest.mark.parametrize(
    ("method", "cache"),
    [
        ("modelopt", {"kv_cache_quant_algo": "FP8"}),
        ("modelopt", {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "fp8"}}),
        ("modelopt", {"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}),
        ("fp8", {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}),
    ],
)
def test_a_cache_that_the_checkpoint_asks_for(method: str, cache: dict[str, Any]) -> None:
    """Where the argument is left to vLLM, a scheme or ModelOpt's algorithm halves the cache; an argument goes first."""
    left_out = {"ignore": ["lm_head"]}
    config = {**LLAMA, "quantization_config": {"quant_method": method, "quant_algo": "FP8", **left_out, **cache}}
    assert demand(config).kv_read == demand(LLAMA).kv_read / 2
    assert demand(config, kv_cache_dtype="bfloat16").kv_read == demand(LLAMA).kv_read


def test_attention_on_an_fp8_cache_has_the_faster_rate() -> None:
    """Some backends multiply it at FP8, others widen it: a floor is never above either."""
    wide, narrow = demand(LLAMA).operations, demand(LLAMA, kv_cache_dtype="fp8").operations
    assert narrow["fp8"] == 8 * 4 * 32 * 128 * 32 * 576
    assert narrow["fp16"] + narrow["fp8"] == wide["fp16"]


def test_absorbed_halves_of_the_latent_matrix_stay_wide() -> None:
    """Of FP8 weights a step reads them at two bytes and multiplies them at 16 bits; the loaded matrix is kept too."""
    wide, narrow = demand(DEEPSEEK), quantised(DEEPSEEK, quant_method="fp8")
    absorbed = 61 * 512 * 128 * (128 + 128)
    attention = 61 * (7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 128 * 128 * 7168)
    mlp = 3 * 3 * 7168 * 18432
    experts = 58 * 257 * 3 * 7168 * 2048
    assert wide.weights_held - narrow.weights_held == attention + mlp + experts - absorbed
    kept = quantised(DEEPSEEK, quant_method="fp8", ignored_layers=["model.layers.*.self_attn"])
    assert kept.weights_held - narrow.weights_held == attention - absorbed
    assert kept.weights_read - narrow.weights_read == attention
    assert kept.operations["fp16"] - narrow.operations["fp16"] == 2 * 8 * attention


def test_a_sliding_window_ends_the_context() -> None:
    """A layer that slides attends to its window at most, the others to everything."""
    kinds = ["sliding_attention", "full_attention"] * 16
    config = {**LLAMA, "model_type": "gemma3_text", "tie_word_embeddings": False, "layer_types": kinds}
    assert demand({**config, "sliding_window": 100}).kv_read == demand(LLAMA).kv_read * (100 + 576) / (2 * 576)
    assert demand({**config, "sliding_window": 4096}).kv_read == demand(LLAMA).kv_read


@pytest.mark.parametrize(("kind", "every"), [("gemma2", 2), ("gemma3_text", 6)])
def test_windows_that_a_configuration_leaves_to_its_model(kind: str, every: int) -> None:
    """Without layer_types every second layer of Gemma 2 and every sixth of Gemma 3 attends to everything."""
    config = {**LLAMA, "model_type": kind, "tie_word_embeddings": False, "sliding_window": 100}
    full = 32 // every
    assert demand(config).kv_read == demand(LLAMA).kv_read * (full * 576 + (32 - full) * 100) / (32 * 576)


def test_the_data_type_of_the_whole_goes_before_that_of_its_text_part() -> None:
    """As vLLM takes it, under the old and the new name of the key."""
    inner = {**LLAMA, "torch_dtype": "float64"}
    assert demand({"text_config": inner, "dtype": "bfloat16"}) == demand(LLAMA)
    assert demand({"text_config": LLAMA}) == demand(LLAMA)


@pytest.mark.parametrize("args", [{}, {"dtype": "auto"}, {"dtype": "BFloat16"}])
def test_a_model_of_32_bits_runs_at_16(args: dict[str, Any]) -> None:
    """Where ``dtype`` is left to vLLM it halves the width, and it takes names in any case."""
    assert demand({**LLAMA, "torch_dtype": "float32"}, args=args) == demand(LLAMA)


def test_a_floor_holds_no_byte_that_could_stay_in_cache() -> None:
    """What a step must move are weights and KV cache; a batch more adds its rows of the table and its cache."""
    found = demand(LLAMA)
    assert found.bytes_moved == found.weights_read + found.kv_read + found.kv_written
    more = demand(LLAMA, batch=9).bytes_moved - found.bytes_moved
    assert more == 2 * 4096 + (found.kv_read + found.kv_written) / 8


@pytest.mark.parametrize("name", [*REFUSED_SIZES, *REFUSED_ARGS])
def test_arguments_that_change_a_step_are_refused(name: str) -> None:
    """A parallelism of one and an offload of nothing are fine; anything else is named."""
    value: Any = 2 if name in REFUSED_SIZES else 1 if "offload" in name else "x"
    with pytest.raises(UsageError, match=f"steps under {name} are not counted"):
        demand(LLAMA, **{name: value})
    for nothing in (1 if name in REFUSED_SIZES else 0, None):
        assert step_demand(LLAMA, {name: nothing}, batch=8, input_tokens=512, output_tokens=128) == demand(LLAMA)


def test_expert_parallelism_is_refused() -> None:
    """True is no number of experts: it is one only to Python."""
    with pytest.raises(UsageError, match="enable_expert_parallel"):
        demand(MIXTRAL, enable_expert_parallel=True)


def test_tensor_parallelism_splits_what_it_can() -> None:
    """Two GPUs hold half of the matrices and of the cache each, and the norms whole."""
    one, two = demand(LLAMA), demand(LLAMA, tensor_parallel_size=2)
    norms = 2 * 65 * 4096
    assert two.weights_held - norms == (one.weights_held - norms) / 2
    assert two.kv_read == one.kv_read / 2
    assert two.operations["fp16"] == one.operations["fp16"] / 2


def test_the_text_part_of_a_multimodal_model() -> None:
    """Its text configuration is counted; the quantisation beside it holds."""
    wrapped = {"model_type": "pair", "text_config": LLAMA, "quantization_config": {"quant_method": "fp8"}}
    assert demand(wrapped) == quantised(LLAMA, quant_method="fp8")


@given(batch=st.integers(1, 512), more=st.integers(1, 64), context=st.integers(1, 8192))
def test_more_work_is_never_less(batch: int, more: int, context: int) -> None:
    """More requests and longer ones move and compute more, and never read fewer weights."""
    small = demand(MIXTRAL, batch=batch, tokens=(context, 16))
    for other in (demand(MIXTRAL, batch=batch + more, tokens=(context, 16)),
                  demand(MIXTRAL, batch=batch, tokens=(context + more, 16))):  # fmt: skip
        assert other.bytes_moved > small.bytes_moved
        assert other.weights_read >= small.weights_read
        assert other.operations["fp16"] > small.operations["fp16"]


@pytest.mark.parametrize(
    ("config", "args", "said"),
    [
        ({"model_type": "mamba"}, {}, "model_type 'mamba'"),
        ({"model_type": None}, {}, "model_type None"),
        ({"kv_lora_rank": 512}, {}, "kv_lora_rank 512 in a model of type llama"),
        ({"model_type": "deepseek_v3"}, {}, "kv_lora_rank None in a model of type deepseek_v3"),
        ({"layer_types": ["linear_attention"] * 32}, {}, "without a KV cache"),
        ({"hidden_size": None}, {}, "hidden_size None"),
        ({"num_hidden_layers": "32"}, {}, "num_hidden_layers '32'"),
        ({"torch_dtype": None}, {}, "dtype 'unknown'"),
        ({}, {"dtype": "float32"}, "dtype 'float32'"),
        ({}, {"kv_cache_dtype": "int3"}, "kv_cache_dtype 'int3'"),
        ({}, {"quantization": "aqlm"}, "quantization 'aqlm'"),
        ({}, {"tensor_parallel_size": 0}, "tensor_parallel_size 0"),
        ({}, {"tensor_parallel_size": -2}, "tensor_parallel_size -2"),
        ({**MIXTRAL, "num_experts_per_tok": 9}, {}, "num_experts_per_tok 9 of 8 experts"),
        (
            {
                "quantization_config": {
                    "quant_method": "modelopt",
                    "quant_algo": "FP8",
                    "ignore": ["lm_head"],
                    "kv_cache_quant_algo": "INT3",
                }
            },
            {},
            "KV cache of 'INT3'",
        ),
        (
            {"quantization_config": {"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 4, "type": "float"}}},
            {},
            "KV cache of",
        ),
        ({"quantization_config": {"quant_method": "aqlm"}}, {}, "quant_method 'aqlm'"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 5}}, {}, "5 bits"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "W4"}}, {}, "quant_algo 'W4'"),
        ({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {}}}, {}, "0 config_groups"),
        (
            {"quantization_config": {"quant_method": "fp8", "ignored_layers": ["model.layers.3.mlp.up_proj"]}},
            {},
            "single",
        ),
        ({"model_type": "qwen2", "sliding_window": 16}, {}, "no layer_types"),
        ({"sliding_window": 16, "layer_types": ["sliding_attention"]}, {}, "1 layer_types for 32"),
        ({"quantization_config": 1}, {}, "another shape than is counted: AttributeError"),
        ({"num_hidden_layers": 10**15}, {}, "at most 10000 are counted"),
        ({"head_dim": math.inf}, {}, "another shape than is counted: OverflowError"),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [math.nan, 1]}},
            {},
            "no number of bytes",
        ),
    ],
)
def test_what_is_not_counted(config: dict[str, Any], args: dict[str, Any], said: str) -> None:
    """A count that forgets a part is no floor: what is not understood is refused by name."""
    with pytest.raises(UsageError, match=said.replace("(", r"\(")):
        demand({**LLAMA, **config}, **args)


@pytest.mark.parametrize("workload", [(0, 1, 2), (1, 0, 2), (1, 1, 1)])
def test_a_workload_without_decode_steps(workload: tuple[int, int, int]) -> None:
    """The first token is prefill's, so one token has no decode step."""
    batch, inputs, outputs = workload
    with pytest.raises(UsageError, match="no decode step"):
        demand(LLAMA, batch=batch, tokens=(inputs, outputs))


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_configuration_that_cannot_be_read(tmp_path: Path, content: str | None) -> None:
    """Its file is named."""
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UsageError) as caught:
        read_config(tmp_path)
    assert caught.value.where == str(tmp_path / "config.json")
