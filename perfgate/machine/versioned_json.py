"""The JSON files that perfgate writes itself: each is a model that names its format and version.

Whoever has the file may have changed it, so it is read within the bounds of :mod:`perfgate.machine.json_text`.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from perfgate.errors import NotMeasuredError, RecordError
from perfgate.machine.atomic_files import write_atomically
from perfgate.machine.json_text import MANIFEST, JsonError, Size, check_size, parse_json

_Model = TypeVar("_Model", bound=BaseModel)


def read_model(model: type[_Model], file: Path, most: Size = MANIFEST) -> _Model:
    """What a file says; no more of it is read than it may hold.

    The model's field ``format`` has the only value that is accepted as its default.

    Raises:
        RecordError: It is missing, no JSON that perfgate wrote, or of another format.
    """
    return parse_model(model, read_bytes(file, most), str(file), most)


def parse_model(model: type[_Model], text: str | bytes, where: str, most: Size = MANIFEST) -> _Model:
    """What the text of such a file says; ``where`` names it in errors, which are those of :func:`read_model`."""
    return validated(model, parse_content(text, model.model_fields["format"].default, where, most), where)


def read_bytes(file: Path, most: Size) -> bytes:
    """A file up to one byte more than it may hold.

    Raises:
        RecordError: It is missing or cannot be read.
    """
    try:
        with file.open("rb") as stream:
            return stream.read((most.mib << 20) + 1)
    except FileNotFoundError as error:
        raise RecordError("does not exist", where=str(file)) from error
    except OSError as error:
        raise RecordError(f"cannot be read: {error}", where=str(file)) from error


def parse_content(text: str | bytes, expected: str, where: str, most: Size) -> dict[str, Any]:
    """The object that a text holds, if it says that it is of the expected format, ``family/version``.

    Raises:
        RecordError: It is not.
    """
    family = expected.rpartition("/")[0]
    try:
        content = parse_json(text, most)
    except json.JSONDecodeError as error:
        location = f"{where}:{error.lineno}:{error.colno}"
        raise RecordError(f"invalid JSON, or truncated: {error.msg}", where=location) from error
    except JsonError as error:
        raise RecordError(f"is not JSON that perfgate wrote: it {error}", where=where) from error
    if not isinstance(content, dict):
        raise RecordError(f"not a {family}: expected a JSON object", where=where)
    if (format_ := content.get("format")) == expected:
        return content
    if isinstance(format_, str) and format_.rpartition("/")[0] == family:
        if _number(format_) < _number(expected):
            text = f"has format {format_[:100]}, of an earlier perfgate; this version reads {expected}"
            raise RecordError(text, where=where, remedy="Read it with the perfgate that wrote it, or make it anew.")
        text = f"has format {format_[:100]}, this version reads up to {expected}"
        raise RecordError(text, where=where, remedy="Use the perfgate that wrote it, or a newer one.")
    raise RecordError(f"not a {family}: format is {reprlib.repr(format_)}, expected {expected!r}", where=where)


def _number(format_: str) -> float:
    """The version in ``family/version``; a later one than all where it is not a number."""
    version = format_.rpartition("/")[2]
    return float(version) if re.fullmatch("[0-9]{1,9}", version) else math.inf


def validated(model: type[_Model], content: Any, where: str, *, strict: bool | None = None) -> _Model:
    """JSON values as a model, validated as strictly as JSON is, or as the model says where ``strict`` is given.

    Raises:
        RecordError: They are none; the first field that is wrong is named.
    """
    try:
        return model.model_validate_json(json.dumps(content), strict=strict)
    except ValidationError as error:
        raise RecordError(first_problem(error), where=where) from error


def first_problem(error: ValidationError) -> str:
    """The first field that is wrong, and what is: ``visits.0.machine: Field required``; no value is repeated whole."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    location = ".".join(str(part) for part in first["loc"] if part != "[key]")[:200]
    return f"{location}: {first['msg'].removeprefix('Value error, ')}"[:500]


def write_model(file: Path, model: BaseModel) -> None:
    """Replace a file with what a model says, sorted and indented; raises as :func:`write_readable`."""
    content = model.model_dump(mode="json")
    text = json.dumps(content, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    write_readable(file, text, MANIFEST)


def model_text(model: BaseModel) -> str:
    """A model as JSON that is printed: sorted, indented, with a line end."""
    return json.dumps(model.model_dump(mode="json"), sort_keys=True, indent=1, ensure_ascii=False) + "\n"


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
