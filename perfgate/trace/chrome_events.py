"""The events of a Chrome trace: read within bounds, their numbers checked, times exact to the nanosecond."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from perfgate.errors import RecordError
from perfgate.trace.kernel_table import NONE
from perfgate.trace.limits import FIRST_BASE_NS, JSON_FACTOR, MAX_JSON_BYTES, MAX_TIME_NS, check_memory

_OLD = {"runtime": "cuda_runtime", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}
"""Categories of PyTorch before 1.12, in lower case."""

_TIME = re.compile(r"-?\d{1,19}(\.\d{1,12})?", re.ASCII)
_WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)
_LONG = re.compile(r"-?\d{1,19}", re.ASCII)
_RANK = re.compile(r"\[[\w-]{1,60}\] (\d{1,18})", re.ASCII)
"""A process in a trace that SGLang merged, ``[TP00-DP01] 83`` (``python/sglang/srt/utils/profile_merger.py``)."""
_POINTER = re.compile(r"0x[0-9a-fA-F]{1,15}")
_SIZES = (0, 1 << 31)

SHOWN = 60
"""Characters of a value that a message shows."""


def begins_json(head: bytes) -> bool:
    """Whether a file with these first bytes may be JSON, with a mark of its byte order or without."""
    text = head.decode(json.detect_encoding(head), "replace")
    return text.removeprefix("\ufeff").lstrip()[:1] in ("{", "[")


def load_json(file: Path) -> Any:
    """A profiler's JSON as it is, its fractions as exact decimals.

    Raises:
        RecordError: The file is too large, no JSON, or cut short; it says at which byte of the unpacked file.
    """
    size, where = file.stat().st_size, str(file)
    if size > MAX_JSON_BYTES:
        text = f"is larger than {MAX_JSON_BYTES} bytes"
        raise RecordError(text, where=where, remedy="Trace fewer iterations.")
    check_memory(JSON_FACTOR * size, where)
    text, encoding = _decoded(file)
    try:
        # Times are microseconds since boot or 1970: as floats they would lose up to 256 ns.
        content = json.loads(text, parse_float=Decimal)
    except ArithmeticError as error:
        raise RecordError("holds a number beyond all bounds", where=where) from error
    except json.JSONDecodeError as error:
        fault, remedy = _wrong(text, error, len(text[: error.pos].encode(encoding)))
        raise RecordError(fault, where=where, remedy=remedy) from error
    except RecursionError as error:
        raise RecordError("invalid JSON: lists within lists, deeper than any trace", where=where) from error
    except ValueError as error:
        raise RecordError(f"invalid JSON: {error}", where=where, remedy=_REPORTED) from error
    if text.count(_EVENTS) > 1 and len(_LISTS.findall(text)) > 1:
        fault = "holds several lists of traceEvents, of which JSON keeps the last alone"
        raise RecordError(fault, where=where, remedy="Give one trace a file, or one list of all events.")
    return content


def _decoded(file: Path) -> tuple[str, str]:
    """A file's text without a mark of its byte order, and its encoding.

    Raises:
        RecordError: Bytes of it are none of that encoding.
    """
    raw = file.read_bytes()
    encoding = json.detect_encoding(raw)
    try:
        return raw.decode(encoding), encoding
    except UnicodeDecodeError as error:
        at = error.start + 3 * (encoding == "utf-8-sig")  # its codec counts from after the mark
        name = encoding.upper().removesuffix("-SIG")
        if error.reason in ("unexpected end of data", "truncated data"):
            raise RecordError(f"incomplete JSON: it ends at byte {at}", where=str(file), remedy=STOPPED) from error
        text = f"invalid JSON: byte {at} is 0x{raw[at]:02x}, which is not {name}"
        remedy = f"iconv -c -f {name} -t UTF-8 leaves such bytes out of an unpacked copy. {_REPORTED}"
        raise RecordError(text, where=str(file), remedy=remedy) from error


def _wrong(text: str, error: json.JSONDecodeError, byte: int) -> tuple[str, str]:
    """What is wrong with JSON, and what to do."""
    excerpt = text[error.pos : error.pos + SHOWN]
    if error.msg.startswith("Unterminated string") or _cut_short(text, error.pos):
        return f"incomplete JSON: it ends within what begins at byte {byte}", STOPPED
    if error.msg.startswith("Invalid control character"):
        remedy = f"tr -d '\\000-\\037' leaves such characters out of an unpacked copy. {_REPORTED}"
        return f"invalid JSON: a string holds the control character 0x{ord(excerpt[0]):02x} at byte {byte}", remedy
    if error.msg.startswith("Extra data"):
        if excerpt[0] in "{[":
            return f"holds more than one JSON text: another one begins at byte {byte}", "Give one trace a file."
        return f"invalid JSON: after its end comes {cut(excerpt)} at byte {byte}", "Copy it again, or trace again."
    said = error.msg[0].lower() + error.msg[1:].removesuffix(" at")
    return (
        f"invalid JSON: {said} at byte {byte}, where {cut(excerpt)} is",
        f"Copy it again, or trace again. {_REPORTED}",
    )


def _cut_short(text: str, at: int) -> bool:
    """Whether nothing, or only the beginning of a word, an escape or a fraction, comes after a place."""
    rest = text[at : at + _LONGEST_WORD].strip()
    return any(word.startswith(rest) for word in _WORDS) or bool(_BEGUN.fullmatch(rest))


STOPPED = "Was the profiler stopped before the process ended?"
"""What to ask of a file that is cut short."""
_EVENTS = '"traceEvents"'
_LISTS = re.compile(r'(?<!\\)"traceEvents"\s*:\s*\[')
_REPORTED = "Report it to what wrote the file."
_WORDS = ("true", "false", "null", "NaN", "-Infinity", "Infinity")
_LONGEST_WORD = 12
_BEGUN = re.compile(r"\\?u[0-9a-fA-F]{0,4}|\.|[eE][+-]?")


def load_events(file: Path) -> dict[str, Any]:
    """A Chrome trace as it is, its times as exact decimals, its events a list of mappings.

    Raises:
        RecordError: The file is too large, no JSON, cut short or no Chrome trace.
    """
    content = load_json(file)
    head: dict[str, Any] = content if isinstance(content, dict) else {"traceEvents": content}
    events = head.get("traceEvents")
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise RecordError("is JSON, but no Chrome trace: it has no list of traceEvents", where=str(file))
    return head


Owner = tuple[str, int | None]


@dataclass(frozen=True, slots=True)
class Event:
    """A complete event (``"ph": "X"``).

    Args:
        number: Its place among the file's events.
        category: Its category in lower case.
        thread: Its thread; a device's event has its stream here.
        pid: Its process; a device's event has the device here.
        detail: Its arguments, whatever they are.
        rank: What tells the ranks of a merged trace apart; empty in any other.
    """

    number: int
    category: str
    name: str
    start_ns: int
    end_ns: int
    thread: int | str
    pid: int | None
    detail: dict[str, Any]
    rank: str = ""

    @property
    def owner(self) -> Owner:
        """Its process, or its device, and of which rank."""
        return self.rank, self.pid

    def whole(self, key: str) -> int | None:
        """An argument that is a whole number, also where it is written as text or as a pointer (ROCm's streams).

        Raises:
            ValueError: It is anything else.
        """
        value = self.detail.get(key)
        if isinstance(value, str) and _POINTER.fullmatch(value):
            return int(value, 16)
        if isinstance(value, str) and _WHOLE.fullmatch(value):
            return int(value)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise ValueError(f"event {self.number}: {key} is not a whole number: {cut(value)}")

    def shape(self) -> tuple[int, ...]:
        """Grid and block of a kernel; zeros for an operator.

        Raises:
            ValueError: A size is none that a launch can have.
        """
        grid, block = self.detail.get("grid"), self.detail.get("block")
        if not (isinstance(grid, list) and isinstance(block, list) and len(grid) == len(block) == 3):  # noqa: PLR2004 (x, y, z)
            return (0,) * 6
        sizes = (*grid, *block)
        if not all(type(size) is int and _SIZES[0] <= size <= _SIZES[1] for size in sizes):
            raise ValueError(f"event {self.number}: grid or block is not a launch shape: {cut(sizes)}")
        return tuple(int(size) for size in sizes)


def base_of(content: dict[str, Any], file: Path) -> int | None:
    """What the times of a trace count from, in nanoseconds since 1970; ``None`` where it does not say.

    Kineto writes times less this number since 2024, because some viewers keep microseconds since 1970 in floats.
    It is a date not long before the trace, ``ChromeTraceBaseTime`` in Kineto's ``output_json.h``; 0 changes no time.

    Raises:
        RecordError: It is not a time that a trace can have: negative, of another unit, or beyond all clocks.
    """
    given = content.get("baseTimeNanoseconds")
    if isinstance(given, str) and _LONG.fullmatch(given):
        given = int(given)
    whole = isinstance(given, int) and not isinstance(given, bool)
    if given is None or (whole and (given == 0 or FIRST_BASE_NS <= given <= MAX_TIME_NS)):
        return given
    text = f"counts its times from baseTimeNanoseconds {cut(given)}, not nanoseconds from 1970 to a date after 2000"
    raise RecordError(text, where=str(file), remedy="Trace again; without that key times are of its own clock.")


def complete_events(content: dict[str, Any], file: Path) -> list[Event]:
    """The complete events of what :func:`load_events` gave, their times from what :func:`base_of` says on.

    Raises:
        RecordError: One has no name, or no time that a trace can have.
    """
    base_ns = base_of(content, file) or 0
    try:
        rows = enumerate(content["traceEvents"])
        return [_event(number, row, base_ns) for number, row in rows if row.get("ph") == "X"]
    except ValueError as error:
        raise RecordError(f"holds a damaged event: {error}", where=str(file)) from error


def _event(number: int, row: dict[str, Any], base_ns: int) -> Event:
    name, start, duration = row.get("name"), microseconds(row.get("ts")), microseconds(row.get("dur", 0))
    if not isinstance(name, str) or start is None or duration is None:
        key = "name" if not isinstance(name, str) else "ts" if start is None else "dur"
        raise ValueError(f"event {number}: {key} is {cut(row.get(key))}")
    start_ns, end_ns = base_ns + round(start * 1000), base_ns + round((start + duration) * 1000)
    if base_ns and not 0 <= min(start_ns, end_ns) <= max(start_ns, end_ns) <= MAX_TIME_NS:
        raise ValueError(f"event {number}: ts {cut(start)} from baseTimeNanoseconds {base_ns} on is beyond any clock")
    thread, pid, detail, rank = row.get("tid"), row.get("pid"), row.get("args"), ""
    if isinstance(pid, str) and (match := _RANK.fullmatch(pid)):
        rank, pid = pid.removesuffix(match[1]), int(match[1])
    category = str(row.get("cat", "")).lower()
    return Event(
        number,
        _OLD.get(category, category),
        name,
        start_ns,
        end_ns,
        thread if isinstance(thread, int | str) and not isinstance(thread, bool) else NONE,
        pid if isinstance(pid, int) and not isinstance(pid, bool) else None,
        detail if isinstance(detail, dict) else {},
        rank,
    )


def microseconds(value: Any) -> int | Decimal | None:
    """A time or duration, also where it is written as text; ``None`` where it is none that a trace can have."""
    if isinstance(value, str) and _TIME.fullmatch(value):
        value = Decimal(value)
    number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    return value if number and abs(value) < MAX_TIME_NS // 1000 else None


def cut(value: Any) -> str:
    """A value for a message, whatever it is."""
    text = f"{value}" if isinstance(value, int | float | Decimal) and not isinstance(value, bool) else repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
