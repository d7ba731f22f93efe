"""What of a program's log explains a failure: the errors in it that are not told already, or where it stopped."""

from __future__ import annotations

import os
import re
from pathlib import Path

READ_BYTES = 256 * 1024
"""How much of the log's end is looked at."""
ERRORS = 3
"""So many different errors are shown; engines repeat one in every rank and layer."""

_ERROR = re.compile(
    r"(?:^|(?<=[\]\s|]))(?:(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt)(?::\s.*)?$"
    r"|Fatal Python error: .*$|Segmentation fault.*$)"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def last_words(log: Path, said: str = "") -> tuple[str, ...]:
    """The last different errors in a log, oldest first, that are not in what was ``said`` of the failure already.

    The last line where the log has no error at all; nothing without a log.
    """
    lines = [line.lstrip() for line in _lines(log)]
    errors = {match[0]: line for line in lines if (match := _ERROR.search(line))}
    if not errors:
        return tuple(lines[-1:])
    return tuple([line for error, line in errors.items() if error not in said][-ERRORS:])


def tail(log: Path, lines: int) -> str:
    """The last lines of a log, preceded by the errors that would otherwise be cut off; empty without a log.

    Engines print more after a failure (shutdown notes, warnings of other ranks), so the last lines alone often miss
    the exception.
    """
    kept = _lines(log)
    last = kept[-lines:] if lines > 0 else []
    earlier = [line for line in kept[: len(kept) - len(last)] if _ERROR.search(line)]
    distinct = list(dict.fromkeys(line for line in reversed(earlier) if line not in last))[:ERRORS]
    return "\n".join([*reversed(distinct), *(["..."] if distinct else []), *last])


def _lines(log: Path) -> list[str]:
    """The end of a log without colours and empty lines; nothing without a log."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - READ_BYTES))
            text = stream.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return []
    return [line for line in (_COLOUR.sub("", raw).rstrip() for raw in text.splitlines()) if line]
