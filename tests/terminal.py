"""A terminal that a test reads: a pseudo-terminal, and what an emulator makes of what is written to it."""

from __future__ import annotations

import fcntl
import io
import os
import select
import struct
import termios

import pyte


class Terminal:
    """A pseudo-terminal with an emulator behind it.

    Args:
        columns: Its width.
        rows: Its height.
    """

    def __init__(self, columns: int, rows: int = 24) -> None:
        self._ours, theirs = os.openpty()
        self.name = os.ttyname(theirs)
        self.stream = io.TextIOWrapper(os.fdopen(theirs, "wb", buffering=0), encoding="utf-8", write_through=True)
        self._screen = pyte.Screen(columns, rows)
        self._emulator = pyte.Stream(self._screen)
        self.written = ""
        """All that was read so far."""
        self.resize(columns, rows)

    def resize(self, columns: int, rows: int = 24) -> None:
        """Give it another size; what is on it is cut, not wrapped anew."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._screen.resize(rows, columns)

    def read(self, wait_s: float = 0.0) -> str:
        """What was written since it was read last.

        Args:
            wait_s: How long to wait for the first of it.
        """
        new = b""
        while select.select([self._ours], [], [], 0.0 if new else wait_s)[0]:
            try:
                piece = os.read(self._ours, 65536)
            except OSError:  # nobody has it open any more
                break
            new += piece
        text = new.decode(self.stream.encoding)
        self.written += text
        self._emulator.feed(text)
        return text

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._ours, keys.encode())

    @property
    def lines(self) -> list[str]:
        """What it shows, without blank lines."""
        self.read()
        return [line.rstrip() for line in self._screen.display if line.strip()]

    @property
    def text(self) -> str:
        """The same as one text, between lines as wide as it is."""
        edge = "-" * self._screen.columns
        return "\n".join([edge, *self.lines, edge, ""])

    @property
    def is_clean(self) -> bool:
        """Whether the cursor is there, and what is written next has no colour."""
        cursor = self._screen.cursor
        return not cursor.hidden and cursor.attrs == self._screen.default_char

    def close(self) -> None:
        """Close both ends."""
        self.stream.close()
        os.close(self._ours)
