"""A tokenizer for models with dummy weights: a server wants one to answer in text, and grammars are held against text.

Each byte is a token, and each id left over is a word of its own, ``w300``. So any text can be written and any id read,
and no file has to be fetched. The files are those of the ``tokenizers`` library: byte-level BPE without merges.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

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
