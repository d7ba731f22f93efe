"""What of an engine's log explains a failure: the errors in it that are not told already, or where it stopped."""

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
    """The lines of a log that say more of a failure than what was said of it already.

    Args:
        log: The engine's log.
        said: What is known of the failure.

    Returns:
        The last different errors, oldest first, without those in ``said``; the last line where the log has no error
        at all; nothing without a log.
    """
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - READ_BYTES))
            text = stream.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ()
    lines = [line for line in (_COLOUR.sub("", raw).strip() for raw in text.splitlines()) if line]
    found = {match[0]: line for line in lines if (match := _ERROR.search(line))}
    if not found:
        return tuple(lines[-1:])
    return tuple([line for error, line in found.items() if error not in said][-ERRORS:])
