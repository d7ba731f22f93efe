"""Sizes that a configuration leaves to its model."""

from __future__ import annotations

from typing import Any

import pytest

from perfgate.metrics.model_shape import head_width, key_value_heads
from perfgate.metrics.transformer import step_demand

GEMMA_3_12B: dict[str, Any] = {
    "model_type": "gemma3", "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 3840, "intermediate_size": 15360, "num_attention_heads": 16,
        "num_hidden_layers": 48, "num_key_value_heads": 8, "sliding_window": 1024,
    },
}  # fmt: skip
"""As published, without head_dim: 256, where 3840 / 16 is 240."""


@pytest.mark.parametrize(
    ("kind", "width"),
    [
        ("gemma", 256), ("gemma2", 256), ("gemma3_text", 256), ("qwen3", 128), ("gpt_oss", 64),
        ("llama", 160), ("mistral", 160), ("mixtral", 160), ("qwen2", 160), ("qwen3_moe", 160), ("glm4_moe", 160),
    ],
)  # fmt: skip
def test_the_width_of_a_head_that_is_left_out(kind: str, width: int) -> None:
    """Where head_dim is left out its default in transformers 5.19 holds, and the hidden size by heads without one."""
    config = {"model_type": kind, "hidden_size": 5120, "num_attention_heads": 32}
    assert head_width(config) == width
    assert head_width({**config, "head_dim": 96}) == 96


@pytest.mark.parametrize(
    ("kind", "heads"),
    [
        ("mistral", 8), ("mixtral", 8), ("gemma", 16), ("gemma2", 4), ("gemma3_text", 4), ("qwen2", 32), ("qwen3", 32),
        ("qwen2_moe", 16), ("qwen3_moe", 4), ("gpt_oss", 8), ("glm4_moe", 8), ("llama", 64), ("phi3", 64),
    ],
)  # fmt: skip
def test_the_heads_of_keys_and_values_that_are_left_out(kind: str, heads: int) -> None:
    """Left out they are the default of transformers 5.19; null, or without a default, they are all heads."""
    config = {"model_type": kind, "num_attention_heads": 64}
    assert key_value_heads(config) == heads
    assert key_value_heads({**config, "num_key_value_heads": None}) == 64
    assert key_value_heads({**config, "num_key_value_heads": 2}) == 2


def test_gemma_3_12b_has_its_published_size() -> None:
    """Table 1 of arXiv 2503.19786 gives it 1012 and 10759 million parameters beside those for images."""
    found = step_demand(GEMMA_3_12B, {}, batch=1, input_tokens=512, output_tokens=128)
    assert found.weights_held / 2 == pytest.approx(1012e6 + 10759e6, rel=0.001)
    named = {**GEMMA_3_12B, "text_config": {**GEMMA_3_12B["text_config"], "head_dim": 256}}
    assert step_demand(named, {}, batch=1, input_tokens=512, output_tokens=128) == found
