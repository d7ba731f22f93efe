"""JSON that somebody else may have written: its size is bounded before it is parsed, in this one place.

A parsed value takes some fifty times the memory of its text, and a wrong one that pydantic complains of some thousand
times. What is bounded is therefore the number of values as well as that of bytes.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

from pydantic import FailFast, NonNegativeInt


@dataclass(frozen=True)
class Size:
    """The most that a file of some kind may hold: MiB of text, and values, keys not counted, lists and objects too."""

    mib: int
    values: int


RECORD: Final = Size(1024, 16_000_000)
"""A run of twelve pairs with a hundred iterations of 256 requests and 2,048 tokens each has 6.2 million figures;
reading it takes 0.8 GiB, and the largest there may be 1.9 GiB."""
BASELINE: Final = Size(32, 1_000_000)
MANIFEST: Final = Size(8, 200_000)
"""What is written by perfgate or a person and holds no figures of trials."""
VERDICT: Final = Size(8, 500_000)
"""A verdict that an artifact holds."""
ANSWER: Final = Size(16, 1_000_000)
"""An answer of GitHub's API: a page of a hundred files with their patches, at most."""


_SPACE: Final = re.compile(r"[ \t\r\n]*")
LARGEST_INTEGER: Final = 2**63
"""No figure comes near it; beyond it are integers that no table can hold."""


Figures = Annotated[tuple[NonNegativeInt, ...], FailFast()]
"""Of one figure that is wrong a reader is told, not of a million: each complaint takes a kilobyte."""


class JsonError(ValueError):
    """Text that is too large, or JSON that perfgate would not write."""


def check_size(text: str, most: Size) -> None:
    """Refuse JSON that would be refused when it is read; for writers, before they replace a file.

    Raises:
        JsonError: It is larger.
    """
    _check_length(text, most)
    values = sum(map(text.count, ",[{"))
    if values > most.values:
        raise JsonError(f"holds {values} values; such a file has at most {most.values}")


def parse_json(text: str | bytes, most: Size = MANIFEST, *, finite: bool = True) -> Any:
    """What a JSON text says; bytes are UTF-8.

    With ``finite`` a number without end is refused: what Python's own ``json`` wrote may hold ``Infinity``.

    Raises:
        JsonError: It is larger, is nested too deeply, is not UTF-8, or holds a number that cannot be kept.
        json.JSONDecodeError: It is not JSON; a ``ValueError`` too.
    """
    only_finite: dict[str, Any] = {"parse_constant": _refuse, "parse_float": _finite} if finite else {}
    with _bounded():
        return json.loads(_decoded(text, most), parse_int=_kept, **only_finite)


def parse_documents(text: str | bytes, most: Size = MANIFEST) -> list[tuple[int, Any]]:
    """The JSON texts that follow one another, as JSON Lines do, each with the line that it begins in.

    Infinity and NaN are read: other programs write them. A byte order mark is passed over.

    Raises:
        JsonError: As :func:`parse_json`, or an object holds a key twice.
        json.JSONDecodeError: One of them is not JSON; its place is that in the whole text.
    """
    documents, line, end = [], 1, 0
    with _bounded():
        text = _decoded(text, most, "utf-8-sig")
        decoder = json.JSONDecoder(parse_int=_kept, object_pairs_hook=_once)
        while (begin := _SPACE.match(text, end).end()) < len(text):  # type: ignore[union-attr]  # nothing matches too
            line += text.count("\n", end, begin)
            document, end = decoder.raw_decode(text, begin)
            documents.append((line, document))
            line += text.count("\n", begin, end)
    return documents


def read_json(file: Path, *, finite: bool = True) -> Any:
    """What a JSON file of the size of a manifest says; no more of it is read than that may hold.

    Raises:
        ValueError: Whatever :func:`parse_json` raises.
        OSError: It cannot be read.
    """
    with file.open("rb") as stream:
        return parse_json(stream.read((MANIFEST.mib << 20) + 1), finite=finite)


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    try:
        yield
    except RecursionError as error:
        raise JsonError("is nested too deeply") from error


def _decoded(text: str | bytes, most: Size, encoding: str = "utf-8") -> str:
    """A text of permitted size; bytes that are too many are not decoded."""
    if isinstance(text, bytes):
        _check_length(text, most)
        try:
            text = text.decode(encoding)
        except UnicodeDecodeError as error:
            raise JsonError(f"is not UTF-8: {error}") from error
    check_size(text, most)
    return text


def _check_length(text: str | bytes, most: Size) -> None:
    if len(text) > most.mib << 20:
        raise JsonError(f"is {len(text) >> 20} MiB large; such a file has at most {most.mib}")


def _refuse(name: str) -> NoReturn:
    raise JsonError(f"holds {name}, which is not a number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        twice = next(key for n, (key, _) in enumerate(pairs) if key in dict(pairs[:n]))
        raise JsonError(f"holds the key {ascii(twice)[:60]} twice in one object")
    return content


def _finite(digits: str) -> float:
    if math.isinf(value := float(digits)):
        raise JsonError(f"holds {digits[:40]}, larger than any number that can be kept")
    return value


def _kept(digits: str) -> int:
    if len(digits) > 20 or abs(value := int(digits)) >= LARGEST_INTEGER:  # noqa: PLR2004 (a sign and 19 digits)
        raise JsonError(f"holds {digits[:40]}, larger than any integer that can be kept")
    return value
