"""How much of a trace is read: a file may be damaged, or made to do harm.

All bounds of the readers of traces are here; what is beyond one is refused with
:class:`perfgate.errors.RecordError`. The depth of JSON is bounded by the interpreter's recursion limit.
"""

from __future__ import annotations

import sqlite3

from perfgate.errors import RecordError
from perfgate.machine.memory_room import available_bytes
from perfgate.units import gib

MAX_UNPACKED_BYTES = 4 << 30
"""What a file with gzip may unpack to, on disk: an export of twenty million kernels has 2.2 GB."""

SMALL_BYTES = 64 << 20
"""What any file with gzip may unpack to."""

MAX_UNPACKED_RATIO = 100
"""How many times its own size a larger one may: traces unpack to four to twenty times theirs, zeros to a thousand."""

MAX_JSON_BYTES = 2 << 30
"""The largest Chrome trace that is read."""

JSON_FACTOR = 10
"""How many times its own size a Chrome trace takes in memory, about (docs/measurements.md)."""

KERNEL_BYTES = 180
"""What a kernel of an export takes in memory at most, its calls included (docs/measurements.md)."""

MAX_ROWS = 20_000_000
"""Rows of one table of an export that are kept: about 1.5 GiB of columns, and as much again while they are sorted."""

MAX_RANGES = 2_000_000
"""Ranges of an export that name steps or layers: about half a gibibyte."""

MAX_NAME_CHARACTERS = 16_384
"""The longest kernel name; names are searched with regular expressions whose time may grow with the square."""

MAX_CAUTIONS = 20
"""Messages of the profiler's own that are shown."""

MAX_TIME_NS = 1 << 62
"""The latest time, in 2116 for a clock that counts from 1970; times of that size still have a difference."""

FIRST_BASE_NS = 946_684_800_000_000_000
"""The first day of 2000 in nanoseconds since 1970: what times of a trace count from is a date after it."""

MAX_DURATION_NS = 1 << 53
"""The longest duration, a hundred days: sums of durations are exact below it."""

MAX_BYTES_MOVED = 1 << 53
"""The most that one copy moves."""

MAX_DEVICE = (1 << 15) - 1
MAX_CORRELATION = (1 << 40) - 1
"""CUPTI's numbers of calls have 32 bits; process and number are packed into one of 64."""

SQLITE = {
    sqlite3.SQLITE_LIMIT_LENGTH: 1 << 24,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 500,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 20,
    sqlite3.SQLITE_LIMIT_ATTACHED: 1,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 1000,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
}
"""What a query and a schema may need (https://www.sqlite.org/limits.html); LENGTH is a row's, text's or blob's."""


def check_memory(needed: int, where: str) -> None:
    """Check that there is so much memory, before it is taken: the kernel would end the process without a word.

    Args:
        needed: Bytes, as an estimate.
        where: The file, for the error.

    Raises:
        RecordError: There is less.
    """
    free = available_bytes()
    if needed > free:
        text = f"needs about {gib(needed)} of memory to read, and {gib(free)} is available"
        remedy = "Read it on a machine with more memory, end what uses it, or trace fewer iterations."
        raise RecordError(text, where=where, remedy=remedy)
