"""What a model with dummy weights is given: a tokenizer, and adapters as those of real models are written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import CONFIG

from perfgate.errors import NotMeasuredError
from perfgate.load.dummy_files import with_tokenizer, write_adapters


def test_a_server_is_told_how_the_model_is_quantised(tmp_path: Path) -> None:
    """Its folder has what vLLM reads of the model's beside the tokenizer: configuration and quantisation."""
    model = tmp_path / "model"
    model.mkdir()
    content = {"config.json": '{"vocab_size": 300}', "hf_quant_config.json": "{}", "quantize_config.json": "{}"}
    for name, text in content.items():
        (model / name).write_text(text)

    made = with_tokenizer(model, tmp_path / "made")

    assert {file.name for file in made.iterdir()} == {*content, "tokenizer.json", "tokenizer_config.json"}
    assert {name: (made / name).read_text() for name in content} == content


def test_adapters_have_the_shapes_of_their_model(tmp_path: Path) -> None:
    """A pair of matrices for each projection of attention, of weights that the adapter's name draws."""
    folders = write_adapters(tmp_path, ["a", "b"], CONFIG)
    contents = {name: (folder / "adapter_model.safetensors").read_bytes() for name, folder in folders.items()}
    assert contents["a"] != contents["b"]
    write_adapters(tmp_path / "again", ["a"], CONFIG)
    assert (tmp_path / "again" / "adapter-0-a" / "adapter_model.safetensors").read_bytes() == contents["a"]
    length = int.from_bytes(contents["a"][:8], "little")
    header = json.loads(contents["a"][8 : 8 + length])
    assert len(header) == CONFIG["num_hidden_layers"] * 4 * 2
    place = "base_model.model.model.layers.3.self_attn.k_proj"
    assert header[f"{place}.lora_A.weight"]["shape"] == [16, 256]
    assert header[f"{place}.lora_B.weight"]["shape"] == [128, 16]
    begin, end = header[f"{place}.lora_B.weight"]["data_offsets"]
    weights = np.frombuffer(contents["a"][8 + length :][begin:end], "<f2")
    assert weights.std() == pytest.approx(0.02, rel=0.1)
    assert 8 + length + max(entry["data_offsets"][1] for entry in header.values()) == len(contents["a"])


def test_a_model_of_another_kind_has_no_adapters(tmp_path: Path) -> None:
    """What its configuration lacks is named."""
    for key in ("hidden_size", "num_hidden_layers", "head_dim"):
        with pytest.raises(NotMeasuredError, match=f"no usable {key}"):
            write_adapters(tmp_path, ["a"], {**CONFIG, key: None})
