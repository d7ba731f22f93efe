"""Which modules of a checkpoint are counted as quantised, where it says so, and which checkpoints are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfgate.errors import UsageError
from perfgate.metrics.roofline_bound import find_floor
from perfgate.metrics.transformer import StepDemand, read_config, step_demand

MODEL = Path(__file__).parents[2] / "scenarios/models/llama-8b"
LLAMA = read_config(MODEL)
MODELOPT = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
"""What ModelOpt writes beside ``config.json`` or, in the same words, into it."""
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
EVERY_LINEAR = [["self_attn.k_proj", "self_attn.v_proj", "self_attn.q_proj"], ["self_attn.o_proj"],
                ["mlp.up_proj", "mlp.gate_proj"], ["mlp.down_proj"]]  # fmt: skip
"""As GPTQ's checkpoints of dense models have it."""
INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}


def demand(config: dict[str, Any]) -> StepDemand:
    """A step of eight requests."""
    return step_demand(config, {"dtype": "bfloat16"}, batch=8, input_tokens=512, output_tokens=128)


def quantised(**quantisation: Any) -> StepDemand:
    """The step of Llama 8B quantised so."""
    return demand({**LLAMA, "quantization_config": quantisation})


def compressed(targets: Any = ("Linear",), ignore: tuple[str, ...] = ("lm_head",)) -> dict[str, Any]:
    """The configuration of a compressed-tensors checkpoint."""
    group = {"targets": list(targets), "weights": INT4, "input_activations": None}
    return {"quant_method": "compressed-tensors", "ignore": list(ignore), "config_groups": {"group_0": group}}


def folder_of(place: Path, config: dict[str, Any]) -> Path:
    """A model's folder whose quantisation is in ``hf_quant_config.json``."""
    (place / "config.json").write_text(json.dumps(config))
    (place / "hf_quant_config.json").write_text(json.dumps(MODELOPT))
    return place


def test_a_quantisation_in_a_file_beside_the_configuration_is_refused(tmp_path: Path) -> None:
    """Where config.json has no quantization_config vLLM reads hf_quant_config.json, which is not counted."""
    found = find_floor(
        str(folder_of(tmp_path, LLAMA)), {}, ["NVIDIA H200"], batch=8, input_tokens=512, output_tokens=128
    )
    assert found.floor is None
    assert "hf_quant_config.json" in found.why_not
    assert "as quantization_config into config.json" in found.why_not
    with pytest.raises(UsageError, match=r"hf_quant_config\.json beside config\.json"):
        demand(read_config(tmp_path))


def test_the_file_of_a_multimodal_model_is_refused_too(tmp_path: Path) -> None:
    """The file goes before a quantization_config of the text part."""
    inner = {**LLAMA, "quantization_config": {"quant_method": "fp8"}}
    with pytest.raises(UsageError, match=r"hf_quant_config\.json"):
        demand(read_config(folder_of(tmp_path, {"model_type": "pair", "text_config": inner})))


def test_a_quantisation_in_the_configuration_goes_before_the_file(tmp_path: Path) -> None:
    """A quantization_config in config.json is what vLLM takes, and the file beside it is not read."""
    config = {**LLAMA, "quantization_config": {"quant_method": "fp8"}}
    assert demand(read_config(folder_of(tmp_path, config))) == demand(config)


@pytest.mark.parametrize(
    "quantisation",
    [
        MODELOPT,
        {"quantization": {"quant_algo": "fp8", "modelopt_quant_config": {}, "exclude_modules": ["lm_head"]}},
    ],
    ids=["producer", "legacy"],
)
def test_modelopt_is_known_by_its_producer(quantisation: dict[str, Any]) -> None:
    """ModelOpt's words without a quant_method are those with it, in config.json too."""
    named = quantised(quant_method="modelopt", quant_algo="FP8", ignore=["lm_head"])
    assert quantised(**quantisation) == named
    assert named.weights_held < 0.6 * demand(LLAMA).weights_held


def test_a_cache_that_a_producer_asks_for() -> None:
    """ModelOpt's algorithm of the KV cache is read where only the producer tells that it is ModelOpt."""
    inner = {**MODELOPT["quantization"], "kv_cache_quant_algo": "FP8"}  # type: ignore[dict-item]
    found = quantised(**{**MODELOPT, "quantization": inner})
    assert found.kv_read == demand(LLAMA).kv_read / 2


@pytest.mark.parametrize("method", ["compressed-tensors", "compressed_tensors", "Compressed-Tensors"])
def test_a_compression_config_is_a_quantization_config(method: str) -> None:
    """Where there is no quantization_config vLLM takes compression_config, and both spellings of its method."""
    named = {**compressed(), "quant_method": method}
    assert demand({**LLAMA, "compression_config": named}) == quantised(**compressed())
    assert demand({**LLAMA, "compression_config": named, "quantization_config": None}) == quantised(**compressed())
    fp8 = {"quant_method": "fp8"}
    assert demand({**LLAMA, "compression_config": named, "quantization_config": fp8}) == quantised(**fp8)


@pytest.mark.parametrize("name", ["quantization_config", "compression_config"])
def test_the_quantisation_of_a_text_part(name: str) -> None:
    """The text part's own is taken where the whole has neither key, and otherwise neither of its keys."""
    inner = {**LLAMA, name: compressed()}
    assert demand({"text_config": inner, "quantization_config": None}) == quantised(**compressed())
    for outer in ("quantization_config", "compression_config"):
        assert demand({"text_config": inner, outer: {"quant_method": "fp8"}}) == quantised(quant_method="fp8")


@pytest.mark.parametrize(
    "targets", [["re:.*mlp.*"], ["Linear", "re:.*lm_head"], ["Linear", "Embedding"], [], ["LlamaAttention"]]
)
def test_targets_other_than_all_linear_layers_are_refused(targets: list[str]) -> None:
    """A group of compressed-tensors that names other modules than all linear layers is not counted."""
    with pytest.raises(UsageError, match="targets"):
        quantised(**compressed(targets))


def test_a_group_without_targets_is_refused() -> None:
    """No engine of vLLM starts with such a group, so that nothing is known of what it quantises."""
    with pytest.raises(UsageError, match="targets None"):
        quantised(quant_method="compressed-tensors", config_groups={"group_0": {"weights": INT4}})


@pytest.mark.parametrize("method", ["gptq", "awq"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dynamic", {"-:.*self_attn.*": {}}),
        ("dynamic", {"+:.*mlp.*": {"bits": 8}}),
        ("lm_head", True),
        ("modules_in_block_to_quantize", [["self_attn.q_proj"]]),
    ],
)
def test_single_modules_of_gptq_are_refused(method: str, name: str, value: Any) -> None:
    """Rules for single modules, and a quantised output matrix, would change the bytes that are counted."""
    with pytest.raises(UsageError, match=f"{name} .*single modules are not counted"):
        quantised(**{**GPTQ, "quant_method": method, name: value})


@pytest.mark.parametrize(
    ("model", "changes"), [("qwen3-30b-a3b", {}), ("deepseek-v3-6-layers", {"n_routed_experts": 0})]
)
def test_a_list_of_gptq_is_refused_where_layers_have_other_names(model: str, changes: dict[str, Any]) -> None:
    """Names of a dense model's layers reach no shared expert and no latent projection, which then have 16 bits."""
    config = {**read_config(MODEL.parents[1] / "library/models" / model), **changes}
    with pytest.raises(UsageError, match="modules_in_block_to_quantize of a model with experts or latent attention"):
        demand({**config, "quantization_config": {**GPTQ, "modules_in_block_to_quantize": EVERY_LINEAR}})


@pytest.mark.parametrize(
    ("name", "value"),
    [("dynamic", {}), ("dynamic", None), ("lm_head", False), ("modules_in_block_to_quantize", EVERY_LINEAR)],
)
def test_empty_rules_of_gptq_change_nothing(name: str, value: Any) -> None:
    """GPTQModel writes these keys into every checkpoint; a list of all linear layers is no rule for single ones."""
    assert quantised(**{**GPTQ, name: value}) == quantised(**GPTQ)


@pytest.mark.parametrize(
    "entry",
    [
        "lm_head", "language_model.lm_head", "re:.*lm_head", "*lm_head*", "model.embed_tokens", "re:.*embed_tokens$",
        "model.norm", "re:.*input_layernorm.*", "model.layers.0.mlp.gate", "re:.*mlp.gate$", r"re:.*\.mlp\.gate$",
        "re:.*block_sparse_moe.gate", "model.layers.*.mlp.router", "re:.*router.*", "gate", "*mlp.gate.*",
        "model.layers.7.mlp.shared_expert_gate", "re:.*shared_expert_gate.*", "re:vision_tower.*", "re:.*visual.*",
        "model.visual.blocks.0.attn.qkv", "multi_modal_projector.linear_1", "re:.*mm_projector.*",
        "re:.*(lm_head|router)$", "re:^(lm_head|model.(embed_tokens|norm))$", "re:.*lm_head|.*visual.*",
        "re:(?:vision_tower|multi_modal_projector).*", r"re:.*layers\.\d+\.mlp\.gate$",
    ],
)  # fmt: skip
def test_an_entry_that_is_never_quantised(entry: str) -> None:
    """What an ignore list says of the output matrix, embeddings, norms, routers and vision changes no count."""
    assert quantised(**compressed(ignore=("lm_head", entry))) == quantised(**compressed())


@pytest.mark.parametrize(
    "entry",
    [
        r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", r"re:.*mlp\.(down|gate)_proj.*", "re:.*(lm_head|self_attn).*",
        "re:.*(self_attn|mlp).*", "re:.*(mlp|self_attn).*", r"re:.*\.(gate|up)_proj", "re:.*(router|mlp).*",
        "re:.*lm_head|.*down_proj", "re:^(?!.*self_attn).*", "re:^(?!lm_head).*", "re:.*", "*", "", "re:",
        "model.layers.*.mlp.gate*", "re:.*mlp.gate.*", "re:.*gate_proj", "re:.*gate_up_proj", "re:.*norm.*proj",
        "model.layers.0.router_layers.up_proj", "re:.*layers.[0-9].self_attn.*", "re:.*layers.(0|1).self_attn.*",
        "re:" + "(" * 5000 + ")" * 5000, "re:" + "(lm_head|norm)" * 20, "embed" * 20000 + "-",
    ],
    ids=lambda entry: entry[:40],
)  # fmt: skip
def test_an_entry_that_may_be_more(entry: str) -> None:
    """An entry is read by its whole last part, and each alternative of a regular expression must be known."""
    with pytest.raises(UsageError, match="single modules are not counted") as caught:
        quantised(**compressed(ignore=("lm_head", entry)))
    assert len(str(caught.value)) < 600


def test_mxfp4_without_some_experts_is_refused() -> None:
    """Experts that an ignore list names are not at four bits, though attention and routers never are."""
    lists = {"modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]}
    assert quantised(quant_method="mxfp4", **lists) == quantised(quant_method="mxfp4")
    with pytest.raises(UsageError, match="single modules are not counted"):
        quantised(quant_method="mxfp4", modules_to_not_convert=["model.layers.3.mlp.experts"])


def test_modelopt_leaves_out_modules_at_either_level() -> None:
    """exclude_modules is read beside quant_algo, whether both are nested under quantization or not."""
    excluded = ["lm_head", "*self_attn*"]
    flat = quantised(quant_method="modelopt", quant_algo="FP8", exclude_modules=excluded)
    nested = quantised(quant_method="modelopt", quantization={"quant_algo": "FP8", "exclude_modules": excluded})
    everything = quantised(quant_method="modelopt", quant_algo="FP8", ignore=["lm_head"])
    assert nested == flat
    assert nested.weights_held - everything.weights_held == 32 * (4096 * 6144 + 4096 * 4096)
    with pytest.raises(UsageError, match=r"leaves out '\*down_proj'"):
        quantised(
            quant_method="modelopt", quantization={"quant_algo": "FP8", "exclude_modules": ["lm_head", "*down_proj"]}
        )


@pytest.mark.parametrize("excluded", [None, [], ["*self_attn*"]])
def test_modelopt_quantises_an_output_matrix_that_is_not_left_out(excluded: list[str] | None) -> None:
    """Unless the checkpoint names lm_head vLLM 0.32 quantises it by ModelOpt's algorithm, and that is not counted."""
    with pytest.raises(UsageError, match="does not leave out lm_head"):
        quantised(quant_method="modelopt", quantization={"quant_algo": "FP8", "exclude_modules": excluded})
