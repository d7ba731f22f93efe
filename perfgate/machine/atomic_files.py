"""Files that are whole or not there, and digests that depend on content alone."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from perfgate.errors import NotMeasuredError
from perfgate.machine.json_text import JsonError, Size, check_size


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: the form that digests are taken of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_hex(data: bytes | str) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


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


def write_readable(file: Path, text: str, most: Size) -> None:
    """Replace ``file`` with JSON as :func:`write_atomically` does, unless it could not be read again.

    Raises:
        NotMeasuredError: ``storage-failed``: it is larger than such a file may be.
        OSError: The file system refused. In either case the file is as it was.
    """
    try:
        check_size(text, most)
    except JsonError as error:
        raise NotMeasuredError(
            f"cannot be written, because it could not be read again: it {error}",
            where=str(file),
            remedy="What the file held before can be judged. Measure fewer cells, iterations, requests or tokens.",
            code="storage-failed",
        ) from error
    write_atomically(file, text + "\n")


def _sync(folder: Path) -> None:
    """A rename is on the disk only when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
