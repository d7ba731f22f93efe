"""The standard streams of a command: that nobody reads what it says must not stop what it measures.

A stream may be closed (``2>&-``), its disk full, its reader gone. What was to be written to stderr is then dropped, and
everything else goes on. What was to be written to stdout is the report, so its writer must hear of it.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

_STANDARD = (0, 1, 2)


@contextlib.contextmanager
def lasting_streams() -> Iterator[None]:
    """While the block lasts, all three standard descriptors are open and writing to stderr never fails.

    A closed descriptor would be taken by the next file that is opened, which would then be read or written as a
    standard stream by whoever inherits it.
    """
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:  # the lowest free number is taken, and those below are open
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    stdout, stderr = sys.stdout, sys.stderr
    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123 (no path of ours)
        sys.stdout = stdout or nowhere
        sys.stderr = cast("TextIO", _Forgiving(stderr or nowhere))
        try:
            yield
        finally:
            sys.stdout, sys.stderr = stdout, stderr


def abandon(stream: TextIO) -> None:
    """Let nothing more be written to a stream that failed, not even when the interpreter flushes at its end."""
    with contextlib.suppress(io.UnsupportedOperation):  # a stream in memory has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class _Forgiving:
    """A stream whose writing never fails; after the first failure that lasts, what is written goes nowhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, if it can be done."""
        try:
            return self._stream.write(text)
        except BlockingIOError:  # its reader is slow: only this piece is lost
            return len(text)
        except OSError:
            abandon(self._stream)
            return len(text)

    def flush(self) -> None:
        """Flush, if it can be done."""
        try:
            self._stream.flush()
        except BlockingIOError:
            return
        except OSError:
            abandon(self._stream)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the stream's own."""
        return getattr(self._stream, name)
