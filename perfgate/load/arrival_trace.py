"""Recorded arrivals: Mooncake's JSON lines and Azure's CSV of LLM inference traces.

Formats: https://github.com/kvcache-ai/Mooncake (``timestamp`` in ms, ``input_length``, ``output_length``, ``hash_ids``
of blocks of 512 tokens); https://github.com/Azure/AzurePublicDataset (``TIMESTAMP``, ``ContextTokens``,
``GeneratedTokens``). Neither holds text. Anybody may have written such a file: size, lines and numbers are bounded.
"""

from __future__ import annotations

import csv
import hashlib
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, TextIO

from pydantic import BaseModel, ConfigDict, FailFast, Field, NonNegativeInt, TypeAdapter, ValidationError

from perfgate.errors import NotMeasuredError, UsageError
from perfgate.load.arrival_kinds import MOST_REQUESTS, MOST_TOKENS
from perfgate.load.arrivals import BLOCK_TOKENS, Arrived
from perfgate.load.shape import Load
from perfgate.models import LARGEST, Strict
from perfgate.units import NS_PER_S

MOST_BYTES: Final = 64 * 1024**2
"""Of a file; Mooncake's longest trace, of 23,608 requests, has 15 MB."""
MOST_LINE: Final = 64 * 1024
"""Characters; a prompt of a million tokens has 2,000 hash ids."""

_Count = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_COUNT = TypeAdapter(_Count)


class _Line(BaseModel):
    """A line of Mooncake's format; further fields are left alone."""

    model_config = ConfigDict(strict=True)

    timestamp: Annotated[float, Field(ge=0, le=1e3 * LARGEST, allow_inf_nan=False)]
    input_length: _Count
    output_length: _Count
    hash_ids: Annotated[tuple[NonNegativeInt, ...], FailFast()] = ()


def read_arrivals(file: Path) -> tuple[Arrived, ...]:
    """A trace, in order of time and from its first request on.

    A request without input or output counts as one with a token.

    Args:
        file: ``.csv`` is Azure's format, anything else Mooncake's.

    Raises:
        UsageError: It cannot be read, holds nothing or too much, or a line of it is not of its format.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            lines = _lines(stream, file)
            read = _azure(lines, file) if file.suffix == ".csv" else _mooncake(lines, file)
            entries = sorted(read, key=lambda entry: entry.at_ns)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(file)) from error
    if not entries:
        raise UsageError("holds no request", where=str(file))
    begin_ns = entries[0].at_ns
    if entries[-1].at_ns - begin_ns > LARGEST * NS_PER_S:
        raise UsageError(f"spans more than {LARGEST} s", where=str(file))
    return tuple(
        Arrived(entry.at_ns - begin_ns, max(1, entry.input_tokens), max(1, entry.output_tokens), entry.blocks)
        for entry in entries
    )


def trace_digest(file: Path) -> str:
    """The SHA-256 of a trace's file.

    Raises:
        UsageError: It cannot be read, or is larger than a trace.
    """
    try:
        if not file.is_file():
            raise UsageError("not a file", where=str(file))
        if file.stat().st_size > MOST_BYTES:
            raise UsageError(f"larger than {MOST_BYTES // 1024**2} MiB", where=str(file))
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(file)) from error


def _lines(stream: TextIO, file: Path) -> Iterator[str]:
    """The lines, none longer than can be and no more than a window holds, beside a header."""
    for number in range(MOST_REQUESTS + 2):
        try:
            line = stream.readline(MOST_LINE + 1)
        except UnicodeDecodeError as error:
            raise UsageError("not UTF-8 text", where=f"{file}:{number + 1}") from error
        if not line:
            return
        if len(line) > MOST_LINE:
            raise UsageError(f"a line of more than {MOST_LINE} characters", where=f"{file}:{number + 1}")
        yield line
    raise UsageError(f"more than {MOST_REQUESTS} requests", where=str(file), remedy="Cut it: head -n 10000.")


def _mooncake(lines: Iterator[str], file: Path) -> Iterator[Arrived]:
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            line = _Line.model_validate_json(text)
        except ValidationError as error:
            raise _refusal(error, file, number) from error
        blocks = line.hash_ids[: -(-line.input_length // BLOCK_TOKENS)]
        yield Arrived(round(line.timestamp * 1e6), line.input_length, line.output_length, blocks)


def _azure(lines: Iterator[str], file: Path) -> Iterator[Arrived]:
    rows = csv.reader(lines, strict=True)
    try:
        header = next(rows, [])
        if missing := [name for name in _COLUMNS if name not in header]:
            raise UsageError(f"no column {missing[0]}; expected {','.join(_COLUMNS)}", where=f"{file}:1")
        places = [header.index(name) for name in _COLUMNS]
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise UsageError(f"{len(row)} columns, expected {len(header)}", where=f"{file}:{rows.line_num}")
            when, prompt, answer = (row[place] for place in places)
            yield Arrived(_nanoseconds(when), _COUNT.validate_python(prompt), _COUNT.validate_python(answer))
    except csv.Error as error:
        raise UsageError(f"invalid CSV: {error}", where=f"{file}:{rows.line_num}") from error
    except (ValidationError, ValueError) as error:
        raise _refusal(error, file, rows.line_num) from error


def _nanoseconds(text: str) -> int:
    """``2023-11-16 18:17:03.9799600``, with or without a zone, to whole microseconds."""
    when = datetime.fromisoformat(text)
    since = (when if when.tzinfo else when.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1000


def _refusal(error: ValueError, file: Path, number: int) -> UsageError:
    """The first thing that is wrong with a line."""
    text = str(error)
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        text = ": ".join([*map(str, first["loc"]), first["msg"]])
    return UsageError(text, where=f"{file}:{number}")


FOLDER = "arrivals"


def keep_trace(run_folder: Path, file: Path) -> None:
    """Copy a trace into a run's folder, so that the run can go on without the repository, named by its digest.

    Raises:
        OSError: It cannot be written.
        UsageError: It cannot be read.
    """
    kept = run_folder / FOLDER / f"{trace_digest(file)}{file.suffix}"
    kept.parent.mkdir(exist_ok=True)
    part = kept.with_name(f".{kept.name}.{os.getpid()}.part")
    shutil.copyfile(file, part)
    part.replace(kept)


def kept_trace(run_folder: Path, workload: Strict) -> tuple[Arrived, ...]:
    """The trace that a cell's workload replays; empty where it replays none.

    Raises:
        NotMeasuredError: The copy is missing, or not what the cell says.
    """
    replay = workload.arrival.replay if isinstance(workload, Load) else None
    if replay is None:
        return ()
    file = run_folder / FOLDER / f"{replay.sha256}{Path(replay.file).suffix}"
    try:
        if trace_digest(file) == replay.sha256:
            return read_arrivals(file)
        text = f"{file}: changed since the run began"
    except UsageError as error:
        text = error.finding
    raise NotMeasuredError(f"the trace to replay: {text}", code="client-failed")
