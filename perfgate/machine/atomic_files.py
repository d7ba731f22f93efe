"""Files that are whole or not there, and digests that depend on content alone."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: the form that digests are taken of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_hex(data: bytes | str) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def sha256_of(file: Path) -> str:
    """SHA-256 of a file in hexadecimal, whatever its size.

    Raises:
        OSError: It cannot be read.
    """
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_atomically(file: Path, text: str) -> None:
    """Replace ``file`` whole or not at all, and have it on the disk when this returns.

    Raises:
        OSError: The file system refused; an earlier version of the file is untouched.
    """
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(file)
        _sync(file.parent)
    finally:
        part.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """A rename is on the disk only when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
