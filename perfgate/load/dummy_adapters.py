"""LoRA adapters for models with dummy weights: what an adapter costs depends on its shapes alone."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from perfgate.errors import NotMeasuredError

MOST: Final = 1 << 20
"""Of any size of a model."""
RANK: Final = 16
"""Of every adapter; what PEFT's examples use, and the most that vLLM takes unless told otherwise."""


def write_adapters(folder: Path, names: Sequence[str], config: Mapping[str, Any]) -> dict[str, Path]:
    """Dummy LoRA adapters for the attention of a Llama-like model.

    Args:
        folder: Each adapter gets a folder in it, if it is not there yet.
        names: Of the adapters; each draws its weights from its name.
        config: The model's ``config.json``.

    Returns:
        The folder of each, for ``--lora-modules NAME=FOLDER``.

    Raises:
        NotMeasuredError: The configuration does not say the shapes.
        OSError: The files cannot be written.
    """
    hidden, heads, layers = (_size(config, key) for key in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    head = _size({"head_dim": hidden // heads, **config}, "head_dim")
    keys = _size({"num_key_value_heads": heads, **config}, "num_key_value_heads") * head
    shapes = {
        "q_proj": (hidden, heads * head), "k_proj": (hidden, keys), "v_proj": (hidden, keys),
        "o_proj": (heads * head, hidden),
    }  # fmt: skip
    folders = {}
    for number, name in enumerate(names):
        folders[name] = own = folder / f"adapter-{number}-{name}"
        if own.exists():
            continue
        unfinished = folder / f"{own.name}.part"
        unfinished.mkdir(parents=True, exist_ok=True)
        _write(unfinished / "adapter_config.json", {
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "", "r": RANK,
            "lora_alpha": RANK, "lora_dropout": 0.0, "bias": "none", "target_modules": [*shapes],
        })  # fmt: skip
        draw = np.random.default_rng([*name.encode()])
        tensors = {}
        for layer, (part, (inputs, outputs)) in itertools.product(range(layers), shapes.items()):
            place = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            tensors[f"{place}.lora_A.weight"] = draw.normal(0, 0.02, (RANK, inputs)).astype("<f2")
            tensors[f"{place}.lora_B.weight"] = draw.normal(0, 0.02, (outputs, RANK)).astype("<f2")
        _write_safetensors(unfinished / "adapter_model.safetensors", tensors)
        unfinished.rename(own)
    return folders


def _write_safetensors(file: Path, tensors: Mapping[str, np.ndarray[Any, np.dtype[np.float16]]]) -> None:
    """The format: https://github.com/huggingface/safetensors (length and JSON of a header, then the tensors' bytes)."""
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F16", "shape": tensor.shape, "data_offsets": (end, end := end + tensor.nbytes)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(b"".join([len(text).to_bytes(8, "little"), text, *(t.tobytes() for t in tensors.values())]))


def _size(config: Mapping[str, Any], key: str) -> int:
    size = config.get(key)
    if type(size) is not int or not 0 < size <= MOST:
        text = f"no adapter can be made for this model: its config.json has no usable {key}"
        raise NotMeasuredError(text, code="engine-start-failed")
    return size


def _write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
