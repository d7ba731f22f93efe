"""The folder of a model with dummy weights that a server is given."""

from __future__ import annotations

from pathlib import Path

from perfgate.capture.small_tokenizer import with_tokenizer


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
