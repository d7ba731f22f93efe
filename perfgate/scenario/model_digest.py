"""What of a model's folder is part of a cell, as one digest."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from perfgate.machine.atomic_files import sha256_hex
from perfgate.metrics.transformer import QUANTISED_BY
from perfgate.scenario.declaration import Scenario
from perfgate.scenario.workload import images_of

READ: Final = {".json", ".model", ".txt", ".jinja"}
"""Files of configurations, tokenizers and processors."""
MOST_READ: Final = 64 * 1024**2
"""Bytes; the largest tokenizers have half of it. Larger files are told apart by name and size."""


def model_digest(scenario: Scenario, folder: Path | None) -> str:
    """What is known of the model; of one that is shown images its processor, and what arguments name of its folder.

    Raises:
        OSError: It cannot be read.
    """
    model = scenario.engine.model
    if folder is None:
        return f"hub:{model.hub}@{model.revision}"
    config = (folder / "config.json").read_bytes()
    files = {*_named_files(scenario, folder)}
    files |= {file for name in QUANTISED_BY if (file := folder / name).is_file()}
    if images_of(scenario.workload) is not None:
        files |= {file for file in folder.iterdir() if file.is_file() and file.suffix in READ}
    if files:
        config += json.dumps([_identity(file, folder) for file in sorted(files)]).encode()
    if model.config is not None:
        return sha256_hex(config)
    # Real weights: reading them would take minutes; name and size of every file catch what is changed by mistake.
    listing: list[Any] = sorted((f.name, f.stat().st_size) for f in folder.iterdir() if f.is_file())
    return sha256_hex(config + json.dumps(listing).encode())


def _named_files(scenario: Scenario, folder: Path) -> Iterator[Path]:
    """The files below what arguments name by ``{model}/``: a draft model, adapters."""
    texts = _texts([scenario.engine.args, scenario.matrix])
    rests = [rest.lstrip("/") for text in texts for rest in text.split("{model}/")[1:]]
    named = [posixpath.normpath(path) for rest in rests for path in (rest, re.split(r"[\s,;\"']", rest)[0])]
    for entry in folder.iterdir():
        if any(re.match(rf"{re.escape(entry.name)}(?![\w.-])", path) for path in named):
            yield from (file for file in [entry, *entry.rglob("*")] if file.is_file())


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value.values()])
    elif isinstance(value, Sequence):
        for entry in value:
            yield from _texts(entry)


def _identity(file: Path, folder: Path) -> tuple[str, int, str]:
    """What of a file is part of the cell: its content where that is read at once, else only name and size."""
    size = file.stat().st_size
    content = sha256_hex(file.read_bytes()) if file.suffix in READ and size <= MOST_READ else ""
    return file.relative_to(folder).as_posix(), size, content
