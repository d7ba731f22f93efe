"""What a dummy model lacks to be served: a tokenizer, for text and grammars, and LoRA adapters.

Both are drawn from seeds and cost what real ones cost: an adapter's work depends on its shapes, a grammar's on the size
of the vocabulary and how many of its tokens are allowed.
"""

from __future__ import annotations

import itertools
import json
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from perfgate.errors import UsageError

RANK: Final = 16
"""Of dummy adapters; what PEFT's examples use."""
BYTES: Final = 256


def write_tokenizer(folder: Path, config: Mapping[str, Any]) -> None:
    """A byte-level tokenizer with the vocabulary of a model: ``tokenizer.json`` and ``tokenizer_config.json``.

    Every byte is a token, so any text can be written; the rest are short words, so that a grammar allows many tokens.

    Args:
        folder: The model's.
        config: Its ``config.json``: ``vocab_size``, ``eos_token_id`` and ``bos_token_id`` are read.

    Raises:
        UsageError: The vocabulary has no room for all bytes.
        OSError: The files cannot be written.
    """
    size = int(config["vocab_size"])
    ends = [number for number in _ids(config.get("eos_token_id")) if number < size] or [2]
    special = {number: f"<|{number}|>" for number in {0, *ends, *_ids(config.get("bos_token_id"))} if number < size}
    if size < BYTES + len(special):
        raise UsageError(f"a vocabulary of {size} tokens has no room for a tokenizer", remedy="Raise vocab_size.")
    words = (
        "".join(letters) for n in itertools.count(2) for letters in itertools.product(string.ascii_lowercase, repeat=n)
    )
    others = itertools.chain(_byte_letters(), words)
    vocabulary = {special.get(number) or next(others): number for number in range(size)}
    added = [
        {"id": number, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for number, text in sorted(special.items())
    ]  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model: dict[str, Any] = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary,
                             "merges": []}  # fmt: skip
    _write(folder / "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": level, "post_processor": None, "decoder": level, "model": model,
    })  # fmt: skip
    _write(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": special[ends[0]],
        "clean_up_tokenization_spaces": False,
    })  # fmt: skip


def write_adapters(folder: Path, names: Sequence[str], config: Mapping[str, Any]) -> dict[str, Path]:
    """Dummy LoRA adapters for the attention of a Llama-like model.

    Args:
        folder: Each adapter gets a folder in it.
        names: Of the adapters; each draws its weights from its name.
        config: The model's ``config.json``.

    Returns:
        The folder of each, for ``--lora-modules NAME=FOLDER``.

    Raises:
        OSError: The files cannot be written.
    """
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    head = int(config.get("head_dim") or hidden // heads)
    keys = int(config.get("num_key_value_heads") or heads) * head
    shapes = {
        "q_proj": (hidden, heads * head), "k_proj": (hidden, keys), "v_proj": (hidden, keys),
        "o_proj": (heads * head, hidden),
    }  # fmt: skip
    folders = {}
    for number, name in enumerate(names):
        folders[name] = own = folder / f"adapter-{number}"
        own.mkdir(parents=True, exist_ok=True)
        _write(own / "adapter_config.json", {
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "", "r": RANK,
            "lora_alpha": RANK, "lora_dropout": 0.0, "bias": "none", "target_modules": [*shapes],
        })  # fmt: skip
        draw = np.random.default_rng([*name.encode()])
        tensors = {}
        for layer, (part, (inputs, outputs)) in itertools.product(
            range(int(config["num_hidden_layers"])), shapes.items()
        ):
            place = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            tensors[f"{place}.lora_A.weight"] = draw.normal(0, 0.02, (RANK, inputs)).astype("<f2")
            tensors[f"{place}.lora_B.weight"] = draw.normal(0, 0.02, (outputs, RANK)).astype("<f2")
        _write_safetensors(own / "adapter_model.safetensors", tensors)
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


def _byte_letters() -> list[str]:
    """The letter of each byte in byte-level vocabularies, as GPT-2 chose them."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(BYTES) if byte not in shown]
    letters = {byte: chr(byte) for byte in shown} | {byte: chr(BYTES + n) for n, byte in enumerate(hidden)}
    return [letters[byte] for byte in range(BYTES)]


def _ids(value: Any) -> list[int]:
    """Token ids as a ``config.json`` names them: one, several or none."""
    listed = value if isinstance(value, list) else [value]
    return [number for number in listed if type(number) is int]


def _write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
