"""Files that a model with dummy weights lacks: a tokenizer, and LoRA adapters.

A server wants a tokenizer to answer in text, and grammars are held against text. Each byte is a token, and each id left
over is a word of its own, ``w300``: any text can be written and any id read, and no file has to be fetched. The files
are those of the ``tokenizers`` library: byte-level BPE without merges. What an adapter costs depends on its shapes
alone.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from perfgate.errors import NotMeasuredError, UsageError
from perfgate.metrics.transformer import QUANTISED_BY, read_config

SPECIAL: Final = ("<unk>", "<s>", "</s>")
"""The first ids; configurations of Llama name them for beginning and end."""
BYTES: Final = 256
FILES: Final = ("tokenizer.json", "tokenizer_config.json")
OTHER_IDS: Final = 1000
"""Below it every tokenizer has ids; for a model whose configuration is not at hand."""

MOST_IDS: Final = 2**31 - 1
"""A token id is a 32-bit number wherever one is computed with."""


def vocabulary_of(folder: Path | None) -> int:
    """How many token ids a model has, by its ``config.json``; :data:`OTHER_IDS` where that does not say.

    Args:
        folder: The model's; ``None`` for one on the hub, or of a server that runs elsewhere.
    """
    try:
        config = read_config(folder) if folder else {}
    except UsageError:
        config = {}
    text = config.get("text_config")
    size = config.get("vocab_size") or (text.get("vocab_size") if isinstance(text, dict) else None)
    return size if type(size) is int and 0 < size <= MOST_IDS else OTHER_IDS


def with_tokenizer(model: Path, folder: Path) -> Path:
    """A folder with the model's configuration and a tokenizer for it; the model's own where that has one.

    Args:
        model: The model's folder.
        folder: Where to make it, if it is not there yet.

    Raises:
        NotMeasuredError: The vocabulary is too small to hold every byte.
        OSError: The folder cannot be written.
    """
    if (model / FILES[0]).is_file():
        return model
    if not folder.exists():
        tokenizer, config = tokenizer_files(vocabulary_of(model))
        part = folder.with_name(f"{folder.name}.part")
        part.mkdir(parents=True, exist_ok=True)
        shutil.copy(model / "config.json", part)
        for beside in (model / name for name in QUANTISED_BY):
            if beside.is_file():
                shutil.copy(beside, part)
        for name, content in zip(FILES, (tokenizer, config), strict=True):
            (part / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        part.rename(folder)
    return folder


def tokenizer_files(size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """``tokenizer.json`` and ``tokenizer_config.json`` of a vocabulary of that size.

    Raises:
        NotMeasuredError: It is too small to hold every byte.
    """
    words = [*SPECIAL, *_byte_characters()]
    if size < len(words):
        text = f"a vocabulary of {size} has no room for a token of each byte: vocab_size must be at least {len(words)}"
        raise NotMeasuredError(text, code="engine-start-failed")
    words += [f"Ġw{number}" for number in range(len(words), size)]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": number, "content": word, **plain, "special": True} for number, word in enumerate(SPECIAL)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model: dict[str, Any] = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": {word: number for number, word in enumerate(words)}, "merges": [],
    }  # fmt: skip
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model,
    }  # fmt: skip
    names = dict(zip(("unk_token", "bos_token", "eos_token"), SPECIAL, strict=True))
    return tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **names}


def _byte_characters() -> list[str]:
    """The printable character for each byte in byte-level BPE, as GPT-2 has them."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(BYTES, 2 * BYTES))
    return [chr(byte if byte in printable else next(others)) for byte in range(BYTES)]


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
        folders[name] = adapter = folder / f"adapter-{number}-{name}"
        if adapter.exists():
            continue
        unfinished = folder / f"{adapter.name}.part"
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
        unfinished.rename(adapter)
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
